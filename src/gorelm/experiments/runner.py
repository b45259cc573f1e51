"""Execute the missing runs of an experiment in parallel; finished runs are never lost."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TypeAlias, TypedDict, TypeVar

from gorelm._processes import end_with
from gorelm.experiments.execute import execute, select
from gorelm.experiments.protocol import Config, Run, RunRecord
from gorelm.experiments.store import Store

L = TypeVar("L")
R = TypeVar("R")
Report: TypeAlias = Callable[[RunRecord], None]
Params: TypeAlias = dict[str, float]
Call: TypeAlias = tuple[Callable[..., R], tuple[object, ...], L]  # function, arguments, label
# Fits that a worker does before it is replaced: what libraries leak stays bounded.
_RUNS_PER_WORKER = 200


class Status(TypedDict):
    """Counts of runs, and the reasons of those that failed, by how often."""

    total: int
    done: int
    failed: int
    to_do: int
    reasons: dict[str, int]


def run_experiment(
    config: Config,
    folder: str | Path,
    *,
    jobs: int = 1,
    retry_failed: bool = False,
    on_start: Callable[[int, int], None] | None = None,
    on_record: Report | None = None,
) -> Status:
    """Do every run that the folder has no record of.

    Parameters
    ----------
    config : Config
        The experiment.
    folder : path
        Where its records are kept. A folder that has some must be of the same experiment (more
        repeats, data sets or methods are the same experiment).
    jobs : int, default=1
        Processes, each with one BLAS thread. The records do not depend on it.
    retry_failed : bool, default=False
        Whether to do those again that failed.
    on_start : callable, optional
        Called with the numbers of all runs and of those already there.
    on_record : callable, optional
        Called with each record once it is safe.

    Returns
    -------
    status : Status

    Raises
    ------
    Busy
        If another runner is at work in the folder.
    ValueError
        If the folder belongs to another experiment.
    """
    config.check()
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    with Store(folder) as store, store.alone():
        _claim(store, config)
        finished = store.finished(failed=not retry_failed)
        runs = list(config.runs())
        pending = [run for run in runs if run not in finished]
        if on_start is not None:
            on_start(len(runs), len(runs) - len(pending))

        def keep(record: RunRecord) -> None:
            store.put(record)
            if on_record is not None:
                on_record(record)

        chosen = _selections(store, config, pending, jobs, keep)
        pending = [run for run in pending if (run.dataset, run.method) in chosen]
        work = [(execute, (config, run, chosen[run.dataset, run.method]), run) for run in pending]
        for run, record in _outcomes(work, jobs):
            keep(record if record is not None else _lost(config, run))
        return _status(set(runs), store)


def status(folder: str | Path, config: Config | None = None) -> Status:
    """Return how far the experiment of a folder has come."""
    if not (Path(folder) / "records.sqlite").is_file():
        raise FileNotFoundError(f"there is no experiment in {str(folder)!r}")
    with Store(folder) as store:
        planned = {Run(*key) for key in store.noted("planned") or ()}
        return _status(set(config.runs()) if config is not None else planned, store)


def _claim(store: Store, config: Config) -> None:
    """Make the folder this experiment's, or refuse."""
    mine = _identity(config)
    noted = store.noted("config")
    if noted is None:
        store.note("config", mine)
    elif noted["fixed"] != mine["fixed"] or any(
        noted["methods"][name] != entry
        for name, entry in mine["methods"].items()
        if name in noted["methods"]
    ):
        raise ValueError(
            f"{store.folder} holds the records of another experiment ({noted['fixed']['name']!r}, "
            "or the same one with other settings); choose another folder"
        )
    else:
        store.note("config", {**noted, "methods": {**noted["methods"], **mine["methods"]}})
    planned = {tuple(key) for key in store.noted("planned") or ()}
    planned |= {astuple(run) for run in config.runs()}
    store.note("planned", sorted(planned))


def _identity(config: Config) -> dict[str, dict[str, object]]:
    """Return what two configurations must agree in to share a folder."""
    fixed = ("name", "common", "test_size", "kind", "seed")
    table = json.loads(json.dumps(asdict(config)))
    return {
        "fixed": {**{name: table[name] for name in fixed}, "selection": table["selection"]},
        "methods": {entry["name"]: entry for entry in table["methods"]},
    }


def _selections(
    store: Store, config: Config, pending: list[Run], jobs: int, keep: Report
) -> dict[tuple[str, str], Params]:
    """Return the parameters of every method and data set; where there are none, say so."""
    pairs = list(dict.fromkeys((run.dataset, run.method) for run in pending))
    chosen = {pair: store.noted(f"chosen {pair[0]} {pair[1]}") for pair in pairs}
    work = [(_selected, (config, *pair), pair) for pair in pairs if chosen[pair] is None]
    for pair, outcome in _outcomes(work, jobs):
        params, reason = outcome or (None, "the process died (out of memory?)")
        if params is None:
            del chosen[pair]
            for run in pending:
                if (run.dataset, run.method) == pair:
                    keep({**_lost(config, run), "reason": f"selection: {reason}"})
        else:
            chosen[pair] = params
            store.note(f"chosen {pair[0]} {pair[1]}", params)
    return {pair: params for pair, params in chosen.items() if params is not None}


def _selected(config: Config, dataset: str, method: str) -> tuple[Params | None, str]:
    try:
        return select(config, dataset, method), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _lost(config: Config, run: Run) -> RunRecord:
    return {
        **asdict(run),
        "config": config.name,
        "seed": config.seed,
        "status": "failed",
        "reason": "the process died (out of memory?)",
    }


def _outcomes(work: Sequence[Call[R, L]], jobs: int) -> Iterator[tuple[L, R | None]]:
    """Yield (label, result) as calls finish; the result is None where the process died."""
    if jobs == 1:
        yield from ((label, function(*arguments)) for function, arguments, label in work)
        return
    left = deque(work)
    suspects: list[Call[R, L]] = []
    while left:
        yield from _pooled(left, jobs, suspects)
        # One of these runs ended its process, and with it the pool: run each alone to find it.
        while suspects:
            alone, last = deque([suspects.pop()]), list[Call[R, L]]()
            label = alone[0][2]
            yield from _pooled(alone, 1, last)
            if last or alone:
                yield label, None


def _pooled(
    left: deque[Call[R, L]], jobs: int, suspects: list[Call[R, L]]
) -> Iterator[tuple[L, R]]:
    """Yield outcomes until nothing is left or the pool breaks; then name what was running."""
    # Spawned, not forked: BLAS threads and SQLite do not survive a fork.
    with ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=_RUNS_PER_WORKER,
        initializer=end_with,
        initargs=(os.getpid(),),
    ) as pool:
        running: dict[Future[R], Call[R, L]] = {}
        try:
            while left or running:
                while left and len(running) < 2 * jobs:
                    running[pool.submit(left[0][0], *left[0][1])] = left[0]
                    left.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    yield running.pop(future)[2], result
        except BrokenProcessPool:
            for future, call in running.items():
                if future.done() and not future.cancelled() and future.exception() is None:
                    yield call[2], future.result()
                else:
                    suspects.append(call)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _status(runs: set[Run], store: Store) -> Status:
    """Count the records of some runs."""
    records = [outcome for run, outcome in store.outcomes().items() if run in runs]
    counts = Counter(status for status, _ in records)
    reasons = Counter(reason for status, reason in records if status == "failed")
    return Status(
        total=len(runs),
        done=counts["done"],
        failed=counts["failed"],
        to_do=len(runs) - len(records),
        reasons=dict(reasons.most_common()),
    )
