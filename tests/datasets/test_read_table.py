import builtins
import datetime
import decimal
import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from gorelm.datasets import load_mulan, load_table, read_table

nan = np.nan
HOUSES = """\
size,colour,price,weight
1,red,10,2.5
2,?,20,3.5
,blue,30,4.5
4,blue,40,5.5
"""


def write(folder, text=HOUSES, name="houses.csv"):
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


def same_table(folder, suffix):
    """HOUSES in another kind of file."""
    frame = pd.read_csv(write(folder), na_values="?")
    path = folder / f"houses{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    elif suffix.startswith(".arff"):
        rows = [line.replace(",,", ",?,") for line in HOUSES.splitlines()[1:]]
        rows[2] = "?" + rows[2]
        kinds = ["numeric", "{blue,red}", "numeric", "numeric"]
        head = [f"@attribute {name} {kind}" for name, kind in zip(frame, kinds, strict=True)]
        write(folder, "\n".join(["@relation r", *head, "@data", *rows]), path.name)
    else:
        separator = {".tsv": "\t"}.get(suffix, ",")
        write(folder, HOUSES.replace(",", separator), path.name)
    return path


KINDS = [".csv", ".csv.gz", ".tsv", ".parquet", ".arff", ".arff.gz"]


@pytest.mark.parametrize("suffix", KINDS)
def test_every_kind_of_file(tmp_path, suffix):
    houses = load_table(same_table(tmp_path, suffix), ["price", "weight"])
    assert_array_equal(houses.data, [[1, 1], [2, nan], [nan, 0], [4, 0]])
    assert_array_equal(houses.target, [[10, 2.5], [20, 3.5], [30, 4.5], [40, 5.5]])
    assert houses.data.dtype == houses.target.dtype == np.float64
    assert houses.feature_names == ["size", "colour"]
    assert houses.target_names == ["price", "weight"]
    assert houses.categories == {"colour": ["blue", "red"]}
    assert houses.frame is None
    assert "4 rows in the file, 2 of them with missing values (kept)" in houses.DESCR


@pytest.mark.parametrize("suffix", KINDS)
def test_frames_and_dropped_rows(tmp_path, suffix):
    houses = load_table(same_table(tmp_path, suffix), 2, drop_missing=True, as_frame=True)
    assert houses.frame.to_dict("list") == {
        "size": [1, 4],
        "colour": ["red", "blue"],
        "price": [10, 40],
        "weight": [2.5, 5.5],
    }
    assert list(houses.data["colour"].cat.categories) == ["blue", "red"]
    assert list(houses.frame.index) == list(houses.target.index) == [0, 3]
    assert list(houses.data.columns) == ["size", "colour"]
    assert list(houses.target.columns) == ["price", "weight"]


@pytest.mark.parametrize(
    "targets", [["weight", "price"], ("weight", "price"), "weight,price", " weight , price "]
)
def test_ways_to_name_targets(tmp_path, targets):
    houses = load_table(write(tmp_path), targets)
    assert houses.target_names == ["weight", "price"]
    assert_array_equal(houses.target[0], [2.5, 10])
    assert houses.feature_names == ["size", "colour"]


@pytest.mark.parametrize("number", [1, np.int64(1)])
def test_targets_by_number_are_the_last_columns(tmp_path, number):
    houses = load_table(write(tmp_path), number)
    assert houses.target_names == ["weight"]
    assert houses.feature_names == ["size", "colour", "price"]


def test_a_name_with_a_comma(tmp_path):
    path = write(tmp_path, 'a,"b, c"\n1,2\n')
    assert load_table(path, "b, c").target_names == ["b, c"]


