"""OS-ELM: rows in chunks of any sizes give what all of them at once give."""

import pickle
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from gorelm import OSELMRegressor, RELMRegressor
from gorelm._solver.least_squares import RecursiveRidge
from gorelm.datasets import contaminate, make_multitarget

UNSCALED = {"input_scaling": None, "target_scaling": None}


def data(n_rows=60, seed=0):
    drawn = make_multitarget(n_rows, 4, 3, outlier_ratio=0.2, random_state=seed)
    return drawn.X, drawn.T


def make(**params):
    return OSELMRegressor(**{"C": 10.0, "n_hidden": 20, "random_state": 0, **UNSCALED, **params})


def batch(**params):
    return RELMRegressor(**{"C": 10.0, "n_hidden": 20, "random_state": 0, **UNSCALED, **params})


def in_chunks(model, sizes, X, T, w=None):
    start = 0
    for size in sizes:
        rows = slice(start, start := start + size)
        model.partial_fit(X[rows], T[rows], None if w is None else w[rows])
    return model


def assert_same(model, other, X, tol=1e-8):
    scale = np.abs(other.coef_).max()
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=0, atol=tol * scale)
    expected = other.predict(X)
    np.testing.assert_allclose(
        model.predict(X), expected, rtol=0, atol=tol * max(1e-9, np.ptp(expected))
    )


# -- OS-ELM ----------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
    C=st.sampled_from([0.01, 1.0, 1e3]),
    weighted=st.booleans(),
    as_sparse=st.booleans(),
    n_hidden=st.sampled_from([1, 20, 50]),
)
@example(sizes=[1, 59], seed=0, C=1e3, weighted=False, as_sparse=False, n_hidden=20)
@example(sizes=[1] * 30, seed=1, C=1.0, weighted=True, as_sparse=True, n_hidden=50)
def test_chunks_are_one_batch(sizes, seed, C, weighted, as_sparse, n_hidden):
    X, T = data(sum(sizes), seed)
    rng = np.random.default_rng(seed)
    X, T = (array[rng.permutation(len(X))] for array in (X, T))
    w = rng.choice([0.5, 1.0, 4.0], len(X)) if weighted else None
    if as_sparse:
        X = sparse.csr_array(np.where(rng.random(X.shape) < 0.5, 0.0, X))
    params = {"C": C, "n_hidden": n_hidden}
    model = in_chunks(make(**params), sizes, X, T, w)
    assert_same(model, batch(**params).fit(X, T, w), X)
    assert model.n_samples_seen_ == len(T)


@pytest.mark.data
@pytest.mark.parametrize("name", ["enb", "jura", "rf1"])
def test_shuffled_chunks_of_real_rows_are_one_batch(load_real, name):
    X, T = (array[:1500] for array in load_real(name))
    T, _ = contaminate(T, 0.2, random_state=0)
    order = np.random.default_rng(0).permutation(len(X))
    low, high = X.min(axis=0), X.max(axis=0)
    X = (X - low) / np.where(high > low, high - low, 1.0)[None] * 2 - 1
    T = (T - np.median(T, axis=0)) / T.std(axis=0)
    sizes = [1, 7, 200, len(X) - 208]
    model = in_chunks(make(n_hidden=300), sizes, X[order], T[order])
    assert_same(model, batch(n_hidden=300).fit(X, T), X)


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("float32", {}),
        ("one-dimensional y", {}),
        ("plain", {"direct_link": True}),
        ("plain", {"activation": "relu"}),
        ("more targets than rows", {}),
        ("constant targets", {}),
    ],
)
def test_kinds_of_rows(kind, params):
    X, T = data()
    if kind == "float32":
        X = X.astype(np.float32)
    elif kind == "one-dimensional y":
        T = T[:, 0]
    elif kind == "more targets than rows":
        X, T = X[:4], np.random.default_rng(0).standard_normal((4, 6))
    elif kind == "constant targets":
        T = np.full(T.shape, 2.0)
    model = in_chunks(make(**params), [2, len(X) - 2], X, T)
    assert_same(model, batch(**params).fit(X, T), X, 1e-4 if kind == "float32" else 1e-8)
    assert model.predict(X).shape == T.shape


