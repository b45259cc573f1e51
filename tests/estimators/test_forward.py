"""Layers of a fit to very many rows: chosen by what they add to each other."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import Ridge

from gorelm import RobustELMRegressor
from gorelm._features.joint import JointLayer
from gorelm._solver.ridge import RidgeSums
from gorelm.backends.inputs import with_constant
from gorelm.estimators._robust import forward, members, search
from gorelm.estimators._robust.layers import Layer, Part, mixed
from gorelm.selection import Fold


def three_at_once(n, seed=0):
    """A target of two inputs, and one to which an effect of three is added."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 6))
    pair, three = 3 * X[:, 0] * X[:, 1], 5 * X[:, 2] * X[:, 3] * X[:, 4]
    return X, np.column_stack([pair, pair + three]) + 0.05 * rng.normal(size=(n, 2))


@pytest.fixture
def task_of_rows(monkeypatch):
    """What `choose_together` was called with, in a fit to 4000 rows."""
    monkeypatch.setattr(members, "FORWARD_ROWS", 3000)
    layers = (search.LINEAR, Layer("cosine", 1.0, True, 2), Layer("relu", 1.0, True, 3))
    monkeypatch.setattr(search, "SEARCH_LAYERS", layers)
    monkeypatch.setattr(search, "DIRECTED", ())
    seen = []

    def noted(*args):
        seen.append(args)
        return forward.choose_together(*args)

    monkeypatch.setattr(members, "choose_together", noted)
    X, T = three_at_once(4000)
    RobustELMRegressor(search_rows=500, random_state=0).fit(X, T)
    return seen[0]


def test_sums_of_some_outputs():
    rng = np.random.default_rng(0)
    H, T, columns = rng.normal(size=(40, 6)), rng.normal(size=(40, 2)), np.array([1, 4, 5])
    whole, some = RidgeSums.zero(6, 2), RidgeSums.zero(3, 2)
    whole.add(H, T)
    some.add(H[:, columns], T)
    assert_allclose(whole.of_outputs(columns).coef(0.1), some.coef(0.1))


def test_loss_is_that_of_a_regression_on_the_outputs_of_these_layers(task_of_rows):
    task, searched, _, part = task_of_rows
    X, w = task.centres
    parts = tuple(trial.layer.draw(30, 0, X, None, w) for trial in searched)
    joint = JointLayer(parts, np.array([1.0, 0.5, 2.0]))
    some = forward._SomeRows.of(task, part)
    fits, train, valid = forward._JointFits(task, some, joint), some.train, some.valid
    assert not set(train) & set(valid)
    columns = np.r_[joint.columns[0], joint.columns[2], joint.n_outputs]
    H = with_constant(joint, part.X)[:, columns]
    ridge = Ridge(alpha=3.0, fit_intercept=False).fit(H[train], part.filled[train])
    errors = np.clip(ridge.predict(H[valid]) - part.T[valid], -part.cut, part.cut)
    assert_allclose(fits.loss([0, 2], 3.0), (errors**2).sum(axis=1).mean(), rtol=1e-8)
    assert fits.descend([0, 2], 3.0)[0] <= fits.loss([0, 2], 3.0)


def test_a_layer_is_chosen_for_what_it_adds(task_of_rows):
    chosen = forward.choose_together(*task_of_rows)
    assert {layer.n_inputs for layer in chosen.layers} == {2, 3}
    assert max(chosen.scales) == 1.0
    # Of 15 pairs and 20 triples, the guides prefer those that act together.
    for n_inputs, together, n_subsets in ((2, [0, 1], 15), (3, [2, 3, 4], 20)):
        guide = chosen.guides[n_inputs]
        (at,) = np.flatnonzero((guide.subsets == together).all(axis=1))
        assert guide.probabilities[at] > 2.0 / n_subsets
    joint = chosen.draw(50, 0, *task_of_rows[0].centres)
    assert [one.n_nodes for one in joint.parts] == [50] * len(chosen.layers)


def test_given_folds_part_the_rows(task_of_rows):
    task, _, _, part = task_of_rows
    rows = np.arange(len(part.T))
    folds = [Fold(rows[rows % 3 != k], rows[rows % 3 == k]) for k in range(3)]
    some = forward._SomeRows.of(task, Part(part.X, part.T, part.filled, part.w, part.kept, folds))
    assert (some.train % 3 != 0).all()
    assert (some.valid % 3 == 0).all()
    assert len(some.valid)


def test_layers_of_every_kind_are_compared(task_of_rows):
    _, searched, _, _ = task_of_rows
    two, three = (next(trial for trial in searched if trial.layer.n_inputs == n) for n in (2, 3))
    some = mixed([two, two, two, three], 2)
    assert [trial.layer.n_inputs for trial in some] == [2, 3]


@pytest.mark.parametrize("n_inputs", [1, 2, 3])
def test_tables_of_few_inputs(monkeypatch, n_inputs):
    """Nodes that may see all of them have no set of inputs to choose."""
    monkeypatch.setattr(members, "FORWARD_ROWS", 600)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(800, n_inputs))
    y = np.sin(2 * X).prod(axis=1) + X[:, 0] + 0.05 * rng.normal(size=800)
    model = RobustELMRegressor(effort="fast", n_hidden=20, search_rows=300, random_state=0)
    assert np.std(model.fit(X, y).predict(X) - y) < 0.3 * np.std(y)
