r"""The one ADMM loop. Every iterative fit of the library runs through `solve`.

Letters, as in the paper (shapes for P problems of m targets, N rows, L nodes):

====  =========  ==================================================================
B     (L, P, m)  output weights
E     (N, P, m)  residual split, E = HB - T                        (lives in `rows`)
Z     (L, P, m)  copy of B that carries the sparse penalty, Z = B
U, V             scaled multipliers of the two splits (U lives in `rows`)
====  =========  ==================================================================

One iteration, with penalties :math:`\rho` of the residual split and :math:`\sigma` of the weight
split:

1. :math:`B \leftarrow (H'H + sI)^{-1}[H'(T + E - U) + \tfrac{\sigma}{\rho}(Z - V)]`,
   :math:`s = (l_2 + \sigma)/\rho`
2. :math:`Z \leftarrow \mathrm{prox}(B + V)`, :math:`V \leftarrow V + B - Z`
3. :math:`E \leftarrow \mathrm{prox}(HB - T + U)`, :math:`U \leftarrow U + HB - T - E`

The paper has one penalty for both splits (:math:`\rho = \sigma = 1`). Residuals and weights are not
of one size, so the adaptive configuration gives each split its own. A split that does nothing is
left out: Z and V without a sparse penalty (:math:`s = l_2/\rho`), E and U for the squared loss
(:math:`\rho = \tau` exactly).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gorelm.factor import Factor
from gorelm.problem import Problem
from gorelm.prox import Array
from gorelm.rows import Moves, Rows

__all__ = ["ADAPTIVE", "PAPER", "Record", "Settings", "Solution", "solve"]


@dataclass(frozen=True)
class Settings:
    """How the loop runs. The defaults are the adaptive configuration; see also `PAPER`.

    Parameters
    ----------
    rho : float or None
        Penalty of both splits, fixed. None: from the data, adapted while running.
    relax : float
        Over-relaxation in [1, 2); 1 is none.
    always_split : bool
        Keep Z and V even where they do nothing.
    stop : {"gap", "residuals", "never"}
        Stop at a relative duality gap of `tol`, by the paper's primal and dual residuals, or only
        at `max_iter`.
    tol, eps_abs, eps_rel : float
        Tolerances of the two rules.
    max_iter : int
        Most iterations.
    """

    rho: float | None = None
    relax: float = 1.6
    always_split: bool = False
    stop: Literal["gap", "residuals", "never"] = "gap"
    tol: float = 1e-3
    eps_abs: float = 1e-3
    eps_rel: float = 1e-2
    max_iter: int = 5000


ADAPTIVE = Settings()
PAPER = Settings(rho=1.0, relax=1.0, always_split=True, stop="residuals", max_iter=1000)

# Starting penalties in natural units, and when and how far they are adapted: chosen for fewest
# iterations to a gap of 1e-3, mostly on the six sets of benchmarks/solver.py (1.5 to 2.25 for the
# first differed by 6 %; other sets confirm the choice, see README).
RHO_START = 1.75
SIGMA_START = 4.0
FIRST_ADAPTATION = 40
WORTHWHILE = 2.0
LARGEST_CHANGE = 4.0
OUTLIER_CAP = 10.0

Record = dict[str, float]
Mask = npt.NDArray[Any]


@dataclass
class Solution:
    """What `solve` found for each of the P problems (lists and last axes run over problems)."""

    coef: Array  # (L, P, m)
    n_iter: list[int]
    status: list[str]  # "converged", "max_iter" or "stopped" (by the callback)
    objective: list[float]
    # (objective - lower bound) / objective, where no row counts for more than OUTLIER_CAP times
    # the typical residual of the empty model in the denominator: beside one row that is off by
    # 1e9, a thousandth of the objective would be no accuracy at all.
    dual_gap: list[float]
    history: list[list[Record]] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)  # proven lower bound of each optimum
    end: State | None = None  # where the run ended, if asked for


@dataclass
class State:
    """What a run leaves behind and another may start from."""

    coef: Array  # (L, P, m)
    dual: Array  # (N, P, m), multipliers of the residuals; empty without a residual split
    rho: Array  # (P,)
    sigma: Array  # (P,), NaN without a weight split
    # Lower bounds on the optima of the problems to start, where the caller can prove some.
    bound: Array | None = None

    @classmethod
    def mix(cls, one: State, other: State, share: Array) -> State:
        """Return the states between two, `share` (P,) of the way from `one` to `other`."""
        near, far = (1.0 - share)[:, None], share[:, None]
        return cls(
            near * one.coef + far * other.coef,
            near * one.dual + far * other.dual,
            np.sqrt(one.rho * other.rho),
            np.sqrt(one.sigma * other.sigma),
        )

    @classmethod
    def join(cls, states: Sequence[State]) -> State:
        """Return the states of several batches as those of one."""
        return cls(
            np.concatenate([s.coef for s in states], axis=1),
            np.concatenate([s.dual for s in states], axis=1),
            np.concatenate([s.rho for s in states]),
            np.concatenate([s.sigma for s in states]),
        )

    def take(self, which: Mask) -> State:
        """Return the states of the problems that `which` (mask or indices) names."""
        return State(self.coef[:, which], self.dual[:, which], self.rho[which], self.sigma[which])


@dataclass
class _State:
    """The L-sized half of the iterate, for the problems still running."""

    problem: Problem
    index: Mask  # which of the P problems these are
    HtD: Array  # H'(E - U)
    rho: Array
    sigma: Array | None  # None: no weight split
    B: Array
    Z: Array
    V: Array
    Z_change: Array
    cap: Array  # largest residual norm that counts in the size of the objective
    bound: Array  # best lower bound on each optimum so far
    scale: Array  # the last bound is that of the multipliers scale (rho U - H correction)
    correction: Array | None = None  # None: 0

    @property
    def answer(self) -> Array:
        """The weights to return: Z, whose empty rows are exactly zero, where there is a Z."""
        return self.B if self.sigma is None else self.Z

    def keep(self, which: Mask) -> None:
        self.problem = self.problem.select(which)
        for name in ("index", "rho", "cap", "bound", "scale"):
            setattr(self, name, getattr(self, name)[which])
        if self.sigma is not None:
            self.sigma = self.sigma[which]
        for name in ("HtD", "B", "Z", "V", "Z_change"):
            setattr(self, name, getattr(self, name)[:, which])
        if self.correction is not None:
            self.correction = self.correction[:, which]


def solve(
    rows: Rows,
    factor: Factor,
    problem: Problem,
    settings: Settings = ADAPTIVE,
    callback: Callable[[Record], Any] | None = None,
    *,
    direct: bool = False,
    start: State | None = None,
    keep_state: bool = False,
) -> Solution:
    """Minimise `problem` over the weights of the rows' hidden outputs.

    Parameters
    ----------
    rows : Rows
        Owner of H, T, E and U.
    factor : Factor
        Solves (H'H + s I) X = R for the same H.
    problem : Problem
        One problem or a batch of P.
    settings : Settings
        `ADAPTIVE`, `PAPER`, or your own.
    callback : callable, optional
        Called with each new record of the history; a true return value stops the fit.
    direct : bool, default=False
        For the squared loss with every target cell known: leave out E and U.
    start : State, optional
        Begin where other problems (of the same rows) ended.
    keep_state : bool, default=False
        Return the end of the run with the solution.
    """
    run = _Run(rows, factor, settings, direct, callback)
    return run.solve(problem, start, keep_state=keep_state)


class _Run:
    def __init__(
        self,
        rows: Rows,
        factor: Factor,
        settings: Settings,
        direct: bool,
        callback: Callable[[Record], Any] | None,
    ) -> None:
        self.rows, self.factor, self.settings, self.direct = rows, factor, settings, direct
        self.callback = callback
        self.HtT = rows.HtT()[:, None]

    def solve(self, problem: Problem, start: State | None, *, keep_state: bool) -> Solution:
        settings, n_problems = self.settings, problem.n_problems
        state, moves = self._start(problem), None
        if start is not None:
            moves = self._resume(state, start)
        solution = Solution(
            np.zeros_like(state.B),
            [0] * n_problems,
            ["max_iter"] * n_problems,
            [np.nan] * n_problems,
            [np.nan] * n_problems,
            [[] for _ in range(n_problems)],
            [-np.inf] * n_problems,
            self._empty_state(n_problems) if keep_state else None,
        )
        if moves is not None or (self.direct and start is not None):
            done = self._certify(state, moves, 0, solution) <= settings.tol
            stopped = self._report(state, solution)
            self._settle(state, solution, 0, done, stopped, False)
        next_adaptation = FIRST_ADAPTATION
        for iteration in range(1, settings.max_iter + 1):
            last = iteration == settings.max_iter
            check = last or _is_check(iteration)
            if not len(state.index):
                break
            by_residuals = settings.stop == "residuals"
            self._update_weights(state)
            moves = self._update_rows(state, changes=by_residuals, certify=check)
            done = (
                self._residuals_small(state, moves)
                if by_residuals
                else np.zeros(len(state.rho), bool)
            )
            if check or done.any():
                gap = self._certify(state, moves, iteration, solution)
                if settings.stop == "gap":
                    done = gap <= settings.tol
                if settings.rho is None and iteration >= next_adaptation:
                    # Ever rarer changes: ADMM converges once its penalties stand still.
                    next_adaptation = 2 * iteration
                    self._adapt(state, moves)
                stopped = self._report(state, solution)
                self._settle(state, solution, iteration, done, stopped, last)
                if not len(state.index):
                    break
        return solution

    # -- the three steps -------------------------------------------------------------------------

    def _start(self, problem: Problem) -> _State:
        _, n_hidden, n_targets = self.rows.shape
        count, fixed = problem.n_problems, self.settings.rho
        zeros = np.zeros((n_hidden, count, n_targets))
        HtD: Array = zeros
        # rho has the units of tau divided by a residual, or of tau itself for the squared loss.
        squared = problem.loss == "squared"
        typical = 1.0 if squared else self.rows.typical_residual(problem)
        cap = np.inf if squared else OUTLIER_CAP * typical
        if self.direct:
            rho = problem.tau.copy()
        elif fixed is not None:
            rho = np.full(count, fixed)
            HtD = self.rows.start(problem)
        else:
            rho = RHO_START * problem.tau / typical
            HtD = self.rows.start(problem, cap)
        sigma = None
        if problem.is_sparse or self.settings.always_split:
            sigma = np.full(count, fixed) if fixed else self._sigma(problem, rho, HtD)
        return _State(
            problem=problem,
            index=np.arange(count),
            HtD=HtD,
            rho=rho,
            sigma=sigma,
            B=zeros,
            Z=zeros,
            V=zeros,
            Z_change=zeros,
            cap=np.full(count, cap),
            bound=np.full(count, -np.inf),
            scale=np.ones(count),
        )

    def _resume(self, s: _State, start: State) -> Moves | None:
        """Go to given weights and multipliers; the other half of the state follows from them."""
        s.B, moves = start.coef, None
        if start.bound is not None:
            s.bound = np.array(start.bound, dtype=float)
        if self.direct:
            HtY = s.problem.tau[:, None] * self.rows.residual_sums(s.B)[0]
        else:
            s.rho = start.rho.copy()
            s.HtD, moves = self.rows.resume(s.B, start.dual, s.problem, s.rho, s.cap)
            HtY = s.rho[:, None] * moves.HtU
        if s.sigma is not None:
            s.sigma = np.where(np.isnan(start.sigma), s.sigma, start.sigma)
            s.Z = s.B
            s.V = s.problem.penalty_slopes(s.B, -HtY) / s.sigma[:, None]
        return moves

    def _empty_state(self, count: int) -> State:
        n_rows, n_hidden, n_targets = self.rows.shape
        return State(
            np.zeros((n_hidden, count, n_targets)),
            np.zeros((0 if self.direct else n_rows, count, n_targets), dtype=self.rows.dtype),
            np.zeros(count),
            np.full(count, np.nan),
        )

    def _sigma(self, problem: Problem, rho: Array, HtD: Array) -> Array:
        """Make the threshold l1 / sigma a fraction of a ridge fit's typical weight."""
        ridge = self.factor.solve((problem.l1 + problem.l2) / rho, self.HtT + HtD)
        cells = len(ridge) * (1 if problem.grouped else ridge.shape[2])
        typical = np.sqrt(np.einsum("lpm,lpm->p", ridge, ridge) / cells)
        usable = (typical > 0) & (problem.l1 > 0)
        return np.where(usable, SIGMA_START * problem.l1 / np.where(usable, typical, 1.0), rho)

    def _update_weights(self, s: _State) -> None:
        right = self.HtT + s.HtD
        if s.sigma is None:
            s.B = self.factor.solve(s.problem.l2 / s.rho, right)
            return
        right = right + (s.sigma / s.rho)[:, None] * (s.Z - s.V)
        s.B = self.factor.solve((s.problem.l2 + s.sigma) / s.rho, right)
        relax = self.settings.relax
        target = relax * s.B + (1.0 - relax) * s.Z + s.V
        Z = s.problem.penalty_prox(target, s.sigma)
        s.Z_change, s.Z, s.V = Z - s.Z, Z, target - Z

    def _update_rows(self, s: _State, *, changes: bool, certify: bool) -> Moves | None:
        if self.direct:
            return None
        s.HtD, moves = self.rows.step(
            s.B,
            s.problem,
            s.rho,
            self.settings.relax,
            loss_at=s.answer if certify else None,
            cap=s.cap,
            changes=changes,
        )
        return moves

    # -- stopping --------------------------------------------------------------------------------

    def _certify(self, s: _State, moves: Moves | None, iteration: int, solution: Solution) -> Array:
        if moves is None:  # squared loss: the residual itself is the dual point
            (HtY, YT, YY), scale = self.rows.residual_sums(s.answer), s.problem.tau
            loss = capped = 0.5 * scale * YY
        else:
            HtY, YT, YY, scale = moves.HtU, moves.UT, moves.UU, s.rho
            loss, capped = (
                self.rows.loss(s.answer, s.problem, s.cap) if moves.loss is None else moves.loss
            )
        penalty = s.problem.penalty_values(s.answer)
        objective = loss + penalty
        bound, s.scale = s.problem.dual_values(
            scale[:, None] * HtY, scale * YT, (scale * np.sqrt(YY)) ** 2
        )
        s.bound = np.maximum(s.bound, bound)
        if moves is not None and s.sigma is not None and self.rows.complete:
            self._correct_bound(s, moves, bound)
        size = np.maximum(capped + penalty, np.maximum(1e-9 * objective, np.finfo(float).tiny))
        gap = np.maximum(objective - s.bound, 0.0) / size
        primal, dual = _residuals(s, moves)
        for i, p in enumerate(s.index):
            solution.objective[p], solution.dual_gap[p] = float(objective[i]), float(gap[i])
            solution.bound[p] = float(s.bound[i])
            solution.history[p].append(
                {
                    "iteration": float(iteration),
                    "objective": float(objective[i]),
                    "dual_gap": float(gap[i]),
                    "primal_residual": float(primal[i]),
                    "dual_residual": float(dual[i]),
                    "rho": float(s.rho[i]),
                    "sigma": float(s.sigma[i]) if s.sigma is not None else float("nan"),
                }
            )
        return np.asarray(gap)

    def _correct_bound(self, s: _State, moves: Moves, plain: Array) -> None:
        r"""Improve the bounds of problems without ridge (:math:`l_2 = 0`).

        Theirs hold only while no row of H'Y is longer than :math:`l_1`, and to scale Y until that
        is so costs most of the bound. But :math:`\sigma V` obeys that limit and H'Y only lags
        behind :math:`-\sigma V`: with :math:`(H'H + sI) A = H'Y + \sigma V`,

        .. math:: H'(Y - HA) = -\sigma V + s A

        is as good as within it, at the price of leaving the loss's dual ball a little.
        """
        (which,) = np.nonzero(s.problem.l2 == 0)
        if not len(which) or s.sigma is None:
            return
        problem, rho = s.problem.select(which), s.rho[which]
        sigma_V = s.sigma[which][:, None] * s.V[:, which]
        shift = s.sigma[which] / rho
        A = self.factor.solve(shift, rho[:, None] * moves.HtU[:, which] + sigma_V)
        reach, squares = self.rows.corrected(A, which, problem, rho)
        shrink = 1.0 / np.maximum(reach, 1.0)
        YT = rho * moves.UT[which] - np.einsum("lpm,lpm->p", A, np.broadcast_to(self.HtT, A.shape))
        bound, scale = problem.dual_values(
            shrink[:, None] * (shift[:, None] * A - sigma_V), shrink * YT, shrink**2 * squares
        )
        better = bound > plain[which]
        s.bound[which] = np.maximum(s.bound[which], bound)
        s.scale[which] = np.where(better, scale * shrink, s.scale[which])
        s.correction = np.zeros_like(s.B)
        s.correction[:, which[better]] = A[:, better]

    def _residuals_small(self, s: _State, moves: Moves | None) -> Mask:
        """Apply the paper's stopping rule."""
        # The constraint's terms E; (HB, B); Z; T, each with its own norm.
        primal = weights = np.zeros(len(s.rho))
        dual = multipliers = np.zeros((1, len(s.rho), 1))
        sizes: list[Array] = []
        if s.sigma is not None:
            primal = primal + _squares(s.B - s.Z)
            dual = dual + s.sigma[:, None] * s.Z_change
            weights = weights + _squares(s.B)
            multipliers = multipliers + s.sigma[:, None] * s.V
            sizes.append(_squares(s.Z))
        if moves is not None:
            primal = primal + moves.primal
            dual = dual + s.rho[:, None] * moves.Ht_error_change
            weights = weights + moves.hidden
            multipliers = multipliers + s.rho[:, None] * moves.HtU
            sizes += [moves.error, np.full_like(primal, self.rows.TT())]
        largest = np.sqrt(np.max([*sizes, weights], axis=0))
        absolute = np.sqrt(s.B.shape[0] * s.B.shape[2]) * self.settings.eps_abs
        relative = self.settings.eps_rel
        small_primal = np.sqrt(primal) < absolute + relative * largest
        small_dual = np.sqrt(_squares(dual)) < absolute + relative * np.sqrt(_squares(multipliers))
        return np.asarray(small_primal & small_dual)

    def _report(self, s: _State, solution: Solution) -> bool:
        if self.callback is None:
            return False
        answers = [self.callback(self._record(solution, p)) for p in s.index]
        return any(answers)

    def _record(self, solution: Solution, p: int) -> Record:
        record = dict(solution.history[p][-1])
        return record if len(solution.history) == 1 else {**record, "problem": float(p)}

    def _settle(
        self,
        s: _State,
        solution: Solution,
        iteration: int,
        done: Mask,
        stopped: bool,
        last: bool,
    ) -> None:
        """Write down the answers of the problems that leave the batch, and let them leave."""
        lost = ~np.isfinite([solution.objective[p] for p in s.index])  # no iterate will mend it
        leaving = np.full_like(done, True) if last or stopped else done | lost
        for i in np.flatnonzero(leaving):
            p = s.index[i]
            solution.coef[:, p] = s.answer[:, i]
            solution.n_iter[p] = iteration
            solution.status[p] = "converged" if done[i] else "stopped" if stopped else "max_iter"
        if solution.end is not None and leaving.any():
            out, end = s.index[leaving], solution.end
            end.coef[:, out], end.rho[out] = s.answer[:, leaving], s.rho[leaving]
            if s.sigma is not None:
                end.sigma[out] = s.sigma[leaving]
            if not self.direct:
                # Feasible ones (of the last bound), and so is what lies between two of them.
                end.dual[:, out] = self.rows.dual(leaving, s.rho, s.scale, s.correction)
        if leaving.all():
            s.index = s.index[:0]
        elif leaving.any():
            s.keep(~leaving)
            if not self.direct:
                self.rows.keep(~leaving)

    # -- penalties -------------------------------------------------------------------------------

    def _adapt(self, s: _State, moves: Moves | None) -> None:
        """Balance how fast each split and its multiplier move, relative to their sizes."""
        if moves is not None:
            factor = _balance(
                moves.primal,
                moves.size,
                moves.error_change,
                moves.UU,
            )
            HtE = s.HtD + moves.HtU
            s.HtD = HtE - moves.HtU / factor[:, None]
            s.rho = s.rho * factor
            self.rows.rescale(factor)
        if s.sigma is not None:
            factor = _balance(
                _squares(s.B - s.Z),
                np.maximum(_squares(s.Z), _squares(s.B)),
                _squares(s.Z_change),
                _squares(s.V),
            )
            s.sigma = s.sigma * factor
            s.V = s.V / factor[:, None]


def _is_check(iteration: int) -> bool:
    """Every fifth iteration is checked while most fits end, later every tenth."""
    return iteration % (5 if iteration <= 40 else 10) == 0


def _residuals(s: _State, moves: Moves | None) -> tuple[Array, Array]:
    """Norms of (HB - T - E, B - Z) and of (rho (E - E_old), sigma (Z - Z_old)), shape (P,)."""
    primal: Array = np.zeros(len(s.rho))
    dual: Array = np.zeros(len(s.rho))
    if moves is not None:
        primal, dual = moves.primal, (s.rho * np.sqrt(moves.error_change)) ** 2
    if s.sigma is not None:
        primal = primal + _squares(s.B - s.Z)
        dual = dual + _squares(s.sigma[:, None] * s.Z_change)
    return np.sqrt(primal), np.sqrt(dual)


def _squares(A: Array) -> Array:
    return np.asarray(np.einsum("lpm,lpm->p", A, A))


def _balance(primal: Array, size: Array, change: Array, multiplier: Array) -> Array:
    """Factor for a penalty: (relative primal residual / relative dual residual)^(1/2).

    Arguments are squared norms. Small factors are not worth a new factorisation, large ones are
    held back, and a split that has come to rest says nothing.
    """
    moving = (primal > 0) & (size > 0) & (multiplier > 0) & (change > 1e-18 * multiplier)
    relative_primal = np.where(moving, primal, 1.0) / np.where(moving, size, 1.0)
    relative_dual = np.where(moving, change, 1.0) / np.where(moving, multiplier, 1.0)
    ratio = relative_primal / relative_dual
    factor = np.clip(ratio**0.25, 1 / LARGEST_CHANGE, LARGEST_CHANGE)
    return np.where((factor > WORTHWHILE) | (factor < 1 / WORTHWHILE), factor, 1.0)
