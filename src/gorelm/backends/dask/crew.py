"""All partitions of a table, wherever they are: told what to do together, made again when lost.

All partitions go through the same changes, in the same order: a log of them, and the source of its
rows, are enough to make a lost partition again on another worker. So that it need not go through
all of them, E and U of every partition are copied to a second worker now and then.
"""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self

from gorelm.backends.dask import partition as _partition
from gorelm.backends.dask.partition import Command, Failure, Merge, PartialSums, Request, add
from gorelm.backends.dask.staff import Member, Options, Staff, raise_failure, release

__all__ = ["Crew", "Source"]

logger = logging.getLogger("gorelm.dask")

_LOG_BYTES = 2**30  # of changes that the coordinator keeps, once there is a checkpoint

Orders = list[tuple[Member, list[int]]]


class Source(Protocol):
    """Where partitions come from, again and again."""

    dtype: Any

    def __len__(self) -> int:
        """Return the number of partitions."""
        ...

    def futures(
        self, client: Any, places: dict[int, str], *, direct: bool
    ) -> dict[int, tuple[Any, ...]]:
        """Return inputs, targets and weights (or None) of partitions wanted on some workers."""
        ...


@dataclass
class _Checkpoint:
    """Copies of E and U after so many changes: of every partition, the future that has it."""

    clock: int
    copies: dict[int, Any]

    def has(self, orders: Orders) -> bool:
        """Whether the copies of the ordered partitions are still there."""
        return all(self.copies[n].status == "finished" for _, share in orders for n in share)


