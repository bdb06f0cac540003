"""Cosmos3 omni for FastVideo: one resident model that reasons, and makes video, sound and action."""
