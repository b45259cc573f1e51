r"""Certificates of solutions: lower bounds on the optimum, their improvement, stopping rules.

The multipliers :math:`Y = \rho U` of an iterate are dual feasible for the loss by construction of
its proximal map, so each check gets a lower bound on the optimum (`Problem.dual_values`) at almost
no cost. Three steps improve this bound:

- `_bound_from_feasible`, without ridge: the last feasible point on the way from strictly feasible
  multipliers of another problem to Y;
- `_correct_bound`, without ridge: multipliers moved by HA so that H'Y obeys the limit :math:`l_1`;
- `Polish`: Y corrected in the leading directions of H, where most of its error is.

`certify` takes H'U from the loop's recursion; `verify` sums it over the rows again before a problem
leaves.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import linalg

from gorelm._solver.linalg import EighFactor, Factor, above_rounding, gram, product
from gorelm._solver.problem import Problem
from gorelm._solver.rows import MemoryRows, Rows, StepSums, squares
from gorelm._solver.state import Iterate, StrictlyFeasible
from gorelm._typing import Array, Indices, Mask


def certify(
    s: Iterate, sums: StepSums | None, rows: Rows, factor: Factor, *, thorough: bool = True
) -> tuple[Array, Array]:
    """Improve the iterate's lower bounds by the dual values of its multipliers.

    Unless it is to be `thorough`, the correction of multipliers is for those problems without ridge
    that have no other bound. Returns objective and gap (see `Solution.dual_gap`) of the weights B,
    for the squared loss of the answer.
    """
    if sums is None:  # squared loss: the residual itself is the dual point
        (HtY, YT, YY), scale = rows.residual_sums(s.answer), s.problem.tau
        loss = capped = 0.5 * scale * YY
        penalty = s.problem.penalty_values(s.answer)
        bound, s.scale = s.problem.dual_values(scale[:, None] * HtY, scale * YT, scale**2 * YY)
        s.bound = np.maximum(s.bound, bound)
    else:
        loss, capped = sums.loss
        penalty = s.problem.penalty_values(s.B)
        bound, s.scale = _bound(s.problem, s.rho, s.HtU, sums.UT, sums.UU)
        s.bound = np.maximum(s.bound, bound)
        s.correction = None
        bound, alone = _bound_from_feasible(s, sums, bound)
        if s.sigma is not None and rows.complete:
            _correct_bound(s, sums, bound, rows, factor, alone | thorough)
    return loss + penalty, _gap(s.bound, loss, capped, penalty)


def prove(s: Iterate, sums: StepSums, polish: Polish, gap: Array, tol: float) -> Array:
    """Improve the bounds of problems whose weights have settled by polished multipliers.

    An estimate of their H'Y tells where they will meet `tol`; only there it is summed over the
    rows, for a proof. Returns the `gap` given, or that of a new bound.
    """
    loss, capped = sums.loss
    penalty = s.problem.penalty_values(s.B)
    objective = loss + penalty
    settled = np.abs(objective - s.objective) <= tol * objective
    (which,) = np.nonzero(settled & (gap > tol))
    if not len(which):
        return gap
    estimate = polish.estimate(s, which)
    promised = _gap(_polished_bound(s, which, estimate), loss[which], capped[which], penalty[which])
    promising = promised <= tol
    which = which[promising]
    if len(which):
        bound = _polished_bound(s, which, polish.summed(estimate, promising))
        s.bound, s.summed, s.polished = s.bound.copy(), s.summed.copy(), s.polished.copy()
        s.polished[which] = bound > s.bound[which]
        s.bound[which] = s.summed[which] = np.maximum(bound, s.summed[which])
    return _gap(s.bound, loss, capped, penalty)


def _polished_bound(s: Iterate, which: Indices, given: Polished) -> Array:
    problem = s.problem.select(which)
    bound, _ = problem.dual_values(given.HtY, given.YT, given.YY)
    if s.feasible is None:
        return bound
    return _or_from_feasible(problem, s.feasible.take(which), given.HtY, given.YT, given.YY, bound)


def verify(
    s: Iterate, sums: StepSums, answer: Array, which: Mask, rows: Rows, tol: float
) -> tuple[Array, Array, bool]:
    """Certify the solutions (L, ., m) of the problems `which` by new sums over the rows.

    `certify` takes H'U from a recursion, in which rounding is damped but not absent, and the loss
    at B. Here both are summed over the rows again.

    Returns
    -------
    objective, gap : array (P,)
        Of the answers of the problems that `which` names.
    sound : bool
        Whether the recursion had the bounds right, to a small part of `tol`; otherwise they have
        been taken back.
    """
    problem, cap = s.problem.select(which), s.cap[which]
    loss, capped = sums.loss[:, which] if s.sigma is None else rows.loss(answer, problem, cap)
    penalty = problem.penalty_values(answer)
    sound = _summed_again(s, sums, which & (s.bound > s.summed), rows, tol)
    return loss + penalty, _gap(s.bound[which], loss, capped, penalty), sound


def _summed_again(s: Iterate, sums: StepSums, which: Mask, rows: Rows, tol: float) -> bool:
    """Compare bounds made of the recursion with sums over the rows; see `verify`."""
    if not which.any():
        return True
    problem, rho, UT, UU = s.problem.select(which), s.rho[which], sums.UT[which], sums.UU[which]
    bound, _ = _bound(problem, rho, rows.HtU(which), UT, UU)
    believed, _ = _bound(problem, rho, s.HtU[:, which], UT, UU)
    size = sums.loss[1][which] + problem.penalty_values(s.B[:, which])
    sound = bool((np.abs(believed - bound) <= 0.01 * tol * size).all())
    s.bound, s.summed = s.bound.copy(), s.summed.copy()
    if not sound:
        s.bound[which] = np.maximum(bound, s.summed[which])
    s.summed[which] = s.bound[which]
    return sound


def _bound(problem: Problem, rho: Array, HtU: Array, UT: Array, UU: Array) -> tuple[Array, Array]:
    return problem.dual_values(*_scaled(rho, HtU, UT, UU))


def _scaled(rho: Array, HtU: Array, UT: Array, UU: Array) -> tuple[Array, Array, Array]:
    """Return the sums of Y = rho U from those of U."""
    return rho[:, None] * HtU, rho * UT, (rho * np.sqrt(UU)) ** 2


def _gap(bound: Array, loss: Array, capped: Array, penalty: Array) -> Array:
    objective = loss + penalty
    size = np.maximum(capped + penalty, np.maximum(1e-9 * objective, np.finfo(float).tiny))
    return np.maximum(objective - bound, 0.0) / size


def _bound_from_feasible(s: Iterate, sums: StepSums, plain: Array) -> tuple[Array, Mask]:
    r"""Improve the bounds of problems without ridge by strictly feasible multipliers, where known.

    Those of the iterate, Y, exceed the limit of some rows of H'Y by a few percent. The last
    feasible point on the way from :math:`Y_0`, where no row is at its limit, to Y is a bound that
    costs little, unless :math:`Y_0 = 0`.

    Returns
    -------
    bound : array (P,)
        The best that the new multipliers prove: `plain`, or that point.
    alone : mask (P,)
        The problems of which no such multipliers are known.
    """
    if s.feasible is None:
        return plain, np.ones(len(plain), dtype=bool)
    known = _knows_feasible(s.problem, s.feasible)
    Y = _scaled(s.rho, s.HtU, sums.UT, sums.UU)
    best = _or_from_feasible(s.problem, s.feasible, *Y, plain)
    s.bound = np.maximum(s.bound, best)
    s.scale = np.where(known, 1.0, s.scale)
    return best, ~known


def _or_from_feasible(
    problem: Problem, feasible: StrictlyFeasible, HtY: Array, YT: Array, YY: Array, plain: Array
) -> Array:
    """Bound by `plain`, or by the last feasible point on the way from `feasible` to Y."""
    share = problem.farthest_within(feasible.HtY, HtY)
    value = -YT - 0.5 * problem.curvature * YY
    between = (1.0 - share) * feasible.value + share * value  # or more: values are concave
    return np.where(_knows_feasible(problem, feasible), np.maximum(plain, between), plain)


def _knows_feasible(problem: Problem, feasible: StrictlyFeasible) -> Mask:
    return np.asarray((problem.l2 == 0) & (feasible.value > 0))


def _correct_bound(
    s: Iterate, sums: StepSums, plain: Array, rows: Rows, factor: Factor, wanted: Mask
) -> None:
    r"""Improve the bounds of problems without ridge (:math:`l_2 = 0`), where `wanted`.

    Theirs hold only while no row of H'Y is longer than :math:`l_1`, and to scale Y until that
    is so costs most of the bound. But :math:`\sigma V` obeys that limit and H'Y only lags
    behind :math:`-\sigma V`: with :math:`(H'H + sI) A = H'Y + \sigma V`,

    .. math:: H'(Y - HA) = -\sigma V + s A

    is as good as within it, at the price of leaving the loss's dual ball a little.
    """
    (which,) = np.nonzero((s.problem.l2 == 0) & wanted)
    if not len(which) or s.sigma is None:
        return
    problem, rho = s.problem.select(which), s.rho[which]
    sigma_V = s.sigma[which][:, None] * s.V[:, which]
    shift = s.sigma[which] / rho
    A = factor.solve(shift, rho[:, None] * s.HtU[:, which] + sigma_V)
    reach, YY = rows.corrected_dual(A, which, problem, rho)
    shrink = 1.0 / np.maximum(reach, 1.0)
    HtT = np.broadcast_to(rows.HtT[:, None], A.shape)
    YT = rho * sums.UT[which] - np.einsum("lpm,lpm->p", A, HtT)
    bound, scale = problem.dual_values(
        shrink[:, None] * (shift[:, None] * A - sigma_V), shrink * YT, shrink**2 * YY
    )
    better = bound > plain[which]
    s.bound[which] = np.maximum(s.bound[which], bound)
    s.scale[which] = np.where(better, scale * shrink, s.scale[which])
    s.correction = np.zeros_like(s.B)
    s.correction[:, which[better]] = A[:, better]


def residuals_small(
    s: Iterate, sums: StepSums | None, rows: Rows, eps_abs: float, eps_rel: float
) -> Mask:
    """Apply the paper's stopping rule."""
    # The constraint's terms E; (HB, B); Z; T, each with its own norm.
    primal = weights = np.zeros(len(s.rho))
    dual = multipliers = np.zeros((1, len(s.rho), 1))
    sizes: list[Array] = []
    if s.sigma is not None:
        primal = primal + squares(s.B - s.Z)
        dual = dual + s.sigma[:, None] * s.Z_change
        weights = weights + squares(s.B)
        multipliers = multipliers + s.sigma[:, None] * s.V
        sizes.append(squares(s.Z))
    if sums is not None:
        primal = primal + sums.primal
        dual = dual + s.rho[:, None] * s.HtE_change
        weights = weights + sums.hidden
        multipliers = multipliers + s.rho[:, None] * s.HtU
        sizes += [sums.error, np.full_like(primal, rows.TT())]
    largest = np.sqrt(np.max([*sizes, weights], axis=0))
    absolute = np.sqrt(s.B.shape[0] * s.B.shape[2]) * eps_abs
    small_primal = np.sqrt(primal) < absolute + eps_rel * largest
    small_dual = np.sqrt(squares(dual)) < absolute + eps_rel * np.sqrt(squares(multipliers))
    return np.asarray(small_primal & small_dual)


