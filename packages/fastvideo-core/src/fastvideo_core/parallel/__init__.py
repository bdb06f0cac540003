"""How one operation is spread: over the cores of a CPU."""
