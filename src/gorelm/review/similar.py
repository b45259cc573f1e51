"""Rows with similar inputs."""

from __future__ import annotations

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Indices
from gorelm.datasets.columns import columns_of

_FARTHEST = 10.0  # spreads of an input; beyond, one input alone would rule the distance


class Similar:
    r"""Finds the rows nearest to one in scaled inputs.

    The squared distance of two rows is

    .. math:: \sum_{j \in \text{numbers}} \frac{(x_j - x'_j)^2}{s_j^2}
              + \sum_{j \in \text{categories}} [x_j \ne x'_j]

    s being the robust spread of a column. A missing number counts as the median of its column, and
    as one that differs from every known number; dates have no part in it.

    Parameters
    ----------
    X : frame or array of shape (n_samples, n_features)
        Inputs, with categories and missing values.
    """

    def __init__(self, X: object) -> None:
        numbers, codes = [], []
        for column in columns_of(X):
            if column.kind == "number":
                values = column.numbers()[0]
                numbers.append(values)
                if np.isnan(values).any():
                    codes.append(np.isnan(values))
            elif column.kind == "words":
                words = column.words().astype(str)
                codes.append(np.unique(words, return_inverse=True)[1])
            n_rows = len(column.cells)
        self._codes = np.column_stack([np.empty((n_rows, 0), dtype=np.int32), *codes])
        self._scaled: Array = np.empty((n_rows, 0), dtype=np.float32)
        if numbers:
            table = np.column_stack(numbers)
            scaled = Scaling.fit("robust", table, np.ones(n_rows)).dense(table)
            scaled = np.nan_to_num(scaled.clip(-_FARTHEST, _FARTHEST))
            self._scaled = scaled.astype(np.float32)

    def nearest(self, row: int, count: int) -> tuple[Indices, Array]:
        """Return the `count` nearest other rows, nearest first, and their distances."""
        off = self._scaled - self._scaled[row]
        squares = np.einsum("nd,nd->n", off, off)
        squares += (self._codes != self._codes[row]).sum(axis=1)
        squares[row] = np.inf
        count = min(count, len(squares) - 1)
        some = np.argpartition(squares, count)[: count + 1] if count else np.array([], np.intp)
        some = some[some != row]
        order = some[np.lexsort([some, squares[some]])][:count]
        return order, np.sqrt(squares[order])
