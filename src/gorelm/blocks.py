"""Rows in blocks: where to cut them, and what one block adds to a sum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from gorelm.prox import Array

__all__ = ["SUM_ELEMENTS", "across", "cut", "inner", "squares", "total", "upright"]

# Multiplications per block and product. A small block stays in cache between its two products,
# and OpenBLAS does not repack what takes less than a million: twice as fast as all rows at once
# (6000 x 1000 x 8). Wide products want larger blocks, and so do those of float32, where few rows
# are left for a million, and sums over rows without products.
BLOCK_WORK = 990_000
_WIDE = 20  # columns
_SMALLEST, _SMALLEST_WIDE = 62, 512  # rows
_FEW_SINGLE, _LARGE_SINGLE = 256, 1024  # rows, of float32
SUM_ELEMENTS = 50_000


def cut(
    n_rows: int, n_hidden: int, n_columns: int, work: int = BLOCK_WORK, single: bool = False
) -> Iterator[slice]:
    """Cut rows into blocks that stay in cache between their two products; no rows are a block."""
    size = work // max(1, n_hidden * n_columns)
    if single:
        size = size if size >= _FEW_SINGLE else _LARGE_SINGLE
    else:
        size = max(_SMALLEST if n_columns < _WIDE else _SMALLEST_WIDE, size)
    for start in range(0, max(1, n_rows), size):
        yield slice(start, min(start + size, n_rows))


def squares(A: Array) -> Array:
    """Return the squared norm of every problem's part of A (n, P, m)."""
    return np.asarray(np.einsum("npm,npm->p", A, A), dtype=float)


def inner(A: Array, t: Array) -> Array:
    """Return its inner product with t (n, m)."""
    return np.asarray(np.einsum("npm,nm->p", A, t), dtype=float)


def across(h: Array, D: Array) -> Array:
    """Return (H'D)' of a block of rows, (P m, L): BLAS is up to twice as fast as for H'D."""
    return np.asarray(D.reshape(len(D), D.shape[1] * D.shape[2]).T @ h)


def upright(sums: Array, shape: tuple[int, ...]) -> Array:
    """Return the H'D of such sums, in its shape (L, P, m)."""
    return np.ascontiguousarray(sums.T).reshape(shape)


def total(parts: Iterable[Sequence[Array]]) -> list[Array]:
    """Add up what the blocks give, in their order and in float64."""
    sums: list[Array] = []
    for part in parts:
        if sums:
            for add_to, value in zip(sums, part, strict=True):
                add_to += value
        else:
            sums = [np.array(value, dtype=float) for value in part]
    return sums
