"""Names, numbers and places at the edges of what the commands take."""

import gzip
import os
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gorelm import RELMRegressor, TableRegressor
from gorelm.__main__ import main as as_a_command
from gorelm.cli.app import printable
from gorelm.datasets import load_table, read_table
from gorelm.findings import Names
from gorelm.io import load, save
from support.commands import call

QUICK = ["--nodes", "5"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_frame(names, n_rows=24, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 2)).round(3)
    columns = {"a": X[:, 0], "b": X[:, 1]}
    for j, name in enumerate(names):
        columns[name] = (X @ rng.normal(size=2) + 0.01 * j).round(3)
    frame = pd.DataFrame(columns)
    frame.loc[7, names[0]] += 90
    return frame


# -- 1: findings and columns ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ["score", "z"],
        ["flagged", "row", "line", "off"],
        ["y", "y expected", "y off by", "y spreads"],
        ["gorelm.score", "gorelm.row", "gorelm1.flagged", "gorelm.expected.y"],
        ["y", "gorelm.expected.y", "gorelm.spreads.y"],
    ],
)
def test_findings_do_not_collide_with_columns(few_layers, names):
    frame = make_frame(names)
    frame.to_csv("t.csv", index=False)
    targets = ",".join(names)
    screen = call("outliers", "t.csv", "--targets", targets, *QUICK, "--out", "o.csv").stdout
    found, own = pd.read_csv("o.csv"), Names(frame)
    assert not [name for name in frame if name.startswith(own.prefix)]
    assert len(set(found)) == len(found.columns) == 2 + 9 + 6 * len(names)
    row = found[own.row].to_numpy()
    for name in names:  # the columns of the table are what they were
        np.testing.assert_array_equal(found[name], frame[name].to_numpy()[row])
        off_by = found[name] - found[own.expected(name)]
        np.testing.assert_allclose(found[own.off_by(name)], off_by)
    assert (np.diff(found[own.quality]) >= 0).all()  # a row counts as much as its worst cell
    assert row[0] == 7
    assert found[own.off][0].split(",")[0] == names[0]
    first = re.search(r"^ +9 +7 +(row|cell) +(.*?)  .* (\S+)$", screen, flags=re.M)
    assert first[1] == found[own.kind][0]
    assert first[2] == names[0]
    assert float(first[3]) == pytest.approx(found[own.quality][0], abs=0.006)


def test_names_of_findings_start_with_the_first_prefix_that_is_free():
    assert Names(["a", "gorelm"]).score == "gorelm.score"
    assert Names(["gorelm.x"]).score == "gorelm1.score"
    assert Names(["gorelm.x", "gorelm1.", "gorelm3.y"]).expected("t") == "gorelm2.expected.t"


# -- 2, 3, 11: where results go --------------------------------------------------------------------


@pytest.fixture
def model():
    frame = make_frame(["y", "self"])
    frame.to_csv("t.csv", index=False)
    regressor = TableRegressor(RELMRegressor(n_hidden=3), random_state=0)
    save(regressor.fit(frame[["a", "b"]], frame[["y", "self"]]), "m.gorelm")
    return frame


WRITING = [
    ("fit t.csv --targets y --nodes 5 --model", "new.gorelm"),
    ("fit t.csv --targets y --nodes 5 --report", "new.html"),
    ("outliers t.csv --targets y --nodes 5 --out", "new.csv"),
    ("predict m.gorelm t.csv --out", "new.csv"),
    ("predict m.gorelm t.csv --out", "new.parquet"),
    ("contaminate t.csv --targets y --ratio 0.2 --out", "new.tsv"),
    ("export m.gorelm --onnx", "new.onnx"),
]


@pytest.mark.parametrize(("command", "name"), WRITING)
def test_results_go_through_links_and_to_regular_files_only(few_layers, model, command, name):
    ending = name.removeprefix("new")
    words = command.split()
    if "--onnx" in words:
        pytest.importorskip("onnx")
    os.mkdir("far")
    os.symlink(f"far/aim{ending}", f"link{ending}")
    call(*words, f"link{ending}")
    assert os.path.islink(f"link{ending}")
    assert os.path.getsize(f"far/aim{ending}") > 50
    assert os.listdir("far") == [f"aim{ending}"]
    os.mkfifo(f"fifo{ending}")
    os.symlink("/dev/null", f"device{ending}")
    before = sorted(os.listdir())
    for bad, message in (("fifo", "not a regular file"), ("device", "not a regular file")):
        assert message in call(*words, f"{bad}{ending}", code=1).stderr
    assert sorted(os.listdir()) == before
    assert not os.path.isfile(f"fifo{ending}")
    assert os.path.islink(f"device{ending}")


