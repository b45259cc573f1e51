"""Layers compared out of sample: against explicit fits, in memory and by sums over blocks."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.model_selection import KFold, ShuffleSplit

from gorelm import RobustELMRegressor
from gorelm.backends import inputs
from gorelm.datasets import make_multitarget
from gorelm.diagnostics import outlier_threshold
from gorelm.estimators._robust import layers, members
from gorelm.estimators._robust.layers import PATH, FoldedFit, Layer, Part, compare, pooled_guides
from gorelm.estimators._robust.members import INNER_FENCE
from gorelm.estimators._robust.search import SEARCH_LAYERS
from gorelm.selection import Fold

DENSE, SPARSE = Layer("tanh", 1.0, True), Layer("tanh", 1.0, True, 2)


def make_part(n_rows=90, folds=None, *, weighted=True, seed=0, n_features=4):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.7, 1.7, size=(n_rows, n_features))
    signal = np.column_stack([np.sin(2 * X[:, 0]) * X[:, 1], X[:, 2] ** 2 + X[:, 3]])
    T = signal + 0.2 * rng.normal(size=signal.shape)
    w = rng.uniform(0.5, 2.0, size=n_rows) if weighted else np.ones(n_rows)
    return Part(X, T, T, w, rng.uniform(size=n_rows) < 0.8, folds)


def folds_of(cv, n_rows=90):
    return [Fold(*split) for split in cv.split(np.zeros((n_rows, 1)))]


def explicit(part, hidden, lam, train, test, unit=None):
    """Ridge of the kept training rows by least squares, and its predictions.

    With one penalty, or one of each target.
    """
    if np.ndim(lam):
        each = [explicit(part, hidden, one, train, test, unit)[:, j] for j, one in enumerate(lam)]
        return np.column_stack(each)
    train = train[part.kept[train]]
    omega = np.sqrt(part.w[train])[:, None]
    H = omega * np.column_stack([hidden.transform(part.X[train]), np.ones(len(train))])
    unit = np.square(H).sum() if unit is None else unit
    rows = np.r_[H, np.sqrt(PATH[lam] * unit) * np.eye(H.shape[1])]
    targets = np.r_[omega * part.filled[train], np.zeros((H.shape[1], part.T.shape[1]))]
    coef = np.linalg.lstsq(rows, targets)[0]
    return np.column_stack([hidden.transform(part.X[test]), np.ones(len(test))]) @ coef


@pytest.mark.parametrize("n_hidden", [15, 120])
def test_rows_are_left_out_one_by_one(n_hidden):
    part, every = make_part(), np.arange(90)
    hidden = DENSE.draw(n_hidden, 0, part.X)
    trial = compare(part, DENSE, hidden, None)
    kept = every[part.kept]
    H = np.column_stack([hidden.transform(part.X[kept]), np.ones(len(kept))])
    unit = np.square(np.sqrt(part.w[kept])[:, None] * H).sum()
    for i in every:
        expected = explicit(part, hidden, trial.lams, every[every != i], np.array([i]), unit)
        np.testing.assert_allclose(trial.predicted[[i]], expected, rtol=1e-8, atol=1e-8)
    errors = (trial.predicted - part.T)[kept]
    score = part.w[kept] @ np.square(errors).sum(axis=1) / part.w[kept].sum()
    assert trial.score == pytest.approx(score, rel=1e-9)
    np.testing.assert_allclose(trial.outputs(part.X[~part.kept]), trial.predicted[~part.kept])


@pytest.mark.parametrize("n_hidden", [15, 120])
@pytest.mark.parametrize("cv", [KFold(3), ShuffleSplit(4, test_size=0.3, random_state=0)])
def test_rows_are_predicted_without_their_fold(cv, n_hidden):
    folds = folds_of(cv)
    part = make_part(folds=folds)
    hidden = DENSE.draw(n_hidden, 0, part.X)
    trial = compare(part, DENSE, hidden, None)
    total, count = np.zeros((90, 2)), np.zeros((90, 1))
    for fold in folds:
        total[fold.test] += explicit(part, hidden, trial.lams, fold.train, fold.test)
        count[fold.test] += 1
    tested = count[:, 0] > 0
    expected = total[tested] / count[tested]
    np.testing.assert_allclose(trial.predicted[tested], expected, rtol=1e-7, atol=1e-7)
    assert np.isnan(trial.predicted[~tested]).all()


CVS = {
    "held": KFold(4, shuffle=True, random_state=0),
    "recomputed": KFold(7),
    "overlapping": ShuffleSplit(3, test_size=0.4, random_state=0),
}


@pytest.mark.parametrize("kind", CVS)
def test_sums_over_blocks_give_the_fits_of_the_folds(kind, monkeypatch):
    monkeypatch.setattr(inputs, "BLOCK_ROWS", 13)
    folds = folds_of(CVS[kind])
    part = make_part(folds=folds)
    hidden = SPARSE.draw(20, 0, part.X)
    fit = FoldedFit(part, SPARSE, hidden, None, 6, seed=0, n_threads=2)
    trial = fit.trial()
    total, count = np.zeros((90, 2)), np.zeros((90, 1))
    for fold in folds:
        total[fold.test] += explicit(part, hidden, trial.lam, fold.train, fold.test)
        count[fold.test] += 1
    tested = count[:, 0] > 0
    expected = total[tested] / count[tested]
    np.testing.assert_allclose(trial.predicted[tested], expected, rtol=1e-7, atol=1e-7)
    everything = explicit(part, hidden, trial.lam, np.arange(90), np.arange(90))
    coef = trial.sums[0].coef(PATH[trial.lam])
    outputs = inputs.with_constant(hidden, part.X) @ coef
    np.testing.assert_allclose(outputs, everything, rtol=1e-7, atol=1e-7)
    largest = max(folds, key=lambda fold: part.kept[fold.test].sum())
    valid = largest.test[part.kept[largest.test]]
    assert fit.on_valid.shape == (len(valid), 2)


def test_the_penalty_is_a_minimum_on_the_validation_rows():
    part = make_part(folds=folds_of(CVS["held"]))
    hidden = DENSE.draw(40, 0, part.X)
    for start in (0, 8, len(PATH) - 1):
        fit = FoldedFit(part, DENSE, hidden, None, start, seed=0, n_threads=1)
        near = [lam for lam in (fit.lam - 1, fit.lam + 1) if 0 <= lam < len(PATH)]
        sums = fit._sums_without(fit._judging)
        assert all(fit._loss(sums, lam) >= fit.loss for lam in near)


def test_unknown_cells_have_no_error():
    part = make_part()
    known = np.random.default_rng(0).uniform(size=part.T.shape) < 0.7
    some = replace(part, T=np.where(known, part.T, np.nan))
    predicted = np.zeros((90, 1, 2))
    expected = part.w @ np.where(known, part.T**2, 0.0) / part.w.sum()
    found = some.mean_squares(predicted, np.ones(90, dtype=bool))
    np.testing.assert_allclose(found, [expected])


def test_guided_draws_find_the_inputs_that_matter():
    """Two of 12 inputs act, together: pairs drawn by the guide see them far more often."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.7, 1.7, size=(300, 12))
    T = (np.sin(2 * X[:, [3]]) * X[:, [9]]) + 0.05 * rng.normal(size=(300, 1))
    part = Part(X, T, T, np.ones(300), np.ones(300, dtype=bool), None)
    blind = compare(part, SPARSE, SPARSE.draw(300, 0, X), None, explain=True)
    trial = blind
    for seed in (1, 2, 3):
        guide = pooled_guides([trial], {})[2]
        trial = compare(part, SPARSE, SPARSE.draw(300, seed, X, guide), guide, explain=True)
    assert trial.score < 0.5 * blind.score
    best = guide.subsets[np.argmax(guide.probabilities)]
    assert list(best) == [3, 9]
    # What acts together is known before any node is drawn.
    known = part.sets[2]
    assert known.subsets.tolist() == [[3, 9]]
    assert compare(part, SPARSE, SPARSE.draw(300, 1, X, known), known).score < 0.5 * blind.score
    both = pooled_guides([blind], part.sets)[2]
    assert both.probabilities[(both.subsets == [3, 9]).all(axis=1)] > 0.5


