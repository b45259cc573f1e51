"""TableRegressor on Parquet files and folders that are read in blocks: the model in memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.preprocessing import OneHotEncoder

from gorelm import RobustELMRegressor, TableRegressor, stream
from gorelm.estimators._table_blocks import few_numbers, few_words
from gorelm.stream import ParquetTable

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")
N_ROWS = 400


@pytest.fixture(autouse=True)
def small_frames(monkeypatch):
    monkeypatch.setattr(stream, "FRAME_ROWS", 77)


@pytest.fixture(scope="module")
def frame():
    """Numbers with gaps, words rare and frequent and missing, numbers as text, useless columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N_ROWS, 3))
    words = rng.choice(["a", "b", "c", *(f"rare{j}" for j in range(30))], N_ROWS)
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
@pytest.mark.filterwarnings("ignore:Column")
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

    words = [np.nan if word is None else word for word in words]
    few = few_words(np.array(words, dtype=object), max_categories)
    few += [few[-1]] * 7  # as in a table with longer columns
    one, two = encoder(words), encoder(few)
    cells = np.array(words, dtype=object)[:, None]
    np.testing.assert_array_equal(one.transform(cells), two.transform(cells))


def test_few_numbers_have_the_median():
    for values in ([3.0], [1.0, 2.0], [1.0, np.nan, 7.0, 8.0]):
        few = few_numbers(np.array(values))
        assert np.nanmedian(few) == np.nanmedian(values)
        assert np.isnan(few).any() == np.isnan(values).any()
