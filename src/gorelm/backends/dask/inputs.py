"""Scaled inputs in the partitions of a dask collection, on the workers of a cluster.

Each call is one graph: a task for every partition, and sums of neighbours that are added up to the
last two. Neighbours are on the same worker where that is ours to say, so that few sums travel
between workers. The scheduler keeps the graph of every partition, so that those of a lost worker
are made again.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gorelm._features.joint import HiddenOutputs
from gorelm._features.scaling import Scaling, fit_scaling, merge
from gorelm._solver.ridge import RidgeSums
from gorelm._typing import Array, Indices, Mask
from gorelm.backends.dask.fit import active_client
from gorelm.backends.dask.source import (
    Partitioned,
    SomeRows,
    delayed_parts,
    names_of,
    naming_lost_cluster,
)
from gorelm.backends.dask.workers import gathered, release
from gorelm.backends.inputs import (
    InMemory,
    LastTaken,
    ScaledRows,
    empty_outputs,
    within_reach,
)

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client

SMALL_BYTES = 2**18  # of an argument that every task of a pass may carry
FAN_IN = 4  # sums of workers that are added in one task: fewer are more tasks in a row


class Partitions:
    """Inputs of a dask collection, not scaled, held by the workers.

    Attributes
    ----------
    shape : tuple
        (N, d).
    feature_names : list of str or None
        Columns of a dataframe.
    """

    def __init__(self, X: Any) -> None:
        self._client = active_client()
        if np.ndim(X) != 2:
            raise ValueError(f"X must have two dimensions, got {np.ndim(X)}")
        import dask

        self.feature_names = names_of(X.values if isinstance(X, Partitioned) else X)
        parts = delayed_parts(X)
        arrays = []
        for part, place in zip(parts, _places(self._client, X, len(parts)), strict=True):
            with place:
                arrays.append(dask.delayed(_as_array, pure=False)(part))
        self._parts: list[Delayed] = self._client.persist(arrays)
        with _released_on_error(self._parts):
            self._check()

    def _check(self) -> None:
        """Count the rows; raise unless all partitions have the same columns and finite numbers."""
        found: list[_Described] = self._computed(_described)
        columns = {part.n_columns for part in found if part.n_rows}
        if len(columns) != 1:
            raise ValueError(
                f"the partitions of X have {' and '.join(map(str, sorted(columns)))} columns; all "
                "must have the same"
                if columns
                else "X has no rows"
            )
        self.starts: Indices = np.cumsum([0, *(part.n_rows for part in found)])
        self.shape = int(self.starts[-1]), columns.pop()
        for start, part in zip(self.starts, found, strict=False):
            if part.first_bad is not None:
                raise ValueError(
                    f"row {start + part.first_bad} of X has a NaN or an infinite value; impute or "
                    "remove it"
                )

    def _computed(self, work: Any) -> list[Any]:
        import dask

        with _released_on_error(self._parts):
            return results(self._client, [dask.delayed(work, pure=False)(p) for p in self._parts])

    def take(self, rows: Indices) -> Array:
        """Return the inputs of some rows, in the order given, not scaled."""
        import dask

        parts = [dask.delayed(InMemory, pure=False)(part) for part in self._parts]
        return DaskInputs(self._client, parts, self.starts, self.shape).take(rows)

    def scaling(self, w: Array, used: Mask) -> Scaling:
        """Return the scaling of the rows that count to mean 0 and deviation 1."""

        def summarise(summary: Any) -> Any:
            import dask

            one = dask.delayed(_summary, pure=False)
            parts = [
                one(part, w[a:b], used[a:b], summary)
                for part, (a, b) in zip(self._parts, pairwise(self.starts), strict=True)
            ]
            with _released_on_error(self._parts):
                return reduce(merge, results(self._client, _tree(parts, merge)))

        return fit_scaling("standard", self.shape[1], summarise)

    def scaled(self, scaling: Scaling) -> DaskInputs:
        """Return the scaled inputs, on the workers."""
        import dask

        scale = dask.delayed(_scaled, pure=False)
        parts = self._client.persist([scale(part, scaling) for part in self._parts])
        return DaskInputs(self._client, parts, self.starts, self.shape)


class DaskInputs:
    """Scaled inputs in partitions, each an `InMemory` on a worker."""

    def __init__(
        self, client: Client, parts: Sequence[Delayed], starts: Indices, shape: tuple[int, int]
    ) -> None:
        self._client, self._parts, self._starts, self.shape = client, parts, starts, shape
        self._last = LastTaken()

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""
        return self._last.of(rows, self._taken)

    def _taken(self, rows: Indices | slice) -> Array:
        chosen: Indices = np.arange(self.shape[0])[rows]
        taken = np.empty((len(chosen), self.shape[1]))
        places, tasks = [], []
        for number, (places_here,), (local,) in self._shares([chosen]):
            places.append(places_here)
            tasks.append(self._call(number, "take", local))
        for where, x in zip(places, self._results(tasks), strict=True):
            taken[where] = x
        return taken

    def sums(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        omega: Array,
        T: Array,
        n_threads: int = 1,
    ) -> list[RidgeSums]:
        """Return the sums of every group of rows; see `ScaledRows.sums`."""
        del n_threads  # the workers have their own

        layer = _shared(hidden)
        tasks = []
        for number, _, local in self._shares(groups):
            a, b = self._starts[number : number + 2]
            tasks.append(self._call(number, "sums", layer, local, omega[a:b], T[a:b]))
        if not tasks:
            return [RidgeSums.zero(hidden.n_outputs + 1, T.shape[1]) for _ in groups]
        found: list[RidgeSums] = reduce(_added, self._results(_tree(tasks, _added)))
        return found

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B of every group of rows; see `ScaledRows.outputs`."""
        del n_threads

        layer, weights = _shared(hidden), _shared(list(coefs))
        outputs = empty_outputs(groups, coefs)
        places, tasks = [], []
        for number, places_here, local in self._shares(groups):
            places.append(places_here)
            tasks.append(self._call(number, "outputs", layer, local, weights))
        for where, found in zip(places, self._results(tasks), strict=True):
            for k, values in enumerate(found):
                outputs[k][where[k]] = values
        return outputs

    def _results(self, tasks: list[Delayed]) -> list[Any]:
        with _released_on_error(self._parts):
            return results(self._client, tasks)

    def _call(self, number: int, method: str, *args: object) -> Delayed:
        import dask

        return dask.delayed(_called, pure=False)(self._parts[number], method, *args)

    def _shares(self, groups: Sequence[Indices]) -> list[tuple[int, list[Indices], list[Indices]]]:
        """Return what each partition has of the groups: places in them, and rows of its own."""
        orders = [np.argsort(group, kind="stable") for group in groups]
        ends = [
            np.searchsorted(group[order], self._starts)
            for group, order in zip(groups, orders, strict=True)
        ]
        shares = []
        for number, start in enumerate(self._starts[:-1]):
            places = [
                order[at[number] : at[number + 1]] for order, at in zip(orders, ends, strict=True)
            ]
            if any(len(some) for some in places):
                local = [group[at] - start for group, at in zip(groups, places, strict=True)]
                shares.append((number, places, local))
        return shares


