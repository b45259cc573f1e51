r"""The optimisation problem as data: a loss, an elastic-net penalty, and what certifies a solution.

Every method of the library minimises over the output weights B

.. math:: \sum_i w_i\,\ell(h_i B - t_i) + l_1 \|B\|_{2,1} + \tfrac{l_2}{2}\|B\|_F^2 ,

(:math:`\|B\|_1` instead of :math:`\|B\|_{2,1}` when the penalty is not grouped), with one of

=========  ==========================================================================
``l21``    :math:`\ell(e) = \tau\, h_\delta(\|e\|_2)`: a row is right or wrong as a whole
``l1``     :math:`\ell(e) = \tau \sum_j h_\delta(|e_j|)`: every target by itself
``squared``  :math:`\ell(e) = \tfrac{\tau}{2} \|e\|_2^2`
=========  ==========================================================================

where :math:`h_\delta` is the Huber function of `shrink` (:math:`\delta = 0`: the
plain norm). The numbers are arrays of length P, so that one `Problem` describes the P members of a
regularisation path; a single problem is P = 1.

Rows arrive multiplied by :math:`\omega_i = \sqrt{w_i}` (H, T and so residuals). In these scaled
rows a weight of two *is* the row written twice, for every iterate of the solver and not only for
the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from gorelm._typing import Array, Indices, Mask

LossName = Literal["squared", "l1", "l21"]
LOSSES: tuple[LossName, ...] = ("squared", "l1", "l21")
_NUMBERS = ("tau", "l1", "l2", "delta")


@dataclass(frozen=True)
class Problem:
    """P problems that share a loss and a kind of penalty and differ in their numbers.

    Parameters
    ----------
    loss : {"squared", "l1", "l21"}
        The loss, see the module's head.
    tau : float or array (P,)
        Weight of the loss.
    l1, l2 : float or array (P,)
        Weights of the sparse and of the ridge penalty; not both zero.
    delta : float or array (P,), default=0
        Residual norm up to which the robust losses are quadratic.
    grouped : bool, default=True
        Whether the sparse penalty empties whole rows of B (nodes) or single cells.
    """

    loss: LossName
    tau: Any
    l1: Any
    l2: Any
    delta: Any = 0.0
    grouped: bool = True
    is_sparse: bool = field(init=False, repr=False)  # whether any of them can empty nodes

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise ValueError(f"unknown loss {self.loss!r}; known: {', '.join(LOSSES)}")
        numbers = np.broadcast_arrays(
            *(np.atleast_1d(np.asarray(x, float)) for x in (self.tau, self.l1, self.l2, self.delta))
        )
        for name, values in zip(_NUMBERS, numbers, strict=True):
            object.__setattr__(self, name, np.array(values))
        if not (np.isfinite(numbers).all() and (np.array(numbers) >= 0).all()):
            raise ValueError("tau, l1, l2 and delta must be finite and not negative")
        if (self.tau == 0).any() or (self.l1 + self.l2 == 0).any():
            raise ValueError("tau must be positive, and so must be l1 + l2")
        object.__setattr__(self, "is_sparse", bool((self.l1 > 0).any()))

    @property
    def n_problems(self) -> int:
        """Number P of problems described."""
        return len(self.tau)

    def moved(self, put: Callable[[list[Any]], list[Any]]) -> Problem:
        """Return the problems with their numbers elsewhere, where `put` brings arrays."""
        other = copy(self)
        for name, there in zip(_NUMBERS, put([getattr(self, n) for n in _NUMBERS]), strict=True):
            object.__setattr__(other, name, there)
        return other

    def select(self, which: Mask | Indices | slice) -> Problem:
        """Return the problems that `which` (mask or indices) names."""
        numbers = {name: getattr(self, name)[which] for name in _NUMBERS}
        return replace(self, **numbers)

    @classmethod
    def join(cls, parts: Sequence[Problem]) -> Problem:
        """Return problems that differ in their numbers alone as one batch."""
        numbers: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in parts]) for name in _NUMBERS
        }
        return replace(parts[0], **numbers)

    # -- the loss, on residuals R of shape (rows, P, targets) -----------------------------------

    @property
    def by_row(self) -> bool:
        return self.loss != "l1"

    def over_norms(self, numbers: Array, omega: Array | None) -> Array:
        """Shape `numbers` (P,) like the norms of residuals, times the rows' `omega`."""
        shaped = numbers if self.by_row else numbers[:, None]
        return shaped if omega is None else omega.reshape((-1,) + (1,) * shaped.ndim) * shaped

    def loss_values(self, R: Array, omega: Array | None = None) -> Array:
        """Sum the loss of residuals `R` over the rows; shape (P,)."""
        if self.loss == "squared":
            return np.asarray(0.5 * self.tau * np.einsum("npm,npm->p", R, R))
        return self._loss_of_norms(self.residual_norms(R), omega)

    def capped_loss_values(self, R: Array, omega: Array | None, cap: Array) -> tuple[Array, Array]:
        """Sum the loss plainly, and with no norm counting for more than `cap` (P,).

        What the second is for: see `gorelm._solver.admm.Solution.dual_gap`.
        """
        if self.loss == "squared":
            return (plain := self.loss_values(R, omega)), plain
        r, limits = self.residual_norms(R), self.over_norms(cap, omega)
        plain = self._loss_of_norms(r, omega)
        if not (r > limits).any():
            return plain, plain
        return plain, self._loss_of_norms(np.minimum(r, limits), omega)

    def _loss_of_norms(self, r: Array, omega: Array | None) -> Array:
        value = r
        if self.delta.any():
            # h(r) = q^2 / (2 delta) + (r - q) with q = min(r, delta); delta = 0 leaves r alone.
            delta = self.over_norms(self.delta, omega)
            q = np.minimum(r, delta)
            with np.errstate(invalid="ignore", divide="ignore"):
                value = np.where(delta > 0, q * (0.5 * (q / delta)), 0.0) + (r - q)
        value = self.over_norms(self.tau, omega) * value
        return np.asarray(value.sum(axis=0 if self.by_row else (0, 2), dtype=float))

    def capped_squares(self, R: Array, omega: Array | None, cap: Array | None) -> Array:
        """Sum the squared norms of residuals `R`, none counting for more than `cap`; (P,)."""
        r = self.residual_norms(R)
        if cap is not None:
            r = np.minimum(r, self.over_norms(cap, omega))
        return np.asarray((r * r).sum(axis=0 if self.by_row else (0, 2), dtype=float))

    def multipliers(self, V: Array, rho: Array, omega: Array | None = None) -> Array:
        """Split residuals ``V = E + U`` and return U (the scaled multipliers).

        E is the proximal map of the loss divided by `rho` (P,); U lies in the loss's dual ball
        divided by `rho`.
        """
        if self.loss == "squared":
            share = (self.tau / (self.tau + rho))[:, None]
            return np.asarray(V * share, dtype=V.dtype) if isinstance(V, np.ndarray) else V * share
        return shrink_rest(
            V,
            self.over_norms(self.tau / rho, omega),
            grouped=self.by_row,
            knee=self.over_norms(self.delta, omega),
        )

    def dual_reach(self, Y: Array, omega: Array | None = None) -> Array:
        """Return the largest norm in `Y` in units of the dual ball's radius; shape (P,)."""
        r = self.residual_norms(Y) / self.over_norms(self.tau, omega)
        return np.asarray(r.max(axis=0 if self.by_row else (0, 2), initial=0.0), dtype=float)

    def bring_into_ball(self, Y: Array, omega: Array | None = None) -> None:
        """Shorten what of `Y` is beyond the dual ball of a robust loss to its radius, in place."""
        r = self.residual_norms(Y) / self.over_norms(self.tau, omega)
        share = 1.0 / np.maximum(r, 1.0)
        Y *= share[..., None] if self.by_row else share

    def residual_norms(self, R: Array) -> Array:
        """Return what the robust losses measure: row norms of `R`, or sizes of its cells."""
        return norms(R, grouped=self.by_row)

    # -- the penalty, on weights X of shape (nodes, P, targets) ---------------------------------

    def penalty_values(self, X: Array) -> Array:
        """Return l1 * (l2,1 or l1 norm) + l2/2 * squared norm of every problem; shape (P,)."""
        sizes = norms(X, grouped=self.grouped)
        sparse = sizes.sum(axis=0) if self.grouped else sizes.sum(axis=(0, 2))
        return np.asarray(self.l1 * sparse + 0.5 * self.l2 * np.einsum("lpm,lpm->p", X, X))

    def penalty_prox(self, X: Array, sigma: Array) -> Array:
        """Map weights `X` by the proximal map of the sparse penalty divided by `sigma` (P,)."""
        if not self.is_sparse:
            return X
        # A threshold of zero must not divide by a norm of zero.
        threshold = (self.l1 / sigma).clip(min=np.finfo(float).tiny)
        return shrink(X, threshold if self.grouped else threshold[:, None], grouped=self.grouped)

    def penalty_slopes(self, X: Array, pull: Array) -> Array:
        """Return the subgradient of the sparse penalty at `X` that comes next to `pull`."""
        l1 = self.l1 if self.grouped else self.l1[:, None]
        empty = norms(X, grouped=self.grouped) == 0
        direction = np.where(empty[..., None] if self.grouped else empty, pull, X)
        sizes = norms(direction, grouped=self.grouped)
        factor = l1 / np.maximum(sizes, 1e-200)
        factor = np.where(empty, np.minimum(factor, 1.0), factor)
        return np.asarray(direction * (factor[..., None] if self.grouped else factor))

    # -- the certificate ------------------------------------------------------------------------

    @property
    def curvature(self) -> Array:
        """Curvature q of the loss's conjugate within its ball; shape (P,)."""
        return np.asarray(1.0 / self.tau if self.loss == "squared" else self.delta / self.tau)

    def excess(self, W: Array) -> Array:
        """Return what of the rows (or cells) of `W` is beyond l1."""
        if not self.l1.any():
            return W
        sizes = norms(W, grouped=self.grouped)
        l1 = self.l1 if self.grouped else self.l1[:, None]
        share = np.maximum(1.0 - l1 / np.maximum(sizes, 1e-300), 0.0)
        return np.asarray(W * (share[..., None] if self.grouped else share))

    def farthest_within(self, inside: Array, W: Array) -> Array:
        r"""Return how far one can go from `inside` towards `W` until a row (or cell) meets l1.

        The largest :math:`c \le 1` with :math:`\|w^0_j + c (w_j - w^0_j)\| \le l_1` for every j;
        shape (P,).
        """
        step = W - inside
        l1 = self.l1 if self.grouped else self.l1[:, None]

        def inner(A: Array, B: Array) -> Array:
            return np.einsum("lpm,lpm->lp", A, B) if self.grouped else A * B

        # a c^2 + 2 b c = room, by the formula that subtracts nothing of nearly the same size
        a, b, room = inner(step, step), inner(inside, step), l1**2 - inner(inside, inside)
        root = np.sqrt(np.maximum(b * b + a * room, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            c = np.where(b > 0, room / (b + root), (root - b) / a)
        c = np.where(a > 0, np.clip(c, 0.0, 1.0), 1.0)
        return np.asarray(c.min(axis=0 if self.grouped else (0, 2), initial=1.0))

    def dual_values(self, HtY: Array, YT: Array, YY: Array) -> tuple[Array, Array]:
        r"""Bound the optimum from below with multipliers Y of the residuals.

        For Y within the loss's dual ball (:math:`\|y_i\| \le \tau`; every multiplier of the solver
        is) and any :math:`0 \le c \le 1`, with :math:`w_j` the rows (or cells) of H'Y,

        .. math:: D(c) = -c\langle Y, T\rangle - \frac{c^2 q}{2}\|Y\|_F^2
                  - \sum_j \frac{\max(c\|w_j\| - l_1, 0)^2}{2 l_2}

        is a lower bound (:math:`l_2 = 0`: while every :math:`c\|w_j\| \le l_1`), where q is the
        curvature of the loss's conjugate: :math:`\delta/\tau`, or :math:`1/\tau` when squared. The
        best c is found exactly. Taken are H'Y (L, P, m), <Y, T> and <Y, Y> (P,); returned are D(c)
        and c of the best c, (P,).
        """
        q = self.curvature
        if not self.l1.any():  # a parabola
            bend = q * YY + np.einsum("lpm,lpm->p", HtY, HtY) / self.l2
            c = np.clip(-YT / np.maximum(bend, 1e-300), 0.0, 1.0)
            return -YT * c - 0.5 * bend * c * c, c
        w = norms(HtY, grouped=self.grouped)
        best = [
            _best_bound(YT[p], q[p] * YY[p], w[:, p].ravel(), self.l1[p], self.l2[p])
            for p in range(self.n_problems)
        ]
        bounds, scales = np.array(best).reshape(-1, 2).T
        return bounds, scales


def _best_bound(a: float, b: float, w: Array, l1: float, l2: float) -> tuple[float, float]:
    """Maximise -a c - b c^2 / 2 - sum_j max(c w_j - l1, 0)^2 / (2 l2) over 0 <= c <= 1.

    Returns the maximum and its c.
    """
    if a >= 0:  # the derivative at c = 0 is -a
        return 0.0, 0.0
    w = np.sort(w[w > l1])[::-1]  # the others stay below l1 for every c
    if not w.size or l2 == 0:
        limit = l1 / w[0] if w.size else 1.0
        c = min(limit, -a / b) if b > 0 else limit
        return -a * c - 0.5 * b * c * c, c
    # The derivative falls in c, linearly between the breakpoints l1 / w_j; `active` counts those
    # it passes while still positive.
    sum_w, sum_ww = np.cumsum(w), np.cumsum(w * w)
    breaks = l1 / w
    slope = -a - b * breaks - (breaks * sum_ww - l1 * sum_w) / l2
    active = int(np.count_nonzero(slope > 0))
    s1, s2 = (sum_w[active - 1], sum_ww[active - 1]) if active else (0.0, 0.0)
    bend = b + s2 / l2
    c = (-a + l1 * s1 / l2) / bend if bend > 0 else 1.0
    # Rounding may put the root outside the interval it belongs to, where D can fall steeply.
    low = breaks[active - 1] if active else 0.0
    high = breaks[active] if active < len(breaks) else 1.0
    c = min(max(c, low), high)
    over = np.maximum(c * w - l1, 0.0)
    return float(-a * c - 0.5 * b * c * c - (over @ over) / (2 * l2)), float(c)


# -- proximal maps ---------------------------------------------------------------------------------
#
# One convention: prox_f(V) = argmin_E f(E) + 1/2 ||E - V||_F^2, the step length being part of f.
# Arrays carry the targets on their last axis; whatever stands before it (rows, and the problems of
# a batch) is carried along. A group is one slice along that last axis; ungrouped maps act cell by
# cell. Only operators and methods that NumPy arrays share with the tensors of other libraries are
# used, so that the maps serve every owner of rows.


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