@pytest.mark.parametrize(("command", "name"), WRITING)
def test_the_old_file_stays_when_the_disk_is_full(few_layers, model, monkeypatch, command, name):
    if "onnx" in name:
        pytest.importorskip("onnx")

    def fail(*_):
        raise OSError(28, "No space left on device")

    with open(name, "wb") as file:
        file.write(b"old")
    before = sorted(os.listdir())
    monkeypatch.setattr("gorelm._files.os.fsync", fail)
    assert f"{name}: No space left" in call(*command.split(), name, code=1).stderr
    with open(name, "rb") as file:
        assert file.read() == b"old"
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("second", ["same.html", "./same.html", "link.html", "hard.html"])
def test_two_results_cannot_share_a_file(model, second):
    with open("same.html", "w") as file:
        file.write("old")
    os.symlink("same.html", "link.html")
    os.link("same.html", "hard.html")
    arguments = ["fit", "t.csv", "--targets", "y", "--model", "same.html", "--report", second]
    assert "--model and --report name the same file" in call(*arguments, code=1).stderr
    os.unlink("same.html")
    if second != "hard.html":  # neither is there, and one is a link
        assert "name the same file" in call(*arguments, code=1).stderr


@pytest.mark.parametrize("how", ["itself", "symlink", "hard link", "path"])
@pytest.mark.parametrize("command", ["contaminate", "outliers", "predict"])
def test_an_input_is_never_overwritten(model, how, command):
    name = {"itself": "t.csv", "path": "../" + os.path.basename(os.getcwd()) + "/t.csv"}.get(
        how, "o.csv"
    )
    if how == "symlink":
        os.symlink("t.csv", "o.csv")
    elif how == "hard link":
        os.link("t.csv", "o.csv")
    words = {
        "contaminate": ["contaminate", "t.csv", "--targets", "y", "--ratio", "0.2"],
        "outliers": ["outliers", "t.csv", "--targets", "y"],
        "predict": ["predict", "m.gorelm", "t.csv"],
    }[command]
    with open("t.csv") as file:
        before = file.read()
    assert "is the table itself" in call(*words, "--out", name, code=1).stderr
    with open("t.csv") as file:
        assert file.read() == before


# -- 4: contaminate ------------------------------------------------------------------------------

CELLS = "id;long;x;y\n" + "".join(
    f"00{i};{2**53 + 2 * i + 1};{i},50;{(i * i) % 11},250\n" for i in range(12)
)


def test_untouched_cells_are_written_as_they_were_read():
    with open("t.csv", "w") as file:
        file.write(CELLS)
    call("contaminate", "t.csv", "--targets", "y", "--ratio", 0.25, "--out", "o.csv")
    with open("o.csv") as file:
        lines = file.read().splitlines()
    assert lines[0] == "id;long;x;y;planted"
    changed = 0
    for old, new in zip(CELLS.splitlines()[1:], lines[1:], strict=True):
        *cells, planted = new.split(";")
        assert cells[:3] == old.split(";")[:3]
        assert (cells[3] != old.split(";")[3]) == (planted == "1")
        changed += planted == "1"
    assert changed == 3
    y = read_table("o.csv")["y"]
    assert y.dtype == float  # decimal commas throughout


