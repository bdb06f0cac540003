"""Rewards: plugins that score samples, run as units of an engine of their own, batched and apart from each other."""
