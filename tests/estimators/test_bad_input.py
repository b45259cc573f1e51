"""Wrong and extreme input to every estimator: a clear error, or a finite result without warnings.

Every warning is an error here, NumPy's about overflow, division and invalid values first of all.
(Estimators that search have their own wrong input in test_selection.py and test_robust.py.)
"""

import sys
import warnings
from itertools import product

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import gorelm
from gorelm._features.layer import ACTIVATIONS
from gorelm._features.scaling import INPUT_SCALINGS, TARGET_SCALINGS
from gorelm.datasets import make_multitarget
from gorelm.metrics import arrmse
from support.estimator_cases import (
    ALL,
    SIZED,
    all_cases,
    all_estimators,
    assert_close,
    default,
    make,
    make_data,
    names,
    sized,
)
from support.sweeps import at

pytestmark = pytest.mark.filterwarnings("error")

NAN, INF = float("nan"), float("inf")

# Values that each parameter must refuse, naming itself.
BAD = {
    "n_hidden": [-1, 2.5, "10", None],
    "n_initial": [0, -1, 2.5, "10", None],
    "n_step": [0, -1, 2.5, None],
    "max_hidden": [0, -1, 2.5, None],
    "target_error": [-1e-9, NAN, INF, "small"],
    "patience": [0, -1, 1.5],
    "min_improvement": [-1e-9, 1.0, NAN, None],
    "max_pruned": [0.0, 1 + 1e-9, NAN],
    "validation": [0.0, 1.0, -0.5, 1, 10**6, "all", NAN],
    "prune_on_grow": ["yes", None],
    "guided": ["yes", None],
    "warm_start": ["yes", None],
    "activation": ["sigmoidal", None, 3],
    "weights": ["gaussian", None],
    "forgetting": [0, -0.5, 1.5, NAN, "all", None],
    "n_start": [0, -1, 2.5, "all", None],
    "weight_scale": [0.0, -1.0, NAN, INF, "1"],
    "n_inputs": [0, -1, 2.5, "2"],
    "direct_link": ["yes", 2],
    "input_scaling": ["robust", "none", 1],
    "target_scaling": ["standard", "none", 1],
    "missing_targets": ["drop", None],
    "random_state": ["seed", -1, 1.5],
    "C": [0, -1.0, NAN, INF, "1", None],
    "lam": [0, -1.0, NAN, INF, "1", None],
    "tau": [0, -1.0, NAN, INF, None],
    "delta": [-1e-9, NAN, INF, None],
    "l1_ratio": [-1e-9, 1 + 1e-9, NAN, INF, None],
    "fit_intercept": ["no", None],
    "solver": ["fast", None],
    "tol": [0, -1e-3, NAN, INF, None],
    "max_iter": [0, -1, 2.5, INF],
    "callback": [3, "print"],
    "memory_budget": [0, -1.0, "much", "GB", "0 MB"],
    "device": [3, "no such device"],
}
ROBUST = [cls for cls in ALL if cls.__name__ in ("ORELMRegressor", "GORELMRegressor")]


def refuses(model, X, T, match, w=None, error=ValueError):
    """Check that the fit is refused, and the estimator left unfitted."""
    with pytest.raises(error, match=match):
        model.fit(X, T, w)
    with pytest.raises(NotFittedError):
        model.predict([[0.0]])


def finite(model, X, T, w=None):
    """Fit, and return predictions, having checked that every result is finite."""
    prediction = model.fit(X, T, w).predict(X)
    for result in (prediction, model.coef_, model.outlier_scores_, model.outlier_threshold_):
        assert np.isfinite(result).all()
    assert prediction.shape == np.shape(T)
    return prediction


def brief(cls, **params):
    """Return an estimator that gives up early, for data on which it need not converge."""
    return make(cls, **({"max_iter": 300} if "max_iter" in names(cls) else {}), **params)


# -- parameters ----------------------------------------------------------------------------------


