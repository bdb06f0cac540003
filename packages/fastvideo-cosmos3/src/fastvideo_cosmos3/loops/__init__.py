"""The loops of Cosmos3 and their step bodies."""
