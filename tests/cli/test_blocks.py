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
    assert "Rows to check: 41 of 400" in result.output
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
    assert "Rows to check: 1 of 300: 0 wrong rows, 1 wrong cell of other rows" in said


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
