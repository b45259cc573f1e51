from itertools import combinations

import numpy as np
import pytest

from gorelm._features import interactions
from gorelm._features.interactions import acting_together
from support.sweeps import at


def uniform(n, d, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (n, d))


def sets_of(X, T, w=None):
    found = acting_together(X, T.reshape(len(T), -1), np.ones(len(X)) if w is None else w)
    return {size: {tuple(subset) for subset in guide.subsets} for size, guide in found.items()}


def planted(n=2000, d=8, seed=0):
    X, rng = uniform(n, d, seed), np.random.default_rng(seed)
    T = np.column_stack(
        [
            np.sin(3 * X[:, 1]) + X[:, 0] * np.cos(2 * X[:, 4]),
            X[:, 2] * X[:, 3] * np.abs(X[:, 6]),
        ]
    )
    return X, T / T.std(axis=0) + 0.2 * rng.standard_normal(T.shape)


def test_planted_sets_are_found_and_hardly_others():
    # The mean of |x| is no 0: the triple is a pair, too.
    right = {1: {(0,), (1,)}, 2: {(0, 4), (2, 3)}, 3: {(2, 3, 6)}}
    others = 0
    for seed in range(5):
        found = sets_of(*planted(seed=seed))
        with at(seed=seed, found=found):
            assert all(right[size] <= found[size] for size in right)
        others += sum(len(found[size] - right[size]) for size in right)
    assert others <= 3


def test_in_noise_sets_are_as_rare_as_said():
    n_tables, found = 200, {1: 0, 2: 0, 3: 0}
    for seed in range(n_tables):
        X = uniform(300, 6, seed)
        T = np.random.default_rng(1000 + seed).standard_normal((300, 2))
        for size, subsets in sets_of(X, T).items():
            found[size] += len(subsets)
    for size, count in found.items():
        with at(size=size, count=count):
            assert count <= 2.5 * interactions.BY_CHANCE * n_tables


def test_noise_that_depends_on_inputs_is_no_set():
    X = uniform(4000, 6)
    t = np.exp(2 * X[:, 0] * X[:, 1]) * np.random.default_rng(0).standard_normal(4000)
    assert sum(map(len, sets_of(X, t).values())) <= 1


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_statistic_is_that_of_its_formula(size):
    X, T = uniform(200, 5), np.random.default_rng(1).standard_normal((200, 2))
    X[:, 3] = np.round(2 * X[:, 3])  # few values, fewer polynomials
    w = np.random.default_rng(0).uniform(0.5, 2.0, 200)
    basis = interactions._Basis.of(X, w)
    of = interactions._of_one if size == 1 else interactions._of_more
    subsets, df, chi2 = of(basis, T, w, size)
    assert [tuple(subset) for subset in subsets] == list(combinations(range(5), size))
    for k, subset in enumerate(subsets):
        with at(subset=tuple(subset)):
            F = basis.products(subset)
            z2 = (F.T @ (w[:, None] * T)) ** 2 / ((w[:, None] * F**2).T @ T**2)
            assert df[k] == F.shape[1]
            np.testing.assert_allclose(chi2[:, k], z2.sum(axis=0), rtol=1e-9)


def test_polynomials_are_orthonormal():
    for x in (uniform(50, 1)[:, 0], np.repeat([3.0, 1.0, 2.0], 7), np.arange(50) > 20.0):
        for w in (np.ones(len(x)), np.arange(1.0, 1 + len(x))):
            V = interactions._polynomials(np.asarray(x, dtype=float), w)
            assert V.shape[1] == min(3, len(np.unique(x)) - 1)
            np.testing.assert_allclose((V.T * w) @ V / w.sum(), np.eye(V.shape[1]), atol=1e-9)
            np.testing.assert_allclose(w @ V / w.sum(), 0.0, atol=1e-9)


def test_only_ranks_of_the_inputs_count():
    X, T = planted(400)
    other = np.exp(5 * X) * 1e6
    one, two = (acting_together(x, T, np.ones(400)) for x in (X, other))
    assert one.keys() == two.keys()
    for size in one:
        np.testing.assert_array_equal(one[size].subsets, two[size].subsets)
        np.testing.assert_allclose(one[size].probabilities, two[size].probabilities, rtol=1e-9)


def test_weights_are_repeats_and_have_no_unit():
    X, T = planted(400)
    w = np.arange(400) % 3 + 1
    rows = np.repeat(np.arange(400), w)
    one = acting_together(X, T, w.astype(float))
    others = acting_together(X[rows], T[rows], np.ones(len(rows))), acting_together(X, T, 1e-9 * w)
    for other in others:
        assert one.keys() == other.keys()
        for size in one:
            np.testing.assert_array_equal(one[size].subsets, other[size].subsets)
            a, b = one[size].probabilities, other[size].probabilities
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_many_rows_are_thinned_if_it_takes_too_long(monkeypatch):
    X, T = planted(4000)
    monkeypatch.setattr(interactions, "WORK", 1200 * 24**3 * 2 / 2)
    assert (2, 3, 6) in sets_of(X, T)[3]
    monkeypatch.setattr(interactions, "WORK", 900 * 24**3 * 2 / 2)
    assert 3 not in sets_of(X, T)


def test_odd_tables():
    X, T = planted(60)
    constant = np.zeros((60, 3))
    assert acting_together(constant, T, np.ones(60)) == {}
    assert acting_together(X[:1], T[:1], np.ones(1)) == {}
    assert acting_together(X[:0], T[:0], np.ones(0)) == {}
    assert acting_together(X, np.zeros((60, 2)), np.ones(60)) == {}
    assert sets_of(np.hstack([constant, X]), X[:, 0]) == {1: {(3,)}}
    levels = (X[:, :3] > 0).astype(float)
    parity = np.where(levels[:, 0] == levels[:, 1], 1.0, -1.0)
    assert (0, 1) in sets_of(levels, parity)[2]
    assert 2 not in sets_of(levels[:, :2], parity)  # nodes of all inputs have no set to choose
