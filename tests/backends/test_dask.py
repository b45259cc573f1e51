"""Rows on a Dask cluster: the iterates of one machine, whatever happens to the workers."""

import functools
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from gorelm import (
    GORELMRegressor,
    GRELMRegressor,
    ORELMRegressor,
    RELMRegressor,
    RobustELMRegressor,
)
from gorelm._features.scaling import Scaling
from gorelm._solver import admm
from gorelm._solver.problem import Problem
from gorelm._solver.rows import MemoryRows, StepSums
from gorelm.datasets import make_multitarget
from support.processes import left_after

pytest.importorskip("dask.array", reason="dask is not installed")
distributed = pytest.importorskip("distributed", reason="distributed is not installed")

import dask  # noqa: E402
import dask.array as da  # noqa: E402
import dask.dataframe as dd  # noqa: E402
import pandas as pd  # noqa: E402

from gorelm.backends.dask import coordinator as _coordinator  # noqa: E402
from gorelm.backends.dask import fit as backend  # noqa: E402
from gorelm.backends.dask import workers as _workers  # noqa: E402
from gorelm.backends.dask.coordinator import Coordinator  # noqa: E402
from gorelm.backends.dask.partition import PartialSums, PartitionActor, add, reach_and_sum  # noqa: E402

N_ROWS, N_HIDDEN = 900, 60
LOCAL = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
slow = pytest.mark.slow
SAME = 1e-10  # relative, for equal iterates in float64

METHODS = {
    "GOR-ELM": GORELMRegressor(lam=0.1),
    "GOR-ELM sparse": GORELMRegressor(lam=0.5, l1_ratio=0.5),
    "GOR-ELM only sparse": GORELMRegressor(lam=0.5, l1_ratio=1.0),
    "GOR-ELM paper": GORELMRegressor(lam=0.5, solver="paper"),
    "OR-ELM": ORELMRegressor(),
    "GR-ELM": GRELMRegressor(),
    "R-ELM": RELMRegressor(C=10),
    "R-ELM few inputs": RELMRegressor(C=10, n_inputs=2, activation="tanh"),
}

# What is not left to the slow tests: a method of every kind, on workers that are threads.
TELLING = ("GOR-ELM", "GOR-ELM only sparse", "R-ELM few inputs")
QUICK = ("threads", (1, 4))


@pytest.fixture
def processes(client_of_processes: Any) -> Iterator[Any]:
    """Two workers that are processes, restarted when they die."""
    with client_of_processes.as_current():
        yield client_of_processes


@pytest.fixture
def threads(client_of_threads: Any) -> Iterator[Any]:
    """Two workers in this process."""
    with client_of_threads.as_current():
        yield client_of_threads


def table(n_rows: int = N_ROWS) -> tuple[Any, Any, Any]:
    data = make_multitarget(n_rows, outlier_ratio=0.2, random_state=0)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, n_rows)
    return data.X, data.T, weights


def model(**parameters: Any) -> GORELMRegressor:
    parameters = {"lam": 0.1, "n_hidden": N_HIDDEN, "random_state": 0, **parameters}
    return GORELMRegressor(**parameters)


def chunked(values: Any, n_partitions: int) -> Any:
    ends = np.linspace(0, len(values), n_partitions + 1).astype(int)
    return da.from_array(values, chunks=(tuple(np.diff(ends).tolist()), *values.shape[1:]))


def assert_same(one: Any, other: Any, rtol: float = SAME) -> None:
    assert other.n_iter_ == one.n_iter_
    assert other.converged_ == one.converged_
    size = np.abs(one.coef_).max()
    np.testing.assert_allclose(other.coef_, one.coef_, rtol=0, atol=rtol * size)
    assert [r["iteration"] for r in other.history_] == [r["iteration"] for r in one.history_]
    for mine, yours in zip(one.history_, other.history_, strict=True):
        np.testing.assert_allclose(yours["objective"], mine["objective"], rtol=rtol)
        np.testing.assert_allclose(yours["dual_gap"], mine["dual_gap"], rtol=0, atol=rtol)
    np.testing.assert_allclose(other.dual_gap_, one.dual_gap_, rtol=0, atol=rtol)
    scores = one.outlier_scores_
    np.testing.assert_allclose(other.outlier_scores_, scores, rtol=0, atol=rtol * scores.max())
    np.testing.assert_array_equal(other.outlier_mask_, one.outlier_mask_)
    np.testing.assert_allclose(other.outlier_threshold_, one.outlier_threshold_, rtol=rtol)


