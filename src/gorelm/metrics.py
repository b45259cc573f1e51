"""Error measures of multi-target regression.

:func:`rrmse` and :func:`arrmse` are relative to predicting each target's mean, and for clean test
rows. :func:`mean_norm` and :func:`trimmed_norm` are for test rows among which some are wrong.
"""

from collections.abc import Callable
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import make_scorer
from sklearn.utils import check_array, check_consistent_length

from gorelm._compat import check_sample_weight
from gorelm._features.scaling import Scaling, weighted_quantiles
from gorelm._typing import Array

__all__ = [
    "arrmse",
    "arrmse_scorer",
    "mean_norm",
    "mean_norm_scorer",
    "rrmse",
    "trimmed_norm",
    "trimmed_norm_scorer",
]

TRIM = 0.25


@overload
def rrmse(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: Literal["raw_values"] = "raw_values",
) -> NDArray[np.float64]: ...
@overload
def rrmse(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: Literal["uniform_average"],
) -> float: ...
@overload
def rrmse(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: ArrayLike,
) -> NDArray[np.float64] | float: ...
def rrmse(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
    multioutput: ArrayLike = "raw_values",
) -> NDArray[np.float64] | float:
    r"""Relative root mean squared error of each target.

    For target :math:`l` with true values :math:`t_{il}`, predictions :math:`\hat t_{il}`, row
    weights :math:`w_i` (all 1 by default) and weighted mean :math:`\bar t_l`,

    .. math::

        \mathrm{RRMSE}_l = \sqrt{\frac{\sum_i w_i (\hat t_{il} - t_{il})^2}
                                      {\sum_i w_i (\bar t_l - t_{il})^2}}

    0 is a perfect prediction; 1 is what predicting the mean of ``y_true`` scores.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_targets)
        The true targets. Must be finite.
    y_pred : array-like of the same shape
        The predicted targets. Must be finite.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative row weights, not all zero. A weight of 2 counts the row twice, also in the
        mean; a weight of 0 leaves the row out.
    multioutput : {"raw_values", "uniform_average"} or array-like of shape (n_targets,)
        How to combine the targets: not at all, by their mean, or by a mean with these weights.

    Returns
    -------
    ndarray of shape (n_targets,) or float
        One value per target for ``"raw_values"``, otherwise their average.

    Notes
    -----
    The square is tied to the coefficient of determination, :math:`\mathrm{RRMSE}_l^2 = 1 - R_l^2`.
    A target that is constant over the rows that count has a zero denominator; it follows
    :func:`sklearn.metrics.r2_score` with ``force_finite=True``: 0.0 if every prediction is exact,
    and 1.0 otherwise. Both are finite, so that an average over targets keeps its meaning.

    Examples
    --------
    >>> from gorelm.metrics import rrmse
    >>> rrmse([[0, 1], [2, 5], [4, 9]], [[0, 5], [2, 5], [4, 5]])
    array([0., 1.])
    """
    true, pred, weight = _checked(y_true, y_pred, sample_weight)
    values = _rrmse_columns(true, pred, weight)

    if isinstance(multioutput, str):
        if multioutput == "raw_values":
            return values
        if multioutput == "uniform_average":
            return float(np.mean(values))
        raise ValueError(
            "multioutput must be 'raw_values', 'uniform_average' or one weight per target; "
            f"got {multioutput!r}."
        )
    target_weight = check_array(
        multioutput, ensure_2d=False, dtype=np.float64, input_name="multioutput"
    )
    if target_weight.shape != values.shape:
        raise ValueError(
            f"multioutput has shape {target_weight.shape}, but there are {len(values)} targets."
        )
    if target_weight.min() < 0 or not target_weight.any():
        raise ValueError("multioutput weights must be non-negative and not all zero.")
    return float(np.average(values, weights=target_weight))


