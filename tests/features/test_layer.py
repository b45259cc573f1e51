import copy
import dataclasses
import json
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from gorelm._features.guide import SubsetGuide
from gorelm._features.layer import _BLOCK_BYTES, ACTIVATIONS, HiddenLayer, _sample
from support.sweeps import at, examples

NAMES = list(ACTIVATIONS)
RADIAL = [name for name, act in ACTIVATIONS.items() if act.radial]
PERIODIC = [name for name, act in ACTIVATIONS.items() if act.periodic]
ADDITIVE = [name for name in NAMES if name not in RADIAL]

# h of z = a·x + b, or of the distance r of x and c and the width w; a new activation adds its line.
FORMULA = {
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "tanh": lambda z: (np.exp(z) - np.exp(-z)) / (np.exp(z) + np.exp(-z)),
    "relu": lambda z: z if z > 0 else 0.0,
    "leaky_relu": lambda z: z if z > 0 else 0.01 * z,
    "softplus": lambda z: np.log(1 + np.exp(z)),
    "hardlim": lambda z: 1.0 if z >= 0 else 0.0,
    "sine": np.sin,
    "cosine": lambda z: np.sin(z + np.pi / 2),
    "gaussian": lambda r, w: np.exp(-((r / w) ** 2)),
    "multiquadric": lambda r, w: np.hypot(r, w),
    "laplace": lambda r, w: np.exp(-r / w),
}

ORDER = {"laplace": 1}  # of the norm that a radial node measures distances by

SPARSE = [
    sparse.csr_matrix,
    sparse.csc_matrix,
    sparse.coo_matrix,
    sparse.csr_array,
    sparse.csc_array,
    sparse.coo_array,
]


def make_X(n_rows=37, n_features=4, seed=0):
    X = np.random.RandomState(seed).normal(size=(n_rows, n_features))
    X[X < -0.5] = 0.0
    return X


def make_layer(name, n_hidden=11, X=None, **kwargs):
    X = make_X() if X is None else X
    kwargs.setdefault("random_state", 3)
    return HiddenLayer.draw(n_hidden, X.shape[1], activation=name, X=X, **kwargs)


def extra(name, X):
    """Return what grow needs besides the number of nodes."""
    return {"X": X} if name in RADIAL else {}


def naive(layer, X):
    formula = FORMULA[layer.activation]
    H = np.empty((len(X), layer.n_nodes))
    for i, x in enumerate(X):
        for j, (a, b) in enumerate(zip(layer.A, layer.b, strict=True)):
            seen = x if layer.subsets is None else x[layer.subsets[j]]
            radial = layer.activation in RADIAL
            r = np.linalg.norm(seen - a, ORDER.get(layer.activation, 2))
            H[i, j] = formula(r, b) if radial else formula(seen @ a + b)
    return np.hstack([X[:, layer.inputs], H])


def assert_same(one, other):
    assert one.__dict__.keys() == other.__dict__.keys()
    for key, value in one.__dict__.items():
        np.testing.assert_array_equal(value, other.__dict__[key], err_msg=key)


# -- values ------------------------------------------------------------------------------------


@pytest.mark.crossed("weights", "direct_link")
@pytest.mark.parametrize("direct_link", [False, True])
@pytest.mark.parametrize("weights", ["uniform", "normal"])
@pytest.mark.parametrize("name", NAMES)
def test_formula(name, weights, direct_link):
    X = make_X()
    layer = make_layer(name, weights=weights, weight_scale=0.7, direct_link=direct_link)
    H = layer.transform(X)
    assert H.shape == (len(X), layer.n_outputs) == (37, 15 if direct_link else 11)
    np.testing.assert_allclose(H, naive(layer, X), rtol=1e-11, atol=1e-11)
    if direct_link:
        np.testing.assert_array_equal(H[:, :4], X)


@pytest.mark.parametrize("name", NAMES)
def test_uniform_golden(name):
    layer = HiddenLayer.draw(2, 2, activation=name, random_state=0, X=np.eye(2))
    assert layer.seed == 209652396
    if name in RADIAL:  # two uniforms a node: which row, how wide
        np.testing.assert_array_equal(layer.A, [[1.0, 0.0], [0.0, 1.0]])
        np.testing.assert_allclose(
            layer.b,
            2 ** (1 / ORDER.get(name, 2)) * 2 ** np.array([0.3714246350220449, -0.608807179675555]),
            rtol=1e-14,
        )
        return
    np.testing.assert_array_equal(
        layer.A,
        [[-0.027905353956899193, 0.3714246350220449], [-0.608807179675555, 0.166823346967248]],
    )
    bias = [6.1925569606250415, 6.161179527632524]
    bias = bias if name in PERIODIC else [0.9711521013231976, 0.9611643541986099]
    np.testing.assert_allclose(layer.b, bias, rtol=1e-15)


