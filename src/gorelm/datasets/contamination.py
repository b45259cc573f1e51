"""Planting outliers in targets, so that robustness can be measured against a known answer."""

import warnings
from collections.abc import Callable, Sequence
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_random_state

Matrix = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]

UNIT_FACTORS = (10.0, 100.0, 1000.0, 2.54)
CELLS_BESIDE_ROWS = 0.3  # cells of each target that are wrong, beside as many rows
FARTHEST_DRIFT = 3.0  # in IQRs, as far as the boxplot kinds go beyond the quartiles


@overload
def contaminate(
    T: ArrayLike,
    ratio: float = ...,
    *,
    kind: str = ...,
    random_state: int | np.random.RandomState | None = ...,
    return_cells: Literal[False] = ...,
) -> tuple[Matrix, Mask]: ...
@overload
def contaminate(
    T: ArrayLike,
    ratio: float = ...,
    *,
    kind: str = ...,
    random_state: int | np.random.RandomState | None = ...,
    return_cells: Literal[True],
) -> tuple[Matrix, Mask, Mask]: ...
def contaminate(
    T: ArrayLike,
    ratio: float = 0.2,
    *,
    kind: str = "rows",
    random_state: int | np.random.RandomState | None = None,
    return_cells: bool = False,
) -> tuple[Matrix, Mask] | tuple[Matrix, Mask, Mask]:
    r"""Replace the targets of some rows, or some cells of them, by wrong values.

    ``round(ratio * n_samples)`` rows (or cells of each target) are drawn without replacement. With
    the quartiles :math:`Q_1, Q_3` of a target and :math:`\mathrm{IQR} = Q_3 - Q_1`, the outliers of
    the boxplot kinds come from one of two intervals beyond the whiskers of Tukey's boxplot,

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
    kind : str, default="rows"
        What happens to a drawn row. The boxplot kinds:

        - ``"rows"``: every target is replaced, on a side chosen by a fair coin per cell;
        - ``"cells"``: one target, chosen uniformly, is replaced likewise, the others are kept;
        - ``"one-sided"``: every target is replaced, from the upper interval;
        - ``"independent-cells"``: rows are drawn for each target anew, and only its cells are
          replaced, on a side chosen by a fair coin;
        - ``"rows-and-cells"``: as ``"rows"``; beside them, in the rows that were not drawn, three
          tenths as many cells of each target are replaced, drawn for each target anew.

        Noise:

        - ``"heavy-tailed"``: every target has Student-t noise with 2 degrees of freedom added, in
          units of its IQR (of its standard deviation where the IQR is 0).

        Errors that people and sensors make:

        - ``"units"``: every target is multiplied by the same factor, one of 10, 100, 1000 and 2.54
          for each row;
        - ``"unit-cells"``: rows are drawn for each target anew, and its cell is multiplied by such
          a factor;
        - ``"swapped-targets"``: two targets of the row, chosen uniformly, exchange their values;
        - ``"swapped-rows"``: the rows exchange their targets in pairs (three in turn, if their
          number is odd);
        - ``"stuck"``: the rows are a run of neighbours, in which one target, chosen uniformly,
          repeats the value that it has before;
        - ``"drift"``: the rows are a run of neighbours, in which one target, chosen uniformly, has
          an offset that grows linearly up to 3 IQR (standard deviations where the IQR is 0), up
          or down.
    random_state : int, RandomState instance or None, default=None
        Seed of the draws. For a seed, all kinds that draw whole rows draw the same ones.
    return_cells : bool, default=False
        Whether to return which cells are wrong as well.

    Returns
    -------
    T_dirty : ndarray of the shape of T, float64
        The contaminated copy.
    planted : ndarray of shape (n_samples,), bool
        Whether the row, or a cell of it, was drawn.
    cells : ndarray of the shape of T, bool
        Whether the value differs from the clean one. Only if `return_cells` is true.

    Warns
    -----
    UserWarning
        If a boxplot kind meets a target whose quartiles are equal, or if no value was changed.

    Notes
    -----
    On a target with IQR 0 the intervals shrink to the point :math:`Q_1 = Q_3`: the boxplot kinds
    then move values onto the median, as the rule says, instead of away from it. A constant target
    is left as it is by every kind but those that multiply.

    Wrong inputs are planted by the same function: ``contaminate(X, 0.1, kind="independent-cells",
    return_cells=True)``.

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
    names = list(getattr(T, "columns", ()))
    clean = check_array(T, ensure_2d=False, dtype=np.float64, input_name="T")
    columns = clean.reshape(len(clean), -1)
    if kind == "swapped-targets" and columns.shape[1] < 2:
        raise ValueError("kind 'swapped-targets' needs at least two targets.")
    rng = check_random_state(random_state)

    count = round(ratio * len(columns))
    rows, drawn = _DRAWS.get(kind, _whole_rows)(columns.shape, count, rng)
    dirty = columns.copy()
    dirty[rows] = np.where(drawn, CONTAMINATIONS[kind](columns, rows, rng), columns[rows])

    planted = np.zeros(len(columns), dtype=np.bool_)
    planted[rows] = True
    cells = dirty != columns
    if count:
        _say_what_is_not_planted(kind, columns, cells, names or range(columns.shape[1]))
    dirty, cells = dirty.reshape(clean.shape), cells.reshape(clean.shape)
    return (dirty, planted, cells) if return_cells else (dirty, planted)


def _say_what_is_not_planted(kind: str, T: Matrix, cells: Mask, names: Sequence[object]) -> None:
    if kind in _BOXPLOT_KINDS:
        q1, q3 = _quartiles(T)
        if len(flat := np.flatnonzero(q1 == q3)):
            which = ", ".join(str(names[j]) for j in flat[:_MOST_NAMED])
            which += f" and {len(flat) - _MOST_NAMED} more" * (len(flat) > _MOST_NAMED)
            warnings.warn(
                f"kind {kind!r} plants no outlier in targets whose quartiles are equal, it moves "
                f"values onto the median: {which}",
                stacklevel=3,
            )
            return
    if not cells.any():
        warnings.warn(f"kind {kind!r} changed no value of these targets", stacklevel=3)


# Which rows are drawn, and which of their cells: (shape, how many, rng) -> rows, their cells


def _whole_rows(
    shape: tuple[int, int], count: int, rng: np.random.RandomState
) -> tuple[Rows, Mask]:
    rows = rng.choice(shape[0], size=count, replace=False)
    return rows, np.ones((count, shape[1]), dtype=np.bool_)


def _cells_of_each_target(
    shape: tuple[int, int], count: int, rng: np.random.RandomState
) -> tuple[Rows, Mask]:
    drawn = np.zeros(shape, dtype=np.bool_)
    for column in drawn.T:
        column[rng.choice(shape[0], size=count, replace=False)] = True
    rows = np.flatnonzero(drawn.any(axis=1))
    return rows, drawn[rows]


def _rows_and_cells(
    shape: tuple[int, int], count: int, rng: np.random.RandomState
) -> tuple[Rows, Mask]:
    drawn = np.zeros(shape, dtype=np.bool_)
    drawn[rng.choice(shape[0], size=count, replace=False)] = True
    others = np.flatnonzero(~drawn.any(axis=1))
    n_cells = min(round(CELLS_BESIDE_ROWS * count), len(others))
    for column in drawn.T:
        column[rng.choice(others, size=n_cells, replace=False)] = True
    rows = np.flatnonzero(drawn.any(axis=1))
    return rows, drawn[rows]


def _run_in_one_target(
    shape: tuple[int, int], count: int, rng: np.random.RandomState
) -> tuple[Rows, Mask]:
    rows = rng.randint(shape[0] - count + 1) + np.arange(count)
    chosen = np.arange(shape[1]) == rng.randint(shape[1])
    return rows, np.tile(chosen, (count, 1))


_DRAWS: dict[str, Callable[[tuple[int, int], int, np.random.RandomState], tuple[Rows, Mask]]] = {
    "independent-cells": _cells_of_each_target,
    "unit-cells": _cells_of_each_target,
    "rows-and-cells": _rows_and_cells,
    "stuck": _run_in_one_target,
    "drift": _run_in_one_target,
}


# What a drawn row becomes: (all targets, drawn rows, rng) -> new values of these rows


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
    return T[rows] + _scale(T) * rng.standard_t(2, size=(len(rows), T.shape[1]))


def _mistake_the_unit(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Every cell times one of the factors, the same for all of a row."""
    factors: Matrix = rng.choice(UNIT_FACTORS, size=(len(rows), 1))
    return T[rows] * factors


