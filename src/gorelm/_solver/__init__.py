"""The solver: one convex problem, one ADMM loop, and what proves its answers."""
