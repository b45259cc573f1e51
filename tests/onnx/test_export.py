"""Graphs that onnxruntime runs predict what the models predict."""

import inspect
import json
import sys

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from onnx.reference import ReferenceEvaluator
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

import gorelm
import onnx
from gorelm import GORELMRegressor, GRELMRegressor, RELMRegressor, RobustELMRegressor
from gorelm._features.layer import ACTIVATIONS
from gorelm.onnx.export import _ACTIVATIONS, export_onnx, to_onnx
from support.model_cases import ESTIMATORS, fitted, guided_ensemble, rows, small

DTYPES = ["float64", "float32"]


def runner(model, dtype="float64"):
    graph = to_onnx(model, dtype).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    return lambda X: session.run(["y"], {"X": np.asarray(X, dtype)})[0]


def error(model, X, dtype="float64", run=None):
    """Return the largest difference between graph and model, in units of the largest prediction."""
    X = X.astype(dtype) if isinstance(X, np.ndarray) else X
    expected, found = model.predict(X), (run or runner(model, dtype))(X)
    assert found.dtype == dtype
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return np.abs(found - expected).max() / np.abs(expected).max()


LINKED = {"activation": "tanh", "direct_link": True}
LAYERS = [LINKED, *({"activation": activation} for activation in ACTIVATIONS)]
FEW_INPUTS = [
    *({"activation": activation, "n_inputs": 2} for activation in ACTIVATIONS),
    {"activation": "laplace", "n_inputs": 1, "direct_link": True},
]
OTHERS = [cls for cls in ESTIMATORS if cls is not RELMRegressor]


@pytest.mark.parametrize(
    ("cls", "layers"),
    [
        (RELMRegressor, [*LAYERS, *FEW_INPUTS]),
        *((cls, [LINKED]) for cls in OTHERS),
        *(pytest.param(cls, LAYERS[1:], marks=pytest.mark.slow) for cls in OTHERS),
    ],
)
def test_every_estimator_and_layer(cls, layers):
    X, T = rows()
    if "activation" not in inspect.signature(cls).parameters:
        layers = [{}]
    for layer in layers:
        model = small(cls, **layer).fit(X, T)
        run = runner(model)
        assert error(model, X, run=run) < 1e-10, layer
        assert error(model, X[:1], run=run) < 1e-10, layer
        assert error(model, 1e5 * X, run=run) < 1e-9, layer  # nodes saturate, waves go round often
        assert error(model, X, "float32") < 1e-5, layer


@pytest.mark.parametrize("activation", sorted(set(ACTIVATIONS) - {"sine", "cosine"}))
@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_at_the_end_of_the_floats(activation, dtype):
    X, T = rows()
    far = float(np.finfo(dtype).max) / 1e3
    for n_inputs in (None, 2):
        model = small(RELMRegressor, activation=activation, n_inputs=n_inputs).fit(X, T)
        assert error(model, np.sign(X) * far, dtype) < 1e-5, n_inputs


