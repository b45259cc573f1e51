"""Experiments: published figures, statistical comparison of methods, reports."""
