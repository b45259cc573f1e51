"""RobustELM gives the same model wherever its rows are: in memory, in blocks, elsewhere."""

import os
import signal
import threading
import time
from functools import cache
from itertools import groupby

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gorelm import RobustELMRegressor, stream
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling
from gorelm.backends import inputs
from gorelm.backends.inputs import InMemory, within_reach
from gorelm.backends.streamed_inputs import StreamedInputs
from gorelm.datasets import make_multitarget
from gorelm.estimators._robust import judge, layers, members, search, task
from gorelm.estimators._robust.layers import Layer
from gorelm.stream import RowBlocks
from support.owners import (
    OWNERS,
    around_passes,
    in_parquet,
    on_dask,
    on_device,
    uneven,
    weights_and_holes,
)

N_ROWS = 700
# Of every kind: additive and radial, with few and with all inputs.
LAYERS = (
    search.LINEAR,
    Layer("tanh", 1.0, True, 2),
    Layer("cosine", 0.5, False),
    Layer("multiquadric", 2.0, True, 2),
    Layer("multiquadric", 2.0, False),
    Layer("laplace", 0.25, True, 3),
    Layer("laplace", 0.25, False),
)


CASES = {
    "many rows": {"search_rows": 150},
    "radial": {"search_rows": 150},
    "few rows": {},
    "given folds": {"search_rows": 150, "cv": 7},
    "threads": {"search_rows": 150, "n_jobs": 3},
    "very many rows": {"search_rows": 150, "n_hidden": "auto"},
    "very many rows in given folds": {"search_rows": 150, "cv": 3},
    "more nodes than rows": {"search_rows": 150, "n_hidden": "auto"},
}
# Every owner once, and blocks, which share the code with memory, with every case.
PAIRS = [(owner, "many rows") for owner in OWNERS if owner not in ("memory map", "parquet")]
PAIRS += [("uneven blocks", case) for case in ("radial", "few rows", "threads")]
PAIRS += [("torch cpu", "radial"), ("torch cuda", "radial")]
PAIRS += [(owner, "very many rows") for owner in ("uneven blocks", "torch cpu", "torch cuda")]
PAIRS += [("uneven blocks", "very many rows in given folds")]
PAIRS += [(owner, "more nodes than rows") for owner in ("uneven blocks", "torch cpu")]
EVERY_PAIR = [(owner, case) for owner in OWNERS for case in CASES]
PAIRS += [pytest.param(*p, marks=pytest.mark.slow) for p in EVERY_PAIR if p not in PAIRS]

