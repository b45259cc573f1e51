"""Solve a grid of penalties with warm starts: every l1_ratio, every lam.

A *line* holds the problems of one l1_ratio, one for each lam. It is solved level by level, from
coarse to fine (every eighth lam, then what lies between): a problem starts between its solved
neighbours. The first level of a line starts where the problems of the same lam ended in the line
before. So a line can start as soon as the line before it goes on to its second level: a *wave* is
one batch of problems from several lines, each one level behind the one before. Wide batches are
where BLAS is fast.

Two accelerators for sparse penalties, each measured by benchmarks/ablation.py:

- *Working sets.* A problem with few active nodes is first solved on these and on the nodes whose
  row of H'Y is near its limit, again with those that turn out to be beyond it, and then on all
  nodes.
- *Strictly feasible multipliers.* Without ridge (l1_ratio = 1) multipliers prove a bound only while
  no row of H'Y is longer than l1. Multipliers of other problems are well within that limit and not
  much worse: on the way from them to those of the iterate lies a good bound
  (`gorelm._solver.certificate`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from gorelm._solver.admm import Settings
from gorelm._solver.prepared import PathProblem, Prepared
from gorelm._solver.problem import Problem, norms
from gorelm._solver.state import Solution, StrictlyFeasible, WarmStart
from gorelm._solver.threads import one_blas_thread
from gorelm._typing import Array, Callback, Indices, Record

COARSEST = 8
# Shares of the limit l1 that the rows of H'Y of another problem's multipliers may reach to serve a
# problem without ridge: as expected, and at most.
EXPECTED_WITHIN, AT_LEAST_WITHIN = 0.75, 0.95
# The largest share of all nodes that a working set may have, and how near its limit a node's row of
# H'Y is to be for the node to be in it.
WORKING_SET, NEAR = 0.4, 0.9


@dataclass(eq=False)
class _Line:
    """What is known of the problems of one l1_ratio, one for each lam."""

    ratio: float
    problem: Problem
    last: _Line | None  # the line before, if it is to help
    states: list[WarmStart | None]
    bounds: Array
    feasible: dict[int, StrictlyFeasible] = field(default_factory=dict)  # of some states

    @classmethod
    def empty(cls, ratio: float, lams: Array, like: Problem, last: _Line | None) -> _Line:
        """Return a line of which nothing is known."""
        l1, l2, count = lams * ratio, lams * (1 - ratio), len(lams)
        problem = replace(like, tau=like.tau[0], delta=like.delta[0], l1=l1, l2=l2)
        return cls(ratio, problem, last, [None] * count, np.full(count, -np.inf))

    def forget(self) -> None:
        """Drop the states, which are no longer needed."""
        self.states, self.feasible = [None] * len(self.states), {}

    def solved(self, step: int = 1) -> list[tuple[_Line, int]]:
        """Every `step`-th problem that has been solved."""
        every = range(0, len(self.states), step)
        return [(self, p) for p in every if self.states[p] is not None]

    def expected_reach(self, p: int) -> float:
        """Estimate the longest row of H'Y: its value at the optimum, unless H is wide."""
        state = self.states[p]
        longest = 0.0 if state is None else norms(state.coef, grouped=self.problem.grouped).max()
        return float(self.problem.l1[p] + self.problem.l2[p] * longest)

    def feasible_of(self, p: int, prepared: Prepared) -> StrictlyFeasible:
        """Sum up the multipliers of problem p, once."""
        state = self.states[p]
        if p not in self.feasible and state is not None:
            one = self.problem.select(np.array([p]))
            self.feasible[p] = prepared.dual_point(state.dual, one)
        return self.feasible[p]

    def take(self, p: int) -> WarmStart:
        """Return the state of a solved problem."""
        state = self.states[p]
        if state is None:
            raise ValueError(f"problem {p} has not been solved")
        return state.take(np.arange(1))


