"""`fastvideo comfy …`: check, compile, coverage."""
