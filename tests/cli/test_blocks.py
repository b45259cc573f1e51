"""Commands on Parquet files and folders that are read in blocks."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from gorelm._progress import Status
from gorelm.cli import large, main, showing
from gorelm.estimators._robust.plan import LEAST_NODES, Memory
from gorelm.estimators._robust.task import EFFORTS
from support.owners import around_passes

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
FIT = ["--targets", "y,z", "--effort", "fast", "--nodes", "30"]
INPUTS = ["--features", "a,b,c,word"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files of one table, a tenth of its rows wrong."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    word = rng.choice(["red", "blue"], 400)
    y = x[:, 0] + (word == "red") + 0.1 * rng.normal(size=400)
    z = x[:, 1] - x[:, 2] + 0.1 * rng.normal(size=400)
    wrong = np.arange(0, 400, 10)
    y[wrong] += 25.0
    z[wrong] -= 25.0
    z[7] += 40.0  # a cell
    x[::50, 0] = np.nan
    frame = pandas.DataFrame(x, columns=["a", "b", "c"]).assign(word=word, key=np.arange(400))
    frame = frame.assign(y=y, z=z)
    place = tmp_path_factory.mktemp("table")
    for number, part in enumerate(np.array_split(np.arange(400), 3)):
        frame.iloc[part].reset_index(drop=True).to_parquet(place / f"{number}.parquet")
    frame.to_parquet(place.with_suffix(".parquet"))
    return place


def run(*args):
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    return result


def test_fit_and_predict_a_folder(folder, tmp_path):
    model, whole = tmp_path / "m.gorelm", tmp_path / "w.gorelm"
    result = run("fit", folder, *FIT, "--features", "a,b,c,word", "--model", model)
    assert result.exit_code == 0, result.output
    assert "400 rows in 3 files" in result.output
    assert "Findings in 41 of 400 rows" in result.output
    file = folder.with_suffix(".parquet")
    assert run("fit", file, *FIT, "--features", "a,b,c,word", "--model", whole).exit_code == 0
    tables = []
    for name, data, path in (("p.csv", folder, model), ("w.parquet", file, whole)):
        assert run("predict", path, data, "--keep", "key", "--out", tmp_path / name).exit_code == 0
    for name in ("p.parquet", "p.tsv", "p.csv.gz"):
        result = run("predict", model, folder, "--keep", "key", "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
    tables = [
        pandas.read_csv(tmp_path / "p.csv"),
        pandas.read_csv(tmp_path / "p.tsv", sep="\t"),
        pandas.read_csv(tmp_path / "p.csv.gz"),
        pandas.read_parquet(tmp_path / "p.parquet"),
    ]
    expected = pandas.read_parquet(tmp_path / "w.parquet")
    for table in tables:
        pandas.testing.assert_frame_equal(table, expected, rtol=1e-6, atol=1e-6, check_dtype=False)


def test_outliers_of_a_file_beyond_the_memory(folder, tmp_path):
    file, out = folder.with_suffix(".parquet"), tmp_path / "found.parquet"
    columns = ["--features", "a,b,c,word", "--id", "key"]
    result = run("outliers", file, *FIT, *columns, "--memory", "1kB", "--out", out)
    assert result.exit_code == 0, result.output
    assert "read in blocks" in result.output
    found = pandas.read_parquet(out)
    assert set(found["gorelm.row"][:41]) == {7, *range(0, 400, 10)}
    assert found["gorelm.flagged"].sum() == 41
    assert (np.diff(found["gorelm.quality"]) >= 0).all()
    assert run("outliers", file, *FIT, *columns, "--out", out).exit_code == 0
    whole = pandas.read_parquet(out).loc[found.index]  # as in memory, but for the inputs
    for name in found:
        if name not in ("gorelm.score.y", "gorelm.score.z", "gorelm.quality"):  # far from 1
            kind = {"check_dtype": False, "rtol": 1e-5, "atol": 1e-6}
            pandas.testing.assert_series_equal(found[name], whole[name], **kind)


def test_scales_of_targets_and_cells_in_blocks(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 3, size=(300, 2))
    price = np.exp(x.sum(axis=1) + 0.1 * rng.normal(size=300))
    weight = x[:, 0] - x[:, 1] + 0.1 * rng.normal(size=300)
    weight[7] += 40.0
    frame = pandas.DataFrame(x, columns=["a", "b"]).assign(price=price, weight=weight)
    (tmp_path / "t").mkdir()
    frame.to_parquet(tmp_path / "t" / "1.parquet")
    result = run("fit", tmp_path / "t", "--targets", "2", "--effort", "fast", "--nodes", "20")
    said = " ".join(result.output.split())
    assert "on the scale of logarithms: 'price'" in said
    assert "Findings in 1 of 300 rows (0.3%): 1 wrong cell; 1 certain." in said


def test_memory_that_suffices_and_bad_options(folder, tmp_path):
    file = folder.with_suffix(".parquet")
    result = run("outliers", file, *FIT, "--features", "a,b,c,word", "--memory", "1GB")
    assert result.exit_code == 0
    assert "read in blocks" not in result.output
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    for args, message in (
        (["outliers", tmp_path / "t.csv", "--targets", "y", "--memory", "1GB"], "Parquet"),
        (["outliers", file, *FIT, "--memory", "much"], "not a size"),
        (["outliers", folder, "--targets", "nothing"], "no column 'nothing'"),
        (["fit", folder, *FIT, "--report", tmp_path / "r.html"], "--report"),
        (["outliers", folder, *FIT, "--check-inputs"], "--check-inputs"),
    ):
        result = run(*args)
        assert result.exit_code == 1
        assert message in result.output


def test_findings_made_in_pieces_are_those_of_the_whole(folder, tmp_path, monkeypatch):
    whole, pieces = tmp_path / "whole.parquet", tmp_path / "pieces.parquet"
    first = run("outliers", folder, *FIT, *INPUTS, "--id", "key", "--out", whole)
    monkeypatch.setattr(large, "_FOUND_ROWS", 37)
    second = run("outliers", folder, *FIT, *INPUTS, "--id", "key", "--out", pieces)
    assert first.exit_code == second.exit_code == 0
    assert first.output.splitlines()[:-1] == second.output.splitlines()[:-1]
    pandas.testing.assert_frame_equal(pandas.read_parquet(whole), pandas.read_parquet(pieces))
    assert run("outliers", folder, *FIT, *INPUTS, "--out", tmp_path / "p.csv").exit_code == 0
    assert len(pandas.read_csv(tmp_path / "p.csv")) == 400


# -- on a device ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_device_gives_the_same_model(kind, folder, tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    data = folder if kind == "folder" else folder.with_suffix(".parquet")
    for device in ([], ["--device", "cpu"]):
        place = tmp_path / f"{len(device)}.gorelm"
        result = run("fit", data, *FIT, *INPUTS, "--model", place, *device)
        assert result.exit_code == 0, result.output
        out = tmp_path / f"{len(device)}.csv"
        result = run("predict", place, data, "--out", out, *device)
        assert result.exit_code == 0, result.output
    one, two = (pandas.read_csv(tmp_path / f"{n}.csv") for n in (0, 2))
    # Rows with a gap are all wrong here: nothing determines what the gap means.
    known = np.arange(400) % 50 != 0
    pandas.testing.assert_frame_equal(one[known], two[known], rtol=1e-6, atol=1e-6)
    # The device is that of a fit, not of the model.
    assert run("predict", tmp_path / "2.gorelm", data, "--out", tmp_path / "n.csv").exit_code == 0


def test_a_device_that_is_missing(folder, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    asked = ["fit", folder, *FIT, "--model", tmp_path / "m.gorelm", "--device"]
    if not torch.cuda.is_available():
        result = run(*asked, "cuda")
        assert result.exit_code == 1
        assert "device='cuda' is not available" in result.output
    result = run(*asked, "nosuch")
    assert result.exit_code == 1
    assert "device='nosuch' is not available" in result.output
    for name in [name for name in sys.modules if name.startswith("gorelm.backends.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run(*asked, "cpu")
    assert result.exit_code == 1
    assert "--device needs PyTorch" in result.output
    assert "gorelm[torch]" in result.output
    assert not (tmp_path / "m.gorelm").exists()


# -- on a cluster --------------------------------------------------------------------------------

CLUSTER = """
import sys
from distributed import LocalCluster

