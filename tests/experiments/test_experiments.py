"""Experiments: what is declared is run, kept once, and never lost."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from gorelm.experiments import runner
from gorelm.experiments.execute import execute, published_choice, select
from gorelm.experiments.protocol import Config, Method, Run, Selection, load_config
from gorelm.experiments.runner import run_experiment, status
from gorelm.experiments.store import Busy, Store

TIMES = {"seconds_select", "seconds_fit", "seconds_predict", "started"}
SMALL = {"n_hidden": 20, "n_initial": 10, "n_step": 10, "max_hidden": 20}


pytestmark = pytest.mark.usefixtures("data_home")


def config(**changes):
    methods = (
        Method("GOR", "GORELMRegressor", {"lam": 0.1}),
        Method("R", "RELMRegressor", {"C": 10.0}),
    )
    base = Config("tiny", ("slump", "enb"), (0.0, 0.2), 2, methods, common=SMALL)
    return replace(base, **changes)


def figures(folder):
    with Store(folder) as store:
        return [
            {name: value for name, value in record.items() if name not in TIMES}
            for record in store.records()
        ]


# -- declared -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["paper", "robust"])
def test_ready_configurations(name):
    ready = load_config(name)
    assert ready.name == name
    assert len(ready.datasets) == 15
    assert ready.ratios == (0.0, 0.2, 0.4)
    assert len({(r.dataset, r.ratio, r.method, r.repeat) for r in ready.runs()}) == len(
        list(ready.runs())
    )


def test_paper_is_the_papers_protocol():
    paper = load_config("paper")
    assert [m.name for m in paper.methods] == [
        "R-ELM", "OR-ELM", "GR-ELM", "GOR-ELM", "IR-ELM", "IGOR-ELM",
    ]  # fmt: skip
    assert paper.repeats == 100
    assert paper.common["target_scaling"] == paper.common["input_scaling"] == "minmax"
    assert paper.method("GOR-ELM").search["lams"] == [2.0**k for k in range(-20, 21)]
    assert published_choice("rf1", "GOR-ELM") == {"lam": 2.0**-3, "l1_ratio": 1.0}
    assert published_choice("andro", "R-ELM") == {"C": 2.0**20}
    with pytest.raises(ValueError, match="no parameters of GOR-ELM for osales"):
        published_choice("osales", "GOR-ELM")


TOML = """
name = "mine"
datasets = ["slump"]
ratios = [0.2]
repeats = 1
[[methods]]
name = "R"
estimator = "RELMRegressor"
"""


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('name = "mine"', "name = mine", "not TOML"),
        ("ratios = [0.2]", "ratios = [1.2]", r"ratios must be in \[0, 1\)"),
        ("ratios = [0.2]", "ratios = 0.2", "ratios must be a list"),
        ('datasets = ["slump"]', "datasets = []", "datasets is empty"),
        ("repeats = 1", "repeats = 0", "repeats must be at least 1"),
        ("repeats = 1", "repeat = 1", "unexpected key 'repeat'"),
        ("RELMRegressor", "RELMRegresor", "did you mean 'RELMRegressor'"),
        ("repeats = 1", 'repeats = 1\nkind = "row"', "kind must be one of"),
        ("repeats = 1", 'repeats = "3"', "repeats must be at least 1"),
        ("ratios = [0.2]", "ratios = [0.2, 0.2]", "occurs twice in ratios"),
        ('"slump"]', '"slump", "slump"]', "occurs twice in datasets"),
        ("[[methods]]", "[methods]", r"declared as \[\[methods\]\]"),
        ("[[methods]]", "[common]\nn_hiden = 9\n[[methods]]", "did you mean 'n_hidden'"),
        ("[[methods]]", '[selection]\nmode = "guess"\n[[methods]]', "selection.mode must be"),
        ("[[methods]]", '[selection]\nmode = "search"\n[[methods]]', "R has no search"),
    ],
)
def test_bad_configuration(tmp_path, old, new, match):
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    assert load_config(path).name == "mine"
    path.write_text(TOML.replace(old, new))
    with pytest.raises(ValueError, match=match):
        load_config(path)


def test_no_such_configuration():
    with pytest.raises(FileNotFoundError, match="one of paper, robust"):
        load_config("papr")


def test_restricted():
    paper = load_config("paper")
    quick = paper.restricted(quick=True)
    assert quick.repeats == 3
    assert set(quick.datasets) < set(paper.datasets)
    part = paper.restricted(datasets=("enb",), methods=("IR-ELM",), ratios=(0.1,), repeats=2)
    assert list(part.runs()) == [Run("enb", 0.1, "IR-ELM", 0), Run("enb", 0.1, "IR-ELM", 1)]
    with pytest.raises(ValueError, match="no data set 'emb'; did you mean 'enb'"):
        paper.restricted(datasets=("emb",))
    with pytest.raises(ValueError, match="no method 'SVM'; known: R-ELM"):
        paper.restricted(methods=("SVM",))


# -- one run --------------------------------------------------------------------------------------


def test_record_of_a_run():
    record = execute(config(), Run("slump", 0.2, "GOR", 1), {"l1_ratio": 0.5, "seconds": 2.0})
    assert record["status"] == "done"
    assert record["n_rows"] == 40
    assert (record["n_features"], record["n_targets"]) == (7, 3)
    assert record["seconds_select"] == 2.0
    assert json.loads(record["params"]) == {"lam": 0.1, "l1_ratio": 0.5}
    assert 0 < record["arrmse_test"] < 5
    assert record["dual_gap"] <= 1e-3
    assert record["outlier_recall"] is not None
    assert set(json.loads(record["versions"])) >= {"gorelm", "numpy", "scikit-learn"}
    again = execute(config(), Run("slump", 0.2, "GOR", 1), {"l1_ratio": 0.5, "seconds": 2.0})
    assert {k: v for k, v in record.items() if k not in TIMES} == {
        k: v for k, v in again.items() if k not in TIMES
    }


def test_methods_share_splits_and_layers():
    base = config()
    same = replace(base, methods=(base.methods[0], replace(base.methods[0], name="again")))
    one, two = (execute(same, Run("slump", 0.2, name, 0), {}) for name in ("GOR", "again"))
    assert one["arrmse_test"] == two["arrmse_test"]
    other = execute(same, Run("slump", 0.2, "GOR", 1), {})
    assert other["arrmse_test"] != one["arrmse_test"]


def test_selection_by_search():
    search = {"estimator": "RELMRegressorCV", "Cs": [1e-6, 10.0]}
    searching = config(
        methods=(Method("R", "RELMRegressor", search=search),),
        selection=Selection("search", folds=3, scoring="neg_mean_squared_error"),
    )
    chosen = select(searching, "slump", "R")
    assert chosen["C"] == 10.0
    assert chosen["seconds"] > 0


# -- kept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_run_is_kept(tmp_path, jobs):
    seen, counts = [], []
    result = run_experiment(
        config(), tmp_path / "out", jobs=jobs, on_start=lambda *n: counts.append(n),
        on_record=seen.append,
    )  # fmt: skip
    assert counts == [(16, 0)]
    assert result == {"total": 16, "done": 16, "failed": 0, "to_do": 0, "reasons": {}}
    assert len(seen) == 16
    records = figures(tmp_path / "out")
    assert {(r["dataset"], r["ratio"], r["method"], r["repeat"]) for r in records} == {
        (r.dataset, r.ratio, r.method, r.repeat) for r in config().runs()
    }
    alone = execute(config(), Run("enb", 0.2, "R", 1), {})
    (kept,) = (r for r in records if (r["dataset"], r["ratio"], r["method"], r["repeat"])
               == ("enb", 0.2, "R", 1))  # fmt: skip
    assert kept["arrmse_test"] == alone["arrmse_test"]
    assert status(tmp_path / "out") == result
    # Nothing is done twice, and more of the same experiment goes on in the same folder.
    run_experiment(config(), tmp_path / "out", on_record=lambda _: pytest.fail("done again"))
    assert run_experiment(config(repeats=3), tmp_path / "out")["done"] == 24


def test_failure_is_recorded_and_retried(tmp_path, data_home):
    broken = config(methods=(Method("bad", "RELMRegressor", {"C": -1.0}), config().methods[1]))
    result = run_experiment(broken, tmp_path / "out")
    assert (result["done"], result["failed"]) == (8, 8)
    assert "InvalidParameterError" in next(iter(result["reasons"]))
    run_experiment(broken, tmp_path / "out", on_record=lambda _: pytest.fail("done again"))
    again = []
    run_experiment(broken, tmp_path / "out", retry_failed=True, on_record=again.append)
    assert [record["method"] for record in again] == ["bad"] * 8
    assert len(figures(tmp_path / "out")) == 16
    # Data that come late make a failed run a finished one, counted once.
    (data_home / "enb.arff").rename(data_home / "later.arff")
    late = config(datasets=("enb",), ratios=(0.0,), repeats=1)
    from gorelm.experiments.execute import _load

    _load.cache_clear()
    assert run_experiment(late, tmp_path / "late")["failed"] == 2
    (data_home / "later.arff").rename(data_home / "enb.arff")
    assert run_experiment(late, tmp_path / "late", retry_failed=True)["done"] == 2
    assert len(figures(tmp_path / "late")) == 2


def test_failed_selection_fails_its_runs(tmp_path):
    search = {"estimator": "RELMRegressorCV", "Cs": [-1.0]}
    method = Method("R", "RELMRegressor", search=search)
    searching = config(methods=(method,), selection=Selection("search"), datasets=("enb",))
    result = run_experiment(searching, tmp_path / "out")
    assert result["failed"] == 4
    assert all(reason.startswith("selection: ") for reason in result["reasons"])


def test_other_experiment_in_the_folder(tmp_path):
    run_experiment(config(repeats=1), tmp_path / "out")
    for other in (config(seed=1), config(common={}), config(methods=(
        Method("GOR", "GORELMRegressor", {"lam": 0.2}),)
    )):  # fmt: skip
        with pytest.raises(ValueError, match="records of another experiment"):
            run_experiment(other, tmp_path / "out")


def test_second_runner_says_so(tmp_path):
    busy = pytest.raises(Busy, match="another runner is at work")
    with Store(tmp_path / "out") as store, store.alone(), busy:
        run_experiment(config(), tmp_path / "out")
    run_experiment(config(repeats=1), tmp_path / "out")


def test_disk_full_loses_nothing(tmp_path, monkeypatch):
    put, count = Store.put, 0

    def full(self, record):
        nonlocal count
        count += 1
        if count == 4:
            raise sqlite3.OperationalError("database or disk is full")
        put(self, record)

    monkeypatch.setattr(Store, "put", full)
    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        run_experiment(config(), tmp_path / "out")
    assert len(figures(tmp_path / "out")) == 3
    monkeypatch.undo()
    monkeypatch.setenv("GORELM_DATA", str(tmp_path / "data"))
    assert run_experiment(config(), tmp_path / "out")["done"] == 16


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_that_dies_is_a_failed_run():
    """Only the call that takes its process down is lost, however many were running."""
    calls = [(abs, (-k,), k) for k in range(3)]
    calls[1:1] = [(die, (), "dead")]
    outcomes = list(runner._outcomes(calls, 2))
    assert len(outcomes) == 4
    assert dict(outcomes) == {"dead": None, **{k: k for k in range(3)}}


def test_status_counts_what_was_planned(tmp_path):
    out = tmp_path / "out"
    run_experiment(config(repeats=1, datasets=("slump",)), out)

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(config(), out, on_record=interrupt)
    assert status(out)["total"] == 16
    assert status(out)["to_do"] == 16 - status(out)["done"] > 0
    part = run_experiment(config(repeats=1, datasets=("slump",)), out)
    assert (part["total"], part["to_do"]) == (4, 0)
    assert status(out)["to_do"] > 0


@pytest.mark.slow  # enough runs that some are left when the first kill comes
def test_killed_and_resumed(tmp_path):
    """Records after kill -9 at random moments are those of an undisturbed run."""
    kills = 5
    lines = [
        'name = "kill"', 'datasets = ["slump", "enb"]', "ratios = [0.0, 0.2]",
        f"repeats = {3 * kills}",
        "[common]", "n_hidden = 30",
        "[[methods]]", 'name = "GOR"', 'estimator = "GORELMRegressor"', "params = { lam = 0.1 }",
    ]  # fmt: skip
    (tmp_path / "kill.toml").write_text("\n".join(lines))
    command = [sys.executable, "-m", "gorelm", "experiment", "run", str(tmp_path / "kill.toml"),
               "--jobs", "2", "--out"]  # fmt: skip
    rng = np.random.RandomState(0)
    progress = []
    for _ in range(kills):
        process = subprocess.Popen(
            [*command, str(tmp_path / "torn")], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        records, start = tmp_path / "torn" / "records.sqlite", time.monotonic()
        before = len(figures(tmp_path / "torn")) if records.exists() else 0
        while process.poll() is None and time.monotonic() < start + 60:
            time.sleep(rng.uniform(0.05, 0.2))
            if records.exists() and len(figures(tmp_path / "torn")) > before + rng.randint(1, 8):
                break
        process.kill()
        process.wait()
        progress.append(len(figures(tmp_path / "torn")))
    assert progress[0] < 12 * kills
    assert progress == sorted(progress)
    subprocess.run([*command, str(tmp_path / "torn")], check=True, capture_output=True)
    run_experiment(load_config(tmp_path / "kill.toml"), tmp_path / "whole")
    assert figures(tmp_path / "torn") == figures(tmp_path / "whole")
    assert len(figures(tmp_path / "torn")) == 12 * kills