def test_guides_of_bad_trials_do_not_count():
    part = make_part()
    good, other = (
        compare(part, SPARSE, SPARSE.draw(30, seed, part.X), None, explain=True) for seed in (0, 1)
    )
    bad = replace(other, scores=3 * good.scores)
    alone, both = (pooled_guides(some, {})[2] for some in ([good], [good, bad]))
    np.testing.assert_array_equal(alone.probabilities, both.probabilities)
    dense = compare(part, DENSE, DENSE.draw(5, 0, part.X), None, explain=True)
    assert pooled_guides([dense], {}) == {}


@pytest.mark.parametrize("layer", [one for one in SEARCH_LAYERS if not one.linear])
def test_the_spread_of_a_member_is_that_of_its_layer(layer):
    part = make_part(20, n_features=6)
    model = layer.estimator(5, 6, 0).fit(part.X, part.T)
    assert layers.spread_of(model) == pytest.approx(layer.spread)


@pytest.mark.parametrize("ratio", [0.0, 0.25])
def test_members_of_many_rows_are_fitted_to_the_rows_that_stay(ratio):
    """By sums from which rows were taken away; targets within the fence when contaminated."""
    data = make_multitarget(300, 5, 2, noise=0.3, outlier_ratio=ratio, random_state=0)
    model = RobustELMRegressor(n_hidden=20, search_rows=80, n_members=3, random_state=0)
    model.fit(data.X, data.T)
    assert model.contaminated_ is (ratio > 0)
    stayed = ~model.outlier_mask_ if model.contaminated_ else np.full(300, True)
    X = np.clip(model._input_scaling.dense(data.X), -10, 10)
    T = model._target_scaling.dense(data.T)
    if ratio:
        errors = T - model._target_scaling.dense(model.out_of_fold_)
        sizes = np.linalg.norm(errors, axis=1)
        fence = outlier_threshold(sizes[stayed], whisker=INNER_FENCE)
        T = T - errors * np.maximum(1 - fence / sizes, 0.0)[:, None]
    # Their average is one regression on the nodes of all, each layer with its own penalty.
    outputs = [member.hidden_outputs(X) for member in model.members_]
    penalties = np.concatenate(
        [np.full(H.shape[1], 1 / one.C) for H, one in zip(outputs, model.members_, strict=True)]
    )
    scale = np.append(np.sqrt(penalties), np.sqrt(penalties.min()))
    H = np.column_stack([*outputs, np.ones(300)])[stayed]
    rows = np.r_[H, np.diag(scale)]
    coef = np.linalg.lstsq(rows, np.r_[T[stayed], np.zeros((H.shape[1], 2))])[0]
    found = np.mean([one.predict(X[stayed]) for one in model.members_], axis=0)
    np.testing.assert_allclose(found, H @ coef, rtol=1e-6, atol=1e-6)


