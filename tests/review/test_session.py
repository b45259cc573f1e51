"""What the page asks for: pages of findings, similar rows, decisions, fits and files."""

import io
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pd = pytest.importorskip("pandas")

from gorelm import RobustELMRegressor, TableRegressor  # noqa: E402
from gorelm.cleaning import read_log, restore_file  # noqa: E402
from gorelm.review.session import SHOWN  # noqa: E402
from gorelm.review.similar import Similar  # noqa: E402
from gorelm.selection import listening, track  # noqa: E402
from support.review_cases import EVIL, Medians, people, session_of  # noqa: E402


@pytest.fixture
def case(tmp_path):
    frame, wrong = people()
    session = session_of(tmp_path / "d.sqlite", frame)
    yield session, frame, wrong
    session.close()


def every_page(session, count, **asked):
    """Return the rows of all pages, forwards."""
    rows, after = [], None
    while True:
        page = session.page(after=after, count=count, **asked)
        rows += page["rows"]
        if not page["more"]:
            return rows
        after = page["rows"][-1]["place"]


def test_suspicious_rows_come_first_with_given_and_expected(case):
    session, frame, wrong = case
    rows = every_page(session, 3)
    assert [row["row"] for row in rows] == wrong.tolist()  # 1400, 1300, ...
    for row in rows:
        weight = frame["weight"].iloc[row["row"]]
        assert row["given"][0] == weight
        assert row["off_by"][0] == pytest.approx(weight - row["expected"][0])
        assert row["off"] == [True, False]
        assert row["id"] == frame.index[row["row"]]
        assert row["line"] == row["row"] + 2
        assert 0 <= row["quality"] < 0.5
    assert len(every_page(session, 7, show="all")) == len(frame)
    assert {row["row"] for row in every_page(session, 9, show="all")} == set(range(len(frame)))


def test_no_row_is_skipped_while_rows_are_decided(case):
    """Rows leave the list of what is to be decided; the next page begins where this one ended."""
    session, _, wrong = case
    seen, after = [], None
    while True:
        page = session.page("todo", after=after, count=2)
        for row in page["rows"]:
            seen.append(row["row"])
            session.decide(row["row"], "right")
        if not page["more"]:
            break
        after = page["rows"][-1]["place"]
    assert seen == wrong.tolist()
    assert session.page("todo")["total"] == 0
    back = session.page("flagged", before=page["rows"][0]["place"], count=3)
    assert [row["row"] for row in back["rows"]] == wrong[3:6].tolist()


def test_lists_by_verdict_and_by_label(case):
    session, frame, wrong = case
    for row, verdict in zip(wrong, ["wrong", "cells", "right", "unsure"], strict=False):
        cells = ["weight"] if verdict == "cells" else []
        session.decide(int(row), verdict, cells, note="look" if verdict == "right" else None)
    listed = {show: [r["row"] for r in session.page(show)["rows"]] for show in SHOWN}
    assert listed["wrong"] == wrong[:2].tolist()
    assert listed["right"] == listed["noted"] == [wrong[2]]
    assert listed["unsure"] == [wrong[3]]
    assert listed["todo"] == wrong[4:].tolist()
    counts = session.state()["counts"]
    assert counts["all"] == len(frame)
    assert all(counts[show] == len(listed[show]) for show in SHOWN if show != "all")
    found = session.page("all", find=frame.index[7])["rows"]
    assert [row["row"] for row in found] == [7]
    with pytest.raises(ValueError, match="show is one of"):
        session.page("nothing")


def test_a_row_with_its_inputs_and_similar_rows(case):
    session, frame, wrong = case
    row = int(wrong[0])
    detail = session.detail(row)
    inputs = dict(zip(session.table.inputs, detail["inputs"], strict=True))
    assert inputs["remark"] == EVIL  # as it is; the page makes text of it
    assert inputs["age"] == frame["age"].iloc[row]
    assert session.detail(int(wrong[1]))["inputs"][2] is None  # a missing height
    near = detail["similar"]
    assert len(near) == 6
    assert row not in [one["row"] for one in near]
    assert [one["distance"] for one in near] == sorted(one["distance"] for one in near)
    blank = people()[0]
    blank.iloc[4, 5] = np.nan  # a missing waist
    other = session_of(session.decisions.path.with_name("other.sqlite"), blank)
    with pytest.raises(ValueError, match="missing already"):
        other.decide(4, "cells", ["waist"])
    with pytest.raises(ValueError, match="no target"):
        other.decide(4, "cells", ["age"])
    other.close()
    for bad in (-1, len(frame)):
        with pytest.raises(LookupError):
            session.detail(bad)
        with pytest.raises(LookupError):
            session.decide(bad, "right")