@pytest.mark.parametrize("name", ADDITIVE)
def test_normal_golden(name):
    layer = HiddenLayer.draw(2, 2, activation=name, weights="normal", random_state=0)
    expected = [[-0.03498130770203547, 0.483733007141405], [-0.8574561836914432, 0.210629164246051]]
    np.testing.assert_allclose(layer.A, expected, rtol=1e-12)
    bias = [6.1925569606250415, 6.161179527632524]
    bias = bias if name in PERIODIC else [2.1855588131794397, 2.0659241112447915]
    np.testing.assert_allclose(layer.b, bias, rtol=1e-12)


def test_distributions():
    uniform = HiddenLayer.draw(20_000, 3, weight_scale=2.0, random_state=0)
    drawn = np.column_stack([uniform.A, uniform.b])
    assert -2 <= drawn.min() < -1.99
    assert 1.99 < drawn.max() < 2
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(drawn.std(axis=0), 2 / 3**0.5, rtol=0.02)
    normal = HiddenLayer.draw(20_000, 3, weights="normal", weight_scale=2.0, random_state=0)
    drawn = np.column_stack([normal.A, normal.b])
    np.testing.assert_allclose(drawn.std(axis=0), 2, rtol=0.02)
    np.testing.assert_allclose((drawn**4).mean(axis=0), 3 * 2**4, rtol=0.1)
    phase = HiddenLayer.draw(20_000, 1, activation="cosine", weights="normal", random_state=0).b
    assert 0 <= phase.min() < 0.01
    assert 2 * np.pi - 0.01 < phase.max() < 2 * np.pi


@pytest.mark.parametrize("name", NAMES)
def test_reproducible(name):
    assert_same(make_layer(name), make_layer(name))
    other = make_layer(name, random_state=4)
    assert not np.array_equal(other.b, make_layer(name).b)
    stream = np.random.RandomState(3)
    assert_same(make_layer(name, random_state=stream), make_layer(name))
    assert not np.array_equal(make_layer(name, random_state=stream).b, make_layer(name).b)


# -- dense, sparse, offset, dtypes, blocks -----------------------------------------------------


@pytest.mark.crossed("kind", "dtype")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.parametrize("name", NAMES)
def test_sparse_is_dense(name, kind, dtype):
    X = make_X().astype(dtype)
    layer = make_layer(name, direct_link=True, X=X)
    assert_same(make_layer(name, direct_link=True, X=kind(X)), layer)
    H = layer.transform(kind(X))
    assert isinstance(H, np.ndarray)
    assert H.dtype == dtype
    tol = 1e-12 if dtype == np.float64 else 2e-6
    np.testing.assert_allclose(H, layer.transform(X), rtol=tol, atol=tol)


def test_sparse_duplicates_are_summed_and_input_kept():
    X = sparse.csr_matrix(
        (np.array([1.0, 2.0, -1.0]), np.array([1, 1, 0]), np.array([0, 3])), shape=(1, 3)
    )
    layer = make_layer("gaussian", X=np.eye(3))
    np.testing.assert_allclose(layer.transform(X), layer.transform([[-1.0, 3.0, 0.0]]))
    np.testing.assert_array_equal(X.data, [1.0, 2.0, -1.0])


