"""A cleaned table and its log are the table as it was; nothing else changes."""

import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gorelm
from gorelm import RobustELMRegressor, TableRegressor
from gorelm.cleaning import (
    apply,
    apply_to_file,
    plan,
    read_log,
    restore,
    restore_file,
    write_log,
)
from gorelm.datasets import make_multitarget, read_table
from gorelm.findings import Names

WORDS = st.text("abc,;\t|\"'\n\r é%=?{}", max_size=6)
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "latin-1"]


def changes_of(rows):
    """Return changes as `plan` makes them: (row, column or "", given, new)."""
    entries = [
        [row, row + 2, f"id {row}", column, given, new, "because"]
        for row, column, given, new in rows
    ]
    columns = ["row", "line", "id", "column", "given", "new", "why"]
    return pd.DataFrame(entries, columns=columns).sort_values("row", kind="stable")


@st.composite
def text_tables(draw):
    """Return the bytes of a CSV file, its targets t and u as numbers, and the separator."""
    separator = draw(st.sampled_from([",", ";", "\t", "|"]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    n_rows = draw(st.integers(1, 6))
    mark = "," if separator == ";" and draw(st.booleans()) else "."
    encoding = draw(st.sampled_from(ENCODINGS))
    ids = draw(st.booleans())

    def quoted(text):
        needed = any(c in text for c in f'{separator}"\n\r') or text.startswith(" ")
        if needed or draw(st.booleans()):
            return '"' + text.replace('"', '""') + '"'
        return text

    # one word of letters, so that the separator and the encoding can be told
    lines = [separator.join(["", "a é", "t", "b", "u"][1 - ids :])]
    T = np.round(draw(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2),
                               min_size=n_rows, max_size=n_rows)), 3)  # fmt: skip
    for i in range(n_rows):
        numbers = [repr(x).replace(".", mark) for x in T[i].tolist()]
        cells = [draw(WORDS), numbers[0], draw(WORDS), numbers[1]]
        cells = [quoted(cell) for cell in ([f"r{i}"] if ids else []) + cells]
        cells[-1] = " " * draw(st.integers(0, 2)) + cells[-1]
        blank = "".join(
            draw(st.lists(st.sampled_from(["", "  "]).map(lambda b: b + end), max_size=2))
        )
        lines.append(blank + separator.join(cells))
    text = end.join(lines) + draw(st.sampled_from(["", end, end + end]))
    bom = "\ufeff" if encoding.startswith("utf-16") else ""
    return (bom + text).encode(encoding), T


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("clean")


