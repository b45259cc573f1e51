"""Models in files come back as they were, to the bit, or are not written at all."""

import inspect
import pickle
import subprocess
import sys
from collections import UserList

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingRegressor, RandomForestRegressor, StackingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, RepeatedKFold, ShuffleSplit
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    StandardScaler,
)

import gorelm
from gorelm import GORELMRegressor, GORELMRegressorCV, IGORELMRegressor, RELMRegressor
from gorelm.io import ModelFileError
from gorelm.metrics import arrmse_scorer
from support.model_cases import (
    ESTIMATORS,
    fitted,
    guided_ensemble,
    rows,
    same_predictions,
    small,
)


def through_file(model, folder):
    return gorelm.load(gorelm.save(model, folder / "model.gorelm"))


# -- what comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_predictions_are_the_same_bits(cls, tmp_path):
    for dtype in ("float64", "float32"):
        model, (X, _) = fitted(cls, dtype), rows(dtype=dtype)
        restored = through_file(model, tmp_path)
        assert type(restored) is cls
        assert same_predictions(restored, model, X)
        assert repr(restored) == repr(model)
        for name, value in vars(model).items():
            if name.endswith("_") and isinstance(value, np.ndarray):
                np.testing.assert_array_equal(getattr(restored, name), value, strict=True)


def test_nodes_that_see_few_inputs(tmp_path):
    X, T = rows()
    for cls in ESTIMATORS:
        if "n_inputs" not in inspect.signature(cls).parameters:
            continue
        for activation in ("tanh", "gaussian", "laplace") if cls is GORELMRegressor else ("tanh",):
            model = small(cls, n_inputs=2, activation=activation, direct_link=True).fit(X, T)
            restored = through_file(model, tmp_path)
            np.testing.assert_array_equal(restored.hidden_.subsets, model.hidden_.subsets)
            assert restored.n_inputs == 2
            assert same_predictions(restored, model, X), (cls, activation)
    guided = small(IGORELMRegressor, n_inputs=2, guided=True).fit(X, T)
    restored = through_file(guided, tmp_path)
    assert same_predictions(restored.grow(5, X, T), guided.grow(5, X, T), X)


def test_ensembles_with_guided_layers(tmp_path):
    """Whatever draws a layer, the file has the layer itself, intercepts, seconds and scores."""
    model, X, T = guided_ensemble()
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    table["word"] = np.where(np.arange(len(X)) % 3, "red", "blue")
    of_table = gorelm.TableRegressor(model, random_state=0).fit(table, T)
    intervals = gorelm.ConformalRegressor(model, random_state=0).fit(X, T)
    for one, inputs, inner in (
        (model, X, lambda m: m),
        (of_table, table, lambda m: m.regressor_),
        (intervals, X, lambda m: m.estimator_),
    ):
        restored = through_file(one, tmp_path)
        assert same_predictions(restored, one, inputs)
        before, after = inner(one), inner(restored)
        assert after.timings_ == before.timings_
        assert after.cv_results_.keys() == before.cv_results_.keys()
        for name, column in before.cv_results_.items():
            np.testing.assert_array_equal(after.cv_results_[name], column, strict=True)
        for name in ("outlier_scores_", "outlier_mask_", "out_of_fold_"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name), strict=True)
        for member, same in zip(before.members_, after.members_, strict=True):
            np.testing.assert_array_equal(same.hidden_.A, member.hidden_.A)
            np.testing.assert_array_equal(same.intercept_, member.intercept_)
            if member.hidden_.subsets is None:
                assert same.hidden_.subsets is None
            else:
                np.testing.assert_array_equal(same.hidden_.subsets, member.hidden_.subsets)
    widths = intervals.predict_interval(X)
    np.testing.assert_array_equal(through_file(intervals, tmp_path).predict_interval(X), widths)


@pytest.mark.parametrize("columns", ["as this version has them", "as up to 1.8"])
def test_columns_that_pass_through(columns, tmp_path):
    X, T = rows()
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    encoder = ColumnTransformer([("scaled", StandardScaler(), ["x1"])], remainder="passthrough")
    model = make_pipeline(encoder, small(RELMRegressor)).fit(table, T)
    if columns == "as up to 1.8":
        # A list that is an object of scikit-learn's own.
        listed = type("_RemainderColsList", (UserList,), {})
        listed.__module__ = "sklearn.compose._column_transformer"
        *others, (name, step, passed) = encoder.transformers_
        encoder.transformers_ = [*others, (name, step, listed(passed))]
    restored = through_file(model, tmp_path)
    assert same_predictions(restored, model, table)
    assert type(restored[0].transformers_[-1][2]) is list


