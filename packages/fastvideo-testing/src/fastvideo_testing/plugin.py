"""The pytest plugin: shared fixtures for FastVideo packages."""
