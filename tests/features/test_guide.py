import itertools

import numpy as np
import pytest
from scipy import stats

from gorelm._features import guide as guide_module
from gorelm._features.guide import SubsetGuide, draw_subsets, explained_by_subset
from gorelm._features.layer import HiddenLayer
from support.sweeps import at


def counts(drawn, n_features):
    """Count how often each subset was drawn, in the order of itertools.combinations."""
    place = {s: i for i, s in enumerate(itertools.combinations(range(n_features), drawn.shape[1]))}
    out = np.zeros(len(place))
    for subset in drawn:
        out[place[tuple(subset.tolist())]] += 1
    return out


def uniforms(n_nodes, k, seed=0):
    return np.random.RandomState(seed).random_sample((n_nodes, k))


def test_all_subsets_are_equally_probable():
    for n_features, k in ((5, 1), (5, 2), (6, 3), (4, 3), (7, 6)):
        with at(n_features=n_features, k=k):
            n = counts(draw_subsets(uniforms(20_000, k), n_features), n_features)
            assert stats.chisquare(n).pvalue > 1e-3


def test_subsets_of_the_ends_of_the_uniforms():
    for n_features, k in ((3, 1), (3, 2), (1000, 7)):
        for u in (0.0, 1 - 2.0**-53):
            subset = draw_subsets(np.full((1, k), u), n_features)[0]
            assert np.all(np.diff(subset) > 0)
            assert 0 <= subset.min() <= subset.max() < n_features


def test_guide_frequencies():
    """A share of 0.75 follows the guide; 0.25 is spread over all subsets, those included."""
    guide = SubsetGuide([[0, 1], [2, 4], [1, 3]], [0.7, 0.0, 0.3])
    n = counts(draw_subsets(uniforms(50_000, 2), 5, guide), 5)
    places = [0, 8, 5]  # of the three among the ten pairs
    expected = np.full(10, 0.25 / 10)
    expected[places] += 0.75 * guide.probabilities
    assert stats.chisquare(n, 50_000 * expected).pvalue > 1e-3
    one = SubsetGuide([[2]], [1.0])
    n = counts(draw_subsets(uniforms(50_000, 1), 4, one), 4)
    assert stats.chisquare(n, 50_000 * np.array([0.0625, 0.0625, 0.8125, 0.0625])).pvalue > 1e-3


def test_an_empty_guide_says_nothing():
    empty = SubsetGuide(np.empty((0, 2), int), np.empty(0))
    U = uniforms(100, 2)
    np.testing.assert_array_equal(draw_subsets(U, 5, empty), draw_subsets(U, 5))


def test_guide_ends():
    """The uniforms next to the ends of the guide's share never fall outside of it."""
    p = np.full(10, 0.1)  # of a sum that is not 1 in floats
    guide = SubsetGuide(np.arange(10)[:, None], p)
    below = np.nextafter(0.75, 0)
    assert draw_subsets(np.array([[0.0], [below]]), 10, guide).ravel().tolist() == [0, 9]
    nothing_last = SubsetGuide([[3], [5]], [1.0, 0.0])
    assert draw_subsets(np.array([[below]]), 10, nothing_last).item() == 3


def test_guide_errors():
    for subsets, probabilities, message in (
        ([0, 1], [1.0], "table of input indices"),
        ([[0, 1]], [0.5, 0.5], "table of input indices"),
        ([[0.0, 1.0]], [1.0], "table of input indices"),
        ([[1, 0]], [1.0], "must increase"),
        ([[1, 1]], [1.0], "must increase"),
        ([[-1, 0]], [1.0], "must increase"),
        ([[0, 1]], [0.5], "of sum 1"),
        ([[0, 1], [0, 2]], [1.5, -0.5], "of sum 1"),
        ([[0, 1]], [np.nan], "of sum 1"),
    ):
        with at(subsets=subsets), pytest.raises(ValueError, match=message):
            SubsetGuide(subsets, probabilities)


def test_pooled_guides():
    """The pool of guides has all their subsets, each with its mean probability."""
    one = SubsetGuide([[0, 1], [2, 4]], [0.25, 0.75])
    other = SubsetGuide([[0, 3], [2, 4]], [0.5, 0.5])
    pool = SubsetGuide.pooled([one, other])
    assert as_dict(pool) == pytest.approx({(0, 1): 0.125, (0, 3): 0.25, (2, 4): 0.625})
    assert as_dict(SubsetGuide.pooled([other, one])) == as_dict(pool)
    assert as_dict(SubsetGuide.pooled([one])) == as_dict(one)
    assert as_dict(SubsetGuide.pooled([one] * 3)) == pytest.approx(as_dict(one))


def test_pooled_with_empty_guides():
    """A guide of no subsets has no say in the pool; a pool of nothing says nothing."""
    one, empty = SubsetGuide([[1, 2]], [1.0]), SubsetGuide(np.empty((0, 2), int), np.empty(0))
    assert as_dict(SubsetGuide.pooled([empty, one])) == as_dict(one)
    nothing = SubsetGuide.pooled([empty, empty])
    assert nothing.subsets.shape == (0, 2)
    U = uniforms(100, 2)
    np.testing.assert_array_equal(draw_subsets(U, 5, nothing), draw_subsets(U, 5))