if __name__ == "__main__":
    workers = int(sys.argv[1])
    with LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=False, protocol="tcp://",
        dashboard_address=":0",
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def cluster(request, tmp_path):
    """A scheduler and its workers in a process of their own, and its address."""
    pytest.importorskip("distributed", reason="dask is not installed")
    (tmp_path / "cluster.py").write_text(CLUSTER)
    command = [sys.executable, str(tmp_path / "cluster.py"), str(getattr(request, "param", 2))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


@pytest.mark.slow
def test_workers_of_a_scheduler_read_the_folder(folder, tmp_path, cluster, monkeypatch):
    there = ["--scheduler", cluster[1]]
    for where in ([], there):
        place = tmp_path / f"{len(where)}.gorelm"
        result = run("fit", folder, *FIT, *INPUTS, "--model", place, *where)
        assert result.exit_code == 0, result.output
        assert "Findings in 41 of 400 rows" in result.output
        for kind in ("csv", "parquet"):
            out = tmp_path / f"{len(where)}.{kind}"
            result = run("predict", place, folder, "--keep", "key", "--out", out, *where)
            assert result.exit_code == 0, result.output
    known = np.arange(400) % 50 != 0  # see above
    for read in (pandas.read_csv, pandas.read_parquet):
        kind = "csv" if read is pandas.read_csv else "parquet"
        one, two = (read(tmp_path / f"{n}.{kind}")[known] for n in (0, 2))
        pandas.testing.assert_frame_equal(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_scheduler_that_is_lost_leaves_the_old_model(folder, tmp_path, cluster, monkeypatch):
    model = tmp_path / "models" / "m.gorelm"
    model.parent.mkdir()
    asked = ["fit", folder, *FIT, *INPUTS, "--model", model, "--scheduler", cluster[1]]
    assert run(*asked).exit_code == 0
    before, calls = model.read_bytes(), []

    def lost(make_pass):
        calls.append(1)
        if len(calls) == 5:
            os.kill(cluster[0].pid, signal.SIGKILL)
        return make_pass()

    around_passes(monkeypatch, lost)
    result = run(*asked)
    assert result.exit_code == 1
    assert f"The dask scheduler at {cluster[1]} was lost; nothing was written." in result.output
    assert "Traceback" not in result.output
    assert model.read_bytes() == before
    assert list(model.parent.iterdir()) == [model]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [0], indirect=True)
def test_a_scheduler_without_workers(folder, cluster):
    result = run("outliers", folder, *FIT, "--scheduler", cluster[1])
    assert result.exit_code == 1
    assert "has no worker" in result.output


def test_no_scheduler_and_options_that_exclude_each_other(folder, tmp_path):
    pytest.importorskip("distributed", reason="dask is not installed")
    nowhere = "tcp://127.0.0.1:1"
    result = run("outliers", folder, *FIT, "--scheduler", nowhere)
    assert result.exit_code == 1
    assert f"No dask scheduler answers at {nowhere}" in result.output
    assert len(result.output.splitlines()) == 1
    (tmp_path / "t.csv").write_text("a,y\n1,2\n")
    table = ["outliers", tmp_path / "t.csv", "--targets", "y"]
    assert "Parquet" in run(*table, "--scheduler", nowhere).output


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("n_rows", [30_000, 1_000_000])
def test_nodes_are_as_many_as_the_memory_allows(effort, n_rows):
    needed = Memory(EFFORTS[effort], n_rows, 10, 4, n_threads=2)
    whole = needed.total(None)
    assert needed.nodes_within(whole) is None
    for share in (0.9, 0.6, 0.3):
        most = needed.rows + share * (whole - needed.rows)
        nodes = needed.nodes_within(most)
        assert needed.total(nodes) <= most < 1.2 * needed.total(nodes)
    assert needed.nodes_within(0.5 * needed.rows) == LEAST_NODES
    assert needed.total(LEAST_NODES) > 0.5 * needed.rows


def test_memory_that_does_not_do_is_said(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(700, 2))
    frame = pandas.DataFrame(x, columns=["a", "b"]).assign(y=x.sum(axis=1))
    (tmp_path / "t").mkdir()
    frame.to_parquet(tmp_path / "t" / "1.parquet")
    asked = ["fit", tmp_path / "t", "--targets", "y", "--effort", "fast", "--memory", "100MB"]
    result = run(*asked)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert f"note: {LEAST_NODES} nodes of each network, as --memory 100MB allows no more." in said
    assert "which --memory cannot lower" in said
    said = " ".join(run(*asked, "--nodes", "30").output.split())
    assert "nodes of each network, as" not in said
    assert "which --memory cannot lower" in said
    assert "note" not in run(*asked[:-1], "8GB").output


# Not the system's account of a child, which counts what its parent had when it was started.
PEAK = """
import re, sys
from gorelm.cli import main
main(sys.argv[1:], standalone_mode=False)
print(re.search(r"VmHWM:\\s*([0-9]+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no /proc")
def test_memory_caps_what_a_fit_takes(tmp_path):
    """Beside what the program itself takes, as measured by the system."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6000, 4))
    frame = pandas.DataFrame(x, columns=list("abcd")).assign(y=np.sin(2 * x[:, 0]) + x[:, 1])
    (tmp_path / "t").mkdir()
    frame.to_parquet(tmp_path / "t" / "1.parquet")
    peaks = {}
    for memory in (None, "450MB", "20kB"):
        command = [sys.executable, "-c", PEAK, "fit", str(tmp_path / "t"), "--targets", "y"]
        command += ["--jobs", "1", *(["--memory", memory] if memory else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[memory] = 1024 * int(done.stdout.splitlines()[-1])
    program = peaks["20kB"]
    assert peaks["450MB"] < 1.1 * 450e6
    assert peaks["450MB"] - program < 0.75 * (peaks[None] - program)


# -- how far it is -------------------------------------------------------------------------------


def test_progress_is_said_if_asked_for(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(showing, "_EVERY", (0.0, 0.0))
    monkeypatch.setitem(EFFORTS, "fast", replace(EFFORTS["fast"], search_rows=100))
    asked = ["outliers", folder, *FIT, *INPUTS]
    quiet, loud = run(*asked), run(*asked, "--progress")
    assert quiet.exit_code == loud.exit_code == 0
    assert "s left" not in quiet.output
    lines = [line for line in loud.stderr.splitlines() if line.endswith(" left")]
    assert quiet.stdout == loud.stdout
    for step in ("screen", "search", "refine", "fit", "findings"):
        assert any(f", {step}: " in line for line in lines), lines
    model, out = tmp_path / "m.gorelm", tmp_path / "p.csv"
    assert run("fit", folder, *FIT, *INPUTS, "--model", model).exit_code == 0
    loud = run("predict", model, folder, "--out", out, "--progress")
    assert "predicting: the last step, about 0 s left" in loud.stderr


def test_times_in_words():
    assert showing.in_words(Status("refine", 13, 5.6, 725.0, 541.0)) == (
        "12 min, refine: pass 14 of about 19, about 9.0 min left"
    )
    assert showing.in_words(Status("writing", 13, 0.0, 7300.0, 41.0)) == (
        "2.0 h, writing: the last step, about 41 s left"
    )