@pytest.mark.parametrize("activation", ["tanh", "gaussian", "laplace"])
def test_no_rows(activation):
    X, T = rows()
    for n_inputs in (None, 2):
        run = runner(small(RELMRegressor, activation=activation, n_inputs=n_inputs).fit(X, T))
        assert run(X[:0]).shape == (0, T.shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sharp_radial_nodes_lose_no_digits(dtype):
    X, T = rows()
    shifted = X + 1e3  # squares of a thousand, differences of one
    model = small(RELMRegressor, activation="gaussian", weight_scale=5.0, input_scaling=None)
    tolerance = 1e-8 if dtype == "float64" else 1e-5
    assert error(model.fit(shifted, T), shifted, dtype) < tolerance


def test_every_activation_has_its_node():
    assert set(_ACTIVATIONS) == set(ACTIVATIONS)


@pytest.mark.parametrize("scaling", [None, "standard"])
def test_scalings(scaling):
    X, T = rows()
    model = small(RELMRegressor, input_scaling=scaling, target_scaling=None).fit(X, T)
    assert error(model, X) < 1e-10


def test_intercepts():
    X, T = rows()
    model = small(RELMRegressor, l1_ratio=0.5, fit_intercept=True).fit(X, T + 10)
    assert model.intercept_.any()
    assert error(model, X) < 1e-10


def test_one_target():
    X, T = rows()
    # Exact with one member, too: nothing single may be rounded to float32 by the runtime.
    assert error(small(RobustELMRegressor, n_members=1).fit(X, T[:, 0]), X) < 1e-13
    for y in (T[:, 0], T[:, :1]):
        assert error(small(RELMRegressor).fit(X, y), X) < 1e-13


def test_robust_models_work_in_float64_whatever_they_are_given():
    assert error(fitted(RobustELMRegressor), rows()[0], "float32") < 1e-7


def test_ensembles_with_guided_layers():
    model, X, T = guided_ensemble()
    assert any(member.intercept_.any() for member in model.members_)
    assert error(model, X) < 1e-12
    assert error(model, X, "float32") < 1e-6
    table = gorelm.TableRegressor(model, random_state=0).fit(X, T)
    assert error(table, X) < 1e-12


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("dtype", DTYPES)
def test_intervals_are_outputs_of_their_own(dtype):
    X, T = rows()
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    base = small(RobustELMRegressor, n_members=1)
    for targets, params in ((T, {}), (T, {"joint": "ball"}), (T[:, 0], {}), (T[:, :1], {})):
        model = gorelm.ConformalRegressor(base, calibration=40, random_state=0, **params)
        model.fit(X, targets)
        for one in (model, gorelm.TableRegressor(model, random_state=0).fit(X, targets)):
            proto = to_onnx(one, dtype)
            session = onnxruntime.InferenceSession(proto.SerializeToString())
            y, lower, upper = session.run(["y", "lower", "upper"], {"X": X.astype(dtype)})
            within = getattr(one, "regressor_", one)
            ends = within.predict_interval(X.astype(dtype))
            size = np.abs(ends).max()
            assert y.dtype == lower.dtype == upper.dtype == dtype
            assert lower.shape == one.predict(X).shape
            assert np.abs(y - one.predict(X.astype(dtype))).max() < tolerance * size
            assert np.abs(np.stack([lower, upper], axis=-1) - ends).max() < tolerance * size
            about = {entry.key: entry.value for entry in proto.metadata_props}
            assert about["confidence_level"] == "0.9"


def test_intervals_without_enough_rows_are_refused():
    X, T = rows()
    with pytest.warns(UserWarning, match="needs 9 calibration rows"):
        model = gorelm.ConformalRegressor(small(RELMRegressor), calibration=5).fit(X, T)
    with pytest.raises(ValueError, match="needs 9 calibration rows"):
        to_onnx(model)


def test_pruned_models():
    X, T = rows()
    model = small(GRELMRegressor, C=0.1, l1_ratio=0.9, direct_link=True).fit(X, T).prune()
    assert 0 < model.hidden_.n_outputs < 15 + X.shape[1]
    assert error(model, X) < 1e-10
    assert len(to_onnx(model).graph.initializer)
    empty = small(GORELMRegressor, lam=1e6, l1_ratio=0.9).fit(X, T).prune()
    assert empty.hidden_.n_outputs == 0
    assert error(empty, X) < 1e-10


def test_another_runtime():
    X, _ = rows()
    model = fitted(RobustELMRegressor)
    (y,) = ReferenceEvaluator(to_onnx(model)).run(["y"], {"X": X})
    np.testing.assert_allclose(y, model.predict(X), rtol=1e-9)


# -- pipelines -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "steps",
    [
        [StandardScaler()],
        [StandardScaler(with_mean=False)],
        [StandardScaler(with_std=False)],
        [MinMaxScaler((-2, 3))],
        [MinMaxScaler(clip=True)],
        [MaxAbsScaler(), RobustScaler()],
        [RobustScaler(with_centering=False), "passthrough"],
    ],
    ids=repr,
)
def test_steps_of_pipelines(steps, dtype):
    X, T = rows()
    model = make_pipeline(*steps, small(RELMRegressor)).fit(X[:40], T[:40])
    assert error(model, 3 * X, dtype) < (1e-10 if dtype == "float64" else 1e-5)