def _mistake_the_units(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Every cell times one of the factors, drawn for each cell."""
    factors: Matrix = rng.choice(UNIT_FACTORS, size=(len(rows), T.shape[1]))
    return T[rows] * factors


def _swap_two_targets(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Two cells of each row exchanged."""
    values = T[rows]
    pair = rng.uniform(size=values.shape).argpartition(1, axis=1)[:, :2]
    np.put_along_axis(values, pair, np.take_along_axis(values, pair[:, ::-1], axis=1), axis=1)
    return values


def _swap_rows(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Rows exchanged in pairs; of an odd number, the last three in turn."""
    order = np.arange(len(rows))
    paired = len(rows) // 2 * 2
    order[:paired] ^= 1
    if paired > 0 and len(rows) > paired:
        order[-3:] = order[-3:][[2, 1, 0]]
    return T[rows[order]]


def _repeat(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Every cell as in the row before the run (as in the first row, where none is before)."""
    return np.tile(T[max(rows[0] - 1, 0)] if len(rows) else T[:1], (len(rows), 1))


def _drift(T: Matrix, rows: Rows, rng: np.random.RandomState) -> Matrix:
    """Every cell plus an offset that grows along the run, up or down."""
    sides: Matrix = rng.choice([-1.0, 1.0], size=T.shape[1])
    grown = np.linspace(0.0, FARTHEST_DRIFT, len(rows) + 1)[1:]
    return T[rows] + grown[:, None] * (sides * _scale(T))


_BOXPLOT_KINDS = ("rows", "cells", "one-sided", "independent-cells", "rows-and-cells")
_MOST_NAMED = 10

# kind -> what to put in the drawn rows: (all targets, drawn rows, rng) -> their new values
CONTAMINATIONS: dict[str, Callable[[Matrix, Rows, np.random.RandomState], Matrix]] = {
    "rows": _replace_rows,
    "cells": _replace_one_cell,
    "one-sided": _replace_upwards,
    "heavy-tailed": _add_heavy_tails,
    "independent-cells": _replace_rows,
    "rows-and-cells": _replace_rows,
    "units": _mistake_the_unit,
    "unit-cells": _mistake_the_units,
    "swapped-targets": _swap_two_targets,
    "swapped-rows": _swap_rows,
    "stuck": _repeat,
    "drift": _drift,
}


def _beyond_whiskers(T: Matrix, upper: NDArray[np.bool_], rng: np.random.RandomState) -> Matrix:
    """Draw 1.5 to 3 IQR beyond the quartiles of each target, above or below as `upper` says."""
    q1, q3 = _quartiles(T)
    distance = rng.uniform(1.5, 3.0, size=upper.shape) * (q3 - q1)
    return np.where(upper, q3 + distance, q1 - distance)


def _scale(T: Matrix) -> Matrix:
    """Return the IQR of each target; where it is 0, the standard deviation."""
    q1, q3 = _quartiles(T)
    scale = np.where(q3 > q1, q3 - q1, np.std(T, axis=0))
    scale[np.ptp(T, axis=0) == 0] = 0.0  # the std of a constant may round to something tiny
    return scale


def _quartiles(T: Matrix) -> tuple[Matrix, Matrix]:
    q1, q3 = np.quantile(T, [0.25, 0.75], axis=0)
    return q1, q3
