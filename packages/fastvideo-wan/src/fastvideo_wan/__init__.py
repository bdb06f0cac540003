"""The Wan family for FastVideo.

Importing it imports neither torch nor a model: cards are found through the entry point `model.wan`.

    cards         the cards, and how a checkpoint folder is recognised
    programs      how loops make up the tasks
    loops         loop classes and step bodies
    models        transformer, causal VAE, text and image encoders
    components    how the parts of a checkpoint are made
    parity        the checks against diffusers
    shapes        generator, judge and training of the shipped model
"""

from __future__ import annotations

__all__ = ["cards", "components", "loops", "models", "parity", "programs", "shapes"]
