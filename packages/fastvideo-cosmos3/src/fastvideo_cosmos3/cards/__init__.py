"""Cards of Cosmos3 checkpoints, made of their own files."""
