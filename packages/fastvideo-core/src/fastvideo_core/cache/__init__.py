"""Caches: keys that hold all that a content depends on, and pools with a budget for each class of block."""
