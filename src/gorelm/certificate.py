"""How far an iterate is from the optimum, proven; and the paper's stopping rule."""

from __future__ import annotations

import numpy as np

from gorelm.factor import Factor
from gorelm.iterate import Inside, Iterate, Mask, Mixture
from gorelm.polish import Polish, Polished
from gorelm.problem import Problem
from gorelm.prox import Array
from gorelm.rows import Moves, Rows

__all__ = [
    "certify",
    "improve_bound",
    "prove",
    "residuals",
    "residuals_small",
    "squares",
    "verify",
]


def certify(
    s: Iterate, moves: Moves | None, rows: Rows, factor: Factor, *, thorough: bool = True
) -> tuple[Array, Array]:
    """Improve the iterate's lower bounds by what its multipliers prove.

    Unless it is to be `thorough`, the correction of multipliers is for those problems without ridge
    that have no other bound.

    Returns
    -------
    objective, gap : array (P,)
        Of the weights B (for the squared loss, of the answer); for `gap` see `Solution.dual_gap`.
    """
    if moves is None:  # squared loss: the residual itself is the dual point
        (HtY, YT, YY), scale = rows.residual_sums(s.answer), s.problem.tau
        loss = capped = 0.5 * scale * YY
        penalty = s.problem.penalty_values(s.answer)
        bound, s.scale = s.problem.dual_values(scale[:, None] * HtY, scale * YT, scale**2 * YY)
        s.bound = np.maximum(s.bound, bound)
    else:
        loss, capped = moves.loss
        penalty = s.problem.penalty_values(s.B)
        bound = improve_bound(s, moves.UT, moves.UU, mix=moves.exact)
        s.correction = None
        bound, alone = _bound_from_inside(s, moves, bound)
        if s.sigma is not None and rows.complete:
            _correct_bound(s, moves, bound, rows, factor, alone | thorough)
    return loss + penalty, _gap(s.bound, loss, capped, penalty)


def prove(s: Iterate, moves: Moves, polish: Polish, gap: Array, tol: float) -> Array:
    """Improve the bounds of problems whose weights have settled by polished multipliers.

    Where these promise a gap of `tol`, they are summed up over the rows, for a proof.

    Returns
    -------
    gap : array (P,)
        The `gap` given, or that of a new bound.
    """
    loss, capped = moves.loss
    penalty = s.problem.penalty_values(s.B)
    objective = loss + penalty
    settled = np.abs(objective - s.objective) <= tol * objective
    (which,) = np.nonzero(settled & (gap > tol))
    if not len(which):
        return gap
    guess = polish.guess(s, which)
    promised = _gap(_polished_bound(s, which, guess), loss[which], capped[which], penalty[which])
    promising = promised <= tol
    which = which[promising]
    if len(which):
        bound = _polished_bound(s, which, polish.summed(guess, promising))
        s.bound, s.summed, s.polished = s.bound.copy(), s.summed.copy(), s.polished.copy()
        s.polished[which] = bound > s.bound[which]
        s.bound[which] = s.summed[which] = np.maximum(bound, s.summed[which])
    return _gap(s.bound, loss, capped, penalty)


def _polished_bound(s: Iterate, which: Mask, given: Polished) -> Array:
    problem = s.problem.select(which)
    bound, _ = problem.dual_values(given.HtY, given.YT, given.YY)
    if s.inside is None:
        return bound
    return _or_from_inside(problem, s.inside.take(which), given.HtY, given.YT, given.YY, bound)


