import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from gorelm._features.scaling import INPUT_SCALINGS, TARGET_SCALINGS, Scaling, weighted_quantiles

KINDS = [*dict.fromkeys([*INPUT_SCALINGS, *TARGET_SCALINGS])]
FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)

pytestmark = pytest.mark.filterwarnings("error")


def make_A(n_rows=80, n_columns=4, seed=0):
    rng = np.random.RandomState(seed)
    return rng.normal(size=(n_rows, n_columns)) * 10.0 ** np.arange(n_columns) + 5


def ones(A):
    return np.ones(A.shape[0])


# -- what the rules say --------------------------------------------------------------------------


def test_minmax_maps_onto_minus_one_to_one():
    A = make_A()
    scaled, offset = Scaling.fit("minmax", A, ones(A)).apply(A)
    assert offset is None
    np.testing.assert_allclose(scaled.min(axis=0), -1)
    np.testing.assert_allclose(scaled.max(axis=0), 1)


def test_standard_has_mean_zero_and_deviation_one():
    A = make_A()
    scaled, _ = Scaling.fit("standard", A, ones(A)).apply(A)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(axis=0), 1)


def test_robust_has_median_zero_and_the_quartiles_of_the_normal():
    A = make_A(81)
    scaled, _ = Scaling.fit("robust", A, ones(A)).apply(A)
    q1, q2, q3 = np.quantile(scaled, [0.25, 0.5, 0.75], axis=0, method="inverted_cdf")
    np.testing.assert_allclose(q2, 0, atol=1e-12)
    np.testing.assert_allclose(q3 - q1, 2 * 0.6744897501960817)


def test_robust_and_standard_agree_on_normal_data():
    A = np.random.RandomState(0).normal(3, 7, size=(20_000, 1))
    robust, standard = (Scaling.fit(kind, A, ones(A)) for kind in ("robust", "standard"))
    np.testing.assert_allclose(robust.centre, standard.centre, atol=0.2)
    np.testing.assert_allclose(robust.scale, standard.scale, rtol=0.05)


def test_robust_withstands_outliers():
    A = make_A(200)
    clean = Scaling.fit("robust", A, ones(A))
    A[::5] = 1e9
    dirty = Scaling.fit("robust", A, ones(A))
    assert np.all(dirty.scale < 2 * clean.scale)
    assert np.all(np.abs(dirty.centre - clean.centre) < clean.scale)


@pytest.mark.parametrize("fill", [1e14, 1e16, -1e25, 1e36])
@pytest.mark.parametrize("share", [0.12, 0.24])
def test_robust_takes_no_fill_values_for_the_scale(share, fill):
    """Beside 1e25 everything looks like rounding errors; the ordinary values are the scale."""
    A = make_A(200)
    clean = Scaling.fit("robust", A, ones(A))
    A[np.random.RandomState(1).permutation(200)[: round(share * 200)]] = fill
    dirty = Scaling.fit("robust", A, ones(A))
    assert np.all((clean.scale / 3 < dirty.scale) & (dirty.scale < 3 * clean.scale))
    assert np.all(np.abs(dirty.centre - clean.centre) < clean.scale)
    repeats = 1 + np.arange(200) % 3
    weighted = Scaling.fit("robust", A, repeats.astype(float))
    repeated = Scaling.fit("robust", np.repeat(A, repeats, axis=0), np.ones(repeats.sum()))
    np.testing.assert_array_equal(weighted.scale, repeated.scale)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9, 1e40])
def test_robust_takes_no_rounding_errors_of_zeros_for_the_scale(unit):
    rng = np.random.RandomState(0)
    values = unit * rng.normal(size=(1000, 1))
    values[:700] *= 1e-17
    scaling = Scaling.fit("robust", values, np.ones(1000))
    assert 0.1 * unit < scaling.scale[0] < 10 * unit


def test_none_changes_nothing():
    A = make_A()
    scaling = Scaling.fit(None, A, ones(A))
    np.testing.assert_array_equal(scaling.apply(A)[0], A)
    np.testing.assert_array_equal(scaling.undo(A), A)
    S, offset = scaling.apply(sparse.csr_array(A))
    np.testing.assert_array_equal(S.toarray() + offset, A)


def test_unknown_kind():
    A = make_A()
    with pytest.raises(KeyError):
        Scaling.fit("maxmin", A, ones(A))


def test_scalings_are_frozen():
    A = make_A()
    scaling = Scaling.fit("minmax", A, ones(A))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scaling.scale = scaling.centre


