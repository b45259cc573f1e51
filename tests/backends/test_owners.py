"""Searches, intervals and online updates give the same results wherever the rows are."""

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.model_selection import ShuffleSplit

from gorelm import (
    ConformalRegressor,
    GORELMRegressor,
    GORELMRegressorCV,
    GRELMRegressorCV,
    ORELMRegressorCV,
    OSELMRegressor,
    RELMRegressorCV,
    RobustELMRegressor,
    RobustOSELMRegressor,
    TableRegressor,
    stream,
)
from gorelm._features.scaling import Scaling
from gorelm.datasets import make_multitarget
from gorelm.estimators._elsewhere import here, in_order, n_rows_of, select
from gorelm.stream import ParquetTable, RowBlocks
from support.owners import (
    OWNERS,
    around_passes,
    in_dask_frame,
    on_dask,
    on_device,
    uneven,
    weights_and_holes,
)
from support.processes import left_after

N_ROWS = 420
SEARCHES = {
    "GOR-ELM": (GORELMRegressorCV, {"l1_ratios": [0.0, 0.5], "direct_link": True}),
    "OR-ELM": (ORELMRegressorCV, {"activation": ["tanh", "gaussian"]}),
    "GR-ELM": (GRELMRegressorCV, {"input_scaling": "standard"}),
    "R-ELM": (RELMRegressorCV, {}),
}