@pytest.mark.slow
def test_another_process_predicts_the_same_bits(tmp_path):
    X, _ = rows()
    np.save(tmp_path / "X.npy", X)
    kinds = (GORELMRegressorCV, IGORELMRegressor, RELMRegressor, gorelm.RobustELMRegressor)
    for cls in kinds:
        gorelm.save(fitted(cls), tmp_path / f"{cls.__name__}.gorelm")
        np.save(tmp_path / f"{cls.__name__}.npy", fitted(cls).predict(X))
    program = """
import sys, pathlib, numpy as np, gorelm
folder = pathlib.Path(sys.argv[1])
X = np.load(folder / "X.npy")
for file in folder.glob("*.gorelm"):
    predicted, expected = gorelm.load(file).predict(X), np.load(file.with_suffix(".npy"))
    print(file.stem, np.array_equal(predicted, expected))
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert sorted(printed.splitlines()) == sorted(f"{cls.__name__} True" for cls in kinds)


def table():
    X, T = rows()
    frame = pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
    frame["colour"] = np.where(np.arange(len(X)) % 3, "red", "blue")
    frame["grade"] = np.arange(len(X)) % 4
    frame.loc[::7, "x0"] = np.nan
    return frame, T


def columns(remainder="drop"):
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    return ColumnTransformer(
        [
            ("numbers", numbers, make_column_selector("^x")),
            ("colour", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["colour"]),
            ("grade", OrdinalEncoder(), ["grade"]),
        ],
        remainder=remainder,
    )


RELM = small(RELMRegressor)
PIPELINES = {
    "columns": make_pipeline(columns(), RELM),
    "passthrough": make_pipeline(columns("passthrough"), RELM),
    "search": GridSearchCV(make_pipeline(columns(), RELM), {"relmregressor__C": [1, 2]}, cv=3),
    "scored search": GridSearchCV(
        make_pipeline(columns(), RELM),
        {"relmregressor__C": [1, 2]},
        cv=RepeatedKFold(n_splits=2, n_repeats=2, random_state=0),
        scoring="neg_mean_absolute_error",
    ),
    "our scorer": make_pipeline(
        columns(), small(GORELMRegressorCV, scoring=arrmse_scorer).set_params(cv=ShuffleSplit(2))
    ),
    "bag": make_pipeline(columns(), BaggingRegressor(RELM, n_estimators=2, random_state=0)),
    "separately": make_pipeline(columns(), MultiOutputRegressor(RELM)),
    "targets": make_pipeline(
        columns(), TransformedTargetRegressor(RELM, func=np.arcsinh, inverse_func=np.sinh)
    ),
    "functions": make_pipeline(
        columns(), FunctionTransformer(np.cbrt), PowerTransformer(), PCA(3), MinMaxScaler(), RELM
    ),
}


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("name", PIPELINES)
def test_pipelines(name, tmp_path):
    frame, T = table()
    model = PIPELINES[name].fit(frame, T)
    assert same_predictions(through_file(model, tmp_path), model, frame)


@pytest.mark.parametrize(
    "around",
    [
        lambda relm: StackingRegressor([("relm", relm), ("ridge", Ridge())], cv=KFold(2)),
        lambda relm: make_pipeline(SelectKBest(f_regression, k=2), relm),
    ],
)
def test_pipelines_for_one_target(around, tmp_path):
    X, T = rows()
    model = around(RELM).fit(X, T[:, 0])
    assert same_predictions(through_file(model, tmp_path), model, X)


def test_names_of_features_stay(tmp_path):
    frame = table()[0][["x1", "x2"]]
    restored = through_file(small(RELMRegressor).fit(frame, table()[1]), tmp_path)
    assert list(restored.feature_names_in_) == ["x1", "x2"]
    with pytest.raises(ValueError, match="feature names should match"):
        restored.predict(frame.rename(columns={"x1": "other"}))


def test_online_models_go_on(tmp_path):
    X, T = rows()
    model = small(gorelm.OSELMRegressor).partial_fit(X[:40], T[:40])
    restored = through_file(model, tmp_path).partial_fit(X[40:], T[40:])
    model.partial_fit(X[40:], T[40:])
    assert restored.n_samples_seen_ == len(X)
    assert same_predictions(restored, model, X)


def test_grown_models_grow_when_given_rows(tmp_path):
    X, T = rows()
    restored = through_file(fitted(IGORELMRegressor), tmp_path)
    unpickled = pickle.loads(pickle.dumps(fitted(IGORELMRegressor)))
    assert same_predictions(restored.grow(5, X, T), unpickled.grow(5, X, T), X)
    fresh = through_file(fitted(IGORELMRegressor), tmp_path)
    with pytest.raises(ValueError, match="no longer has its training rows"):
        fresh.grow(5)


def test_files_hold_no_training_rows(tmp_path):
    sizes = []
    for n_samples in (100, 1100):
        model = small(IGORELMRegressor).fit(*rows(n_samples))
        sizes.append(gorelm.save(model, tmp_path / "model").stat().st_size)
    per_row = (sizes[1] - sizes[0]) / 1000
    assert per_row < 10  # an outlier score and a flag; records of iterations differ by a few


def test_random_states_go_on(tmp_path):
    model = small(RELMRegressor).set_params(random_state=np.random.RandomState(3)).fit(*rows())
    restored = through_file(model, tmp_path)
    assert same_predictions(restored.fit(*rows()), model.fit(*rows()), rows()[0])


def test_nothing_is_loaded_into_all():
    names: dict = {}
    exec("from gorelm import *", names)
    assert "load" not in names
    assert {"load", "save"} <= set(dir(gorelm))


# -- what cannot be saved ------------------------------------------------------------------------


def test_callbacks_are_left_out_and_it_is_said(tmp_path):
    class Unfit:
        """A callback that can be called, and neither copied nor stored."""

        def __call__(self, record):
            pass

        def __reduce_ex__(self, protocol):
            raise TypeError

    X, T = rows()
    for callback in (lambda record: None, Unfit()):
        model = make_pipeline(StandardScaler(), small(GORELMRegressor, callback=callback)).fit(X, T)
        with pytest.warns(UserWarning, match="callback") as caught:
            restored = through_file(model, tmp_path)
        assert caught[0].filename == __file__
        assert model[-1].callback is callback
        assert restored[-1].callback is None
        assert same_predictions(restored, model, X)


class OwnSplitter(KFold):
    """A class of the user's."""