def written(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.filterwarnings("ignore:.*read as Latin-1")
@given(text_tables(), st.data())
def test_a_cleaned_file_and_its_log_are_the_file_as_it_was(folder, table, data):
    content, T = table
    name = data.draw(st.sampled_from(["t.csv", "t.csv.gz"]))
    path = written(folder / name, content)
    dropped = set(data.draw(st.lists(st.integers(0, len(T) - 1), unique=True)))
    changes = [(row, "", np.nan, np.nan) for row in dropped]
    for row in set(range(len(T))) - dropped:
        for j, target in enumerate("tu"):
            how = data.draw(st.sampled_from(["keep", "blank", "expected"]))
            new = {"blank": np.nan, "expected": 12.3456}.get(how)
            if new is not None:
                changes.append((row, target, T[row, j], new))
    after, log = apply_to_file(path, changes_of(changes))
    clean = written(folder / f"clean-{name}", after)
    (folder / "log.csv").write_bytes(write_log(log))
    log = read_log(folder / "log.csv")
    assert restore_file(clean, log) == content

    # The clean file reads as the table without the rows and with the cells changed.
    if len(dropped) < len(T):
        before, now = read_table(path), read_table(clean)
        stay = [row for row in range(len(T)) if row not in dropped]
        assert now.index.tolist() == before.index[stay].tolist() or isinstance(
            now.index, pd.RangeIndex
        )
        for column in (0, 2):
            old, new = before.iloc[stay, column], now.iloc[:, column]
            assert old.astype(str).tolist() == new.astype(str).tolist()
        by_cell = {(row, column): new for row, column, _, new in changes}
        for j, target in enumerate("tu"):
            expected = [by_cell.get((row, target), T[row, j]) for row in stay]
            np.testing.assert_allclose(now[target].astype(float), expected, atol=0.06)


def test_untouched_bytes_stay(tmp_path):
    content = (
        b'\xef\xbb\xbf"name", x ,"y"\r\n'
        b'"007", 1.50,"2"\r\n'
        b"\r\n"
        b"'q', 1e3,  3 \r\n"
        b'"a ""b""\r\nc",0x1,"4.0"'
    )
    path = written(tmp_path / "t.csv", content)
    after, log = apply_to_file(path, changes_of([(0, "y", 2.0, np.nan), (1, "", np.nan, np.nan)]))
    assert after == content.replace(b'"2"', b'""').replace(b"\r\n\r\n'q', 1e3,  3 ", b"")
    assert log["old"].tolist()[:2] == ["2", "\r\n\r\n'q', 1e3,  3 "]
    after, _ = apply_to_file(path, changes_of([(2, "y", 4.0, 7.123)]))
    assert after == content.replace(b'"4.0"', b'"7.1"')
    with pytest.raises(ValueError, match="is '2', not 5"):
        apply_to_file(path, changes_of([(0, "y", 5.0, np.nan)]))


ARFF = b"""% a table
@relation r
@attribute a real
@attribute w {x, 'y z'}
@attribute t real
@data
1, x, 2.5
% a comment
2,'y z', 3.25

3, x, 4
"""


def test_arff(tmp_path):
    path = written(tmp_path / "t.arff", ARFF)
    changes = changes_of([(0, "t", 2.5, np.nan), (1, "", np.nan, np.nan), (2, "t", 4.0, 9.8765)])
    after, log = apply_to_file(path, changes)
    clean = written(tmp_path / "c.arff", after)
    assert restore_file(clean, log) == ARFF
    np.testing.assert_array_equal(read_table(clean)["t"], [np.nan, 9.88])
    sparse = written(tmp_path / "s.arff", ARFF.replace(b"1, x, 2.5", b"{0 1, 2 2.5}"))
    with pytest.raises(ValueError, match="has no cell 3"):
        apply_to_file(sparse, changes)


def test_a_file_that_was_changed_since_is_refused(tmp_path):
    path = written(tmp_path / "t.csv", b"a,t\n1,2\n3,4\n")
    after, log = apply_to_file(path, changes_of([(0, "t", 2.0, np.nan)]))
    clean = written(tmp_path / "c.csv", after.replace(b"3", b"5"))
    with pytest.raises(ValueError, match="not as it was when the log was written"):
        restore_file(clean, log)
    clean.write_bytes(after)
    with pytest.raises(ValueError, match="does not belong"):
        restore_file(clean, log.replace({"old": {"2": "2.0"}}))
    with pytest.raises(ValueError, match="is no log of changes"):
        read_log(path)


# -- frames --------------------------------------------------------------------------------------

COLUMNS = {
    "int": np.array([1, 2**53, -3, 4]),
    "float": np.array([0.1 + 0.2, np.nan, 1e300, -0.0]),
    "bool": np.array([True, False, True, True]),
    "text": ["a", None, 'b"\n', ""],
    "category": pd.Categorical(["x", "y", "x", None]),
    "date": pd.DatetimeIndex(["2004-01-01", None, pd.Timestamp(946684799123456789), "2000-01-01"]),
    "nullable": pd.array([1, None, 3, 2**60 + 1], dtype="Int64"),
}
NUMBERS = ["int", "float", "bool", "nullable"]


@given(st.data())
def test_a_cleaned_frame_and_its_log_are_the_frame_as_it_was(folder, data):
    index = data.draw(st.sampled_from([range(4), list("abcd"), [7, 3, 9, 1]]))
    table = pd.DataFrame(COLUMNS, index=pd.Index(index, name="key"))
    dropped = set(data.draw(st.lists(st.integers(0, 3), unique=True, max_size=3)))
    cells = st.tuples(
        st.sampled_from(sorted(set(range(4)) - dropped)),
        st.sampled_from(NUMBERS),
        st.just(0.0),
        st.sampled_from([np.nan, 1.0]),
    )
    changes = [(row, "", np.nan, np.nan) for row in dropped]
    changes += data.draw(st.lists(cells, max_size=6, unique_by=lambda c: c[:2]))
    before = table.copy(deep=True)
    after, log = apply(table, changes_of(changes))
    pd.testing.assert_frame_equal(table, before)
    assert len(after) == 4 - len(dropped)
    (folder / "frame.csv").write_bytes(write_log(log))
    for entries in (log, read_log(folder / "frame.csv")):
        restored = restore(after, entries)
        pd.testing.assert_frame_equal(restored, table, check_index_type=False)


def test_very_large_integers_stay_exact():
    table = pd.DataFrame({"a": [2**60 + 1, 2, 3], "t": [1.0, 2.0, 3.0]})
    after, log = apply(table, changes_of([(1, "a", 2.0, np.nan), (2, "", np.nan, np.nan)]))
    assert after["a"].tolist() == [2**60 + 1, pd.NA]
    assert restore(after, log)["a"].tolist() == table["a"].tolist()


def test_what_a_log_cannot_hold_is_refused():
    table = pd.DataFrame({"a": [[1], [2]], "t": [1.0, 2.0]})
    with pytest.raises(ValueError, match="hold a list cannot be logged"):
        apply(table, changes_of([(0, "", np.nan, np.nan)]))
    with pytest.raises(ValueError, match="rows beyond the 2"):
        apply(table, changes_of([(2, "t", 1.0, np.nan)]))
    with pytest.raises(ValueError, match="0 columns named 'u'"):
        apply(table, changes_of([(0, "u", 1.0, np.nan)]))


def test_a_frame_that_was_changed_since_is_refused():
    table = pd.DataFrame({"a": [1, 2], "t": [1.0, 2.0]})
    after, log = apply(table, changes_of([(0, "t", 1.0, 5.0)]))
    after.loc[0, "t"] = 6.0
    with pytest.raises(ValueError, match=r"row 0 is not 5\.0"):
        restore(after, log)


# -- the plan ------------------------------------------------------------------------------------


def found_in(kinds, flags):
    """Return findings of two targets, t and u, of given kinds and flags."""
    of = Names(["t", "u"])
    n = len(kinds)
    found = pd.DataFrame({of.row: range(n), of.kind: kinds, of.certain: True})
    for j, name in enumerate("tu"):
        found[name] = np.arange(n) + 10.0 * j
        found[of.expected(name)] = found[name] - 100
        found[of.score_of(name)] = 1.0 + j
        found[of.flagged_of(name)] = [flag[j] for flag in flags]
    return found.iloc[::-1], of


@pytest.mark.parametrize("rows", ["drop", "keep"])
@pytest.mark.parametrize("cells", ["blank", "expected", "keep"])
def test_what_becomes_of_rows_and_cells(rows, cells):
    kinds = ["", "row", "cell", "duplicate", "input"]
    flags = [(0, 0), (1, 1), (0, 1), (0, 0), (0, 0)]
    found, of = found_in(kinds, [tuple(map(bool, flag)) for flag in flags])
    changes = plan(found, of, ["t", "u"], rows=rows, cells=cells)
    expected = []
    if rows == "drop":
        expected.append((1, ""))
    elif cells != "keep":
        expected += [(1, "t"), (1, "u")]
    if cells != "keep":
        expected.append((2, "u"))
    assert list(zip(changes["row"], changes["column"], strict=True)) == expected
    new = changes.loc[changes["column"] != "", "new"]
    if cells == "expected":
        assert new.iloc[-1] == 12.0 - 100
    assert cells == "expected" or new.isna().all()
    assert changes["why"].str.contains("expected").all()
    assert changes["id"].tolist() == changes["row"].tolist()


def test_of_a_wrong_row_without_a_wrong_cell_the_worst_target_is_named():
    found, of = found_in(["", "row"], [(False, False), (False, False)])
    (why,) = plan(found, of, ["t", "u"])["why"]
    assert why == "wrong row: u 11, expected -89"


def test_what_is_only_suspicious_stays():
    found, of = found_in(["row", "cell", "cell"], [(True, True), (True, False), (False, True)])
    found[of.certain] = [True, False, False]  # the last row alone
    assert plan(found, of, ["t", "u"])["row"].tolist() == [2]
    every = plan(found, of, ["t", "u"], suspicious="change")
    assert list(zip(every["row"], every["column"], strict=True)) == [(0, ""), (1, "t"), (2, "u")]


@pytest.mark.parametrize("option", [{"rows": "blank"}, {"cells": "drop"}, {"suspicious": "drop"}])
def test_unknown_options(option):
    found, of = found_in(["row"], [(True, True)])
    with pytest.raises(ValueError, match="must be one of"):
        plan(found, of, ["t", "u"], **option)


def test_clean_drops_what_is_wrong_and_nothing_else():
    data = make_multitarget(150, 4, 2, outlier_ratio=0, noise=0.2, random_state=0)
    table = pd.DataFrame(data.X.round(3), columns=list("abcd")).assign(
        t=data.T[:, 0].round(2), u=(100 * data.T[:, 1]).round().astype(int)
    )
    table.index = [f"r{i}" for i in range(150)]
    table.loc["r7", ["t", "u"]] = [60.0, 6000]
    before = table.copy()
    small = TableRegressor(RobustELMRegressor(n_hidden=30, effort="fast"), random_state=0)
    cleaned = gorelm.clean(table, ["t", "u"], estimator=small)
    pd.testing.assert_frame_equal(table, before)
    assert "r7" not in cleaned.table.index
    kinds = cleaned.findings["gorelm.kind"]
    assert len(cleaned.table) == 150 - (kinds == "row").sum() > 145
    pd.testing.assert_frame_equal(restore(cleaned.table, cleaned.log), table)
    kept = gorelm.clean(table, "t,u", estimator=small, rows="keep", cells="expected")
    assert len(kept.table) == 150
    value = kept.table.loc["r7", "t"]
    expected = kept.findings.loc["r7", "gorelm.expected.t"]
    assert value == round(expected, 2)
    assert kept.table["u"].dtype == table["u"].dtype
    pd.testing.assert_frame_equal(restore(kept.table, kept.log), table)