def leftovers(client: Any) -> list[Any]:
    """Return what workers still hold, after a moment to forget it."""
    held = list[Any]()
    for _ in range(100):
        answers = client.run(lambda dask_worker: [*dask_worker.state.actors, *dask_worker.data])
        held = [key for keys in answers.values() for key in keys]
        if not held:
            break
        time.sleep(0.05)
    return held


# -- the same as one machine ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cluster", "sizes"),
    [
        pytest.param(name, *where, marks=() if name in TELLING and where == QUICK else slow)
        for name in METHODS
        for where in (QUICK, ("processes", (2, 7)))
    ],
)
def test_iterates_are_those_of_one_machine(
    request: pytest.FixtureRequest, name: str, cluster: str, sizes: tuple[int, ...]
) -> None:
    request.getfixturevalue(cluster)
    X, T, _ = table()
    method = clone(METHODS[name]).set_params(n_hidden=N_HIDDEN, random_state=0)
    alone = clone(method).fit(X, T)
    for n_partitions in sizes:
        spread = clone(method).fit(chunked(X, n_partitions), chunked(T, n_partitions))
        assert_same(alone, spread)
        if n_partitions == 1:
            np.testing.assert_array_equal(spread.coef_, alone.coef_)


@pytest.mark.parametrize(
    ("l1_ratio", "n_partitions"),
    [
        pytest.param(*case, marks=[] if case == (0.5, 7) else slow)
        for case in itertools.product([0.0, 0.5], [1, 2, 4, 7])
    ],
)
def test_weights_and_missing_targets(threads: Any, l1_ratio: float, n_partitions: int) -> None:
    X, T, w = table()
    rng = np.random.default_rng(2)
    T[rng.random(T.shape) < 0.1] = np.nan
    T[:40] = np.nan  # more than the first of 7 partitions has no row to fit to in part
    w[rng.random(len(w)) < 0.1] = 0.0
    fitted = model(l1_ratio=l1_ratio, missing_targets="ignore", input_scaling="standard")
    alone = clone(fitted).fit(X, T, w)
    parts = [chunked(values, n_partitions) for values in (X, T, w)]
    assert_same(alone, fitted.fit(*parts))


def test_partitions_without_rows_and_of_one_row(threads: Any) -> None:
    X, T, _ = table()
    chunks = (0, 1, 500, 0, N_ROWS - 501)
    spread = model().fit(
        da.from_array(X).rechunk((chunks, (2, X.shape[1] - 2))),  # columns are cut as well
        da.from_array(T, chunks=(400, 1)),  # and y is cut otherwise
    )
    assert_same(model().fit(X, T), spread)


def test_a_single_worker_of_several_threads() -> None:
    X, T, _ = table()
    local = {**LOCAL, "n_workers": 1, "threads_per_worker": 3}
    with distributed.Client(**local, processes=False):
        spread = model().fit(*backend.from_arrays(X, T))
    assert_same(model().fit(X, T), spread)


def test_hidden_outputs_beyond_the_budget_are_made_in_blocks(threads: Any) -> None:
    X, T, w = table(3000)
    alone = model(tol=1e-2).fit(X, T, w)
    spread = model(tol=1e-2, memory_budget=1e5)
    spread.fit(chunked(X, 3), chunked(T, 3), chunked(w, 3))
    assert_same(alone, spread)