# -- what workers do -----------------------------------------------------------------------------


class _Described(NamedTuple):
    n_rows: int
    n_columns: int
    first_bad: int | None


def _as_array(part: Any) -> Array:
    return np.asarray(part, dtype=np.float64)


def _described(x: Array) -> _Described:
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    return _Described(len(x), x.shape[1], int(bad[0]) if len(bad) else None)


def _summary(x: Array, w: Array, used: Mask, summary: Any) -> Any:
    return summary(x[used], w[used])


def _scaled(x: Array, scaling: Scaling) -> InMemory:
    return InMemory(within_reach(scaling, x))


def _called(part: InMemory, method: str, *args: Any) -> Any:
    return getattr(part, method)(*args)


def _added(one: list[RidgeSums], other: list[RidgeSums]) -> list[RidgeSums]:
    return [a + b for a, b in zip(one, other, strict=True)]


# -- graphs --------------------------------------------------------------------------------------


def _places(client: Client, X: Any, n_parts: int) -> list[AbstractContextManager[Any]]:
    """Return in which context to make the tasks of each part: a run of parts for every thread.

    Parts that workers hold already stay where they are.
    """
    import dask
    from distributed import futures_of

    threads = [at for at, n in sorted(client.nthreads().items()) for _ in range(n)]
    if not threads or futures_of(X.whole if isinstance(X, SomeRows) else X):
        return [nullcontext() for _ in range(n_parts)]
    places = [threads[number * len(threads) // n_parts] for number in range(n_parts)]
    return [dask.annotate(workers=[at], allow_other_workers=True) for at in places]


def _shared(value: Any) -> Any:
    """Return an argument of many tasks: within each if it is small, or else a task of its own.

    That has to be done first, and its result to be sent from one worker to the others.
    """
    import dask

    small = len(pickle.dumps(value, protocol=5)) <= SMALL_BYTES
    return value if small else dask.delayed(value, pure=False)


def _tree(tasks: list[Delayed], join: Any) -> list[Delayed]:
    """Join neighbours until two are left, for this process to join.

    First pairs, which are on one worker as a rule, then FAN_IN at a time.
    """
    import dask

    joined, n = dask.delayed(partial(reduce, join), pure=False), 2
    while len(tasks) > 2:
        runs = [tasks[i : i + n] for i in range(0, len(tasks), n)]
        tasks = [joined(run) if len(run) > 1 else run[0] for run in runs]
        n = FAN_IN
    return tasks


@contextmanager
def _released_on_error(parts: Sequence[Delayed]) -> Iterator[None]:
    """Let the workers drop the rows when a fit fails: the traceback holds them for longer."""
    try:
        yield
    except BaseException:
        from distributed import futures_of

        release(futures_of(parts))
        raise


def results(client: Client, tasks: list[Delayed]) -> list[Any]:
    """Return the results of some tasks, and release them on the workers."""
    with warnings.catch_warnings():
        # Targets travel in the graph, so that no worker's end can lose them.
        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
        with naming_lost_cluster():
            return gathered(client, client.compute(tasks))


if TYPE_CHECKING:
    _implements: type[ScaledRows] = DaskInputs