@pytest.mark.parametrize("features", [["price", "size"], "price,size"])
def test_features_by_name_and_missing_values_elsewhere(tmp_path, features):
    houses = load_table(write(tmp_path), "weight", features=features, drop_missing=True)
    assert houses.feature_names == ["price", "size"]
    assert_array_equal(houses.data, [[10, 1], [20, 2], [40, 4]])  # a missing colour is no matter
    assert houses.categories == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"targets": "wieght"}, "no column 'wieght'; did you mean 'weight'.*size, colour, price"),
        ({"targets": ["price", "zzz"]}, "no column 'zzz'; known: size, colour, price, weight"),
        ({"targets": 1, "features": "sise"}, "no column 'sise'; did you mean 'size'"),
        ({"targets": [3]}, "no column 3"),
        ({"targets": "price,price"}, "target 'price' is named twice"),
        ({"targets": "price", "features": "size,price"}, "'price' .*both a feature and a target"),
        ({"targets": []}, "No target is named"),
        ({"targets": 1, "features": []}, "No feature is named"),
        ({"targets": 0}, "a number from 1 to 3.*got 0"),
        ({"targets": 4}, "a number from 1 to 3.*got 4"),
        ({"targets": True}, "a number from 1 to 3.*got True"),
        ({"targets": "size,colour,price,weight"}, "no column left for a feature"),
        ({"targets": "colour"}, "Target 'colour' of .* is not numeric.*blue, red"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".arff"])
def test_unfit_choices_of_columns(tmp_path, suffix, arguments, message):
    with pytest.raises(ValueError, match=message):
        load_table(same_table(tmp_path, suffix), **arguments)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", ", ", " ; "])
def test_separators(tmp_path, separator):
    text = separator.join(["a", '"b;c,d"', "e"]) + "\n" + separator.join(["1", "2.5", "x y"]) + "\n"
    table = load_table(write(tmp_path, text), "a")
    assert table.feature_names == ["b;c,d", "e"]
    assert_array_equal(table.data, [[2.5, 0]])
    assert table.categories == {"e": ["x y"]}


def test_decimal_commas(tmp_path):
    path = write(tmp_path, "a;b;c;word\n1,5;2;-1,5e3;x,y\n?;,25;7;z\n")
    table = load_table(path, "a")
    assert_array_equal(table.target, [[1.5], [nan]])
    assert_array_equal(table.data, [[2, -1500, 0], [0.25, 7, 1]])
    assert table.categories == {"word": ["x,y", "z"]}