@all_estimators
def test_every_parameter_has_bad_values_here(cls):
    assert set(names(cls)) <= set(BAD)


@all_estimators
def test_bad_parameter(cls):
    X, T = make_data()
    for name in names(cls):
        for value in BAD[name]:
            with at(**{name: value}):
                refuses(make(cls, **{name: value}), X, T, match=name)


def test_devices_without_pytorch(monkeypatch):
    """What cannot be a device is a bad parameter everywhere; another one names the extra."""
    for name in [name for name in sys.modules if name.startswith("gorelm.backends.torch.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("gorelm.backends.torch.fit", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    X, T = make_data()
    for name in ("no such device", "cuda:one", "", "CUDA", "cuda:"):
        for cls in (gorelm.GORELMRegressor, gorelm.RobustELMRegressor):
            refuses(make(cls, device=name), X, T, match="device=")
    for name in ("cpu", "cuda", "cuda:1", "mps"):
        with pytest.raises(ImportError, match=r"gorelm\[torch\]"):
            make(gorelm.GORELMRegressor, device=name).fit(X, T)


@sized
def test_no_hidden_node(cls):
    X, T = make_data()
    refuses(make(cls, n_hidden=0), X, T, match="n_hidden must be at least 1")
    finite(make(cls, n_hidden=0, direct_link=True), X, T)


@all_estimators
def test_unknown_activation_lists_the_known(cls):
    X, T = make_data()
    refuses(make(cls, activation="sigmod"), X, T, match="sigmoid")


@all_estimators
def test_unknown_parameter(cls):
    with pytest.raises(TypeError, match="n_nodes"):
        cls(n_nodes=3)


# -- values of X and y ---------------------------------------------------------------------------


@all_estimators
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array, np.float32, "pandas"])
def test_not_finite_in_X(cls, container):
    if container == "pandas":
        container = pytest.importorskip("pandas").DataFrame
    X, T = make_data()
    model = make(cls).fit(container(X), T)
    for value, match in ((NAN, "X contains NaN"), (INF, "X contains inf")):
        bad = X.copy()
        bad[2, 1] = value
        refuses(make(cls), container(bad), T, match=match)
        with pytest.raises(ValueError, match=match):
            model.predict(container(bad))


@all_estimators
@pytest.mark.parametrize("missing_targets", ["error", "ignore"])
def test_not_finite_in_y(cls, missing_targets):
    X, T = make_data()
    for value in (INF, -INF, NAN):
        T[2, 1] = value
        model = make(cls, missing_targets=missing_targets)
        if np.isnan(value) and missing_targets == "ignore":
            model.fit(X, T)
            assert np.isfinite(model.predict(X)).all()
            assert np.isfinite(model.outlier_scores_).all()
        else:
            refuses(model, X, T, match="y contains (NaN|inf)")
            refuses(model, X, T[:, 1], match="y contains (NaN|inf)")


@all_cases
def test_scaled_X_of_any_size(cls, options):
    """Scaling takes the size out: the fit is that of X itself."""
    X, T = make_data(zeros=True)
    for scaling in INPUT_SCALINGS:
        model = make(cls, input_scaling=scaling, direct_link=True, **options)
        usual = finite(model, X, T)
        for size, container in product((1e-300, 1e300), (np.asarray, sparse.csr_array)):
            with at(scaling=scaling, size=size, container=container):
                assert_close(finite(model, container(X * size), T), usual, 6)


@all_cases
def test_scaled_y_of_any_size(cls, options):
    X, T = make_data()
    for scaling in TARGET_SCALINGS:
        model = make(cls, target_scaling=scaling, **options)
        usual = finite(model, X, T)
        for size in (1e-300, 1e300):
            with at(scaling=scaling, size=size):
                assert_close(finite(model, X, T * size) / size, usual, 6)