def test_complementary_fits():
    part = make_part(folds=folds_of(CVS["held"]))
    fits = [
        FoldedFit(part, layer, layer.draw(20, seed, part.X), None, 5, seed=0, n_threads=1)
        for seed, layer in enumerate([DENSE, SPARSE, Layer("cosine", 1.0, True)])
    ]
    chosen = members._best_average(fits, 3)
    assert chosen[0].loss == min(fit.loss for fit in fits)
    losses = [
        fits[0].loss_of(np.mean([fit.on_valid for fit in chosen[: k + 1]], axis=0))
        for k in range(len(chosen))
    ]
    assert losses == sorted(losses, reverse=True)
    assert len(members._best_average(fits, 1)) == 1


def test_many_targets_are_compared_by_a_sketch(monkeypatch):
    """The penalty is that of all targets, or next to it; every target is predicted exactly."""
    rng = np.random.default_rng(0)
    part = make_part()
    T = np.tanh(part.X @ rng.normal(size=(4, 80))) + 0.3 * rng.normal(size=(90, 80))
    sketch = layers.sketch_of(80, 0)
    assert sketch.shape == (80, layers.MANY_TARGETS)
    norms = np.linalg.norm(T @ sketch, axis=1) / np.linalg.norm(T, axis=1)
    assert np.abs(norms.mean() - 1) < 0.1
    assert layers.sketch_of(layers.MANY_TARGETS, 0) is None
    whole = replace(part, T=T, filled=T)
    hidden = SPARSE.draw(40, 0, part.X)
    some, every = (
        compare(one, SPARSE, hidden, None) for one in (replace(whole, sketch=sketch), whole)
    )
    assert abs(some.lam - every.lam) <= 1
    monkeypatch.setattr(layers, "PATH", PATH[[some.lam]])
    np.testing.assert_allclose(
        some.predicted, compare(whole, SPARSE, hidden, None).predicted, rtol=1e-9, atol=1e-9
    )
