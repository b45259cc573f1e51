"""The estimator for raw tables: what it makes of words, gaps and damage, and what it says."""

import datetime
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from gorelm import GORELMRegressor, RELMRegressor, RobustELMRegressor, TableRegressor
from gorelm.datasets import make_multitarget
from gorelm.datasets.columns import columns_of, in_words

pd = pytest.importorskip("pandas", reason="tables are tested as pandas frames")
pl = pytest.importorskip("polars", reason="tables are tested as polars frames")

SMALL = RobustELMRegressor(n_hidden=10, n_members=1, cv=2, missing_targets="ignore")


@parametrize_with_checks([TableRegressor(GORELMRegressor(n_hidden=30))])
@pytest.mark.filterwarnings("ignore:Target 'y'")
def test_scikit_learn(estimator, check):
    check(estimator)


def linear(**params):
    """Return a regressor that is exact on what it is given, so that encodings show."""
    return TableRegressor(LinearRegression(), **params)


def make_frame(n_rows=60, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": rng.normal(size=n_rows),
            "colour": rng.choice(["red", "blue", "green"], n_rows),
            "sold": rng.choice([True, False], n_rows),
        }
    )
    y = frame["size"] + 2.0 * (frame["colour"] == "red") + 3.0 * frame["sold"]
    return frame, y


# -- words ---------------------------------------------------------------------------------------


CONTAINERS = {
    "pandas": lambda frame: frame,
    "categorical": lambda frame: frame.astype({"colour": "category"}),
    "nullable": lambda frame: frame.convert_dtypes(),
    "arrow": lambda frame: frame.convert_dtypes(dtype_backend="pyarrow"),
    "objects": lambda frame: frame.astype(object),
    "polars": pl.from_pandas,
    "polars categorical": lambda f: pl.from_pandas(f.astype({"colour": "category"})),
    "array": lambda frame: frame.to_numpy(),
    "lists": lambda frame: frame.to_numpy().tolist(),
    "text": lambda frame: frame.astype(str),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_the_same_model(container):
    frame, y = make_frame()
    X = CONTAINERS[container](frame)
    if container in ("text", "lists"):  # where True is a word
        X = CONTAINERS[container](frame.astype({"sold": int}))
    model = linear().fit(X, y)
    assert model.kinds_ == ["number", "words", "number"]
    np.testing.assert_allclose(model.predict(X), y, atol=1e-9)
    assert list(model.words().values()) == [["blue", "green", "red"]]


def test_words_are_matched_by_word_not_by_code():
    frame, y = make_frame()
    coded = frame.astype({"colour": pd.CategoricalDtype(["red", "blue", "green"])})
    other = frame.astype({"colour": pd.CategoricalDtype(["green", "violet", "red", "blue"])})
    model = linear().fit(coded, y)
    np.testing.assert_allclose(model.predict(other), y, atol=1e-9)
    np.testing.assert_allclose(model.predict(other[-3:]), y[-3:], atol=1e-9)


def test_codes_declared_as_categories_are_words():
    frame, y = make_frame()
    codes = frame["colour"].map({"red": 1, "blue": 2, "green": 3})
    X = frame.assign(colour=codes.astype("category"))
    model = linear().fit(X, y)
    assert model.kinds_[1] == "words"
    np.testing.assert_allclose(model.predict(X), y, atol=1e-9)
    # the same codes, as they are read from a file that lacks one of them
    np.testing.assert_allclose(model.predict(frame.assign(colour=codes.astype(float))), y)


def test_unseen_words_count_as_none_and_are_said():
    frame, y = make_frame()
    model = TableRegressor(Ridge(alpha=1e-9)).fit(frame, y)
    new = frame.assign(colour="violet")
    with pytest.warns(UserWarning, match=r"unseen category 'violet' in 60 rows.*none of") as caught:
        predicted = model.predict(new)
    assert caught[0].filename == __file__
    # only what the colour adds is unknown, and the same everywhere
    difference = predicted - (frame["size"] + 3.0 * frame["sold"])
    np.testing.assert_allclose(difference, difference[0], atol=1e-6)
    with pytest.warns(UserWarning, match="categories 'pink', 'violet' and 'missing' in 3 rows"):
        model.predict(frame[:4].assign(colour=["red", "violet", "pink", None]))


def test_folds_that_lack_a_word_are_no_news():
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.uniform(size=60).astype(object), ["red", "blue"] * 30])
    table[:3, 1] = "a", "b", "c"  # each in one row: every fold lacks some
    y = table[:, 0].astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = cross_val_score(TableRegressor(Ridge()), table, y, cv=3)
    assert np.isfinite(scores).all()
    model = make_pipeline(TableRegressor(Ridge())).fit(table[3:], y[3:])
    with pytest.warns(UserWarning, match="'a', 'b' and 'c' in 3 rows"):  # a user asks
        model.predict(table)


