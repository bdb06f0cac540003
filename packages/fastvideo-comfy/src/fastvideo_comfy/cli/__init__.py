"""`fastvideo comfy …`: check, compile, run, coverage."""
