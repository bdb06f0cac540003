"""The upper rungs of the ladder: training agrees with serving (C2), and so do distributions of samples (C3)."""
