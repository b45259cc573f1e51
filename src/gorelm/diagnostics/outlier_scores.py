"""Thresholds of outlier scores: Tukey's fence, and a split into two groups."""

from __future__ import annotations

import numpy as np

from gorelm._features.scaling import weighted_quantiles
from gorelm._typing import Array


def outlier_threshold(
    scores: Array, weights: Array | None = None, *, whisker: float = 1.5
) -> float:
    r"""Tukey's upper fence for outlier scores, made to survive many outliers.

    .. math:: Q_3^* + k\,(Q_3^* - Q_1), \qquad Q_3^* = \min(Q_3,\; Q_2 + 2\,(Q_2 - Q_1))

    Tukey's rule takes :math:`Q_3^* = Q_3`, and fails once a quarter of the rows are outliers:
    :math:`Q_3` then is an outlier's score. The cap, which clean scores do not reach (norms of
    normal residuals have :math:`Q_3 - Q_2 < 1.4\,(Q_2 - Q_1)`), holds the fence down as long as
    the lower half of the scores is clean.

    Parameters
    ----------
    scores : array (N,)
        Residual norm of every row.
    weights : array (N,), optional
        Sample weights.
    whisker : float, default=1.5
        :math:`k`; 3 gives Tukey's outer fence.

    Returns
    -------
    float
        Rows with a larger score are outliers.

    Examples
    --------
    >>> import numpy as np
    >>> from gorelm.diagnostics import outlier_threshold
    >>> scores = np.r_[np.linspace(0, 1, 60), np.full(40, 9.0)]
    >>> bool(outlier_threshold(scores) < 9)
    True
    """
    w = np.ones(len(scores)) if weights is None else weights
    q1, q2, q3 = weighted_quantiles(scores, [0.25, 0.5, 0.75], w)
    q3 = min(q3, q2 + 2.0 * (q2 - q1))
    return float(q3 + whisker * (q3 - q1))


def split_in_two(scores: Array, weights: Array | None = None) -> tuple[float, float]:
    r"""Split outlier scores into a lower and an upper group, and say how clear the split is.

    The threshold maximises the variance between the groups (Otsu's rule, two means in one
    dimension) among those that leave at least half of the rows below,

    .. math:: \eta = \frac{p (1 - p) (\mu_1 - \mu_0)^2}{\sigma^2},

    the share :math:`p` of rows above and the means of both groups over the variance of all. A
    single bell has :math:`\eta \approx 0.64`; two groups come near 1.

    Parameters
    ----------
    scores : array (N,)
        Residual norm of every row.
    weights : array (N,), optional
        Sample weights.

    Returns
    -------
    threshold, explained : float
        Scores above the threshold are the upper group (infinite if there is nothing to split), and
        :math:`\eta`.

    Examples
    --------
    >>> import numpy as np
    >>> from gorelm.diagnostics import split_in_two
    >>> threshold, explained = split_in_two(np.r_[np.linspace(0, 1, 60), np.linspace(5, 6, 40)])
    >>> 1 < threshold < 5, explained > 0.9
    (True, True)
    """
    order = np.argsort(scores, kind="stable")
    x = np.asarray(scores, dtype=float)[order]
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=float)[order]
    total = w.sum()
    mean = w @ x / total
    variance = w @ (x - mean) ** 2 / total
    below, moment = np.cumsum(w)[:-1], np.cumsum(w * (x - mean))[:-1]
    allowed = (below >= total / 2) & (x[1:] > x[:-1])
    if not allowed.any() or not variance > 0:
        return np.inf, 0.0
    # With the mean at 0, mu_0 = moment / below and mu_1 = -moment / above.
    between = np.where(allowed, moment**2 / (below * np.maximum(total - below, 1e-300)), -1.0)
    k = int(np.argmax(between))
    return float((x[k] + x[k + 1]) / 2), float(between[k] / variance)
