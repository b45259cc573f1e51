"""What lives on the workers: partitions of the rows, and the object that holds some of them."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from gorelm._solver.rows import BlockRows, MemoryRows, StepSums
from gorelm._typing import Array
from gorelm.backends.streamed import HiddenBlocks, StreamedRows
from gorelm.stream import RowBlocks

__all__ = ["Command", "Failure", "PartialSums", "Partition", "PartitionActor", "Reply", "Request"]

Merge = Callable[[Any, Any], Any]


class Command(NamedTuple):
    """What all partitions are to do, and how their answers become one."""

    method: str
    args: tuple[Any, ...]
    merge: Merge
    mutates: bool = False  # whether it changes what a partition holds
    setup: bool = False  # whether a partition that is given E and U must have done it before


class Request(NamedTuple):
    """A command for some partitions, which must have gone through `version` changes before."""

    partitions: list[int]
    version: int
    command: Command


class Reply(NamedTuple):
    """Nodes of the tree of sums, and the seconds they took to make."""

    nodes: dict[tuple[int, int], Any]
    seconds: float


class Failure(NamedTuple):
    """An error in the work itself, as opposed to the loss of who does it."""

    kind: str
    message: str
    details: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Describe an error in words that travel."""
        return cls(type(error).__name__, str(error), traceback.format_exc())


# -- sums over partitions ------------------------------------------------------------------------


def add(one: Any, other: Any) -> Any:
    """Add sums of two sets of partitions, whatever they are made of; lists are joined."""
    if one is None:
        return None
    if isinstance(one, StepSums):
        return StepSums(*(add(a, b) for a, b in zip(_fields(one), _fields(other), strict=True)))
    if isinstance(one, tuple):
        values = (add(a, b) for a, b in zip(one, other, strict=True))
        return type(one)(*values) if hasattr(one, "_fields") else tuple(values)
    return one + other


def largest(one: Array, other: Array) -> Array:
    """Return the larger of every two numbers."""
    return np.maximum(one, other)


