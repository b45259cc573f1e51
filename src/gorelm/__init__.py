"""Outlier-robust multi-target regression with random-feature networks."""

__version__ = "0.1.0.dev0"