pytestmark = pytest.mark.usefixtures("current_client")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few layers, and blocks of sizes that divide nothing here."""
    monkeypatch.setattr(search, "SEARCH_LAYERS", LAYERS)
    monkeypatch.setattr(inputs, "BLOCK_ROWS", 61)
    monkeypatch.setattr(stream, "BLOCK_ROWS", 37)
    monkeypatch.setattr(judge, "JUDGED_ROWS", 71)
    monkeypatch.setattr(layers, "SCORED_ROWS", 53)


@pytest.fixture(scope="module")
def data():
    return make_multitarget(N_ROWS, outlier_ratio=0.2, random_state=0)


def make(**params):
    return RobustELMRegressor(**{"n_hidden": 40, "effort": "fast", "random_state": 0} | params)


def assert_same_model(one, other, X, given=None):
    """Same members, flags and predictions; `given` are rows as the first model takes them."""
    assert [m.activation for m in one.members_] == [m.activation for m in other.members_]
    for mine, theirs in zip(one.members_, other.members_, strict=True):
        assert_allclose(mine.hidden_.A, theirs.hidden_.A, rtol=1e-9, atol=1e-12)
    assert one.contaminated_ == other.contaminated_
    assert (one.outlier_mask_ == other.outlier_mask_).all()
    assert (one.cell_mask_ == other.cell_mask_).all()
    size = np.abs(other.predict(X)).max()
    assert_allclose(one.outlier_scores_, other.outlier_scores_, rtol=1e-6, atol=1e-6)
    assert_allclose(one.out_of_fold_, other.out_of_fold_, rtol=0, atol=1e-6 * size)
    predicted = one.predict(X if given is None else given)
    predicted = predicted.cpu() if hasattr(predicted, "cpu") else predicted
    assert_allclose(np.asarray(predicted), other.predict(X), rtol=0, atol=1e-6 * size)


@pytest.fixture(scope="module")
def in_memory(data):
    """Case -> the model in memory, fitted once."""
    return cache(lambda case: make(**CASES[case]).fit(data.X, data.T))


@pytest.mark.parametrize(("owner", "case"), PAIRS)
def test_every_owner_gives_the_model_in_memory(owner, case, data, in_memory, tmp_path, monkeypatch):
    X = OWNERS[owner](tmp_path, data.X)
    if case == "radial":
        monkeypatch.setattr(search, "SEARCH_LAYERS", LAYERS[3:])
        monkeypatch.setattr(search, "DIRECTED", ())  # which are not radial
        monkeypatch.setattr(task, "CENTRE_ROWS", 200)  # fewer than there are
    if case == "more nodes than rows":
        monkeypatch.setattr(task, "WIDE_COLUMNS", 0)
    if case.startswith("very many"):
        monkeypatch.setattr(members, "FORWARD_ROWS", 300)
    here = in_memory(case)
    there = make(**CASES[case]).fit(X, data.T)
    assert_same_model(there, here, data.X, X)
    assert there.outlier_mask_[data.planted].mean() > 0.9
    radial = {"multiquadric", "laplace"} & {m.activation for m in there.members_}
    assert radial or case != "radial"


@pytest.mark.parametrize(
    "owner",
    ["uneven blocks", "torch cpu", "torch cuda", pytest.param("dask", marks=pytest.mark.slow)],
)
def test_weights_and_unknown_targets(owner, data, tmp_path):
    T, w = weights_and_holes(data.T)
    X = OWNERS[owner](tmp_path, data.X)
    here, there = (make(search_rows=150, missing_targets="ignore") for _ in range(2))
    here.fit(data.X, T, w)
    there.fit(X, T, w)
    assert_same_model(there, here, data.X)


def test_no_digit_depends_on_blocks_or_threads(data):
    one = make(search_rows=150).fit(uneven(data.X), data.T)
    two = make(search_rows=150, n_jobs=2).fit(RowBlocks.from_array(data.X), data.T)
    assert (one.outlier_scores_ == two.outlier_scores_).all()
    assert (one.predict(data.X) == two.predict(data.X)).all()


def test_names_and_numbers_of_inputs_are_checked(data, tmp_path):
    X = in_parquet(tmp_path, data.X)
    model = make(search_rows=150).fit(X, data.T)
    assert list(model.feature_names_in_) == [f"x{j}" for j in range(data.X.shape[1])]
    with pytest.raises(ValueError, match="fitted with"):
        model.predict(RowBlocks.from_array(data.X[:, 1:]))
    bad = data.X.copy()
    bad[400, 1] = np.nan
    before = model.outlier_scores_
    with pytest.raises(ValueError, match="row 400"):
        model.fit(RowBlocks.from_array(bad), data.T)
    assert model.outlier_scores_ is before


@pytest.fixture(scope="module")
def rescaled():
    """A model on logarithms and roots that checks its inputs, and rows of which some are wrong."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 3)) @ rng.normal(size=(3, 5)) + 0.1 * rng.normal(size=(N_ROWS, 5))
    model = RobustELMRegressor(
        effort="fast", n_hidden=20, target_transform="log", check_inputs=True, random_state=0
    ).fit(X[:300], np.exp(X[:300, :2]))
    model._target_transforms.kinds[1] = "sqrt"
    X[::50, 0] = 1e3
    assert model._input_check.of(X)[1].any()
    return model, X


