"""Decisions: the last one about a row holds, none is lost, equal content has equal keys."""

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gorelm.review.store import LONGEST_NOTE, VERDICTS, Decisions, fingerprints

pd = pytest.importorskip("pandas")

TEXT = st.text(max_size=20)
ENTRY = st.tuples(
    st.sampled_from("abc"), st.one_of(st.none(), st.sampled_from(VERDICTS)), st.none() | TEXT
).filter(lambda entry: entry[1:] != (None, None))


def cells_of(verdict):
    return ["t0"] if verdict == "cells" else []


@given(st.lists(st.tuples(ENTRY, st.booleans()), max_size=12))
def test_the_last_decision_holds(tmp_path_factory, entries):
    """Whatever is set by an entry is the last one's; what it does not set stays as it was.

    Entries come through two connections, as those of two runs on one table do.
    """
    path = tmp_path_factory.mktemp("store") / "decisions.sqlite"
    expected = {}
    with Decisions(path) as one, Decisions(path) as other:
        for (row, verdict, note), by_other in entries:
            before = expected.get(row, ("", ""))
            state = (before[0] if verdict is None else verdict, before[1] if note is None else note)
            now = (other if by_other else one).decide(row, verdict, cells_of(verdict), note)
            expected[row] = state
            assert (now.verdict, now.note) == state
        for store in (one, other):
            current = store.current()
            assert {row: (d.verdict, d.note) for row, d in current.items()} == expected
    with Decisions(path) as again:
        assert again.current() == current
        for row, decision in current.items():
            states = again.history(row)
            assert states[-1] == decision
            assert len(states) == sum(entry[0] == row for entry, _ in entries)
            assert [d.version for d in states] == sorted({d.version for d in states})


def test_what_is_not_a_decision_is_refused(tmp_path):
    with Decisions(tmp_path / "d.sqlite") as store:
        for wrong in (
            {},
            {"verdict": "maybe"},
            {"verdict": "cells"},
            {"verdict": "right", "cells": ["a"]},
            {"note": "x" * (LONGEST_NOTE + 1)},
        ):
            with pytest.raises(ValueError, match=r"verdict|note"):
                store.decide("a", **wrong)
        assert store.current() == {}


def test_files_of_something_else_are_left_alone(tmp_path):
    text = tmp_path / "text.csv"
    text.write_text("a,b\n1,2\n" * 100)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE runs (x)")
    strange = tmp_path / "strange.sqlite"
    with sqlite3.connect(strange) as db:
        db.execute("CREATE TABLE decisions (x)")
    for path in (text, other, strange):
        before = path.read_bytes()
        with pytest.raises(ValueError, match=r"something else|does not hold decisions"):
            Decisions(path)
        assert path.read_bytes() == before
    with pytest.raises(OSError, match="no folder"):
        Decisions(tmp_path / "nowhere" / "d.sqlite")


def test_threads_lose_no_decision(tmp_path):
    path = tmp_path / "d.sqlite"
    with Decisions(path) as store, Decisions(path) as other:

        def decide(k):
            (store, other)[k % 2].decide(f"row {k}", "wrong", note=str(k))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(decide, range(60)))
        assert len(store.current()) == len(other.current()) == 60


WRITER = """
import sys
from gorelm.review.store import Decisions
store = Decisions(sys.argv[1])
for k in range(int(sys.argv[2]), 10**9):
    store.decide(f"row {k}", "wrong", note=str(k))
    print(k, flush=True)  # said after it was saved
"""


def test_none_is_lost_by_kill_9(tmp_path):
    """1,000 decisions, the process killed five times in between: all that were said are there."""
    path, said = tmp_path / "d.sqlite", -1
    for _ in range(5):
        stop_at = said + 200
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(said + 1)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        ) as process:
            for line in process.stdout:
                said = int(line)
                if said >= stop_at:
                    process.send_signal(signal.SIGKILL)
                    break
            for line in process.stdout:  # said before the signal came
                if line.endswith("\n"):
                    said = int(line)
        with Decisions(path) as store:
            known = store.current()
        assert set(known) >= {f"row {k}" for k in range(said + 1)}
    assert said >= 999
    assert all(known[f"row {k}"].note == str(k) for k in range(said + 1))


# -- keys of rows ---------------------------------------------------------------------------------

CELLS = st.one_of(st.floats(), st.integers(-5, 5), TEXT, st.none())


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8), st.randoms())
def test_keys_follow_the_content(rows, random):
    """Keys differ in one table, and go with the rows when these are moved or others are added."""
    frame = pd.DataFrame(rows, columns=["a", "b"], dtype=object)
    keys = fingerprints(frame)
    assert len(set(keys)) == len(keys) == len(frame)
    order = random.sample(range(len(rows)), len(rows))
    moved = fingerprints(frame.iloc[order].reset_index(drop=True))
    assert sorted(moved) == sorted(keys)
    first = {}
    for k, key in zip(order, moved, strict=True):
        first.setdefault(keys[k].split("-")[0], key)
        assert key.split("-")[0] == keys[k].split("-")[0]
    more = pd.concat([frame, pd.DataFrame([["new", "row"]], columns=["a", "b"])])
    assert fingerprints(more)[: len(keys)] == keys


def test_keys_see_names_and_borders_of_cells():
    keys = {
        fingerprints(pd.DataFrame([cells], columns=names))[0]
        for names, cells in (
            (["a", "b"], ["x", "yz"]),
            (["a", "b"], ["xy", "z"]),
            (["a", "c"], ["x", "yz"]),
            (["a", "b"], ["x", None]),
            (["a", "b"], ["x", ""]),
            (["a", "b"], ["", "x"]),
        )
    }
    assert len(keys) == 6


def test_keys_survive_a_blanked_cell_elsewhere():
    """A missing cell makes floats of whole numbers; the other rows keep their keys."""
    whole = pd.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6]})
    blanked = pd.DataFrame({"a": [1, np.nan, 3], "b": [4, 5, 6]})
    one, other = fingerprints(whole), fingerprints(blanked)
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, True]


def test_verdicts_on_disk_are_synced(tmp_path):
    """The log is synced before a decision counts: the power may go."""
    with Decisions(tmp_path / "d.sqlite") as store:
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
