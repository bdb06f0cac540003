"""A model family of its own for FastVideo: a small network without attention that draws drifting bars."""
