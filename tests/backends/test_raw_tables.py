"""TableRegressor on tables that are not in memory: the model in memory."""

from collections import Counter
from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.preprocessing import OneHotEncoder

from gorelm import GORELMRegressorCV, RobustELMRegressor, TableRegressor, stream
from gorelm.datasets.columns import RawColumn
from gorelm.estimators import _raw_tables
from gorelm.estimators._raw_tables import Learnt, Piece, few_words
from gorelm.stream import ParquetTable, RowBlocks

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Column")
N_ROWS = 400
INPUTS = ["number", "text", "count", "flag", "word", "kind", "same", "day"]


@pytest.fixture(autouse=True)
def small_frames(monkeypatch):
    monkeypatch.setattr(stream, "FRAME_ROWS", 77)


@pytest.fixture(scope="module")
def frame():
    """Numbers with gaps, words rare and frequent and missing, numbers as text, useless columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_ROWS, 3))
    # Each rare word is in every fold: without all rows of a word, ridge regressions with hardly a
    # penalty predict these rows by rounding, which differs with the order of sums.
    words = rng.choice(["a", "b", "c", *(f"rare{j}" for j in range(10))], N_ROWS)
    words = np.where(rng.random(N_ROWS) < 0.7, rng.choice(["a", "b"], N_ROWS), words).astype(object)
    words[::13] = None
    text = np.array([f"{v:.3f}" for v in x[:, 1]], dtype=object)
    text[5], text[7:60:9] = "broken", None
    number = x[:, 0].copy()
    number[3::17] = np.nan
    return pandas.DataFrame({
        "number": number,
        "text": text,
        "count": rng.integers(0, 9, N_ROWS),
        "flag": rng.random(N_ROWS) < 0.5,
        "word": words,
        "kind": pandas.Categorical(rng.choice(["u", "v"], N_ROWS)),
        "same": 1.0,
        "day": pandas.date_range("2020-01-01", periods=N_ROWS),
        "y": x[:, 0] + (words == "a") + 0.1 * rng.normal(size=N_ROWS),
        "z": np.where(rng.random(N_ROWS) < 0.1, np.nan, x[:, 1] ** 2),
    })  # fmt: skip


def model():
    robust = RobustELMRegressor(
        effort="fast", n_hidden=30, search_rows=100, n_members=1, missing_targets="ignore"
    )
    return TableRegressor(robust, max_categories=5, random_state=0)


def written(frame, path, n_files):
    if n_files == 1:
        frame.to_parquet(path, row_group_size=90)
        return path
    for number, part in enumerate(np.array_split(np.arange(len(frame)), n_files)):
        folder = path / f"part{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        frame.iloc[part].to_parquet(folder / f"{number}.parquet")
    return path


@pytest.mark.slow_unless(n_files=3)
@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("n_files", [1, 3])
def test_a_stored_table_gives_the_model_in_memory(frame, n_files, tmp_path):
    table = ParquetTable(written(frame, tmp_path / "table.parquet", n_files))
    assert table.shape == (N_ROWS, 10)
    whole = table.frame()
    inputs, targets = list(frame.columns[:-2]), ["y", "z"]
    here = model().fit(whole[inputs], whole[targets])
    X = table.select(inputs)
    there = model().fit(X, table.frame(targets))
    assert there.notes_ == here.notes_
    assert there.kinds_ == here.kinds_
    assert list(there.feature_names_in_) == inputs
    names = [m.encoder_.get_feature_names_out().tolist() for m in (here, there)]
    assert names[0] == names[1]
    assert (there.outlier_mask_ == here.outlier_mask_).all()
    expected = here.predict(whole[inputs])
    assert_allclose(there.predict(whole[inputs]), expected, rtol=0, atol=1e-6)
    assert_allclose(there.predict(X), expected, rtol=0, atol=1e-6)


def test_files_that_disagree_and_lacking_columns_are_named(frame, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    frame.to_parquet(folder / "a.parquet")
    frame.rename(columns={"count": "n"}).to_parquet(folder / "b.parquet")
    with pytest.raises(ValueError, match=r"b.parquet.*disagree"):
        ParquetTable(folder)
    with pytest.raises(ValueError, match="no column 'n'"):
        ParquetTable(folder / "a.parquet", ["n"])
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no Parquet file"):
        ParquetTable(empty)
    with pytest.raises(FileNotFoundError):
        ParquetTable(tmp_path / "nowhere.parquet")


def test_an_index_of_pandas_is_no_column(frame, tmp_path):
    frame.set_index(frame["count"].rename("key")).to_parquet(tmp_path / "t.parquet")
    assert "key" not in ParquetTable(tmp_path / "t.parquet").columns


@given(
    words=st.lists(st.sampled_from([*"abcdefgh", None]), min_size=1, max_size=60),
    max_categories=st.integers(2, 9),
)
def test_few_words_teach_an_encoder_what_all_do(words, max_categories):
    def encoder(cells):
        return OneHotEncoder(
            max_categories=max_categories, handle_unknown="infrequent_if_exist", sparse_output=False
        ).fit(np.array(cells, dtype=object)[:, None])

    few = few_words(Counter(words), max_categories)
    words = [np.nan if word is None else word for word in words]
    few += [few[-1]] * 7  # as in a table with longer columns
    one, two = encoder(words), encoder(few)
    cells = np.array(words, dtype=object)[:, None]
    np.testing.assert_array_equal(one.transform(cells), two.transform(cells))


def test_few_numbers_have_the_median():
    for values in ([3.0], [1.0, 2.0], [1.0, np.nan, 7.0, 8.0]):
        column = Learnt.of([Piece.of(RawColumn(np.array(values)))])
        few = np.array(column.few(5), dtype=float)
        assert np.nanmedian(few) == np.nanmedian(values)
        assert np.isnan(few).any() == np.isnan(values).any()


CELLS = {
    "numbers": st.floats(-5, 5),
    "with gaps": st.sampled_from([0.0, 1.0, 2.5, np.nan, np.inf]),
    "words": st.sampled_from(["a", "b", "c ", "1", "1.0", None]),
    "mixed": st.sampled_from([1, 2.0, "3", "4.5", "six", None, np.nan, True]),
    "days": st.sampled_from([date(2020, 1, 1), date(2021, 1, 1), None]),
}


@pytest.mark.parametrize("kind", CELLS)
@given(data=st.data())
def test_pieces_of_a_column_tell_what_all_of_it_does(kind, data):
    cells = data.draw(st.lists(CELLS[kind], min_size=1, max_size=40))
    cut = data.draw(st.integers(0, len(cells)))

    def column(some):
        floats = all(isinstance(cell, float) for cell in some)
        return RawColumn(np.array(some, dtype=float if floats else object))

    whole = Learnt.of([Piece.of(column(cells))])
    parts = [column(some) for some in (cells[:cut], cells[cut:]) if some]
    assert Learnt.of([Piece.of(part) for part in parts]) == whole or np.isnan(whole.median)
    assert [c for part in parts for c in part.words() if isinstance(c, str)] == [
        c for c in column(cells).words() if isinstance(c, str)
    ]
    assert whole.kind == column(cells).kind


# -- other owners ------------------------------------------------------------------------------


def in_frames(frame, *_):
    """Blocks of 1, 2, 4, ... rows, whose dtypes may differ."""
    ends = np.cumsum([0, *2 ** np.arange(10)])
    return RowBlocks.from_blocks(lambda: (frame.iloc[a:b] for a, b in pairwise(ends)))


def in_dask_frame(frame, *_):
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    return dd.from_pandas(frame, npartitions=3, sort=False)


def for_workers(frame, y):
    pytest.importorskip("distributed", reason="dask is not installed")
    from gorelm.backends.dask import from_arrays

    return from_arrays(frame, y, n_partitions=3)[0]


PLACES = {"blocks of frames": in_frames, "dask frame": in_dask_frame, "for workers": for_workers}


@pytest.fixture
def current_client(request):
    if request.node.callspec.params["place"] == "blocks of frames":
        yield
    else:
        with request.getfixturevalue("client_of_processes").as_current():
            yield


@pytest.fixture(scope="module")
def fitted(frame):
    return model().fit(frame[INPUTS], frame[["y", "z"]])


def same(there, expected, frame):
    assert there.notes_ == expected.notes_
    assert there.kinds_ == expected.kinds_
    assert list(there.feature_names_in_) == INPUTS
    assert (there.outlier_mask_ == expected.outlier_mask_).all()
    assert (there.cell_mask_ == expected.cell_mask_).all()
    assert_allclose(there.outlier_scores_, expected.outlier_scores_, rtol=1e-6, atol=1e-6)
    predicted = expected.predict(frame[INPUTS])
    atol = 1e-6 * np.abs(predicted).max()
    assert_allclose(there.predict(frame[INPUTS]), predicted, rtol=0, atol=atol)
    return predicted, atol


@pytest.mark.usefixtures("current_client")
@pytest.mark.parametrize("place", PLACES)
def test_every_place_gives_the_table_in_memory(place, frame, fitted, monkeypatch):
    monkeypatch.setattr(_raw_tables, "COLUMN_BYTES", 3 * 8 * N_ROWS)  # three columns at a time
    X = PLACES[place](frame[INPUTS], frame[["y", "z"]])
    there = model().fit(X, frame[["y", "z"]])
    predicted, atol = same(there, fitted, frame)
    assert_allclose(np.asarray(there.predict(X)), predicted, rtol=0, atol=atol)
    with pytest.raises(ValueError, match="inconsistent"):
        there.fit(X, frame["y"][1:])
    with pytest.raises(ValueError, match=r"fitted with|feature names"):
        there.predict(PLACES[place](frame[INPUTS[::-1]], frame[["y", "z"]]))


@pytest.mark.usefixtures("current_client")
@pytest.mark.parametrize("place", ["dask frame"])
def test_targets_in_a_dask_frame_and_lazy_predictions(place, frame, fitted, tmp_path):
    dd = pytest.importorskip("dask.dataframe", reason="dask is not installed")
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    written(frame, tmp_path / "rows", 3)
    table = dd.read_parquet(tmp_path / "rows")
    order = ParquetTable(tmp_path / "rows").frame()
    there = model().fit(table[INPUTS], table[["y", "z"]])
    expected = model().fit(order[INPUTS], order[["y", "z"]])
    predicted, atol = same(there, expected, order)
    lazy = there.predict(table[INPUTS])
    assert isinstance(lazy, da.Array)
    assert_allclose(lazy.compute(), predicted, rtol=0, atol=atol)
    one = model().fit(table[INPUTS], table["y"])
    assert one.target_names_ == ["y"]
    assert one.predict(table[INPUTS]).compute().shape == (N_ROWS,)


def test_a_tensor_is_encoded_and_fitted_on_its_device(frame):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    X = frame[["number", "count", "same"]].to_numpy(dtype=float)
    here, there = (model().fit(x, frame["y"].to_numpy()) for x in (X, torch.tensor(X)))
    assert there.notes_ == here.notes_
    assert isinstance(there.predict(torch.tensor(X)), torch.Tensor)
    assert_allclose(there.predict(torch.tensor(X)), here.predict(X), rtol=0, atol=1e-6)


def test_a_search_over_folds_on_blocks_of_frames(frame):
    """Any estimator that takes blocks can be fitted to a raw table in blocks."""
    search = GORELMRegressorCV(n_hidden=10, n_lams=3, cv=2, search_rows=100)
    names = ["number", "word", "flag"]
    here, there = (TableRegressor(search, random_state=0) for _ in range(2))
    here.fit(frame[names], frame["y"])
    there.fit(in_frames(frame[names]), frame["y"])
    assert_allclose(there.predict(frame[names]), here.predict(frame[names]), rtol=0, atol=1e-6)


def test_some_rows_of_blocks_of_frames(frame):
    rows = np.array([0, 3, 4, 77, 399])
    some = in_frames(frame[INPUTS]).take(rows)
    blocks = pandas.concat([block for _, block in some.given()])
    pandas.testing.assert_frame_equal(blocks, frame[INPUTS].iloc[rows])


def test_blocks_of_frames_that_disagree_on_columns(frame, fitted):
    passes = [frame[INPUTS], frame[INPUTS[::-1]]]
    X = RowBlocks(lambda: [passes.pop(0)], N_ROWS, len(INPUTS), INPUTS)
    there = model()
    with pytest.raises(ValueError, match="the block from row 0 on has the columns"):
        there.fit(X, frame["y"])
    assert not hasattr(there, "encoder_")
    again = RowBlocks(lambda: [frame[INPUTS][:-1]], N_ROWS, len(INPUTS), INPUTS)
    with pytest.raises(ValueError, match="the blocks have 399 rows, not 400"):
        there.fit(again, frame["y"])
