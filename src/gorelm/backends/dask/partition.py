"""On the workers: partitions of the rows, the actor that holds some of them, and its messages."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from gorelm._features.scaling import Summary
from gorelm._solver.far_targets import NormSummary, shorten
from gorelm._solver.problem import Problem
from gorelm._solver.rows import BlockRows, MemoryRows, StepSums
from gorelm._typing import Array, Indices, Mask
from gorelm.backends import BatchModel
from gorelm.backends.streamed import HiddenBlocks, StreamedRows
from gorelm.estimators._prepare import (
    Design,
    Targets,
    has_target,
    in_bytes,
    known_cells,
    row_scores,
)
from gorelm.stream import RowBlocks

Merge = Callable[[Any, Any], Any]
Node = tuple[int, int]  # level and position in the tree of sums
Snapshot = dict[int, tuple[int, Array, Array]]  # version, E and U of partitions


class Command(NamedTuple):
    """A call of a method of every partition, and how the results are merged."""

    method: str
    args: tuple[Any, ...]
    merge: Merge
    mutates: bool = False  # whether it changes a partition
    setup: bool = False  # whether a partition restored from a checkpoint needs it as well


class Request(NamedTuple):
    """A command for some partitions, which must be at `version`."""

    partitions: list[int]
    version: int
    command: Command


class Reply(NamedTuple):
    """Nodes of the tree of sums, and the seconds that the work took."""

    nodes: dict[Node, Any]
    seconds: float


class Failure(NamedTuple):
    """An error of the computation itself, as opposed to the loss of a worker."""

    kind: str
    message: str
    details: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Describe an error in strings, which can always be sent."""
        return cls(type(error).__name__, str(error), traceback.format_exc())


# -- sums over partitions ------------------------------------------------------------------------


def add(one: Any, other: Any) -> Any:
    """Add sums of two sets of partitions: numbers, arrays, or tuples of them; lists are joined."""
    if one is None:
        return None
    if isinstance(one, StepSums):
        return StepSums(*(add(a, b) for a, b in zip(_fields(one), _fields(other), strict=True)))
    if isinstance(one, tuple):
        values = (add(a, b) for a, b in zip(one, other, strict=True))
        return type(one)(*values) if hasattr(one, "_fields") else tuple(values)
    return one + other


