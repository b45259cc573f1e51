"""Proximal maps, all in one convention.

``prox_{f}(V) = argmin_E  f(E) + 1/2 ||E - V||_F^2``: the step length is part of *f*. Arrays carry
the targets on their last axis; whatever stands before it (rows, and the problems of a batch) is
carried along. A *group* is one slice along that last axis; ungrouped maps act cell by cell.

Only operators and methods that NumPy arrays share with the tensors of other libraries are used, so
that the maps serve every owner of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "norms", "shrink", "shrink_rest"]

Array = npt.NDArray[np.floating[Any]]


def norms(A: Array, *, grouped: bool) -> Array:
    r"""Return :math:`\|a_g\|_2` for every group (last axis dropped), or :math:`|a|` per cell."""
    if not grouped:
        return abs(A)
    if isinstance(A, np.ndarray):  # without an array of squares
        return np.asarray(np.sqrt(np.einsum("...m,...m->...", A, A)))
    return (A * A).sum(-1) ** 0.5


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
    factor = 1.0 - threshold / norms(V, grouped=grouped).clip(min=threshold + knee)
    return _as(V, V * (factor[..., None] if grouped else factor))


def shrink_rest(V: Array, threshold: Array, *, grouped: bool, knee: Array | float = 0.0) -> Array:
    r"""Return what `shrink` takes away, :math:`v - \mathrm{prox}(v)`, of norm `threshold` or less.

    Computed as :math:`k\,v / \max(\|v\|,\, k + \delta)` and not as a difference: for a v that is
    larger by many orders it would be all rounding. Parameters as for `shrink`.
    """
    factor = _as(V, threshold / norms(V, grouped=grouped).clip(min=threshold + knee))
    return V * (factor[..., None] if grouped else factor)


def _as(V: Array, values: Array) -> Array:
    """Return values in the precision of V, which float64 numbers have widened."""
    return np.asarray(values, dtype=V.dtype) if isinstance(V, np.ndarray) else values