def fitted_layer(n_nodes=60, n_rows=50, m=3):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(n_rows, 5))
    layer = HiddenLayer.draw(n_nodes, 5, n_inputs=2, activation="tanh", random_state=1)
    return layer, layer.transform(X), rng.normal(size=(n_nodes, m))


def oracle(layer, H, coef, w=None):
    explained = {}
    for subset in map(tuple, np.unique(layer.subsets, axis=0).tolist()):
        nodes = [j for j, s in enumerate(layer.subsets.tolist()) if tuple(s) == subset]
        part = H[:, nodes] @ coef[nodes]
        mean = np.average(part, axis=0, weights=w)
        explained[subset] = np.average((part - mean) ** 2, axis=0, weights=w).sum()
    total = sum(explained.values())
    return {subset: value / total for subset, value in explained.items() if value}


def as_dict(guide):
    return dict(zip(map(tuple, guide.subsets.tolist()), guide.probabilities, strict=True))


def test_explained_by_subset(monkeypatch):
    layer, H, coef = fitted_layer()
    coef[(layer.subsets == [1, 3]).all(axis=1)] = 0.0
    w = np.random.RandomState(2).randint(0, 3, len(H))
    for cells in (2**20, 100, 1):  # blocks of rows change nothing
        monkeypatch.setattr(guide_module, "_BLOCK_CELLS", cells)
        with at(cells=cells):
            found = as_dict(explained_by_subset(layer, H, coef))
            assert (1, 3) not in found
            assert len(found) == 9
            assert found == pytest.approx(oracle(layer, H, coef), rel=1e-10)
            weighted = as_dict(explained_by_subset(layer, H, coef, w))
            assert weighted == pytest.approx(oracle(layer, H, coef, w), rel=1e-10)
    repeated = as_dict(explained_by_subset(layer, np.repeat(H, w, axis=0), coef))
    assert repeated == pytest.approx(weighted, rel=1e-10)
    other_units = as_dict(explained_by_subset(layer, H, 1e200 * coef))
    assert other_units == pytest.approx(found, rel=1e-10)
    single = explained_by_subset(layer, H.astype(np.float32), coef)
    assert as_dict(single) == pytest.approx(found, rel=1e-4)


def test_nothing_explained():
    layer, H, coef = fitted_layer()
    constant = np.full(H.shape, 0.1)
    for outputs, weights in ((H, 0 * coef), (constant, coef), (H[:1], coef)):
        guide = explained_by_subset(layer, outputs, weights)
        assert guide.subsets.shape == (0, 2)
    none = layer.keep([])
    assert explained_by_subset(none, H[:, :0], coef[:0]).subsets.shape == (0, 2)


def test_explained_errors():
    layer, H, coef = fitted_layer()
    with pytest.raises(ValueError, match="a row for each of 60 nodes"):
        explained_by_subset(layer, H[:, 1:], coef)
    with pytest.raises(ValueError, match="a row for each of 60 nodes"):
        explained_by_subset(layer, H, coef[1:])
    with pytest.raises(ValueError, match="see all inputs"):
        explained_by_subset(HiddenLayer.draw(60, 5), H, coef)


def test_a_guide_finds_the_inputs_that_matter():
    rng = np.random.RandomState(0)
    X = rng.uniform(-1, 1, (500, 8))
    y = np.sin(3 * X[:, 2] * X[:, 5])[:, None]
    layer = HiddenLayer.draw(200, 8, n_inputs=2, activation="tanh", weight_scale=3, random_state=0)
    H = layer.transform(X)
    coef = np.linalg.solve(H.T @ H + np.eye(200), H.T @ y)
    guide = explained_by_subset(layer, H, coef)
    assert guide.subsets[np.argmax(guide.probabilities)].tolist() == [2, 5]
    grown = layer.grow(200, guide=guide)
    share = [(s == [2, 5]).all(axis=1).mean() for s in (layer.subsets, grown.subsets[200:])]
    assert share[1] > 5 * share[0]


def test_shares_by_deviation():
    guide = SubsetGuide([[0, 1], [2, 4]], [0.9, 0.1]).by_deviation()
    np.testing.assert_allclose(guide.probabilities, [0.75, 0.25])


def test_a_trusted_guide_is_followed_by_more_nodes():
    guide = SubsetGuide([[0, 1]], [1.0])
    U = np.random.default_rng(0).uniform(size=(4000, 2))
    followed = [
        (draw_subsets(U, 20, one) == [0, 1]).all(axis=1).mean() for one in (guide, guide.trusted())
    ]
    np.testing.assert_allclose(followed, [0.75, 0.9], atol=0.03)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_leaves_some_nodes(share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        SubsetGuide([[0, 1]], [1.0], share)
