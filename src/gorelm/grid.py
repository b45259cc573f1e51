"""Solve a grid of penalties line by line: each problem begins where others have ended.

A line holds the problems of one l1_ratio, one for each lam, and is solved from coarse to fine: a
problem begins between its solved neighbours. The first of a line begin where those of the same lam
ended in the line before.

Without ridge (l1_ratio = 1) multipliers prove a bound only while no row of H'Y is longer than
:math:`l_1`. Multipliers of other problems are well within that limit and not much worse: on the way
from them to those of the iterate lies a good bound, see `gorelm.certificate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gorelm.admm import Record, Settings, Solution, State
from gorelm.iterate import Inside, Mask
from gorelm.problem import Problem
from gorelm.prox import Array, norms
from gorelm.solver import System

__all__ = ["Grid"]

COARSEST = 8
# How far inside the limits of a problem without ridge the multipliers of another are to be: as
# expected of them, and at least.
INSIDE, ALMOST = 0.75, 0.95
# A share of all nodes that is few, and how near its limit a node's row of H'Y is to be for the node
# to count among those that may become active.
FEW, NEAR = 0.4, 0.9


@dataclass
class _Line:
    """What is known of the problems of one l1_ratio, one for each lam."""

    problem: Problem
    states: list[State | None]
    bounds: Array
    inside: dict[int, Inside] = field(default_factory=dict)  # made of some states' multipliers

    @classmethod
    def empty(cls, problem: Problem) -> _Line:
        """Return a line of which nothing is known."""
        count = problem.n_problems
        return cls(problem, [None] * count, np.full(count, -np.inf))

    @property
    def solved(self) -> list[int]:
        """The problems that have been solved."""
        return [p for p, state in enumerate(self.states) if state is not None]

    def reach(self, p: int) -> float:
        """Guess how long the longest row of H'Y is; at the optimum, unless H is wide, so it is."""
        state = self.states[p]
        longest = 0.0 if state is None else norms(state.coef, grouped=self.problem.grouped).max()
        return float(self.problem.l1[p] + self.problem.l2[p] * longest)

    def inside_of(self, p: int, system: System) -> Inside:
        """Sum up the multipliers of problem p, once."""
        state = self.states[p]
        if p not in self.inside and state is not None:
            self.inside[p] = system.inside(state.dual, self.problem.select(np.array([p])))
        return self.inside[p]

    def take(self, problems: Any) -> State:
        """Return the states of some problems as those of a batch."""
        return State.join([state for p in problems if (state := self.states[p]) is not None])