def verify(
    s: Iterate, moves: Moves, answer: Array, which: Mask, rows: Rows, tol: float
) -> tuple[Array, Array, bool]:
    """Judge the answers (L, ., m) to the problems `which` by the rows themselves.

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
    known = s.sigma is None and moves.exact
    loss, capped = moves.loss[:, which] if known else rows.loss(answer, problem, cap)
    penalty = problem.penalty_values(answer)
    sound = _summed_again(s, moves, which & (s.bound > s.summed), rows, tol)
    return loss + penalty, _gap(s.bound[which], loss, capped, penalty), sound


def _summed_again(s: Iterate, moves: Moves, which: Mask, rows: Rows, tol: float) -> bool:
    """Compare bounds made of the recursion with sums over the rows; see `verify`."""
    if not which.any():
        return True
    problem, rho, UT, UU = s.problem.select(which), s.rho[which], moves.UT[which], moves.UU[which]
    HtU, inside = rows.pull(which), None if s.inside is None else s.inside.take(which)
    bound, _ = _bound(problem, rho, HtU, UT, UU)
    sound = True
    if moves.exact:
        believed, _ = _bound(problem, rho, s.HtU[:, which], UT, UU)
        size = moves.loss[1][which] + problem.penalty_values(s.B[:, which])
        sound = bool((np.abs(believed - bound) <= 0.01 * tol * size).all())
    elif inside is not None:
        bound = _or_from_inside(problem, inside, *_scaled(rho, HtU, UT, UU), bound)
    s.bound, s.summed = s.bound.copy(), s.summed.copy()
    if not (sound and moves.exact):
        s.bound[which] = np.maximum(bound, s.summed[which])
        s.mixture = Mixture.empty(s.B)  # made of the same sums
    s.summed[which] = s.bound[which]
    return sound


def improve_bound(s: Iterate, UT: Array, UU: Array, *, mix: bool = True) -> Array:
    r"""Improve the lower bounds by the multipliers rho U, and by mixing them into earlier ones.

    Multipliers swing around the optimum, and what lies between two that are feasible is feasible:
    the best point of the segment from the mixture so far to the new one is a parabola's. A mixture
    cannot be summed up again, so there is none (`mix`) while steps are not exact.

    Returns
    -------
    bound : array (P,)
        What the new multipliers prove by themselves.
    """
    bound, s.scale = _bound(s.problem, s.rho, s.HtU, UT, UU)
    s.bound = np.maximum(s.bound, bound)
    ridge = s.problem.l2 > 0
    if mix and ridge.any():
        l2 = np.where(ridge, s.problem.l2, 1.0)
        size = s.scale * s.rho
        old = s.mixture
        R = s.problem.excess(size[:, None] * s.HtU)
        a, b = size * UT, s.problem.curvature * size**2 * UU
        step = R - old.R
        bend = squares(step) / l2
        slope = old.a - a + 0.5 * (old.b - b) - np.einsum("lpm,lpm->p", old.R, step) / l2
        share = np.where(ridge, np.clip(slope / np.maximum(bend, 1e-300), 0.0, 1.0), 0.0)
        s.mixture = Mixture(
            old.R + share[:, None] * step, old.a + share * (a - old.a), old.b + share * (b - old.b)
        )
        mixed = -s.mixture.a - 0.5 * s.mixture.b - squares(s.mixture.R) / (2 * l2)
        s.bound = np.where(ridge, np.maximum(s.bound, mixed), s.bound)
    return bound


def _bound(problem: Problem, rho: Array, HtU: Array, UT: Array, UU: Array) -> tuple[Array, Array]:
    return problem.dual_values(*_scaled(rho, HtU, UT, UU))


def _scaled(rho: Array, HtU: Array, UT: Array, UU: Array) -> tuple[Array, Array, Array]:
    """Return the sums of Y = rho U from those of U."""
    return rho[:, None] * HtU, rho * UT, (rho * np.sqrt(UU)) ** 2


def _gap(bound: Array, loss: Array, capped: Array, penalty: Array) -> Array:
    objective = loss + penalty
    size = np.maximum(capped + penalty, np.maximum(1e-9 * objective, np.finfo(float).tiny))
    return np.maximum(objective - bound, 0.0) / size


def _bound_from_inside(s: Iterate, moves: Moves, plain: Array) -> tuple[Array, Mask]:
    r"""Improve the bounds of problems without ridge for which multipliers inside are known.

    Those of the iterate, Y, leave the limit of some rows of H'Y by a few percent. The point next to
    them on the way from :math:`Y_0`, where no row is at its limit, is feasible; unless
    :math:`Y_0 = 0`, that costs little.

    Returns
    -------
    bound : array (P,)
        The best that the new multipliers prove: `plain`, or the point on that way.
    alone : mask (P,)
        The problems of which none are known.
    """
    if s.inside is None:
        return plain, np.ones(len(plain), dtype=bool)
    known = _knows_inside(s.problem, s.inside)
    Y = _scaled(s.rho, s.HtU, moves.UT, moves.UU)
    best = _or_from_inside(s.problem, s.inside, *Y, plain)
    s.bound = np.maximum(s.bound, best)
    s.scale = np.where(known, 1.0, s.scale)
    return best, ~known


def _or_from_inside(
    problem: Problem, inside: Inside, HtY: Array, YT: Array, YY: Array, plain: Array
) -> Array:
    """Bound by `plain`, or by the last feasible point on the way from `inside` to Y."""
    share = problem.farthest_within(inside.HtY, HtY)
    value = -YT - 0.5 * problem.curvature * YY
    between = (1.0 - share) * inside.value + share * value  # or more: values are concave
    return np.where(_knows_inside(problem, inside), np.maximum(plain, between), plain)


def _knows_inside(problem: Problem, inside: Inside) -> Mask:
    return np.asarray((problem.l2 == 0) & (inside.value > 0))


def _correct_bound(
    s: Iterate, moves: Moves, plain: Array, rows: Rows, factor: Factor, wanted: Mask
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
    HtU = s.HtU[:, which] if moves.exact else rows.pull(which)
    A = factor.solve(shift, rho[:, None] * HtU + sigma_V)
    reach, YY = rows.corrected(A, which, problem, rho)
    shrink = 1.0 / np.maximum(reach, 1.0)
    HtT = np.broadcast_to(rows.HtT[:, None], A.shape)
    YT = rho * moves.UT[which] - np.einsum("lpm,lpm->p", A, HtT)
    bound, scale = problem.dual_values(
        shrink[:, None] * (shift[:, None] * A - sigma_V), shrink * YT, shrink**2 * YY
    )
    better = bound > plain[which]
    s.bound[which] = np.maximum(s.bound[which], bound)
    if not moves.exact:  # and this one is summed over the rows
        s.summed = s.summed.copy()
        s.summed[which] = np.maximum(s.summed[which], bound)
    s.scale[which] = np.where(better, scale * shrink, s.scale[which])
    s.correction = np.zeros_like(s.B)
    s.correction[:, which[better]] = A[:, better]


def residuals_small(
    s: Iterate, moves: Moves | None, rows: Rows, eps_abs: float, eps_rel: float
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
    if moves is not None:
        primal = primal + moves.primal
        dual = dual + s.rho[:, None] * s.HtE_change
        weights = weights + moves.hidden
        multipliers = multipliers + s.rho[:, None] * s.HtU
        sizes += [moves.error, np.full_like(primal, rows.TT())]
    largest = np.sqrt(np.max([*sizes, weights], axis=0))
    absolute = np.sqrt(s.B.shape[0] * s.B.shape[2]) * eps_abs
    small_primal = np.sqrt(primal) < absolute + eps_rel * largest
    small_dual = np.sqrt(squares(dual)) < absolute + eps_rel * np.sqrt(squares(multipliers))
    return np.asarray(small_primal & small_dual)


def residuals(s: Iterate, moves: Moves | None) -> tuple[Array, Array]:
    """Norms of (HB - T - E, B - Z) and of (rho (E - E_old), sigma (Z - Z_old)), shape (P,)."""
    primal: Array = np.zeros(len(s.rho))
    dual: Array = np.zeros(len(s.rho))
    if moves is not None:
        primal, dual = moves.primal, (s.rho * np.sqrt(moves.error_change)) ** 2
    if s.sigma is not None:
        primal = primal + squares(s.B - s.Z)
        dual = dual + squares(s.sigma[:, None] * s.Z_change)
    return np.sqrt(primal), np.sqrt(dual)


def squares(A: Array) -> Array:
    """Squared norm of every problem's part of A (L, P, m)."""
    return np.asarray(np.einsum("lpm,lpm->p", A, A))