@pytest.mark.parametrize("owner", OWNERS)
def test_scales_of_targets_and_checks_are_part_of_every_prediction(owner, rescaled, tmp_path):
    model, X = rescaled
    predicted = model.predict(OWNERS[owner](tmp_path, X))
    predicted = predicted.compute() if hasattr(predicted, "compute") else predicted
    predicted = predicted.cpu() if hasattr(predicted, "cpu") else predicted
    assert_allclose(predicted, model.predict(X), rtol=1e-9)


def test_blocks_on_a_device_give_the_model_in_memory(data, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    X = in_parquet(tmp_path, data.X)
    there = make(search_rows=150, device="cpu").fit(X, data.T)
    assert_same_model(there, make(search_rows=150).fit(data.X, data.T), data.X)
    assert list(there.feature_names_in_) == [f"x{j}" for j in range(data.X.shape[1])]
    assert X.n_passes == 1


def test_rows_on_a_cluster_are_not_fitted_on_a_device(data, tmp_path):
    with pytest.raises(TypeError, match="leave out device"):
        make(device="cpu").fit(on_dask(tmp_path, data.X), data.T)


def test_arrays_on_a_device_give_the_model_in_memory(data):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    here, there = make(search_rows=150), make(search_rows=150, device="cpu")
    assert_same_model(there.fit(data.X, data.T), here.fit(data.X, data.T), data.X)
    with pytest.raises(ValueError, match="not available"):
        make(device="nosuch").fit(data.X, data.T)


# -- a cluster ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_that_are_killed_change_nothing(data, client_of_processes, tmp_path, monkeypatch):
    here, calls = make(search_rows=150).fit(data.X, data.T), []

    def killing(make_pass):
        calls.append(1)
        if len(calls) in (6, 9):
            pids = list(client_of_processes.run(os.getpid).values())
            os.kill(pids[-1], signal.SIGKILL)
        return make_pass()

    around_passes(monkeypatch, killing)
    with client_of_processes.as_current():
        there = make(search_rows=150).fit(on_dask(tmp_path, data.X), data.T)
    assert len(calls) > 9
    assert_same_model(there, here, data.X)


@pytest.mark.slow
@pytest.mark.parametrize("few_units", [0, 8])  # passes as tasks, and without them
@pytest.mark.parametrize("seed", range(2))
def test_workers_killed_at_five_random_moments(
    seed, few_units, data, client_of_processes, tmp_path, monkeypatch
):
    monkeypatch.setattr("gorelm.backends.dask.inputs.FEW_UNITS", few_units)
    rng = np.random.default_rng(seed)
    calls, killed, due = [], [], set()

    def kill(pids):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # its supervisor has just ended it
            killed.append(pid)
            return

    def disturbed(make_pass):
        calls.append(1)
        if len(calls) not in due:
            return make_pass()
        while not (pids := client_of_processes.run(os.getpid, on_error="ignore")):
            time.sleep(0.1)  # all were killed, and start again
        order = rng.permutation(sorted(pids.values())).tolist()
        timer = threading.Timer(rng.uniform(0.0, 0.1), kill, (order,))
        timer.start()
        try:
            return make_pass()
        finally:
            timer.join()

    around_passes(monkeypatch, disturbed)
    # A local cluster gives up workers that take longer to start again, as on a busy machine.
    dask = pytest.importorskip("dask")
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "10 minutes"})
    with client_of_processes.as_current(), patient:
        here = make(search_rows=150).fit(on_dask(tmp_path, data.X), data.T)
        due.update(rng.choice(np.arange(1, len(calls) + 1), 5, replace=False).tolist())
        calls.clear()
        there = make(search_rows=150).fit(on_dask(tmp_path, data.X), data.T)
    assert len(killed) == 5
    assert (here.outlier_scores_ == there.outlier_scores_).all()
    assert (here.predict(data.X) == there.predict(data.X)).all()