# -- properties of every rule --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, None])
@given(A=hnp.arrays(float, hnp.array_shapes(min_dims=2, max_dims=2), elements=FINITE))
def test_undo_is_the_inverse_of_apply(kind, A):
    scaling = Scaling.fit(kind, A, ones(A))
    assert np.isfinite(scaling.centre).all()
    assert (np.isfinite(scaling.scale) & (scaling.scale > 0)).all()
    size = np.abs(A).max(axis=0) + scaling.scale
    scaled, _ = scaling.apply(A)
    assert np.all(np.abs(scaling.undo(scaled) - A) <= 1e-12 * size)


@pytest.mark.parametrize("kind", [*KINDS, None])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_dtype(kind, dtype):
    A = make_A().astype(dtype)
    kept = A.copy()
    scaled, _ = Scaling.fit(kind, A, ones(A)).apply(A)
    assert scaled.dtype == (np.float32 if dtype is np.float32 else np.float64)
    np.testing.assert_array_equal(A, kept)
    wide, _ = Scaling.fit(kind, A.astype(float), ones(A)).apply(A.astype(float))
    np.testing.assert_allclose(scaled, wide, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_weights_are_repeats(kind, seed):
    rng = np.random.RandomState(seed)
    A = make_A(30, seed=seed)
    A[rng.uniform(size=A.shape) < 0.4] = 0.0
    w = rng.randint(1, 5, size=30)
    weighted = Scaling.fit(kind, A, w.astype(float))
    repeated = Scaling.fit(kind, np.repeat(A, w, axis=0), np.ones(w.sum()))
    np.testing.assert_allclose(weighted.centre, repeated.centre, rtol=1e-12)
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_no_unit(kind):
    A = make_A()
    w = np.random.RandomState(0).uniform(0.1, 3, size=len(A))
    one, other = Scaling.fit(kind, A, w), Scaling.fit(kind, A, 8 * w)
    np.testing.assert_allclose(one.centre, other.centre, rtol=1e-12)
    np.testing.assert_allclose(one.scale, other.scale, rtol=1e-12)


@pytest.mark.parametrize("kind", TARGET_SCALINGS)
def test_missing_cells_are_left_out(kind):
    A = make_A()
    holes = np.random.RandomState(1).uniform(size=A.shape) < 0.3
    w = 1.0 + np.arange(len(A)) % 3
    scaling = Scaling.fit(kind, np.where(holes, np.nan, A), w)
    for j in range(A.shape[1]):
        known = ~holes[:, j]
        alone = Scaling.fit(kind, A[known][:, [j]], w[known])
        np.testing.assert_array_equal(scaling.centre[j], alone.centre[0])
        np.testing.assert_array_equal(scaling.scale[j], alone.scale[0])


@pytest.mark.crossed
@pytest.mark.parametrize("kind", [*INPUT_SCALINGS, None])
@pytest.mark.parametrize("container", [sparse.csr_array, sparse.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sparse_is_dense(kind, container, dtype):
    A = make_A().astype(dtype)
    A[np.random.RandomState(1).uniform(size=A.shape) < 0.6] = 0.0
    A[:, 1] = 0.0
    A[:, 2] = 7.0
    w = 1.0 + np.arange(len(A)) % 3
    dense, thin = Scaling.fit(kind, A, w), Scaling.fit(kind, container(A), w)
    rtol = 1e-12 if dtype is np.float64 else 1e-6
    np.testing.assert_allclose(thin.centre, dense.centre, rtol=rtol, atol=1e-12)
    np.testing.assert_allclose(thin.scale, dense.scale, rtol=rtol)
    scaled, offset = thin.apply(container(A))
    assert sparse.issparse(scaled)
    assert scaled.dtype == dtype
    assert scaled.nnz == np.count_nonzero(A)
    atol = 1e-9 if dtype is np.float64 else 1e-4
    np.testing.assert_allclose(scaled.toarray() + offset, dense.apply(A)[0], atol=atol)


@pytest.mark.crossed("value", "n_rows")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 0.1, -1e9, 1 / 3, 1e300, 1e-300])
@pytest.mark.parametrize("n_rows", [1, 2, 1000])
def test_constant_has_scale_one(kind, value, n_rows):
    A = np.full((n_rows, 2), value)
    w = np.random.RandomState(0).uniform(0.1, 1, size=n_rows)
    scaling = Scaling.fit(kind, A, w)
    np.testing.assert_array_equal(scaling.scale, 1.0)
    np.testing.assert_allclose(scaling.centre, value, rtol=1e-12)
    A[::2] += np.spacing(value)  # constant up to rounding
    if value != 0:
        np.testing.assert_array_equal(Scaling.fit(kind, A, w).scale, 1.0)
    if kind in INPUT_SCALINGS:
        np.testing.assert_array_equal(Scaling.fit(kind, sparse.csr_array(A), w).scale, 1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e300])
