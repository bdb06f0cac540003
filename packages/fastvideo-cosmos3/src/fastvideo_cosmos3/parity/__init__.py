"""The parity checks that Cosmos3 cards declare."""