@dataclass
class _Batch:
    """Problems to solve together."""

    lines: list[_Line]  # of each problem
    number: Indices  # of each problem's line
    which: Indices  # of its line's problems
    problem: Problem
    start: WarmStart | None
    spent: list[int]  # iterations on working sets


class Grid:
    """Solves the lines of a grid, each with the help of the last; see `gorelm.path.solve_path`.

    A batch has `at_once` problems at most, and a copy of some columns of H takes `room` bytes.
    """

    def __init__(
        self,
        path: PathProblem,
        like: Problem,
        lams: Array,
        settings: Settings,
        at_once: int,
        room: float,
        callback: Callback | None,
    ) -> None:
        self.path, self.like, self.lams, self.settings = path, like, lams, settings
        self.at_once, self.room, self.callback = at_once, room, callback
        self.steps = _steps(len(lams))

    def solve(self, ratios: Array, kept: int) -> Iterator[tuple[Indices, Indices, Solution]]:
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
    ) -> Iterator[tuple[Indices, Indices, Solution]]:
        """Solve one level of each of some lines, in as many batches as memory requires."""
        points = [
            (k, p) for k, level in levels.items() for p in self._points(lines[k], level, warm)
        ]
        # The multipliers that may help problems without ridge: how many problems and lines memory
        # allows at a time must not matter, so those of earlier waves alone.
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
        """Return the problems of a level; without warm starts, all are in the first level."""
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
                start.feasible = self._feasible(lines[k].problem.select(np.array([p])), solved[k])
                starts.append(start)
        number, which = np.array(points).T
        return _Batch(
            [lines[k] for k in number],
            number,
            which,
            Problem.join([lines[k].problem.select(np.array([p])) for k, p in points]),
            WarmStart.join(starts) if len(starts) == len(points) else None,
            [0] * len(points),
        )

    # -- where problems start --------------------------------------------------------------------

    def _begin(self, line: _Line, p: int, level: int) -> WarmStart | None:
        if level == 0:
            return self._as_in_the_last_line(line, p)
        return self._between(line, p, self.steps[level])

    def _as_in_the_last_line(self, line: _Line, p: int) -> WarmStart | None:
        """Start where the problem of the same lam ended, if with the same coordinates."""
        n_rows, n_hidden, _ = self.path.shape
        last = line.last
        if last is None or last.states[p] is None:
            return None
        if n_rows < n_hidden and not (line.problem.is_sparse and last.problem.is_sparse):
            return None
        start = last.take(p)
        if line.problem.l2.any():  # another l1 asks for another sigma; without ridge it does not
            start.sigma = np.full(1, np.nan)
        return start

    def _between(self, line: _Line, p: int, step: int) -> WarmStart:
        """Interpolate the states of the neighbours one step to each side.

        The dual is jointly concave in multipliers and lam, so these are interpolated in lam.
        Weights follow its logarithm more closely. The optimum is concave in lam and not negative at
        0: the interpolated bounds are a bound.
        """
        left, right, lam = p - step, p + step, self.lams[p]
        above = self.lams[left]
        if right >= len(self.lams):  # the last may have one neighbour only
            start = line.take(left)
            start.bound = lam / above * line.bounds[[left]]
            return start
        below = self.lams[right]
        share = (above - lam) / (above - below)
        log_share = np.log(above / lam) / np.log(above / below)
        start = WarmStart.mix(
            line.take(left), line.take(right), np.array([log_share]), np.array([share])
        )
        start.bound = (1 - share) * line.bounds[[left]] + share * line.bounds[[right]]
        return start

    def _feasible(
        self, problem: Problem, solved: list[tuple[_Line, int]]
    ) -> StrictlyFeasible | None:
        """For a problem without ridge, find the best strictly feasible multipliers of others."""
        if problem.l2.any() or problem.loss == "squared":
            return None
        l1 = problem.l1[0]
        _, n_hidden, n_targets = self.path.shape
        best = nothing = StrictlyFeasible(np.zeros((n_hidden, 1, n_targets)), np.zeros(1))
        within = [(line, p) for line, p in solved if line.expected_reach(p) <= EXPECTED_WITHIN * l1]
        if within:
            line, p = max(within, key=lambda pair: pair[0].bounds[pair[1]])
            best = line.feasible_of(p, self._prepared())
        longest = norms(best.HtY, grouped=problem.grouped).max()
        return best if longest <= AT_LEAST_WITHIN * l1 else nothing

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
            while not stopped and (few := self._working_sets(batch, start, tried)):
                with one_blas_thread():  # its threads would wait for each other
                    for i, nodes in few.items():
                        if not stopped:
                            taken = self._on_working_set(batch, i, nodes, start, callback)
                            batch.spent[i] += taken
                tried.update(few)
        solution = self.path.solve(
            batch.problem, self.settings, callback, start=start, keep_state=keep_state
        )
        both = zip(batch.spent, solution.n_iter, strict=True)
        solution.n_iter = [few + all_ for few, all_ in both]
        return solution

    def _working_sets(
        self, batch: _Batch, start: WarmStart, tried: dict[int, Indices]
    ) -> dict[int, Indices]:
        """Return the nodes that may be active in each problem, where these are few.

        Once some have been `tried`: of those problems of which a node left out has a row of H'Y
        beyond its limit.
        """
        prepared, most = self._prepared(), self.settings.max_iter // 2
        n_rows, n_hidden, _ = prepared.shape
        few = min(WORKING_SET * min(n_rows, n_hidden), self.room / (n_rows * prepared.itemsize))
        active = np.asarray(start.coef.any(axis=2))
        count = np.count_nonzero(active, axis=0)
        sparse = [i for i in tried or range(len(count)) if 0 < count[i] <= few]
        sparse = [i for i in sparse if batch.spent[i] < most]
        if not sparse:
            return {}
        some = batch.problem.select(np.array(sparse))
        pull = norms(prepared.dual_point(start.dual[:, sparse], some).HtY, grouped=some.grouped)
        pull = pull.reshape(*pull.shape[:2], -1).max(axis=2) / some.l1
        found = {}
        for i, pulled in zip(sparse, pull.T, strict=True):
            matters, known = active[:, i] | (pulled >= NEAR), np.zeros(len(pulled), dtype=bool)
            known[tried.get(i, [])] = True
            beyond = (pulled > 1) & ~known
            if i not in tried or beyond.any():
                found[i] = np.flatnonzero(matters | known | beyond)
        return {i: nodes for i, nodes in found.items() if len(nodes) <= few}

    def _on_working_set(
        self,
        batch: _Batch,
        i: int,
        nodes: Indices,
        start: WarmStart,
        callback: Callback | None,
    ) -> int:
        """Solve a problem on some nodes only; `start` is set to the solution.

        Returns the number of iterations.
        """
        which = np.array([i])
        left = self.settings.max_iter // 2 - batch.spent[i]

        def tell(record: Record) -> object:
            # The gap is one among networks of these nodes: it says nothing of all.
            seen = {**record, "problem": float(i), "dual_gap": float("nan")}
            return callback is not None and callback(seen)

        part, one = self._prepared().part(nodes), start.take(which).part(nodes)
        settings = replace(self.settings, max_iter=left)
        found = part.solve(batch.problem.select(which), settings, tell, start=one, keep_state=True)
        if found.end is not None and np.isfinite(found.end.coef).all():
            start.put(i, nodes, found.end)
        return found.n_iter[0]

    def _prepared(self) -> Prepared:
        """Return the decompositions that working sets and strictly feasible multipliers need."""
        if not isinstance(self.path, Prepared):
            raise TypeError(f"{type(self.path).__name__} keeps no states to start from")
        return self.path


def _steps(n_lams: int) -> list[int]:
    """Strides from coarse to fine: 8, 4, 2, 1, without those that would skip most of the grid."""
    steps = [COARSEST]
    while steps[-1] > 1:
        steps.append(steps[-1] // 2)
    return [step for step in steps if 2 * step < n_lams or step == 1]
