"""Sums over partitions: as small messages, and in an order that depends on nothing but numbers.

Sums are added up as a tree: pairs of partitions, FAN_IN pairs, FAN_IN of these, and so on. Which
of the subtrees are a task of their own does not change any digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gorelm._solver.ridge import RidgeSums
from gorelm._typing import Array

if TYPE_CHECKING:
    from dask.delayed import Delayed

Value = TypeVar("Value")

FAN_IN = 4  # sums that are added in one task: fewer are more tasks in a row
STRIP = 64  # rows of H'H that are packed at a time: fewer are more steps, more are more numbers
N_LAST = 2  # sums that are left for this process to add


def packed(sums: Sequence[RidgeSums]) -> Array:
    """Return sums as one array: H'H, which is symmetric, from its diagonal on, and H'T."""
    n_outputs, n_targets = sums[0].C.shape
    widths = n_outputs + n_targets - np.arange(n_outputs) // STRIP * STRIP
    values = np.empty((len(sums), widths.sum()))
    for row, of in zip(values, sums, strict=True):
        for at, strip in _strips(row, n_outputs, n_targets):
            width = n_outputs - at.start
            strip[:, :width], strip[:, width:] = of.G[at, at.start :], of.C[at]
    return values


def unpacked(values: Array, n_outputs: int, n_targets: int) -> list[RidgeSums]:
    """Return the sums of a packed array."""
    # At once: memory of many smaller arrays goes back to the system when they are freed.
    G = np.empty((len(values), n_outputs, n_outputs))
    C = np.empty((len(values), n_outputs, n_targets))
    for k, row in enumerate(values):
        for at, strip in _strips(row, n_outputs, n_targets):
            half, C[k, at] = np.split(strip, [n_outputs - at.start], axis=1)
            G[k, at, at.start :], G[k, at.start :, at] = half, half.T
    return list(map(RidgeSums, G, C))


def _strips(row: Array, n_outputs: int, n_targets: int) -> Iterator[tuple[slice, Array]]:
    """Yield views of one packed sum: rows of H'H from the diagonal on, and of H'T, with places."""
    end = 0
    for start in range(0, n_outputs, STRIP):
        at = slice(start, min(start + STRIP, n_outputs))
        shape = at.stop - start, n_outputs - start + n_targets
        begin, end = end, end + shape[0] * shape[1]
        yield at, row[begin:end].reshape(shape)


def added(values: Iterable[Array]) -> Array:
    """Return the sum of packed sums."""
    return reduce(np.add, values)


def joined(
    numbers: Sequence[int],
    value: Callable[[int], Value],
    join: Callable[[Iterable[Value]], Value],
) -> Value:
    """Return the joined values of some partitions, by increasing numbers.

    The value at a partition may be that of a whole subtree, of which no other number is given.
    """
    if len(numbers) == 1:
        return value(numbers[0])
    size, larger = 1, 2
    while numbers[0] // larger != numbers[-1] // larger:
        size, larger = larger, FAN_IN * larger
    return join(joined(subtree, value, join) for subtree in _subtrees(numbers, size))


def units_of(run: range) -> list[range]:
    """Split a run of partitions into as few subtrees as possible."""
    units, start = [], run.start
    while start < run.stop:
        size, larger = 1, 2
        while start % larger == 0 and start + larger <= run.stop:
            size, larger = larger, FAN_IN * larger
        units.append(range(start, start + size))
        start += size
    return units


def last_few(tasks: dict[int, Delayed]) -> dict[int, Delayed]:
    """Return tasks that add the packed sums of others until N_LAST are left, by first numbers."""
    import dask

    def task_adding(some: Iterable[Any]) -> Any:
        return dask.delayed(added, pure=False)(list(some))

    size, larger = 1, 2
    while len(subtrees := _subtrees(list(tasks), size)) > N_LAST:
        size, larger = larger, FAN_IN * larger
    return {some[0]: joined(some, tasks.__getitem__, task_adding) for some in subtrees}


def _subtrees(numbers: Sequence[int], size: int) -> list[list[int]]:
    return [list(some) for _, some in groupby(numbers, lambda number: number // size)]