def test_missing_words_are_a_word():
    frame, y = make_frame()
    for gap in (None, np.nan, pd.NA, "", "  "):
        X = frame.astype({"colour": object})
        X.loc[frame["colour"] == "red", "colour"] = gap
        model = linear().fit(X, y)
        np.testing.assert_allclose(model.predict(X), y, atol=1e-9)
        assert any("without one, which counts as one more" in note for note in model.notes_)


def test_rare_words_are_put_together():
    rng = np.random.default_rng(0)
    towns = [f"t{int(i)}" for i in 30 * rng.beta(0.5, 3, size=300)]
    frame = pd.DataFrame({"town": towns, "x": rng.normal(size=300)})
    model = linear(max_categories=5).fit(frame, frame["x"])
    inputs = model.encoder_.transform(frame[["town", "x"]].to_numpy(object))
    assert inputs.shape[1] == 1 + 5
    common = frame["town"].value_counts().index[:4]
    np.testing.assert_array_equal(inputs[:, 1:5].sum(axis=1) == 1, frame["town"].isin(common))
    assert any("the 4 most frequent" in note for note in model.notes_)
    with pytest.warns(UserWarning, match="'nowhere' in 1 row; counts as a rare category"):
        model.predict(pd.DataFrame({"town": ["nowhere"], "x": [1.0]}))


def test_counters_among_the_inputs_are_said():
    frame, y = make_frame()
    n = len(frame)
    for first, counts in ((0, True), (1, True), (2, False)):
        model = linear().fit(frame.assign(number=np.arange(first, first + n)), y)
        said = any("'number' counts the rows" in note for note in model.notes_)
        assert said == counts
        assert model.kinds_[-1] == "number"  # not dropped
    shuffled = np.random.default_rng(0).permutation(n)
    model = linear().fit(frame.assign(number=shuffled), y)
    assert not any("counts the rows" in note for note in model.notes_)


# -- columns that are left out -------------------------------------------------------------------


def test_columns_that_cannot_tell_rows_apart_are_ignored():
    frame, y = make_frame()
    n_rows = len(frame)
    useless = {
        "name": [f"row {i}" for i in range(n_rows)],
        "same": 7,
        "same word": "x",
        "void": np.nan,
        "blank": "  ",
        "when": pd.date_range("2020", periods=n_rows),
        "day": [datetime.date(2020, 1, 1 + i % 9) for i in range(n_rows)],
        "list": [[i] for i in range(n_rows)],
    }
    X = frame.assign(**useless)
    model = linear().fit(X, y)
    assert model.kinds_ == ["number", "words", "number"] + ["ignored"] * len(useless)
    said = " ".join(model.notes_)
    assert all(repr(name) in said for name in useless)
    assert "'when' and 'day' (dates" in said
    other = X.assign(name="else", same=np.nan, when=None, list=3)
    np.testing.assert_array_equal(model.predict(other), model.predict(X))


def test_nothing_left():
    with pytest.raises(ValueError, match=r"no column of X is left.*'a' \(the same in every row\)"):
        linear().fit(pd.DataFrame({"a": [1, 1, 1]}), [1, 2, 3])


# -- gaps ----------------------------------------------------------------------------------------


def test_gaps_are_filled_with_the_median_of_the_training_rows():
    frame, y = make_frame()
    X = frame.copy()
    X.loc[[3, 7], "size"] = np.nan
    model = linear().fit(X, y)
    filled = X.fillna({"size": X["size"].median()})
    np.testing.assert_allclose(model.predict(X), model.predict(filled))
    new = X[:2].assign(size=np.nan)
    np.testing.assert_allclose(
        model.predict(new), model.predict(new.assign(size=X["size"].median()))
    )
    assert "'size' (2)" in " ".join(model.notes_)