def residuals(s: Iterate, sums: StepSums | None) -> tuple[Array, Array]:
    """Norms of (HB - T - E, B - Z) and of (rho (E - E_old), sigma (Z - Z_old)), shape (P,)."""
    primal: Array = np.zeros(len(s.rho))
    dual: Array = np.zeros(len(s.rho))
    if sums is not None:
        primal, dual = sums.primal, (s.rho * np.sqrt(sums.error_change)) ** 2
    if s.sigma is not None:
        primal = primal + squares(s.B - s.Z)
        dual = dual + squares(s.sigma[:, None] * s.Z_change)
    return np.sqrt(primal), np.sqrt(dual)


# -- polished multipliers
# ----------------------------------------------------------------------------

# Rounds of correction and projection: 2 to 6 took as many iterations on rf1.
POLISH_ROUNDS = 3
# Ridge of the least-squares problem in `Polish.without`, in units of a direction's squared norm.
_SPARE_RIDGE = 1e-3


class Polished(NamedTuple):
    """Polished multipliers, and the sums that a bound needs."""

    Y: Array  # (N, P, m)
    HtY: Array  # (L, P, m)
    YT: Array  # (P,)
    YY: Array  # (P,)


class Polish:
    r"""Corrects the multipliers of some problems in the leading directions of H.

    The multipliers Y of an iterate prove a bound that is worse the farther H'Y is from its value at
    the optimum, :math:`-(l_2 B + \sigma V)`: by that distance squared, divided by :math:`2 l_2`.
    Where the ridge is small the weights settle long before the bound, because H magnifies what is
    left of the error of Y. Hidden outputs have a few very large singular values, so most of the
    distance lies in as many directions. With the leading eigenvectors W of H'H and Q = HW, two maps
    in turn,

    .. math:: Y \leftarrow Y - Q (Q'Q)^{-1} \bigl[Q'Y + W'(l_2 B + \sigma V)\bigr],
              \qquad Y \leftarrow \text{projection onto the loss's dual ball},

    correct these directions and keep Y feasible. They take a fraction of an iteration, and change
    the other directions so little that an estimate of the bound without that change tells when H'Y
    is worth summing over the rows, for a proof.
    """

    def __init__(self, rows: MemoryRows, directions: Directions) -> None:
        self._rows, self._directions = rows, directions
        self._last: tuple[Array, Indices, Array] | None = None  # the last estimate: B, which, Y

    @classmethod
    def where_it_pays(
        cls, rows: Rows, factor: Factor, problem: Problem, directions: Directions | None = None
    ) -> Polish | None:
        """Return one for robust losses on rows in memory, where the leading directions are known.

        A single fit does not know them, and to find them costs as much as it saves.
        """
        if not (isinstance(rows, MemoryRows) and rows.complete and problem.loss != "squared"):
            return None
        if directions is None and isinstance(factor, EighFactor):
            directions = Directions.of(factor, rows.H)
        return None if directions is None else cls(rows, directions)

    def multipliers(self, s: Iterate, which: Indices) -> Array:
        """Return polished multipliers (N, ., m) of the problems `which` (indices)."""
        if self._last is not None and self._last[0] is s.B:
            _, known, Y = self._last
            if np.isin(which, known).all():
                return Y[:, np.searchsorted(known, which)]
        return self._polished(s, which)[0]

    def estimate(self, s: Iterate, which: Indices) -> Polished:
        """Polish the multipliers of the problems `which` (indices) and estimate their H'Y."""
        vectors = self._directions.vectors
        Y, QtY = self._polished(s, which)
        self._last = s.B, which, Y
        HtU = s.rho[which, None] * s.HtU[:, which]
        known = HtU.reshape(len(HtU), -1)
        estimate = known + vectors @ (QtY - vectors.T @ known)
        YT = np.einsum("npm,nm->p", Y, self._rows.T, dtype=float)
        YY = np.einsum("npm,npm->p", Y, Y, dtype=float)
        return Polished(Y, estimate.reshape(HtU.shape), YT, YY)

    def summed(self, given: Polished, which: Mask) -> Polished:
        """Sum up the H'Y of some over the rows."""
        Y = given.Y[:, which]
        return Polished(Y, self._rows.products(Y), given.YT[which], given.YY[which])

    def without(self, B: Array, full: Mask) -> Array:
        r"""Empty the nodes (L, P, 1) or cells (L, P, m) of B that are not `full`.

        The other nodes take over their outputs in the leading directions, where small weights of
        many nodes add up. With rows :math:`W_e` of the emptied and :math:`W_f` of the others,
        the others get :math:`W_f (W_f'W_f + \varepsilon I)^{-1} W_e'B_e` more.
        """
        vectors = self._directions.vectors
        kept: Array = B * full
        lost = vectors.T @ (B - kept).reshape(len(B), -1)
        lost = lost.reshape(len(lost), *B.shape[1:])
        for at in np.argwhere(~full.all(axis=0)):
            p, targets = at[0], slice(None) if full.shape[2] == 1 else at[1]
            some = vectors * full[:, p, at[1]][:, None]
            inner = some.T @ some
            inner.flat[:: len(inner) + 1] += _SPARE_RIDGE
            kept[:, p, targets] += some @ np.linalg.solve(inner, lost[:, p, targets])
        return kept

    def _polished(self, s: Iterate, which: Indices) -> tuple[Array, Array]:
        """Return Y (N, ., m) and Q'Y, whose problems and targets are one axis."""
        vectors, values = self._directions.vectors, self._directions.values
        Q = self._directions.outputs.astype(self._rows.dtype, copy=False)
        slopes = s.problem.l2[which, None] * s.B[:, which]
        if s.sigma is not None:
            slopes += s.sigma[which, None] * s.V[:, which]
        target = -(vectors.T @ slopes.reshape(len(slopes), -1)).reshape(-1, *slopes.shape[1:])
        Y = np.empty((len(self._rows.U), *slopes.shape[1:]), dtype=self._rows.dtype)
        QtY = np.empty(target.shape)

        def polish(k: int) -> None:  # a problem at a time: its multipliers stay in cache
            problem = s.problem.select(which[k : k + 1])
            y = self._rows.U[:, which[k]] * s.rho[which[k]].astype(Y.dtype)
            Qty = Q.T @ y
            for _ in range(POLISH_ROUNDS):
                correction = (Qty - target[:, k]) / values[:, None]
                y -= Q @ correction.astype(y.dtype, copy=False)
                problem.bring_into_ball(y[:, None], self._rows.omega(slice(None)))
                Qty = Q.T @ y
            Y[:, k], QtY[:, k] = y, Qty

        for k in range(len(which)):
            polish(k)
        return Y, QtY.reshape(len(QtY), -1)