@all_cases
def test_unscaled_X_of_extreme_size(cls, options):
    X, T = make_data()
    match = "input_scaling or rescale X"
    for activation in ("sigmoid", "relu", "gaussian", "multiquadric"):
        with at(activation=activation):
            model = make(cls, input_scaling=None, activation=activation, **options)
            refuses(model, X * 1e300, T, match=match)
            refuses(model, sparse.csr_array(X * 1e300), T, match=match)
            finite(model, X * 1e-300, T)


def finite_or_refused(model, X, T, match, w=None):
    """Accept a finite result, a clear error, or the news that the fit did not converge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            finite(model, X, T, w)
        except ValueError as error:
            if match not in str(error):
                raise


@all_cases
def test_unscaled_y_of_extreme_size(cls, options):
    X, T = make_data()
    double = product([np.float64], [1e-300, 1e-150, 1e-80, 1e80, 1e100, 1e300])
    for dtype, size in (*double, *product([np.float32], [1e-30, 1e30, 1e50])):
        with at(dtype=dtype, size=size):
            model = brief(cls, target_scaling=None, **options)
            finite_or_refused(model, X.astype(dtype), T * size, match="target_scaling")


@all_cases
def test_single_cell_of_1e300_in_X(cls, options):
    X, T = make_data()
    X[3, 1] = 1e300
    refuses(make(cls, input_scaling=None, **options), X, T, match="rescale X")
    for scaling in INPUT_SCALINGS:
        with at(scaling=scaling):
            finite(make(cls, input_scaling=scaling, **options), X, T)


@all_estimators
def test_bounded_nodes_predict_finitely_anywhere(cls):
    X, T = make_data()
    activations = ("sigmoid", "tanh", "sine", "hardlim", "gaussian")
    for activation, scaling in product(activations, (*INPUT_SCALINGS, None)):
        model = make(cls, input_scaling=scaling, activation=activation).fit(0.1 * X, T)
        for value in (1e300, -1.7e308):
            for rows in (np.full((2, 4), value), np.diag([value] * 4)):
                assert np.isfinite(model.predict(rows)).all()
                assert np.isfinite(model.predict(sparse.csr_array(rows))).all()


@all_estimators
def test_predictions_are_never_nan(cls):
    """Where a linear part is extrapolated out of the floats, a prediction may be infinite."""
    X, T = make_data()
    activations = ("relu", "multiquadric", "sigmoid")
    for activation, scaling in product(activations, (*INPUT_SCALINGS, None)):
        model = make(cls, input_scaling=scaling, activation=activation, direct_link=True)
        model.fit(0.1 * X, T)
        for row in ([1e300] * 4, [1.7e308] * 4, [1.7e308, -1.7e308, 0.0, 1.0]):
            with np.errstate(over="ignore"):
                assert not np.isnan(model.predict([row])).any()


# -- outliers of extreme size --------------------------------------------------------------------


@all_cases
def test_huge_outlier_in_y_is_finite(cls, options):
    X, T = make_data()
    for value, dtype in product((1e12, -1e12, 1e30), (np.float64, np.float32)):
        T[7, 0] = value
        with at(value=value, dtype=dtype):
            finite_or_refused(brief(cls, **options), X.astype(dtype), T, match="target_scaling")


@pytest.mark.parametrize("cls", ROBUST)
@pytest.mark.parametrize("value", [1e3, 1e6, 1e9, 1e12])
def test_huge_outlier_does_not_bend_a_robust_fit(cls, value):
    """A wrong row pulls no more the more wrong it is."""
    data = make_multitarget(600, outlier_ratio=0.0, random_state=0)
    train, test = slice(0, 300), slice(300, None)
    T = data.T[train].copy()
    model = make(cls, n_hidden=50).fit(data.X[train], T)
    error = arrmse(data.T_clean[test], model.predict(data.X[test]))
    T[7, 0] = value
    model.fit(data.X[train], T)
    assert model.converged_
    assert arrmse(data.T_clean[test], model.predict(data.X[test])) < 1.1 * error
    assert model.outlier_mask_[7]
    assert model.outlier_mask_.sum() < 60


@all_cases
def test_targets_of_mixed_magnitude(cls, options):
    """Each scaled by itself: as good as when all are of one size."""
    X, T = make_data(150, n_targets=2)
    usual = finite(make(cls, **options), X, T)
    units = np.array([1e-6, 1e9])
    assert_close(finite(make(cls, **options), X, T * units) / units, usual, 6)


# -- shapes --------------------------------------------------------------------------------------


@all_estimators
def test_empty(cls):
    X, T = make_data()
    refuses(make(cls), X[:0], T[:0], match="0 sample")
    refuses(make(cls), X[:, :0], T, match="0 feature")
    refuses(make(cls), X, T[:, :0], match="0 feature|target")
    refuses(make(cls), [], [], match="Expected 2D array")
    model = make(cls).fit(X, T)
    with pytest.raises(ValueError, match="0 sample"):
        model.predict(X[:0])


@all_estimators
def test_wrong_dimensions(cls):
    X, T = make_data()
    refuses(make(cls), X[:, 0], T, match="Expected 2D array")
    refuses(make(cls), X[None], T, match="dim 3")
    refuses(make(cls), X, T[None], match="dim|inconsistent")
    refuses(make(cls), X, T[:, :, None], match="dim")
    refuses(make(cls), X, 3.0, match="scalar|dimension", error=(TypeError, ValueError))
    refuses(make(cls), X, None, match="requires y")
    refuses(make(cls), X, T[:-1], match="inconsistent numbers of samples")
    refuses(make(cls), X[:-1], T, match="inconsistent numbers of samples")
    refuses(make(cls), X, sparse.csr_array(T), match="[Ss]parse", error=(TypeError, ValueError))


@all_estimators
def test_predict_refuses_other_shapes(cls):
    X, T = make_data()
    with pytest.raises(NotFittedError, match="not fitted"):
        make(cls).predict(X)
    model = make(cls).fit(X, T)
    for wrong in (X[:, :3], np.c_[X, X]):
        for container in (np.asarray, sparse.csr_array):
            with pytest.raises(ValueError, match=r"expecting 4 features"):
                model.predict(container(wrong))
    with pytest.raises(ValueError, match="Expected 2D array"):
        model.predict(X[0])


@all_cases
def test_one_row(cls, options):
    X, T = make_data()
    for activation in ACTIVATIONS:
        model = make(cls, activation=activation, **options)
        prediction = finite(model, X[:1], T[:1])
        np.testing.assert_allclose(prediction, T[:1], rtol=1e-9)  # the median of one row
        assert not model.outlier_mask_.any()


@all_cases
def test_one_column(cls, options):
    X, T = make_data()
    for activation in ACTIVATIONS:
        finite(make(cls, activation=activation, **options), X[:, :1], T)


@all_cases
def test_fewer_rows_than_targets_and_nodes(cls, options):
    X, T = make_data(4, n_targets=7)
    for activation, n_hidden in product(("sigmoid", "gaussian"), (30, 2)):
        with at(activation=activation, n_hidden=n_hidden):
            finite(make(cls, n_hidden=n_hidden, activation=activation, **options), X, T)


# -- degenerate data -----------------------------------------------------------------------------


@pytest.mark.crossed("options", "scaling")
@all_cases
@pytest.mark.parametrize("scaling", [*INPUT_SCALINGS, None])
def test_constant_columns(cls, options, scaling):
    """Constants of any size (where scaled), and columns that are constant up to rounding."""
    X, T = make_data()
    model = make(cls, input_scaling=scaling, **options)
    for value in (0.0, 0.1) if scaling is None else (0.1, -1e9):
        constant = np.full((len(X), 1), value)
        finite(model, np.hstack([constant, constant]), T)
        finite(model, sparse.csr_array(np.hstack([X, constant])), T)
        constant[::2] += np.spacing(value)
        finite(model, np.hstack([X, constant]), T)


@pytest.mark.crossed("options", "activation", "scaling")
@all_cases
@pytest.mark.parametrize("activation", ["sigmoid", "gaussian"])
@pytest.mark.parametrize("scaling", INPUT_SCALINGS)
def test_constant_column_carries_no_noise(cls, options, activation, scaling):
    """A column constant up to rounding is no input: its last bits do not change predictions."""
    X, T = make_data()
    constant = np.full((len(X), 1), 0.1)
    model = make(cls, input_scaling=scaling, activation=activation, **options)
    usual = finite(model, np.hstack([X, constant]), T)
    constant[::2] += np.spacing(0.1)
    assert_close(finite(model, np.hstack([X, constant]), T), usual, 6)


@pytest.mark.crossed("options", "scaling")
@all_cases
@pytest.mark.parametrize("scaling", TARGET_SCALINGS)
def test_constant_target_is_predicted(cls, options, scaling):
    X, T = make_data()
    model = make(cls, target_scaling=scaling, **options)
    w = 0.1 + np.arange(len(X)) % 3
    for value in (0.0, 0.1, -7.3, 1e9, 1e300, 1e-300):
        T[:, 1] = value
        np.testing.assert_allclose(finite(model, X, T)[:, 1], value, rtol=1e-12, atol=1e-300)
        np.testing.assert_allclose(finite(model, X, T[:, 1], w), value, rtol=1e-12, atol=1e-300)


@all_cases
def test_constant_target_unscaled(cls, options):
    X, _ = make_data()
    finite(make(cls, target_scaling=None, **options), X, np.full(len(X), 3.0))
    assert not finite(make(cls, target_scaling=None, **options), X, np.zeros(len(X))).any()


@all_cases
def test_all_rows_equal(cls, options):
    X, T = make_data()
    rows, targets = (np.repeat(A[:1], len(X), axis=0) for A in (X, T))
    activations = ("sigmoid", "gaussian", "multiquadric")
    for activation, scaling in product(activations, (*INPUT_SCALINGS, None)):
        model = make(cls, input_scaling=scaling, activation=activation, **options)
        finite(model, rows, T)
        np.testing.assert_allclose(finite(model, rows, targets), targets, rtol=1e-9)
        assert not model.outlier_mask_.any()


@all_cases
def test_duplicate_rows(cls, options):
    X, T = make_data(10)
    rows = np.arange(100) % 10
    noise = np.random.RandomState(0).normal(size=(100, 3))
    for activation in ("sigmoid", "gaussian", "multiquadric"):
        with at(activation=activation):
            finite(make(cls, activation=activation, **options), X[rows], T[rows])
            finite(make(cls, activation=activation, **options), X[rows], noise)


@all_cases
def test_duplicate_columns_and_targets(cls, options):
    X, T = make_data()
    prediction = finite(make(cls, **options), np.hstack([X, X]), np.hstack([T, T]))
    assert_close(prediction[:, 3:], prediction[:, :3], 9)


@all_cases
def test_mostly_zero_targets(cls, options):
    X, _ = make_data()
    T = np.zeros((len(X), 2))
    T[::20, 0] = [3.0, 1.0, 7.0]
    T[5, 1] = 2.0
    finite(make(cls, **options), X, T)


# -- data types ----------------------------------------------------------------------------------


@all_estimators
def test_numbers_of_any_type(cls):
    X, T = make_data()
    X, T = np.abs(np.round(X)), np.abs(np.round(T[:, :2]))
    usual = make(cls).fit(X, T).predict(X)
    for dtype in (np.int8, np.uint16, np.int64, np.float16, object):
        with at(dtype=dtype):
            prediction = finite(make(cls), X.astype(dtype), T.astype(dtype))
            assert_close(prediction, usual, 3 if dtype is np.float16 else 9)


@all_estimators
def test_booleans(cls):
    pd = pytest.importorskip("pandas")
    X, T = make_data()
    usual = make(cls).fit((X > 0) * 1.0, (T[:, 0] > 0) * 1.0).predict((X > 0) * 1.0)
    assert_close(finite(make(cls), X > 0, T[:, 0] > 0), usual, 9)
    mixed = pd.DataFrame({"a": X[:, 0], "b": X[:, 1] > 0, "c": np.round(X[:, 2]).astype(int)})
    finite(make(cls), mixed, T)


@all_estimators
def test_strings(cls):
    X, T = make_data()
    text = X.astype(object)
    text[2, 1] = "red"
    refuses(make(cls), text, T, match="could not convert string to float: 'red'")
    text = T.astype(object)
    text[2, 1] = "red"
    refuses(make(cls), X, text, match="could not convert string to float: 'red'")
    model = make(cls).fit(X, T)
    with pytest.raises(ValueError, match="could not convert string"):
        model.predict([["a", "b", "c", "d"]])


@all_estimators
def test_complex_numbers(cls):
    X, T = make_data()
    refuses(make(cls), X + 1j, T, match="Complex data not supported")
    refuses(make(cls), X, T + 1j, match="Complex data not supported")


# -- sample weights ------------------------------------------------------------------------------


@all_estimators
def test_bad_weights(cls):
    X, T = make_data()
    good = np.ones(len(X))
    refuses(make(cls), X, T, w=np.r_[-1.0, good[1:]], match="[Nn]egative values in data")
    refuses(make(cls), X, T, w=0 * good, match="weight")
    refuses(make(cls), X, T, w=good[:-1], match="sample_weight.shape")
    refuses(make(cls), X, T, w=np.ones((len(X), 2)), match="[Ss]ample.weights? must be 1D")
    for value in (NAN, INF):
        refuses(make(cls), X, T, w=np.r_[value, good[1:]], match="sample_weight contains")
    refuses(make(cls), X, T, w=["heavy"] * len(X), match="could not convert string")


@all_cases
def test_weights_of_extreme_size(cls, options):
    X, T = make_data()
    for weight, dtype in product((1e-300, 1e15), (np.float64, np.float32)):
        for w in (np.full(len(X), weight), np.where(np.arange(len(X)) == 3, weight, 1.0)):
            with at(weights=w[2:5], dtype=dtype):
                model = brief(cls, **options)
                finite_or_refused(model, X.astype(dtype), T, match="sample_weight", w=w)


@all_estimators
def test_one_row_of_positive_weight(cls):
    X, T = make_data()
    model = make(cls)
    prediction = finite(model, X, T, np.arange(len(X)) == 4)
    np.testing.assert_allclose(prediction[4], T[4], rtol=1e-9)


# -- extreme parameters --------------------------------------------------------------------------


@all_cases
def test_extreme_penalties(cls, options):
    X, T = make_data()
    for size in (1e-12, 1e-6, 1e6, 1e12):
        for name in {"C", "lam", "tau"}.intersection(names(cls)):
            with at(**{name: size}):
                model = brief(cls, **{name: size}, **options)
                finite_or_refused(model, X, T, match="regularisation")


@all_estimators
def test_extreme_weight_scale(cls):
    X, T = make_data()
    for activation, weight_scale in product(ACTIVATIONS, (1e-6, 1e6)):
        with at(activation=activation, weight_scale=weight_scale):
            model = brief(cls, activation=activation, weight_scale=weight_scale)
            finite_or_refused(model, X, T, match="regularisation")


@all_estimators
def test_exports_have_defaults_that_fit(cls):
    X, T = make_data(30)
    assert np.isfinite(cls().fit(X, T).predict(X)).all()
    assert default(cls, "n_hidden" if cls in SIZED else "max_hidden") == 1000
    assert cls.__name__ in gorelm.__all__
