"""Commands on Parquet files and folders that are read in blocks."""

import numpy as np
import pytest
from click.testing import CliRunner

from gorelm.cli import main

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
FIT = ["--targets", "y,z", "--effort", "fast", "--nodes", "30"]


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
    assert "Rows to check: 40 of 400" in result.output
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
    result = run(
        "outliers", file, *FIT, "--features", "a,b,c,word", "--memory", "1kB", "--out", out
    )
    assert result.exit_code == 0, result.output
    assert "read in blocks" in result.output
    found = pandas.read_parquet(out)
    assert set(found["gorelm.row"][:40]) == set(range(0, 400, 10))
    assert found["gorelm.flagged"].sum() == 40
    assert (np.diff(found["gorelm.score"]) <= 0).all()


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
    ):
        result = run(*args)
        assert result.exit_code == 1
        assert message in result.output
