"""Where runs begin: at nothing, where others ended, or where they stood with fewer nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gorelm.factor import Factor
from gorelm.iterate import Iterate, Live, Mixture, State
from gorelm.problem import Problem
from gorelm.prox import Array
from gorelm.rows import Moves, Rows
from gorelm.settings import Settings

__all__ = ["Starts"]

# Starting penalties in natural units: chosen for fewest iterations to a gap of 1e-3, mostly on the
# six sets of benchmarks/solver.py (1.5 to 2.25 for the first differed by 6 %; other sets confirm
# the choice, see README).
RHO_START = 1.75
SIGMA_START = 4.0
OUTLIER_CAP = 10.0


class Starts:
    """Makes the first iterate of a run, and what is known of it.

    Parameters
    ----------
    rows, factor, settings, direct
        As for `gorelm.admm.solve`.
    """

    def __init__(self, rows: Rows, factor: Factor, settings: Settings, direct: bool) -> None:
        self.rows, self.factor, self.settings, self.direct = rows, factor, settings, direct

    def from_nothing(self, problem: Problem) -> Iterate:
        """Begin with weights of 0."""
        return self._iterate(problem, None)

    def near(self, problem: Problem, start: State) -> tuple[Iterate, Moves | None]:
        """Begin with given weights and multipliers; the rest of the iterate follows from them."""
        s, moves = self._iterate(problem, start), None
        s.B, s.inside = start.coef, start.inside
        if start.bound is not None:
            s.bound = np.array(start.bound, dtype=float)
            s.summed = s.bound
        if self.direct:
            HtY = s.problem.tau[:, None] * self.rows.residual_sums(s.B)[0]
        else:
            s.rho = start.rho.copy()
            GB = self.factor.times(s.B)
            HtE = None if GB is None else GB - self.rows.HtT[:, None]
            s.HtD, s.HtU, moves = self.rows.resume(s.B, start.dual, s.problem, s.rho, s.cap, HtE)
            HtY = s.rho[:, None] * s.HtU
        if s.sigma is not None:
            s.sigma = np.where(np.isnan(start.sigma), s.sigma, start.sigma)
            s.Z = s.B
            s.V = s.problem.penalty_slopes(s.B, -HtY) / s.sigma[:, None]
        return s, moves

    def go_on(self, problem: Problem, live: Live, *, polished: bool) -> tuple[Iterate, Moves]:
        """Take a run up again, with weights of 0 for the nodes that are new to it."""
        s, moves = live.iterate, live.moves
        self.rows.E, self.rows.U = live.E, live.U
        n_hidden, known = self.rows.shape[1], len(s.HtD)
        HtD, HtU = self.rows.products(known)
        names = ("B", "Z", "V", "Z_change", "HtE_change")
        new: dict[str, Any] = {name: _padded(getattr(s, name), n_hidden) for name in names}
        s = replace(
            s,
            **new,
            problem=problem,
            index=np.arange(1),
            HtD=np.concatenate([s.HtD, HtD]),
            HtU=np.concatenate([s.HtU, HtU]),
            bound=np.full(1, -np.inf),  # a larger network may do better than the last bound
            summed=np.full(1, -np.inf),
            scale=np.ones(1),
            mixture=Mixture.empty(new["B"]),
            polished=np.zeros(1, dtype=bool),
            objective=s.objective if known == n_hidden else np.full(1, np.nan),
            correction=None,
            answer_is_Z=s.answer_is_Z and not polished,
        )
        if s.sigma is not None and self.settings.rho is None:
            slopes = problem.penalty_slopes(s.Z, -s.rho[:, None] * s.HtU)
            s.V[known:] = slopes[known:] / s.sigma[:, None]
        return s, moves

    def _iterate(self, problem: Problem, start: State | None) -> Iterate:
        _, n_hidden, n_targets = self.rows.shape
        split = problem.is_sparse or self.settings.always_split
        # What a resumed run takes from elsewhere need not be made.
        resumed = start is not None and not (split and np.isnan(start.sigma).any())
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
            HtD = zeros if resumed else self.rows.start(problem, cap)
        sigma = np.full(count, fixed or np.nan) if split else None
        if split and fixed is None and not resumed:
            sigma = self._sigma(problem, rho, HtD)
        return Iterate(
            problem=problem,
            index=np.arange(count),
            HtD=HtD,
            HtU=zeros,
            HtE_change=zeros,
            rho=rho,
            shift=rho,
            sigma=sigma,
            B=zeros,
            Z=zeros,
            V=zeros,
            Z_change=zeros,
            cap=np.full(count, cap),
            bound=np.full(count, -np.inf),
            summed=np.full(count, -np.inf),
            scale=np.ones(count),
            mixture=Mixture.empty(zeros),
            objective=np.full(count, np.nan),
            polished=np.zeros(count, dtype=bool),
            # B is ahead of Z where a run begins near its end, and the residuals are split.
            answer_is_Z=start is None or self.settings.always_split or self.direct,
        )

    def _sigma(self, problem: Problem, rho: Array, HtD: Array) -> Array:
        """Make the threshold l1 / sigma a fraction of a ridge fit's typical weight."""
        ridge = self.factor.solve((problem.l1 + problem.l2) / rho, self.rows.HtT[:, None] + HtD)
        cells = len(ridge) * (1 if problem.grouped else ridge.shape[2])
        typical = np.sqrt(np.einsum("lpm,lpm->p", ridge, ridge) / cells)
        usable = (typical > 0) & (problem.l1 > 0)
        return np.where(usable, SIGMA_START * problem.l1 / np.where(usable, typical, 1.0), rho)


def _padded(A: Array, n_hidden: int) -> Array:
    """Put zeros for the nodes that are new under A."""
    return np.concatenate([A, np.zeros((n_hidden - len(A), *A.shape[1:]))])