@pytest.mark.parametrize("out", ["o.csv", "o.tsv", "o.csv.gz", "o.tsv.gz", "o.parquet", "o.pq"])
@pytest.mark.parametrize("source", ["t.csv", "t.parquet"])
def test_the_suffix_says_what_is_written(source, out):
    frame = make_frame(["y", "count"])
    frame["count"] = 2**53 + 2 * np.arange(24) + 1
    frame["word"] = "x"
    frame = frame[["word", "a", "b", "y", "count"]]
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet")
    call("contaminate", source, "--targets", "2", "--ratio", 0.25, "--out", out)
    with open(out, "rb") as file:
        start = file.read(4)
    assert start.startswith(b"PAR1" if out.endswith(("parquet", "pq")) else (b"\x1f\x8b", b"word"))
    dirty = read_table(out)
    kept = dirty["planted"] == 0
    assert kept.sum() == 18
    pd.testing.assert_frame_equal(
        dirty.loc[kept, ["a", "b", "y"]], frame.loc[kept, ["a", "b", "y"]]
    )
    with_decimals = source == "t.csv" and not out.endswith(("parquet", "pq"))
    if with_decimals:  # planted cells have some, and floats are what pandas reads then
        with gzip.open(out, "rt") if out.endswith("gz") else open(out) as file:
            cells = [re.split("[,\t]", line)[4] for line in file.read().splitlines()[1:]]
    else:
        cells = dirty["count"].tolist()
    assert [int(x) for x, keep in zip(cells, kept, strict=True) if keep] == frame["count"][
        kept
    ].tolist()


def test_what_cannot_be_written_is_refused():
    make_frame(["y"]).to_csv("t.csv", index=False)
    for name in ("o.arff", "o.xls", "o"):
        arguments = ["contaminate", "t.csv", "--targets", "y", "--ratio", 0.2, "--out", name]
        assert "must end in .csv or" in call(*arguments, code=1).stderr
        assert not os.path.exists(name)


def test_a_column_named_2_is_meant_by_2(few_layers):
    frame = make_frame(["2", "z"])
    frame.to_csv("t.csv", index=False)
    call("contaminate", "t.csv", "--targets", "2", "--ratio", 0.25, "--out", "o.csv")
    dirty = pd.read_csv("o.csv")
    assert (dirty["2"] != frame["2"]).sum() == 6
    assert (dirty["z"] == frame["z"]).all()
    assert "1 target (2)" in call("outliers", "t.csv", "--targets", "2", *QUICK).stdout


# -- 6: decimal commas ---------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [";", "\t"])
def test_one_bad_cell_in_a_column_of_decimal_commas(few_layers, separator):
    frame = make_frame(["y"])
    name = "t.csv" if separator == ";" else "t.tsv"
    text = frame.to_csv(index=False, sep=separator, decimal=",").splitlines()
    for line, column in ((5, 0), (9, 2)):
        cells = text[line].split(separator)
        cells[column] = "err"
        text[line] = separator.join(cells)
    with open(name, "w") as file:
        file.write("\n".join(text))
    screen = " ".join(call("outliers", name, "--targets", "y", *QUICK).stdout.split())
    assert "Target 'y': 1 cell is no finite number ('err'); taken as missing." in screen
    assert "Column 'a': 1 cell is no finite number ('err'); taken as missing." in screen
    assert read_table(name)["b"].tolist() == frame["b"].tolist()
    with pytest.warns(UserWarning, match="'err' is not a number"):
        load_table(name, "b")


def test_columns_with_points_beside_columns_with_commas():
    with open("t.csv", "w") as file:
        file.write("a;b;c\n" + "".join(f"{i},5;{i}.5;x,{i}\n" for i in range(12)))
    table = read_table("t.csv")
    assert table["a"].tolist() == table["b"].tolist() == [i + 0.5 for i in range(12)]
    assert table["c"][3] == "x,3"


# -- 7, 8, 11: names -----------------------------------------------------------------------------


def test_a_target_named_self(few_layers, model):
    call("predict", "m.gorelm", "t.csv", "--out", "p.csv")
    assert list(pd.read_csv("p.csv")) == ["y", "self"]
    call("contaminate", "t.csv", "--targets", "self", "--ratio", 0.25, "--out", "o.csv")
    assert (pd.read_csv("o.csv")["self"] != model["self"]).sum() == 6


def test_escape_sequences_do_not_reach_the_terminal(few_layers):
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    frame = make_frame([f"y{evil}", "z"]).rename(columns={"a": f"a{evil}"})
    table, out = f"t{evil}.csv", f"m{evil}.gorelm"
    frame.to_csv(table, index=False)
    screens = [
        call("fit", table, "--targets", "2", *QUICK, "--model", out),
        call("inspect", out),
        call("outliers", table, "--targets", "2", *QUICK, "--out", f"o{evil}.csv"),
        call("predict", out, table, "--out", f"p{evil}.csv"),
        call("contaminate", table, "--targets", "2", "--ratio", 0.2, "--out", f"d{evil}.csv"),
        call("outliers", table, "--targets", evil, code=1),
        call("outliers", f"no{evil}.csv", "--targets", "z", code=1),
        call("experiment", "status", evil, code=1),
        call("fit", table, f"--{evil}", code=2),
        call("inspect", out, evil, code=2),
    ]
    for screen in screens[:-1]:  # `call` has looked for raw ones
        assert "\\x1b" in screen.output
    assert list(load(out).target_names_) == [f"y{evil}", "z"]


