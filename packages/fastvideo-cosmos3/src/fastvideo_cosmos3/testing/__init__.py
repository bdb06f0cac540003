"""A tiny Cosmos3 checkpoint of random weights, for tests and examples: `python -m fastvideo_cosmos3.testing FOLDER`."""

from fastvideo_cosmos3.testing.checkpoint import write_checkpoint

__all__ = ["write_checkpoint"]
