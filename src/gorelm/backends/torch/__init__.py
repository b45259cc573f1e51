"""Rows on a device of PyTorch: a GPU, or the CPU for tests."""