def test_float32_stays_float32(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, T, _ = table()
    seen = set()
    step = MemoryRows.step
    monkeypatch.setattr(
        MemoryRows, "step", lambda r, *a, **k: seen.add(r.H.dtype) or step(r, *a, **k)
    )
    X32 = X.astype(np.float32)
    spread = model().fit(chunked(X32, 3), chunked(T, 3))
    assert seen == {np.dtype(np.float32)}
    assert_same(model().fit(X32, T), spread, rtol=1e-3)


def test_targets_beyond_a_limit_are_sampled_for_their_scaling(
    threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, T, _ = table()
    monkeypatch.setattr(backend, "_GATHERED", T.size // 6 - 1)
    spread = model().fit(chunked(X, 4), chunked(T, 4))
    expected = Scaling.fit("robust", T[::7], np.ones(len(T[::7])))
    np.testing.assert_array_equal(spread._target_scaling.centre, expected.centre)
    np.testing.assert_array_equal(spread._target_scaling.scale, expected.scale)


@given(data=st.data(), n_partitions=st.integers(1, 40))
def test_sums_are_the_same_bits_whoever_adds_up(data: Any, n_partitions: int) -> None:
    values = np.random.default_rng(n_partitions).standard_normal(n_partitions) * 1e8
    holders = data.draw(
        st.lists(st.integers(0, 3), min_size=n_partitions, max_size=n_partitions), label="holders"
    )
    alone = PartialSums(n_partitions, add)
    for number in range(n_partitions):
        alone.put((0, number), ([number], values[number]))
    joined = PartialSums(n_partitions, add)
    for holder in data.draw(st.permutations(range(4)), label="order"):
        sums = PartialSums(n_partitions, add)
        for number in np.flatnonzero(np.array(holders) == holder):
            sums.put((0, int(number)), ([int(number)], values[number]))
        for node, value in sums.nodes.items():
            joined.put(node, value)
    assert joined.total == alone.total
    numbers, total = alone.total
    assert numbers == list(range(n_partitions))
    np.testing.assert_allclose(total, values.sum(), atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_answers_of_partitions_come_to_that_of_all_rows(sparse: bool) -> None:
    rng = np.random.default_rng(3)
    H, T, omega = rng.random((50, 6)), rng.standard_normal((50, 2)), rng.uniform(1, 2, 50)
    observed = rng.random(T.shape) < 0.9
    A, B = rng.standard_normal((2, 6, 2, 2))
    two = np.array([1.0, 3.0])
    problem = Problem("l21", 1.0, two if sparse else 0.0, two)
    pieces = [slice(0, 7), slice(7, 30), slice(30, 50)]
    every = slice(None)
    rows = [MemoryRows(H[p], T[p], omega[p], observed[p]) for p in (every, *pieces)]
    calls = [
        ("norm_summary", (problem,), {}, add),
        ("moments", (), {}, add),
        ("start", (problem, 0.5), {}, add),
        ("step", (B, problem, two, 1.6), {"cap": two, "measure": True}, add),
        ("step", (A, problem, two, 1.6), {"cap": two}, add),
        ("HtU", (every,), {}, add),
        ("corrected_dual", (0.1 * A, every, problem, two), {}, reach_and_sum),
        ("loss", (B, problem, two), {}, add),
        ("residual_sums", (B,), {}, add),
        ("TT", (), {}, add),
    ]
    for method, args, options, merge in calls:
        whole, *parts = [getattr(r, method)(*args, **options) for r in rows]
        expected, joined = _numbers(whole), _numbers(functools.reduce(merge, parts))
        assert len(expected) == len(joined), method
        np.testing.assert_allclose(joined, expected, rtol=1e-12, atol=1e-12, err_msg=method)


def _numbers(answer: Any) -> list[float]:
    """Return all numbers of an answer, however it is nested."""
    if answer is None:
        return []
    if isinstance(answer, StepSums):
        answer = tuple(vars(answer).values())
    if isinstance(answer, tuple):
        return [number for part in answer for number in _numbers(part)]
    return list(np.ravel(answer))


# -- inputs and outputs --------------------------------------------------------------------------


def test_dataframes(threads: Any) -> None:
    X, T, _ = table()
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    alone = model().fit(frame, T[:, 0])
    lazy = dd.from_pandas(frame, npartitions=3)
    spread = model().fit(lazy, dd.from_pandas(pd.Series(T[:, 0]), npartitions=3))
    assert_same(alone, spread)
    assert list(spread.feature_names_in_) == list(frame.columns)
    predicted = spread.predict(lazy)
    assert isinstance(predicted, da.Array)
    np.testing.assert_allclose(predicted.compute(), alone.predict(frame), rtol=1e-8)
    with pytest.raises(ValueError, match="fitted with"):
        spread.predict(lazy.rename(columns={"x0": "other"}))


@pytest.mark.parametrize("columns", [1, 3])
def test_prediction_is_lazy_and_blockwise(threads: Any, columns: int) -> None:
    X, T, _ = table()
    y = T[:, 0] if columns == 1 else T
    fitted = model().fit(X, y)
    lazy = fitted.predict(chunked(X, 4))
    assert isinstance(lazy, da.Array)
    assert lazy.shape == y.shape
    assert lazy.chunks[0] == chunked(X, 4).chunks[0]
    np.testing.assert_allclose(lazy.compute(), fitted.predict(X), rtol=1e-12)
    with pytest.raises(ValueError, match="fitted with"):
        fitted.predict(chunked(X[:, 1:], 4))


def test_targets_in_memory_beside_inputs_on_the_cluster(threads: Any) -> None:
    X, T, w = table()
    assert_same(model().fit(X, T, w), model().fit(chunked(X, 3), T, w))
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=3)
    assert_same(model().fit(X, T), model().fit(frame, pd.DataFrame(T)))


@pytest.mark.parametrize("frames", [False, True])
def test_rows_sent_from_memory(threads: Any, frames: bool) -> None:
    X, T, w = table()
    given = (pd.DataFrame(X), pd.DataFrame(T)) if frames else (X, T)
    parts = backend.from_arrays(*given, w, n_partitions=5)
    assert parts[0].npartitions == 5
    spread = model().fit(*parts)
    assert_same(model().fit(X, T, w), spread)
    np.testing.assert_array_equal(spread.predict(parts[0]), spread.predict(X))
    assert leftovers(threads) == []


def test_parquet_to_predictions(threads: Any, tmp_path: Any) -> None:
    X, T, _ = table()
    names = [*(f"x{j}" for j in range(X.shape[1])), "a", "b", "c"]
    frame = pd.DataFrame(np.column_stack([X, T]), columns=names)
    dd.from_pandas(frame, npartitions=3).to_parquet(tmp_path / "rows")
    rows = dd.read_parquet(tmp_path / "rows")
    spread = model().fit(rows[names[:-3]], rows[names[-3:]])
    assert_same(model().fit(frame[names[:-3]], frame[names[-3:]]), spread)


def test_the_guide_runs(threads: Any) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "cluster.rst").read_text("utf-8")
    blocks = re.findall(r"code-block:: python\n\n(.*?)(?=\n\S)", guide, flags=re.S)
    code = "\n".join(textwrap.dedent(block) for block in blocks)
    own = "Client(n_workers=2, threads_per_worker=1)"
    assert own in code
    names: dict[str, Any] = {"the_one_of_this_test": threads}
    exec(code.replace(own, "the_one_of_this_test"), names)
    assert names["model"].dual_gap_ <= 1e-3
    assert_same(model(n_hidden=100).fit(names["data"].X, names["data"].T), names["model"])


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X, T, w: X.__setitem__((700, 2), np.nan), "row 700: X has a NaN"),
        (lambda X, T, w: T.__setitem__((3, 1), np.nan), "row 3: y contains NaN"),
        (lambda X, T, w: T.__setitem__((899, 0), np.inf), "row 899: y has an infinite"),
        (lambda X, T, w: w.__setitem__(450, -1.0), "row 450: sample_weight is negative"),
        (lambda X, T, w: w.__setitem__(slice(None), 0.0), "no row has both"),
    ],
)
def test_bad_rows_are_named(
    threads: Any, spoil: Callable[[Any, Any, Any], None], message: str
) -> None:
    X, T, w = table()
    spoil(X, T, w)
    with pytest.raises(ValueError, match=message):
        model().fit(chunked(X, 4), chunked(T, 4), chunked(w, 4))
    assert leftovers(threads) == []