def test_what_fails_on_a_worker_keeps_its_name(data, client_of_processes):
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    from gorelm.backends.dask.inputs import Partitions

    with client_of_processes.as_current():
        rows = Partitions(da.from_array(data.X, name=False)).scaled(scaling_of(data.X))
        hidden = HiddenLayer.draw(5, data.X.shape[1], random_state=0)
        with pytest.raises(ValueError, match="matmul"):
            rows.outputs(hidden, [np.arange(3)], [np.zeros((4, 1))])


@pytest.mark.slow
def test_work_that_ends_workers_is_named(data, client_of_processes):
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    from gorelm.backends.dask.inputs import Partitions

    class Deadly(HiddenLayer):
        def __reduce__(self):
            return os._exit, (1,)

    with client_of_processes.as_current():
        rows = Partitions(da.from_array(data.X, name=False)).scaled(scaling_of(data.X))
        hidden = Deadly.draw(5, data.X.shape[1], random_state=0)
        with pytest.raises(RuntimeError, match="workers were lost, one after the other"):
            rows.outputs(hidden, [np.arange(3)], [np.zeros((6, 1))])


def test_lazy_predictions_and_bad_partitions(data, client_of_threads, tmp_path):
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    dask = pytest.importorskip("dask")
    with client_of_threads.as_current():
        X, y = on_dask(tmp_path, data.X), da.from_array(data.T, chunks=(101, -1))
        model = make(search_rows=150).fit(X, y)
        lazy = model.predict(X)
        assert isinstance(lazy, da.Array)
        assert lazy.chunks[0] == X.chunks[0]
        assert_allclose(lazy.compute(), model.predict(data.X), rtol=1e-9)
        before = model.outlier_scores_
        odd = [data.X[:100], data.X[100:, 1:]]
        parts = [dask.delayed(x) for x in odd]
        ragged = da.concatenate([
            da.from_delayed(part, shape=(len(x), data.X.shape[1]), dtype=float)
            for part, x in zip(parts, odd, strict=True)
        ])  # fmt: skip
        with pytest.raises(ValueError, match="columns"):
            model.fit(ragged, data.T)
        bad = data.X.copy()
        bad[205, 1] = np.inf
        with pytest.raises(ValueError, match="row 205"):
            model.fit(on_dask(tmp_path, bad), data.T)
        with pytest.raises(ValueError, match="inconsistent"):
            model.fit(X, data.T[1:])
        assert model.outlier_scores_ is before


def test_neighbouring_partitions_are_on_one_worker(data, client_of_processes):
    """So that few sums travel between workers; rows that are on workers already stay there."""
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    from gorelm.backends.dask.inputs import Partitions, _runs

    def places(X):
        parts = Partitions(X)._parts
        held = client_of_processes.who_has()
        return [held[future.key][0] for future in distributed.futures_of(parts)]

    with client_of_processes.as_current():
        X = da.from_array(data.X, chunks=(100, -1), name=False)
        here = places(X)
        assert len(here) == 7
        assert [place for place, _ in groupby(here)] == sorted(client_of_processes.nthreads())
        held = client_of_processes.persist(X)
        free = _runs(client_of_processes, held, 7)
        assert free == [(None, range(number, number + 1)) for number in range(7)]


def test_no_digit_depends_on_who_adds_partitions(data, client_of_processes, monkeypatch):
    """Tasks or requests, on one thread or two, on workers that hold the rows already."""
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    from gorelm.backends.dask import inputs as dask_inputs

    rng, hidden = np.random.default_rng(0), HiddenLayer.draw(70, data.X.shape[1], random_state=0)
    omega, folds = np.sqrt(rng.uniform(size=N_ROWS)), np.array_split(rng.permutation(N_ROWS), 3)
    X = da.from_array(data.X, chunks=(60, -1), name=False)
    two = sorted(client_of_processes.nthreads())
    found = []
    with client_of_processes.as_current():
        for few_units in (0, 100):
            monkeypatch.setattr(dask_inputs, "FEW_UNITS", few_units)
            for threads, rows in ((two, X), (two[:1], X), (two, client_of_processes.persist(X))):
                with monkeypatch.context() as one:
                    nthreads = dict.fromkeys(threads, 1)
                    one.setattr(client_of_processes, "nthreads", lambda n=nthreads: n)
                    parts = dask_inputs.Partitions(rows).scaled(scaling_of(data.X))
                found.append(parts.sums(hidden, folds, omega, data.T))
    here = InMemory(within_reach(scaling_of(data.X), data.X)).sums(hidden, folds, omega, data.T)
    for sums in found:
        for of, first, expected in zip(sums, found[0], here, strict=True):
            assert (of.G == first.G).all()
            assert (of.C == first.C).all()
            assert_allclose(of.G, expected.G, rtol=1e-10)
            assert_allclose(of.C, expected.C, rtol=1e-10, atol=1e-10)