class Crew:
    """Workers that hold the partitions of a table and do with them as they are told, together.

    Parameters
    ----------
    client : distributed.Client
        Connection to the cluster.
    source : Source
        The partitions.
    options : Options
        Limits.
    """

    def __init__(self, client: Any, source: Source, options: Options) -> None:
        self._client, self._source, self._options = client, source, options
        self._staff = Staff(client, len(source), options)
        self._clock = 0  # number of changes so far
        self._log: list[tuple[int, Command]] = []  # them, each with its number
        self._is_complete = True  # whether the log has all of them
        self._checkpoint: _Checkpoint | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let the workers forget everything."""
        self._drop_checkpoint()
        self._staff.dismiss()

    # -- commands --------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        *args: Any,
        merge: Merge = add,
        changes: bool = False,
        lasts: bool = False,
    ) -> Any:
        """Have every partition do something, and return what their answers come to.

        Parameters
        ----------
        method : str
            Method of `Partition` or of its `Rows`.
        *args : object
            Its arguments.
        merge : callable, default=add
            Makes one answer of those of two sets of partitions, in their order.
        changes : bool, default=False
            Whether partitions are no longer the same afterwards.
        lasts : bool, default=False
            Whether what has changed is not part of a checkpoint.
        """
        command = Command(method, args, merge, changes, lasts)
        start, slowest = time.perf_counter(), 0.0
        sums = PartialSums(len(self._source), merge)
        pending, behind = set(range(len(self._source))), set[int]()
        while pending or behind:
            made = self._man_all_partitions()
            if changes:  # what had answered before it was lost has to do it again
                behind |= made - pending
            requests = [
                (member, Request(share, self._clock, command))
                for member in self._staff.members
                for some in (pending, behind)
                if (share := [number for number in member.partitions if number in some])
            ]
            for request, reply in self._staff.ask(requests):
                slowest = max(slowest, reply.seconds)
                if pending.issuperset(request.partitions):
                    for node, value in reply.nodes.items():
                        sums.put(node, value)
                pending.difference_update(request.partitions)
                behind.difference_update(request.partitions)
        if changes:
            self._log.append((self._clock, command))
            self._clock += 1
        self._staff.n_losses = 0
        took = time.perf_counter() - start
        logger.debug("%s took %.6f s, of which work on the rows %.6f s", method, took, slowest)
        return sums.total

    # -- checkpoints -----------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Copy E and U of every partition to a second worker, if there is one."""
        members = self._staff.members
        if len(members) < 2:
            return
        start = time.perf_counter()
        originals, copies = list[Any](), dict[int, Any]()
        for member, other in zip(members, [*members[1:], members[0]], strict=True):
            task = (_partition.snapshot, member.name, member.partitions, self._clock)
            originals.append(self._staff.submit(member, *task))
            copy = self._staff.submit(other, _partition.copied, originals[-1])
            copies.update(dict.fromkeys(member.partitions, copy))
        is_there = self._staff.finished([*copies.values()], members)
        release(originals)
        if not is_there:  # the next command will find out why
            release(copies.values())
            return
        self._drop_checkpoint()
        self._checkpoint = _Checkpoint(self._clock, copies)
        if sum(_n_bytes(command) for _, command in self._log) > _LOG_BYTES:
            self._is_complete = False
            self._log = [(at, command) for at, command in self._log if command.lasts]
        logger.debug("checkpoint took %.6f s", time.perf_counter() - start)

    def _drop_checkpoint(self) -> None:
        if self._checkpoint is not None:
            release(self._checkpoint.copies.values())
        self._checkpoint = None

    # -- making partitions, and making them again ------------------------------------------------

    def _man_all_partitions(self) -> set[int]:
        """See to it that all partitions are held by someone, and have gone through all changes.

        Returns those that were made for it.
        """
        made = set[int]()
        while True:
            held = {number for member in self._staff.members for number in member.partitions}
            lost = [number for number in range(len(self._source)) if number not in held]
            if not lost:
                return made
            self._staff.recruit()
            members = self._staff.members
            shares = _shares(lost, [len(member.partitions) for member in members])
            orders = [(m, share) for m, share in zip(members, shares, strict=True) if share]
            for member, share in self._caught_up(self._loaded(orders)):
                member.partitions = sorted([*member.partitions, *share])
                made.update(share)

    def _loaded(self, orders: Orders) -> Orders:
        """Have partitions brought to their workers; returns those of workers still there."""
        places = {number: member.address for member, share in orders for number in share}
        try:
            parts = self._source.futures(self._client, places, direct=self._staff.is_direct)
        except (OSError, TimeoutError) as error:
            gone = self._staff.gone([member for member, _ in orders])
            if not gone:
                raise RuntimeError(f"rows cannot be sent to the workers: {error}") from error
            for member in gone:
                self._staff.lose(member)
            return []
        tasks = {
            member: [
                self._staff.submit(
                    member, _partition.load, member.name, n, self._source.dtype, *parts[n]
                )
                for n in share
            ]
            for member, share in orders
        }
        try:
            while not self._staff.finished([*itertools.chain(*tasks.values())], list(tasks)):
                gone = self._staff.gone(list(tasks))
                for member in gone:
                    self._staff.lose(member)
                    release(tasks.pop(member))
                if not gone:
                    self._explain(tasks)
            return [(member, share) for member, share in orders if member in tasks]
        finally:
            release(itertools.chain(*tasks.values()))
            release(future for part in parts.values() for future in part if future is not None)

    def _explain(self, tasks: dict[Member, list[Any]]) -> NoReturn:
        """Raise what keeps partitions from being loaded."""
        for member, task in ((m, task) for m, several in tasks.items() for task in several):
            if task.status == "pending":
                continue
            try:
                task.result(timeout=self._options.worker_timeout)
            except (MemoryError, ValueError, TypeError) as error:
                raise_failure(Failure.of(error), "load", member.address)
            except Exception as error:
                raise RuntimeError(
                    f"rows could not be brought to worker {member.address}: {error}. Rows that "
                    "were scattered over the cluster are gone with the workers that had them; use "
                    "a collection that can be computed again, or gorelm.backends.dask.from_arrays"
                ) from error
        raise RuntimeError(
            f"rows were not brought to their workers within {self._options.call_timeout:g} s; "
            "allow more: dask.config.set({'gorelm.call-timeout': '1 hour'})"
        )

    def _caught_up(self, orders: Orders) -> Orders:
        """Bring new partitions to where the others are; returns those of workers still there."""
        past, todo = self._checkpoint, self._log
        if past is not None and past.has(orders):
            lasting = [command for at, command in self._log if command.lasts and at < past.clock]
            for at, command in enumerate(lasting):
                orders = self._told(orders, at, command)
            if not self._restored(orders, past):
                self._drop_checkpoint()
                return []
            todo = [(at, command) for at, command in self._log if at >= past.clock]
        elif not self._is_complete:
            raise RuntimeError(
                "a worker and the copy of its state were lost together, and too many iterations "
                "have been done to do them all again; fit again"
            )
        for at, command in todo:
            orders = self._told(orders, at, command)
        return orders

    def _told(self, orders: Orders, clock: int, command: Command) -> Orders:
        requests = [(member, Request(share, clock, command)) for member, share in orders]
        answered = [request.partitions for request, _ in self._staff.ask(requests)]
        return [(member, share) for member, share in orders if share in answered]

    def _restored(self, orders: Orders, past: _Checkpoint) -> bool:
        tasks = [
            self._staff.submit(member, _partition.restore, member.name, n, past.copies[n])
            for member, share in orders
            for n in share
        ]
        done = self._staff.finished(tasks, [member for member, _ in orders])
        release(tasks)
        return done


def _shares(numbers: list[int], loads: list[int]) -> list[list[int]]:
    """Cut numbers into one run for each worker, longer for those that hold fewer."""
    counts = [0] * len(loads)
    for _ in numbers:
        totals = [load + count for load, count in zip(loads, counts, strict=True)]
        counts[totals.index(min(totals))] += 1
    ends = list(itertools.accumulate(counts))
    return [numbers[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _n_bytes(command: Command) -> int:
    return sum(getattr(value, "nbytes", 0) for value in command.args)