def test_what_cannot_be_fitted_on_a_cluster_is_refused(threads: Any) -> None:
    X, T, _ = table()
    parts = chunked(X, 2), chunked(T, 2)
    with pytest.raises(ValueError, match="fit_intercept=True needs all of H in memory"):
        RELMRegressor(fit_intercept=True).fit(*parts)
    with pytest.raises(ValueError, match="X has 900 rows, y has 899"):
        model().fit(parts[0], chunked(T[1:], 2))
    with pytest.raises(ValueError, match="X has 2 partitions, y has 3"):
        model().fit(dd.from_pandas(pd.DataFrame(X), npartitions=2), chunked(T, 3))
    with pytest.raises(ValueError, match=r"partition 0 has 450 rows of X, 449 of y"):
        model().fit(dd.from_pandas(pd.DataFrame(X), npartitions=2), chunked(T[1:], 2))
    with pytest.raises(TypeError, match="'0' is of type"):
        model().fit(dd.from_pandas(pd.DataFrame({"0": ["a"] * N_ROWS}), npartitions=2), parts[1])
    with pytest.raises(ValueError, match="the target y is None"):
        model().fit(parts[0], None)


def test_without_a_client() -> None:
    with pytest.raises(RuntimeError, match=r"distributed\.Client\("):
        model().fit(da.ones((9, 2)), da.ones(9))


