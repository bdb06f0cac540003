"""The parity checks that Wan cards declare."""
