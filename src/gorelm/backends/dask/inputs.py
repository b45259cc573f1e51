"""Scaled inputs in the partitions of a dask collection, on the workers of a cluster.

Neighbouring partitions are on the same worker where that is ours to say, and make up units there.
Of at most FEW_UNITS units, each call asks the workers that hold them; of more, it is a graph of
tasks: one for every unit, and sums of units that are added up to the last few. In which order
partitions are added does not depend on the units, and so no digit does. The scheduler keeps the
graph of every unit, so that those of a lost worker are made again.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gorelm._features.joint import HiddenOutputs
from gorelm._features.scaling import Scaling, fit_scaling, merge
from gorelm._solver.ridge import RidgeSums
from gorelm._typing import Array, Indices, Mask
from gorelm.backends.dask.fit import active_client
from gorelm.backends.dask.holders import asked
from gorelm.backends.dask.source import (
    Partitioned,
    SomeRows,
    delayed_parts,
    names_of,
    naming_lost_cluster,
)
from gorelm.backends.dask.sums import added, joined, last_few, packed, units_of, unpacked
from gorelm.backends.dask.workers import gathered, is_direct, release
from gorelm.backends.inputs import (
    InMemory,
    LastTaken,
    ScaledRows,
    empty_outputs,
    within_reach,
)

if TYPE_CHECKING:
    from dask.delayed import Delayed
    from distributed import Client, Future

FEW_UNITS = 8  # at most, to which this process sends all that a pass needs
SMALL_BYTES = 2**18  # of an argument that every task of a pass may carry


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
        parts, arrays = delayed_parts(X), []
        self._units: list[range] = []
        for place, run in _runs(self._client, X, len(parts)):
            self._units += units_of(run)
            at = dask.annotate(workers=[place], allow_other_workers=True) if place else None
            with at or nullcontext():
                arrays += [dask.delayed(_as_array, pure=False)(parts[number]) for number in run]
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
        with _released_on_error(self._parts):
            return self.scaled(None).take(rows)

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
                found = results(self._client, parts)
            return joined(range(len(found)), found.__getitem__, partial(reduce, merge))

        return fit_scaling("standard", self.shape[1], summarise)

    def scaled(self, scaling: Scaling | None) -> DaskInputs:
        """Return the scaled inputs, on the workers; None: as they are."""
        import dask

        made = dask.delayed(_unit, pure=False)
        units = [made(unit, self._parts[unit.start : unit.stop], scaling) for unit in self._units]
        held = self._client.persist(units)
        return DaskInputs(self._client, self._units, held, self.starts, self.shape)


class DaskInputs:
    """Scaled inputs in partitions, each an `InMemory` on a worker.

    `units` are numbers of partitions, and `held` the partitions themselves.
    """

    def __init__(
        self,
        client: Client,
        units: Sequence[range],
        held: Sequence[Delayed],
        starts: Indices,
        shape: tuple[int, int],
    ) -> None:
        self._client, self._units, self._held, self._starts = client, units, held, starts
        self.shape = shape
        self._last = LastTaken()

    def take(self, rows: Indices | slice) -> Array:
        """Return the inputs of some rows, in the order given."""
        return self._last.of(rows, self._taken)

    def sample(self, rows: Indices) -> ScaledRows:
        """Return some rows by themselves, in the memory of this process."""
        return InMemory(self.take(rows))

    def _taken(self, rows: Indices | slice) -> Array:
        chosen: Indices = np.arange(self.shape[0])[rows]
        taken = np.empty((len(chosen), self.shape[1]))
        places, shares = self._shares([chosen])
        found = self._of_units(_taken, shares)
        for (where,), x in zip(places, chain(*found.values()), strict=True):
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

        _, local = self._shares(groups)
        if not local:
            return [RidgeSums.zero(hidden.n_outputs + 1, T.shape[1]) for _ in groups]
        shares = {}
        for number, rows in local.items():
            a, b = self._starts[number : number + 2]
            shares[number] = rows, omega[a:b], T[a:b]
        found = self._of_units(_summed, shares, hidden, last=last_few)
        total: Array = joined(list(found), found.__getitem__, added)
        return unpacked(total, hidden.n_outputs + 1, T.shape[1])

    def outputs(
        self,
        hidden: HiddenOutputs,
        groups: Sequence[Indices],
        coefs: Sequence[Array],
        n_threads: int = 1,
    ) -> list[Array]:
        """Return H B of every group of rows; see `ScaledRows.outputs`."""
        del n_threads

        outputs = empty_outputs(groups, coefs)
        places, shares = self._shares(groups)
        found = self._of_units(_outputs, shares, hidden, list(coefs))
        for where, of_part in zip(places, chain(*found.values()), strict=True):
            for k, values in enumerate(of_part):
                outputs[k][where[k]] = values
        return outputs

    def _of_units(
        self, work: Any, shares: dict[int, Any], *args: Any, last: Any = None
    ) -> dict[int, Any]:
        """Return what work makes of the units that have a share, by their first partitions.

        Few units are worked on where they are. Of many, large arguments are better sent from worker
        to worker, and results joined by workers (`last`): these are tasks.
        """
        import dask
        from distributed import futures_of

        chosen = {}
        for unit, held in zip(self._units, self._held, strict=True):
            here = {number: shares[number] for number in unit if number in shares}
            if here:
                chosen[unit.start] = held, partial(work, here)
        with _released_on_error(self._held):
            if len(chosen) <= FEW_UNITS and is_direct(self._client):
                futures = [futures_of(held)[0] for held, _ in chosen.values()]
                works = [partial(_with, do, args) for _, do in chosen.values()]
                return dict(zip(chosen, answers(self._client, futures, works), strict=True))
            shared = [_shared(arg) for arg in args]
            tasks = {
                first: dask.delayed(do, pure=False)(held, *shared)
                for first, (held, do) in chosen.items()
            }
            tasks = tasks if last is None else last(tasks)
            return dict(zip(tasks, results(self._client, list(tasks.values())), strict=True))

    def _shares(
        self, groups: Sequence[Indices]
    ) -> tuple[list[list[Indices]], dict[int, list[Indices]]]:
        """Return what partitions have of the groups: places in them, and rows of each partition."""
        orders = [np.argsort(group, kind="stable") for group in groups]
        ends = [
            np.searchsorted(group[order], self._starts)
            for group, order in zip(groups, orders, strict=True)
        ]
        places, local = [], {}
        for number, start in enumerate(self._starts[:-1]):
            here = [
                order[at[number] : at[number + 1]] for order, at in zip(orders, ends, strict=True)
            ]
            if any(len(some) for some in here):
                places.append(here)
                local[number] = [group[at] - start for group, at in zip(groups, here, strict=True)]
        return places, local


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


def _unit(numbers: range, parts: list[Array], scaling: Scaling | None) -> dict[int, InMemory]:
    scaled = parts if scaling is None else [within_reach(scaling, x) for x in parts]
    return {number: InMemory(x) for number, x in zip(numbers, scaled, strict=True)}


def _with(work: Any, args: tuple[Any, ...], unit: dict[int, InMemory]) -> Any:
    return work(unit, *args)


def _taken(shares: dict[int, list[Indices]], unit: dict[int, InMemory]) -> list[Array]:
    return [unit[number].take(rows) for number, (rows,) in shares.items()]


def _summed(
    shares: dict[int, tuple[list[Indices], Array, Array]],
    unit: dict[int, InMemory],
    hidden: HiddenOutputs,
) -> Array:
    def of_partition(number: int) -> list[RidgeSums]:
        return unit[number].sums(hidden, *shares[number])

    total = joined(list(shares), of_partition, _accumulated)
    return packed(total)


def _accumulated(sums: Iterable[list[RidgeSums]]) -> list[RidgeSums]:
    """Return the sums of some rows and of others, in the memory of the first."""
    remaining = iter(sums)
    total = next(remaining)
    for more in remaining:
        for of, other in zip(total, more, strict=True):
            of += other
    return total


def _outputs(
    shares: dict[int, list[Indices]],
    unit: dict[int, InMemory],
    hidden: HiddenOutputs,
    coefs: list[Array],
) -> list[list[Array]]:
    return [unit[number].outputs(hidden, rows, coefs) for number, rows in shares.items()]


# -- graphs --------------------------------------------------------------------------------------


def _runs(client: Client, X: Any, n_parts: int) -> list[tuple[str | None, range]]:
    """Return runs of partitions, one for every thread, each with the address of its worker.

    Partitions that workers hold already stay where they are: runs of one, without an address.
    """
    from distributed import futures_of

    threads = [at for at, n in sorted(client.nthreads().items()) for _ in range(n)]
    if not threads or futures_of(X.whole if isinstance(X, SomeRows) else X):
        return [(None, range(number, number + 1)) for number in range(n_parts)]
    ends = [-(-k * n_parts // len(threads)) for k in range(len(threads) + 1)]
    return [(at, range(a, b)) for at, (a, b) in zip(threads, pairwise(ends), strict=True)]


def _shared(value: Any) -> Any:
    """Return an argument of many tasks: within each if it is small, or else a task of its own.

    That has to be done first, and its result to be sent from one worker to the others.
    """
    import dask

    small = len(pickle.dumps(value, protocol=5)) <= SMALL_BYTES
    return value if small else dask.delayed(value, pure=False)


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


def answers(client: Client, futures: list[Future], works: list[Any]) -> list[Any]:
    """Return what workers make of results that they hold."""
    with naming_lost_cluster():
        return asked(client, futures, works)


if TYPE_CHECKING:
    _implements: type[ScaledRows] = DaskInputs
