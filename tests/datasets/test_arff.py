import gzip
import time

import arff
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from gorelm.datasets import load_mulan, read_arff

nan = np.nan


def write(folder, header, *rows, name="t.arff"):
    text = "\n".join(["% a remark", "@RELATION 'my data'", *header, "@DATA", *rows, ""])
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.arff", "t.arff.gz"])
def test_dense(tmp_path, name):
    path = write(
        tmp_path,
        [
            "@attribute x real",
            "@attribute colour {red, 'light blue', \"green\"}",
            "@attribute y numeric",
        ],
        "1.5, 'light blue', 2",
        "",
        "% a remark among the rows",
        "?,red,-1e-3",
        "3, ?, ?",
        '4,"green",nan',
        name=name,
    )
    relation, columns, table = read_arff(path)
    assert relation == "my data"
    assert [column.name for column in columns] == ["x", "colour", "y"]
    assert [column.kind for column in columns] == ["numeric", "nominal", "numeric"]
    assert [column.categories for column in columns] == [None, ["red", "light blue", "green"], None]
    assert_array_equal(table, [[1.5, 1, 2], [nan, 0, -1e-3], [3, nan, nan], [4, 2, nan]])


def test_sparse_rows_default_to_zero_and_to_the_first_category(tmp_path):
    header = ["@attribute a numeric", "@attribute b {no,yes,'per haps'}", "@attribute c numeric"]
    path = write(tmp_path, header, "{0 2, 2 -1}", "{}", "{1 'per haps', 2 ?}", "{1 ?}", "1,yes,7")
    assert_array_equal(
        read_arff(path)[2], [[2, 0, -1], [0, 0, 0], [0, 2, nan], [0, nan, 0], [1, 1, 7]]
    )


def test_a_category_called_zero_is_not_the_default_of_sparse_rows(tmp_path):
    path = write(tmp_path, ["@attribute b {1,0}"], "{0 0}", "{}", "1")
    assert_array_equal(read_arff(path)[2], [[1], [0], [0]])


def test_integer_columns_are_not_cut_to_whole_numbers(tmp_path):
    path = write(tmp_path, ["@attribute n INTEGER"], "2.75", "-0.5")
    assert_array_equal(read_arff(path)[2], [[2.75], [-0.5]])


@pytest.mark.parametrize(
    ("declared", "name", "categories"),
    [
        ("@attribute 'two words' numeric", "two words", None),
        ('@ATTRIBUTE "a % b, {c}" real', "a % b, {c}", None),
        (r"@attribute 'it\'s' numeric", "it's", None),
        ("@attribute it's numeric", "it's", None),
        ("@attribute\tx\t numeric\t", "x", None),
        ("@attribute Größe numeric", "Größe", None),
        ("@attribute x{7,8}", "x", ["7", "8"]),
        ("@attribute x {a,?}", "x", ["a"]),
        ("@attribute 'x y' {'a' , 'b c','{d}'}", "x y", ["a", "b c", "{d}"]),
        (r"@attribute x {back\slash,'com,ma','it\'s', }", "x", ["back\\slash", "com,ma", "it's"]),
    ],
)
def test_quotes_tabs_and_letters_in_declarations(tmp_path, declared, name, categories):
    _, columns, table = read_arff(write(tmp_path, [declared], "7" if not categories else "?"))
    assert columns == [(name, categories)]
    assert table.shape == (1, 1)


def test_first_line_may_carry_a_mark(tmp_path):
    path = tmp_path / "t.arff"
    path.write_bytes(b"\xef\xbb\xbf@relation r\r\n@attribute x numeric\r\n@data\r\n1\r\n")
    assert_array_equal(read_arff(path)[2], [[1]])


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (
            "@attribute when date 'yyyy-MM-dd'",
            "'2020-01-01'",
            "Column 'when' of .* is not num",
        ),
        ("@attribute 'free text' string", "abc", "Column 'free text' .* 'string'"),
        ("@attribute x relational", "1", "Column 'x' .* 'relational'"),
        ("@attribute x", "1", "not a readable ARFF file: line 3 declares no column"),
        ("@attribute x {a, b c}", "a", "column 'x' cannot be told apart from ' b c'"),
        ("@attribute x {a, b", "a", "column 'x' do not end"),
        ("@attribute x {a,b,a}", "a", "'x' .*declares a category twice"),
        ("@attribute x {a,b}", "c", "not a readable ARFF file: .*c not found.* line 5"),
        ("@attribute x {a,b}", "50%", "not a readable ARFF file: .*line 5"),
        ("@attribute x numeric", "one", "not a readable ARFF file: .*line 5"),
        ("@attribute x numeric", "1,2", "not a readable ARFF file: .*line 5"),
        ("@attribute x numeric", "{3 1}", "not a readable ARFF file: .*line 5"),
        ("@attribute x numeric\n@attribute 'x' real", "1,2", "two columns have the name 'x'"),
        ("", "1", "not a readable ARFF file"),
    ],
)
def test_unfit_files_say_where_and_why(tmp_path, header, row, message):
    with pytest.raises(ValueError, match=message):
        read_arff(write(tmp_path, [header], row))