# How many: 16 to 100 took as many iterations of paths on rf1.
DIRECTIONS = 32
# New nodes from which on directions are found sooner anew than by `Directions.extend`.
MANY_NEW = 256
# Rounds of subspace iteration. The spectrum of hidden outputs falls steeply.
_SUBSPACE_ROUNDS = 3


class Directions:
    r"""The leading directions of H: orthonormal W (L, k) whose outputs Q = HW are orthogonal.

    `values` are the squared norms of the columns of Q.
    """

    def __init__(self, H: Array, vectors: Array, values: Array) -> None:
        self._H, self.vectors, self.values = H, vectors, values

    @cached_property
    def outputs(self) -> Array:
        """Q."""
        return np.asarray(self._H @ self.vectors.astype(self._H.dtype, copy=False))

    @classmethod
    def of(cls, factor: EighFactor, H: Array) -> Directions:
        """Return the leading eigenvectors of H'H, which are known."""
        return cls(H, *factor.leading(min(DIRECTIONS, *H.shape)))

    @classmethod
    def find(cls, H: Array, factor: Factor) -> Directions:
        """Find them by subspace iteration with H'H."""
        count = min(DIRECTIONS, *H.shape)
        W = np.random.default_rng(0).standard_normal((H.shape[1], count))
        for _ in range(_SUBSPACE_ROUNDS):
            GW = factor.times(W[:, None])
            GW = product(H, H @ W.astype(H.dtype, copy=False)) if GW is None else GW[:, 0]
            W = linalg.qr(GW, mode="economic", check_finite=False)[0]
        Q = H @ W.astype(H.dtype, copy=False)
        values, mix = linalg.eigh(product(Q, Q))
        found = cls(H, W @ mix, above_rounding(values))
        found.outputs = Q @ mix.astype(H.dtype, copy=False)
        return found

    def extend(self, dH: Array, corner: Array | None = None) -> None:
        """Follow H to [H, dH]: the leading directions within what W and the new nodes span.

        `corner` is dH'dH (lower triangle), where it is known.
        """
        Q, k = self.outputs, len(self.values)
        cross, corner = product(dH, Q), gram(dH) if corner is None else corner
        both = np.block([[np.diag(self.values), cross.T], [cross, corner]])
        count, size = min(DIRECTIONS, len(dH), len(self.vectors) + dH.shape[1]), len(both)
        values, mix = linalg.eigh(both, subset_by_index=[size - count, size - 1])
        self.values = above_rounding(values)
        self.vectors = np.concatenate([self.vectors @ mix[:k], mix[k:]])
        mix = mix.astype(Q.dtype, copy=False)
        self.outputs = Q @ mix[:k] + dH.astype(Q.dtype, copy=False) @ mix[k:]