def test_words_with_commas_are_no_decimals(tmp_path):
    table = load_table(write(tmp_path, "a;b\n1.5;1,2,3\n2;4,5,6\n"), "a")
    assert table.categories == {"b": ["1,2,3", "4,5,6"]}
    assert_array_equal(table.target, [[1.5], [2]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n4,5,6\n", "starts with numbers.*names of the columns"),
        ("", "does not start with a line of column names"),
        ("\na,b\n1,2\n", "does not start with a line of column names"),
        ("a,b,a\n1,2,3\n", "more than one column named 'a'"),
        (",1.5,2.5\n1,2,3\n", "starts with numbers"),
        ("a,b\n1,2\n1,2,3\n", "not a readable CSV file"),
        ("a,b\n1,2,3\n4,5,6\n", "not a readable CSV file"),
    ],
)
def test_unfit_csv_files(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_table(write(tmp_path, text), 1)


def test_columns_without_a_name_are_called_by_their_place(tmp_path):
    path = write(tmp_path, "a,,b,\n0,1,2,\n3,4,5,\n")
    with pytest.warns(UserWarning, match="without a name; they are called column 2, column 4"):
        table = read_table(path)
    assert list(table) == ["a", "column 2", "b", "column 4"]
    assert table["column 2"].tolist() == [1, 4]
    taken = write(tmp_path, "a,,column 2\n0,1,2\n")
    with (
        pytest.warns(UserWarning, match="without a name"),
        pytest.raises(ValueError, match="more than one column named 'column 2'"),
    ):
        read_table(taken)


def test_broken_files(tmp_path):
    good = write(tmp_path, "a,b\n" + "".join(f"{i},{i * i}\n" for i in range(9999)), "t.csv.gz")
    good.write_bytes(good.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is a broken gzip file"):
        load_table(good, 1)
    with pytest.raises(ValueError, match="is no text file: it has NUL bytes"):
        load_table(write(tmp_path, name="plain.csv.gz").rename(tmp_path / "gzipped.csv"), 1)
    with pytest.raises(ValueError, match="not a readable Parquet file"):
        load_table(write(tmp_path, name="text.parquet"), 1)
    with pytest.raises(ValueError, match=r"unknown kind.*\.csv, .*\.parquet, .*\.arff"):
        load_table(write(tmp_path, name="houses.xlsx"), 1)
    with pytest.raises(FileNotFoundError, match=r"There is no file .*absent\.csv"):
        load_table(tmp_path / "absent.csv", 1)


def test_numbers_with_a_stray_word_are_warned_of(tmp_path):
    path = write(tmp_path, "a,b\n1,1\n2,1.5\noops,2\n3,2\n")
    with pytest.warns(UserWarning, match=r"Column 'a' .*read as categories.*'oops'") as caught:
        table = load_table(path, "b")
    assert caught[0].filename == __file__
    assert table.categories == {"a": ["1", "2", "3", "oops"]}
    with (
        pytest.warns(UserWarning, match="'oops'"),
        pytest.raises(ValueError, match=r"Target 'a' .*not numeric"),
    ):
        load_table(path, "a")


def test_columns_of_parquet(tmp_path):
    frame = pd.DataFrame(
        {
            "flag": [True, False, True],
            "flag?": pd.array([True, None, False], dtype="boolean"),
            "n?": pd.array([1, None, 2**40], dtype="Int64"),
            "half": np.array([0.5, nan, 1], dtype=np.float32),
            "kind": pd.Categorical(["b", None, "a"], categories=["c", "b", "a"]),
            "money": [decimal.Decimal("1.25"), None, decimal.Decimal("2")],
            "nothing": [None, None, None],
            "y": [1, 2, 3],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    table = load_table(tmp_path / "t.parquet", "y", as_frame=True)
    assert table.categories == {"kind": ["c", "b", "a"]}
    assert_array_equal(
        load_table(tmp_path / "t.parquet", "y").data,
        [
            [1, 1, 1, 0.5, 1, 1.25, nan],
            [0, nan, nan, nan, nan, nan, nan],
            [1, 0, 2**40, 1, 2, 2, nan],
        ],
    )
    pd.testing.assert_series_equal(table.data["kind"], frame["kind"], check_index_type=False)


def test_dates_are_refused_unless_left_out(tmp_path):
    day = datetime.datetime(2020, 1, 1)
    path = tmp_path / "t.parquet"
    pd.DataFrame({"when": [day, day], "list": [[1], [2]], "x": [1, 2], "y": [3, 4]}).to_parquet(
        path
    )
    with pytest.raises(ValueError, match=r"Column 'when' of .* but datetime64; leave it out"):
        load_table(path, "y", features="when,x")
    with pytest.raises(ValueError, match=r"Column 'list' of .* leave it out"):
        load_table(path, "y", features="list")
    assert_array_equal(load_table(path, "y", features="x", drop_missing=True).data, [[1], [2]])


@pytest.mark.parametrize(
    ("suffix", "absent", "message"),
    [
        (".csv", "pandas", r'needs pandas: pip install "gorelm\[data\]"'),
        (".parquet", "pandas", r'needs pandas: pip install "gorelm\[data\]"'),
        (".arff", "arff", r'needs liac-arff: pip install "gorelm\[data\]"'),
    ],
)
def test_missing_packages_name_the_extra(tmp_path, monkeypatch, suffix, absent, message):
    path = same_table(tmp_path, suffix)
    real_import = builtins.__import__

    def without(name, *args, **kwargs):
        if name == absent:
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=message):
        load_table(path, 1)


def test_missing_parquet_engine_names_the_extra(tmp_path, monkeypatch):
    path = same_table(tmp_path, ".parquet")

    def no_engine(path):
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd, "read_parquet", no_engine)
    with pytest.raises(ImportError, match=r'pyarrow: pip install "gorelm\[data\]"'):
        load_table(path, 1)


@given(arrays(np.float64, (5, 3), elements=st.floats(allow_nan=True, allow_infinity=True)))
def test_numbers_survive_every_kind_of_file(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("table")
    frame = pd.DataFrame(values, columns=["a", "b", "y"])
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        table = load_table(folder / name, "y")
        assert_array_equal(np.hstack([table.data, table.target]), values)


@pytest.mark.data
def test_a_real_set_read_as_a_table(load_real, tmp_path):
    load_real("scpf")
    real = load_mulan("scpf", as_frame=True, download_if_missing=False)
    real.frame.to_csv(tmp_path / "scpf.csv", index=False)
    table = load_table(tmp_path / "scpf.csv", real.target_names)
    assert_array_equal(table.data, real.data)
    assert_array_equal(table.target, real.target)
