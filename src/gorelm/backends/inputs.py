"""Scaled inputs of all rows, wherever they are: what a fit by sums reads of them.

A robust fit (`gorelm.estimators._robust`) goes over all rows only by `ScaledRows`: it takes some of
them, and lets a drawn hidden layer be summed up or evaluated over groups of them. Targets and
weights are arrays in memory; neither the inputs nor the hidden outputs need to be.

The groups of one call are gone through in blocks of BLOCK_ROWS of their rows, in their order, so
that sums do not depend on how the rows are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gorelm._features.joint import HiddenOutputs
from gorelm._features.scaling import Scaling
from gorelm._solver.ridge import RidgeSums
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array, Indices

BLOCK_ROWS = 2048  # of hidden outputs at a time
FARTHEST_INPUT = 10.0  # standard deviations; beyond, hidden nodes would extrapolate


class ScaledRows(Protocol):
    """Scaled inputs of N rows."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        ...

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""
        ...

    def sums(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        omega: Array,
        T: Array,
        n_threads: int = 1,
    ) -> list[RidgeSums]:
        """Return H'H and H'T of every group of rows, rows of H (with a constant) and T times omega.

        Parameters
        ----------
        hidden : HiddenOutputs
            Makes H of the inputs.
        groups : sequence of array of int
            Rows to sum over.
        omega : array (N,)
            Square roots of the weights.
        T : array (N, m)
            Targets.
        n_threads : int
            To share the groups among.
        """
        ...

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B (n, m) of every group of rows, each with output weights B of its own."""
        ...


def within_reach(scaling: Scaling, X: Array) -> Array:
    """Return scaled inputs, none farther than FARTHEST_INPUT."""
    return np.asarray(np.clip(scaling.dense(X), -FARTHEST_INPUT, FARTHEST_INPUT))


def with_constant(hidden: HiddenOutputs, X: Array) -> Array:
    """Return the hidden outputs of scaled rows, and a last column of ones.

    Without it, rows centred at their mean that are fewer than their inputs would tell each other's
    targets: each is minus the sum of the others.
    """
    H = np.empty((len(X), hidden.n_outputs + 1))
    hidden.transform(X, out=H[:, :-1])
    H[:, -1] = 1.0
    return H


def blocks(rows: Indices) -> list[Indices]:
    """Return some rows in blocks."""
    return [rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS)]


def add_rows(total: RidgeSums, hidden: HiddenOutputs, x: Array, omega: Array, T: Array) -> None:
    """Add the share of a block of scaled rows to sums."""
    H = with_constant(hidden, x)
    H *= omega[:, None]
    total.add(H, omega[:, None] * T)


class InMemory:
    """Scaled inputs as an array (N, d)."""

    def __init__(self, X: Array) -> None:
        self._X = X

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return len(self._X), self._X.shape[1]

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""
        return self._X[rows]

    def sums(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        omega: Array,
        T: Array,
        n_threads: int = 1,
    ) -> list[RidgeSums]:
        """Return the sums of every group of rows; see `ScaledRows.sums`."""

        def of_group(rows: Indices) -> RidgeSums:
            total = RidgeSums.zero(hidden.n_outputs + 1, T.shape[1])
            for block in blocks(rows):
                add_rows(total, hidden, self._X[block], omega[block], T[block])
            return total

        return list(ordered_map(of_group, groups, n_threads))

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B of every group of rows; see `ScaledRows.outputs`."""
        results: list[Array] = [
            np.empty((len(g), B.shape[1])) for g, B in zip(groups, coefs, strict=True)
        ]
        starts = [
            (k, start) for k, g in enumerate(groups) for start in range(0, len(g), BLOCK_ROWS)
        ]

        def of_block(where: tuple[int, int]) -> None:
            k, start = where
            block = slice(start, start + BLOCK_ROWS)
            results[k][block] = with_constant(hidden, self._X[groups[k][block]]) @ coefs[k]

        list(ordered_map(of_block, starts, n_threads))
        return results


def scaled_rows(X: Array | ScaledRows) -> ScaledRows:
    """Return rows as they are, or an array as rows."""
    return InMemory(X) if isinstance(X, np.ndarray) else X


if TYPE_CHECKING:
    _implements: type[ScaledRows] = InMemory
