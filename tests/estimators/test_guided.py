"""Growing networks whose new nodes see what the model so far has found to matter."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from gorelm import IRELMRegressor
from gorelm._features.guide import explained_by_subset
from support.growing_cases import CASES, all_cases, assert_close, data, make
from support.sweeps import at


def guided(case, **params):
    return make(case, **{"n_inputs": 2, "guided": True, **params})


def same_layer(one, other):
    return all(
        np.array_equal(getattr(one.hidden_, name), getattr(other.hidden_, name))
        for name in ("A", "b", "subsets")
    )


def expected_layer(model, n_new, X, w=None):
    """Grow the layer of a fitted model by what its nodes explain."""
    layer = model.hidden_
    n_linked = len(layer.inputs)
    guide = explained_by_subset(
        layer, model.hidden_outputs(X)[:, n_linked:], model.coef_[n_linked:], w
    )
    scaled, offset = model._input_scaling.apply(X)
    return layer.grow(n_new, X=scaled, sample_weight=w, offset=offset, guide=guide)


def interaction(n_rows, seed=0, noise=0.05):
    """Return rows of 12 inputs, two of which the target depends on."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(-1, 1, (n_rows, 12))
    return X, np.sin(4 * X[:, 2] * X[:, 5]) + noise * rng.normal(size=n_rows)


@all_cases
def test_every_step_follows_the_model_so_far(case):
    X, T = data()
    for params in ({}, {"direct_link": True}, {"activation": "gaussian"}, {"n_inputs": 1}):
        with at(params=params):
            model = guided(case, max_hidden=10, **params).fit(X, T)
            free = guided(case, max_hidden=10, **params).set_params(guided=False).fit(X, T)
            assert same_layer(model, free)  # the first nodes have no model to follow
            for size in (20, 30):
                expected = expected_layer(model, 10, X)
                model.grow(10)
                np.testing.assert_array_equal(model.hidden_.subsets, expected.subsets)
                np.testing.assert_array_equal(model.hidden_.A, expected.A)
                np.testing.assert_array_equal(model.hidden_.b, expected.b)
                direct = guided(case, max_hidden=size, **params).fit(X, T)
                if "IGOR" not in case:  # whose weights agree to `tol`
                    assert same_layer(direct, model)
            assert not same_layer(model, free.grow(20))


@all_cases
def test_weights_are_repeated_rows(case):
    X, T = data()
    w = np.arange(len(X)) % 3
    weighted = guided(case).fit(X, T, w)
    repeated = guided(case).fit(np.repeat(X, w, axis=0), np.repeat(T, w, axis=0))
    assert same_layer(weighted, repeated)
    assert_close(weighted.predict(X), repeated.predict(X), 1e-6)


@all_cases
def test_goes_on_after_a_copy(case):
    X, T = data()
    model = guided(case).fit(X, T)
    assert clone(model).guided
    restored = pickle.loads(pickle.dumps(model))
    expected = expected_layer(model, 10, X)
    for one in (restored.grow(10, X, T), model.grow(10)):
        np.testing.assert_array_equal(one.hidden_.subsets, expected.subsets)


def test_warm_start_goes_on():
    X, T = data()
    model = guided("IR-ELM", warm_start=True).fit(X, T)
    model.set_params(max_hidden=50).fit(X, T)
    assert same_layer(model, guided("IR-ELM", max_hidden=50).fit(X, T))


def test_pruned_nodes():
    X, T = data()
    for lam in (2.0, 1e6):  # some nodes are emptied, and all
        model = guided("IGOR-ELM, sparse", lam=lam, prune_on_grow=True, max_hidden=60).fit(X, T)
        assert model.hidden_.n_drawn == 60
        assert model.hidden_.n_nodes < 60
        assert np.all(np.isfinite(model.predict(X)))


def test_validation_judges_the_layers_of_its_own_rows():
    """No fold sees its held-out rows in a guide, and the last model grows as it would alone."""
    X, T = interaction(300)
    for prune_on_grow in (False, True):
        params = {"C": 1e4, "weight_scale": 2.0, "prune_on_grow": prune_on_grow}
        model = guided("IR-ELM", validation=3, max_hidden=50, **params).fit(X, T)
        best = min(model.growth_, key=lambda record: record["validation_error"])
        size = int(best["n_drawn"])
        assert size >= 30  # after at least two steps
        alone = guided("IR-ELM", max_hidden=size, **params).fit(X, T)
        assert same_layer(model, alone)
        np.testing.assert_allclose(model.coef_, alone.coef_, rtol=1e-6, atol=1e-9)


@all_cases
def test_nodes_that_see_all_inputs_need_no_guide(case):
    X, T = data()
    one, other = (make(case, guided=g, n_inputs=n).fit(X, T) for g, n in ((True, 4), (False, None)))
    assert one.hidden_.subsets is None
    np.testing.assert_array_equal(one.predict(X), other.predict(X))


@pytest.mark.parametrize("case", CASES)
def test_refused_without_n_inputs(case):
    X, T = data()
    with pytest.raises(ValueError, match=r"guided=True .* set n_inputs"):
        make(case, guided=True).fit(X, T)
    model = make(case).fit(X, T).set_params(guided=True)
    with pytest.raises(ValueError, match=r"guided=True .* set n_inputs"):
        model.grow(5)


def test_finds_the_inputs_of_an_interaction():
    (X, y), (new, truth) = interaction(1000), interaction(1000, seed=1, noise=0.0)
    params = {"C": 100.0, "n_inputs": 2, "activation": "tanh", "weight_scale": 3.0}
    errors = {}
    for guided in (False, True):
        model = IRELMRegressor(**params, guided=guided, max_hidden=500, random_state=0).fit(X, y)
        errors[guided] = np.sqrt(np.mean((model.predict(new) - truth) ** 2))
    assert errors[True] < 0.3 * errors[False]
