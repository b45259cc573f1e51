"""The solver: one convex problem, one ADMM loop, and certificates of its solutions."""