# -- the seam itself ---------------------------------------------------------------------------


def scaling_of(X):
    return Scaling.fit("standard", X, np.ones(len(X)))


def on_partitions(X):
    pytest.importorskip("distributed", reason="dask is not installed")
    from gorelm.backends.dask.inputs import Partitions

    return Partitions(on_dask(None, X)).scaled(scaling_of(X))


def as_torch_inputs(X, device):
    there = on_device(None, X, device)
    from gorelm.backends.torch import inputs as torch_inputs

    return torch_inputs.TorchInputs(there, scaling_of(X))


SEAMS = {
    "memory": lambda X: InMemory(within_reach(scaling_of(X), X)),
    "blocks": lambda X: StreamedInputs(uneven(X), scaling_of(X)),
    "dask": lambda X: on_partitions(X),
    "torch cpu": lambda X: as_torch_inputs(X, "cpu"),
    "torch cuda": lambda X: as_torch_inputs(X, "cuda"),
}
GROUPS = {
    "shuffled": lambda rng: np.array_split(rng.permutation(N_ROWS), 3),
    "a partition": lambda rng: np.array_split(np.sort(rng.permutation(N_ROWS)), 3),
    "overlapping": lambda rng: [rng.permutation(N_ROWS)[:300] for _ in range(3)],
    "empty": lambda rng: [np.arange(0), np.arange(N_ROWS - 1, N_ROWS)],
}


@pytest.mark.crossed
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("seam", SEAMS)
def test_sums_and_outputs_are_those_of_the_whole_hidden_outputs(seam, groups, data):
    rng = np.random.default_rng(0)
    rows, chosen = SEAMS[seam](data.X), GROUPS[groups](rng)
    scaled = within_reach(scaling_of(data.X), data.X)
    omega = rng.uniform(0.5, 2.0, N_ROWS)
    for activation, n_inputs in (("tanh", None), ("multiquadric", 2), ("laplace", 2)):
        hidden = HiddenLayer.draw(
            9, data.X.shape[1], activation=activation, direct_link=True, random_state=0,
            X=scaled, n_inputs=n_inputs,
        )  # fmt: skip
        H = np.column_stack([hidden.transform(scaled), np.ones(N_ROWS)])
        coefs = [rng.normal(size=(H.shape[1], 2)) for _ in chosen]
        for n_threads in (1, 2):
            sums = rows.sums(hidden, chosen, omega, data.T, n_threads)
            outputs = rows.outputs(hidden, chosen, coefs, n_threads)
            for group, one, out, coef in zip(chosen, sums, outputs, coefs, strict=True):
                h, t = (omega[group, None] * A[group] for A in (H, data.T))
                assert_allclose(one.coef(1e-3), one_ridge(h, t, 1e-3), rtol=1e-6, atol=1e-9)
                assert_allclose(out, H[group] @ coef, rtol=1e-9, atol=1e-9)
    some = rng.permutation(N_ROWS)[:50]
    assert_allclose(rows.take(some), scaled[some], rtol=1e-12)
    assert rows.shape == data.X.shape


def one_ridge(h, t, lam):
    unit = np.square(h).sum() or 1.0
    return np.linalg.solve(h.T @ h + lam * unit * np.eye(h.shape[1]), h.T @ t)
