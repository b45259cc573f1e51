"""`gorelm clean`: what it writes, what it refuses, and the way back."""

import os
import re

import numpy as np
import pandas as pd
import pytest

import gorelm
from gorelm import RobustELMRegressor, TableRegressor
from gorelm.cli.summary import number
from gorelm.datasets import read_table
from support.commands import call

QUICK = ["--nodes", "5"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).round(3)
    y = (X @ [2.0, -1.0] + 30).round(2)
    frame = pd.DataFrame({"key": [f"k{i}" for i in range(60)], "a": X[:, 0], "b": X[:, 1], "y": y})
    frame.loc[7, "y"] = 912.25
    frame.to_csv("t.csv", index=False)
    return frame


def content(name):
    with open(name, "rb") as file:
        return file.read()


@pytest.mark.parametrize("cells", ["blank", "expected", "keep"])
@pytest.mark.parametrize("rows", ["drop", "keep"])
def test_rows_and_cells(few_layers, table, rows, cells):
    options = ["--rows", rows, "--cells", cells, "--id", "key", *QUICK]
    screen = call("clean", "t.csv", "--targets", "y", *options, "--out", "c.csv").stdout
    log = pd.read_csv("c.changes.csv", dtype=str, keep_default_na=False)
    assert list(log) == ["line", "row", "id", "column", "old", "new", "why"]
    lines, clean = content("t.csv").splitlines(), content("c.csv").splitlines()
    if rows == "drop":
        assert lines[8] not in clean
        assert [line for line in lines if line in clean] == clean
        entry = log[log["row"] == "7"].iloc[0]
        assert entry[["line", "id", "column", "old"]].tolist() == ["9", "k7", "", lines[8].decode()]
        assert re.match(r"wrong row: y 912\.25, expected [23]\d\.\d+", entry["why"])
        assert re.search(r"\n +9 +k7 +row dropped +y 912\.25, expected", screen)
    elif cells == "keep":
        assert clean == lines
        assert "Changes: none" in screen
    else:
        old, new = lines[8].decode().split(","), clean[8].decode().split(",")
        assert new[:3] == old[:3]
        assert re.fullmatch("" if cells == "blank" else r"[23]\d\.\d\d", new[3])
        entry = log[(log["row"] == "7")].iloc[0]
        assert entry[["id", "column", "old", "new"]].tolist() == ["k7", "y", "912.25", new[3]]
    call("clean", "c.csv", "--undo", "c.changes.csv", "--out", "back.csv")
    assert content("back.csv") == content("t.csv")


def test_what_is_only_suspicious_stays_and_is_listed(few_layers):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)).round(3)
    y = (X @ [2.0, -1.0] + 30 + rng.normal(size=200)).round(2)
    y[[3, 7]] += [9.0, 60.0]
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
    frame.to_csv("t.csv", index=False)
    asked = ["t.csv", "--targets", "y", *QUICK]
    call("outliers", *asked, "--out", "o.csv")
    found = pd.read_csv("o.csv", index_col="gorelm.row")
    assert found["gorelm.flagged"][[3, 7]].all()
    assert found["gorelm.certain"][[3, 7]].tolist() == [False, True]
    screen = call("clean", *asked, "--out", "c.csv").stdout
    assert "Changes: 1 row of 200 dropped." in screen
    kept = screen.partition("Suspicious, kept: ")[2]
    told = "1 row. gorelm review shows it; --suspicious change changes it, too."
    assert " ".join(kept.split()).startswith(told)
    assert re.search(r"\n +5 +3 +row +y ", kept)
    assert len(pd.read_csv("c.csv")) == 199
    screen = call("clean", *asked, "--suspicious", "change", "--out", "d.csv").stdout
    assert "Changes: 2 rows of 200 dropped." in screen
    assert "Suspicious" not in screen
    assert len(pd.read_csv("d.csv")) == 198
    table = pd.read_csv("t.csv")
    small = TableRegressor(
        RobustELMRegressor(n_hidden=5, missing_targets="ignore", target_transform="auto"),
        random_state=0,
    )
    for suspicious, n_rows in (("keep", 199), ("change", 198)):
        cleaned = gorelm.clean(table, "y", estimator=small, suspicious=suspicious)
        assert len(cleaned.table) == n_rows


def test_long_reasons_are_wrapped_and_all_changes_shown(few_layers):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2)).round(3)
    names = [f"a rather long name of target {k}" for k in range(3)]
    T = (X @ rng.normal(size=(2, 3)) + 0.1 * rng.normal(size=(150, 3))).round(2)
    T[:30] += 1000.0
    pd.DataFrame(np.column_stack([X, T]), columns=["a", "b", *names]).to_csv("t.csv", index=False)
    asked = ["t.csv", "--targets", "3", *QUICK]
    screen = call("clean", *asked, "--dry-run").stdout
    assert "30 rows of 150 dropped" in screen
    assert screen.count("row dropped") == 30
    said = " ".join(screen.split())
    assert f"{names[0]} 999" in said or f"{names[0]} 100" in said
    assert all(len(line) <= 80 for line in screen.splitlines())
    assert "..." not in screen.partition("Changes:")[2]
    screen = call("clean", *asked, "--out", "c.csv").stdout
    assert screen.count("row dropped") == 20
    assert "... and 10 more changes: the log has all of them." in screen
    screen = call("outliers", *asked).stdout
    assert "  ... and 20 more findings: --top N lists more, --out FILE has all." in screen
    screen = call("outliers", *asked, "--top", "40").stdout
    assert "more finding" not in screen
    assert "gorelm outliers lists them." in call("fit", *asked).stdout


