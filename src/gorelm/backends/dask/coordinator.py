"""Commands to all partitions of a table, and recovery from lost workers.

Every partition goes through the same changes in the same order. A log of these commands and the
source of the rows are therefore enough to rebuild a lost partition on another worker. A checkpoint,
a copy of E and U of every partition on a second worker, shortens the replay.
"""

from __future__ import annotations

import itertools
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from gorelm.backends.dask import partition as _partition
from gorelm.backends.dask.partition import Command, Failure, Merge, PartialSums, Request, add
from gorelm.backends.dask.source import DaskSource
from gorelm.backends.dask.workers import Options, WorkerHandle, WorkerPool, raise_failure, release

if TYPE_CHECKING:
    from distributed import Client, Future

logger = logging.getLogger("gorelm.dask")

_LOG_BYTES = 2**30  # above this the log keeps only what follows the last checkpoint

Assignment = list[tuple[WorkerHandle, list[int]]]


@dataclass
class _Checkpoint:
    """Copies of E and U at some version: for every partition, the future that holds it."""

    version: int
    copies: dict[int, Future]

    def has(self, assignment: Assignment) -> bool:
        """Whether the copies of these partitions are still there."""
        return all(self.copies[n].status == "finished" for _, share in assignment for n in share)


class Coordinator:
    """Runs commands on all partitions of a table and merges their results."""

    def __init__(self, client: Client, source: DaskSource, options: Options) -> None:
        self._client, self._source, self._options = client, source, options
        self._pool = WorkerPool(client, len(source), options)
        self._version = 0  # number of changes so far
        self._log: list[tuple[int, Command]] = []  # the changes, each with its number
        self._is_complete = True  # whether the log has all of them
        self._checkpoint: _Checkpoint | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove everything from the workers."""
        self._drop_checkpoint()
        self._pool.close()

    # -- commands --------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        *args: object,
        merge: Merge = add,
        mutates: bool = False,
        setup: bool = False,
    ) -> Any:
        """Call a method of every partition, or of its rows, and return the merged result.

        `merge` joins the results of two neighbouring sets of partitions, `mutates` says whether the
        call changes them, and `setup` whether a partition restored from a checkpoint needs the call
        as well.
        """
        command = Command(method, args, merge, mutates, setup)
        start, slowest = time.perf_counter(), 0.0
        sums = PartialSums(len(self._source), merge)
        pending, behind = set(range(len(self._source))), set[int]()
        while pending or behind:
            placed = self._place_partitions()
            if mutates:  # lost after its answer: rebuilt without this change
                behind |= placed - pending
            requests = [
                (worker, Request(share, self._version, command))
                for worker in self._pool.workers
                for some in (pending, behind)
                if (share := [number for number in worker.partitions if number in some])
            ]
            for request, reply in self._pool.ask(requests):
                slowest = max(slowest, reply.seconds)
                if pending.issuperset(request.partitions):
                    for node, value in reply.nodes.items():
                        sums.put(node, value)
                pending.difference_update(request.partitions)
                behind.difference_update(request.partitions)
        if mutates:
            self._log.append((self._version, command))
            self._version += 1
        self._pool.n_losses = 0
        took = time.perf_counter() - start
        logger.debug("%s took %.6f s, of which work on the rows %.6f s", method, took, slowest)
        return sums.total

    # -- checkpoints -----------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Copy E and U of every partition to a second worker, unless a worker is paused."""
        workers = self._pool.workers
        if len(workers) < 2 or self._pool.paused():
            return
        start = time.perf_counter()
        originals: list[Future] = []
        copies: dict[int, Future] = {}
        for worker, other in zip(workers, [*workers[1:], workers[0]], strict=True):
            task = (_partition.snapshot, worker.name, worker.partitions, self._version)
            originals.append(self._pool.submit(worker, *task))
            copy = self._pool.submit(other, _partition.copied, originals[-1])
            copies.update(dict.fromkeys(worker.partitions, copy))
        done = self._pool.finished([*copies.values()], workers, wait_if_paused=False)
        release(originals)
        if not done:  # a paused worker, or a lost one: the next command notices
            release(copies.values())
            return
        self._drop_checkpoint()
        self._checkpoint = _Checkpoint(self._version, copies)
        if sum(_n_bytes(command) for _, command in self._log) > _LOG_BYTES:
            self._is_complete = False
            self._log = [(at, command) for at, command in self._log if command.setup]
        logger.debug("checkpoint took %.6f s", time.perf_counter() - start)

    def _drop_checkpoint(self) -> None:
        if self._checkpoint is not None:
            release(self._checkpoint.copies.values())
        self._checkpoint = None

    # -- loading partitions, and rebuilding lost ones ----------------------------------------------

    def _place_partitions(self) -> set[int]:
        """Load partitions that no worker holds and replay all changes on them; returns which."""
        placed = set[int]()
        while True:
            held = {number for worker in self._pool.workers for number in worker.partitions}
            lost = [number for number in range(len(self._source)) if number not in held]
            if not lost:
                return placed
            workers = self._pool.start_actors()
            shares = _shares(lost, [len(worker.partitions) for worker in workers])
            assignment = [(w, share) for w, share in zip(workers, shares, strict=True) if share]
            for worker, share in self._replayed(self._loaded(assignment)):
                worker.partitions = sorted([*worker.partitions, *share])
                placed.update(share)

    def _loaded(self, assignment: Assignment) -> Assignment:
        """Send partitions to their workers; returns those of workers that were not lost."""
        places = {number: worker.address for worker, share in assignment for number in share}
        try:
            parts = self._source.futures(self._client, places, direct=self._pool.is_direct)
        except OSError as error:
            lost = self._pool.find_lost(worker for worker, _ in assignment)
            for worker in lost:
                self._pool.lose(worker)
            self._pool.paused()  # warns
            if not lost and not isinstance(error, TimeoutError):  # a worker was not paused
                raise RuntimeError(f"rows cannot be sent to the workers: {error}") from error
            return []
        tasks = {
            worker: [
                self._pool.submit(
                    worker, _partition.load, worker.name, n, self._source.dtype, *parts[n]
                )
                for n in share
            ]
            for worker, share in assignment
        }
        try:
            while not self._pool.finished([*itertools.chain(*tasks.values())], tasks):
                lost = self._pool.find_lost(tasks)
                for worker in lost:
                    self._pool.lose(worker)
                    release(tasks.pop(worker))
                if not lost:
                    self._raise_load_error(tasks)
            return [(worker, share) for worker, share in assignment if worker in tasks]
        finally:
            release(itertools.chain(*tasks.values()))
            release(future for part in parts.values() for future in part if future is not None)

    def _raise_load_error(self, tasks: dict[WorkerHandle, list[Future]]) -> NoReturn:
        for worker, task in ((w, task) for w, several in tasks.items() for task in several):
            if task.status == "pending":
                continue
            try:
                task.result(timeout=self._options.worker_timeout)
            except (MemoryError, ValueError, TypeError) as error:
                raise_failure(Failure.of(error), "load", worker.address)
            except Exception as error:
                raise RuntimeError(
                    f"rows could not be brought to worker {worker.address}: {error}. Rows that "
                    "were scattered over the cluster are gone with the workers that had them; use "
                    "a collection that can be computed again, or gorelm.backends.dask.from_arrays"
                ) from error
        raise RuntimeError(
            f"rows were not brought to their workers within {self._options.call_timeout:g} s; "
            "allow more: dask.config.set({'gorelm.call-timeout': '1 hour'})"
        )

    def _replayed(self, assignment: Assignment) -> Assignment:
        """Bring loaded partitions to the current version, from the checkpoint if there is one.

        Returns the partitions of workers that were not lost.
        """
        past, todo = self._checkpoint, self._log
        if past is not None and past.has(assignment):
            setup = [command for at, command in self._log if command.setup and at < past.version]
            for at, command in enumerate(setup):
                assignment = self._executed(assignment, at, command)
            if not self._restored(assignment, past):
                self._drop_checkpoint()
                return []
            todo = [(at, command) for at, command in self._log if at >= past.version]
        elif not self._is_complete:
            raise RuntimeError(
                "a worker and the copy of its state were lost together, and too many iterations "
                "have been done to do them all again; fit again"
            )
        for at, command in todo:
            assignment = self._executed(assignment, at, command)
        return assignment

    def _executed(self, assignment: Assignment, version: int, command: Command) -> Assignment:
        requests = [(worker, Request(share, version, command)) for worker, share in assignment]
        answered = [request.partitions for request, _ in self._pool.ask(requests)]
        return [(worker, share) for worker, share in assignment if share in answered]

    def _restored(self, assignment: Assignment, past: _Checkpoint) -> bool:
        tasks = [
            self._pool.submit(worker, _partition.restore, worker.name, n, past.copies[n])
            for worker, share in assignment
            for n in share
        ]
        done = self._pool.finished(tasks, [worker for worker, _ in assignment])
        release(tasks)
        return done


def _shares(numbers: list[int], loads: list[int]) -> list[list[int]]:
    """Cut numbers into one run per worker, longer for workers with a smaller load."""
    counts = [0] * len(loads)
    for _ in numbers:
        totals = [load + count for load, count in zip(loads, counts, strict=True)]
        counts[totals.index(min(totals))] += 1
    ends = list(itertools.accumulate(counts))
    return [numbers[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _n_bytes(command: Command) -> int:
    return sum(getattr(value, "nbytes", 0) for value in command.args)