def test_radial_nodes_are_centred_on_the_first_rows():
    X, T = data()
    model = make(activation="gaussian").partial_fit(X[:15], T[:15])
    assert {tuple(a) for a in model.hidden_.A} <= {tuple(x) for x in X[:15]}
    layer = model.hidden_
    assert model.partial_fit(X[15:], T[15:]).hidden_ is layer
    H = layer.transform(X)
    coef = np.linalg.solve(H.T @ H + np.eye(20) / 10.0, H.T @ T)
    np.testing.assert_allclose(model.coef_, coef, atol=1e-8 * np.abs(coef).max())


def test_weights_are_repeated_rows():
    X, T = data()
    w = np.arange(60) % 3
    weighted = in_chunks(make(), [20, 40], X, T, w)
    repeated = in_chunks(make(), [20, 40], *(np.repeat(array, w, axis=0) for array in (X, T)))
    assert_same(weighted, repeated, X)
    assert weighted.n_samples_seen_ == np.count_nonzero(w)


def test_first_rows_set_the_scalings():
    X, T = data()
    model = in_chunks(make(input_scaling="minmax"), [30, 30], X, T)
    low, high = X[:30].min(axis=0), X[:30].max(axis=0)
    by_hand = batch().fit((X - low) / (high - low) * 2 - 1, T)
    np.testing.assert_allclose(model.coef_, by_hand.coef_, rtol=0, atol=1e-8)


def test_warns_when_few_rows_set_the_scalings():
    X, T = data()
    with pytest.warns(UserWarning, match=r"input_scaling and target_scaling .* 3 row"):
        make(input_scaling="minmax", target_scaling="robust").partial_fit(X[:3], T[:3])
    with pytest.warns(UserWarning, match="^input_scaling are set"):
        make(input_scaling="minmax").partial_fit(X[:3], T[:3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make().partial_fit(X[:1], T[:1])
        make(input_scaling="minmax").partial_fit(X[:10], T[:10]).partial_fit(X[:1], T[:1])


def test_fit_begins_again_and_partial_fit_goes_on():
    X, T = data()
    model = make().fit(X[:20], T[:20])
    first = model.predict(X)
    # C counts when the first rows come, and not after.
    assert_same(model.set_params(C=1e-3).partial_fit(X[20:], T[20:]), batch().fit(X, T), X)
    np.testing.assert_array_equal(model.set_params(C=10.0).fit(X[:20], T[:20]).predict(X), first)
    assert model.n_samples_seen_ == 20


def test_scores_are_those_of_the_last_rows():
    X, T = data()
    model = make().partial_fit(X[:20], T[:20]).partial_fit(X[20:], T[20:])
    expected = np.linalg.norm(model.predict(X[20:]) - T[20:], axis=1)
    np.testing.assert_allclose(model.outlier_scores_, expected, rtol=1e-9)
    assert model.outlier_mask_.shape == (40,)


def test_a_pickle_goes_on():
    X, T = data()
    model = make().partial_fit(X[:20], T[:20])
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    other.partial_fit(X[20:], T[20:])
    assert_same(other, model.partial_fit(X[20:], T[20:]), X, 1e-14)


def test_pruned_goes_on_with_the_nodes_that_are_left():
    X, T = data()
    X = X - 2.0  # relu nodes with a positive direction are dead
    model = make(activation="relu").partial_fit(X[:30], T[:30])
    assert 0 < model.n_active_ < 20
    model.prune().partial_fit(X[30:], T[30:])
    H = model.hidden_outputs(X)
    assert H.shape[1] < 20
    coef = np.linalg.solve(H.T @ H + np.eye(H.shape[1]) / 10.0, H.T @ T)
    np.testing.assert_allclose(model.coef_, coef, atol=1e-8 * np.abs(coef).max())


@given(seed=st.integers(0, 2**32 - 1), kept=st.sets(st.integers(0, 5), min_size=1))
def test_recursion_keeps_some_nodes(seed, kept):
    rng = np.random.default_rng(seed)
    H, T, nodes = rng.standard_normal((12, 6)), rng.standard_normal((12, 2)), sorted(kept)
    recursion = RecursiveRidge(6, 2, 10.0).absorbed(H[:5], T[:5])
    recursion = recursion.keep(np.array(nodes))
    some = H[:, nodes]
    coef = np.linalg.solve(some.T @ some + np.eye(len(nodes)) / 10.0, some.T @ T)
    after = recursion.absorbed(some[5:], T[5:])
    np.testing.assert_allclose(after.weights(), coef, atol=1e-9)


def test_an_empty_model_pruned_goes_on():
    X, T = data()
    model = make().partial_fit(X[:30], 0 * T[:30]).prune()
    assert model.hidden_.n_nodes == 0
    model.partial_fit(X[30:], T[30:])
    np.testing.assert_array_equal(model.predict(X), 0 * T)


X60, T60 = data()
UNKNOWN_X, UNKNOWN_T = X60.copy(), T60.copy()
UNKNOWN_X[3, 1] = UNKNOWN_T[3, 1] = np.nan


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((X60[:, :3], T60), "3 features"),
        ((X60, T60[:, :2]), "fitted with"),
        ((X60, T60[:, 0]), "fitted with"),
        ((X60, T60[:-1]), "inconsistent"),
        ((X60, None), "requires y"),
        ((UNKNOWN_X, T60), "X contains NaN"),
        ((X60, UNKNOWN_T), "y contains NaN"),
        ((X60, T60, -np.ones(60)), "sample_weight"),
        ((X60[:0], T60[:0]), "0 sample"),
        ((X60 * 1e200, T60), "overflow"),
    ],
)
def test_bad_rows_leave_the_model_as_it_was(rows, message):
    model = make().partial_fit(X60[:20], T60[:20])
    before = model.predict(X60)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*rows)
    np.testing.assert_array_equal(model.predict(X60), before)
    assert model.n_samples_seen_ == 20
    assert_same(model.partial_fit(X60[20:], T60[20:]), batch().fit(X60, T60), X60)