def test_a_dry_run_writes_nothing(few_layers, table):
    before = sorted(os.listdir())
    screen = call("clean", "t.csv", "--targets", "y", *QUICK, "--dry-run").stdout
    assert "row dropped" in screen
    assert "Nothing is written" in screen
    call("clean", "t.csv", "--targets", "y", *QUICK, "--dry-run", "--out", "c.csv")
    assert sorted(os.listdir()) == before
    call("clean", "t.csv", "--targets", "y", *QUICK, "--out", "c.csv", "--log", "l.csv")
    assert sorted(os.listdir()) == sorted([*before, "c.csv", "l.csv"])
    before = sorted(os.listdir())
    said = call("clean", "c.csv", "--undo", "l.csv", "--dry-run").stdout
    assert re.match(r"\d+ changes? can be taken back", said)
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("t.csv --targets y --out t.csv", "is the table itself"),
        ("t.csv --targets y --out c.csv --log t.csv", "is the table itself"),
        ("t.csv --targets y --out c.csv --log c.csv", "--out and --log name the same file"),
        ("t.csv --targets y --out c.parquet", "must end in .csv or .csv.gz"),
        ("t.csv --targets y --out c.csv --log l.txt", "must end in .csv."),
        ("t.csv --targets y --out no/c.csv", "There is no folder 'no'"),
        ("t.csv --targets y --id kez --out c.csv", "no column 'kez'; did you mean 'key'"),
        ("t.csv --targets y --id y --out c.csv", "both the id and a target"),
        ("t.csv --targets y --features a,b --id a --out c.csv", "both the id and a feature"),
        ("t.csv --undo absent.csv --out c.csv", "There is no file 'absent.csv'"),
        ("t.csv --undo t.csv --out c.csv", "is no log of changes"),
        ("t.csv --undo t.csv --out t.csv", "is the table itself"),
        ("absent.csv --targets y --out c.csv", "There is no file 'absent.csv'"),
    ],
)
def test_what_is_refused(few_layers, table, arguments, message):
    before = content("t.csv"), sorted(os.listdir())
    assert message in call("clean", *arguments.split(), code=1).stderr
    assert (content("t.csv"), sorted(os.listdir())) == before


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [("t.csv --targets y", "--out"), ("t.csv --out c.csv", "--targets"), ("t.csv", "--out")],
)
def test_incomplete_lines(table, arguments, missing):
    assert f"Missing option '{missing}'" in call("clean", *arguments.split(), code=2).stderr


def test_a_log_of_another_file_is_refused(few_layers, table):
    call("clean", "t.csv", "--targets", "y", *QUICK, "--out", "c.csv")
    message = call("clean", "t.csv", "--undo", "c.changes.csv", "--out", "b.csv", code=1).stderr
    assert "not as it was when the log was written" in message
    assert not os.path.exists("b.csv")


def test_there_is_never_a_cleaned_table_without_its_log(few_layers, table, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    before = sorted(os.listdir())
    monkeypatch.setattr("gorelm._files.os.fsync", fail)
    arguments = ["clean", "t.csv", "--targets", "y", *QUICK, "--out", "c.csv"]
    assert "c.changes.csv: No space left" in call(*arguments, code=1).stderr
    assert sorted(os.listdir()) == before


def test_findings_and_predictions_have_the_ids(few_layers, table):
    options = ["--id", "key", *QUICK]
    screen = call("fit", "t.csv", "--targets", "y", *options, "--model", "m.gorelm").stdout
    assert re.search(r"\n +line +id +finding .*\n +9 +k7 +row +y +912\.25 ", screen)
    assert "--id key" in screen[screen.index("Next:") :]
    call("outliers", "t.csv", "--targets", "y", *options, "--out", "o.csv")
    found = pd.read_csv("o.csv")
    assert list(found)[:3] == ["key", "a", "b"]
    assert found["key"].iloc[0] == "k7"
    call("predict", "m.gorelm", "t.csv", "--id", "key", "--out", "p.csv")
    assert pd.read_csv("p.csv")["key"].tolist() == table["key"].tolist()
    message = call("predict", "m.gorelm", "t.csv", "--id", "x", "--out", "p.csv", code=1).stderr
    assert "no column 'x'" in message


def test_parquet_stays_parquet(few_layers, table):
    table.assign(y=(100 * table["y"]).astype(int)).to_parquet("t.parquet")
    options = ["--targets", "y", *QUICK, "--features", "a,b"]
    call("clean", "t.parquet", *options, "--rows", "keep", "--out", "c.parquet")
    clean = read_table("c.parquet")
    assert np.isnan(clean["y"][7])
    call("clean", "c.parquet", "--undo", "c.changes.csv", "--out", "b.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet("b.parquet"), pd.read_parquet("t.parquet"))


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (18280.4, 4, "18,280"),
        (165.2487, 4, "165.2"),
        (57.0, 6, "57"),
        (-1234.5678, 6, "-1,234.57"),
        (0.0123456, 4, "0.01235"),
        (0.0, 4, "0"),
        (99999999.0, 4, "99,999,999"),
        (9999.99, 4, "10,000"),
        (0.00005, 4, "5e-05"),
        (1.23456e8, 4, "1.235e+08"),
        (float("nan"), 4, "nan"),
        (1e300, 4, "1e+300"),
    ],
)
def test_numbers_are_written_as_people_do(value, digits, text):
    assert number(value, digits) == text
