"""Rows and cells judged from out-of-sample predictions alone, whatever model made them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array, check_consistent_length

from gorelm._compat import check_sample_weight
from gorelm._features.scaling import Scaling, weighted_quantiles
from gorelm._typing import Array, Mask
from gorelm.diagnostics.outlier_scores import outlier_threshold
from gorelm.estimators._robust.cells import OUTER_FENCE, TWO_GROUPS, split_sizes
from gorelm.estimators._robust.judge import BY_CHANCE, FARTHEST_TARGET, log_sizes

LEAST_ERROR = 1e-3  # robust spreads of the target: smaller errors count as usual


@dataclass(frozen=True)
class Judgement:
    """Rows and cells of a table of targets, scored and flagged by :func:`judge`.

    Attributes
    ----------
    contaminated : bool
        Whether the rows form two clear groups by the size of their errors.
    outlier_scores : ndarray of shape (n_samples,)
        Typical size e of each row's errors, in units of the targets' robust spreads (interquartile
        range / 1.349): 1 + e is the geometric mean of 1 + abs(error) over the targets. NaN where
        nothing is known.
    outlier_threshold : float
        Rows with a larger score are flagged.
    outlier_mask : ndarray of bool, shape (n_samples,)
        The flagged rows.
    cell_scores : ndarray of shape (n_samples, n_targets)
        Absolute error of each cell, in units of the target's median absolute error. NaN where
        unknown.
    cell_thresholds : ndarray of shape (n_targets,)
        Cells with a larger score are flagged.
    cell_mask : ndarray of bool, shape (n_samples, n_targets)
        The flagged cells; with one target these are the flagged rows.
    """

    contaminated: bool
    outlier_scores: Array
    outlier_threshold: float
    outlier_mask: Mask
    cell_scores: Array
    cell_thresholds: Array
    cell_mask: Mask


def judge(
    y: ArrayLike, y_out_of_fold: ArrayLike, sample_weight: ArrayLike | None = None
) -> Judgement:
    r"""Flag wrong rows and cells by predictions of models that were not fitted to them.

    The size of a row's errors :math:`e_{ij} = |\hat y_{ij} - y_{ij}|` is
    :math:`s_i = \frac1m \sum_j \log(1 + e_{ij} / \sigma_j)`, with
    :math:`\sigma_j = \mathrm{IQR}_j / 1.349`. If two groups explain at least
    0.75 (plus 2.4 over the number of rows) of the variance of these sizes
    (:func:`split_in_two`), the upper group is flagged; if not, the rows beyond Tukey's outer fence
    (:func:`outlier_threshold` with a whisker of 3). Cells are judged in the same way, each target
    by itself, by :math:`\log(1 + e_{ij} / \mathrm{median}_i\, e_{ij})`.

    Parameters
    ----------
    y : array of shape (n_samples,) or (n_samples, n_targets)
        Targets as given; NaN where unknown.
    y_out_of_fold : array of the same shape
        What models that were not fitted to a row predict for it, such as
        :func:`sklearn.model_selection.cross_val_predict` returns. The models should be robust:
        wrong rows bend others, and then neither their own errors stand out nor are other rows
        predicted well. NaN where there is no prediction.
    sample_weight : array of shape (n_samples,), optional
        Weight of every row in quantiles and groups.

    Returns
    -------
    judgement : Judgement
        Scores, thresholds and flags of rows and cells.

    Examples
    --------
    >>> import numpy as np
    >>> from gorelm.diagnostics import judge
    >>> from sklearn.linear_model import HuberRegressor
    >>> from sklearn.model_selection import cross_val_predict
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = X @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=200)
    >>> y[[3, 50]] += 10.0
    >>> judged = judge(y, cross_val_predict(HuberRegressor(), X, y))
    >>> np.flatnonzero(judged.outlier_mask).tolist()
    [3, 50]
    """
    T, P = (
        check_array(
            values,
            ensure_2d=False,
            ensure_all_finite="allow-nan",
            dtype=np.float64,
            input_name=name,
        )
        for values, name in ((y, "y"), (y_out_of_fold, "y_out_of_fold"))
    )
    if T.shape != P.shape:
        raise ValueError(f"y has shape {T.shape}, y_out_of_fold has shape {P.shape}")
    T, P = T.reshape(len(T), -1), P.reshape(len(P), -1)
    check_consistent_length(T, sample_weight)
    w = check_sample_weight(sample_weight, T, dtype=np.float64, ensure_non_negative=True)
    known = ~np.isnan(T) & ~np.isnan(P)
    counts = (w > 0) & known.any(axis=1)
    if not known[counts].any(axis=0).all():
        raise ValueError("a target has no row with a value, a prediction and a positive weight")
    spread = Scaling.fit("robust", np.where(known, T, np.nan)[counts], w[counts]).scale
    with np.errstate(over="ignore"):
        errors = np.clip((P - T) / spread, -FARTHEST_TARGET, FARTHEST_TARGET)
    sizes = np.where(known.any(axis=1), log_sizes(errors), np.nan)
    limit, contaminated = _limit(sizes[counts], w[counts])
    flagged = sizes > limit

    cells, thresholds = _judge_cells(np.abs(errors), np.where(counts, w, 0.0))
    wrong = flagged[:, None] if T.shape[1] == 1 else cells > thresholds
    return Judgement(
        contaminated=contaminated,
        outlier_scores=np.expm1(sizes),
        outlier_threshold=float(np.expm1(limit)),
        outlier_mask=flagged,
        cell_scores=cells,
        cell_thresholds=thresholds,
        cell_mask=wrong,
    )


def _limit(sizes: Array, w: Array) -> tuple[float, bool]:
    """Return the size above which a row or cell is flagged, and whether it parts two groups."""
    limit, explained = split_sizes(sizes, w)
    if explained >= TWO_GROUPS + BY_CHANCE / len(sizes):
        return limit, True
    return outlier_threshold(sizes, w, whisker=OUTER_FENCE), False


def _judge_cells(sizes: Array, w: Array) -> tuple[Array, Array]:
    """Return the scores of cells, in usual errors of their target, and each target's threshold."""
    scores, thresholds = sizes.copy(), np.empty(sizes.shape[1])
    for j, column in enumerate(sizes.T):
        by = (w > 0) & ~np.isnan(column)
        usual = float(weighted_quantiles(column[by], 0.5, w[by]))
        scores[:, j] = column / max(usual, LEAST_ERROR)
        thresholds[j] = np.expm1(_limit(np.log1p(scores[by, j]), w[by])[0])
    return scores, thresholds
