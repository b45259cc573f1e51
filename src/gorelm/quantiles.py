"""Quantiles under which a weight of two is the value twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from gorelm.prox import Array

__all__ = ["weighted_quantiles"]


def weighted_quantiles(values: Array, levels: Any, weights: Array) -> Array:
    """Quantiles by the inverted distribution function: repeated rows and weights agree exactly.

    Parameters
    ----------
    values : array (N,)
        Numbers.
    levels : float or array
        Which quantiles, in [0, 1].
    weights : array (N,)
        Positive weights; always given, as NumPy rounds differently without.
    """
    return np.asarray(np.quantile(values, levels, method="inverted_cdf", weights=weights))
