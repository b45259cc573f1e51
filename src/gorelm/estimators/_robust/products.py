"""Products HH' of rows, summed over some columns of H at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Self

import numpy as np

from gorelm._features.joint import JointLayer
from gorelm._features.layer import HiddenLayer
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array, Indices
from gorelm.backends.inputs import blocks

COLUMNS = 2048  # of H at a time
CENTRING_ROWS = 500  # whose mean is subtracted
TILE_ROWS = 512  # of HH', the work of one thread


@dataclass(frozen=True)
class RowProducts:
    """HH' of some rows, which are multiplied by the square roots of their weights.

    Constants are subtracted from the columns of H, near their means: those of outputs that vary
    little beside their mean would rule the norm of H, in whose units penalties are.
    """

    hidden: JointLayer
    centre: Array  # (n_outputs,): subtracted from the columns of H
    X: Array  # of all rows
    w: Array
    rows: Indices  # in the order of those of HH'
    K: Array  # the lower triangle
    n_threads: int

    @classmethod
    def of(cls, hidden: JointLayer, X: Array, w: Array, rows: Indices, n_threads: int) -> Self:
        """Return the products of some rows."""
        centre = hidden.transform(X[rows[:CENTRING_ROWS]]).mean(axis=0)
        nothing = np.empty(0, dtype=np.intp)
        return cls(hidden, centre, X, w, nothing, np.empty((0, 0)), n_threads).of_rows(rows)

    def of_rows(self, rows: Indices) -> Self:
        """Return the products of other rows; only those of new rows are computed."""
        stay = np.flatnonzero(np.isin(self.rows, rows))
        new = rows[~np.isin(rows, self.rows)]
        if not len(new) and len(stay) == len(self.rows):
            return self
        order = np.concatenate([self.rows[stay], new])
        K = np.zeros((len(order), len(order)))
        K[: len(stay), : len(stay)] = self.K[np.ix_(stay, stay)]
        found = replace(self, rows=order, K=K)
        if len(new):
            found._add_from(len(stay))
        return found

    @cached_property
    def omega(self) -> Array:
        """Square roots of the weights, (n, 1)."""
        return np.asarray(np.sqrt(self.w[self.rows])[:, None])

    def output_weights(self, dual: Array) -> Array:
        """Return H'a, the weights of all outputs and of the constant."""
        coef = np.concatenate([H.T @ dual for H in self._columns()])
        return np.vstack([coef, self.omega.T @ dual - self.centre @ coef])

    def _add_from(self, first: int) -> None:
        """Add the products of the rows from `first` on with those before them."""
        tiles = [slice(k, k + TILE_ROWS) for k in range(first, len(self.K), TILE_ROWS)]

        def add(H: Array, tile: slice) -> None:
            upto = slice(0, min(tile.stop, len(H)))
            self.K[tile, upto] += H[tile] @ H[upto].T

        for H in chain(self._columns(), [self.omega]):  # the last column of all is a constant
            list(ordered_map(partial(add, H), tiles, self.n_threads))

    def _columns(self) -> Iterator[Array]:
        """Yield the columns of H without the constant, some at a time."""
        X, each = self.X[self.rows], (self.hidden.parts, self.hidden.scales, self.hidden.columns)
        for hidden, scale, columns in zip(*each, strict=True):
            centre = self.centre[columns]
            for start in range(0, hidden.n_outputs, COLUMNS):
                some = hidden.keep(np.arange(start, min(start + COLUMNS, hidden.n_outputs)))
                outputs = partial(_outputs, some, X)
                H = np.concatenate(list(ordered_map(outputs, blocks(len(X)), self.n_threads)))
                H *= scale
                H -= centre[start : start + COLUMNS]
                H *= self.omega
                yield H


def _outputs(layer: HiddenLayer, X: Array, rows: slice) -> Array:
    return layer.transform(X[rows])
