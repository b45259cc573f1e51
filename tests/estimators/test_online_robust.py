"""Robust OS-ELM: rows are judged by the model before them, and changes are told from wrong rows."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gorelm
from gorelm import OSELMRegressor, RELMRegressor, RobustOSELMRegressor
from gorelm._solver.least_squares import RecursiveRidge
from gorelm.datasets import contaminate, make_multitarget
from gorelm.estimators._online_judging import Fences, _Ridge, judge_first, medians
from gorelm.metrics import arrmse

NETWORK = {"C": 100.0, "n_hidden": 40, "random_state": 0}
UNSCALED = {"input_scaling": None, "target_scaling": None}


def stream(n_rows=1500, kind="one-sided", seed=0, ratio=0.2):
    """Return inputs, dirty and clean targets (with noise), and the wrong rows."""
    clean = make_multitarget(n_rows, 3, outlier_ratio=0.0, random_state=seed)
    dirty, wrong = contaminate(clean.T, ratio, kind=kind, random_state=seed)
    return clean.X, dirty, clean.T, wrong


def in_chunks(model, X, T, size, start=0):
    """Return the model after all rows, and the rows that it named."""
    named = []
    for i in range(start, len(X), size):
        named.append(model.partial_fit(X[i : i + size], T[i : i + size]).outlier_mask_)
    return model, np.concatenate(named)


# -- forgetting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[40], [1] * 40, [7, 13, 20]])
@pytest.mark.parametrize("weighted", [False, True])
def test_forgetting_is_a_weight_that_falls_with_age(sizes, weighted):
    X, _, T, _ = stream(40)
    w = np.where(np.arange(40) % 3, 1.0, 2.0) if weighted else np.ones(40)
    model = OSELMRegressor(**NETWORK, **UNSCALED, forgetting=0.99)
    start = 0
    for size in sizes:
        rows = slice(start, start := start + size)
        model.partial_fit(X[rows], T[rows], w[rows])
    age = w.sum() - np.cumsum(w)
    # Nothing has faded to less than half: the penalty has faded as the first row has.
    C = 100.0 / 0.99 ** w.sum()
    batch = RELMRegressor(**{**NETWORK, "C": C}, **UNSCALED).fit(X, T, w * 0.99**age)
    np.testing.assert_allclose(model.predict(X), batch.predict(X), atol=1e-7)


def test_the_penalty_does_not_fade():
    H = np.random.default_rng(0).standard_normal((3, 5))
    recursion = RecursiveRidge(5, 1, C=4.0)
    for _ in range(500):
        recursion = recursion.absorbed(H, H[:, :1]).faded(0.9)
        ridge = np.linalg.eigvalsh(recursion._R.T @ recursion._R)[:2]  # where H has no rows
        assert (ridge >= 0.125 - 1e-12).all()
        assert (ridge <= 0.25 + 1e-12).all()


def test_a_recursion_from_given_weights_stays_there_without_rows():
    start = np.arange(6.0).reshape(3, 2)
    recursion = RecursiveRidge(3, 2, 10.0, start).faded(0.1).faded(0.7)
    np.testing.assert_allclose(recursion.weights(), start)
    np.testing.assert_allclose(recursion.take(np.array([1])).weights(), start[:, 1:])
    assert recursion.faded(0.0).weights() == pytest.approx(start)


def test_predictions_and_leverages_of_a_recursion():
    rng = np.random.default_rng(0)
    H, T, new = rng.standard_normal((20, 4)), rng.standard_normal((20, 2)), np.eye(4)[:3]
    recursion = RecursiveRidge(4, 2, 10.0).absorbed(H, T)
    P, leverage = recursion.predicted(new)
    inverse = np.linalg.inv(H.T @ H + np.eye(4) / 10)
    np.testing.assert_allclose(P, new @ inverse @ H.T @ T)
    np.testing.assert_allclose(leverage, np.diag(inverse)[:3])


# -- the judgement ---------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(0, 99))
def test_medians_are_weighted_quantiles(values, seed):
    rng = np.random.default_rng(seed)
    w = rng.integers(1, 4, len(values)).astype(float)
    by_repeats = np.quantile(np.repeat(values, w.astype(int)), 0.5, method="inverted_cdf")
    A = np.column_stack([values, np.full(len(values), np.nan)]).astype(float)
    np.testing.assert_array_equal(medians(A, w), [by_repeats, 0.0])


def test_first_errors_are_those_of_fits_without_the_row():
    """By brute force; a row of weight 2 is left out once."""
    rng = np.random.default_rng(0)
    H, w = rng.standard_normal((30, 6)), rng.choice([0.5, 1.0, 2.0], 30)
    T = H @ rng.standard_normal((6, 2)) + 0.1 * rng.standard_normal((30, 2))
    weighted = H * np.sqrt(w)[:, None]
    errors, expected = _Ridge(weighted @ weighted.T, w, 10.0).left_out(T)
    for i in range(30):
        left = w.copy()
        left[i] = max(w[i] - 1.0, 0.0)
        G = (H.T * left) @ H + np.eye(6) / 10.0
        by_hand = H[i] @ np.linalg.solve(G, (H.T * left) @ T)
        np.testing.assert_allclose(expected[i], by_hand, rtol=1e-8)
        if w[i] == 1:
            leverage = H[i] @ np.linalg.solve(G, H[i])
            np.testing.assert_allclose(errors[i], (T[i] - by_hand) / np.sqrt(1 + leverage))


def test_errors_of_other_rows():
    rng = np.random.default_rng(0)
    H, T, w = rng.standard_normal((9, 4)), rng.standard_normal((9, 2)), rng.uniform(1, 2, 9)
    weighted = H * np.sqrt(w)[:, None]
    K = weighted @ weighted.T
    ridge = _Ridge(K[:6, :6], w[:6], 10.0)
    errors, expected = ridge.new(K[6:, :6], np.diag(K)[6:], w[6:], T[:6], T[6:])
    recursion = RecursiveRidge(4, 2, 10.0).absorbed(weighted[:6], T[:6] * np.sqrt(w[:6, None]))
    by_recursion, leverage = recursion.predicted(H[6:])
    np.testing.assert_allclose(expected, by_recursion)
    np.testing.assert_allclose(errors, (T[6:] - expected) / np.sqrt(1 + leverage)[:, None])


def test_wrong_cells_among_the_first_are_left_out():
    rng = np.random.default_rng(0)
    H = rng.standard_normal((60, 5))
    truth = H @ rng.standard_normal((5, 2))
    T = truth + 0.05 * rng.standard_normal((60, 2))
    T[::6, 0] = 30.0
    first = judge_first(H, T, np.ones(60), 1e3, np.full(2, 1e-9))
    np.testing.assert_array_equal(np.flatnonzero(first.verdict.wrong[:, 0]), np.arange(0, 60, 6))
    assert first.verdict.apart[::6, 0].all()
    assert not first.verdict.wrong[:, 1].any()
    assert np.abs(first.expected - truth).max() < 0.1


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
def test_fences_hold_with_many_wrong_cells(share):
    """Of normal errors nearly all are right, whatever else there is."""
    rng = np.random.default_rng(0)
    errors = np.abs(rng.standard_normal((2000, 3)))
    wrong = rng.random(errors.shape) < share
    errors[wrong] = 50.0
    verdict = Fences.of(errors, np.ones(2000), np.zeros(3)).judge(errors)
    assert verdict.wrong[wrong].all()
    assert verdict.wrong[~wrong].mean() < 1e-3
    assert (verdict.cells[~wrong] > 1).mean() < 5e-3
    np.testing.assert_array_equal(verdict.apart, wrong)


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.slow_unless(kind=["rows", "cells"])
@pytest.mark.parametrize("kind", ["rows", "one-sided", "cells"])
def test_one_pass_over_a_dirty_stream(kind):
    X, dirty, clean, wrong = stream(kind=kind)
    train, test = slice(0, 1200), slice(1200, None)
    plain, _ = in_chunks(OSELMRegressor(**NETWORK), X[train], clean[train], 100)
    model, named = in_chunks(RobustOSELMRegressor(**NETWORK), X[train], dirty[train], 100)
    best = arrmse(clean[test], plain.predict(X[test]))
    assert arrmse(clean[test], model.predict(X[test])) < 1.15 * best
    later = slice(120, None)
    assert named[later][wrong[train][later]].mean() > 0.9
    assert wrong[train][later][named[later]].mean() > 0.9
    assert model.n_changes_ == 0
    assert model.n_samples_seen_ == 1200
    assert model.n_outliers_seen_ == named.sum()
    np.testing.assert_array_equal(model.cell_mask_.any(axis=1), model.outlier_mask_)


@pytest.mark.slow_unless(size=1)
@pytest.mark.parametrize("size", [1, 33, 400])
def test_chunks_of_any_size(size):
    X, dirty, clean, wrong = stream(600)
    n = 400
    params = {**NETWORK, **UNSCALED, "n_start": 80}
    model, named = in_chunks(RobustOSELMRegressor(**params), X[:n], dirty[:n], size)
    plain = OSELMRegressor(**{**NETWORK, **UNSCALED}).fit(X[:n], clean[:n])
    test = slice(n, None)
    best = arrmse(clean[test], plain.predict(X[test]))
    assert arrmse(clean[test], model.predict(X[test])) < 1.25 * best
    assert named[80:][wrong[80:n]].mean() > 0.9
    assert len(model._held[0]) <= 80


def test_without_wrong_rows_it_is_os_elm():
    """But for what it doubts, which is little."""
    X, _, clean, _ = stream(1000)
    model, named = in_chunks(RobustOSELMRegressor(**NETWORK), X, clean, 100)
    plain, _ = in_chunks(OSELMRegressor(**NETWORK), X, clean, 100)
    assert named.mean() < 0.02
    assert arrmse(plain.predict(X), model.predict(X)) < 0.1


def test_a_change_is_no_outlier():
    X, dirty, clean, wrong = stream(1200, "rows")
    change = np.arange(1200)[:, None] >= 600
    before, dirty = clean, np.where(change & ~wrong[:, None], clean[::-1] + 2.0, dirty)
    X = np.where(change, X[::-1], X)  # the same function, two higher
    model, named = in_chunks(RobustOSELMRegressor(**NETWORK), X[:1000], dirty[:1000], 50)
    assert model.n_changes_ == 3
    error = arrmse(clean[199::-1] + 2.0, model.predict(X[1000:]))
    plain, _ = in_chunks(OSELMRegressor(**NETWORK), X[:600], before[:600], 50)
    assert error < 1.3 * arrmse(clean[199::-1], plain.predict(X[1000:]))
    assert named[600:][~wrong[600:1000]].mean() < 0.1
    assert named[600:][wrong[600:1000]].mean() > 0.9


def test_a_change_of_one_target_leaves_the_others():
    X, dirty, clean, wrong = stream(1600, "rows")
    dirty[800:, 1] += 6.0 * ~wrong[800:]
    same, _ = in_chunks(RobustOSELMRegressor(**NETWORK), X[:800], dirty[:800], 50)
    model, _ = in_chunks(pickle.loads(pickle.dumps(same)), X, dirty, 50, start=800)
    assert 1 <= model.n_changes_ <= 2
    assert sorted(columns.tolist() for columns, _ in model._recursions) == [[0, 2], [1]]
    shifted = clean + np.array([0.0, 6.0, 0.0])
    assert arrmse(shifted, model.predict(X)) < 0.3
    other, _ = in_chunks(pickle.loads(pickle.dumps(same)), X, clean, 50, start=800)
    difference = arrmse(other.predict(X)[:, [0, 2]], model.predict(X)[:, [0, 2]])
    assert difference < 0.1


def test_noise_is_no_change():
    """A run of rows that nothing predicts is wrong, however long it is."""
    X, _, clean, _ = stream(800)
    noise = clean.copy()
    rng = np.random.default_rng(0)
    noise[600:] = 20 * rng.choice([-1, 1], (200, 3)) + rng.standard_normal((200, 3))
    model, _ = in_chunks(RobustOSELMRegressor(**NETWORK), X[:600], clean[:600], 100)
    before = model.predict(X)
    model, named = in_chunks(model, X[:720], noise[:720], 20, start=600)
    assert named.all()
    assert model.n_changes_ == 0
    np.testing.assert_allclose(model.predict(X), before)


def test_unknown_targets():
    X, dirty, clean, wrong = stream(900)
    holes = np.random.default_rng(0).random(dirty.shape) < 0.2
    dirty = np.where(holes, np.nan, dirty)
    model = RobustOSELMRegressor(**NETWORK, missing_targets="ignore")
    model, named = in_chunks(model, X[:800], dirty[:800], 80)
    known = ~holes[:800].all(axis=1)
    assert named[wrong[:800] & known].mean() > 0.9
    assert not model.cell_mask_[np.isnan(dirty[720:800])].any()
    assert arrmse(clean[800:], model.predict(X[800:])) < 0.3


def test_wrong_rows_do_not_matter():
    """How wrong they are changes nothing."""
    X, dirty, _, wrong = stream(600)
    far = np.where(wrong[:, None], dirty + 1e6, dirty)
    params = {**NETWORK, **UNSCALED}
    model, named = in_chunks(RobustOSELMRegressor(**params), X, dirty, 60)
    other, also = in_chunks(RobustOSELMRegressor(**params), X, far, 60)
    np.testing.assert_array_equal(named[wrong], True)
    np.testing.assert_array_equal(also[wrong], True)
    assert arrmse(model.predict(X), other.predict(X)) < 0.05


# -- the estimator ---------------------------------------------------------------------------------


def copies(model, folder):
    yield pickle.loads(pickle.dumps(model))
    yield gorelm.load(gorelm.save(model, folder / "model.gorelm"))


@pytest.mark.slow_unless(n_before=300)
@pytest.mark.parametrize("n_before", [100, 300])  # still among the first rows, and after
def test_copies_go_on(tmp_path, n_before):
    pytest.importorskip("skops", reason="skops is not installed")
    X, dirty, _, _ = stream(400)
    model = RobustOSELMRegressor(**NETWORK, forgetting=0.999)
    model, _ = in_chunks(model, X[:n_before], dirty[:n_before], 50)
    others = list(copies(model, tmp_path))
    in_chunks(model, X, dirty, 50, start=n_before)
    for other in others:
        in_chunks(other, X, dirty, 50, start=n_before)
        np.testing.assert_allclose(other.predict(X), model.predict(X), rtol=1e-9)
        np.testing.assert_array_equal(other.outlier_mask_, model.outlier_mask_)


def test_bounded_memory():
    X, dirty, _, _ = stream(1500)
    sizes = []
    model = RobustOSELMRegressor(**NETWORK, n_start=100)
    for i in range(0, 1500, 100):
        model.partial_fit(X[i : i + 100], dirty[i : i + 100])
        sizes.append(len(pickle.dumps(model)))
    assert max(sizes[4:]) < 1.1 * min(sizes[4:])


@pytest.mark.slow_unless(n_before=400)
@pytest.mark.parametrize("n_before", [100, 400])
def test_a_call_that_fails_changes_nothing(monkeypatch, n_before):
    X, dirty, _, _ = stream(500)
    model, _ = in_chunks(RobustOSELMRegressor(**NETWORK), X[:n_before], dirty[:n_before], 50)
    before = pickle.dumps(model)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(RecursiveRidge, "weights", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X[n_before:], dirty[n_before:])
    assert pickle.dumps(model) == before


def test_pruned_goes_on():
    X, dirty, _, _ = stream(400)
    model = RobustOSELMRegressor(**NETWORK, activation="relu", input_scaling=None)
    model.partial_fit(X[:300] - 2.0, dirty[:300])
    assert 0 < model.n_active_ < 40
    before = model.predict(X - 2.0)
    np.testing.assert_allclose(model.prune().predict(X - 2.0), before, atol=1e-8)
    model.partial_fit(X[300:] - 2.0, dirty[300:])
    assert model.hidden_.n_outputs == model.coef_.shape[0] < 40


def test_float32_and_one_target():
    X, dirty, _, wrong = stream(500)
    model, named = in_chunks(RobustOSELMRegressor(**NETWORK), X.astype("f4"), dirty[:, 0], 50)
    other, also = in_chunks(RobustOSELMRegressor(**NETWORK), X, dirty[:, 0], 50)
    assert model.predict(X).shape == (500,)
    assert (named == also).mean() > 0.98
    assert named[wrong].mean() > 0.9
    assert arrmse(other.predict(X), model.predict(X)) < 0.05
    np.testing.assert_array_equal(model.cell_mask_[:, 0], model.outlier_mask_)


def test_usual_errors_are_in_the_units_of_y():
    X, dirty, _, _ = stream(600)
    units = np.array([1.0, 1e3, 1e-3])
    one, _ = in_chunks(RobustOSELMRegressor(**NETWORK), X, dirty, 100)
    other, _ = in_chunks(RobustOSELMRegressor(**NETWORK), X, dirty * units, 100)
    np.testing.assert_allclose(other.error_scales_, one.error_scales_ * units, rtol=1e-6)
