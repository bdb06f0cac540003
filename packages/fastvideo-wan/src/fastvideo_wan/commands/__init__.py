"""Commands that the Wan plugin brings to the command line."""