def test_printable():
    assert printable("plain, größer 日本") == "plain, größer 日本"
    assert printable("\x1b[2J\n\t\x7f\x9b\u202e\udce9\xa0") == (
        "\\x1b[2J\\n\\t\\x7f\\x9b\\u202e\\udce9\\xa0"
    )


def test_warnings_of_libraries_are_one_line(model, monkeypatch, capsys):
    def warn(**_):
        warnings.warn("odd\x1b[2J\nthing", stacklevel=1)

    monkeypatch.setattr("gorelm.cli.app.main.callback", warn)
    monkeypatch.setattr(sys, "argv", ["gorelm", "inspect", "m.gorelm"])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main replaces it
    with pytest.raises(SystemExit) as end:
        as_a_command()
    assert not end.value.code
    assert capsys.readouterr().err == "note: odd\\x1b[2J\\nthing\n"


@pytest.mark.parametrize(
    ("targets", "chosen"),
    [
        ('"a,b",z', ["a,b", "z"]),
        ('z , "a,b"', ["z", "a,b"]),
        ("a,b", ["a,b"]),
        ('"say ""x""",z', ['say "x"', "z"]),
    ],
)
def test_targets_with_commas_and_quotes_in_their_names(few_layers, targets, chosen):
    frame = make_frame(["a,b", "z", 'say "x"'])
    frame.to_csv("t.csv", index=False)
    call("outliers", "t.csv", "--targets", targets, *QUICK, "--out", "o.csv")
    found = pd.read_csv("o.csv")
    rest = [name for name in frame if name not in chosen]
    assert [name for name in found if not name.startswith("gorelm.")] == rest + chosen
    call("contaminate", "t.csv", "--targets", targets, "--ratio", 0.2, "--out", "d.csv")
    call("fit", "t.csv", "--targets", targets, *QUICK, "--model", "m.gorelm")
    keep = ",".join('"' + name.replace('"', '""') + '"' for name in rest)
    call("predict", "m.gorelm", "t.csv", "--keep", keep, "--out", "p.csv")
    assert list(pd.read_csv("p.csv")) == [*rest, *chosen]


# -- 11: numbers ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("share", ["all", "some", "one"])
def test_targets_near_the_largest_number(few_layers, share):
    frame = make_frame(["y", "z"])
    frame.loc[7, "y"] = 1
    frame["y"] /= frame["y"].abs().max()
    rows = {"all": slice(None), "some": slice(0, 5), "one": slice(0, 0)}[share]
    frame.loc[rows, "y"] *= 1.7e308
    frame.to_csv("t.csv", index=False)
    code = 1 if share == "all" else 0
    for words in (
        ["outliers", "t.csv", "--targets", "y,z", *QUICK, "--out", "o.csv"],
        ["contaminate", "t.csv", "--targets", "y,z", "--ratio", 0.2, "--out", "d.csv"],
    ):
        result = call(*words, code=code)
        assert not re.search(r"\b(inf|nan)\b", result.output)
        if share == "all":
            assert "divide it by a power of ten" in result.stderr
    if share != "all":
        call("fit", "t.csv", "--targets", "y,z", *QUICK, "--model", "m.gorelm")
        for name in ("o.csv", "d.csv"):
            numbers = pd.read_csv(name).drop(columns="gorelm.twin", errors="ignore")
            assert np.isfinite(numbers.select_dtypes("number")).all(axis=None)


# -- ids of rows -----------------------------------------------------------------------------------