def test_an_input_marks_gaps_where_there_are_enough():
    """Rows whose gap means something are predicted exactly; four gaps are too few to tell."""
    frame, y = make_frame()
    for n_gaps, marked in ((4, False), (5, True)):
        X, shifted = frame.copy(), y.copy()
        X.loc[: n_gaps - 1, "size"] = np.nan
        median = X["size"].median()
        shifted[:n_gaps] += 9.0 + median - frame.loc[: n_gaps - 1, "size"]
        model = linear().fit(X, shifted)
        assert (np.abs(model.predict(X) - shifted).max() < 1e-6) == marked
        assert ("indicator" in " ".join(model.notes_)) == marked


def test_missing_targets_are_used_where_known():
    data = make_multitarget(80, 4, 2, outlier_ratio=0.0, random_state=0)
    y = pd.DataFrame(data.T, columns=["first", "second"])
    y.loc[:9, "first"] = np.nan
    y.loc[10:11] = np.nan
    model = TableRegressor(SMALL, random_state=0).fit(data.X, y)
    expected = clone(SMALL).set_params(random_state=0).fit(data.X, y.to_numpy())
    np.testing.assert_array_equal(model.predict(data.X), expected.predict(data.X))
    assert model.notes_ == [
        "Missing targets: 'first' (12), 'second' (2); the known ones are used.",
        "2 rows without any target had no part in the fit.",
    ]


# -- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage", ["ERR", "inf", float("-inf"), "12 kg", "1e999", 10**400], ids=lambda x: str(x)[:9]
)
def test_damaged_cells_are_missing_and_said(damage):
    frame, y = make_frame()
    X = frame.astype({"size": object})
    X.loc[5, "size"] = damage
    with pytest.warns(UserWarning, match=r"Column 'size': 1 cell is no finite number"):
        model = linear().fit(X, y)
    X.loc[5, "size"] = None
    np.testing.assert_array_equal(model.predict(frame), linear().fit(X, y).predict(frame))
    X.loc[5, "size"] = damage
    with pytest.warns(UserWarning, match="no finite number"):
        assert np.isfinite(model.predict(X)).all()
    dirty = y.astype(object)
    dirty[5] = damage
    ridge = RELMRegressor(n_hidden=10, missing_targets="ignore", random_state=0)
    with pytest.warns(UserWarning, match=r"Target 'y': 1 cell is no finite number"):
        model = TableRegressor(ridge).fit(frame, dirty.rename(None))
    assert model.target_names_ == ["y"]
    assert np.isfinite(model.predict(frame)).all()


def test_a_column_with_many_words_is_one_of_words():
    values = [str(i % 7) for i in range(70)] + ["none"] * 30
    assert columns_of(np.array(values, dtype=object)[:, None])[0].kind == "words"
    assert columns_of(np.array(values[:-15], dtype=object)[:, None])[0].kind == "number"


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", "b"] * 30, r"target 'y' is not numeric: it holds text, such as 'a'"),
        (pd.date_range("2020", periods=60), r"target 'y' is not numeric: it holds dates"),
        (pd.DataFrame({"t": [None] * 60, "u": range(60)}), r"target 't' has no known value"),
        (None, "requires y"),
        (np.zeros(59), "inconsistent numbers of samples"),
    ],
)
def test_unfit_targets(y, message):
    frame, _ = make_frame()
    model = linear()
    with pytest.raises(ValueError, match=message):
        model.fit(frame, y)
    with pytest.raises(NotFittedError):
        model.predict(frame)


CELLS = st.one_of(
    st.none(),
    st.floats(),
    st.integers(),
    st.booleans(),
    st.text(max_size=3),
    st.sampled_from([pd.NA, pd.NaT, np.float32(1), datetime.datetime(2020, 1, 1), [1], {}, b"x"]),
)


