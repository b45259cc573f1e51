"""Rows whose steps have half the digits, and take half the time.

A step need not be exact: what it gets wrong, the next one mends. A proof must be. So steps read H
and T in float32, and E and U are as short; whatever bounds and objectives are made of when a run
ends is summed over the rows in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from gorelm._solver.problem import Array, LossName, Problem
from gorelm._solver.rows import Moves, Rows, total
from gorelm._solver.targets import farthest, typical_norm, within
from gorelm._solver.threads import own_threads, spread

__all__ = ["SMALLEST_GAP", "QuickRows", "reproducible", "short_enough"]

# Elements of H below which there is little to save.
WORTHWHILE = 1_000_000
# Gaps below which every digit is wanted.
SMALLEST_GAP = 1e-3
# Sizes whose squares are well within float32, and those of their reciprocals.
LARGEST = 1e10
# Rows of a block, which stays in cache between its two products, and blocks that a thread takes at
# a time.
BLOCK, SHARE = 512, 3


def short_enough(H: Array, T: Array, like: Problem, omega: Array | None) -> bool:
    """Whether steps in float32 pay and go where those in float64 go.

    A wide H has a null space that magnifies rounding, and targets far away leave no digits to the
    others.
    """
    if H.dtype != np.float64 or H.size < WORTHWHILE or H.shape[0] < H.shape[1]:
        return False
    typical = typical_norm(T, like, omega)
    sizes = typical, max(float(H.max()), -float(H.min())), *like.tau
    if not all(1 / LARGEST <= size <= LARGEST for size in sizes):
        return False
    return within(T, like, omega, farthest(np.float32) * typical) is T


def reproducible(
    loss: LossName, tol: float, shape: tuple[int, int], n_hidden: int
) -> AbstractContextManager[None]:
    """Use threads of our own where a path may take its steps in float32, for X of this `shape`.

    With another number of threads BLAS rounds otherwise, which would show in the results. H itself,
    too, is to be made within.
    """
    n_rows, n_features = shape
    large = n_rows * (n_hidden + n_features) >= WORTHWHILE and n_rows >= n_hidden
    may_hurry = large and loss != "squared" and tol >= SMALLEST_GAP
    return own_threads() if may_hurry else nullcontext()


class _SharedRows(Rows):
    """Rows in blocks for threads to share."""

    def _blocks(self, n_columns: int) -> Iterator[slice]:
        del n_columns
        n_rows = len(self.H)
        return (slice(start, min(start + BLOCK, n_rows)) for start in range(0, n_rows, BLOCK))

    def _totals(
        self,
        work: Callable[[slice, Array], tuple[Array, ...]],
        n_columns: int,
        H: Array | None = None,
    ) -> list[Array]:
        h, blocks = self.H if H is None else H, list(self._blocks(n_columns))

        def of_share(start: int) -> list[Array]:
            return total(work(rows, h[rows]) for rows in blocks[start : start + SHARE])

        return total(spread(of_share, range(0, len(blocks), SHARE)))


class QuickRows(_SharedRows):
    """H and T in float64, E and U in float32.

    Parameters
    ----------
    H, T, omega, HtT
        As for `Rows`.
    short : array (N, L)
        H in float32.
    """

    def __init__(
        self, H: Array, T: Array, omega: Array | None, HtT: Array | None, short: Array
    ) -> None:
        self._short: Rows | None = _SharedRows(short, T, omega, HtT=HtT)
        super().__init__(H, T, omega, HtT=HtT)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of E and U."""
        return self.H.dtype if self._short is None else self._short.dtype

    def refine(self) -> bool:
        """Go on with all digits; returns whether there were fewer before."""
        if self._short is None:
            return False
        self._short = None
        self.E, self.U = self.E.astype(self.dtype), self.U.astype(self.dtype)
        return True

    def step(
        self,
        B: Array,
        problem: Problem,
        rho: Array,
        relax: float,
        *,
        cap: Array,
        measure: bool = False,
    ) -> tuple[Array, Moves | None]:
        """Update E and U; see `Rows.step`."""
        if self._short is None:
            return super().step(B, problem, rho, relax, cap=cap, measure=measure)
        self._short.E, self._short.U = self.E, self.U  # which it writes to
        HtD, moves = self._short.step(B, problem, rho, relax, cap=cap, measure=measure)
        if moves is not None:
            moves.exact, (moves.UT, moves.UU) = False, self.inner()
        return HtD, moves

    def inner(self) -> tuple[Array, Array]:
        """Return <U, T> and <U, U> of every problem, with all digits."""
        UT = np.einsum("npm,nm->p", self.U, self.T, dtype=float)
        return UT, np.einsum("npm,npm->p", self.U, self.U, dtype=float)

    def _flat(self, B: Array) -> Array:
        return np.ascontiguousarray(B.reshape(len(B), -1), dtype=self.H.dtype)
