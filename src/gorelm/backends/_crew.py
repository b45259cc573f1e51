"""The coordinator's side of a cluster: who holds which partition, and what if one is lost.

All partitions go through the same changes, in the same order: a log of them, and the source of its
rows, are enough to make a lost partition again on another worker. So that it need not go through
all of them, E and U of every partition are copied to a second worker now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from gorelm.backends import _partition
from gorelm.backends._partition import (
    Command,
    Failure,
    Merge,
    PartialSums,
    Reply,
    Request,
    add,
)

__all__ = ["Crew", "Options", "Source"]

logger = logging.getLogger("gorelm.dask")

_POLL = 0.5  # seconds between looks at whether a worker that does not answer is still there
_LOG_BYTES = 2**30  # of changes that the coordinator keeps, once there is a checkpoint


class Source(Protocol):
    """Where partitions come from, again and again."""

    dtype: Any

    def __len__(self) -> int:
        """Return the number of partitions."""
        ...

    def futures(self, client: Any, numbers: list[int]) -> list[tuple[Any, Any, Any]]:
        """Return the inputs, targets and weights (or None) of some partitions as futures."""
        ...


@dataclass(frozen=True)
class Options:
    """Limits of patience, from dask's configuration.

    Parameters
    ----------
    call_timeout : float
        Seconds that a worker may take for one pass over its rows (``gorelm.call-timeout``).
    worker_timeout : float
        Seconds to wait for a worker when there is none (``gorelm.worker-timeout``).
    checkpoint_every : int
        Iterations between two checkpoints (``gorelm.checkpoint-every``); 0: none.
    """

    call_timeout: float
    worker_timeout: float
    checkpoint_every: int

    @classmethod
    def from_config(cls) -> Options:
        """Read them, as they are now."""
        import dask
        from dask.utils import parse_timedelta

        def seconds(name: str, default: str) -> float:
            return float(parse_timedelta(dask.config.get(f"gorelm.{name}", default)))

        return cls(
            seconds("call-timeout", "10 minutes"),
            seconds("worker-timeout", "30 s"),
            int(dask.config.get("gorelm.checkpoint-every", 20)),
        )


@dataclass(eq=False)
class _Member:
    """A worker with an actor of ours, and the partitions that the actor holds."""

    address: str
    name: str
    future: Any
    partitions: list[int] = field(default_factory=list)

    @property
    def is_lost(self) -> bool:
        return self.future.status not in ("finished", "pending")


Orders = list[tuple[_Member, list[int]]]


@dataclass
class _Checkpoint:
    """Copies of E and U after so many changes: of every partition, the future that has it."""

    clock: int
    copies: dict[int, Any]


class Crew:
    """Workers that hold the partitions of a table and do with them as they are told, together.

    Parameters
    ----------
    client : distributed.Client
        Connection to the cluster.
    source : Source
        The partitions.
    options : Options, optional
        Limits; by default those of dask's configuration.
    """

    def __init__(self, client: Any, source: Source, options: Options | None = None) -> None:
        self._client, self._source = client, source
        self._options = options or Options.from_config()
        self._members: list[_Member] = []
        self._shunned: set[str] = set()
        self._clock = 0  # number of changes so far
        self._log: list[tuple[int, Command]] = []  # them, each with its number
        self._complete = True  # whether the log has all of them
        self._checkpoint: _Checkpoint | None = None
        self._direct: bool | None = None  # whether workers can be reached without the scheduler
        self._n_losses = 0  # since a command was last completed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let the workers forget everything."""
        self._drop_checkpoint()
        _release(member.future for member in self._members)
        self._members = []

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
        start = time.perf_counter()
        sums, clock, slowest = PartialSums(len(self._source), merge), self._clock, 0.0
        pending = set(range(len(self._source)))
        while pending:
            self._man_all_partitions()
            asked = [(m, [n for n in m.partitions if n in pending]) for m in self._members]
            requests = [(m, Request(numbers, clock, command)) for m, numbers in asked if numbers]
            for member, reply in self._ask(requests):
                for node, value in reply.nodes.items():
                    sums.put(node, value)
                pending.difference_update(member.partitions)
                slowest = max(slowest, reply.seconds)
        if changes:
            self._log.append((clock, command))
            self._clock += 1
        self._n_losses = 0
        took = time.perf_counter() - start
        logger.debug("%s took %.6f s, of which work on the rows %.6f s", method, took, slowest)
        return sums.total

    def _ask(self, requests: list[tuple[_Member, Request]]) -> list[tuple[_Member, Reply]]:
        """Send requests; return the replies of those that are not lost on the way."""
        replies = self._client.sync(self._ask_all, requests)
        answered: list[tuple[_Member, Reply]] = []
        for (member, request), reply in zip(requests, replies, strict=True):
            if isinstance(reply, Failure):
                _raise(reply, request.command.method, member.address)
            elif reply is None:
                self._lose(member)
            else:
                answered.append((member, reply))
        return answered

    async def _ask_all(self, requests: list[tuple[_Member, Request]]) -> list[Any]:
        return list(await asyncio.gather(*(self._answer(*request) for request in requests)))

    async def _answer(self, member: _Member, request: Request) -> Reply | Failure | None:
        """Wait for an answer as long as there is hope; None: there is none."""
        answer = asyncio.ensure_future(self._execute(member, request))
        deadline = time.monotonic() + self._options.call_timeout
        while not answer.done():
            await asyncio.wait({answer}, timeout=_POLL)
            if not answer.done() and (member.is_lost or time.monotonic() > deadline):
                answer.cancel()
                return None
        if (error := answer.exception()) is not None:
            logger.info("worker %s cannot be asked: %r", member.address, error)
            return None
        return answer.result()

    async def _execute(self, member: _Member, request: Request) -> Reply | Failure:
        # What `Actor.run(request)` does, but that workers are reached directly where possible:
        # through the scheduler, everything travels twice.
        from distributed.protocol import to_serialize

        message = {
            "actor": member.future.key,
            "function": "run",
            "args": [to_serialize(request)],
            "kwargs": {},
        }
        if self._direct:
            answer = await self._client.rpc(member.address).actor_execute(**message)
        else:
            message["op"] = "actor_execute"
            answer = await self._client.scheduler.proxy(worker=member.address, msg=message)
        if answer["status"] != "OK":
            raise RuntimeError(f"no answer: {answer}")
        result: Reply | Failure = answer["result"]
        return result

    # -- checkpoints -----------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Copy E and U of every partition to a second worker, if there is one."""
        members = self._members
        if len(members) < 2:
            return
        originals, copies = list[Any](), dict[int, Any]()
        for member, other in zip(members, [*members[1:], members[0]], strict=True):
            original = self._submit(member, _partition.snapshot, member.name)
            originals.append(original)
            copy = self._submit(other, _partition.copied, original)
            copies.update(dict.fromkeys(member.partitions, copy))
        complete = self._finished([*copies.values()], members)
        _release(originals)
        if not complete:  # the next command will find out why
            _release(copies.values())
            return
        self._drop_checkpoint()
        self._checkpoint = _Checkpoint(self._clock, copies)
        if sum(_n_bytes(command) for _, command in self._log) > _LOG_BYTES:
            self._complete = False
            self._log = [(at, command) for at, command in self._log if command.lasts]

    def _drop_checkpoint(self) -> None:
        if self._checkpoint is not None:
            _release(self._checkpoint.copies.values())
        self._checkpoint = None

    # -- who holds what --------------------------------------------------------------------------

    def _man_all_partitions(self) -> None:
        """See to it that all partitions are held by someone, and have gone through all changes."""
        while True:
            held = {number for member in self._members for number in member.partitions}
            lost = [number for number in range(len(self._source)) if number not in held]
            if not lost:
                return
            self._recruit()
            shares = _shares(lost, [len(member.partitions) for member in self._members])
            orders = [(m, s) for m, s in zip(self._members, shares, strict=True) if s]
            for member, numbers in self._caught_up(self._loaded(orders)):
                member.partitions = sorted([*member.partitions, *numbers])

    def _recruit(self) -> None:
        """Put an actor on every worker that has none; wait for a worker if there is none."""
        limit = self._options.worker_timeout
        deadline = time.monotonic() + limit
        while True:
            threads = self._workers()
            known = {member.address for member in self._members}
            for address in sorted(set(threads) - known - self._shunned):
                self._members.append(self._employ(address, threads[address]))
            self._finished([member.future for member in self._members], self._members, limit)
            for member in list(self._members):
                if member.future.status != "finished":
                    self._lose(member)
            if self._members:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(
                    "no worker of the cluster is left to fit with; start some, or wait longer for "
                    "them: dask.config.set({'gorelm.worker-timeout': '5 minutes'})"
                )
            time.sleep(min(_POLL, limit))
        if self._direct is None:
            self._direct = self._client.sync(self._is_reachable, self._members[0].address)

    async def _is_reachable(self, address: str) -> bool:
        try:
            await asyncio.wait_for(self._client.rpc(address).identity(), timeout=5)
        except (OSError, TimeoutError):
            logger.info("workers cannot be reached directly; going through the scheduler")
            return False
        return True

    def _workers(self) -> dict[str, int]:
        """Return the addresses of the workers, and their numbers of threads."""
        limit = self._options.worker_timeout
        try:
            if self._client.status in ("closed", "closing"):
                raise OSError("the client is closed")
            answer = self._client.sync(self._client.scheduler.ncores, callback_timeout=limit)
        except (OSError, TimeoutError) as error:
            raise RuntimeError(
                f"the cluster's scheduler cannot be reached ({error}); connect a new client and "
                "fit again"
            ) from error
        return dict(answer)

    def _employ(self, address: str, n_threads: int) -> _Member:
        name = f"gorelm-{uuid.uuid4().hex}"
        future = self._client.submit(
            _partition.hire,
            name,
            len(self._source),
            n_threads,
            key=name,
            actor=True,
            workers=[address],
            allow_other_workers=False,
        )
        return _Member(address, name, future)

    def _lose(self, member: _Member) -> None:
        logger.warning(
            "worker %s is lost; its partitions %s are made again elsewhere",
            member.address,
            member.partitions,
        )
        self._members.remove(member)
        self._shunned.add(member.address)
        member.future.release()
        self._n_losses += 1
        if self._n_losses > 3 + len(self._members):
            raise RuntimeError(
                f"{self._n_losses} workers were lost, one after the other, at the same step of the "
                "fit: most likely they run out of memory. Use more workers, float32 inputs or a "
                "smaller memory_budget"
            )

    # -- making partitions again -----------------------------------------------------------------

    def _loaded(self, orders: Orders) -> Orders:
        """Have partitions read on, or sent to, their workers; returns those of workers still there.

        Each worker reads its share, but rows that are on a worker already are sent from there.
        """
        numbers = [number for _, share in orders for number in share]
        parts = dict(zip(numbers, self._source.futures(self._client, numbers), strict=True))
        tasks = {
            member: [
                self._submit(member, _partition.load, member.name, n, self._source.dtype, *parts[n])
                for n in share
            ]
            for member, share in orders
        }
        try:
            while not self._finished([*itertools.chain(*tasks.values())], list(tasks)):
                lost = [member for member in tasks if member.is_lost]
                for member in lost:
                    self._lose(member)
                    _release(tasks.pop(member))
                if not lost:
                    self._explain(tasks)
            return [(member, share) for member, share in orders if member in tasks]
        finally:
            _release(itertools.chain(*tasks.values()))
            _release(future for part in parts.values() for future in part if future is not None)

    def _explain(self, tasks: dict[_Member, list[Any]]) -> None:
        """Raise what keeps partitions from being loaded."""
        for member, several in tasks.items():
            for task in several:
                if task.status == "pending":
                    continue
                try:
                    task.result(timeout=self._options.worker_timeout)
                except (MemoryError, ValueError, TypeError) as error:
                    _raise(Failure.of(error), "load", member.address)
                except Exception as error:
                    raise RuntimeError(
                        f"rows could not be brought to worker {member.address}: {error}. Rows that "
                        "were sent to the cluster from memory are gone with the workers that had "
                        "them; use a collection that can be computed again, or gorelm.backends."
                        "dask.from_arrays, which keeps two copies"
                    ) from error
        raise RuntimeError(
            f"rows were not brought to their workers within {self._options.call_timeout:g} s; "
            "allow more: dask.config.set({'gorelm.call-timeout': '1 hour'})"
        )

    def _caught_up(self, orders: Orders) -> Orders:
        """Bring new partitions to where the others are; returns those of workers still there."""
        past, todo = self._checkpoint, self._log
        if past is not None and all(copy.status == "finished" for copy in past.copies.values()):
            lasting = [command for at, command in self._log if command.lasts and at < past.clock]
            for at, command in enumerate(lasting):
                orders = self._told(orders, at, command)
            if not self._restored(orders, past):
                self._drop_checkpoint()
                return []
            todo = [(at, command) for at, command in self._log if at >= past.clock]
        elif not self._complete:
            raise RuntimeError(
                "a worker and the copy of its state were lost together, and too many iterations "
                "have been done to do them all again; fit again"
            )
        for at, command in todo:
            orders = self._told(orders, at, command)
        return orders

    def _told(self, orders: Orders, clock: int, command: Command) -> Orders:
        requests = [(member, Request(numbers, clock, command)) for member, numbers in orders]
        answered = [member for member, _ in self._ask(requests)]
        return [(member, numbers) for member, numbers in orders if member in answered]

    def _restored(self, orders: Orders, past: _Checkpoint) -> bool:
        tasks = [
            self._submit(member, _partition.restore, member.name, n, past.copies[n])
            for member, numbers in orders
            for n in numbers
        ]
        done = self._finished(tasks, [member for member, _ in orders])
        _release(tasks)
        return done

    # -- tasks -----------------------------------------------------------------------------------

    def _submit(self, member: _Member, task: Any, *args: Any) -> Any:
        """Have an ordinary task done on the worker of a member."""
        return self._client.submit(
            task, *args, pure=False, workers=[member.address], allow_other_workers=False
        )

    def _finished(
        self, futures: list[Any], members: list[_Member], limit: float | None = None
    ) -> bool:
        """Wait for futures; returns whether all have finished and no member was lost meanwhile."""
        from distributed import wait

        limit = self._options.call_timeout if limit is None else limit
        deadline = time.monotonic() + limit
        while True:
            states = {future.status for future in futures}
            if states <= {"finished"}:
                return True
            lost = any(member.is_lost for member in members)
            if lost or states - {"finished", "pending"} or time.monotonic() > deadline:
                return False
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                wait(futures, timeout=_POLL)