@settings(max_examples=60)
@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=8, max_size=8))
def test_any_cells(rows):
    """Whatever is in a table, predictions are finite or the refusal is clear."""
    X = np.empty((8, 2), dtype=object)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            X[i, j] = cell
    y = np.arange(8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            model = TableRegressor(RELMRegressor(n_hidden=3, random_state=0)).fit(X, y)
        except ValueError as error:
            assert "no column of X is left" in str(error)  # noqa: PT017
            return
        assert np.isfinite(model.predict(X)).all()
        frame = pd.DataFrame(X, columns=["a", "b"])
        model.fit(frame, y)
        assert np.isfinite(model.predict(frame[::-1])).all()


# -- as an estimator -----------------------------------------------------------------------------


def test_default_estimator_and_what_it_passes_on():
    data = make_multitarget(90, 4, 2, outlier_ratio=0.2, random_state=0)
    model = TableRegressor(random_state=3).fit(data.X, data.T)
    assert isinstance(model.regressor_, RobustELMRegressor)
    assert model.regressor_.missing_targets == "ignore"
    assert model.regressor_.random_state == 3
    alone = RobustELMRegressor(random_state=3).fit(data.X, data.T)
    np.testing.assert_array_equal(model.predict(data.X), alone.predict(data.X))
    for name in ("outlier_scores_", "outlier_mask_", "outlier_threshold_", "out_of_fold_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(alone, name))
    assert model.contaminated_ == alone.contaminated_
    assert model.target_names_ == ["y0", "y1"]
    assert model.notes_ == []
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(data.X), model.predict(data.X))


def test_effort_is_that_of_the_default_estimator():
    data = make_multitarget(90, 4, 2, outlier_ratio=0.2, random_state=0)
    model = TableRegressor(effort="fast", random_state=3).fit(data.X, data.T)
    assert model.regressor_.effort == "fast"
    assert model.timings_ is model.regressor_.timings_
    alone = RobustELMRegressor(effort="fast", random_state=3).fit(data.X, data.T)
    np.testing.assert_array_equal(model.predict(data.X), alone.predict(data.X))
    own = TableRegressor(RobustELMRegressor(n_hidden=5), effort="fast")
    with pytest.raises(ValueError, match="set it in the estimator instead"):
        own.fit(data.X, data.T)
    nested = clone(own).set_params(effort="default", estimator__effort="fast").fit(data.X, data.T)
    assert nested.regressor_.effort == "fast"


def test_regressors_without_outlier_scores_have_none_to_pass_on():
    frame, y = make_frame()
    assert not hasattr(linear().fit(frame, y), "outlier_scores_")
    assert not hasattr(linear().fit(frame, y), "timings_")
    assert not hasattr(linear(), "outlier_mask_")


def test_weights_are_passed_on():
    frame, y = make_frame()
    weights = np.r_[np.ones(30), np.zeros(30)]
    model = linear().fit(frame, y**2, sample_weight=weights)
    half = linear().fit(frame[:30], y[:30] ** 2)
    np.testing.assert_allclose(model.predict(frame), half.predict(frame), atol=1e-9)


def test_seed_goes_to_an_estimator_without_one():
    frame, y = make_frame()
    model = TableRegressor(RELMRegressor(n_hidden=5), random_state=1).fit(frame, y)
    assert model.regressor_.random_state == 1
    model = TableRegressor(RELMRegressor(n_hidden=5, random_state=2), random_state=1).fit(frame, y)
    assert model.regressor_.random_state == 2
    assert model.estimator.get_params()["random_state"] == 2


def test_columns_of_new_rows_are_checked():
    frame, y = make_frame()
    model = linear().fit(frame, y)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"size": "length"}))
    with pytest.raises(ValueError, match="X has 2 features"):
        linear().fit(frame.to_numpy(), y).predict(frame.to_numpy()[:, :2])
    with pytest.raises(ValueError, match="0 sample"):
        model.predict(frame[:0])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"max_categories": 1}, "max_categories"),
        ({"estimator": 3}, "estimator"),
        ({"effort": "none"}, "effort"),
    ],
)
def test_bad_parameters(params, message):
    frame, y = make_frame()
    with pytest.raises(ValueError, match=message):
        TableRegressor(**params).fit(frame, y)


def test_names_in_words():
    assert in_words(["a"]) == "'a'"
    assert in_words(["a", "b", "c"]) == "'a', 'b' and 'c'"
    assert in_words(list("abcdefghij"), 4) == "'a', 'b', 'c' and 7 others"
    assert in_words(["a name\nthat is far too long 17"]) == "'a name that...oo long 17'"