class Grid:
    """Solves the lines of a grid one after the other, each with the help of the last.

    Parameters
    ----------
    system, like, lams, settings, callback
        As for `solve_path`.
    at_once : int
        Most problems in a batch.
    room : float
        Bytes that a copy of some columns of H may take.
    """

    def __init__(
        self,
        system: System,
        like: Problem,
        lams: Array,
        settings: Settings,
        at_once: int,
        room: float,
        callback: Callable[[Record], Any] | None,
    ) -> None:
        self.system, self.like, self.lams, self.settings = system, like, lams, settings
        self.at_once, self.room, self.callback = at_once, room, callback
        self.last: _Line | None = None

    def solve(self, ratio: float, *, warm: bool, more: bool) -> Iterator[tuple[Any, Solution]]:
        """Solve one line; yields indices of lams with their solutions.

        `warm` starts between neighbours; `more` lines are to come and to be helped by this one.
        """
        problem = replace(
            self.like,
            tau=self.like.tau[0],
            delta=self.like.delta[0],
            l1=self.lams * ratio,
            l2=self.lams * (1 - ratio),
        )
        line = _Line.empty(problem)
        steps = _steps(len(self.lams))
        if not warm or (self.like.loss == "squared" and ratio == 0):  # a closed form
            steps, warm = [1], False
        for step in steps:
            level = [p for p in range(0, len(self.lams), step) if line.states[p] is None]
            # Those before this level: how it is cut into batches must not matter.
            others = [(at, p) for at in (line, self.last) if at is not None for p in at.solved]
            for k in range(0, len(level), self.at_once):
                problems = np.array(level[k : k + self.at_once])
                if not warm:
                    start = None
                elif step == steps[0]:
                    start = self._as_in_the_last_line(problems, problem)
                else:
                    start = self._between(problems, step, line)
                if start is not None:
                    start.inside = self._inside(problem.select(problems), others)
                keep = warm and (more or step > 1)
                solution = self._run(problem.select(problems), problems, ratio, start, keep)
                line.bounds[problems] = solution.bound
                if solution.end is not None:
                    for i, p in enumerate(problems):
                        line.states[p] = solution.end.take(np.array([i]))
                yield problems, solution
        self.last = line if warm and more else None

    def _as_in_the_last_line(self, problems: Any, line: Problem) -> State | None:
        """Begin where the problems of the same lams ended, if with the same coordinates."""
        n_rows, n_hidden = self.system.H.shape
        if self.last is None or (
            n_rows < n_hidden and not (line.is_sparse and self.last.problem.is_sparse)
        ):
            return None
        start = self.last.take(problems)
        if line.l2.any():  # another l1 asks for another sigma; without ridge the last does better
            start.sigma = np.full(len(problems), np.nan)
        return start

    def _between(self, problems: Any, step: int, line: _Line) -> State:
        """Mix the states of the neighbours one step to each side.

        The dual is jointly concave in multipliers and lam, so these are mixed in proportion of lam.
        Weights follow its logarithm more closely.
        """
        inner = problems + step < len(self.lams)  # the last may have one neighbour only
        left, right = problems - step, np.where(inner, problems + step, problems - step)
        lam, above, below = self.lams[problems], self.lams[left], self.lams[right]
        share = np.where(inner, (above - lam) / np.where(inner, above - below, 1.0), 0.0)
        at, left_at, right_at = np.log(lam), np.log(above), np.log(below)
        apart = np.where(inner, left_at - right_at, 1.0)
        log_share = np.where(inner, (left_at - at) / apart, 0.0)
        start = State.mix(line.take(left), line.take(right), log_share, share)
        # The optimum is concave in lam and not negative at 0: what lies between bounds is one.
        part = np.where(inner, share, 1.0 - lam / above)
        far = np.where(inner, line.bounds[right], 0.0)
        start.bound = (1 - part) * line.bounds[left] + part * far
        return start

    def _inside(self, problem: Problem, others: list[tuple[_Line, int]]) -> Inside | None:
        """For problems without ridge, find the best multipliers of others that are inside."""
        if problem.l2.any() or problem.loss == "squared":
            return None
        reaches = [other.reach(p) for other, p in others]
        shape = (self.system.H.shape[1], 1, self.system.T.shape[1])
        nothing = Inside(np.zeros(shape), np.zeros(1))
        found = []
        for l1 in problem.l1:
            within = [pair for pair, far in zip(others, reaches, strict=True) if far <= INSIDE * l1]
            inside = nothing
            if within:
                other, p = max(within, key=lambda pair: pair[0].bounds[pair[1]])
                inside = other.inside_of(p, self.system)
            longest = norms(inside.HtY, grouped=problem.grouped).max()
            found.append(inside if longest <= ALMOST * l1 else nothing)
        return Inside.join(found)

    def _run(
        self, problem: Problem, problems: Any, ratio: float, start: State | None, keep: bool
    ) -> Solution:
        spent, stopped = [0] * len(problems), False

        def tell(record: Record) -> bool:
            nonlocal stopped
            i, ask = int(record.pop("problem", 0)), self.callback
            point = {"lam": float(self.lams[problems[i]]), "l1_ratio": ratio}
            record["iteration"] += spent[i]
            stopped = (ask is not None and bool(ask({**record, **point}))) or stopped
            return stopped

        callback = None if self.callback is None else tell
        if start is not None and problem.is_sparse and problem.loss != "squared":
            for i in range(len(problems)):
                if not stopped:
                    spent[i] = self._on_few_nodes(problem, i, start, callback)
        solution = self.system.solve(problem, self.settings, callback, start=start, keep_state=keep)
        solution.n_iter = [few + all_ for few, all_ in zip(spent, solution.n_iter, strict=True)]
        return solution

    def _on_few_nodes(
        self, batch: Problem, i: int, start: State, callback: Callable[[Record], Any] | None
    ) -> int:
        """Go on with the nodes that may matter to a problem, where these are few.

        Returns the number of iterations; `start` is then where they have ended.
        """
        H, which = self.system.H, np.array([i])
        few = min(FEW * min(H.shape), self.room / (len(H) * H.itemsize))
        one, problem = start.take(which), batch.select(which)
        active: Mask = np.asarray(one.coef.any(axis=(1, 2)))
        if not 0 < np.count_nonzero(active) <= few:
            return 0
        pull = norms(self.system.inside(one.dual, problem).HtY, grouped=problem.grouped)
        near = (pull >= NEAR * problem.l1[0]).reshape(len(active), -1).any(axis=1)
        nodes = np.flatnonzero(active | near)
        settings = replace(self.settings, max_iter=self.settings.max_iter // 2)
        if len(nodes) > few or not settings.max_iter:
            return 0

        def tell(record: Record) -> Any:
            # The gap is one among networks of these nodes: it says nothing of all.
            seen = {**record, "problem": float(i), "dual_gap": float("nan")}
            return callback is not None and callback(seen)

        part = self.system.part(nodes)
        found = part.solve(problem, settings, tell, start=one.part(nodes), keep_state=True)
        if found.end is not None and np.isfinite(found.end.coef).all():
            start.put(i, nodes, found.end)
        return found.n_iter[0]


def _steps(n_lams: int) -> list[int]:
    """Strides from coarse to fine: 8, 4, 2, 1, without those that would skip most of the grid."""
    steps = [COARSEST]
    while steps[-1] > 1:
        steps.append(steps[-1] // 2)
    return [step for step in steps if 2 * step < n_lams or step == 1]
