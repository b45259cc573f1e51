"""Workers of a cluster with an actor of ours on each: hiring, asking, and noticing losses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gorelm.backends.dask import partition as _partition
from gorelm.backends.dask.partition import Failure, Reply, Request

__all__ = ["Options", "WorkerHandle", "WorkerPool", "raise_failure", "release"]

logger = logging.getLogger("gorelm.dask")

_POLL = 0.5  # seconds between looks at whether a worker that does not answer is still there
_STARTING = 0.02  # seconds between looks at whether actors are there
_BELATED = 0.2  # seconds by which a worker's loss may be known later than that of its tasks
_NOTICED = 2.0  # seconds within which the scheduler notices that a worker has died


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
            seconds("worker-timeout", "30 seconds"),
            int(dask.config.get("gorelm.checkpoint-every", 20)),
        )


@dataclass(eq=False)
class WorkerHandle:
    """A worker with an actor of ours, and the partitions that the actor holds."""

    address: str
    name: str
    future: Any  # of the actor
    partitions: list[int] = field(default_factory=list)

    @property
    def is_lost(self) -> bool:
        """Whether the scheduler has noticed that the worker is gone."""
        return self.future.status not in ("finished", "pending")


class WorkerPool:
    """The workers of a cluster, each with an actor that owns partitions.

    Parameters
    ----------
    client : distributed.Client
        Connection to the cluster.
    n_partitions : int
        Number of partitions of the whole table.
    options : Options
        Limits.
    """

    def __init__(self, client: Any, n_partitions: int, options: Options) -> None:
        self._client, self._n_partitions, self._options = client, n_partitions, options
        self.workers: list[WorkerHandle] = []
        self.n_losses = 0  # since it was last set to 0
        self._excluded: set[str] = set()
        self._direct: bool | None = None  # whether workers can be reached without the scheduler

    def close(self) -> None:
        """Let the workers forget everything."""
        release(worker.future for worker in self.workers)
        self.workers = []

    # -- hiring and losing -----------------------------------------------------------------------

    def start_actors(self) -> None:
        """Put an actor on every worker that has none; wait for a worker if there is none."""
        deadline = time.monotonic() + self._options.worker_timeout
        while True:
            threads = self._workers()
            for worker in list(self.workers):
                if worker.is_lost or worker.address not in threads:
                    self.lose(worker)
            known = {worker.address for worker in self.workers}
            for address in sorted(set(threads) - known - self._excluded):
                self.workers.append(self._start_actor(address, threads[address]))
            starting = [m for m in self.workers if m.future.status != "finished"]
            if self.workers and not starting:
                break
            if time.monotonic() > deadline:
                for worker in starting:
                    self.lose(worker)
                if self.workers:
                    break
                raise RuntimeError(
                    "no worker of the cluster is left to fit with; start some, or wait longer for "
                    "them: dask.config.set({'gorelm.worker-timeout': '5 minutes'})"
                )
            time.sleep(_STARTING)
        if self._direct is None:
            self._direct = self._client.sync(self._is_reachable, self.workers[0].address)

    @property
    def is_direct(self) -> bool:
        """Whether workers can be reached without the scheduler."""
        return bool(self._direct)

    def gone(self, workers: list[WorkerHandle]) -> list[WorkerHandle]:
        """Return which of some workers are known to be lost, a moment from now."""
        time.sleep(_BELATED)
        return [worker for worker in workers if worker.is_lost]

    def lose(self, worker: WorkerHandle) -> None:
        """Give a worker up; raises if this goes on and on."""
        logger.warning("worker %s is lost, with partitions %s", worker.address, worker.partitions)
        self.workers.remove(worker)
        patience = time.monotonic() + _NOTICED
        while not worker.is_lost and time.monotonic() < patience:
            time.sleep(0.02)
        if not worker.is_lost:  # it hangs; otherwise who comes back to the address is a new worker
            self._excluded.add(worker.address)
        worker.future.release()
        self.n_losses += 1
        if self.n_losses > 3 + len(self.workers):
            raise RuntimeError(
                f"{self.n_losses} workers were lost, one after the other, at the same step of the "
                "fit: most likely they run out of memory. Use more workers, float32 inputs or a "
                "smaller memory_budget"
            )

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

    def _start_actor(self, address: str, n_threads: int) -> WorkerHandle:
        name = f"gorelm-{uuid.uuid4().hex}"
        future = self._client.submit(
            _partition.make_actor,
            name,
            self._n_partitions,
            n_threads,
            key=name,
            actor=True,
            workers=[address],
            allow_other_workers=False,
        )
        return WorkerHandle(address, name, future)

    async def _is_reachable(self, address: str) -> bool:
        try:
            await asyncio.wait_for(self._client.rpc(address).identity(), timeout=5)
        except (OSError, TimeoutError):
            logger.info("workers cannot be reached directly; going through the scheduler")
            return False
        return True

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, requests: list[tuple[WorkerHandle, Request]]) -> list[tuple[Request, Reply]]:
        """Send requests, and return the replies; workers that do not reply are lost.

        Raises what went wrong in the work itself.
        """
        replies = self._client.sync(self._ask_all, requests)
        answered: list[tuple[Request, Reply]] = []
        for (worker, request), reply in zip(requests, replies, strict=True):
            if isinstance(reply, Failure):
                raise_failure(reply, request.command.method, worker.address)
            elif reply is not None:
                answered.append((request, reply))
            elif worker in self.workers:
                self.lose(worker)
        return answered

    async def _ask_all(self, requests: list[tuple[WorkerHandle, Request]]) -> list[Any]:
        return list(await asyncio.gather(*(self._answer(*request) for request in requests)))

    async def _answer(self, worker: WorkerHandle, request: Request) -> Reply | Failure | None:
        """Wait for an answer as long as there is hope; None: there is none."""
        answer = asyncio.ensure_future(self._execute(worker, request))
        deadline = time.monotonic() + self._options.call_timeout
        while not answer.done():
            await asyncio.wait({answer}, timeout=_POLL)
            if not answer.done() and (worker.is_lost or time.monotonic() > deadline):
                answer.cancel()
                return None
        if (error := answer.exception()) is not None:
            logger.info("worker %s cannot be asked: %r", worker.address, error)
            return None
        return answer.result()

    async def _execute(self, worker: WorkerHandle, request: Request) -> Reply | Failure:
        # What `Actor.run(request)` does, but that workers are reached directly where possible:
        # through the scheduler, everything travels twice.
        from distributed.protocol import to_serialize

        message = {
            "actor": worker.future.key,
            "function": "run",
            "args": [to_serialize(request)],
            "kwargs": {},
        }
        if self._direct:
            answer = await self._client.rpc(worker.address).actor_execute(**message)
        else:
            message["op"] = "actor_execute"
            answer = await self._client.scheduler.proxy(worker=worker.address, msg=message)
        if answer["status"] != "OK":
            raise RuntimeError(f"no answer: {answer}")
        result: Reply | Failure = answer["result"]
        return result

    # -- ordinary tasks --------------------------------------------------------------------------

    def submit(self, worker: WorkerHandle, task: Any, *args: Any) -> Any:
        """Have an ordinary task done on a worker; returns its future."""
        return self._client.submit(
            task, *args, pure=False, workers=[worker.address], allow_other_workers=False
        )

    def finished(self, futures: list[Any], workers: list[WorkerHandle]) -> bool:
        """Wait for futures; returns whether all have finished and no worker was lost meanwhile."""
        from distributed import CancelledError, wait

        deadline = time.monotonic() + self._options.call_timeout
        while True:
            states = {future.status for future in futures}
            if states <= {"finished"}:
                return True
            lost = any(worker.is_lost for worker in workers)
            if lost or states - {"finished", "pending"} or time.monotonic() > deadline:
                return False
            with contextlib.suppress(TimeoutError, CancelledError):
                wait(futures, timeout=_POLL)


def release(futures: Iterable[Any]) -> None:
    """Tell the cluster that results are no longer needed."""
    for future in futures:
        future.release()


def raise_failure(failure: Failure, method: str, address: str) -> None:
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