@pytest.mark.parametrize("rows", [(UNKNOWN_X, T60), (X60, UNKNOWN_T), (X60, T60, np.zeros(60))])
def test_bad_first_rows_leave_the_model_unfitted(rows):
    model = make()
    with pytest.raises(ValueError, match=r"NaN|weight"):
        model.partial_fit(*rows)
    with pytest.raises(NotFittedError):
        model.predict(X60)
    assert_same(model.partial_fit(X60, T60), batch().fit(X60, T60), X60)


@pytest.mark.parametrize("sizes", [[60], [1, 20, 39], [10] * 6])
def test_unknown_targets_are_left_out(sizes):
    T = T60.copy()
    T[np.random.default_rng(3).uniform(size=T.shape) < 0.2] = np.nan
    T[0] = T60[0]  # every target must be known in the first chunk
    model = in_chunks(make(missing_targets="ignore"), sizes, X60, T)
    assert_same(model, batch(missing_targets="ignore").fit(X60, T), X60)
    again = pickle.loads(pickle.dumps(model)).partial_fit(X60, T60)
    both = np.concatenate([X60, X60]), np.concatenate([T, T60])
    assert_same(again, batch(missing_targets="ignore").fit(*both), X60)


def test_interrupted_leaves_the_model_as_it_was(monkeypatch):
    model = make().partial_fit(X60[:20], T60[:20])
    before = model.predict(X60)

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RecursiveRidge, "weights", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X60[20:], T60[20:])
    monkeypatch.undo()
    np.testing.assert_array_equal(model.predict(X60), before)
    assert_same(model.partial_fit(X60[20:], T60[20:]), batch().fit(X60, T60), X60)


@pytest.mark.slow  # other parameters than in test_base.py
@parametrize_with_checks([OSELMRegressor(n_hidden=30, random_state=0)])
def test_scikit_learn(estimator, check):
    check(estimator)


def test_clone_seeds_and_grid_search():
    results = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        results.append(clone(make().fit(X60, T60)).partial_fit(X60, T60).predict(X60))
    np.testing.assert_array_equal(*results)
    search = GridSearchCV(make(), {"C": [1e-6, 10.0]}, cv=3, error_score="raise").fit(X60, T60)
    assert search.best_params_ == {"C": 10.0}
