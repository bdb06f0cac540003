"""Samplers that draw noise in their steps, so that a transition has a density."""