# -- losses --------------------------------------------------------------------------------------


@contextmanager
def before_command(number: int, act: Callable[[], Any]) -> Iterator[list[str]]:
    """Do something just before the `number`-th command; yields the names of all commands."""
    names, call = list[str](), Coordinator.call

    def counted(coordinator: Coordinator, method: str, *args: Any, **options: Any) -> Any:
        if len(names) == number:
            act()
        names.append(method)
        return call(coordinator, method, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Coordinator, "call", counted)
        yield names
    assert len(names) > number  # it has been done


def two_workers(client: Any) -> None:
    """Wait until two workers are there, and their nannies ready to restart them."""
    deadline = time.monotonic() + 60
    nannies = client.cluster.workers.values()
    while not (
        len(client.run(os.getpid, on_error="ignore")) == 2
        and all(nanny.status.name == "running" for nanny in nannies)
    ):
        running = client.run(os.getpid, on_error="ignore")
        statuses = [(nanny.status.name, nanny.worker_address) for nanny in nannies]
        assert time.monotonic() < deadline, (running, statuses, client.nthreads())
        if len(nannies) < 2:  # on a busy machine a nanny may give its worker up for good
            client.cluster.scale(2)
        time.sleep(0.05)


def kill(client: Any, count: int = 1, how: int = signal.SIGKILL) -> list[int]:
    pids = list(client.run(os.getpid).values())[:count]
    for pid in pids:
        os.kill(pid, how)
    return pids


FAULT = {"tol": 1e-6, "lam": 0.01}


