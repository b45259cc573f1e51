"""Tables in the shapes that people have them in: every command takes them as they are."""

import gzip
import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gorelm.datasets import read_table
from support.commands import call

pytestmark = pytest.mark.usefixtures("few_layers")
N, WRONG = 40, 7  # rows, and the number of the one that is wrong


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_frame(n=N, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "size": rng.normal(50, 10, n).round(1),
        "colour": rng.choice(["red", "green", "blue"], n),
        "age": rng.integers(1, 60, n),
    })  # fmt: skip
    frame["price"] = (100 * frame["size"] + 500 * (frame["colour"] == "red")).round(2)
    frame["weight"] = (frame["size"] / 3 + frame["age"] / 10).round(2)
    frame.loc[WRONG, ["price", "weight"]] = [98765.25, 987.5]
    return frame


def csv(frame, **how):
    return frame.to_csv(lineterminator="\n", **{"index": False, **how})


def with_cells(frame, cells):
    """Return the frame as objects, with other cells: {(row, column): value}."""
    frame = frame.astype(object)
    for (row, column), value in cells.items():
        frame.loc[row, column] = value
    return frame


def arff(frame):
    head = [
        "% people",
        "@relation 'r 1'",
        "@attribute size real",
        "@attribute colour {red,green,blue}",
    ]
    head += [f"@attribute {name} real" for name in ("age", "price", "weight")]
    rows = csv(frame, header=False)
    return "\n".join([*head, "@data", rows])


def names(frame, *new):
    return frame.set_axis(list(new), axis=1)


