"""Rows and cells judged from out-of-sample predictions alone, whatever model made them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_array, check_consistent_length

from gorelm._compat import check_sample_weight
from gorelm._typing import Array, Mask
from gorelm.estimators._robust.cells import has_few_values, has_spread
from gorelm.estimators._robust.judge import Judged, Screened, least_explained
from gorelm.estimators._robust.judge import judge as judge_errors
from gorelm.estimators._robust.task import EFFORTS, RobustTask


@dataclass(frozen=True)
class Judgement:
    """Rows and cells of a table of targets, scored and flagged by :func:`judge`.

    Attributes
    ----------
    contaminated : bool
        Whether the rows, or the cells of a target, form two clear groups by the size of their
        errors.
    outlier_scores : ndarray of shape (n_samples,)
        Typical size e of each row's errors, in units of the targets' robust spreads (interquartile
        range / 1.349): 1 + e is the geometric mean of 1 + abs(error) over the targets. NaN where
        nothing is known.
    outlier_threshold : float
        Rows with a larger score are flagged, unless few of their cells are wrong and the others are
        right.
    outlier_mask : ndarray of bool, shape (n_samples,)
        The flagged rows.
    cell_scores : ndarray of shape (n_samples, n_targets)
        Absolute error of each cell, in units of the error that is usual for its target at such a
        prediction (of normal errors, their standard deviation). NaN where unknown.
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

    Rows and cells are judged as :class:`gorelm.RobustELMRegressor` judges its own. The size of a
    row's errors :math:`e_{ij} = |\hat y_{ij} - y_{ij}|` is
    :math:`s_i = \frac1m \sum_j \log(1 + e_{ij} / \sigma_j)`, with
    :math:`\sigma_j = \mathrm{IQR}_j / 1.349`. If two groups explain at least
    0.75 (plus 2.4 over the number of rows) of the variance of these sizes
    (:func:`split_in_two`), the upper group is flagged; if not, the rows beyond Tukey's outer fence
    (:func:`outlier_threshold` with a whisker of 3). Cells are judged by their error in units of the
    one that is usual for their target at such a prediction, less what the other errors of the row
    explain. A row in which a minority of cells is wrong, and the others are right, is not flagged:
    its wrong cells are. In a target of few values, a rare value is no mistake.

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
    judged, contaminated = _judged(np.where(known, T, np.nan), np.where(known, P, 0.0), w, counts)
    return Judgement(
        contaminated=contaminated,
        outlier_scores=np.where(known.any(axis=1), judged.scores, np.nan),
        outlier_threshold=judged.threshold,
        outlier_mask=judged.flagged,
        cell_scores=judged.cells.scores,
        cell_thresholds=judged.cells.thresholds,
        cell_mask=judged.cells.mask,
    )


def _judged(T: Array, P: Array, w: Array, counts: Mask) -> tuple[Judged, bool]:
    """Judge predictions as those of a robust fit; return whether there are two groups, too."""
    # Predictions in place of the inputs: rows with equal inputs have equal predictions.
    task = RobustTask(P, T, w, counts, None, 0, EFFORTS["default"], None, 1, False)
    judging = np.array([has_spread(column) for column in T[counts].T])
    few = np.array([has_few_values(column, w) for column in T.T])
    none = np.zeros(T.shape, dtype=bool)
    screened = Screened(False, none[0], counts, none, none[0], T, judging, ~judging | few, P)
    judged = judge_errors(task, screened, P)
    if judging.any() and judged.two_groups:
        screened = replace(screened, contaminated=True)
        judged = judge_errors(task, screened, P)
    if T.shape[1] > 1:  # groups of cells in rows that are right
        groups = judged.cells.explained >= least_explained(task, int(judging.sum()))
        if groups.any():
            screened = replace(screened, groups=groups)
            judged = judge_errors(task, screened, P)
    return judged, screened.dirty
