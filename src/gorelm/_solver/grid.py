"""Solve a grid of penalties in waves: each problem begins where others have ended.

A line holds the problems of one l1_ratio, one for each lam, and is solved from coarse to fine: a
problem begins between its solved neighbours. The first of a line begin where those of the same lam
ended in the line before. So a line can begin as soon as the line before it goes on to its second
level: a wave is one batch of problems from several lines, each one level behind the one before.

Without ridge (l1_ratio = 1) multipliers prove a bound only while no row of H'Y is longer than
:math:`l_1`. Multipliers of other problems are well within that limit and not much worse: on the way
from them to those of the iterate lies a good bound, see `gorelm._solver.certificate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gorelm._solver.admm import Record, Settings, Solution, State
from gorelm._solver.linalg import Indices
from gorelm._solver.prepared import System
from gorelm._solver.problem import Array, Problem, norms
from gorelm._solver.state import Inside, Mask
from gorelm._solver.threads import alone

__all__ = ["Grid"]

COARSEST = 8
# How far inside the limits of a problem without ridge the multipliers of another are to be: as
# expected of them, and at least.
INSIDE, ALMOST = 0.75, 0.95
# A share of all nodes that is few, and how near its limit a node's row of H'Y is to be for the node
# to count among those that may become active.
FEW, NEAR = 0.4, 0.9


@dataclass(eq=False)
class _Line:
    """What is known of the problems of one l1_ratio, one for each lam."""

    ratio: float
    problem: Problem
    last: _Line | None  # the line before, if it is to help
    states: list[State | None]
    bounds: Array
    inside: dict[int, Inside] = field(default_factory=dict)  # made of some states' multipliers

    @classmethod
    def empty(cls, ratio: float, lams: Array, like: Problem, last: _Line | None) -> _Line:
        """Return a line of which nothing is known."""
        l1, l2, count = lams * ratio, lams * (1 - ratio), len(lams)
        problem = replace(like, tau=like.tau[0], delta=like.delta[0], l1=l1, l2=l2)
        return cls(ratio, problem, last, [None] * count, np.full(count, -np.inf))

    def forget(self) -> None:
        """Drop the states, which nobody will need."""
        self.states, self.inside = [None] * len(self.states), {}

    def solved(self, step: int = 1) -> list[tuple[_Line, int]]:
        """Every `step`-th problem, as far as they have been solved."""
        every = range(0, len(self.states), step)
        return [(self, p) for p in every if self.states[p] is not None]

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

    def take(self, p: int) -> State:
        """Return the state of a solved problem."""
        state = self.states[p]
        if state is None:
            raise ValueError(f"problem {p} has not been solved")
        return state.take(np.arange(1))


@dataclass
class _Batch:
    """Problems to solve together."""

    lines: list[_Line]  # of each problem
    number: Mask  # of each problem's line
    which: Mask  # of its line's problems
    problem: Problem
    start: State | None
    spent: list[int]  # iterations on few nodes


class Grid:
    """Solves the lines of a grid, each with the help of the last.

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
        self.steps = _steps(len(lams))

    def solve(self, ratios: Array, kept: int) -> Iterator[tuple[Mask, Mask, Solution]]:
        """Solve all lines; yields indices of ratios and of lams, and the solutions there.

        Parameters
        ----------
        ratios : array
            The l1_ratio of each line.
        kept : int
            Of how many lines states may be kept: of too few for waves, and lines are solved one
            after the other; of one, and no line helps another; of none, and no problem does.
        """
        lines: list[_Line] = []
        for ratio in ratios:
            last = lines[-1] if lines and kept > 1 else None
            lines.append(_Line.empty(float(ratio), self.lams, self.like, last))
        depth = len(self.steps)
        behind = 1 if kept > depth else depth
        for wave in range(behind * (len(lines) - 1) + depth):
            levels = {k: wave - behind * k for k in range(len(lines))}
            levels = {k: level for k, level in levels.items() if 0 <= level < depth}
            for sparse in (False, True):  # without a sparse penalty there is one split less
                some = {k: j for k, j in levels.items() if lines[k].problem.is_sparse == sparse}
                yield from self._wave(lines, some, warm=kept > 0)
            for k, level in levels.items():
                # Once a line is solved, the one before has helped where it could.
                if level == depth - 1 and (k or kept == 1):
                    lines[k - 1 if kept > 1 else k].forget()

    def _wave(
        self, lines: list[_Line], levels: dict[int, int], *, warm: bool
    ) -> Iterator[tuple[Mask, Mask, Solution]]:
        """Solve one level of each of some lines, in as many batches as memory asks for."""
        points = [
            (k, p) for k, level in levels.items() for p in self._points(lines[k], level, warm)
        ]
        # What may help those without ridge: how many problems and lines memory allows at a time
        # must not matter, so it is what waves know, and nothing of this one.
        solved = {}
        for k, level in levels.items():
            line, last = lines[k], lines[k].last
            solved[k] = line.solved() + ([] if last is None else last.solved(self.steps[level]))
        for i in range(0, len(points), self.at_once):
            batch = self._batch(lines, points[i : i + self.at_once], levels, solved, warm=warm)
            solution = self._run(batch, keep_state=warm)
            for j, (line, p) in enumerate(zip(batch.lines, batch.which, strict=True)):
                line.bounds[p] = solution.bound[j]
                if solution.end is not None:
                    line.states[p] = solution.end.take(np.array([j]))
            yield batch.number, batch.which, solution

    def _points(self, line: _Line, level: int, warm: bool) -> list[int]:
        """Return the problems of a level; all are of the first where none helps another."""
        every = range(len(self.lams))
        if not warm or (self.like.loss == "squared" and line.ratio == 0):  # a closed form
            return list(every) if level == 0 else []
        step = self.steps[level]
        return [p for p in every[::step] if level == 0 or p % (2 * step)]

    def _batch(
        self,
        lines: list[_Line],
        points: list[tuple[int, int]],
        levels: dict[int, int],
        solved: dict[int, list[tuple[_Line, int]]],
        *,
        warm: bool,
    ) -> _Batch:
        starts = []
        for k, p in points if warm else []:
            start = self._begin(lines[k], p, levels[k])
            if start is not None:
                start.inside = self._inside(lines[k].problem.select(np.array([p])), solved[k])
                starts.append(start)
        number, which = np.array(points).T
        return _Batch(
            [lines[k] for k in number],
            number,
            which,
            Problem.join([lines[k].problem.select(np.array([p])) for k, p in points]),
            State.join(starts) if len(starts) == len(points) else None,
            [0] * len(points),
        )

    # -- where problems begin --------------------------------------------------------------------

    def _begin(self, line: _Line, p: int, level: int) -> State | None:
        if level == 0:
            return self._as_in_the_last_line(line, p)
        return self._between(line, p, self.steps[level])

    def _as_in_the_last_line(self, line: _Line, p: int) -> State | None:
        """Begin where the problem of the same lam ended, if with the same coordinates."""
        n_rows, n_hidden = self.system.H.shape
        last = line.last
        if last is None or last.states[p] is None:
            return None
        if n_rows < n_hidden and not (line.problem.is_sparse and last.problem.is_sparse):
            return None
        start = last.take(p)
        if line.problem.l2.any():  # another l1 asks for another sigma; without ridge it does not
            start.sigma = np.full(1, np.nan)
        return start

    def _between(self, line: _Line, p: int, step: int) -> State:
        """Mix the states of the neighbours one step to each side.

        The dual is jointly concave in multipliers and lam, so these are mixed in proportion of lam.
        Weights follow its logarithm more closely.
        """
        left, right, lam = p - step, p + step, self.lams[p]
        above = self.lams[left]
        # The optimum is concave in lam and not negative at 0: what lies between bounds is one.
        if right >= len(self.lams):  # the last may have one neighbour only
            start = line.take(left)
            start.bound = lam / above * line.bounds[[left]]
            return start
        below = self.lams[right]
        share = (above - lam) / (above - below)
        log_share = np.log(above / lam) / np.log(above / below)
        start = State.mix(
            line.take(left), line.take(right), np.array([log_share]), np.array([share])
        )
        start.bound = (1 - share) * line.bounds[[left]] + share * line.bounds[[right]]
        return start

    def _inside(self, problem: Problem, solved: list[tuple[_Line, int]]) -> Inside | None:
        """For a problem without ridge, find the best multipliers of others that are inside."""
        if problem.l2.any() or problem.loss == "squared":
            return None
        l1 = problem.l1[0]
        shape = (self.system.H.shape[1], 1, self.system.T.shape[1])
        inside = nothing = Inside(np.zeros(shape), np.zeros(1))
        within = [(line, p) for line, p in solved if line.reach(p) <= INSIDE * l1]
        if within:
            line, p = max(within, key=lambda pair: pair[0].bounds[pair[1]])
            inside = line.inside_of(p, self.system)
        longest = norms(inside.HtY, grouped=problem.grouped).max()
        return inside if longest <= ALMOST * l1 else nothing

    # -- solving ---------------------------------------------------------------------------------

    def _run(self, batch: _Batch, *, keep_state: bool) -> Solution:
        stopped, start = False, batch.start

        def tell(record: Record) -> bool:
            nonlocal stopped
            i, ask = int(record.pop("problem", 0)), self.callback
            point = {"lam": float(self.lams[batch.which[i]]), "l1_ratio": batch.lines[i].ratio}
            record["iteration"] += batch.spent[i]
            stopped = (ask is not None and bool(ask({**record, **point}))) or stopped
            return stopped

        callback = None if self.callback is None else tell
        if start is not None and batch.problem.is_sparse and batch.problem.loss != "squared":
            tried: dict[int, Indices] = {}
            while not stopped and (few := self._few_nodes(batch, start, tried)):
                with alone():  # threads would wait for each other
                    for i, nodes in few.items():
                        if not stopped:
                            batch.spent[i] += self._on_few_nodes(batch, i, nodes, start, callback)
                tried.update(few)
        solution = self.system.solve(
            batch.problem, self.settings, callback, start=start, keep_state=keep_state
        )
        both = zip(batch.spent, solution.n_iter, strict=True)
        solution.n_iter = [few + all_ for few, all_ in both]
        return solution

    def _few_nodes(
        self, batch: _Batch, start: State, tried: dict[int, Indices]
    ) -> dict[int, Indices]:
        """Return the nodes that may matter to each of those problems where these are few.

        Once some have been `tried`: of those problems to which a node left out has turned out to
        matter.
        """
        H, most = self.system.H, self.settings.max_iter // 2
        few = min(FEW * min(H.shape), self.room / (len(H) * H.itemsize))
        active: Mask = np.asarray(start.coef.any(axis=2))
        count = np.count_nonzero(active, axis=0)
        sparse = [i for i in tried or range(len(count)) if 0 < count[i] <= few]
        sparse = [i for i in sparse if batch.spent[i] < most]
        if not sparse:
            return {}
        some = batch.problem.select(np.array(sparse))
        pull = norms(self.system.inside(start.dual[:, sparse], some).HtY, grouped=some.grouped)
        pull = pull.reshape(*pull.shape[:2], -1).max(axis=2) / some.l1
        found = {}
        for i, pulled in zip(sparse, pull.T, strict=True):
            matters, known = active[:, i] | (pulled >= NEAR), np.zeros(len(pulled), dtype=bool)
            known[tried.get(i, [])] = True
            beyond = (pulled > 1) & ~known
            if i not in tried or beyond.any():
                found[i] = np.flatnonzero(matters | known | beyond)
        return {i: nodes for i, nodes in found.items() if len(nodes) <= few}

    def _on_few_nodes(
        self,
        batch: _Batch,
        i: int,
        nodes: Indices,
        start: State,
        callback: Callable[[Record], Any] | None,
    ) -> int:
        """Go on with some nodes of a problem alone.

        Returns the number of iterations; `start` is then where they have ended.
        """
        which = np.array([i])
        left = self.settings.max_iter // 2 - batch.spent[i]

        def tell(record: Record) -> Any:
            # The gap is one among networks of these nodes: it says nothing of all.
            seen = {**record, "problem": float(i), "dual_gap": float("nan")}
            return callback is not None and callback(seen)

        part, one = self.system.part(nodes), start.take(which).part(nodes)
        settings = replace(self.settings, max_iter=left)
        found = part.solve(batch.problem.select(which), settings, tell, start=one, keep_state=True)
        if found.end is not None and np.isfinite(found.end.coef).all():
            start.put(i, nodes, found.end)
        return found.n_iter[0]


def _steps(n_lams: int) -> list[int]:
    """Strides from coarse to fine: 8, 4, 2, 1, without those that would skip most of the grid."""
    steps = [COARSEST]
    while steps[-1] > 1:
        steps.append(steps[-1] // 2)
    return [step for step in steps if 2 * step < n_lams or step == 1]