def reach_and_sum(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    """Join what `Rows.corrected_dual` returns: how far multipliers reach, and a sum."""
    return np.maximum(one[0], other[0]), one[1] + other[1]


def _fields(sums: StepSums) -> Iterable[Array]:
    return list(vars(sums).values())


class PartialSums:
    """Sums over partitions along one binary tree: the same bits whoever adds up which of them.

    Parameters
    ----------
    n_partitions : int
        Number of leaves.
    merge : callable
        Makes the value of a node out of those of its two children.
    """

    def __init__(self, n_partitions: int, merge: Merge) -> None:
        self._n_partitions, self._merge = n_partitions, merge
        self.nodes: dict[tuple[int, int], Any] = {}

    def put(self, node: tuple[int, int], value: Any) -> None:
        """Give a node (level, position) its value, and all above it that now can have one."""
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


class Partition:
    """Some rows: inputs, targets and weights as they came, and, once `prepare` is done, a `Rows`.

    Parameters
    ----------
    number : int
        Its place in the order of partitions.
    X : array (n, d)
        Inputs.
    T : array (n, m)
        Targets, NaN where unknown.
    w : array (n,)
        Sample weights.
    """

    rows: BlockRows

    def __init__(self, number: int, X: Array, T: Array, w: Array) -> None:
        self.number, self.X, self.T, self.w = number, X, T, w
        self.used: npt.NDArray[np.bool_] = (w > 0) & (~np.isnan(T)).any(axis=1)
        self.version = 0

    def do(self, command: Command) -> Any:
        """Carry out a command, which names a method of this class or of the rows."""
        owner = self if hasattr(Partition, command.method) else self.rows
        answer = getattr(owner, command.method)(*command.args)
        self.version += command.mutates
        return answer

    def describe(self) -> list[dict[str, Any]]:
        """Return what the coordinator must know to accept these rows."""
        return [
            {
                "n_rows": len(self.X),
                "n_used": int(self.used.sum()),
                "shape": (self.X.shape[1], self.T.shape[1]),
                "known": (~np.isnan(self.T[self.used])).sum(axis=0),
                "bad_input": _first(~np.isfinite(self.X).all(axis=1)),
                "missing": _first(np.isnan(self.T).any(axis=1)),
                "infinite": _first(np.isinf(self.T).any(axis=1)),
                "bad_weight": _first(~(np.isfinite(self.w) & (self.w >= 0))),
            }
        ]

    def targets(self, starts: list[int], every: int) -> list[tuple[Array, Array]]:
        """Return targets and weights of used rows, of each `every`-th row of the whole table."""
        rows = slice(-starts[self.number] % every, None, every)
        used = self.used[rows]
        return [(self.T[rows][used], self.w[rows][used])]

    def ends(self) -> Array:
        """Return the largest of -X and of X in every column, (2, d)."""
        X = self.X[self.used]
        columns = [signed.max(axis=0, initial=-np.inf) for signed in (-X, X)]
        return np.stack(columns).astype(float)

    def first_moments(self, unit: Array) -> tuple[float, Array]:
        """Return the sums of weights and of weighted inputs, the latter in units of `unit`."""
        w = self.w[self.used]
        return float(w.sum()), w @ (self.X[self.used] / unit)

    def second_moments(self, unit: Array, mean: Array) -> Array:
        """Return the weighted sum of squared distances from the mean."""
        return np.asarray(self.w[self.used] @ (self.X[self.used] / unit - mean) ** 2)

    def prepare(self, model: Any, in_memory: bool, memory: float) -> None:
        """Scale the rows and make H, or what makes it in blocks anew in every pass."""
        X, T, w = self.X, self.T[self.used], self.w[self.used]
        if in_memory:
            design = model._scaled(X if self.used.all() else X[self.used], T, w)
            H = design.hidden(model.hidden_)
            parts = (design.T, design.omega, design.observed)
            self.rows = MemoryRows(H, *parts, HtT=np.empty((0, 0)))  # H'T comes with H'H
        else:
            parts = model._scaled_targets(T, w)
            blocks = HiddenBlocks(
                RowBlocks.from_array(X),
                self.used,
                model._input_scaling,
                model.hidden_,
                parts[1],
                memory=memory,
                dtype=X.dtype,
            )
            self.rows = StreamedRows(blocks, *parts)

    def target_sizes(self, model: Any) -> list[tuple[Array, Array]]:
        """Return the norms of the scaled targets of used rows, and their weights."""
        w = self.w[self.used]
        T, _, _ = model._scaled_targets(self.T[self.used], np.ones_like(w))
        return [(np.sqrt(np.einsum("nm,nm->n", T, T)), w)]

    def complete(self) -> list[bool]:
        """Return whether every target of the used rows is known."""
        return [self.rows.complete]

    def step(
        self, B: Array, problem: Any, rho: Array, relax: float, cap: Array, measure: bool
    ) -> tuple[Array, StepSums | None]:
        """Do `Rows.step`."""
        return self.rows.step(B, problem, rho, relax, cap=cap, measure=measure)

    def scores(self, model: Any) -> list[tuple[Array, npt.NDArray[np.bool_]]]:
        """Return the outlier scores of all rows, and which rows were used."""
        from gorelm.estimators._prepare import row_scores

        if not len(self.X):
            return [(np.empty(0), self.used)]
        return [(row_scores(model._residuals(self.X, self.T), self.T), self.used)]


def _first(bad: Any) -> int | None:
    return int(np.argmax(bad)) if bad.any() else None


# -- all partitions of a worker ------------------------------------------------------------------

# Ordinary tasks find the actor of their worker here: handed over as their argument it would be a
# proxy, and everything that they bring it would be copied.
_ACTORS: WeakValueDictionary[str, PartitionActor] = WeakValueDictionary()


class PartitionActor:
    """The actor that holds a worker's partitions.

    Parameters
    ----------
    name : str
        Unique name.
    n_partitions : int
        Number of partitions of the whole table.
    n_threads : int
        How many partitions to work on at a time.
    memory_limit : float or None
        Bytes of memory that the worker may use; None if nothing is known.
    """

    def __init__(
        self, name: str, n_partitions: int, n_threads: int, memory_limit: float | None
    ) -> None:
        self._n_partitions, self._memory_limit = n_partitions, memory_limit
        self.partitions: dict[int, Partition] = {}
        self._map: Callable[..., Iterator[Any]] = (
            ThreadPoolExecutor(n_threads, thread_name_prefix="rows").map if n_threads > 1 else map
        )
        _ACTORS[name] = self

    def run(self, request: Request) -> Reply | Failure:
        """Carry out a command on some partitions. Never raises: what raises is a lost worker."""
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
        """Return a partition, which must have gone through so many changes."""
        part = self.partitions[number]
        if part.version != version:
            raise RuntimeError(
                f"partition {number} has gone through {part.version} changes, not {version}"
            )
        return part

    def _completed(self, command: Command) -> Command:
        """Add to `prepare` what only the worker knows: whether H fits into its memory."""
        if command.method != "prepare":
            return command
        from gorelm.estimators._owners import in_bytes

        (model,) = command.args
        budget = in_bytes(model.memory_budget)
        if model.memory_budget is None and self._memory_limit:
            budget = 0.5 * self._memory_limit
        parts = self.partitions.values()
        n_hidden = model.hidden_.n_outputs
        needed = sum(len(p.X) * n_hidden * p.X.dtype.itemsize for p in parts)
        if needed <= budget:
            return command._replace(args=(model, True, budget))
        loop = sum(44 * p.T.size + p.X.nbytes for p in parts)
        return command._replace(args=(model, False, max(budget - loop, 0.0) / len(parts)))


def make_actor(name: str, n_partitions: int, n_threads: int) -> PartitionActor:
    """Return the actor of this worker."""
    from distributed import get_worker

    memory = getattr(get_worker(), "memory_manager", None)
    return PartitionActor(name, n_partitions, n_threads, getattr(memory, "memory_limit", None))


def load(name: str, number: int, dtype: Any, x: Any, t: Any, w: Any) -> None:
    """Give a actor of this worker a partition (a task)."""
    if hasattr(x, "toarray"):
        x = x.toarray()
    X, T = np.ascontiguousarray(x, dtype=dtype), np.asarray(t, dtype=np.float64)
    weights = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64).ravel()
    if not len(X) == len(T) == len(weights):
        raise ValueError(
            f"partition {number} has {len(X)} rows of X, {len(T)} of y and {len(weights)} weights; "
            "partition them alike"
        )
    T = T.reshape(len(X), -1) if len(X) else T.reshape(0, T.shape[1] if T.ndim > 1 else 1)
    _ACTORS[name].partitions[number] = Partition(number, X, T, weights)


def snapshot(name: str, numbers: list[int], version: int) -> dict[int, tuple[int, Array, Array]]:
    """Return version, E and U of partitions of a actor of this worker (a task)."""
    parts = [_ACTORS[name].at(number, version) for number in numbers]
    return {part.number: (version, part.rows.E, part.rows.U) for part in parts}


def copied(snapshot: dict[int, tuple[int, Array, Array]]) -> dict[int, tuple[int, Array, Array]]:
    """Return a snapshot in memory of its own (a task)."""
    return {n: (version, E.copy(), U.copy()) for n, (version, E, U) in snapshot.items()}


def restore(name: str, number: int, snapshot: dict[int, tuple[int, Array, Array]]) -> None:
    """Give a partition of a actor of this worker the state that a snapshot has of it (a task)."""
    part = _ACTORS[name].partitions[number]
    version, E, U = snapshot[number]
    part.version, part.rows.E, part.rows.U = version, E.copy(), U.copy()
