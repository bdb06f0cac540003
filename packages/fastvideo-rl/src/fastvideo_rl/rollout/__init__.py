"""Rollout: groups of samples on the engine that serves, and the records of how each came about."""