@contextmanager
def restless_penalties() -> Iterator[None]:
    """Have every adaptation change rho, and so U, which a lost partition must not miss."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admm, "FROM_SCRATCH", admm.FROM_SCRATCH._replace(worthwhile=1.0))
        yield


@pytest.fixture(scope="session")
def undisturbed(client_of_processes: Any) -> tuple[GORELMRegressor, list[str]]:
    X, T, _ = table()
    with (
        client_of_processes.as_current(),
        restless_penalties(),
        before_command(-1, lambda: None) as names,
    ):
        fitted = model(**FAULT).fit(chunked(X, 4), chunked(T, 4))
    assert fitted.converged_
    assert names.count("step") > 45  # so that there are checkpoints, at 20 and at 40,
    assert names[: names.index("rescale")].count("step") == 40  # and an adaptation after one
    rhos = [record["rho"] for record in fitted.history_]
    assert len(set(rhos)) > 1
    return fitted, names


@slow  # `test_losses_at_any_time` has losses of all kinds, on workers that are threads
@pytest.mark.parametrize("moment", ["before iterating", "middle", "random", "end"])
def test_a_killed_worker_does_not_change_the_answer(
    processes: Any,
    undisturbed: tuple[GORELMRegressor, list[str]],
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference, names = undisturbed
    X, T, _ = table()
    number = {
        "before iterating": 0,
        "middle": names.index("rescale") + 3,
        "random": random.randrange(len(names)),
        "end": len(names) - 1,
    }[moment]
    if moment == "middle":  # what is before the checkpoint is forgotten: it has to serve
        monkeypatch.setattr(_coordinator, "_LOG_BYTES", 0)
    spread = model(**FAULT)
    two_workers(processes)
    with restless_penalties(), before_command(number, lambda: kill(processes)):
        spread.fit(chunked(X, 4), chunked(T, 4))
    assert spread.converged_, number
    assert spread.dual_gap_ <= spread.tol
    np.testing.assert_allclose(spread.coef_, reference.coef_, rtol=0, atol=1e-8)
    # In fact to the bit: sums are along the same tree, whoever holds the partitions.
    np.testing.assert_array_equal(spread.coef_, reference.coef_)
    np.testing.assert_array_equal(spread.outlier_scores_, reference.outlier_scores_)


@slow
def test_all_workers_killed_at_once(
    processes: Any, undisturbed: tuple[GORELMRegressor, list[str]]
) -> None:
    reference, names = undisturbed
    X, T, _ = table()
    two_workers(processes)
    both = functools.partial(kill, processes, count=2)
    with (
        restless_penalties(),
        before_command(names.index("rescale") + 2, both),
        dask.config.set({"gorelm.worker-timeout": "3 minutes"}),  # to restart on a busy machine
    ):
        spread = model(**FAULT).fit(chunked(X, 4), chunked(T, 4))
    np.testing.assert_array_equal(spread.coef_, reference.coef_)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=slow) for seed in (1, 2, 3))])
def test_losses_at_any_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while an earlier loss is being mended, of requests done and not done, of copies."""
    rng, lost = random.Random(seed), list[str]()
    answer, has = _workers.WorkerPool._answer, _coordinator._Checkpoint.has

    async def unreliable(pool: Any, worker: Any, request: Any) -> Any:
        fate = rng.random()
        if fate < 0.98 or len(lost) == 4:
            return await answer(pool, worker, request)
        lost.append(request.command.method)
        if fate < 0.99:
            await answer(pool, worker, request)
        return None

    X, T, _ = table(300)
    steady = model(n_hidden=20, tol=1e-5).fit(X, T)
    monkeypatch.setattr(_workers, "_NOTICED", 0.0)
    monkeypatch.setattr(_workers.WorkerPool, "_answer", unreliable)
    monkeypatch.setattr(_coordinator._Checkpoint, "has", lambda *a: has(*a) and rng.random() < 0.7)
    local = {**LOCAL, "n_workers": 6}
    with (
        distributed.LocalCluster(**local, processes=False) as cluster,
        distributed.Client(cluster),
        dask.config.set({"gorelm.checkpoint-every": 3}),
    ):
        spread = model(n_hidden=20, tol=1e-5).fit(chunked(X, 9), chunked(T, 9))
    assert lost
    assert_same(steady, spread)


@slow
def test_a_worker_that_hangs_is_given_up(
    processes: Any, undisturbed: tuple[GORELMRegressor, list[str]]
) -> None:
    reference, names = undisturbed
    X, T, _ = table()
    hung = list[int]()
    two_workers(processes)
    model().fit(chunked(X, 2), chunked(T, 2))  # so that no import counts as hanging
    try:
        with (
            dask.config.set({"gorelm.call-timeout": "3s"}),
            restless_penalties(),
            before_command(
                names.index("step") + 5, lambda: hung.extend(kill(processes, how=signal.SIGSTOP))
            ),
        ):
            spread = model(**FAULT).fit(chunked(X, 4), chunked(T, 4))
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGKILL)
    np.testing.assert_array_equal(spread.coef_, reference.coef_)


@slow
def test_rows_sent_from_memory_outlive_a_worker_that_nobody_restarts(
    undisturbed: tuple[GORELMRegressor, list[str]],
) -> None:
    reference, names = undisturbed
    X, T, _ = table()
    with distributed.Client(**LOCAL, processes=True) as client:
        client.run(lambda dask_worker: setattr(dask_worker, "auto_restart", False), nanny=True)
        parts = backend.from_arrays(X, T, client=client, n_partitions=4)
        with restless_penalties(), before_command(names.index("step") + 9, lambda: kill(client)):
            spread = model(**FAULT).fit(*parts)
        assert len(client.nthreads()) == 1
        assert leftovers(client) == []
    np.testing.assert_array_equal(spread.coef_, reference.coef_)