pytestmark = [
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),
    pytest.mark.usefixtures("current_client"),
]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Of a size that divides nothing here."""
    monkeypatch.setattr(stream, "BLOCK_ROWS", 37)


@pytest.fixture(scope="module")
def data():
    return make_multitarget(N_ROWS, outlier_ratio=0.2, random_state=0)


# -- searches ----------------------------------------------------------------------------------


def search(name, **params):
    kind, settings = SEARCHES[name]
    common = {"n_hidden": 30, "n_lams": 4, "eps": 1e-3, "cv": 2, "random_state": 0}
    return kind(**common | settings | params)


def assert_same_search(there, here_, X, given, digits=1e-8):
    """Same choice and flags; predictions to 1e-8: float32 would pass for the promised 1e-6."""
    assert there.best_index_ == here_.best_index_
    assert_allclose(there.best_score_, here_.best_score_, rtol=1e-9)
    assert list(there.cv_results_) == list(here_.cv_results_)
    assert_allclose(
        there.cv_results_["mean_test_score"], here_.cv_results_["mean_test_score"], rtol=1e-9
    )
    assert there.n_iter_ == here_.n_iter_ or here_.n_iter_ == 1  # a closed form
    expected = here_.predict(X)
    atol = digits * np.abs(expected).max()
    assert_allclose(here(there.predict(given)), expected, rtol=0, atol=atol)
    assert_allclose(there.predict(X), expected, rtol=0, atol=atol)
    assert (there.cv_outlier_mask_ == here_.cv_outlier_mask_).all()
    assert (there.outlier_mask_ == here_.outlier_mask_).all()
    assert_allclose(there.cv_outlier_scores_, here_.cv_outlier_scores_, rtol=1e-6, atol=1e-6)
    assert_allclose(there.outlier_scores_, here_.outlier_scores_, rtol=1e-6, atol=1e-6)


# Every owner once, and every method on one owner of every kind.
PAIRS = [(owner, "GOR-ELM", 150) for owner in OWNERS]
PAIRS += [
    (owner, name, rows)
    for owner in ("uneven blocks", "torch cpu", "torch cuda")
    for name, rows in [("GOR-ELM", None), *((name, 150) for name in list(SEARCHES)[1:])]
]
PAIRS += [
    pytest.param("dask", name, rows, marks=pytest.mark.slow)
    for name, rows in [("GOR-ELM", None), *((name, 150) for name in list(SEARCHES)[1:])]
]


@pytest.mark.parametrize(("owner", "name", "rows"), PAIRS)
def test_every_owner_gives_the_search_in_memory(owner, name, rows, data, tmp_path):
    expected = search(name, search_rows=rows).fit(data.X, data.T)
    X = OWNERS[owner](tmp_path, data.X)
    found = search(name, search_rows=rows).fit(X, data.T)
    assert_same_search(found, expected, data.X, X)
    assert found.cv_outlier_mask_[data.planted].mean() > 0.7


@pytest.mark.parametrize(
    "owner",
    ["uneven blocks", "torch cpu", "torch cuda", pytest.param("dask", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("name", SEARCHES)
def test_searches_with_weights_and_unknown_targets(owner, name, data, tmp_path):
    T, w = weights_and_holes(data.T)
    params = {"search_rows": 150, "missing_targets": "ignore", "n_lams": 3}
    expected = search(name, **params).fit(data.X, T, w)
    X = OWNERS[owner](tmp_path, data.X)
    # The closed form of R-ELM in memory is an iteration elsewhere.
    digits = 1e-7 if name == "R-ELM" else 1e-8
    assert_same_search(search(name, **params).fit(X, T, w), expected, data.X, X, digits)


def test_hidden_outputs_wider_than_the_rows_are_many(data):
    """There the loop in memory works in the row space of H, and the others do not."""
    wide = {"n_hidden": 400, "search_rows": 150, "l1_ratios": 0.0}
    expected = search("GOR-ELM", **wide).fit(data.X[:300], data.T[:300])
    X = RowBlocks.from_array(data.X[:300])
    assert_same_search(search("GOR-ELM", **wide).fit(X, data.T[:300]), expected, data.X[:300], X)


def test_arrays_that_dask_workers_fit(data):
    from gorelm.backends.dask import from_arrays

    expected = search("GOR-ELM", search_rows=150).fit(data.X, data.T)
    X, y = from_arrays(data.X, data.T, n_partitions=3)
    assert_same_search(search("GOR-ELM", search_rows=150).fit(X, y), expected, data.X, X)
    pytest.importorskip("mapie", reason="MAPIE is not installed")
    ends = conformal(**INTERVALS["searched"]).fit(data.X, data.T).predict_interval(data.X)
    found = conformal(**INTERVALS["searched"]).fit(X, y).predict_interval(data.X)
    assert_allclose(found, ends, rtol=0, atol=1e-6 * np.abs(ends).max())


def test_a_search_on_a_named_device_and_beyond_the_budget(data):
    expected = search("GOR-ELM", search_rows=150).fit(data.X, data.T)
    small = search("GOR-ELM", search_rows=150, memory_budget=1.0).fit(data.X, data.T)
    assert_same_search(small, expected, data.X, data.X)
    with pytest.raises(TypeError, match="leave out device"):
        search("GOR-ELM", device="cpu").fit(uneven(data.X), data.T)
    with pytest.raises(ValueError, match="not the name of a device"):
        search("GOR-ELM", device="CUDA 1").fit(data.X, data.T)
    pytest.importorskip("torch", reason="PyTorch is not installed")
    found = search("GOR-ELM", search_rows=150, device="cpu").fit(data.X, data.T)
    assert_same_search(found, expected, data.X, data.X)


def test_a_sample_stands_for_all_rows():
    data = make_multitarget(3000, outlier_ratio=0.2, random_state=1)
    settings = {"n_lams": 9, "eps": 1e-6}
    whole = search("R-ELM", search_rows=None, **settings).fit(data.X, data.T)
    part = search("R-ELM", search_rows=400, **settings).fit(data.X, data.T)
    ratio = part.cv_results_["param_C"] / whole.cv_results_["param_C"]
    assert (ratio > 0.5).all()  # in the units of all rows, which are 7.5 times as many
    assert (ratio < 2).all()
    scores = -whole.cv_results_["mean_test_score"]
    assert scores[part.best_index_] < 1.03 * scores.min()
    assert_allclose(part.cv_outlier_scores_.mean(), whole.cv_outlier_scores_.mean(), rtol=0.1)


def test_scores_of_all_rows_are_those_of_fits_to_the_folds(data):
    cv = ShuffleSplit(2, test_size=0.3, random_state=0)
    model = search("GOR-ELM", search_rows=150, cv=cv).fit(uneven(data.X), data.T)
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max)
    chosen = {"lam": model.lam_, "l1_ratio": model.l1_ratio_, "n_hidden": 30}
    alone = GORELMRegressor(**chosen, direct_link=True, random_state=seed)
    scale = Scaling.fit("robust", data.T, np.ones(N_ROWS)).scale
    total, count = np.zeros(N_ROWS), np.zeros(N_ROWS)
    for train, test in cv.split(data.X):
        errors = alone.fit(data.X[train], data.T[train]).predict(data.X[test]) - data.T[test]
        total[test] += np.linalg.norm(errors / scale, axis=1)
        count[test] += 1
    tested = count > 0
    assert (np.isnan(model.cv_outlier_scores_) == ~tested).all()
    assert_allclose(model.cv_outlier_scores_[tested], total[tested] / count[tested], rtol=1e-9)


def test_a_search_says_what_is_wrong(data, tmp_path):
    model = search("GOR-ELM", search_rows=150).fit(uneven(data.X), data.T)
    before = model.coef_
    T = data.T.copy()
    T[10:, 1] = np.nan
    with pytest.raises(ValueError, match="raise search_rows"):
        model.set_params(missing_targets="ignore", search_rows=20).fit(uneven(data.X), T)
    few = [(np.arange(100), np.array([418])), (np.arange(100), np.array([419]))]
    with pytest.raises(ValueError, match="raise search_rows"):
        model.set_params(cv=few, search_rows=5).fit(uneven(data.X), data.T)
    bad = data.X.copy()
    bad[300, 1] = np.inf
    with pytest.raises(ValueError, match="row 300"):
        model.set_params(cv=3, search_rows=150).fit(RowBlocks.from_array(bad), data.T)
    with pytest.raises(ValueError, match="inconsistent"):
        model.fit(uneven(data.X), data.T[1:])
    assert model.coef_ is before
    with pytest.raises(ValueError, match="fitted with"):
        model.predict(uneven(data.X[:, 1:]))


# -- intervals ---------------------------------------------------------------------------------


def conformal(**params):
    inner = GORELMRegressor(lam=0.1, n_hidden=30, tol=1e-6)
    return ConformalRegressor(**{"estimator": inner, "random_state": 0} | params)


INTERVALS = {
    "plain": {},
    "joint": {"joint": "box"},
    "searched": {"estimator": search("GOR-ELM", random_state=None, search_rows=150)},
    "robust": {"estimator": RobustELMRegressor(effort="fast", n_hidden=30, search_rows=100)},
    "adaptive": {"adaptive": True},
}
INTERVAL_PAIRS = [(owner, "searched") for owner in OWNERS]
INTERVAL_PAIRS += [
    pytest.param(
        owner, case, marks=[pytest.mark.slow] if owner == "dask" or case == "adaptive" else []
    )
    for owner in ("memory map", "torch cpu", "torch cuda", "dask")
    for case in INTERVALS
    if case != "searched"
]


@pytest.mark.parametrize(("owner", "case"), INTERVAL_PAIRS)
def test_every_owner_gives_the_intervals_in_memory(owner, case, data, tmp_path):
    pytest.importorskip("mapie", reason="MAPIE is not installed")
    exact = case in ("searched", "robust")
    expected = conformal(**INTERVALS[case]).fit(data.X, data.T)
    X = OWNERS[owner](tmp_path, data.X)
    found = conformal(**INTERVALS[case]).fit(X, data.T)
    # Fits of the plain estimators end within their gap, in float32 where they are in blocks.
    digits = 1e-6 if exact or "dask" in owner else 1e-2
    assert (found.calibration_rows_ == expected.calibration_rows_).all()
    ends = expected.predict_interval(data.X)
    atol = digits * np.abs(ends).max()
    for rows in (X, data.X):
        assert_allclose(found.predict_interval(rows), ends, rtol=0, atol=atol)
    assert (found.covers(X, data.T) == expected.covers(data.X, data.T)).mean() > 0.98
    if exact:
        assert (found.calibration_flagged_ == expected.calibration_flagged_).all()


def test_intervals_of_a_fitted_model_and_of_a_stored_table(data, tmp_path):
    pytest.importorskip("mapie", reason="MAPIE is not installed")
    prefit = GORELMRegressor(lam=0.1, n_hidden=30, random_state=0).fit(data.X[:200], data.T[:200])
    one, other = (conformal(estimator=prefit, calibration="prefit") for _ in range(2))
    one.fit(data.X[200:], data.T[200:])
    other.fit(uneven(data.X[200:]), data.T[200:])
    assert_allclose(other.calibration_scores_, one.calibration_scores_, rtol=1e-9)

    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pandas.DataFrame(data.X, columns=data.feature_names).assign(
        word=np.where(data.X[:, 0] > 0, "high", "low")
    )
    frame.to_parquet(tmp_path / "table.parquet", row_group_size=101)
    table = TableRegressor(RobustELMRegressor(effort="fast", n_hidden=20, search_rows=100))
    one, other = (conformal(estimator=table) for _ in range(2))
    one.fit(frame, data.T)
    other.fit(ParquetTable(tmp_path / "table.parquet"), data.T)
    ends = one.predict_interval(frame)
    assert_allclose(other.predict_interval(frame), ends, rtol=0, atol=1e-6 * np.abs(ends).max())


# -- online ------------------------------------------------------------------------------------

ONLINE = {
    "OS-ELM": OSELMRegressor,
    "Robust OS-ELM": RobustOSELMRegressor,
}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("name", ONLINE)
def test_updates_from_every_owner_are_those_of_arrays(owner, name, data, tmp_path):
    T, w = weights_and_holes(data.T)
    settings = {"C": 100, "n_hidden": 20, "forgetting": 0.999, "random_state": 0}
    settings |= {"missing_targets": "ignore", "activation": "gaussian"}
    expected, found = (ONLINE[name](**settings) for _ in range(2))
    for part in (slice(0, 250), slice(250, None)):  # the first sets scalings and centres
        expected.partial_fit(data.X[part], T[part], w[part])
        folder = tmp_path / str(part.start)
        folder.mkdir()
        found.partial_fit(OWNERS[owner](folder, data.X[part]), T[part], w[part])
        assert_allclose(found.outlier_scores_, expected.outlier_scores_, rtol=1e-6, atol=1e-9)
        assert (found.outlier_mask_ == expected.outlier_mask_).all()
    assert found.n_samples_seen_ == expected.n_samples_seen_
    assert found.n_features_in_ == data.X.shape[1]
    size = np.abs(expected.predict(data.X)).max()
    given = OWNERS[owner](tmp_path, data.X)
    assert_allclose(here(found.predict(given)), expected.predict(data.X), rtol=0, atol=1e-6 * size)


@pytest.mark.parametrize("name", ONLINE)
def test_targets_of_an_update_may_be_where_its_inputs_are(name, data):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    expected = ONLINE[name](n_hidden=20, random_state=0).fit(data.X, data.T)
    found = ONLINE[name](n_hidden=20, random_state=0)
    found.fit(torch.tensor(data.X), torch.tensor(data.T), torch.ones(N_ROWS))
    assert_allclose(found.predict(data.X), expected.predict(data.X), rtol=1e-9)
    before = found.coef_
    with pytest.raises(ValueError, match="inconsistent"):
        found.partial_fit(uneven(data.X), data.T[1:])
    with pytest.raises(ValueError, match="fitted with"):
        found.partial_fit(uneven(data.X[:, 1:]), data.T)
    assert found.coef_ is before


# -- rows of every owner -----------------------------------------------------------------------


@pytest.mark.parametrize("owner", OWNERS)
def test_rows_are_selected_where_they_are(owner, data, tmp_path):
    X, rng = OWNERS[owner](tmp_path, data.X), np.random.default_rng(0)
    assert n_rows_of(X) == N_ROWS
    for rows in (np.sort(rng.permutation(N_ROWS)[:100]), np.arange(N_ROWS), np.array([419])):
        some = select(X, rows)
        assert n_rows_of(some) == len(rows)
        values = some.whole() if isinstance(some, RowBlocks) else np.asarray(here(some))
        assert (values == data.X[rows]).all()
        assert n_rows_of(select(some, np.array([0]))) == 1
    shuffled = rng.permutation(N_ROWS)[:50]
    model = GORELMRegressor(n_hidden=5, random_state=0).fit(data.X, data.T)
    found = in_order(X, shuffled, lambda some: np.asarray(here(model.predict(some))))
    assert_allclose(found, model.predict(data.X[shuffled]), rtol=1e-9)


@pytest.mark.parametrize("rows", [[3, 2], [2, 2], [-1, 3], [3, N_ROWS]])
def test_rows_of_blocks_must_be_in_order(rows, data, tmp_path):
    with pytest.raises(ValueError, match="increasing"):
        uneven(data.X).take(np.array(rows))


def test_dask_frames_of_files_keep_their_partitions(data, tmp_path):
    """Of few columns, dask may read several files as one partition, but not for us."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    names = [f"x{j}" for j in range(40)]
    wide = np.tile(data.X, (1, 40))[:, :40]
    frame = pandas.DataFrame(wide, columns=names)
    dd.from_pandas(frame, npartitions=6).to_parquet(tmp_path / "rows")
    X = dd.read_parquet(tmp_path / "rows")[names[:3]]
    rows = np.arange(0, N_ROWS, 7)
    assert (here(select(X, rows)) == frame[names[:3]].iloc[rows]).all(axis=None)
    model = GORELMRegressor(n_hidden=20, random_state=0)
    expected = model.fit(frame[names[:3]], data.T).predict(frame[names[:3]])
    found = model.fit(X, data.T).predict(X).compute()
    assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    unknown = X.to_dask_array()
    assert np.isnan(unknown.shape[0])
    assert (select(unknown, rows).compute() == wide[rows, :3]).all()


