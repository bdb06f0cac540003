"""Commands of the Cosmos3 family."""
