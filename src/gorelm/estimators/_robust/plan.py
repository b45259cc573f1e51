"""What a robust fit to many rows will do, for those who want to know how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gorelm._features.joint import HiddenOutputs
from gorelm._progress import Meter, Work, meter
from gorelm._solver.ridge import RidgeSums
from gorelm._solver.threads import ordered_map
from gorelm._typing import Array, Indices
from gorelm.backends.inputs import BLOCK_ROWS, ScaledRows, add_rows, with_constant
from gorelm.estimators._robust.layers import Layer
from gorelm.estimators._robust.task import RobustTask

JOINT_NODES = 1.3  # of a joint fit, in nodes of one member
MAYBE = 0.5  # chance of a step that is done again only if many rows change sides
MOVED = 0.05  # share of the rows that the last fit is about
WRONG = 0.1  # share of the rows that are left out, before it is known
TRIALS = 4  # of which the first does not count
TRIED = Layer("cosine", 1.0, True, 3)  # whose outputs cost about as much as those of most layers


def followed(task: RobustTask) -> RobustTask:
    """Return the task with passes that a meter follows, if there is one."""
    follower = meter()
    if follower is None or not task.many:
        return task
    follower.expect(plan(task), len(task.T))
    try_out(follower, task)
    return replace(task, X=Measured(task.rows, follower))


def plan(task: RobustTask) -> list[Work]:
    """Return the passes over all rows, and what else takes longer the more rows there are."""
    N, m = task.rows.shape[0], task.T.shape[1]
    n_members, few = task.effort.n_members, task.few_nodes
    L = n_outputs(task)

    def read(step: str, times: int) -> list[Work]:
        return [Work(step, "read", 0.0)] * times

    def fitted(chance: float = 1.0) -> list[Work]:
        return [
            Work("refine", "sums", (1.0 - WRONG) * N, L, chance),
            Work("refine", "read", 0.0, chance=chance),
            Work("refine", "outputs", N, L, chance),
            Work("refine", "judge", N, m, chance),
        ]

    def judged(chance: float = 1.0) -> list[Work]:
        return [
            *[Work("search", "outputs", N, few, chance)] * n_members,
            Work("search", "judge", N, m, chance),
        ]

    return [
        *read("screen", 2),
        Work("screen", "outputs", N, 200),
        *[Work("screen", "judge", N, m)] * 2,
        *read("search", 2),
        *judged(),
        *judged(MAYBE),
        *read("refine", 2),
        *fitted(),
        *fitted(MAYBE),
        Work("fit", "sums", MOVED * N, L),
    ]


def n_outputs(task: RobustTask) -> int:
    """Return the hidden outputs of the members together, as far as they are known in advance."""
    nodes = task.nodes_for(int(task.usable.sum()))
    shared = int(JOINT_NODES * nodes) if task.n_hidden is None else nodes * task.effort.n_members
    return shared + task.effort.n_members * task.rows.shape[1] + 1


def try_out(meter: Meter, task: RobustTask) -> None:
    """Measure the work on a block of rows for every thread, before it is done on all of them."""
    L, m = n_outputs(task), task.T.shape[1]
    x = np.random.default_rng(0).standard_normal((BLOCK_ROWS, task.rows.shape[1]))
    hidden, targets = TRIED.draw(L, 0, x), np.zeros((len(x), m))
    ones, threads = np.ones(len(x)), range(task.n_threads)
    sums = [RidgeSums.zero(hidden.n_outputs + 1, m) for _ in threads]

    def seconds(work: Callable[[int], object]) -> float:
        """Return those of a row; the first time, memory is new, and another process may cut in."""
        took = []
        for _ in range(TRIALS):
            start = time.perf_counter()
            list(ordered_map(work, threads, len(threads)))
            took.append(time.perf_counter() - start)
        return float(np.median(took[1:])) / (len(x) * len(threads))

    outputs = seconds(lambda _: with_constant(hidden, x))
    both = seconds(lambda k: add_rows(sums[k], hidden, x, ones, targets))
    meter.measured("outputs", outputs / L)
    meter.measured("sums", max(both - outputs, 0.1 * both) / L**2)


class Measured:
    """Scaled inputs whose passes a meter follows."""

    def __init__(self, rows: ScaledRows, meter: Meter) -> None:
        self._rows, self._meter = rows, meter

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return self._rows.shape

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""
        with self._meter.doing("read", 0.0, 1.0):
            return self._rows.take(rows)

    def sums(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        omega: Array,
        T: Array,
        n_threads: int = 1,
    ) -> list[RidgeSums]:
        """Return the sums of every group of rows; see `ScaledRows.sums`."""
        with self._meter.doing("sums", sum(map(len, groups)), hidden.n_outputs):
            return self._rows.sums(hidden, groups, omega, T, n_threads)

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B of every group of rows; see `ScaledRows.outputs`."""
        with self._meter.doing("outputs", sum(map(len, groups)), hidden.n_outputs):
            return self._rows.outputs(hidden, groups, coefs, n_threads)