def own_scorer(model, X, y):
    return -1.0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"scoring": own_scorer}, r"GORELMRegressorCV\.scoring is .*own_scorer"),
        ({"cv": OwnSplitter(3)}, r"GORELMRegressorCV\.cv is .*OwnSplitter"),
        ({"scoring": lambda model, X, y: -1.0}, r"GORELMRegressorCV\.scoring is .*lambda"),
    ],
)
def test_foreign_parts_are_named(options, named, tmp_path):
    model = small(GORELMRegressorCV).set_params(**options).fit(*rows())
    with pytest.raises(ModelFileError, match=named):
        gorelm.save(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_compiled_trees_are_refused(tmp_path):
    X, T = rows()
    forest = RandomForestRegressor(2, max_depth=2, random_state=0)
    model = StackingRegressor([("relm", RELM), ("forest", forest)], cv=2).fit(X, T[:, 0])
    with pytest.raises(ModelFileError, match=r"StackingRegressor.*DecisionTree"):
        gorelm.save(model, tmp_path / "model")


def test_what_cannot_be_stored_at_all(tmp_path):
    model = small(RELMRegressor).fit(*rows())
    model.extra = (n for n in range(3))
    with pytest.raises(ModelFileError, match=r"cannot be stored \(.*generator"):
        gorelm.save(model, tmp_path / "model")


def test_only_fitted_estimators(tmp_path):
    with pytest.raises(NotFittedError):
        gorelm.save(RELMRegressor(), tmp_path / "model")
    with pytest.raises(TypeError, match="fitted estimator, got dict"):
        gorelm.save({}, tmp_path / "model")


def test_missing_skops_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "skops.io", None)
    with pytest.raises(ImportError, match=r'pip install "gorelm\[io\]"'):
        gorelm.save(fitted(RELMRegressor), tmp_path / "model")
    with pytest.raises(ImportError, match=r'pip install "gorelm\[io\]"'):
        gorelm.load(tmp_path / "model")


# -- whole or not at all -------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_an_interrupted_save_leaves_the_old_file(step, failure, tmp_path, monkeypatch):
    path = gorelm.save(fitted(RELMRegressor), tmp_path / "model")
    before = path.read_bytes()

    def fail(*args):
        raise failure

    monkeypatch.setattr(f"gorelm.io.files.os.{step}", fail)
    with pytest.raises(failure):
        gorelm.save(fitted(GORELMRegressor), path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = gorelm.save(fitted(RELMRegressor), tmp_path / "model")
    before = path.read_bytes()
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # Python ignores the signal
    try:
        with pytest.raises(OSError, match="large"):
            gorelm.save(fitted(GORELMRegressor), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


def test_others_may_read_the_file(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    path = gorelm.save(fitted(RELMRegressor), tmp_path / "model")
    assert path.stat().st_mode == plain.stat().st_mode
