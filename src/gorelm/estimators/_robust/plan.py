"""What a robust fit to many rows will do: how long it takes, and how much memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from gorelm._features.joint import HiddenOutputs, JointLayer
from gorelm._features.layer import HiddenLayer
from gorelm._progress import Meter, Work, meter
from gorelm._solver.ridge import RidgeSums
from gorelm._solver.threads import one_blas_thread, ordered_map
from gorelm._typing import Array, Indices
from gorelm.backends.inputs import BLOCK_ROWS, LastTaken, ScaledRows, with_constant
from gorelm.estimators._robust.layers import Layer
from gorelm.estimators._robust.search import SEARCH_LAYERS
from gorelm.estimators._robust.task import Effort, RobustTask

JOINT_NODES = 1.2  # of a joint fit, in nodes of one member
FORWARD_ROWS = 30_000  # from which on the layers of a joint fit are chosen together
FORWARD_NODES = 0.75  # of a joint fit whose layers are chosen together, in nodes of one member
FORWARD_SHARE, FORWARD_MOST = 0.2, 20_000  # of the rows, on which they are
FORWARD_ROUNDS = 3  # of sums over these
COMPARED = 1.3  # outputs of all layers to choose from, at most, in outputs of the members
LAYER_NODES = 1 / 3  # of each then, in nodes with which layers are compared one by one
MAYBE = 0.3  # chance of a step that is done again only if many rows change sides
MOVED = 0.03  # share of the rows that the last fit is about
WRONG = 0.1  # share of the rows that are left out, before it is known
PROGRAM = 3e8  # bytes of the interpreter, its libraries and their caches
LEAST_NODES = 20
TRIALS = 4  # of which the first does not count
UNIT = "tanh"  # the activation whose outputs have a weight of 1
TRIED_NODES = 200
LEAST_WEIGHT = 0.05  # of an output that is an input


def followed(task: RobustTask) -> RobustTask:
    """Return the task with passes that a meter follows, if there is one."""
    follower = meter()
    if follower is None or not task.many:
        return task
    if not follower.n_rows:  # it has no plan yet
        shape = *task.rows.shape, task.T.shape[1]
        announce(follower, task.effort, task.n_hidden, *shape, task.n_threads)
    return replace(task, X=Measured(task.rows, follower))


def announce(
    meter: Meter,
    effort: Effort,
    n_hidden: int | None,
    n_rows: int,
    n_inputs: int,
    n_targets: int,
    n_threads: int,
) -> None:
    """Give a meter the plan of a fit to many rows, and first measurements."""
    meter.expect(plan(effort, n_hidden, n_rows, n_inputs, n_targets), n_rows)
    L = outputs_of(effort, n_hidden, n_rows, n_inputs, n_targets)
    try_out(meter, L, n_inputs, n_targets, n_threads)


def plan(
    effort: Effort, n_hidden: int | None, n_rows: int, n_inputs: int, n_targets: int
) -> list[Work]:
    """Return the passes over all rows, and what else takes longer the more rows there are."""
    N, m = n_rows, n_targets
    few = effort.few_nodes_for(N)
    few = min(few, n_hidden or few)
    n_members = effort.n_members * min(m, 2)  # a target may have members of its own
    L = outputs_of(effort, n_hidden, n_rows, n_inputs, n_targets)

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

    n_layers, nodes = layers_compared(effort, n_hidden, n_rows, n_inputs, n_targets)
    together = Work("refine", "compare", rows_compared(N), n_layers * (nodes + n_inputs))
    compared = [*read("refine", 2), *[together] * FORWARD_ROUNDS]
    return [
        Work("reading", "learn", N, n_inputs),
        *read("reading", 2),
        *read("screen", 2),
        Work("screen", "outputs", N, 200),
        *[Work("screen", "judge", N, m)] * 2,
        *read("search", 3),
        *judged(),
        *judged(MAYBE),  # with the flagged rows that come back
        *judged(MAYBE),
        *read("refine", 2),
        *(compared if N >= FORWARD_ROWS else ()),
        *fitted(),
        *fitted(MAYBE),
        Work("fit", "sums", MOVED * N, L),
    ]


def outputs_of(
    effort: Effort, n_hidden: int | None, n_rows: int, n_inputs: int, n_targets: int
) -> int:
    """Return the hidden outputs of the members together, of a fit to many rows."""
    times = FORWARD_NODES if n_rows >= FORWARD_ROWS else JOINT_NODES
    shared = int(times * effort.nodes_for(n_rows, n_inputs, n_targets))
    nodes = shared if n_hidden is None else n_hidden * effort.n_members
    return nodes + effort.layers_together(n_hidden) * n_inputs + 1


def layers_compared(
    effort: Effort, n_hidden: int | None, n_rows: int, n_inputs: int, n_targets: int
) -> tuple[int, int]:
    """Return how many layers are compared in one regression, at most, and the nodes of each.

    There are at least two.
    """
    nodes = min(int(effort.middle_nodes * LAYER_NODES), n_hidden or effort.most_nodes)
    most = COMPARED * outputs_of(effort, n_hidden, n_rows, n_inputs, n_targets)
    return max(int(most) // (nodes + n_inputs), 2), nodes


def rows_compared(n_rows: int) -> int:
    """Return on how many of the rows they are."""
    return min(int(FORWARD_SHARE * n_rows), FORWARD_MOST)


@dataclass(frozen=True)
class Memory:
    r"""Bytes of a fit in blocks to N rows of m targets, with L hidden outputs in all.

    .. math:: 8 N (9 m + 4) + 8 (6 + 4 \min(k, 4)) L^2 + 16 k \cdot 2048 L

    for k threads, beside the interpreter and its libraries: targets, predictions, scores and
    numbers of rows; H'H of the folds, of all rows, and what each thread solves, one fold at a time;
    blocks of H.
    """

    effort: Effort
    n_rows: int
    n_inputs: int
    n_targets: int
    n_threads: int

    @property
    def rows(self) -> float:
        """What every row takes, whatever the nodes, and the program."""
        return PROGRAM + 8.0 * self.n_rows * (9 * self.n_targets + 4)

    def total(self, n_hidden: int | None) -> float:
        """Return all of it; `n_hidden` nodes of every network, None: as many as it takes."""
        shape = self.n_rows, self.n_inputs, self.n_targets
        L = outputs_of(self.effort, n_hidden, *shape)
        return self.rows + max(self._quadratic * L**2 + self._linear * L, self._compared(n_hidden))

    @property
    def _quadratic(self) -> float:
        return 8.0 * (6 + 4 * min(self.n_threads, 4))

    @property
    def _linear(self) -> float:
        return 16.0 * self.n_threads * BLOCK_ROWS

    def _compared(self, n_hidden: int | None) -> float:
        """Return what the layers take that are compared on some rows."""
        if self.n_rows >= FORWARD_ROWS:
            return 0.0  # fewer matrices, and so no more than the members
        few = self.effort.middle_nodes if n_hidden is None else n_hidden
        return 8.0 * 6 * self.effort.n_middle * (few + self.n_inputs + 1) ** 2

    def nodes_within(self, most: float) -> int | None:
        """Return the nodes of every network that so many bytes allow; None: as many as it takes.

        At least `LEAST_NODES`, even if these take more.
        """
        if self.total(None) <= most:
            return None
        room, members = most - self.rows, self.effort.n_members
        by_comparing = np.sqrt(max(room, 0.0) / (48.0 * self.effort.n_middle)) - self.n_inputs
        if self.n_rows >= FORWARD_ROWS:
            by_comparing = np.inf
        a, b = self._quadratic, self._linear
        L = (np.sqrt(b**2 + 4 * a * max(room, 0.0)) - b) / (2 * a)
        nodes = min(L / members - self.n_inputs, by_comparing)
        return max(int(nodes) - 1, LEAST_NODES)


def try_out(meter: Meter, L: int, n_inputs: int, n_targets: int, n_threads: int) -> None:
    """Measure the work on a block of rows for every thread, before it is done on all of them."""
    x = np.random.default_rng(0).standard_normal((BLOCK_ROWS, n_inputs))
    targets, threads = np.zeros((len(x), n_targets)), range(n_threads)

    def drawn(activation: str, n_nodes: int) -> HiddenLayer:
        return Layer(activation, 1.0, False, 3).draw(n_nodes, 0, x)

    def seconds(work: Callable[[int], object]) -> float:
        """Return those of a row; the first time, memory is new, and another process may cut in."""
        took = []
        for _ in range(TRIALS):
            start = time.perf_counter()
            list(ordered_map(work, threads, len(threads)))
            took.append(time.perf_counter() - start)
        return float(np.median(took[1:])) / (len(x) * len(threads))

    def of_outputs(hidden: HiddenLayer) -> float:
        return seconds(lambda _: with_constant(hidden, x))

    with one_blas_thread():
        hidden = drawn(UNIT, L)
        sums = [RidgeSums.zero(hidden.n_outputs + 1, n_targets) for _ in threads]
        outputs = of_outputs(hidden)
        both = seconds(lambda k: sums[k].add(with_constant(hidden, x), targets))
        names = [layer.activation for layer in SEARCH_LAYERS if layer.activation != "linear"]
        took = {name: of_outputs(drawn(name, TRIED_NODES)) for name in {UNIT, *names}}
    meter.weights = {name: took[name] / took[UNIT] for name in took}
    meter.weight = float(np.mean([meter.weights[name] for name in names]))
    meter.measured("outputs", outputs / L)
    meter.measured("sums", max(both - outputs, 0.1 * both) / L**2)


class Measured:
    """Scaled inputs whose passes a meter follows."""

    def __init__(self, rows: ScaledRows, meter: Meter) -> None:
        self._rows, self._meter = rows, meter
        self._last = LastTaken()

    @property
    def shape(self) -> tuple[int, int]:
        """(N, d)."""
        return self._rows.shape

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""
        return self._last.of(rows, self._taken)

    def _taken(self, rows: Indices | slice) -> Array:
        with self._meter.doing("read", 0.0, 1.0):
            return self._rows.take(rows)

    def sample(self, rows: Indices) -> ScaledRows:
        """Return some rows by themselves, whose sums are no passes."""
        with self._meter.doing("read", 0.0, 1.0):
            return self._rows.sample(rows)

    def sums(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        omega: Array,
        T: Array,
        n_threads: int = 1,
    ) -> list[RidgeSums]:
        """Return the sums of every group of rows; see `ScaledRows.sums`."""
        with self._doing("sums", groups, hidden):
            return self._rows.sums(hidden, groups, omega, T, n_threads)

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B of every group of rows; see `ScaledRows.outputs`."""
        with self._doing("outputs", groups, hidden):
            return self._rows.outputs(hidden, groups, coefs, n_threads)

    def _doing(
        self, kind: str, groups: Sequence[Indices], hidden: HiddenOutputs
    ) -> AbstractContextManager[None]:
        weight = self._weight_of(hidden)
        if self._meter.step != "screen":  # the layers of the screen are its own
            self._meter.weight = 0.5 * (self._meter.weight + weight)
        return self._meter.doing(kind, sum(map(len, groups)), hidden.n_outputs, weight)

    def _weight_of(self, hidden: HiddenOutputs) -> float:
        """Return the weight of an output of a layer, on average; inputs that are outputs: 0."""
        parts = hidden.parts if isinstance(hidden, JointLayer) else (hidden,)
        layers = [part for part in parts if isinstance(part, HiddenLayer)]
        total = sum(
            layer.n_nodes * self._meter.weights.get(layer.activation, 1.0) for layer in layers
        )
        return max(total / hidden.n_outputs, LEAST_WEIGHT)