@slow
def test_workers_end_when_the_process_of_the_client_is_killed() -> None:
    code = """
    import os
    import numpy as np
    from distributed import Client
    from gorelm import GORELMRegressor
    from gorelm.backends.dask import from_arrays

    if __name__ == "__main__":
        with Client(n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
            X = np.random.default_rng(0).standard_normal((2000, 4))
            rows = from_arrays(X, X)
            pids = client.run(os.getpid).values()
            tell = lambda record: print(*pids, flush=True)
            GORELMRegressor(n_hidden=50, tol=1e-15, max_iter=10**6, callback=tell).fit(*rows)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")")[-1].split()[0] != "Z"


# -- paused workers ------------------------------------------------------------------------------


def set_pause(client: Any, fraction: float, count: int = 2) -> None:
    """Have dask pause workers at a share of their memory, and wait until it has or has not."""
    some = sorted(client.nthreads())[:count]

    def change(dask_worker: Any) -> None:
        dask_worker.memory_manager.memory_pause_fraction = fraction

    def paused(dask_worker: Any) -> bool:
        return bool(dask_worker.status.name == "paused")

    client.run(change, workers=some)
    deadline = time.monotonic() + 20
    while set(client.run(paused, workers=some).values()) != {fraction < 1e-3}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.1)  # until the scheduler knows


@pytest.fixture
def resumed(threads: Any) -> Iterator[Any]:
    """Two workers that may be paused; they run again at the end."""
    yield threads
    set_pause(threads, 0.999)


def test_a_worker_paused_during_the_fit_does_not_stop_it(resumed: Any) -> None:
    X, T, _ = table()
    alone = model(**FAULT).fit(X, T)
    spread = model(**FAULT)
    start = time.monotonic()
    with (
        pytest.warns(RuntimeWarning, match=r"worker .* is paused by dask.*memory_budget"),
        before_command(20, lambda: set_pause(resumed, 1e-9, count=1)) as names,
        dask.config.set({"gorelm.checkpoint-every": 5}),
    ):
        spread.fit(chunked(X, 4), chunked(T, 4))
    assert time.monotonic() - start < 20
    assert names.count("step") > 45
    assert_same(alone, spread)


@pytest.fixture
def paused_with_actors(resumed: Any, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Pause both workers as soon as they have actors; then call what the list holds, once."""
    start_actors, then = _workers.WorkerPool.start_actors, list[Callable[[], None]]()

    def start_and_pause(pool: Any) -> Any:
        workers = start_actors(pool)
        if then:
            set_pause(resumed, 1e-9)
            then.pop()()
        return workers

    monkeypatch.setattr(_workers.WorkerPool, "start_actors", start_and_pause)
    return then


@pytest.mark.parametrize("with_actors", [pytest.param(False, marks=slow), True])
def test_workers_that_stay_paused_end_the_fit(
    resumed: Any, paused_with_actors: list[Any], with_actors: bool
) -> None:
    if with_actors:
        paused_with_actors.append(lambda: None)
    else:
        set_pause(resumed, 1e-9)
    with (
        pytest.warns(RuntimeWarning, match="paused by dask"),
        dask.config.set({"gorelm.worker-timeout": "1s"}),
    ):
        fails(resumed, model(), MemoryError, "paused by dask for 1 s.*gorelm.worker-timeout")


def test_workers_that_stay_paused_end_a_robust_fit(resumed: Any) -> None:
    X, T, _ = table()
    robust = RobustELMRegressor(effort="fast", n_hidden=10, search_rows=100, random_state=0)
    set_pause(resumed, 1e-9)
    with (
        dask.config.set({"gorelm.worker-timeout": "1s"}),
        pytest.raises(MemoryError, match=r"paused by dask for 1 s.*gorelm\.worker-timeout"),
    ):
        robust.fit(chunked(X, 4), T)
    set_pause(resumed, 0.999)
    assert not left_after(5, resumed.who_has)