@pytest.mark.filterwarnings("ignore:Skipping features without any observed values")
@pytest.mark.parametrize("strategy", ["mean", "median", "most_frequent", "constant"])
def test_missing_inputs(strategy):
    X, T = rows()
    X = X.copy()
    X[::3, 0], X[1::4, 2], X[:, 3] = np.nan, np.nan, np.nan
    imputer = SimpleImputer(strategy=strategy, fill_value=7.0 if strategy == "constant" else None)
    model = make_pipeline(imputer, StandardScaler(), small(RELMRegressor)).fit(X, T)
    assert error(model, X) < 1e-10


def test_searches():
    X, T = rows()
    pipeline = make_pipeline(StandardScaler(), small(RELMRegressor))
    search = GridSearchCV(pipeline, {"relmregressor__C": [1.0, 100.0]}, cv=2).fit(X, T)
    assert error(search, X) < 1e-10


# -- what is in a graph --------------------------------------------------------------------------


def test_names_in_a_graph():
    X, T = rows()
    frame = pd.DataFrame(X, columns=[f"größe {k}" for k in range(X.shape[1])])
    model = make_pipeline(StandardScaler(), small(RELMRegressor)).fit(frame, T)
    model.target_names_ = ["a", "b", "c"]
    proto = to_onnx(model, "float32")
    about = {entry.key: entry.value for entry in proto.metadata_props}
    assert json.loads(about["feature_names"]) == list(frame.columns)
    assert json.loads(about["target_names"]) == ["a", "b", "c"]
    assert about["gorelm_version"] == gorelm.__version__ == proto.producer_version
    assert about["estimator"] == "RELMRegressor"
    assert [i.name for i in proto.graph.input] == ["X"]
    assert [o.name for o in proto.graph.output] == ["y"]
    shape = proto.graph.input[0].type.tensor_type.shape.dim
    assert [shape[0].dim_param, shape[1].dim_value] == ["N", X.shape[1]]
    assert proto.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_names_that_are_not_known_are_left_out():
    about = {entry.key for entry in to_onnx(fitted(RELMRegressor)).metadata_props}
    assert about == {"gorelm_version", "estimator"}


def test_a_file_holds_the_graph(tmp_path):
    path = export_onnx(fitted(RELMRegressor), str(tmp_path / "model.onnx"))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    X, _ = rows()
    (y,) = session.run(None, {"X": X})
    np.testing.assert_allclose(y, fitted(RELMRegressor).predict(X), rtol=1e-9)
    assert list(tmp_path.iterdir()) == [path]


def test_marks_of_gaps(tmp_path):
    X, T = rows()
    X = np.where(np.random.default_rng(0).uniform(size=X.shape) < 0.1, np.nan, X)
    X[:, 0] = rows()[0][:, 0]  # a column without gaps has no mark
    X[:, 1] = np.nan  # an empty one is left out
    imputer = SimpleImputer(strategy="median", add_indicator=True)
    model = make_pipeline(imputer, small(RELMRegressor))
    with pytest.warns(UserWarning, match="without any observed values"):
        expected = model.fit(X, T).predict(X)
    session = onnxruntime.InferenceSession(export_onnx(model, tmp_path / "model.onnx"))
    np.testing.assert_allclose(session.run(None, {"X": X})[0], expected, rtol=1e-9, atol=1e-9)


# -- what cannot be a graph ----------------------------------------------------------------------


def test_models_without_a_graph(tmp_path):
    X, T = rows()
    with pytest.raises(TypeError, match=r"Ridge cannot be written as ONNX.*gorelm\.save"):
        export_onnx(Ridge().fit(X, T), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match=r"step 'pca'.*a PCA, cannot.*StandardScaler"):
        to_onnx(make_pipeline(PCA(2), small(RELMRegressor)).fit(X, T))
    imputer = SimpleImputer(missing_values=0)
    with pytest.raises(TypeError, match="SimpleImputer can be written as ONNX only"):
        to_onnx(make_pipeline(imputer, small(RELMRegressor)).fit(X, T))
    with pytest.raises(NotFittedError):
        to_onnx(RELMRegressor())
    with pytest.raises(ValueError, match="float16"):
        to_onnx(fitted(RELMRegressor), "float16")


def test_missing_onnx_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'pip install "gorelm\[onnx\]"'):
        to_onnx(fitted(RELMRegressor))
