"""The workers of a Dask cluster: an actor on each, requests to them, lost and paused workers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakKeyDictionary

from gorelm.backends.dask import partition as _partition
from gorelm.backends.dask.partition import Failure, Reply, Request

if TYPE_CHECKING:
    from distributed import Client, Future

logger = logging.getLogger("gorelm.dask")

POLL = 0.5  # seconds between two checks whether a worker that does not answer is lost or paused
_POLL_ACTORS = 0.02  # seconds between two checks whether actors have started
DELAY = 0.2  # seconds by which the loss of a worker may be known later than that of its tasks
_NOTICED = 2.0  # seconds within which the scheduler notices that a worker has died

_MORE_MEMORY = (
    "Use more workers or workers with more memory, float32 inputs, or a smaller memory_budget, "
    "with which hidden outputs are computed again in every iteration instead of being kept"
)


@dataclass(frozen=True)
class Options:
    """Time limits and the interval of checkpoints, from dask's configuration."""

    call_timeout: float  # seconds that a worker may take for one pass over its rows
    worker_timeout: float  # seconds to wait for a worker when there is none, or for a paused one
    checkpoint_every: int  # iterations between two checkpoints; 0: none

    @classmethod
    def from_config(cls) -> Options:
        """Read the current configuration."""
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
    """A worker, its actor, and the partitions that the actor holds."""

    address: str
    name: str
    future: Future  # of the actor
    partitions: list[int] = field(default_factory=list)

    @property
    def is_lost(self) -> bool:
        """Whether the scheduler has noticed that the worker is gone."""
        return self.future.status not in ("finished", "pending")


