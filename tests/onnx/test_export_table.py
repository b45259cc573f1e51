"""Graphs of tables with categories: strings in, the predictions of the pipeline out."""

import json

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
    TargetEncoder,
)

from gorelm import ConformalRegressor, RELMRegressor, RobustELMRegressor, TableRegressor
from gorelm.onnx import to_onnx
from support.model_cases import rows, small

TEXTS = ["colour", "town"]


def table(n_samples=80):
    """Return a frame with numbers, categories of both kinds, gaps, and its targets."""
    X, T = rows(n_samples)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(X[:, :3], columns=["a", "b", "c"])
    frame.insert(1, "colour", rng.choice(["red", "green", "blue"], n_samples).astype(object))
    frame["grade"] = rng.choice([1, 2, 5], n_samples)
    frame["town"] = rng.choice(["Köln", "Ulm", "Bonn", "x y"], n_samples, p=[0.5, 0.4, 0.05, 0.05])
    frame["town"] = frame["town"].astype(object)
    frame.loc[::9, "a"] = np.nan
    return frame, T


def unseen():
    """Return rows with a gap and a category that no model has seen in every column but a and c."""
    frame = table()[0].head(6).copy()
    frame.loc[0, "colour"], frame.loc[1, "colour"] = "pink", np.nan
    frame.loc[2, "town"], frame.loc[3, "town"] = np.nan, "Rome"
    frame.loc[4, "grade"] = 7
    return frame


def run(model, frame, dtype="float64", output="y"):
    proto = to_onnx(model, dtype)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    about = {entry.key: entry.value for entry in proto.metadata_props}
    feed = {}
    for tensor in session.get_inputs():
        if tensor.name == "X":
            feed["X"] = frame[json.loads(about["columns_of_X"])].to_numpy(dtype)
        else:
            feed[tensor.name] = frame[[tensor.name]].fillna("").to_numpy(object)
    return session.run([output], feed)[0]


NUMBERS = (make_pipeline(SimpleImputer(), StandardScaler()), ["c", "a"])
ENCODERS = {
    "one-hot": OneHotEncoder(handle_unknown="ignore"),
    "dropped": OneHotEncoder(handle_unknown="ignore", drop="first", sparse_output=False),
    "rare": OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=9),
    "ordinal": OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2
    ),
    "target": TargetEncoder(cv=2, random_state=0),
    "filled": make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    ),
    "constant": make_pipeline(
        SimpleImputer(strategy="constant", fill_value="none"),
        OneHotEncoder(handle_unknown="ignore", sparse_output=False),
        StandardScaler(),
    ),
}


@pytest.mark.filterwarnings("ignore:Found unknown categories", "ignore:.*TargetEncoder")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name, dtype):
    frame, T = table()
    T = T[:, 0]
    columns = make_column_transformer(
        NUMBERS,
        (ENCODERS[name], TEXTS),
        (OneHotEncoder(handle_unknown="ignore"), ["grade"]),
        sparse_threshold=0,
    )
    model = make_pipeline(columns, StandardScaler(), small(RELMRegressor)).fit(frame, T)
    for some in (frame, unseen()):
        expected = model.predict(some.astype(dict.fromkeys("abc", dtype)))
        tolerance = 1e-10 if dtype == "float64" else 1e-4
        np.testing.assert_allclose(run(model, some, dtype), expected, rtol=tolerance)


def test_gaps_as_a_category():
    frame, T = table()
    frame.loc[::5, "colour"] = np.nan
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    model = make_pipeline(make_column_transformer((encoder, ["colour"])), small(RELMRegressor))
    model.fit(frame, T)
    assert len(model[0].transformers_[0][1].categories_[0]) == 4
    frame.loc[3, "colour"] = "nan"  # a word like any other
    np.testing.assert_allclose(run(model, frame), model.predict(frame), rtol=1e-10)


def test_the_rest_is_passed_on():
    frame, T = table()
    frame = frame.drop(columns="town").fillna(0.5)
    encoder = ("colour", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["colour"])
    columns = ColumnTransformer([encoder], remainder="passthrough")
    model = make_pipeline(columns, small(RobustELMRegressor)).fit(frame, T)
    np.testing.assert_allclose(run(model, frame), model.predict(frame), rtol=1e-9)


def test_numbers_alone():
    frame, T = table()
    search = GridSearchCV(
        make_pipeline(make_column_transformer(NUMBERS), small(RELMRegressor)),
        {"relmregressor__C": [1.0, 10.0]},
        cv=2,
    ).fit(frame[["a", "b", "c"]], T)
    np.testing.assert_allclose(run(search, frame), search.predict(frame[["a", "b", "c"]]))


def test_estimators_that_are_pipelines_at_heart():
    class Table(BaseEstimator):
        def fit(self, frame, T):
            columns = make_column_transformer(NUMBERS, (ENCODERS["filled"], TEXTS))
            self.columns_, self.model_ = columns, small(RELMRegressor)
            self.model_.fit(columns.fit_transform(frame), T)
            return self

        def predict(self, frame):
            return self.model_.predict(self.columns_.transform(frame))

        def _as_pipeline(self):
            return make_pipeline(self.columns_, self.model_)

    model = Table().fit(*table())
    np.testing.assert_allclose(run(model, unseen()), model.predict(unseen()), rtol=1e-10)


def test_intervals_around_a_table():
    frame, T = table()
    model = ConformalRegressor(TableRegressor(small(RELMRegressor)), random_state=0)
    model.fit(frame, T)
    proto = to_onnx(model)
    about = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(about["target_names"]) == ["y0", "y1", "y2"]
    assert json.loads(about["feature_names"]) == list(frame)
    np.testing.assert_allclose(run(model, frame), model.predict(frame), rtol=1e-9)
    lower, upper = np.moveaxis(model.predict_interval(frame), -1, 0)
    np.testing.assert_allclose(run(model, frame, output="lower"), lower, rtol=1e-9)
    np.testing.assert_allclose(run(model, frame, output="upper"), upper, rtol=1e-9)
    renamed = frame.rename(columns={"colour": "upper"})
    with pytest.raises(TypeError, match="'upper': rename the column"):
        to_onnx(model.fit(renamed, T))


def test_categories_that_are_refused_come_out_as_nan():
    frame, T = table()
    columns = make_column_transformer((OneHotEncoder(sparse_output=False), ["colour", "grade"]))
    model = make_pipeline(columns, small(RELMRegressor)).fit(frame, T)
    y = run(model, unseen())
    assert np.isnan(y).all(axis=1).tolist() == [True, True, False, False, True, False]
    known = unseen().iloc[[2, 3, 5]]
    np.testing.assert_allclose(y[[2, 3, 5]], model.predict(known), rtol=1e-10)


def test_tables_without_a_graph():
    frame, T = table()
    for block, columns, match in (
        (PolynomialFeatures(), ["b"], "PolynomialFeatures"),
        (FunctionTransformer(np.cbrt), ["b"], "cbrt"),
        (make_pipeline(OneHotEncoder(), PolynomialFeatures()), TEXTS, "PolynomialFeatures"),
    ):
        model = make_pipeline(make_column_transformer((block, columns)), small(RELMRegressor))
        with pytest.raises(TypeError, match=match):
            to_onnx(model.fit(frame, T))
    renamed = frame.rename(columns={"colour": "y"})
    model = make_pipeline(make_column_transformer((OneHotEncoder(), ["y"])), small(RELMRegressor))
    with pytest.raises(TypeError, match="rename the column"):
        to_onnx(model.fit(renamed, T))
