"""Folding: nodes that only compute a number, a text or a choice are evaluated, and what they rule out is dead."""

from fastvideo_comfy.fold.folder import Folded, Folder

__all__ = ["Folded", "Folder"]
