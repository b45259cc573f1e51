"""Proximal maps, all in one convention.

``prox_{f}(V) = argmin_E  f(E) + 1/2 ||E - V||_F^2``: the step length is part of *f*. Arrays carry
the targets on their last axis; whatever stands before it (rows, and the problems of a batch) is
carried along. A *group* is one slice along that last axis; ungrouped maps act cell by cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "norms", "shrink", "shrink_rest"]

Array = npt.NDArray[np.floating[Any]]


def norms(A: Array, *, grouped: bool) -> Array:
    r"""Return :math:`\|a_g\|_2` for every group (last axis dropped), or :math:`|a|` per cell."""
    if grouped:
        return np.asarray(np.sqrt(np.einsum("...m,...m->...", A, A)))
    return np.abs(A)


def shrink(V: Array, threshold: Array, *, grouped: bool, knee: Array | float = 0.0) -> Array:
    r"""Shrink every group's (or cell's) norm by `threshold`, to zero when it is smaller.

    The proximal map of :math:`k\,h_\delta(\|e\|)` with the Huber function

    .. math:: h_\delta(r) = r^2 / (2\delta) \;(r \le \delta), \qquad r - \delta/2 \;(r > \delta),

    which for :math:`\delta = 0` is the norm itself (block soft-thresholding):

    .. math:: \mathrm{prox}(v) = \Bigl(1 - \frac{k}{\max(\|v\|,\, k + \delta)}\Bigr)\, v .

    Parameters
    ----------
    V : array, shape (..., m)
        Point to map.
    threshold : array, broadcastable to the norms of `V`
        :math:`k > 0`.
    grouped : bool
        Whether norms run over the last axis or cell by cell.
    knee : array or float, default=0
        :math:`\delta`, where the Huber function turns from square to linear.
    """
    factor = 1.0 - threshold / np.maximum(norms(V, grouped=grouped), threshold + knee)
    return np.asarray(V * (factor[..., None] if grouped else factor), dtype=V.dtype)


def shrink_rest(V: Array, threshold: Array, *, grouped: bool, knee: Array | float = 0.0) -> Array:
    r"""Return what `shrink` takes away, :math:`v - \mathrm{prox}(v)`, of norm `threshold` or less.

    Computed as :math:`k\,v / \max(\|v\|,\, k + \delta)` and not as a difference: for a v that is
    larger by many orders it would be all rounding. Parameters as for `shrink`.
    """
    factor = threshold / np.maximum(norms(V, grouped=grouped), threshold + knee)
    return np.asarray(V * (factor[..., None] if grouped else factor), dtype=V.dtype)
