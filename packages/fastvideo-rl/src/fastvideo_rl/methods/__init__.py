"""Training methods, each a plugin in a file of its own."""
