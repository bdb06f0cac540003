"""What could be had with hindsight: best placements by an exact solver, best budgets by dynamic programming."""