class WorkerPool:
    """The workers of a cluster, each with an actor that holds partitions.

    `workers` are those that have an actor, and `n_losses` counts the workers lost since it was last
    set to 0.
    """

    def __init__(self, client: Client, n_partitions: int, options: Options) -> None:
        self._client, self._n_partitions, self._options = client, n_partitions, options
        self.workers: list[WorkerHandle] = []
        self.n_losses = 0
        self._excluded: set[str] = set()  # workers that did not answer in time
        self._paused: set[str] = set()  # workers that the user was warned of
        self._direct: bool | None = None  # None: not tried yet

    @property
    def is_direct(self) -> bool:
        """Whether the client can reach workers without the scheduler."""
        return bool(self._direct)

    def close(self) -> None:
        """Remove the actors, and with them all that they hold."""
        release(worker.future for worker in self.workers)
        self.workers = []

    # -- actors, lost workers and paused workers -------------------------------------------------

    def start_actors(self) -> list[WorkerHandle]:
        """Start an actor on every running worker that has none; wait for a worker if need be.

        Returns the workers that run, and so can take partitions.
        """
        deadline = time.monotonic() + self._options.worker_timeout
        while True:
            threads, paused = threads_of(self._client, self._options), self.paused()
            for worker in list(self.workers):
                if worker.is_lost or worker.address not in threads:
                    self.lose(worker)
            known = {worker.address for worker in self.workers}
            for address in sorted(set(threads) - paused - known - self._excluded):
                self.workers.append(self._start_actor(address, threads[address]))
            starting = [w for w in self.workers if w.future.status != "finished"]
            ready = [w for w in self.workers if w not in starting and w.address not in paused]
            if ready and not starting:
                break
            if time.monotonic() > deadline:
                for worker in starting:
                    self.lose(worker)
                if ready:
                    break
                raise_without_workers(paused, self._options)
            time.sleep(_POLL_ACTORS)
        if self._direct is None:
            self._direct = is_reachable(self._client, ready[0].address)
        return ready

    def find_lost(self, workers: Iterable[WorkerHandle]) -> list[WorkerHandle]:
        """Return which of some workers are lost, after the scheduler had time to notice."""
        time.sleep(DELAY)
        return [worker for worker in workers if worker.is_lost]

    def lose(self, worker: WorkerHandle) -> None:
        """Remove a worker from the pool; raises if too many were lost in a row."""
        logger.warning("worker %s is lost, with partitions %s", worker.address, worker.partitions)
        self.workers.remove(worker)
        deadline = time.monotonic() + _NOTICED
        while not worker.is_lost and time.monotonic() < deadline:
            time.sleep(0.02)
        if not worker.is_lost:  # it hangs; if it had died, its address could be used again
            self._excluded.add(worker.address)
        worker.future.release()
        self.n_losses += 1
        if self.n_losses > 3 + len(self.workers):
            raise_too_many_lost(self.n_losses)

    def paused(self) -> set[str]:
        """Return the addresses of the workers that dask has paused; warn once of every pause.

        A worker is paused while its memory is near its limit. Its actor answers, but tasks (loading
        rows, checkpoints) wait.
        """
        paused = paused_of(self._client, self._options) - self._excluded
        for address in sorted(paused - self._paused):
            warnings.warn(
                f"worker {address} is paused by dask, because its memory is near its limit: no "
                "rows are sent to it and its state is not copied until it resumes. "
                f"{_MORE_MEMORY}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._paused = paused
        return paused

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

    # -- requests to actors ----------------------------------------------------------------------

    def ask(self, requests: Sequence[tuple[WorkerHandle, Request]]) -> list[tuple[Request, Reply]]:
        """Send requests and return the replies; a worker that does not reply is lost.

        Raises the errors of the computation itself.
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

    async def _ask_all(
        self, requests: Sequence[tuple[WorkerHandle, Request]]
    ) -> list[Reply | Failure | None]:
        return list(await asyncio.gather(*(self._answer(*request) for request in requests)))

    async def _answer(self, worker: WorkerHandle, request: Request) -> Reply | Failure | None:
        """Return the answer of an actor; None: its worker is lost, or too slow."""
        answer = asyncio.ensure_future(self._execute(worker, request))
        deadline = time.monotonic() + self._options.call_timeout
        while not answer.done():
            await asyncio.wait({answer}, timeout=POLL)
            if not answer.done() and (worker.is_lost or time.monotonic() > deadline):
                answer.cancel()
                return None
        if (error := answer.exception()) is not None:
            logger.info("worker %s cannot be asked: %r", worker.address, error)
            return None
        return answer.result()

    async def _execute(self, worker: WorkerHandle, request: Request) -> Reply | Failure:
        # As `Actor.run(request)`, but directly to the worker where possible: through the scheduler
        # every message is sent twice.
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

    # -- tasks -----------------------------------------------------------------------------------

    def submit(self, worker: WorkerHandle, task: Callable[..., object], *args: object) -> Future:
        """Start a task on a worker; returns its future."""
        return self._client.submit(
            task, *args, pure=False, workers=[worker.address], allow_other_workers=False
        )

    def finished(
        self,
        futures: Sequence[Future],
        workers: Iterable[WorkerHandle],
        *,
        wait_if_paused: bool = True,
    ) -> bool:
        """Wait for tasks of some workers; returns whether all of them have finished.

        Raises MemoryError if a worker is paused for too long.
        """
        from distributed import CancelledError, wait

        workers, start = list(workers), time.monotonic()
        running_at = start  # when none of the workers was paused
        while True:
            states = {future.status for future in futures}
            if states <= {"finished"}:
                return True
            now = time.monotonic()
            if (
                states - {"finished", "pending"}
                or any(worker.is_lost for worker in workers)
                or now > start + self._options.call_timeout
            ):
                return False
            with contextlib.suppress(TimeoutError, CancelledError):
                wait(futures, timeout=POLL)
                continue
            paused = self.paused().intersection(worker.address for worker in workers)
            if not paused:
                running_at = now
            elif not wait_if_paused:
                return False
            elif now > running_at + self._options.worker_timeout:
                raise_paused(paused, self._options)


def gathered(client: Client, futures: Sequence[Future]) -> list[Any]:
    """Wait for the results of tasks that any worker may do, and return them; workers forget them.

    Raises RuntimeError, or MemoryError, if there is no worker to do them for too long.
    """
    try:
        wait_for(client, futures)
        return list(client.gather(futures, direct=is_direct(client)))
    finally:
        release(futures)


def wait_for(client: Client, futures: Sequence[Future]) -> None:
    """Wait for tasks that any worker may do; raises if there is no worker for too long."""
    from distributed import wait

    options, working_at = Options.from_config(), time.monotonic()
    while True:
        # Current in this thread, too: passes may be made by several.
        with contextlib.suppress(TimeoutError), client.as_current():
            wait(futures, timeout=POLL)
            return
        now = time.monotonic()
        if threads_of(client, options, running=True):
            working_at = now
        elif now > working_at + options.worker_timeout:
            raise_without_workers(paused_of(client, options), options)


# Clients, and whether they reach workers without the scheduler.
_REACHED: WeakKeyDictionary[Client, bool] = WeakKeyDictionary()


def is_direct(client: Client) -> bool:
    """Whether a client reaches workers itself: by the scheduler, results travel twice."""
    if client not in _REACHED and (addresses := sorted(client.nthreads())):
        _REACHED[client] = is_reachable(client, addresses[0])
    return _REACHED.get(client, False)


def is_reachable(client: Client, address: str) -> bool:
    """Whether a client can ask a worker something without the scheduler."""

    async def asked() -> bool:
        try:
            await asyncio.wait_for(client.rpc(address).identity(), timeout=5)
        except (OSError, TimeoutError):
            logger.info("workers cannot be reached directly; going through the scheduler")
            return False
        return True

    return bool(client.sync(asked))


def threads_of(client: Client, options: Options, *, running: bool = False) -> dict[str, int]:
    """Return the number of threads of every worker, or of every worker that is not paused."""
    try:
        scheduler = client.scheduler
        if scheduler is None or client.status in ("closed", "closing"):
            raise OSError("the client is closed")
        call = scheduler.ncores_running if running else scheduler.ncores
        return dict(client.sync(call, callback_timeout=options.worker_timeout))
    except (OSError, TimeoutError) as error:
        raise RuntimeError(
            f"the cluster's scheduler cannot be reached ({error}); connect a new client and "
            "fit again"
        ) from error


def paused_of(client: Client, options: Options) -> set[str]:
    """Return the addresses of the workers that dask has paused."""
    paused = set(threads_of(client, options)) - set(threads_of(client, options, running=True))
    # Or lost between the two calls.
    return paused & set(threads_of(client, options)) if paused else paused


def raise_without_workers(paused: Iterable[str], options: Options) -> NoReturn:
    """Raise because no worker is left that could do anything."""
    if paused:
        raise_paused(paused, options)
    raise RuntimeError(
        "no worker of the cluster is left to fit with; start some, or wait longer for them: "
        "dask.config.set({'gorelm.worker-timeout': '5 minutes'})"
    )


def raise_too_many_lost(n_losses: int) -> NoReturn:
    """Raise because workers were lost again and again."""
    raise RuntimeError(
        f"{n_losses} workers were lost, one after the other, at the same step of the fit: most "
        f"likely they run out of memory. {_MORE_MEMORY}"
    )


def raise_paused(addresses: Iterable[str], options: Options) -> NoReturn:
    """Raise because workers were paused for too long."""
    raise MemoryError(
        f"workers {', '.join(sorted(addresses))} have been paused by dask for "
        f"{options.worker_timeout:g} s, because their memory is near its limit. "
        f"{_MORE_MEMORY}; or wait longer for them: "
        "dask.config.set({'gorelm.worker-timeout': '5 minutes'})"
    )


def release(futures: Iterable[Future]) -> None:
    """Tell the cluster that results are no longer needed."""
    for future in futures:
        future.release()


def raise_failure(failure: Failure, method: str, address: str) -> NoReturn:
    """Raise an error of a worker's computation in this process."""
    if failure.kind == "MemoryError":
        raise MemoryError(f"worker {address} ran out of memory ({method}). {_MORE_MEMORY}")
    if failure.kind in ("ValueError", "TypeError"):
        raise {"ValueError": ValueError, "TypeError": TypeError}[failure.kind](failure.message)
    raise RuntimeError(
        f"worker {address} failed ({method}): {failure.kind}: {failure.message}\n{failure.details}"
    )