def arrmse(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    r"""Average relative root mean squared error, the mean of :func:`rrmse` over the targets.

    .. math::

        \mathrm{aRRMSE} = \frac{1}{m} \sum_{l=1}^{m} \sqrt{
            \frac{\sum_i w_i (\hat t_{il} - t_{il})^2}{\sum_i w_i (\bar t_l - t_{il})^2}}

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_targets)
        The true targets. Must be finite.
    y_pred : array-like of the same shape
        The predicted targets. Must be finite.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative row weights, not all zero.

    Returns
    -------
    float
        0 for a perfect prediction, 1 for the mean of every target. Constant targets count as in
        :func:`rrmse`.

    See Also
    --------
    arrmse_scorer : The same as a scikit-learn scorer (negated, so that greater is better).

    Examples
    --------
    >>> from gorelm.metrics import arrmse
    >>> arrmse([[0, 1], [2, 5], [4, 9]], [[0, 5], [2, 5], [4, 5]])
    0.5
    """
    return rrmse(y_true, y_pred, sample_weight=sample_weight, multioutput="uniform_average")


arrmse_scorer: Callable[..., float] = make_scorer(arrmse, greater_is_better=False)
"""Negated :func:`arrmse`, for the ``scoring`` of scikit-learn's model selection."""


def mean_norm(
    y_true: ArrayLike, y_pred: ArrayLike, *, sample_weight: ArrayLike | None = None
) -> float:
    r"""Mean over the rows of the norm of their error.

    .. math:: \frac{\sum_i w_i r_i}{\sum_i w_i}, \qquad
              r_i^2 = \sum_l \left(\frac{\hat t_{il} - t_{il}}{d_l}\right)^2,

    :math:`d_l` being the robust spread of target l in ``y_true``: its interquartile range over
    1.349. A wrong row counts with the size of its error, not with its square.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_targets)
        The given targets, some of which may be wrong. Must be finite.
    y_pred : array-like of the same shape
        The predicted targets. Must be finite.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative row weights, not all zero.

    Returns
    -------
    float
        0 for a perfect prediction.

    See Also
    --------
    mean_norm_scorer : The same as a scikit-learn scorer (negated, so that greater is better).
    trimmed_norm : The same without the worst quarter of the rows.

    Examples
    --------
    >>> from gorelm.metrics import mean_norm
    >>> y = [0.0, 1.0, 2.0, 3.0, 4.0]
    >>> round(mean_norm(y, [0.0, 1.0, 2.0, 3.0, 5.0]), 3)
    0.135
    """
    norms, weights = _error_norms(y_true, y_pred, sample_weight)
    return float(weights @ norms / weights.sum())


def trimmed_norm(
    y_true: ArrayLike, y_pred: ArrayLike, *, sample_weight: ArrayLike | None = None
) -> float:
    """Mean of the norms of errors as :func:`mean_norm`, over the rows but the worst quarter.

    As long as fewer than a quarter of the rows are wrong, and worse predicted than the others,
    the sizes of their errors do not matter.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,) or (n_samples, n_targets)
        The given targets, some of which may be wrong. Must be finite.
    y_pred : array-like of the same shape
        The predicted targets. Must be finite.
    sample_weight : array-like of shape (n_samples,), optional
        Non-negative row weights, not all zero.

    Returns
    -------
    float
        0 if at least three quarters of the predictions are perfect.

    See Also
    --------
    trimmed_norm_scorer : The same as a scikit-learn scorer (negated, so that greater is better).

    Examples
    --------
    >>> from gorelm.metrics import trimmed_norm
    >>> y = [0.0, 1.0, 2.0, 3.0, 4.0]
    >>> trimmed_norm(y, [0.0, 1.0, 2.0, 3.0, 500.0])
    0.0
    """
    return trimmed_mean(*_error_norms(y_true, y_pred, sample_weight))


mean_norm_scorer: Callable[..., float] = make_scorer(mean_norm, greater_is_better=False)
"""Negated :func:`mean_norm`, for the ``scoring`` of scikit-learn's model selection."""

trimmed_norm_scorer: Callable[..., float] = make_scorer(trimmed_norm, greater_is_better=False)
"""Negated :func:`trimmed_norm`, for the ``scoring`` of scikit-learn's model selection."""


def trimmed_mean(values: Array, weights: Array) -> float:
    """Average without the largest quarter of the values."""
    kept = weights * (values <= float(weighted_quantiles(values, 1 - TRIM, weights)))
    return float(kept @ values / kept.sum())


def _error_norms(
    y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the norm of every row's error, in spreads of the targets, and the rows' weights."""
    true, pred, weights = _checked(y_true, y_pred, sample_weight)
    spread = Scaling.fit("robust", true, weights).scale
    with np.errstate(over="ignore"):
        return np.linalg.norm((pred - true) / spread, axis=1), weights


def _checked(
    y_true: ArrayLike, y_pred: ArrayLike, sample_weight: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return targets, predictions and weights of the rows that count."""
    true = _as_columns(y_true, "y_true")
    pred = _as_columns(y_pred, "y_pred")
    check_consistent_length(true, pred, sample_weight)
    if true.shape[1] != pred.shape[1]:
        raise ValueError(
            f"y_true has {true.shape[1]} targets, but y_pred has {pred.shape[1]} targets."
        )
    if sample_weight is None:
        weight = np.ones(len(true))
    else:
        weight = check_sample_weight(
            sample_weight, true, dtype=np.float64, ensure_non_negative=True
        )
        counts = weight > 0
        if not counts.any():
            raise ValueError("sample_weight must not be zero everywhere.")
        true, pred, weight = true[counts], pred[counts], weight[counts]
    return true, pred, weight


def _as_columns(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return finite float64 values of shape (n_samples, n_targets); one target may come flat."""
    array = check_array(values, ensure_2d=False, dtype=np.float64, input_name=name)
    return np.asarray(array.reshape(-1, 1) if array.ndim == 1 else array)


def _rrmse_columns(
    true: NDArray[np.float64], pred: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return one RRMSE per column.

    Both sums are taken in units of the column's range, measured from its smallest value: an
    offset or a unit then costs no digits, and "constant" means range 0, not a rounded sum of
    squares that happens to vanish.
    """
    lowest = true.min(axis=0)
    span = true.max(axis=0) - lowest
    constant = span == 0
    unit = np.where(constant, 1.0, span)

    weight = weight / weight.max()
    position = (true - lowest) / unit
    spread = weight @ (position - np.average(position, axis=0, weights=weight)) ** 2
    with np.errstate(over="ignore"):  # an error beyond the largest float is infinite, and says so
        error = weight @ ((pred - true) / unit) ** 2
        ratio = np.sqrt(error / np.where(constant, 1.0, spread))
    wrong = np.any(pred != true, axis=0)
    return np.where(constant, wrong.astype(np.float64), ratio)