def _shares(numbers: list[int], loads: list[int]) -> list[list[int]]:
    """Cut numbers into one run for each worker, longer for those that hold fewer."""
    counts = [0] * len(loads)
    for _ in numbers:
        totals = [load + count for load, count in zip(loads, counts, strict=True)]
        counts[totals.index(min(totals))] += 1
    ends = list(itertools.accumulate(counts))
    return [numbers[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _release(futures: Iterable[Any]) -> None:
    for future in futures:
        future.release()


def _n_bytes(command: Command) -> int:
    return sum(getattr(value, "nbytes", 0) for value in command.args)


def _raise(failure: Failure, method: str, address: str) -> None:
    """Raise, here, what went wrong in the work of a worker."""
    if failure.kind == "MemoryError":
        raise MemoryError(
            f"worker {address} ran out of memory ({method}). Use more workers or workers with more "
            "memory, float32 inputs, or a smaller memory_budget, with which hidden outputs are "
            "made anew in every iteration instead of being kept"
        )
    if failure.kind in ("ValueError", "TypeError"):
        raise {"ValueError": ValueError, "TypeError": TypeError}[failure.kind](failure.message)
    raise RuntimeError(
        f"worker {address} failed ({method}): {failure.kind}: {failure.message}\n{failure.details}"
    )
