"""Files that are broken, hostile or merely odd: a table or a clear error, soon, and never more.

What may be raised is what the command line turns into one line: ValueError and OSError.
"""

import csv
import gzip
import io
import os
import re
import signal
import warnings
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from gorelm.cli import main
from gorelm.datasets import line_numbers, load_table, read_table

CSV = b'a,b c,"d,e",y\n1,red,0.5,2\n2,"dark\nblue",,3\n\n,red,1e3,4\n-4.5,?,7,1e999\n'
ARFF = b"""% a comment
@relation 'two words'
@attribute a numeric
@attribute 'b c' {red, 'dark blue', "it's"}
@attribute y real
@data
1,red,2
?,'dark blue',3
{0 4.5, 1 red, 2 6}
{}
"""
ODD = [
    b"\0",
    b'"',
    b"'",
    b",",
    b";",
    b"\n",
    b"\r",
    b"{",
    b"}",
    b"@data",
    b"@attribute ",
    b"%",
    b"\\",
]
ODD += [
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"inf",
    b"1e999",
    b"9" * 400,
    b"?",
    b"nan",
    b" ",
    b"\t",
]


@contextmanager
def soon(seconds=20):
    """Fail if the block hangs."""

    def stop(*_):
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_in_every_way(path):
    """Read a file; returns the frame, or the error if there is one."""
    with soon(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for read in (lambda: load_table(path, 1), lambda: load_table(path, "y", as_frame=True)):
            try:
                table = read()
                assert table.data.shape[0] == table.target.shape[0]
            except (ValueError, OSError):
                pass
        try:
            frame = read_table(path)
        except (ValueError, OSError) as error:
            return error
        lines = line_numbers(path, len(frame))
        if lines is not None:
            assert (np.diff(lines) > 0).all()
            assert len(lines) == len(frame)
        return frame


@st.composite
def mutated(draw, content):
    """Return the content with a few pieces cut out, doubled, or put in."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(start + 20, len(content))))
        piece = draw(st.sampled_from([*ODD, content[start:end] * 2, draw(st.binary(max_size=5))]))
        content = content[:start] + piece + content[end:]
    return content


@pytest.mark.parametrize(("name", "content"), [("t.csv", CSV), ("t.tsv", CSV), ("t.arff", ARFF)])
def test_mutated_files(tmp_path, name, content):
    path = tmp_path / name

    @given(mutated(content))
    @example(content)
    def check(damaged):
        path.write_bytes(damaged)
        read_in_every_way(path)

    check()


@given(
    st.binary(max_size=60), st.sampled_from([".csv", ".csv.gz", ".arff", ".arff.gz", ".parquet"])
)
def test_any_bytes(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("any") / f"t{suffix}"
    path.write_bytes(content)
    read_in_every_way(path)


@given(damage=st.data())
def test_mutated_compressed_files(tmp_path_factory, damage):
    folder = tmp_path_factory.mktemp("packed")
    pd.DataFrame({"a": [1.0, 2.0], "w": ["x", "y"], "y": [1, 2]}).to_parquet(folder / "t.parquet")
    (folder / "t.csv.gz").write_bytes(gzip.compress(CSV, mtime=0))
    for name in ("t.parquet", "t.csv.gz"):
        content = damage.draw(mutated((folder / name).read_bytes()), name)
        (folder / name).write_bytes(content)
        read_in_every_way(folder / name)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@given(st.lists(st.tuples(st.floats(allow_nan=False), WORDS), min_size=1, max_size=6))
def test_words_numbers_and_lines_of_any_csv(tmp_path_factory, rows):
    """What Python's own writer writes is read back, and found on its line."""
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    starts = []
    writer.writerow(["number", "word"])
    for number, word in rows:
        starts.append(1 + len(re.findall(r"\r\n|\r|\n", text.getvalue())))
        writer.writerow([number, "_" + word])
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    frame = read_table(path, words=["word"])
    assert frame["number"].tolist() == [number for number, _ in rows]
    assert frame["word"].tolist() == ["_" + word for _, word in rows]
    assert line_numbers(path, len(rows)).tolist() == starts


# -- one by one ----------------------------------------------------------------------------------


def declare(*lines):
    return "\n".join(["@relation r", *lines, ""]).encode()


HOSTILE = {
    "one endless line.csv": (b"x" * 20_000_000, "first line has no end"),
    "too wide.csv": (b",".join(b"c%d" % i for i in range(100_001)), "100,001 columns"),
    "long cell in header.csv": (b"x" * 200_000 + b",y\n1,2\n", "line of column names"),
    "NUL.csv": (b"a,y\n1,\x002\n", "NUL bytes"),
    "half UTF-16.csv": (b"\xff\xfea", "marked as UTF-16"),
    "unbalanced.csv": (b'a,y\n1,"2\n3,4\n', "EOF inside string"),
    "ragged.csv": (b"a,y\n1,2\n3,4,5\n", "Expected 2 fields in line 3, saw 3"),
    "twice.csv": (b"a,y,a\n1,2,3\n", "more than one column named 'a'"),
    "empty.csv": (b"", "line of column names"),
    "empty.csv.gz": (b"", "line of column names"),
    "cut.csv.gz": (gzip.compress(CSV)[:-6], "broken gzip"),
    "empty.parquet": (b"", "Parquet file size is 0 bytes"),
    "empty.arff": (b"", "Invalid layout"),
    "sparse index.arff": (
        declare("@attribute a real", "@attribute y real", "@data", "{0 1, 1000000000 2}"),
        "1000000000",
    ),
    "sparse rows.arff": (
        declare(*(f"@attribute a{i} real" for i in range(9000)), "@data", *["{0 1}"] * 9000),
        "81,000,000 cells",
    ),
    "nominal.arff": (
        declare("@attribute a {" + ",".join(map(str, range(200_000))) + "}", "@data", "1"),
        "more than 100,000 categories",
    ),
    "blanks.arff": (
        declare("@attribute a " + " " * 50_000 + "x" + " " * 50_000 + "y", "@data", "1"),
        "not numeric",
    ),
    "backslashes.arff": (declare("@attribute 'a" + "\\" * 50_001, "@data"), "declares no column"),
    "quotes.arff": (declare("@attribute a real", "@data", "'" * 50_001), "Error parsing"),
    "escapes.arff": (declare("@attribute a real", "@data", "'" + "\\'" * 50_000), "Error parsing"),
    "long cell.arff": (declare("@attribute a real", "@data", "1" * 200_000), "field limit"),
    "many names.arff": (
        declare(*(f"@attribute a{i} real" for i in range(30_000)), "@data", "1"),
        "Bad @DATA",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path, name):
    content, message = HOSTILE[name]
    path = tmp_path / name
    path.write_bytes(content)
    result = read_in_every_way(path)
    assert isinstance(result, Exception)
    assert message in str(result)


@pytest.mark.parametrize("name", ["t.csv.gz", "t.arff.gz"])
def test_small_files_that_unfold_without_end(tmp_path, name):
    block = gzip.compress(b"0,0\n" * 2**22)
    with (tmp_path / name).open("wb") as file:
        file.write(gzip.compress(b"a,y\n" if "csv" in name else ARFF))
        file.writelines([block] * 64)  # a gigabyte
    assert (tmp_path / name).stat().st_size < 2e6
    assert "100 times its size" in str(read_in_every_way(tmp_path / name))


def test_small_parquet_files_that_unfold_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("gorelm.datasets.table._MOST_PARQUET_BYTES", 1 << 20)
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": np.zeros(10**6)}).to_parquet(path)
    assert "100 times its size" in str(read_in_every_way(path))


SMALL_ARFF = "@relation r\n@attribute größe real\n@attribute y real\n@data\n1,2\n3,4\n"


def test_odd_but_sound_files(tmp_path):
    sound = {
        "latin.csv": "größe,y\n1,2\n3,4\n".encode("latin-1"),
        "utf16.csv": "größe,y\n1,2\n3,4\n".encode("utf-16"),
        "bom.csv": "\ufeffgröße,y\n1,2\n3,4\n".encode(),
        "crlf.csv": "größe,y\r\n1,2\r\n3,4\r\n".encode(),
        "cr.csv": "größe,y\r1,2\r3,4\r".encode(),
        "unended.csv": "größe,y\n1,2\n3,4".encode(),
        "blank.csv": "größe,y\n\n1,2\n   \n3,4\n\n".encode(),
        "latin.arff": SMALL_ARFF.encode("latin-1"),
        "utf16.arff": SMALL_ARFF.encode("utf-16"),
    }
    for name, content in sound.items():
        (tmp_path / name).write_bytes(content)
        frame = read_in_every_way(tmp_path / name)
        assert list(frame) == ["größe", "y"], name
        assert frame.to_numpy().tolist() == [[1, 2], [3, 4]], name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            lines = line_numbers(tmp_path / name, 2).tolist()
        assert lines == {"blank.csv": [3, 5], "latin.arff": [5, 6], "utf16.arff": [5, 6]}.get(
            name, [2, 3]
        )
    with pytest.warns(UserWarning, match=r"latin\.csv is not UTF-8; read as Latin-1"):
        read_table(tmp_path / "latin.csv")


def test_infinite_and_huge_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"a,b,y\ninf,1,1\n-1e999,{'9' * 400},2\n1,2,3\n")
    frame = read_table(path)
    assert frame["a"].tolist() == [np.inf, -np.inf, 1]
    with pytest.raises(ValueError, match=r"Column 'b' of .* holds an integer beyond all floats"):
        load_table(path, "y")


def test_what_is_no_file(tmp_path):
    folder = tmp_path / "t.csv"
    folder.mkdir()
    with pytest.raises(IsADirectoryError, match=r"t\.csv' is a folder, not a file"):
        read_table(folder)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_table(tmp_path / "absent.csv")
    (tmp_path / "t.xlsx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"unknown kind.*\.csv"):
        read_table(tmp_path / "t.xlsx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(CSV)
    path.chmod(0)
    with pytest.raises(PermissionError):
        read_table(path)


# -- through the command line --------------------------------------------------------------------


def refused(*arguments):
    """Call a command that reads a file; a failure must be told in one line."""
    with soon():
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code in (0, 1, 2), result.exception
    assert "Traceback" not in result.output
    if result.exit_code == 1:
        assert isinstance(result.exception, SystemExit)
        *notes, last = result.stderr.splitlines()
        assert all(note.startswith("note: ") for note in notes)
        assert last.startswith("gorelm: ")
        assert len(last) < 600
    return result


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("command", ["contaminate", "fit", "outliers"])
def test_command_line_on_hostile_files(tmp_path, name, command):
    path = tmp_path / name
    path.write_bytes(HOSTILE[name][0])
    more = ["--ratio", 0.1, "--out", tmp_path / "o.csv"] if command == "contaminate" else []
    assert refused(command, path, "--targets", 1, *more).exit_code == 1


@pytest.mark.parametrize(("name", "content"), [("t.csv", CSV), ("t.arff", ARFF)])
def test_command_line_on_mutated_files(tmp_path, name, content):
    path = tmp_path / name

    @given(mutated(content))
    def check(damaged):
        path.write_bytes(damaged)
        refused("contaminate", path, "--targets", "y", "--ratio", 0.3, "--out", tmp_path / "o.csv")
        refused("fit", path, "--targets", "y")  # too few rows, if nothing else

    check()