def reach_and_sum(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Merge results of `Rows.corrected_dual`: a maximum and a sum."""
    return np.maximum(one[0], other[0]), one[1] + other[1]


def _fields(sums: StepSums) -> Iterable[Array]:
    return list(vars(sums).values())


class PartialSums:
    """Sums over partitions along one binary tree: the same bits for every placement of partitions.

    `merge` computes the value of a node from those of its two children.
    """

    def __init__(self, n_partitions: int, merge: Merge) -> None:
        self._n_partitions, self._merge = n_partitions, merge
        self.nodes: dict[Node, Any] = {}

    def put(self, node: Node, value: object) -> None:
        """Set the value of a node (level, position), and merge upwards as far as possible."""
        level, place = node
        while (width := -(-self._n_partitions // 2**level)) > 1:
            sibling = (level, place ^ 1)
            if sibling in self.nodes:
                pair = [value, self.nodes.pop(sibling)]
                value = self._merge(*(pair if place % 2 == 0 else pair[::-1]))
            elif sibling[1] < width:
                break
            level, place = level + 1, place // 2
        self.nodes[level, place] = value

    @property
    def total(self) -> Any:
        """The value of the root."""
        (total,) = self.nodes.values()
        return total


# -- one partition -------------------------------------------------------------------------------


class Description(NamedTuple):
    """Rows as a worker found them."""

    n_rows: int
    n_used: int
    shape: tuple[int, int]  # numbers of inputs and of targets
    known: Mask  # targets with a known value in a used row
    first_bad: dict[str, int | None]  # first row with each fault; None: there is none


class Partition:
    """Some rows: inputs, targets (NaN: unknown) and weights as given; `rows` after `prepare`."""

    rows: BlockRows

    def __init__(self, number: int, X: Array, T: Array, w: Array) -> None:
        self.number, self.X, self.T, self.w = number, X, T, w
        self.used = has_target(T, w)
        self.version = 0

    def do(self, command: Command) -> object:
        """Call the method of a command, of this class or of the rows."""
        owner = self if hasattr(Partition, command.method) else self.rows
        answer = getattr(owner, command.method)(*command.args)
        self.version += command.mutates
        return answer

    def describe(self) -> list[Description]:
        """Return what the coordinator must know to accept these rows."""
        known = known_cells(self.T)
        return [
            Description(
                len(self.X),
                int(self.used.sum()),
                (self.X.shape[1], self.T.shape[1]),
                np.asarray(known[self.used].any(axis=0)),
                {
                    "bad_input": _first(~np.isfinite(self.X).all(axis=1)),
                    "missing": _first(~known.all(axis=1)),
                    "infinite": _first(np.isinf(self.T).any(axis=1)),
                    "bad_weight": _first(~(np.isfinite(self.w) & (self.w >= 0))),
                },
            )
        ]

    def targets(self, starts: list[int], every: int) -> list[tuple[Array, Array]]:
        """Return targets and weights of used rows, of each `every`-th row of the whole table."""
        rows = slice(-starts[self.number] % every, None, every)
        used = self.used[rows]
        return [(self.T[rows][used], self.w[rows][used])]

    def inputs_at(self, starts: list[int], at: Indices) -> list[tuple[Indices, Array]]:
        """Return which of some used rows of the whole table are here, and their inputs.

        `starts` are the numbers of used rows before each partition.
        """
        numbers = np.flatnonzero(self.used)
        here = np.flatnonzero((at >= starts[self.number]) & (at < starts[self.number + 1]))
        return [(here, self.X[numbers[at[here] - starts[self.number]]])]

    def summary(self, make: Callable[[Array, Array], Summary]) -> Summary:
        """Summarise the used rows; see `gorelm._features.scaling.fit_scaling`."""
        return make(self.X[self.used], self.w[self.used])

    def target_sizes(self, model: BatchModel) -> tuple[list[tuple[Array, Array]], NormSummary]:
        """Return norms of the scaled targets of used rows with their weights, and a summary."""
        targets = self._targets(model)
        summary = NormSummary.of(targets.T, model.problem(), targets.omega)
        return [(targets.sizes(), targets.w)], summary

    def _targets(self, model: BatchModel) -> Targets:
        return Targets.scaled(model._target_scaling, self.T[self.used], self.w[self.used])

    def prepare(self, model: BatchModel, limit: float, in_memory: bool, memory: float) -> None:
        """Scale the rows, shorten targets beyond `limit`, and make H or what makes its blocks."""
        targets, X = self._targets(model), self.X
        omega, observed = targets.omega, targets.observed
        T = shorten(targets.T, model.problem(), omega, limit, X.dtype)
        scaling, layer = model._input_scaling, model.hidden_
        if in_memory:
            design = Design.of(scaling, X if self.used.all() else X[self.used], targets)
            # H'T comes with H'H.
            self.rows = MemoryRows(design.hidden(layer), T, omega, observed, HtT=np.empty((0, 0)))
        else:
            blocks = HiddenBlocks(
                RowBlocks.from_array(X),
                self.used,
                scaling,
                layer,
                omega,
                memory=memory,
                dtype=X.dtype,
            )
            self.rows = StreamedRows(blocks, T, omega, observed)

    def complete(self) -> list[bool]:
        """Return whether every target of the used rows is known."""
        return [self.rows.complete]

    def step(
        self, B: Array, problem: Problem, rho: Array, relax: float, cap: Array, measure: bool
    ) -> tuple[Array, StepSums | None]:
        """Do `Rows.step`."""
        return self.rows.step(B, problem, rho, relax, cap=cap, measure=measure)

    def scores(self, model: BatchModel) -> list[tuple[Array, Mask]]:
        """Return the outlier scores of all rows, and which rows were used."""
        if not len(self.X):
            return [(np.empty(0), self.used)]
        return [(row_scores(model._residuals(self.X, self.T), self.T), self.used)]


def _first(bad: npt.ArrayLike) -> int | None:
    return int(np.argmax(bad)) if np.any(bad) else None


# -- all partitions of a worker ------------------------------------------------------------------

# Tasks find the actor of their worker here: as an argument it would be a proxy, and all data passed
# to it would be copied.
_ACTORS: WeakValueDictionary[str, PartitionActor] = WeakValueDictionary()


class PartitionActor:
    """The actor that holds a worker's partitions, and processes `n_threads` of them at a time."""

    def __init__(
        self, name: str, n_partitions: int, n_threads: int, memory_limit: float | None
    ) -> None:
        self._n_partitions, self._memory_limit = n_partitions, memory_limit
        self.partitions: dict[int, Partition] = {}
        self._map: Callable[..., Iterator[object]] = (
            ThreadPoolExecutor(n_threads, thread_name_prefix="rows").map if n_threads > 1 else map
        )
        _ACTORS[name] = self

    def run(self, request: Request) -> Reply | Failure:
        """Run a command on some partitions; errors are returned, not raised."""
        start = time.perf_counter()
        try:
            command = self._completed(request.command)
            sums = PartialSums(self._n_partitions, command.merge)
            parts = [self.at(number, request.version) for number in request.partitions]
            for part, value in zip(parts, self._map(lambda p: p.do(command), parts), strict=True):
                sums.put((0, part.number), value)
        except Exception as error:
            return Failure.of(error)
        return Reply(sums.nodes, time.perf_counter() - start)

    def at(self, number: int, version: int) -> Partition:
        """Return a partition, which must be at `version`."""
        part = self.partitions[number]
        if part.version != version:
            raise RuntimeError(
                f"partition {number} has gone through {part.version} changes, not {version}"
            )
        return part

    def _completed(self, command: Command) -> Command:
        """Add to the arguments of `prepare` whether H fits into the memory of this worker."""
        if command.method != "prepare":
            return command
        model, limit = command.args
        budget = in_bytes(model.memory_budget)
        if model.memory_budget is None and self._memory_limit:
            budget = 0.5 * self._memory_limit
        parts = self.partitions.values()
        n_hidden = model.hidden_.n_outputs
        needed = sum(len(p.X) * n_hidden * p.X.dtype.itemsize for p in parts)
        if needed <= budget:
            return command._replace(args=(model, limit, True, budget))
        loop = sum(44 * p.T.size + p.X.nbytes for p in parts)
        return command._replace(args=(model, limit, False, max(budget - loop, 0.0) / len(parts)))


def make_actor(name: str, n_partitions: int, n_threads: int) -> PartitionActor:
    """Return the actor of this worker."""
    from distributed import get_worker

    memory = getattr(get_worker(), "memory_manager", None)
    return PartitionActor(name, n_partitions, n_threads, getattr(memory, "memory_limit", None))


def load(
    name: str,
    number: int,
    dtype: npt.DTypeLike,
    x: npt.ArrayLike,
    t: npt.ArrayLike,
    w: npt.ArrayLike | None,
) -> None:
    """Give an actor of this worker a partition (a task)."""
    dense = x.toarray() if hasattr(x, "toarray") else x
    X, T = np.ascontiguousarray(dense, dtype=dtype), np.asarray(t, dtype=np.float64)
    weights = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64).ravel()
    if not len(X) == len(T) == len(weights):
        raise ValueError(
            f"partition {number} has {len(X)} rows of X, {len(T)} of y and {len(weights)} weights; "
            "partition them alike"
        )
    T = T.reshape(len(X), -1) if len(X) else T.reshape(0, T.shape[1] if T.ndim > 1 else 1)
    _ACTORS[name].partitions[number] = Partition(number, X, T, weights)


def snapshot(name: str, numbers: list[int], version: int) -> Snapshot:
    """Return version, E and U of partitions of this worker (a task)."""
    parts = [_ACTORS[name].at(number, version) for number in numbers]
    return {part.number: (version, part.rows.E, part.rows.U) for part in parts}


def copied(snapshot: Snapshot) -> Snapshot:
    """Return a copy of a snapshot (a task)."""
    return {n: (version, E.copy(), U.copy()) for n, (version, E, U) in snapshot.items()}


def restore(name: str, number: int, snapshot: Snapshot) -> None:
    """Set version, E and U of a partition of this worker to those of a snapshot (a task)."""
    part = _ACTORS[name].partitions[number]
    version, E, U = snapshot[number]
    part.version, part.rows.E, part.rows.U = version, E.copy(), U.copy()
