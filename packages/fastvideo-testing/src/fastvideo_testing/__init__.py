"""Contract suite, fakes and pytest plugin for FastVideo packages."""
