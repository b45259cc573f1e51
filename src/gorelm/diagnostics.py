"""Which rows to distrust."""

from __future__ import annotations

import numpy as np

from gorelm.prox import Array
from gorelm.quantiles import weighted_quantiles

__all__ = ["outlier_threshold"]


def outlier_threshold(scores: Array, weights: Array | None = None) -> float:
    r"""Tukey's upper fence for outlier scores, made to survive many outliers.

    .. math:: Q_3^* + 1.5\,(Q_3^* - Q_1), \qquad Q_3^* = \min(Q_3,\; Q_2 + 2\,(Q_2 - Q_1))

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
    return float(q3 + 1.5 * (q3 - q1))