def test_any_size(kind, size):
    A = make_A(n_columns=2)
    usual, extreme = Scaling.fit(kind, A, ones(A)), Scaling.fit(kind, A * size, ones(A))
    np.testing.assert_allclose(extreme.scale / size, usual.scale, rtol=1e-9)
    np.testing.assert_allclose(extreme.apply(A * size)[0], usual.apply(A)[0], rtol=1e-9, atol=1e-9)
    if kind in INPUT_SCALINGS:
        thin = Scaling.fit(kind, sparse.csr_array(A * size), ones(A))
        np.testing.assert_allclose(thin.scale / size, usual.scale, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_ends_of_the_floats(kind):
    A = np.array([[-1e308], [0.0], [1e308]])
    scaling = Scaling.fit(kind, A, ones(A))
    scaled, _ = scaling.apply(A)
    assert np.isfinite(scaled).all()
    assert np.abs(scaled).max() <= 2


# -- zero-inflated targets -----------------------------------------------------------------------


ZERO_INFLATED = {
    "counts, 60 % zero": lambda rng: rng.poisson(2, 500) * (rng.uniform(size=500) < 0.5),
    "counts, 90 % zero": lambda rng: rng.poisson(3, 500) * (rng.uniform(size=500) < 0.1),
    "counts, 97 % zero": lambda rng: rng.poisson(9, 500) * (rng.uniform(size=500) < 0.03),
    "three signs, mostly 0": lambda rng: rng.choice([-1, 0, 1], p=[0.1, 0.8, 0.1], size=500),
    "abundance classes": lambda rng: rng.choice([0, 1, 3, 5], p=[0.8, 0.1, 0.07, 0.03], size=500),
    "one in 500": lambda rng: (np.arange(500) == 250) * 3.0,
    "mostly 7": lambda rng: 7 + (rng.uniform(size=500) < 0.02) * rng.normal(size=500),
}


@pytest.mark.crossed
@pytest.mark.parametrize("name", ZERO_INFLATED)
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e9])
def test_robust_scale_where_the_middle_half_is_one_value(name, unit):
    values = unit * np.asarray(ZERO_INFLATED[name](np.random.RandomState(0)), dtype=float)
    assert np.ptp(np.quantile(values, [0.3, 0.7], method="inverted_cdf")) == 0 or "60" in name
    scaling = Scaling.fit("robust", values[:, None], np.ones(len(values)))
    assert scaling.centre[0] == np.median(values)
    # Positive, and of the size of the values that do vary.
    assert 0 < scaling.scale[0] <= np.ptp(values)
    scaled, _ = scaling.apply(values[:, None])
    assert np.abs(scaled).max() < 30
    repeats = 1 + np.arange(len(values)) % 3
    weighted = Scaling.fit("robust", values[:, None], repeats.astype(float))
    repeated = Scaling.fit("robust", np.repeat(values, repeats)[:, None], np.ones(repeats.sum()))
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-12)


@pytest.mark.parametrize("share", [0.15, 0.07, 0.03])
def test_robust_scale_of_counts_withstands_outliers(share):
    """As long as the values that vary are more than the wrong ones, these do not matter."""
    values = np.zeros(1000)
    n_counts = round(share * 1000)
    values[:n_counts] = 1 + np.arange(n_counts) % 3
    values[n_counts : n_counts + 3] = 1e9
    scaling = Scaling.fit("robust", values[:, None], np.ones(1000))
    assert scaling.centre[0] == 0
    assert 0.1 < scaling.scale[0] < 3


@pytest.mark.data
@pytest.mark.parametrize("name", ["edm", "scpf", "wq"])
def test_robust_scale_of_real_counts(load_real, name):
    _, T = load_real(name)
    q1, q3 = np.quantile(T, [0.25, 0.75], axis=0)
    assert np.any(q1 == q3), "no zero-inflated target: the wrong set for this test"
    scaling = Scaling.fit("robust", T, ones(T))
    assert np.isfinite(scaling.scale).all()
    assert np.all(scaling.scale > 0)
    varying = np.ptp(T, axis=0) > 0
    assert np.all(scaling.scale[varying] <= np.ptp(T, axis=0)[varying])
    assert np.median(np.abs(scaling.apply(T)[0]).max(axis=0)) < 100


# -- quantiles -----------------------------------------------------------------------------------


@given(
    values=hnp.arrays(float, st.integers(1, 30), elements=FINITE),
    seed=st.integers(0, 2**16),
)
def test_weighted_quantiles_are_those_of_repeats(values, seed):
    w = np.random.RandomState(seed).randint(1, 5, size=len(values))
    levels = [0.0, 0.01, 0.25, 0.5, 0.75, 0.9, 1.0]
    weighted = weighted_quantiles(values, levels, w.astype(float))
    repeated = weighted_quantiles(np.repeat(values, w), levels, np.ones(w.sum()))
    np.testing.assert_array_equal(weighted, repeated)
    assert np.isin(weighted, values).all()