def test_a_long_faulty_list_of_categories_is_refused_at_once(tmp_path):
    words = ",".join(f"word{i}" for i in range(40))
    path = write(tmp_path, [f"@attribute x {{{words},two words}}"], "word1")
    start = time.perf_counter()
    with pytest.raises(ValueError, match="'two words' on"):
        read_arff(path)
    assert time.perf_counter() - start < 5  # liac-arff alone would take hours


def test_broken_files(tmp_path):
    whole = write(tmp_path, ["@attribute x numeric"], *map(str, range(500)), name="t.arff.gz")
    whole.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(ValueError, match="is a broken gzip file"):
        read_arff(whole)
    plain = tmp_path / "plain.arff.gz"
    plain.write_text("@relation r\n@attribute x numeric\n@data\n1\n")
    with pytest.raises(ValueError, match=r"broken gzip"):
        read_arff(plain)
    latin = tmp_path / "latin.arff"
    latin.write_bytes("@relation r\n@attribute Größe numeric\n@data\n1\n".encode("latin-1"))
    with pytest.warns(UserWarning, match="not UTF-8; read as Latin-1"):
        assert read_arff(latin)[1][0].name == "Größe"
    with pytest.raises(FileNotFoundError):
        read_arff(tmp_path / "absent.arff")


# no control characters: liac-arff writes them as octal escapes of its own
words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6)
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.data(), st.lists(words, min_size=1, max_size=5, unique=True))
def test_what_liac_arff_writes_is_read_back(tmp_path_factory, data, categories):
    categories = [word + "'s, 5% of \\" for word in categories]
    rows = data.draw(
        st.lists(
            st.tuples(numbers, st.none() | st.sampled_from(categories)), min_size=1, max_size=8
        )
    )
    path = tmp_path_factory.mktemp("arff") / "t.arff"
    content = {
        "relation": "r",
        "attributes": [("a b", "REAL"), ("c", categories)],
        "data": [list(row) for row in rows],
    }
    path.write_text(arff.dumps(content), encoding="utf-8")
    _, columns, table = read_arff(path)
    assert columns == [("a b", None), ("c", categories)]
    expected = [
        [nan if x is None else x, nan if word is None else categories.index(word)]
        for x, word in rows
    ]
    assert_array_equal(table, np.array(expected).reshape(-1, 2))


# --- through load_mulan ----------------------------------------------------------------------

FLARES = ["@attribute kind {A,B,C}", "@attribute area numeric"] + [
    f"@attribute {letter}-class numeric " for letter in "cmx"
]
ROWS = ["B, 1, 0, 1, 2", "?, 2, 3, 4, 5", "C, 3, 6, 7, 8"]


def test_nominal_features_of_mulan_sets(tmp_path):
    write(tmp_path, FLARES, *ROWS, name="sf1.arff")
    flares = load_mulan("sf1", data_home=tmp_path)
    assert_array_equal(flares.data, [[1, 1], [2, 3]])
    assert_array_equal(flares.target, [[0, 1, 2], [6, 7, 8]])
    assert flares.categories == {"kind": ["A", "B", "C"]}
    assert flares.frame is None
    assert "2 features, 1 of them nominal; 3 targets: c-class" in flares.DESCR
    assert "(relation 'my data')" in flares.DESCR


@pytest.mark.parametrize("drop_missing", [True, False])
def test_frames(tmp_path, drop_missing):
    write(tmp_path, FLARES, *ROWS, name="sf1.arff")
    flares = load_mulan("sf1", data_home=tmp_path, as_frame=True, drop_missing=drop_missing)
    rows = [0, 2] if drop_missing else [0, 1, 2]
    kinds = flares.data["kind"]
    assert list(kinds.cat.categories) == ["A", "B", "C"]
    assert list(kinds.astype(object).fillna("none")) == [["B", "none", "C"][i] for i in rows]
    assert list(flares.data.columns) == flares.feature_names == ["kind", "area"]
    assert list(flares.target.columns) == flares.target_names
    for frame in (flares.data, flares.target, flares.frame):
        assert list(frame.index) == rows  # of the file, so that a row can be found there
    assert list(flares.frame.columns) == flares.feature_names + flares.target_names
    assert flares.frame["x-class"].tolist() == [[2, 5, 8][i] for i in rows]


def test_nothing_left_without_missing_values(tmp_path):
    write(tmp_path, FLARES, "?, 1, 0, 0, 0", "A, ?, 0, 0, 0", name="sf1.arff")
    with pytest.raises(ValueError, match=r"Every row of .*sf1.arff .*drop_missing=False"):
        load_mulan("sf1", data_home=tmp_path)
    assert load_mulan("sf1", data_home=tmp_path, drop_missing=False).data.shape == (2, 2)
