"""How far flags depend on the seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state

from gorelm._typing import Array, RandomState
from gorelm.diagnostics.fitted import attribute, row_scores
from gorelm.estimators._base import seeded


@dataclass(frozen=True)
class FlagStability:
    """How often refits flag rows and cells; see :func:`flag_stability`.

    Attributes
    ----------
    rows : ndarray of shape (n_samples,)
        Share of the refits that flag the row.
    cells : ndarray of shape (n_samples, n_targets) or None
        Share of the refits that flag the cell; None if the model does not judge cells.
    """

    rows: Array
    cells: Array | None


def flag_stability(
    model: BaseEstimator,
    X: object,
    y: object,
    *,
    n_repeats: int = 5,
    random_state: RandomState = 0,
    **fit_params: object,
) -> FlagStability:
    r"""Refit a model with other seeds, and count how often each row and cell is flagged.

    .. math:: p_i = \frac1R \sum_{r=1}^R [\text{refit } r \text{ flags row } i]

    Hidden layers are random, and so are folds. What is clearly wrong has a share of 1 all the same,
    what is clearly right one of 0; rows and cells between are near the threshold, or where the
    model is uncertain. The shares do not tell how probable an error is: a row that is right but
    rare is flagged by all refits, too.

    Parameters
    ----------
    model : estimator
        A regressor of this library, or what wraps one, fitted or not. It is cloned, and stays as it
        is.
    X, y
        The table, as for its `fit`.
    n_repeats : int, default=5
        Number of refits. Each takes as long as a fit.
    random_state : int, RandomState instance or None, default=0
        Seed of the seeds: each refit has its own in every `random_state` of the model and of the
        models in it.
    **fit_params
        Further arguments of `fit`, such as `sample_weight` or `groups`.

    Returns
    -------
    stability : FlagStability
        Shares of the refits that flag each row and each cell.

    Examples
    --------
    >>> from gorelm import RobustELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.diagnostics import flag_stability
    >>> data = make_multitarget(100, outlier_ratio=0.1, random_state=0)
    >>> model = RobustELMRegressor(effort="fast", n_hidden=50)
    >>> stability = flag_stability(model, data.X, data.T, n_repeats=3)
    >>> bool(stability.rows[data.planted].mean() > 0.9)
    True
    >>> stability.cells.shape
    (100, 3)
    """
    if n_repeats < 1:
        raise ValueError(f"n_repeats must be at least 1, not {n_repeats}")
    seeds = [name for name in model.get_params() if name.split("__")[-1] == "random_state"]
    if not seeds:
        raise ValueError(
            f"{type(model).__name__} has no random_state: all refits would give the same flags"
        )
    rng = check_random_state(random_state)
    rows, cells = [], []
    for _ in range(n_repeats):
        refit = seeded(clone(model).set_params(**dict.fromkeys(seeds)), rng)
        refit.fit(X, y, **fit_params)
        rows.append(row_scores(refit).flagged)
        cells.append(attribute(refit, "cell_mask_"))
    judged = cells[0] is not None
    return FlagStability(np.mean(rows, axis=0), np.mean(cells, axis=0) if judged else None)