@pytest.mark.crossed
@pytest.mark.parametrize("ids", [list(range(1, 25)), [f"00{i}" for i in range(23)] + ["NA"]])
@pytest.mark.parametrize("out", ["csv", "parquet"])
def test_a_first_column_without_a_name_holds_ids(few_layers, ids, out):
    frame = make_frame(["y", "z"]).set_index(pd.Index(ids))
    frame.to_csv("t.csv")
    table = read_table("t.csv")
    assert table.index.tolist() == ids
    assert list(table) == ["a", "b", "y", "z"]
    bunch = load_table("t.csv", 2, as_frame=True)
    assert bunch.feature_names == ["a", "b"]
    assert bunch.data.index.tolist() == bunch.frame.index.tolist() == ids
    screen = call("fit", "t.csv", "--targets", "2", *QUICK, "--model", "m.gorelm").stdout
    assert "24 rows, 4 columns; 2 inputs, 2 targets (y, z)" in screen
    assert "The first column, which has no name, holds the ids of the rows" in screen
    assert re.search(rf"\n +line +id +finding .*\n +9 +{ids[7]} ", screen)
    call("outliers", "t.csv", "--targets", "y,z", *QUICK, "--out", f"o.{out}")
    found = read_table(f"o.{out}")
    assert found.index[0] == ids[7]
    assert [ids[row] for row in found["gorelm.row"]] == found.index.tolist()
    said = call("predict", "m.gorelm", "t.csv", "--out", f"p.{out}").stderr
    assert "holds the ids of the rows" in said
    predicted = read_table(f"p.{out}")
    assert predicted.index.tolist() == ids
    assert list(predicted) == ["y", "z"]
    call("contaminate", "t.csv", "--targets", "2", "--ratio", 0.2, "--out", f"d.{out}")
    assert read_table(f"d.{out}").index.tolist() == ids
    with open("p.csv" if out == "csv" else "t.csv") as file:
        assert file.readline().startswith(",")


def test_a_frame_without_names_as_pandas_writes_it():
    pd.DataFrame(np.eye(12)).to_csv("t.csv")
    assert list(read_table("t.csv")) == [str(j) for j in range(12)]
    pd.DataFrame(np.eye(12)).to_csv("t.csv", index=False)
    assert "starts with numbers" in call("fit", "t.csv", "--targets", "1", code=1).stderr


def test_other_columns_without_a_name_are_called_by_their_place(few_layers):
    frame = make_frame(["y"])
    frame.insert(1, "", frame["b"])
    frame[" "] = ""  # what a separator at the end of every line makes
    frame.to_csv("t.csv")
    result = call("fit", "t.csv", "--targets", "y", *QUICK, "--model", "m.gorelm")
    assert "they are called column 3, column 6" in " ".join(result.stderr.split())
    assert list(load("m.gorelm").feature_names_in_) == ["a", "column 3", "b", "column 6"]
    call("predict", "m.gorelm", "t.csv", "--out", "p.csv")


def test_an_index_of_a_parquet_file_holds_ids(few_layers):
    frame = make_frame(["y"])
    frame.set_index(pd.Index([f"p{i}" for i in range(24)], name="y")).to_parquet("t.parquet")
    call("outliers", "t.parquet", "--targets", "y", *QUICK, "--out", "o.csv")
    assert read_table("o.csv").index[0] == "p7"
    frame.to_parquet("plain.parquet")
    screen = call("outliers", "plain.parquet", "--targets", "y", *QUICK).stdout
    assert " row " in screen
    assert " ids " not in screen


# -- promises --------------------------------------------------------------------------------------


def test_no_command_opens_a_connection(few_layers, model, monkeypatch):
    def connect(*_):
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", connect)
    monkeypatch.setattr("socket.getaddrinfo", connect)
    call("fit", "t.csv", "--targets", "y", *QUICK, "--model", "n.gorelm", "--report", "n.html")
    call("outliers", "t.csv", "--targets", "y", *QUICK)
    call("inspect", "m.gorelm")
    call("predict", "m.gorelm", "t.csv", "--out", "p.csv")
    call("contaminate", "t.csv", "--targets", "y", "--ratio", 0.2, "--out", "d.csv")
    call("datasets", "list")


def test_every_promise_names_tests_that_exist():
    root = Path(__file__).parents[2]
    text = (root / "docs" / "guide" / "promises.rst").read_text(encoding="utf-8")
    named = re.findall(r"``(tests/[\w/]+\.py)(?:::(\w+))?``", text)
    assert len(named) >= 20
    for file, name in named:
        assert f"def {name}" in (root / file).read_text(encoding="utf-8"), (file, name)
