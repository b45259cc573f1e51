"""The contract of fits by sums: scaled inputs in memory, in blocks, on workers or on a device.

A robust fit (`gorelm.estimators._robust`) uses all rows only through `ScaledRows`: it takes some
rows, and asks for sums or outputs of a hidden layer over groups of rows. Targets and weights are
arrays in memory; the inputs and the hidden outputs need not be.

The rows of a group are processed in blocks of BLOCK_ROWS rows, in their order, so that sums do not
depend on how the rows are stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gorelm._features.joint import HiddenOutputs
from gorelm._features.scaling import Scaling
from gorelm._solver.ridge import RidgeSums
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array, Indices

BLOCK_ROWS = 2048  # of hidden outputs at a time
REMEMBERED_ROWS = 20_000  # at most, of a sample that is asked for again
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

    def sample(self, rows: Indices) -> ScaledRows:
        """Return some rows by themselves, where sums of them are made fast."""
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

    Without this column, leave-one-out predictions would be wrong for centred rows that are fewer
    than their inputs: each such row is minus the sum of the others, and so reveals its target.
    """
    H = np.empty((len(X), hidden.n_outputs + 1))
    hidden.transform(X, out=H[:, :-1])
    H[:, -1] = 1.0
    return H


def blocks(n_rows: int) -> list[slice]:
    """Return the places of so many rows, a block at a time."""
    return [slice(start, start + BLOCK_ROWS) for start in range(0, n_rows, BLOCK_ROWS)]


def empty_outputs(groups: Sequence[Indices], coefs: Sequence[Array]) -> list[Array]:
    """Return room for the outputs (n, m) of every group of rows."""
    return [np.empty((len(g), B.shape[1])) for g, B in zip(groups, coefs, strict=True)]


class LastTaken:
    """The rows that were taken last: steps of a fit often ask for the same sample again."""

    def __init__(self) -> None:
        self._last: tuple[Indices, Array] | None = None

    def of(self, rows: Indices | slice, take: Callable[[Indices | slice], Array]) -> Array:
        """Return the inputs of some rows, taken only if they are not the last ones.

        `take` is not kept: an owner that holds a method of its own is freed late, and with it the
        rows on the workers of a cluster.
        """
        if isinstance(rows, slice) or len(rows) > REMEMBERED_ROWS:
            return take(rows)
        if self._last is None or not np.array_equal(rows, self._last[0]):
            self._last = rows.copy(), take(rows)
        return self._last[1].copy()


# Of a group's number, places in the group, and the scaled inputs there.
Work = Callable[[int, Indices | slice, Array], None]


class ByBlocks(ABC):
    """Sums and outputs of rows that are scaled a block at a time; see `ScaledRows`."""

    @abstractmethod
    def each_block(
        self, groups: Sequence[Indices], work: Work, n_threads: int, *, in_order: bool
    ) -> None:
        """Do the work on every block of the rows of every group.

        Parameters
        ----------
        groups : sequence of array of int
            Rows to go through.
        work : callable
            Of a group's number, places in the group, and the scaled inputs there.
        n_threads : int
            To share the blocks among.
        in_order : bool
            The blocks of one group are the work of one thread, in their order: so no digit of a
            sum depends on the number of threads.
        """

    @abstractmethod
    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""

    def sample(self, rows: Indices) -> ScaledRows:
        """Return some rows by themselves, in memory."""
        return InMemory(self.take(rows))

    def sums(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        omega: Array,
        T: Array,
        n_threads: int = 1,
    ) -> list[RidgeSums]:
        """Return the sums of every group of rows; see `ScaledRows.sums`."""
        totals = [RidgeSums.zero(hidden.n_outputs + 1, T.shape[1]) for _ in groups]

        def add(k: int, places: Indices | slice, x: Array) -> None:
            rows = groups[k][places]
            H, weights = with_constant(hidden, x), omega[rows][:, None]
            H *= weights
            totals[k].add(H, weights * T[rows])

        self.each_block(groups, add, n_threads, in_order=True)
        return totals

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B of every group of rows; see `ScaledRows.outputs`."""
        results = empty_outputs(groups, coefs)

        def put(k: int, places: Indices | slice, x: Array) -> None:
            results[k][places] = with_constant(hidden, x) @ coefs[k]

        self.each_block(groups, put, n_threads, in_order=False)
        return results


class InMemory(ByBlocks):
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

    def each_block(
        self, groups: Sequence[Indices], work: Work, n_threads: int, *, in_order: bool
    ) -> None:
        """Do the work on every block; see `ByBlocks.each_block`."""
        of_groups = [[(k, block) for block in blocks(len(g))] for k, g in enumerate(groups)]
        shares = of_groups if in_order else [[one] for of_group in of_groups for one in of_group]

        def do(share: list[tuple[int, slice]]) -> None:
            for k, block in share:
                work(k, block, self._X[groups[k][block]])

        list(ordered_map(do, shares, n_threads))


def scaled_rows(X: Array | ScaledRows) -> ScaledRows:
    """Return rows as they are, or an array as rows."""
    return InMemory(X) if isinstance(X, np.ndarray) else X


if TYPE_CHECKING:
    _implements: type[ScaledRows] = InMemory
