"""The loops of the Wan family and their step bodies. No file here iterates over steps: the driver does."""
