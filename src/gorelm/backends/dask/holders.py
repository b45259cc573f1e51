"""Work by the workers that hold the results of tasks, where the results are.

Work that is sent as a task passes through the scheduler with all its arguments. Here the client
asks the workers itself; only the question which worker holds a result goes to the scheduler. The
scheduler still makes the results of a lost worker again, and only those are worked on again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gorelm.backends.dask.workers import DELAY, POLL, raise_too_many_lost, wait_for

if TYPE_CHECKING:
    from distributed import Client, Future, Worker

Work: TypeAlias = Callable[[Any], Any]  # of a result


def asked(client: Client, futures: Sequence[Future], works: Sequence[Work]) -> list[Any]:
    """Return what works make of results, each done by a worker that holds the result.

    The client must reach workers without the scheduler. Raises RuntimeError, or MemoryError, if
    there is no worker for too long, or if the work itself seems to end workers.
    """
    answers: dict[str, Any] = {}
    n_losses = 0  # in a row
    while True:
        wait_for(client, futures)
        for future in futures:
            if future.status == "error":
                future.result()
        missing = {f.key: w for f, w in zip(futures, works, strict=True) if f.key not in answers}
        found = client.sync(_ask_all, client, missing)
        answers |= found
        if len(answers) == len(futures):
            return [answers[future.key] for future in futures]
        n_losses = 0 if found else n_losses + 1
        if n_losses > 3 + len(futures):
            raise_too_many_lost(n_losses)
        time.sleep(DELAY)


async def _ask_all(client: Client, works: dict[str, Work]) -> dict[str, Any]:
    """Return what works make of results, by keys, as far as workers that hold them answer."""
    holders: dict[str, dict[str, Work]] = {}
    for key, addresses in (await client.scheduler.who_has(keys=list(works))).items():
        if addresses:
            holders.setdefault(addresses[0], {})[key] = works[key]
    replies = await asyncio.gather(*(_ask(client, *holder) for holder in holders.items()))
    return {key: answer for reply in replies for key, answer in reply.items()}


async def _ask(client: Client, address: str, works: dict[str, Work]) -> dict[str, Any]:
    """Return the answers of one worker: none of results that are gone, or if it is lost."""
    from distributed.core import clean_exception
    from distributed.protocol.pickle import dumps

    call = client.rpc(address).run(function=dumps(_answers), args=dumps((works,)), kwargs=dumps({}))
    answer = asyncio.ensure_future(call)
    try:
        while not answer.done():
            await asyncio.wait({answer}, timeout=POLL)
            if not answer.done():
                held = await client.scheduler.who_has(keys=list(works))
                if not any(address in addresses for addresses in held.values()):
                    return {}
        reply = answer.result()
    except OSError:
        return {}
    finally:
        answer.cancel()
    if reply["status"] != "OK":
        _, error, traceback = clean_exception(**reply)
        raise error.with_traceback(traceback)
    answers: dict[str, Any] = reply["result"]
    return answers


async def _answers(works: dict[str, Work], dask_worker: Worker) -> dict[str, Any]:
    """On a worker: do works in the threads of its tasks."""
    loop, threads = asyncio.get_running_loop(), dask_worker.executors["default"]
    held = {key: dask_worker.data[key] for key in works if key in dask_worker.data}
    made = [loop.run_in_executor(threads, works[key], result) for key, result in held.items()]
    return dict(zip(held, await asyncio.gather(*made), strict=True))