@given(st.integers(0, 2**32 - 1))
def test_similar_rows_are_the_nearest(seed):
    """Against the definition, row by row."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.normal(size=15), "b": rng.integers(0, 3, 15) * 1.0})
    frame["c"] = rng.choice(["x", "y", "z"], 15)
    frame.loc[0, "a"] = np.nan
    row = int(rng.integers(15))
    numbers = frame[["a", "b"]].to_numpy()
    centre = np.nanmedian(numbers, axis=0)
    quartiles = np.nanquantile(numbers, [0.25, 0.75], axis=0)
    if (quartiles[0] == quartiles[1]).any():
        return
    scaled = Similar(frame)._scaled  # its unit is tested where the scaling is
    np.testing.assert_allclose(scaled[0, 0], 0.0, atol=1e-6)
    assert np.abs(np.median(scaled[1:, 0])) < 0.5
    squares = ((scaled - scaled[row]) ** 2).sum(axis=1)
    squares += (frame["c"] != frame["c"][row]).to_numpy()
    squares += np.isnan(numbers[:, 0]) != np.isnan(numbers[row, 0])
    assert centre.shape == (2,)
    others = np.delete(np.arange(15), row)
    order = others[np.argsort(squares[others], kind="stable")][:4]
    near, distances = Similar(frame).nearest(row, 4)
    np.testing.assert_allclose(distances, np.sqrt(squares[order]), rtol=1e-5)
    np.testing.assert_allclose(squares[near], squares[order], rtol=1e-5)


def test_two_sessions_on_one_table_see_each_other(tmp_path):
    frame, wrong = people()
    one, other = (session_of(tmp_path / "d.sqlite", frame) for _ in range(2))
    row = int(wrong[0])
    first = one.decide(row, "wrong", seen=0)
    assert first["replaced"] is None
    # The other page has not seen it: its own decision holds, and it is told.
    second = other.decide(row, "right", seen=0)
    assert second["replaced"]["verdict"] == "wrong"
    assert one.detail(row)["decision"]["verdict"] == "right"
    # A note of a page that has not seen the verdict leaves it.
    third = one.decide(row, note="asked the clinic", seen=first["decision"]["version"])
    assert third["decision"]["verdict"] == "right"
    assert [d["verdict"] for d in other.detail(row)["history"]] == ["wrong", "right", "right"]
    assert one.state()["version"] == other.state()["version"] == 3
    # A third run, later, on the table with a row less.
    for session in (one, other):
        session.close()
    shorter = frame.drop(frame.index[wrong[1]])
    third = session_of(tmp_path / "d.sqlite", shorter)
    place = shorter.index.get_loc(frame.index[row])
    assert third.detail(place)["decision"]["note"] == "asked the clinic"
    third.close()
    gone = session_of(tmp_path / "d.sqlite", frame.drop(frame.index[row]))
    assert gone.state()["elsewhere"] == 1
    assert b"asked the clinic" in gone.decided().content  # still in the file of decisions
    gone.close()


def test_a_fit_gets_the_decisions(tmp_path):
    models = []

    def new_model():
        models.append(Medians())
        return models[-1]

    frame, wrong = people()
    session = session_of(tmp_path / "d.sqlite", frame, new_model=new_model)
    assert models[0].asked["sample_weight"] is None
    rejected, cells, trusted, unsure = map(int, wrong[:4])
    session.decide(rejected, "wrong")
    session.decide(cells, "cells", ["weight"])
    session.decide(trusted, "right")
    session.decide(unsure, "unsure")
    assert session.state()["since_fit"] == 4
    assert session.refit()
    session.wait()
    assert session.state()["since_fit"] == 0
    asked = models[1].asked
    assert np.flatnonzero(asked["sample_weight"] == 0).tolist() == [rejected]
    assert np.flatnonzero(asked["trusted"]).tolist() == [trusted]
    assert np.argwhere(asked["y"].isna().to_numpy()).tolist() == [[cells, 0]]
    # The page still shows what the table gives, and that the rejected cell is wrong.
    detail = session.detail(cells)
    assert detail["given"][0] == frame["weight"].iloc[cells]
    assert detail["off"] == [True, False]
    assert detail["flagged"]
    assert not session.detail(trusted)["flagged"]
    session.close()


def test_cleaned_table_and_decisions(case):
    session, frame, wrong = case
    rejected, cells, right, noted = map(int, wrong[:4])
    session.decide(rejected, "wrong", note='said "no", twice')
    session.decide(cells, "cells", ["weight"])
    session.decide(right, "right")
    session.decide(noted, note="only a note")
    file, changes = session.cleaned()
    assert (file.name, changes.name) == ("people.clean.csv", "people.changes.csv")
    # Byte by byte the table, but for what was rejected.
    lines = session.table.path.read_bytes().splitlines(keepends=True)
    blanked = lines[cells + 1].replace(str(frame["weight"].iloc[cells]).encode(), b"")
    assert len(blanked) < len(lines[cells + 1])
    kept = [blanked if k == cells + 1 else line for k, line in enumerate(lines)]
    assert file.content == b"".join(line for k, line in enumerate(kept) if k != rejected + 1)
    # The log leads back.
    path, log = session.table.path.with_name(file.name), session.table.path.with_name(changes.name)
    path.write_bytes(file.content)
    log.write_bytes(changes.content)
    assert restore_file(path, read_log(log)) == session.table.path.read_bytes()
    clean = pd.read_csv(io.BytesIO(file.content), index_col=0)
    strict = pd.read_csv(io.BytesIO(session.cleaned(drop_flagged=True)[0].content), index_col=0)
    undecided = {frame.index[k] for k in wrong[3:]}
    assert set(clean.index) - set(strict.index) == undecided
    made = pd.read_csv(io.BytesIO(session.decided().content)).set_index("row")
    assert made.loc[rejected, "note"] == 'said "no", twice'
    assert made.loc[cells, "cells"] == "weight"
    assert made["verdict"].fillna("").to_dict() == {
        rejected: "wrong", cells: "cells", right: "right", noted: ""
    }  # fmt: skip
    assert (made["line"] == made.index + 2).all()


class Slow(Medians):
    """A fit of many steps."""

    begun, steps = threading.Event(), 0

    def fit(self, X, y, **asked):
        for _ in track(range(1000), 1000, "slow work", show=False):
            Slow.steps += 1
            Slow.begun.set()
            time.sleep(0.005)
        return super().fit(X, y, **asked)


def test_progress_is_told_and_a_fit_can_be_stopped(tmp_path):
    frame, _ = people()
    session = session_of(tmp_path / "d.sqlite", frame)
    session._new_model = Slow
    assert session.refit()
    assert Slow.begun.wait(10)
    assert not session.refit()  # one at a time
    time.sleep(0.05)
    told = session.state()["fit"]
    assert (told["state"], told["step"], told["total"]) == ("fitting", "slow work", 1000)
    assert 0 < told["done"] < 1000
    assert session.page("all")["total"] == len(frame)  # the last findings stay to work on
    assert session.close()
    assert Slow.steps < 900


def test_listeners_are_told_and_end_with_the_block():
    told = []
    with listening(lambda *news: told.append(news)):
        assert list(track("ab", 2, "x", show=False)) == ["a", "b"]
    assert told == [("x", 0, 2), ("x", 1, 2), ("x", 2, 2)]
    list(track("ab", 2, "x", show=False))
    assert len(told) == 3


class Broken(Medians):
    def fit(self, X, y, **asked):
        raise ValueError(f"no fit of\n{EVIL}")


def test_a_fit_that_fails_is_said(tmp_path):
    session = session_of(tmp_path / "d.sqlite", new_model=Broken)
    fit = session.state()["fit"]
    assert fit == {"state": "failed", "message": f"no fit of {EVIL}"}
    assert session.page()["rows"] == []
    with pytest.raises(LookupError, match="first fit"):
        session.detail(0)
    assert session.refit()
    session.wait()
    session.close()


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_paged_within_a_second(tmp_path):
    """A page, a row, a decision and the state: each well within the second that is allowed."""
    frame, _ = people(100_000, 2_000)
    session = session_of(tmp_path / "d.sqlite", frame)
    place = session.page("flagged", count=200)["rows"][-1]["place"]
    for k in range(200):
        session.decide(k, "right")
    seconds = {}
    for name, work in {
        "first": lambda: session.page("todo"),
        "later": lambda: session.page("todo", after=place),
        "all": lambda: session.page("all", after=90_000),
        "find": lambda: session.page("all", find="9999"),
        "row": lambda: session.detail(5),
        "decide": lambda: session.decide(5, "right"),
        "state": lambda: session.state(),
    }.items():
        start = time.process_time()
        work()
        seconds[name] = time.process_time() - start
    assert max(seconds.values()) < 1.0, seconds
    session.close()


def test_a_real_fit_respects_the_decisions(tmp_path):
    """Rows found right stay in the fit of a RobustELM, and are flagged no more."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, size=(80, 2))
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame["t"] = X[:, 0] + X[:, 1] ** 2 + 0.05 * rng.normal(size=80)
    frame.loc[[3, 30], "t"] += [8.0, -9.0]
    robust = RobustELMRegressor(effort="fast", n_hidden=15, missing_targets="ignore")
    session = session_of(
        tmp_path / "d.sqlite", frame, ["t"], lambda: TableRegressor(robust, random_state=0)
    )
    assert session.state()["fit"]["state"] == "done", session.state()["fit"]
    assert {row["row"] for row in session.page("flagged")["rows"][:2]} == {3, 30}
    session.decide(3, "right")
    session.decide(30, "wrong")
    session.refit()
    session.wait()
    assert session.state()["fit"]["state"] == "done", session.state()["fit"]
    assert not session.detail(3)["flagged"]
    assert session.detail(30)["flagged"]
    session.close()