@pytest.mark.parametrize("from_memory", [pytest.param(False, marks=slow), True])
def test_a_fit_waits_for_workers_paused_before_they_have_their_rows(
    resumed: Any, paused_with_actors: list[Any], from_memory: bool
) -> None:
    X, T, _ = table()
    resume = threading.Timer(1.5, set_pause, [resumed, 0.999])
    paused_with_actors.append(resume.start)
    sent = backend.from_arrays(X, T, n_partitions=4)
    parts = sent if from_memory else (chunked(X, 4), chunked(T, 4))
    with pytest.warns(RuntimeWarning, match="paused by dask"):
        spread = model().fit(*parts)
    resume.join()
    assert_same(model().fit(X, T), spread)


# -- ends ----------------------------------------------------------------------------------------


def fails(
    client: Any, fitted: GORELMRegressor, error: type[BaseException], match: str | None
) -> None:
    """See a fit fail, quickly, and leave nothing behind."""
    X, T, _ = table()
    before = dict(vars(fitted))
    start = time.monotonic()
    with pytest.raises(error, match=match):
        fitted.fit(chunked(X, 4), chunked(T, 4))
    assert time.monotonic() - start < 20
    assert vars(fitted) == before
    if client.status == "running":
        assert leftovers(client) == []


def test_a_worker_out_of_memory(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = model().fit(*table()[:2])

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(MemoryRows, "rescale", out_of_memory)
        patch.setattr(MemoryRows, "HtU", out_of_memory)
        fails(threads, fitted, MemoryError, "ran out of memory.*memory_budget")
    X, T, _ = table()
    assert_same(model().fit(X, T), fitted.fit(chunked(X, 4), chunked(T, 4)))


def test_an_interrupted_fit(threads: Any) -> None:
    def interrupt(record: dict[str, float]) -> None:
        raise KeyboardInterrupt

    fails(threads, model(callback=interrupt), KeyboardInterrupt, None)


def test_an_error_in_the_work_names_its_worker(
    threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryRows, "moments", lambda rows: 1 / 0)
    fails(threads, model(), RuntimeError, "worker .* failed .*ZeroDivisionError")


def test_workers_that_die_at_every_attempt(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that cannot be asked are given up, and not for ever."""
    monkeypatch.setattr(_workers, "_NOTICED", 0.1)

    async def unreachable(*_: Any) -> None:
        raise OSError("gone")

    monkeypatch.setattr(_workers.WorkerPool, "_execute", unreachable)
    with dask.config.set({"gorelm.worker-timeout": "2s"}):
        fails(threads, model(), RuntimeError, "no worker of the cluster is left|were lost")


def test_partitions_refuse_commands_out_of_turn() -> None:
    from gorelm.backends.dask.partition import Command, Failure, Partition, Request

    holder = PartitionActor("test", 1, 1, None)
    holder.partitions[0] = Partition(0, np.ones((3, 2)), np.ones((3, 1)), np.ones(3))
    command = Command("describe", (), add)
    assert not isinstance(holder.run(Request([0], 0, command)), Failure)
    refusal = holder.run(Request([0], 1, command))
    assert isinstance(refusal, Failure)
    assert "has gone through 0 changes, not 1" in refusal.message


def test_a_closed_cluster() -> None:
    fitted = model().fit(*table()[:2])
    cluster = distributed.LocalCluster(**LOCAL, processes=False)
    with distributed.Client(cluster) as client, dask.config.set({"gorelm.worker-timeout": "3s"}):
        fitted.callback = lambda record: cluster.close()
        fails(client, fitted, RuntimeError, "scheduler cannot be reached|no worker")


def test_a_cluster_without_workers() -> None:
    X, T, _ = table()
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
        dask.config.set({"gorelm.worker-timeout": "1s"}),
    ):
        fails(client, model(), RuntimeError, "no worker of the cluster is left")
        with pytest.raises(ValueError, match="no worker to count threads of"):
            backend.from_arrays(X, T)