@pytest.mark.crossed("name", "convert")
@pytest.mark.parametrize("convert", [np.asarray, *SPARSE])
@pytest.mark.parametrize("name", NAMES)
def test_offset(name, convert):
    X, offset = make_X(), np.array([0.5, -2.0, 0.0, 3.0])
    layer = make_layer(name, direct_link=True, X=X + offset)
    assert_same(make_layer(name, direct_link=True, X=convert(X), offset=offset), layer)
    H = layer.transform(convert(X), offset=offset)
    np.testing.assert_allclose(H, layer.transform(X + offset), rtol=1e-12, atol=1e-12)
    assert np.abs(H - layer.transform(X)).max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_float32(name):
    X = make_X().astype(np.float32)
    layer = make_layer(name, direct_link=True)
    H = layer.transform(X, offset=np.ones(4))
    assert H.dtype == np.float32
    wide = layer.transform(X.astype(np.float64), offset=np.ones(4))
    assert wide.dtype == np.float64
    np.testing.assert_allclose(H, wide, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("dtype", [int, bool, np.float16, object, ">f8", ">f4"])
def test_other_dtypes_become_float64(dtype):
    X = make_X().round().astype(dtype)
    layer = make_layer("tanh", direct_link=True)
    H = layer.transform(X)
    assert H.dtype == np.float64
    np.testing.assert_array_equal(H, layer.transform(X.astype(np.float64)))


@pytest.mark.parametrize("name", NAMES)
def test_block_boundaries_do_not_matter(name):
    layer = make_layer(name, n_hidden=1000, direct_link=True)
    n_rows = _BLOCK_BYTES // 8000
    X = make_X(2 * n_rows + 1)
    H = layer.transform(X)
    for n in (0, 1, n_rows - 1, n_rows, n_rows + 1, 2 * n_rows):
        for part in (X[:n], sparse.csr_array(X[:n])):
            np.testing.assert_allclose(layer.transform(part), H[:n], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(H[-1:], layer.transform(X[-1:]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_out(name, order):
    X = make_X()
    kept = X.copy()
    layer = make_layer(name, direct_link=True)
    frame = np.full((len(X), layer.n_outputs + 2), -7.0, order=order)
    out = frame[:, 1:-1]
    assert layer.transform(X, out=out) is out
    np.testing.assert_array_equal(out, layer.transform(X))
    np.testing.assert_array_equal(frame[:, [0, -1]], -7.0)
    np.testing.assert_array_equal(X, kept)


@pytest.mark.crossed("name", "convert")
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("name", NAMES)
def test_no_temporary_as_large_as_H(name, convert):
    X = convert(make_X(4000))
    layer = make_layer(name, n_hidden=500, X=X)
    out = np.empty((4000, 500))
    layer.transform(X, out=out)
    tracemalloc.start()
    try:
        layer.transform(X, out=out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.5 * out.nbytes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_extreme_inputs(name, dtype):
    huge = np.finfo(dtype).max
    ends = [[huge, huge], [-huge, huge], [-huge, -huge], [1e4, -1e4], [0, 1e-30]]
    X = np.array([[0.3, -0.2], *ends], dtype)
    tol = 1e-12 if dtype == np.float64 else 2e-6
    layers = [make_layer(name, n_hidden=40, X=make_X(n_features=2)), make_layer(name, 40, X=X)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_layer(name, X=X)
        for layer in layers:
            for rows in (X, sparse.csr_array(X)):
                H = layer.transform(rows)
                assert np.all(np.isfinite(H))
                assert abs(rows).max() == huge  # not clipped in place
                # The ordinary row does not feel its neighbours.
                np.testing.assert_allclose(H[:1], layer.transform(rows[:1]), rtol=tol, atol=tol)


def test_saturation():
    X = np.array([[1e308], [-1e308]])
    limits = {"sigmoid": (0, 1), "tanh": (-1, 1), "hardlim": (0, 1), "gaussian": (0, 0)}
    for name, ends in limits.items():
        layer = make_layer(name, X=np.linspace(-1, 1, 9)[:, None])
        H = np.sort(layer.transform(X), axis=0)
        np.testing.assert_array_equal(H, np.repeat([ends], 11, axis=0).T.astype(float))
    layer = HiddenLayer.draw(5, 1, activation="softplus", random_state=0)
    z = 1e4 * layer.A[:, 0] + layer.b
    np.testing.assert_allclose(layer.transform([[1e4]])[0], np.maximum(z, 0), atol=1e-12)


def test_hardlim_is_one_at_zero():
    layer = dataclasses.replace(make_layer("hardlim"), A=np.zeros((1, 4)), b=np.zeros(1))
    np.testing.assert_array_equal(layer.transform(np.ones((2, 4))), 1.0)


def test_normal_weights_are_finite_when_a_uniform_is_zero(monkeypatch):
    class Zeros(np.random.RandomState):
        def random_sample(self, size=None):
            return np.zeros(size)

    layer = make_layer("tanh", weights="normal")
    monkeypatch.setattr(np.random, "RandomState", Zeros)
    grown = layer.grow(1)
    assert np.all(np.isfinite(grown.A))
    assert grown.A[-1, 0] < -8


# -- growing and keeping -----------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["uniform", "normal"])
@pytest.mark.parametrize("name", NAMES)
def test_grow(name, weights):
    X = make_X()
    options = {"weights": weights, "direct_link": True, "X": X}
    layer = make_layer(name, n_hidden=10, **options)
    before = copy.deepcopy(layer)
    once = layer.grow(100, **extra(name, X))
    twice = layer.grow(50, **extra(name, X)).grow(50, **extra(name, X))
    assert_same(once, twice)
    assert_same(once, make_layer(name, n_hidden=110, **options))
    assert_same(layer, before)
    np.testing.assert_array_equal(once.A[:10], layer.A)
    np.testing.assert_array_equal(once.b[:10], layer.b)
    assert len(np.unique(once.b)) == 110
    np.testing.assert_allclose(
        once.transform(X)[:, : layer.n_outputs], layer.transform(X), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("name", NAMES)
def test_keep(name):
    X = make_X()
    layer = make_layer(name, direct_link=True)
    before = copy.deepcopy(layer)
    mask = np.zeros(15, dtype=bool)
    mask[[1, 3, 4, 9, 14]] = True
    kept = layer.keep(mask)
    assert_same(kept, layer.keep([1, 3, 4, 9, 14]))
    assert_same(layer, before)
    assert kept.n_outputs == 5
    assert kept.n_nodes == 3
    columns = layer.transform(X)[:, mask]
    np.testing.assert_allclose(kept.transform(X), columns, rtol=1e-12, atol=1e-12)
    # Fresh nodes after the kept ones: those the whole layer would have grown.
    grown = kept.grow(6, **extra(name, X))
    fresh = layer.grow(6, **extra(name, X)).transform(X)[:, -6:]
    np.testing.assert_allclose(
        grown.transform(X), np.hstack([columns, fresh]), rtol=1e-12, atol=1e-12
    )
    again = grown.keep([0, 2, 10])
    np.testing.assert_allclose(again.transform(X), grown.transform(X)[:, [0, 2, 10]], rtol=1e-12)


@pytest.mark.parametrize("nothing", [[], np.zeros(15, dtype=bool)])
@pytest.mark.parametrize("name", NAMES)
def test_keep_nothing(name, nothing):
    X = make_X()
    empty = make_layer(name, direct_link=True).keep(nothing)
    assert empty.transform(X).shape == (37, 0)
    assert empty.transform(sparse.csr_array(X)).shape == (37, 0)
    assert empty.grow(2, **extra(name, X)).transform(X).shape == (37, 2)


@pytest.mark.parametrize("name", NAMES)
def test_direct_link_alone(name):
    X = make_X()
    layer = HiddenLayer.draw(0, 4, activation=name, direct_link=True, random_state=3)
    np.testing.assert_array_equal(layer.transform(X), X)
    np.testing.assert_array_equal(layer.transform(sparse.csc_matrix(X)), X)
    assert_same(layer.grow(11, **extra(name, X)), make_layer(name, direct_link=True))


@given(
    n=st.integers(1, 20),
    steps=st.lists(st.integers(1, 9), max_size=4),
    seed=st.integers(0, 2**31 - 1),
    data=st.data(),
)
@examples(50)
def test_any_history_of_growing_and_keeping(n, steps, seed, data):
    """Whatever was removed on the way, a layer is a choice of the columns of the full one."""
    name = data.draw(st.sampled_from(NAMES))
    X = make_X(6, 2)
    layer = make_layer(name, n, X=X, direct_link=True, random_state=seed)
    columns = np.arange(layer.n_outputs)
    full = make_layer(name, n + sum(steps), X=X, direct_link=True, random_state=seed)
    for step in steps:
        mask = np.array(
            data.draw(st.lists(st.booleans(), min_size=len(columns), max_size=len(columns))), bool
        )
        new = 2 + layer.n_drawn + np.arange(step)
        layer = layer.keep(mask).grow(step, **extra(name, X))
        columns = np.concatenate([columns[mask], new])
    np.testing.assert_allclose(
        layer.transform(X), full.transform(X)[:, columns], rtol=1e-10, atol=1e-10
    )


# -- radial nodes ------------------------------------------------------------------------------


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("name", RADIAL)
def test_weights_are_repeats(name, convert):
    X = make_X()
    weight = np.random.RandomState(1).randint(0, 4, size=len(X))
    weight[[0, -1]] = 0
    repeated = make_layer(name, 200, X=convert(np.repeat(X, weight, axis=0)))
    weighted = make_layer(name, 200, X=convert(X), sample_weight=weight)
    assert_same(weighted, repeated)
    assert not np.array_equal(weighted.A, make_layer(name, 200, X=convert(X)).A)
    assert_same(
        weighted.grow(9, X=convert(X), sample_weight=weight),
        repeated.grow(9, X=convert(np.repeat(X, weight, axis=0))),
    )
    doubled = make_layer(name, 200, X=convert(X), sample_weight=np.full(len(X), 2.0))
    assert_same(doubled, make_layer(name, 200, X=convert(X)))


@pytest.mark.parametrize("name", RADIAL)
def test_centres_are_rows_and_widths_follow_the_data(name):
    X = make_X(500)
    layer = make_layer(name, 400, X=X)
    assert all(np.any(np.all(c == X, axis=1)) for c in layer.A)
    assert len(np.unique(layer.A, axis=0)) > 200
    pairs = np.linalg.norm(X[:, None] - X[None], ORDER.get(name, 2), axis=2)
    factor = layer.b / np.median(pairs[pairs > 0])
    assert 0.4 < factor.min() < 0.6
    assert 1.7 < factor.max() < 2.3
    np.testing.assert_allclose(make_layer(name, 400, X=8 * X).b, 8 * layer.b, rtol=1e-12)
    sharper = make_layer(name, 400, X=X, weight_scale=4.0)
    np.testing.assert_allclose(sharper.b, layer.b / 4, rtol=1e-12)


def test_sampling_is_the_inverse_distribution_function():
    X = np.arange(5.0)[:, None]
    cdf = np.cumsum([0.0, 1.0, 0.0, 3.0, 0.0])
    rows = _sample(X, cdf, np.array([0.0, 0.2, 0.25, 1 - 2**-53]))
    np.testing.assert_array_equal(rows[:, 0], [1, 1, 3, 3])


@pytest.mark.slow_unless(dtype=np.float32)
@pytest.mark.crossed
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", RADIAL)
def test_cancellation(name, dtype):
    """Far from the origin squared distances lose digits, and would go below 0 at the centres."""
    X = (100 + make_X(300)).astype(dtype)
    layer = make_layer(name, 200, X=X)
    np.testing.assert_allclose(layer.transform(X), naive(layer, X), rtol=2e-6)
    H = make_layer(name, 200, X=X, weight_scale=1e12).transform(X)
    assert np.all(H >= 0)
    assert name != "gaussian" or np.all(H <= 1)


def test_vanishing_width():
    layer = make_layer("gaussian", X=np.zeros((1, 2)), weight_scale=1e200)
    np.testing.assert_array_equal(layer.transform([[0, 0], [1, 0]])[:, 0], [1, 0])


def test_distances_of_sparse_rows_take_little_memory():
    """cdist wants dense rows; all at once they would take 80 MB."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, 500, 9000), rng.integers(0, 20_000, 9000)
    X = sparse.csr_array((rng.normal(size=9000), places), shape=(500, 20_000))
    layer = HiddenLayer.draw(3, 20_000, activation="laplace", X=X, random_state=0)
    tracemalloc.start()
    H = layer.transform(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    np.testing.assert_allclose(H[:5], layer.transform(X[:5].toarray()), rtol=1e-12)


@pytest.mark.parametrize("X", [np.ones((1, 3)), np.ones((5, 3)), np.full((4, 3), 1e-200)])
@pytest.mark.parametrize("name", RADIAL)
def test_degenerate_data_has_unit_distance(name, X):
    X = X.copy()
    X[0, 0] *= 1 + 1e-3 * (X[0, 0] < 1)  # squares that underflow count as none
    layer = make_layer(name, 50, X=X)
    unit = np.ptp(X[:, 0]) or 1.0 if name == "laplace" else 1.0
    assert np.all((layer.b >= 0.5 * unit) & (layer.b < 2 * unit))
    assert np.all(np.isfinite(layer.transform(X)))


def test_typical_distance_ignores_duplicates_and_outliers():
    X = np.vstack([np.zeros((80, 1)), np.ones((20, 1)), [[1e6]]])
    layer = make_layer("gaussian", 50, X=X)
    assert np.all((layer.b >= 0.5) & (layer.b < 2))


# -- nodes that see few inputs -----------------------------------------------------------------


def test_all_inputs_are_the_dense_layer():
    X = make_X()
    for name in NAMES:
        dense = make_layer(name, X=X)
        assert dense.subsets is None
        for n_inputs in (None, 4, 5, 1000):
            with at(name=name, n_inputs=n_inputs):
                assert_same(make_layer(name, X=X, n_inputs=n_inputs), dense)


def test_few_inputs_golden():
    """A node is k uniforms for its inputs and then those of a node with k inputs."""
    for name in NAMES:
        layer = HiddenLayer.draw(3, 5, n_inputs=2, activation=name, X=np.eye(5), random_state=0)
        U = np.random.RandomState(layer.seed).random_sample((3, 4 if name in RADIAL else 5))
        expected = []
        for u, v in U[:, :2]:  # Floyd: one of the first 4, then one of all 5, or else the last
            first, second = int(4 * u), int(5 * v)
            expected.append(sorted([first, 4 if second == first else second]))
        with at(name=name):
            np.testing.assert_array_equal(layer.subsets, expected)
            if name in RADIAL:
                rows = np.eye(5)[(5 * U[:, 2]).astype(int)]
                np.testing.assert_array_equal(
                    layer.A, np.take_along_axis(rows, layer.subsets, axis=1)
                )
            else:
                np.testing.assert_array_equal(layer.A, 2 * U[:, 2:4] - 1)


@pytest.mark.crossed
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array, sparse.csc_matrix])
@pytest.mark.parametrize("n_features", [5, 300])
@pytest.mark.parametrize("name", NAMES)
def test_few_inputs_formula(name, n_features, convert, dtype):
    """With 5 inputs the product is dense and with 300 it is sparse."""
    X, offset = make_X(70, n_features).astype(dtype), np.linspace(-1, 1, n_features)
    tol = 1e-11 if dtype == np.float64 else 3e-6
    for n_inputs in (1, 3):
        with at(n_inputs=n_inputs):
            options = {"direct_link": True, "n_inputs": n_inputs, "offset": offset}
            layer = make_layer(name, 40, X=convert(X), **options)
            assert layer.A.shape == layer.subsets.shape == (40, n_inputs)
            assert_same(layer, make_layer(name, 40, X=X, **options))
            H = layer.transform(convert(X), offset=offset)
            assert H.dtype == dtype
            expected = naive(layer, (X + offset).astype(float))
            np.testing.assert_allclose(H, expected, rtol=tol, atol=tol)
            kept = np.arange(0, layer.n_outputs, 3)
            np.testing.assert_allclose(
                layer.keep(kept).transform(convert(X), offset=offset),
                H[:, kept],
                rtol=tol,
                atol=tol,
            )


@pytest.mark.parametrize("name", NAMES)
def test_few_inputs_see_no_other(name):
    X = make_X(30, 6)
    layer = make_layer(name, 50, X=X, n_inputs=2)
    H = layer.transform(X)
    for j in range(6):
        changed = X.copy()
        changed[:, j] += 100.0
        sees = (layer.subsets == j).any(axis=1)
        other = layer.transform(changed)
        np.testing.assert_allclose(other[:, ~sees], H[:, ~sees], rtol=1e-9, atol=1e-9)
        felt = np.abs(other - H)[:, sees].max(axis=0) > 1e-3
        assert felt.mean() > (0.2 if name in ("hardlim", "relu") else 0.99)  # these have flat parts


@pytest.mark.parametrize("name", NAMES)
def test_few_inputs_grow(name):
    X = make_X(40, 7)
    guide = SubsetGuide([[0, 1, 2], [1, 4, 6]], [0.5, 0.5])
    for n_inputs, how in ((1, {}), (3, {}), (3, {"guide": guide})):
        with at(n_inputs=n_inputs, how=how):
            options = {"X": X, "n_inputs": n_inputs, "direct_link": True, **how}
            layer = make_layer(name, n_hidden=10, **options)
            before = copy.deepcopy(layer)
            once = layer.grow(30, **extra(name, X), **how)
            twice = layer.grow(13, **extra(name, X), **how).grow(17, **extra(name, X), **how)
            assert_same(once, twice)
            assert_same(once, make_layer(name, n_hidden=40, **options))
            assert_same(layer, before)
            for old, new in ((layer.A, once.A), (layer.b, once.b), (layer.subsets, once.subsets)):
                np.testing.assert_array_equal(new[:10], old)
            # Removed nodes change none that come after, all of them removed included.
            for kept in (np.arange(12), np.array([7, 9, 16]), []):
                grown = layer.keep(kept).grow(30, **extra(name, X), **how)
                np.testing.assert_array_equal(grown.A[-30:], once.A[-30:])
                np.testing.assert_array_equal(grown.subsets[-30:], once.subsets[-30:])
            restored = pickle.loads(pickle.dumps(layer))
            assert_same(restored.grow(30, **extra(name, X), **how), once)


def test_a_guide_changes_the_inputs_alone():
    X = make_X(40, 7)
    guide = SubsetGuide([[0, 1, 2], [1, 4, 6]], [0.5, 0.5])
    for name in ADDITIVE:
        free, guided = (make_layer(name, 30, X=X, n_inputs=3, guide=g) for g in (None, guide))
        assert np.mean(free.subsets != guided.subsets) > 0.3
        np.testing.assert_array_equal(free.A, guided.A)
        np.testing.assert_array_equal(free.b, guided.b)


@pytest.mark.parametrize("name", RADIAL)
def test_widths_of_few_inputs_follow_those(name):
    """In units of its own inputs, a node is as wide as a layer of these inputs alone."""
    X = make_X(300, 4) * [1.0, 10.0, 1e-3, 0.0]
    layer = make_layer(name, 200, X=X, n_inputs=2)
    U = np.random.RandomState(layer.seed).random_sample((200, 4))
    for node in range(200):
        alone = make_layer(name, 1, X=X[:, layer.subsets[node]])
        unit = alone.b[0] / 4 ** (np.random.RandomState(alone.seed).random_sample(2)[1] - 0.5)
        np.testing.assert_allclose(layer.b[node], unit * 4 ** (U[node, 3] - 0.5), rtol=1e-12)
    one = make_layer(name, 50, X=X, n_inputs=1)
    widths = one.b[one.subsets[:, 0] == 3]  # of an input in which no two rows differ
    assert len(widths) > 3
    assert np.all((widths >= 0.5) & (widths < 2))


@pytest.mark.parametrize("name", RADIAL)
def test_few_inputs_weights_are_repeats(name):
    X = make_X(30, 5)
    weight = np.random.RandomState(1).randint(0, 4, size=len(X))
    repeated = make_layer(name, 60, X=np.repeat(X, weight, axis=0), n_inputs=2)
    assert_same(make_layer(name, 60, X=X, n_inputs=2, sample_weight=weight), repeated)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("n_features", [5, 300])
def test_few_inputs_take_little_memory(n_features, convert):
    X = convert(make_X(4000, n_features))
    for name in ("tanh", "gaussian", "laplace"):
        layer = make_layer(name, n_hidden=500, X=X, n_inputs=2)
        out = np.empty((4000, 500))
        layer.transform(X, out=out)
        tracemalloc.start()
        try:
            layer.transform(X, out=out)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        with at(name=name):
            assert peak < 0.8 * out.nbytes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_few_inputs_extreme(name, dtype):
    huge = np.finfo(dtype).max
    tol = 1e-12 if dtype == np.float64 else 2e-6
    for n_features in (3, 100):
        X = np.zeros((4, n_features), dtype)
        X[:, :3] = [[0.3, -0.2, 0.1], [huge, -huge, huge], [-huge, huge, 1], [1e4, 0, 1e-30]]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layer = make_layer(name, 40, X=X, n_inputs=2)
            for rows in (X, sparse.csr_array(X)):
                H = layer.transform(rows)
                assert np.all(np.isfinite(H))
                np.testing.assert_allclose(H[:1], layer.transform(rows[:1]), rtol=tol, atol=tol)


def test_a_layer_of_an_earlier_version_sees_all_inputs():
    layer = make_layer("tanh")
    old = object.__new__(HiddenLayer)
    old.__dict__.update({k: v for k, v in vars(layer).items() if k != "subsets"})
    np.testing.assert_array_equal(old.transform(make_X()), layer.transform(make_X()))
    assert_same(old.grow(3), layer.grow(3))
    assert_same(old.keep([1, 2]), layer.keep([1, 2]))


def test_no_subset_reads_or_writes_beyond_the_inputs():
    """Files can hold any numbers, and loading one does not call the constructor."""
    X = make_X(9, 6)
    for name in ("tanh", "gaussian", "laplace"):
        layer = make_layer(name, X=X, n_inputs=2)
        for wrong in (-1, -6, 6, 2**40, -(2**40)):
            subsets = layer.subsets.copy()
            subsets[3, 1] = wrong
            other = dataclasses.replace(layer, subsets=subsets)
            for rows in (X, sparse.csr_array(X)):
                with at(name=name, wrong=wrong), pytest.raises(ValueError, match="input indices"):
                    other.transform(rows)
        for wrong in (layer.subsets[:5], layer.subsets[:, :1], layer.subsets.astype(float)):
            other = dataclasses.replace(layer, subsets=wrong)
            with at(name=name), pytest.raises((ValueError, IndexError)):
                other.transform(X)


def test_scattered():
    layer = make_layer("tanh", X=make_X(9, 6), n_inputs=2)
    W = layer.scattered(layer.A)
    assert W.shape == (11, 6)
    assert np.count_nonzero(W) == 22
    X = make_X(9, 6)
    np.testing.assert_allclose(np.tanh(X @ W.T + layer.b), layer.transform(X), rtol=1e-12)
    dense = make_layer("tanh")
    assert dense.scattered(dense.A) is dense.A


# -- storing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_plain_data(name):
    X = make_X()
    layer = make_layer(name, direct_link=True).keep([0, 2, 5, 6, 7])
    plain = json.loads(
        json.dumps({k: v.tolist() if hasattr(v, "tolist") else v for k, v in vars(layer).items()})
    )
    arrays = {"inputs": np.intp, "A": float, "b": float}
    rebuilt = HiddenLayer(
        **{k: np.array(v, arrays[k]) if k in arrays else v for k, v in plain.items()}
    )
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), rebuilt):
        assert_same(other, layer)
        assert_same(other.grow(3, **extra(name, X)), layer.grow(3, **extra(name, X)))
        np.testing.assert_array_equal(other.transform(X), layer.transform(X))


def test_attributes():
    layer = make_layer("tanh", direct_link=True)
    assert (layer.activation, layer.weights, layer.weight_scale) == ("tanh", "uniform", 1.0)
    assert (layer.n_features, layer.n_nodes, layer.n_outputs, layer.n_drawn) == (4, 11, 15, 11)
    assert layer.dtype == np.float64
    with pytest.raises(AttributeError):
        layer.seed = 1


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "sigmiod"}, r"'sigmiod'; known: sigmoid, tanh.*Did you mean 'sigmoid'"),
        ({"activation": "xyz"}, r"known: .*laplace\.$"),
        ({"activation": None}, "Unknown activation None"),
        ({"weights": "cauchy"}, "weights must be 'uniform' or 'normal', got 'cauchy'"),
        ({"weight_scale": -1.0}, "weight_scale must be positive and finite, got -1"),
        ({"weight_scale": 0}, "weight_scale must be positive"),
        ({"weight_scale": np.nan}, "weight_scale must be positive"),
        ({"n_hidden": 0}, "n_hidden must be at least 1 .*got 0"),
        ({"n_hidden": -1, "direct_link": True}, "n_hidden must be at least 1 .*got -1"),
        ({"n_features": 0}, "n_features must be at least 1, got 0"),
        ({"n_inputs": 0}, "n_inputs must be at least 1, or None for all, got 0"),
        ({"n_inputs": -2}, "n_inputs must be at least 1, or None for all, got -2"),
        ({"guide": SubsetGuide([[0, 1]], [1.0])}, "nodes that see few inputs; these see all"),
        (
            {"guide": SubsetGuide([[0, 1]], [1.0]), "n_inputs": 3},
            "subsets of 2 inputs .* see 3 of 4",
        ),
        (
            {"guide": SubsetGuide([[0, 7]], [1.0]), "n_inputs": 2},
            "up to number 7; .* see 2 of 4",
        ),
        ({"activation": "gaussian"}, "'gaussian' nodes .*X is needed"),
        ({"activation": "gaussian", "X": np.ones((3, 2))}, "X has 2 features, .* takes 4"),
        (
            {"activation": "gaussian", "X": np.ones((3, 4)), "sample_weight": [1, 1]},
            r"sample_weight has shape \(2,\), X has 3 rows",
        ),
        (
            {"activation": "gaussian", "X": np.ones((3, 4)), "sample_weight": [0, 0, 0]},
            "not all zero",
        ),
        (
            {"activation": "gaussian", "X": np.ones((3, 4)), "sample_weight": [1, -1, 1]},
            "non-negative",
        ),
        (
            {"activation": "gaussian", "X": np.ones((3, 4)), "sample_weight": [1, np.nan, 1]},
            "non-negative",
        ),
    ],
)
def test_draw_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        HiddenLayer.draw(**{"n_hidden": 3, "n_features": 4, **changes})


def test_sizes_are_integers():
    with pytest.raises(TypeError):
        HiddenLayer.draw(3.0, 4)
    with pytest.raises(TypeError):
        HiddenLayer.draw(3, 4, n_inputs=2.0)
    assert type(HiddenLayer.draw(np.int64(3), np.int32(4)).n_features) is int


def test_grow_errors():
    for n_new in (0, -1):
        with pytest.raises(ValueError, match=f"n_new must be at least 1, got {n_new}"):
            make_layer("tanh").grow(n_new)
    with pytest.raises(ValueError, match="X is needed"):
        make_layer("multiquadric").grow(1)


@pytest.mark.parametrize(
    "columns",
    [
        np.ones(10, dtype=bool),
        np.ones((1, 11), dtype=bool),
        [0, 11],
        [-1, 3],
        [3, 1],
        [2, 2],
        [0.0, 1.0],
        [[0, 1]],
        3,
    ],
)
def test_keep_errors(columns):
    with pytest.raises(ValueError, match=r"mask|Column indices"):
        make_layer("tanh").keep(columns)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csc_array])
def test_transform_errors(convert):
    layer = make_layer("tanh")
    with pytest.raises(ValueError, match="X has 3 features, the layer takes 4"):
        layer.transform(convert(np.ones((5, 3))))
    X = convert(np.ones((5, 4)))
    with pytest.raises(ValueError, match=r"offset has shape \(3,\), the layer takes 4"):
        layer.transform(X, offset=np.ones(3))
    with pytest.raises(ValueError, match=r"out must be float64 \(5, 11\), got float64 \(5, 4\)"):
        layer.transform(X, out=np.empty((5, 4)))
    with pytest.raises(ValueError, match="out must be float64"):
        layer.transform(X, out=np.empty((5, 11), np.float32))
    with pytest.raises(ValueError, match="2 dimensions, got 1"):
        layer.transform(np.ones(4))