# Of each: what is in the file (text, or bytes) and the arguments of the commands.
F = make_frame()
T = ["--targets", "price,weight"]
SHAPES = {
    "plain": ("t.csv", csv(F), T),
    "from pandas": ("t.csv", csv(F, index=True), T),
    "from R": ("t.csv", csv(F.set_axis(range(1, N + 1)), index=True, quoting=2), T),
    "missing as NA": ("t.csv", csv(with_cells(F, {(3, "size"): "NA", (4, "colour"): "NA"})), T),
    "missing targets": ("t.csv", csv(with_cells(F, {(3, "price"): None, (9, "weight"): "?"})), T),
    "damaged cells": ("t.csv", csv(with_cells(F, {(3, "size"): "#REF!", (5, "price"): "err"})), T),
    "an id": ("t.csv", csv(F.assign(key=[f"k{i:03}" for i in range(N)])), [*T, "--id", "key"]),
    "a counter": ("t.csv", csv(F.assign(number=range(1, N + 1))), [*T, "--id", "number"]),
    "duplicate ids": ("t.csv", csv(F.assign(key=[i % 9 for i in range(N)])), [*T, "--id", "key"]),
    "dates": ("t.csv", csv(F.assign(day=pd.date_range("2024-02-20", periods=N))), T),
    "Excel in German": ("t.csv", csv(F, sep=";", decimal=","), T),
    "Windows": ("t.csv", ("\ufeff" + csv(F)).replace("\n", "\r\n"), T),
    "UTF-16": ("t.csv", ("\ufeff" + csv(F, sep="\t")).encode("utf-16-le"), T),
    "Latin-1": ("t.csv", csv(F.replace("red", "rosé")).encode("latin-1"), T),
    "tabs": ("t.tsv", csv(F, sep="\t"), T),
    "zipped": ("t.csv.gz", gzip.compress(csv(F).encode()), T),
    "blank lines": ("t.csv", csv(F).replace("\n", "\n\n", 12) + "\n  \n", T),
    "a separator at the end": ("t.csv", csv(F).replace("\n", ",\n"), T),
    "no end of line": ("t.csv", csv(F).rstrip("\n"), T),
    "odd names": (
        "t.csv",
        csv(names(F, "size, cm", "Farbe (ü)", "gorelm.score", "price $", 'weight "net"')),
        ["--targets", '"price $","weight ""net"""'],
    ),
    "line ends in cells": ("t.csv", csv(F.assign(note=["a\nb", 'say "x"'] * (N // 2))), T),
    "targets by number": ("t.csv", csv(F), ["--targets", "2"]),
    "some columns": ("t.csv", csv(F), [*T, "--features", "size,colour"]),
    "one target": ("t.csv", csv(F), ["--targets", "price"]),
    "truth values": ("t.csv", csv(F.assign(sold=F["age"] > 30, same=1, empty="")), T),
    "integers": ("t.csv", csv(F.astype({"price": int, "weight": int})), T),
    "large numbers": ("t.csv", csv(F.assign(price=1e9 * F["price"])), T),
    "ARFF": ("t.arff", arff(F), T),
    "Parquet": ("t.parquet", F, T),
    "Parquet with an index": ("t.parquet", F.set_axis([f"k{i}" for i in range(N)]), T),
}  # fmt: skip


# Each with a way of its own through the reader, the writer, or the search for the columns.
TELLING = {
    "damaged cells",
    "an id",
    "Excel in German",
    "UTF-16",
    "odd names",
    "line ends in cells",
    "truth values",
    "ARFF",
    "Parquet with an index",
}


def as_a_person_would(session, *, port, told):
    """Stand for the server of a review, and for the person at its page."""
    told("http://127.0.0.1/")
    for _ in range(2):
        session.refit()
        session.wait()
        assert session.state()["fit"]["state"] == "done", session.state()["fit"]
        json.dumps([session.detail(row) for row in range(N)], allow_nan=False)
        if session.state()["version"] == 0:
            assert session.page("todo")["rows"][0]["row"] == WRONG
            session.decide(WRONG, "wrong")
            session.decide(0, "right")
    assert not session.detail(0)["flagged"]
    for file in session.cleaned():
        Path(file.name).write_bytes(file.content)


@pytest.mark.filterwarnings("ignore:.*(Latin-1|without a name)")
@pytest.mark.parametrize(
    "shape", [pytest.param(s, marks=() if s in TELLING else pytest.mark.slow) for s in SHAPES]
)
def test_every_command_takes_it(shape, monkeypatch):
    name, content, arguments = SHAPES[shape]
    if isinstance(content, pd.DataFrame):
        content.to_parquet(name)
    else:
        with open(name, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
    with open(name, "rb") as file:
        before = file.read()
    arguments = [*arguments, "--nodes", 4]
    table = read_table(name)

    screen = call("outliers", name, *arguments, "--out", "o.csv").stdout
    found = read_table("o.csv")
    prefix = "gorelm1." if shape == "odd names" else "gorelm."
    assert len(found) == N
    assert found[f"{prefix}row"].iloc[0] == WRONG
    assert found[f"{prefix}flagged"].iloc[0]
    assert re.search(r"^ .*\b(row|cell) +(price|weight).* \S+ +\S+ +0\.\d\d$", screen, flags=re.M)

    ending = name.removeprefix("t")
    call("clean", name, *arguments, "--out", f"c{ending}")
    clean = read_table(f"c{ending}")
    log = pd.read_csv("c.changes.csv", dtype=str, keep_default_na=False)
    dropped = log.loc[(log["column"] == "") & (log["row"] != ""), "row"].astype(int)
    assert WRONG in dropped.tolist()
    assert len(clean) == N - len(dropped) >= N - 4
    assert list(clean) == list(table)
    kept = table.drop(index=table.index[dropped]) if table.index.is_unique else table
    if not (log["column"] != "").any():
        assert kept.reset_index(drop=True).equals(clean.reset_index(drop=True))

    call("clean", f"c{ending}", "--undo", "c.changes.csv", "--out", f"back{ending}")
    with open(f"back{ending}", "rb") as file:
        back = file.read()
    if ending == ".parquet":
        assert read_table(f"back{ending}").equals(table)
    elif ending.endswith(".gz"):
        assert gzip.decompress(back) == gzip.decompress(before)
    else:
        assert back == before
    with open(name, "rb") as file:
        assert file.read() == before

    if find_spec("starlette") and find_spec("uvicorn"):
        monkeypatch.setattr("gorelm.review.server.serve", as_a_person_would)
        call("review", name, *arguments)
        reviewed = f"t.clean{ending.removesuffix('.gz')}"
        assert read_table(reviewed).equals(table.iloc[np.arange(N) != WRONG].set_axis(
            read_table(reviewed).index
        ))  # fmt: skip
        assert Path(f"{name}.review.sqlite").exists()

    options = arguments[2:-2] if "--id" in arguments else []
    call("fit", name, *arguments, "--model", "m.gorelm")
    call("predict", "m.gorelm", name, *options, "--out", "p.csv")
    predicted = read_table("p.csv")
    assert len(predicted) == N
    assert np.isfinite(predicted.iloc[:, -1]).all()


def test_a_counter_is_said():
    make_frame().assign(number=range(1, N + 1)).to_csv("t.csv", index=False)
    screen = " ".join(call("outliers", "t.csv", *T, "--nodes", 4).stdout.split())
    assert "Input 'number' counts the rows, from 1 to 40" in screen
    assert "--id" in screen
    screen = call("outliers", "t.csv", *T, "--nodes", 4, "--id", "number").stdout
    assert "counts the rows" not in screen
    assert "Column 'number' holds the ids of the rows; it is no input." in " ".join(screen.split())
