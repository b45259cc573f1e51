"""Planting outliers in targets, so that robustness can be measured against a known answer."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_random_state

Matrix = NDArray[np.float64]
Rows = NDArray[np.intp]


def contaminate(
    T: ArrayLike,
    ratio: float = 0.2,
    *,
    kind: str = "rows",
    random_state: int | np.random.RandomState | None = None,
) -> tuple[Matrix, NDArray[np.bool_]]:
    r"""Replace the targets of some rows by outliers.

    ``round(ratio * n_samples)`` rows are drawn without replacement. With the quartiles
    :math:`Q_1, Q_3` of a target and :math:`\mathrm{IQR} = Q_3 - Q_1`, the outliers of the boxplot
    kinds come from one of two intervals beyond the whiskers of Tukey's boxplot,

    .. math::

        \mathcal{U}(Q_1 - 3\,\mathrm{IQR},\; Q_1 - 1.5\,\mathrm{IQR})
        \quad\text{or}\quad
        \mathcal{U}(Q_3 + 1.5\,\mathrm{IQR},\; Q_3 + 3\,\mathrm{IQR}).

    Parameters
    ----------
    T : array-like of shape (n_samples,) or (n_samples, n_targets)
        Clean, finite targets. Never modified. The quartiles are taken over all of its rows.
    ratio : float, default=0.2
        Share of the rows to contaminate, in [0, 1).
    kind : {"rows", "cells", "one-sided", "heavy-tailed"}, default="rows"
        What happens to a drawn row:

        - ``"rows"``: every target is replaced, on a side chosen by a fair coin per cell;
        - ``"cells"``: one target, chosen uniformly, is replaced likewise, the others are kept;
        - ``"one-sided"``: every target is replaced, from the upper interval;
        - ``"heavy-tailed"``: every target has Student-t noise with 2 degrees of freedom added, in
          units of its IQR (of its standard deviation where the IQR is 0).
    random_state : int, RandomState instance or None, default=None
        Seed of the draws. The rows drawn for a seed are the same for every kind.

    Returns
    -------
    T_dirty : ndarray of the shape of T, float64
        The contaminated copy.
    planted : ndarray of shape (n_samples,), bool
        Whether the row was drawn, that is, has at least one replaced cell.

    Notes
    -----
    On a target with IQR 0 the intervals shrink to the point :math:`Q_1 = Q_3`: the boxplot kinds
    then move values onto the median, as the rule says, instead of away from it. A constant target
    is left as it is by every kind.

    Examples
    --------
    >>> import numpy as np
    >>> from gorelm.datasets import contaminate
    >>> T = np.linspace(0, 1, 11)
    >>> T_dirty, planted = contaminate(T, 0.2, random_state=0)
    >>> int(planted.sum())
    2
    >>> bool(np.all((T_dirty[planted] <= -0.5) | (T_dirty[planted] >= 1.5)))
    True
    >>> bool(np.all(T_dirty[~planted] == T[~planted]))
    True
    """
    if kind not in CONTAMINATIONS:
        raise ValueError(f"Unknown kind {kind!r}; known kinds: {', '.join(CONTAMINATIONS)}.")
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must be in [0, 1), got {ratio!r}.")
    T_dirty = check_array(T, ensure_2d=False, dtype=np.float64, copy=True, input_name="T")
    columns = T_dirty.reshape(len(T_dirty), -1)
    rng = check_random_state(random_state)

    n_samples = len(columns)
    rows = rng.choice(n_samples, size=round(ratio * n_samples), replace=False)
    columns[rows] = CONTAMINATIONS[kind](columns, rows, rng)

    planted = np.zeros(n_samples, dtype=np.bool_)
    planted[rows] = True
    return columns.reshape(T_dirty.shape), planted


def _replace_rows(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Every cell beyond a whisker, its side by a fair coin."""
    shape = (len(rows), T.shape[1])
    upper = rng.uniform(size=shape) < 0.5
    return _beyond_whiskers(T, upper, rng)


def _replace_one_cell(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """One cell of each row beyond a whisker, the others as they are."""
    chosen = np.arange(T.shape[1]) == rng.randint(T.shape[1], size=(len(rows), 1))
    return np.where(chosen, _replace_rows(T, rows, rng), T[rows])


def _replace_upwards(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Every cell beyond the upper whisker."""
    return _beyond_whiskers(T, np.ones((len(rows), T.shape[1]), dtype=np.bool_), rng)


def _add_heavy_tails(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Every cell plus Student-t noise (2 degrees of freedom) in units of the target's scale."""
    q1, q3 = _quartiles(T)
    scale = np.where(q3 > q1, q3 - q1, np.std(T, axis=0))
    scale[np.ptp(T, axis=0) == 0] = 0.0  # the std of a constant may round to something tiny
    return T[rows] + scale * rng.standard_t(2, size=(len(rows), T.shape[1]))


# kind -> what to put in the drawn rows: (all targets, drawn rows, rng) -> their new values
CONTAMINATIONS: dict[str, Callable[[Matrix, Rows, np.random.RandomState], Matrix]] = {
    "rows": _replace_rows,
    "cells": _replace_one_cell,
    "one-sided": _replace_upwards,
    "heavy-tailed": _add_heavy_tails,
}


def _beyond_whiskers(T: Matrix, upper: NDArray[np.bool_], rng: np.random.RandomState) -> Matrix:
    """Draw 1.5 to 3 IQR beyond the quartiles of each target, above or below as `upper` says."""
    q1, q3 = _quartiles(T)
    distance = rng.uniform(1.5, 3.0, size=upper.shape) * (q3 - q1)
    return np.where(upper, q3 + distance, q1 - distance)


def _quartiles(T: Matrix) -> tuple[Matrix, Matrix]:
    q1, q3 = np.quantile(T, [0.25, 0.75], axis=0)
    return q1, q3
