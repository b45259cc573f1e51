"""The states of an ADMM run: its iterate, what it returns, what another run can start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gorelm._solver.problem import Problem
from gorelm._solver.rows import StepSums, Which
from gorelm._typing import Array, Indices, Mask, Record


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
    end: WarmStart | None = None  # what other problems can start from, if asked for
    checkpoint: Checkpoint | None = None  # what the run can be continued from, if asked for

    def note(self, p: int, record: Record, bound: float) -> None:
        """Write down how far problem p has come."""
        self.objective[p], self.dual_gap[p] = record["objective"], record["dual_gap"]
        self.bound[p] = float(bound)

    @classmethod
    def empty(cls, like: Array) -> Solution:
        """Return weights of 0, shaped like `like`, of which nothing is known."""
        count = like.shape[1]
        return cls(
            np.zeros_like(like),
            [0] * count,
            ["max_iter"] * count,
            [np.nan] * count,
            [np.nan] * count,
            [[] for _ in range(count)],
            [-np.inf] * count,
        )

    @classmethod
    def exact(cls, coef: Array, objective: Array) -> Solution:
        """Return closed-form weights (L, P, m), whose gap is that of rounding."""
        count = coef.shape[1]
        values = objective.tolist()
        return cls(
            np.asarray(coef, dtype=np.float64),
            [1] * count,
            ["converged"] * count,
            values,
            [0.0] * count,
            [[] for _ in range(count)],
            values,
        )


@dataclass
class WarmStart:
    """Weights and multipliers of P problems, for other problems on the same rows to start from."""

    coef: Array  # (L, P, m)
    dual: Array  # (N, P, m), multipliers of the residuals; empty without a residual split
    rho: Array  # (P,)
    sigma: Array  # (P,), NaN without a weight split
    # Lower bounds on the optima of the problems to start, where the caller can prove some.
    bound: Array | None = None
    feasible: StrictlyFeasible | None = None  # for problems without ridge, where some is known

    @classmethod
    def mix(
        cls, one: WarmStart, other: WarmStart, coef_share: Array, dual_share: Array
    ) -> WarmStart:
        """Return the states between two, shares (P,) of the way from `one` to `other`."""
        c, d = coef_share[:, None], dual_share[:, None]
        return cls(
            (1.0 - c) * one.coef + c * other.coef,
            (1.0 - d) * one.dual + d * other.dual,
            np.sqrt(one.rho * other.rho),
            np.sqrt(one.sigma * other.sigma),
        )

    @classmethod
    def join(cls, states: Sequence[WarmStart]) -> WarmStart:
        """Return the states of several batches as those of one."""
        return cls(
            np.concatenate([s.coef for s in states], axis=1),
            np.concatenate([s.dual for s in states], axis=1),
            np.concatenate([s.rho for s in states]),
            np.concatenate([s.sigma for s in states]),
            np.concatenate([_or_nothing(s.bound, len(s.rho)) for s in states]),
            StrictlyFeasible.join([s.feasible or StrictlyFeasible.empty(s.coef) for s in states]),
        )

    def take(self, which: Which) -> WarmStart:
        """Return the states of the problems that `which` (mask or indices) names."""
        return WarmStart(
            self.coef[:, which],
            self.dual[:, which],
            self.rho[which],
            self.sigma[which],
            None if self.bound is None else self.bound[which],
            None if self.feasible is None else self.feasible.take(which),
        )

    def part(self, nodes: Indices) -> WarmStart:
        """Return the states with some nodes alone."""
        feasible = self.feasible
        if feasible is not None:
            feasible = StrictlyFeasible(feasible.HtY[nodes], feasible.value)
        return replace(self, coef=self.coef[nodes], feasible=feasible)

    def put(self, p: int, nodes: Indices, one: WarmStart) -> None:
        """Set the state of problem p to `one`, which has `nodes` alone; others have weight 0."""
        self.coef[nodes, p] = one.coef[:, 0]
        self.dual[:, p], self.rho[p], self.sigma[p] = one.dual[:, 0], one.rho[0], one.sigma[0]


def _or_nothing(bound: Array | None, count: int) -> Array:
    return np.full(count, -np.inf) if bound is None else bound


@dataclass
class StrictlyFeasible:
    """Sums over multipliers Y that are strictly feasible (every row of H'Y is shorter than l1)."""

    HtY: Array  # (L, P, m)
    value: Array  # (P,), the dual value of Y; 0 where Y = 0 is all that is known

    @classmethod
    def empty(cls, like: Array) -> StrictlyFeasible:
        """Return Y = 0, for weights like `like`."""
        return cls(np.zeros_like(like), np.zeros(like.shape[1]))

    @classmethod
    def join(cls, parts: Sequence[StrictlyFeasible]) -> StrictlyFeasible:
        """Return those of several batches as those of one."""
        return cls(
            np.concatenate([part.HtY for part in parts], axis=1),
            np.concatenate([part.value for part in parts]),
        )

    def take(self, which: Which) -> StrictlyFeasible:
        """Return those of some problems."""
        return StrictlyFeasible(self.HtY[:, which], self.value[which])


_OF_PROBLEMS = ["index", "rho", "shift", "cap", "bound", "summed", "scale", "objective", "polished"]
_MOVED = ("HtD", "HtU", "HtE_change", "rho", "shift", "B")


@dataclass
class Iterate:
    """The L-sized half of the iterate, for the problems still running."""

    problem: Problem
    index: Indices  # which of the P problems these are
    HtD: Array  # H'(E - U)
    HtU: Array  # H'U
    HtE_change: Array  # H'(E - E_old), followed for the paper's rule only
    rho: Array
    shift: Array  # of the linear systems that rho and sigma make
    sigma: Array | None  # None: no weight split
    B: Array
    Z: Array
    V: Array
    Z_change: Array
    cap: Array  # largest residual norm that counts in the size of the objective
    bound: Array  # best lower bound on each optimum so far
    summed: Array  # the best of these whose multipliers were summed up over the rows
    # The last bound is that of the multipliers scale (rho U - H correction), or, for problems that
    # have some feasible, of a point on the way to them.
    scale: Array
    objective: Array  # of B, when last looked at
    polished: Mask  # whether the best bound is that of polished multipliers
    correction: Array | None = None  # None: 0
    feasible: StrictlyFeasible | None = None
    answer_is_Z: bool = False

    @property
    def answer(self) -> Array:
        """The weights to return: Z, or B without the nodes (or cells) that Z has emptied."""
        if self.sigma is None:
            return self.B
        if self.answer_is_Z:
            return self.Z
        return np.asarray(self.B * self.full)

    @property
    def full(self) -> Mask:
        """Which nodes (L, P, 1) or cells (L, P, m) Z has not emptied."""
        full = self.Z.any(axis=2, keepdims=True) if self.problem.grouped else self.Z != 0
        return np.asarray(full)

    @property
    def moved(self) -> tuple[str, ...]:
        """What a step works on."""
        return _MOVED if self.sigma is None else (*_MOVED, "sigma", "Z", "V", "Z_change")

    def move(self, to: Callable[[list[Array]], list[Array]]) -> Callable[[], bool]:
        """Bring what a step works on to where `to` brings arrays.

        Returns a function that restores the former arrays, if none of the new ones has been
        replaced since, and returns whether that is so.
        """
        before = {name: getattr(self, name) for name in self.moved}
        after = dict(zip(before, to(list(before.values())), strict=True))
        for name, there in after.items():
            setattr(self, name, there)

        def move_back() -> bool:
            same = all(getattr(self, name) is there for name, there in after.items())
            for name, there in before.items() if same else ():
                setattr(self, name, there)
            return same

        return move_back

    def keep(self, which: Which) -> None:
        """Drop the problems that `which` does not name."""
        self.problem = self.problem.select(which)
        for name in _OF_PROBLEMS:
            setattr(self, name, getattr(self, name)[which])
        if self.sigma is not None:
            self.sigma = self.sigma[which]
        for name in ("HtD", "HtU", "HtE_change", "B", "Z", "V", "Z_change"):
            setattr(self, name, getattr(self, name)[:, which])
        if self.correction is not None:
            self.correction = self.correction[:, which]
        if self.feasible is not None:
            self.feasible = self.feasible.take(which)


@dataclass
class Checkpoint:
    """A run of one problem to be continued, on the same rows and the same nodes or more."""

    iterate: Iterate
    sums: StepSums
    E: Array
    U: Array

    def without_nodes(self, B: Array) -> Checkpoint:
        """Return the run for other coordinates of the weights; sums over rows are dropped."""
        s, none = self.iterate, np.zeros((0, *B.shape[1:]))
        if s.sigma is not None:
            raise ValueError("the sparse penalty is not the same in other coordinates")
        iterate = replace(
            s, B=B, Z=none, V=none, Z_change=none, HtD=none, HtU=none, HtE_change=none
        )
        return replace(self, iterate=iterate)

    def keep(self, nodes: Indices) -> Checkpoint:
        """Return the run with some nodes only; the weights of the others must be 0."""
        s = self.iterate
        names = ("B", "Z", "V", "Z_change", "HtD", "HtU", "HtE_change")
        return replace(
            self, iterate=replace(s, **{name: getattr(s, name)[nodes] for name in names})
        )