def test_a_folder_of_parquet_files_in_blocks(data, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    frame = pandas.DataFrame(data.X, columns=data.feature_names).assign(y=data.T[:, 0])
    folder = tmp_path / "rows"
    (folder / "b").mkdir(parents=True)
    frame[:100].to_parquet(folder / "a.parquet", index=False)
    frame[100:].to_parquet(folder / "b" / "a.parquet", index=False)
    X, y = RowBlocks.from_parquet(folder, ["y"])
    assert X.feature_names == list(data.feature_names)
    assert (X.whole() == data.X).all()
    assert (y[:, 0] == data.T[:, 0]).all()
    frame[["y", *data.feature_names]].to_parquet(folder / "c.parquet", index=False)
    with pytest.raises(ValueError, match=r"c\.parquet and .* disagree on columns"):
        RowBlocks.from_parquet(folder, ["y"])


def test_rows_of_a_dask_collection_must_be_in_order(data, tmp_path):
    for X in (on_dask(tmp_path, data.X), in_dask_frame(tmp_path, data.X)):
        with pytest.raises(ValueError, match="increasing"):
            select(X, np.array([3, 2]))


# -- what goes wrong ---------------------------------------------------------------------------


def models():
    return {
        "plain": GORELMRegressor(n_hidden=20, random_state=0),
        "search": search("GOR-ELM", search_rows=100),
        "robust": RobustELMRegressor(effort="fast", n_hidden=20, search_rows=100, random_state=0),
        "online": OSELMRegressor(n_hidden=20, random_state=0),
        "table": TableRegressor(
            RobustELMRegressor(effort="fast", n_hidden=20, search_rows=100), random_state=0
        ),
    }


def left_on(client):
    gc.collect()  # imports during a first fit leave tracebacks that refer to each other, and to it
    return left_after(5, lambda: {key: at for key, at in client.who_has().items() if at})


@pytest.mark.parametrize("columns", [["x1", "x0"], pytest.param(["x0"], marks=pytest.mark.slow)])
def test_dask_partitions_that_disagree_on_columns(columns, data, tmp_path, client_of_processes):
    frame = in_dask_frame(tmp_path, data.X[:, :2])

    def other(part, partition_info=None):
        return part[columns] if partition_info and partition_info["number"] == 1 else part

    bad = frame.map_partitions(other, meta=frame._meta, enforce_metadata=False)
    for model in models().values():
        before = getattr(model.fit(data.X[:, :2], data.T), "coef_", None)
        with pytest.raises(ValueError, match="partition 1 of X has the columns"):
            model.fit(bad, data.T)
        assert getattr(model, "coef_", None) is before
        with pytest.raises(ValueError, match="partition 1 of X has the columns"):
            model.fit(frame, data.T).predict(bad).compute()
    del model
    assert not left_on(client_of_processes)


def test_blocks_that_disagree_on_columns(data):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(data.X[:, :3], columns=["a", "b", "c"])
    X = RowBlocks.from_blocks([frame[:200], frame[200:]])
    assert X.feature_names == ["a", "b", "c"]
    swapped = frame[["b", "a", "c"]]
    with pytest.raises(ValueError, match="the block from row 200 on has the columns"):
        RowBlocks.from_blocks([frame[:200], swapped[200:]])
    passes = iter([frame, frame, swapped])
    later = RowBlocks.from_blocks(lambda: [next(passes)])
    with pytest.raises(ValueError, match="the block from row 0 on has the columns"):
        GORELMRegressor(n_hidden=5).fit(later, data.T)
    numbered = pandas.DataFrame(data.X)
    assert RowBlocks.from_blocks([numbered[:9], numbered[9:]]).feature_names is None


@pytest.mark.parametrize("name", ["search", "robust", "table"])
def test_a_lost_scheduler_is_named(name, data, tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    model, calls = models()[name].fit(data.X, data.T), []
    before = model.predict(data.X)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    cluster = distributed.LocalCluster(**options, processes=False)

    def closing(make_pass):
        calls.append(1)
        if len(calls) == 2:
            cluster.close()
        return make_pass()

    around_passes(monkeypatch, closing)
    with distributed.Client(cluster), pytest.raises(RuntimeError, match="cannot be reached"):
        model.fit(on_dask(tmp_path, data.X), data.T)
    assert len(calls) == 2
    assert (model.predict(data.X) == before).all()


@pytest.mark.parametrize("name", ["search", "robust", "table"])
def test_a_cluster_without_workers_is_named(name, data, tmp_path, monkeypatch):
    """Its workers are stopped in the middle of a fit, and nobody starts others."""
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    import dask

    model, calls = models()[name].fit(data.X, data.T), []
    before = model.predict(data.X)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(**options, processes=False) as cluster,
        distributed.Client(cluster) as client,
        dask.config.set({"gorelm.worker-timeout": "1 s"}),
        ThreadPoolExecutor(1) as thread,
    ):

        def stopping(make_pass):
            calls.append(1)
            if len(calls) == 2:
                cluster.sync(cluster.workers[0].close)
            return make_pass()

        around_passes(monkeypatch, stopping)

        def fit():
            with client.as_current():
                model.fit(on_dask(tmp_path, data.X), data.T)

        waiting = thread.submit(fit)
        try:
            with pytest.raises(RuntimeError, match=r"no worker .* is left.*gorelm.worker-timeout"):
                waiting.result(timeout=60)
        finally:
            cluster.scale(1)  # ends a fit that still waits
        assert len(calls) == 2
        assert not left_after(5, client.who_has)
    assert (model.predict(data.X) == before).all()


@pytest.mark.slow
def test_dask_workers_that_are_killed_change_no_search(
    data, tmp_path, monkeypatch, client_of_processes
):
    from gorelm.backends.dask.coordinator import Coordinator

    expected = search("GOR-ELM", search_rows=150).fit(data.X, data.T)
    call, calls = Coordinator.call, []

    def kill(at):
        calls.append(at)
        if len(calls) in (2, 15, 40):
            os.kill(list(client_of_processes.run(os.getpid).values())[-1], signal.SIGKILL)

    def killing_pass(make_pass):
        kill("sample")
        return make_pass()

    def killing_call(self, method, *args, **options):
        kill(method)
        return call(self, method, *args, **options)

    around_passes(monkeypatch, killing_pass)
    monkeypatch.setattr(Coordinator, "call", killing_call)
    X = on_dask(tmp_path, data.X)
    found = search("GOR-ELM", search_rows=150).fit(X, data.T)
    assert calls[1] == "sample"
    assert len(calls) > 40
    assert_same_search(found, expected, data.X, X)


def test_rows_that_a_cluster_has_lost_are_named():
    from concurrent.futures import CancelledError

    from gorelm.backends.dask.source import naming_lost_cluster

    for error in (
        CancelledError("lost dependencies"),
        ConnectionError("no route"),
        TimeoutError("late"),
    ):
        with (
            pytest.raises(RuntimeError, match=f"cannot be reached.*{error}"),
            naming_lost_cluster(),
        ):
            raise error
    with pytest.raises(FileNotFoundError), naming_lost_cluster():  # of a partition
        raise FileNotFoundError


@pytest.fixture
def torch_fit():
    """The module of fits on a device."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from gorelm.backends.torch import fit

    return fit


def full(*_, **__):
    import torch

    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMore")


@pytest.mark.parametrize("name", ["plain", "search"])
def test_a_device_without_room_for_hidden_outputs_makes_them_in_blocks(
    name, data, monkeypatch, torch_fit
):
    expected = models()[name].set_params(device="cpu").fit(data.X, data.T)
    monkeypatch.setattr(torch_fit, "held", full)
    model = models()[name].set_params(device="cpu").fit(data.X, data.T)
    assert_allclose(model.coef_, expected.coef_, rtol=1e-6, atol=1e-9)
    monkeypatch.setattr(torch_fit, "_blocks", full)
    before = model.coef_
    with pytest.raises(MemoryError, match=r"20.00 GiB.*fewer nodes or float32.*without device"):
        model.fit(data.X, data.T)
    assert model.coef_ is before
    monkeypatch.setattr(torch_fit, "available", full)
    with pytest.raises(MemoryError, match="fewer nodes"):
        model.fit(data.X, data.T)
    monkeypatch.setattr(torch_fit, "_outputs", full)
    with pytest.raises(MemoryError, match="fewer nodes"):
        model.predict(on_device(None, data.X))


def test_a_device_with_little_room_takes_smaller_blocks(data, monkeypatch, torch_fit):
    from gorelm.backends.torch import inputs as torch_inputs

    expected = models()["robust"].set_params(device="cpu").fit(data.X, data.T)
    plain, sizes = torch_inputs.DeviceOutputs.__call__, []

    def limited(self, x):
        sizes.append(len(x))
        return plain(self, x) if len(x) <= room else full()

    monkeypatch.setattr(torch_inputs.DeviceOutputs, "__call__", limited)
    monkeypatch.setattr(torch_inputs, "LEAST_ROWS", 10)
    room = 50
    model = models()["robust"].set_params(device="cpu").fit(data.X, data.T)
    assert max(sizes) > room
    assert_allclose(model.predict(data.X), expected.predict(data.X), rtol=1e-6, atol=1e-6)
    room, before = 5, model.members_
    with pytest.raises(MemoryError, match="fewer nodes"):
        model.fit(data.X, data.T)
    assert model.members_ is before
    monkeypatch.setattr(torch_fit, "checked", full)
    with pytest.raises(MemoryError, match="fewer nodes"):
        model.fit(data.X, data.T)
