"""Wrong cells of the inputs: the parts of the check, and estimators that use it."""

import warnings

import numpy as np
import pytest

from gorelm import RobustELMRegressor, TableRegressor
from gorelm.datasets import contaminate
from gorelm.estimators._robust.inputs import CellCheck, Filling, InputCheck, cutoff_of
from gorelm.stream import RowBlocks

SMALL = {"effort": "fast", "n_hidden": 40, "random_state": 0}


def correlated(n=600, d=6, seed=0, noise=0.3):
    """Columns that share two factors, and their covariance."""
    rng = np.random.default_rng(seed)
    L = rng.uniform(0.5, 1.0, size=(2, d)) * rng.choice([-1, 1], size=(2, d))
    X = rng.standard_normal((n, 2)) @ L + noise * rng.standard_normal((n, d))
    return X, L.T @ L + noise**2 * np.eye(d)


def regression(n=240, seed=0):
    """Six inputs that share two factors, two targets that need both."""
    X, _ = correlated(n, seed=seed)
    T = np.column_stack([np.sin(X[:, 0]) + X[:, 1], X[:, 2] * X[:, 3] / 2 + X[:, 4]])
    return X, T + 0.05 * np.random.default_rng(seed + 1).standard_normal(T.shape)


# -- finding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantile", [0.95, 0.99])
def test_clean_normal_cells_are_flagged_as_often_as_the_quantile_says(quantile):
    X, _ = correlated(20000)
    scores = CellCheck.fit(X, np.ones(len(X))).scores(X)
    share = (scores > cutoff_of(quantile)).mean(axis=0)
    np.testing.assert_allclose(share, 1 - quantile, rtol=0.45)


def test_planted_cells_are_found():
    X, _ = correlated()
    rng = np.random.default_rng(1)
    wrong = rng.uniform(size=X.shape) < 0.1
    dirty = np.where(wrong, X + 8 * X.std(axis=0) * rng.choice([-1, 1], size=X.shape), X)
    found = CellCheck.fit(dirty, np.ones(len(X))).scores(dirty) > cutoff_of(0.9999)
    assert found[wrong].mean() > 0.98
    assert found[~wrong].mean() < 0.01


def test_a_cell_that_only_the_others_contradict_is_found():
    X, _ = correlated(noise=0.1)
    usual = X[3, 0]
    X[3, 0] = -np.sign(usual) * 1.2 * X[:, 0].std()  # within its column's range
    assert np.abs(X[3, 0]) < np.abs(X[:, 0]).max()
    scores = CellCheck.fit(X, np.ones(len(X))).scores(X)
    assert scores[3, 0] > 1.5 * cutoff_of(0.9999)
    assert scores[3, 0] > 2 * np.nanmax(scores[3, 1:])


def test_uncorrelated_columns_are_judged_by_themselves():
    X = np.random.default_rng(0).standard_normal((500, 4))
    check = CellCheck.fit(X, np.ones(500))
    assert not check.weights.any()
    median = np.quantile(X, 0.5, axis=0, method="inverted_cdf")
    scale = check.scores(X)[0] / np.abs(X - median)[0]
    np.testing.assert_allclose(check.scores(X), scale * np.abs(X - median), rtol=1e-9)


def test_units_and_the_order_of_columns_do_not_matter():
    X, _ = correlated()
    X[:30, 2] *= 50
    w, order = np.ones(len(X)), [4, 0, 3, 1, 5, 2]
    factors, shifts = np.array([1e-3, 5, 1, 2, 7, 1e4]), np.array([0, 3, -50, 1, 0, 1e3])
    scores = CellCheck.fit(X, w).scores(X)
    moved = X * factors + shifts
    np.testing.assert_allclose(CellCheck.fit(moved, w).scores(moved), scores, rtol=1e-6)
    turned = CellCheck.fit(X[:, order], w).scores(X[:, order])
    np.testing.assert_allclose(turned, scores[:, order], rtol=1e-9)


def test_a_weight_of_two_is_the_row_twice():
    X, _ = correlated(200)
    X[:20, 1] += 9
    w = np.ones(200)
    w[:70] = 2
    twice = np.vstack([X, X[:70]])
    weighted, repeated = CellCheck.fit(X, w), CellCheck.fit(twice, np.ones(270))
    np.testing.assert_allclose(weighted.scores(X), repeated.scores(X), rtol=1e-9)
    wrong = weighted.scores(X) > 4
    alone = Filling.fit(X, wrong, w, weighted.scaling).fill(X, wrong)
    both = Filling.fit(twice, np.vstack([wrong, wrong[:70]]), np.ones(270), weighted.scaling)
    np.testing.assert_allclose(alone, both.fill(X, wrong), rtol=1e-9)


def test_labels_and_constants_are_not_checked():
    X, _ = correlated(100, 3)
    X = np.column_stack([X, X[:, 0] > 0, np.full(100, 7.0)])
    scores = CellCheck.fit(X, np.ones(100)).scores(X)
    assert np.isnan(scores[:, 3:]).all()
    assert np.isfinite(scores[:, :3]).all()
    labels = np.arange(60).reshape(30, 2) % 3 * 1.0
    assert np.isnan(CellCheck.fit(labels, np.ones(30)).scores(labels)).all()


def test_unknown_cells_predict_nothing():
    X, _ = correlated()
    X[:100, 1] = np.nan
    scores = CellCheck.fit(X, np.ones(len(X))).scores(X)
    np.testing.assert_array_equal(np.isnan(scores), np.isnan(X))


def test_a_column_keeps_its_best_partners_only():
    X, _ = correlated(100, 160)
    check = CellCheck.fit(X, np.ones(100))
    assert (check.weights > 0).sum(axis=0).max() == 50
    full = np.abs(np.corrcoef(X.T))
    np.fill_diagonal(full, 0)
    j = np.argmax((check.weights > 0).sum(axis=0))
    kept = check.weights[:, j] > 0
    assert full[kept, j].min() > full[~kept, j].min()


# -- filling ---------------------------------------------------------------------------------------


def test_wrong_cells_get_their_conditional_mean():
    """By the formula S_wo S_oo^-1 for every row, with the covariance that the filling has."""
    X, _ = correlated(80)
    wrong = np.random.default_rng(2).uniform(size=X.shape) < 0.3
    wrong[0] = True  # nothing is left to go by: the mean
    scaling = CellCheck.fit(X, np.ones(80)).scaling
    filling = Filling.fit(X, wrong, np.ones(80), scaling)
    S, filled = np.linalg.inv(filling.precision), filling.fill(X, wrong)
    Z = scaling.dense(X) - filling.mean
    for i in range(80):
        o, v = ~wrong[i], wrong[i]
        expected = filling.mean[v] + S[np.ix_(v, o)] @ np.linalg.pinv(S[np.ix_(o, o)]) @ Z[i, o]
        np.testing.assert_allclose(scaling.dense(filled)[i, v], expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(filled[~wrong], X[~wrong])


def test_filled_cells_are_near_what_they_were():
    X, S = correlated()
    rng = np.random.default_rng(3)
    wrong = rng.uniform(size=X.shape) < 0.1
    dirty = np.where(wrong, 1e6, X)
    scaling = CellCheck.fit(dirty, np.ones(len(X))).scaling
    filled = Filling.fit(dirty, wrong, np.ones(len(X)), scaling).fill(dirty, wrong)
    best = np.zeros(X.shape)  # conditional means by the covariance that the rows were drawn with
    for i in np.flatnonzero(wrong.any(axis=1)):
        o, v = ~wrong[i], wrong[i]
        best[i, v] = S[np.ix_(v, o)] @ np.linalg.pinv(S[np.ix_(o, o)]) @ X[i, o]
    off, least = (np.sqrt(np.mean((guess - X)[wrong] ** 2)) for guess in (filled, best))
    assert off < 1.1 * least
    assert off < 0.5 * X.std()


def test_new_rows_are_checked_without_targets():
    X, _ = correlated()
    check = CellCheck.fit(X, np.ones(len(X)))
    nothing = np.zeros(X.shape, dtype=bool)
    filling = Filling.fit(X, nothing, np.ones(len(X)), check.scaling)
    limits = check.scores(X).max(axis=0)
    new, _ = correlated(50)
    same, wrong = InputCheck(check, filling, 2 * limits).of(new)
    assert not wrong.any()
    np.testing.assert_array_equal(same, new)
    new[5, 2] = 1e5
    filled, wrong = InputCheck(check, filling, 2 * limits).of(new)
    assert np.argwhere(wrong).tolist() == [[5, 2]]
    assert abs(filled[5, 2] - correlated(50)[0][5, 2]) < 1


# -- estimators ------------------------------------------------------------------------------------


@pytest.mark.slow_unless(kind="independent-cells")
@pytest.mark.parametrize("kind", ["independent-cells", "unit-cells"])
def test_the_check_helps_where_inputs_are_wrong(kind):
    X, T = regression(400)
    train, test = slice(0, 240), slice(240, None)
    dirty, _, cells = contaminate(X[train], 0.1, kind=kind, random_state=0, return_cells=True)
    plain = RobustELMRegressor(**SMALL).fit(dirty, T[train])
    checked = RobustELMRegressor(**SMALL, check_inputs=True).fit(dirty, T[train])

    def error(model, Z):
        return np.sqrt(np.mean((model.predict(Z) - T[test]) ** 2))

    assert error(checked, X[test]) < 0.8 * error(plain, X[test])
    found = checked.input_mask_
    assert (found & cells).sum() / cells.sum() > 0.7
    assert (found & cells).sum() / found.sum() > 0.85
    assert checked.input_scores_.shape == found.shape == dirty.shape
    new, _ = contaminate(X[test], 0.1, kind=kind, random_state=1)
    assert error(checked, new) < 0.8 * error(plain, new)


@pytest.mark.usefixtures("few_layers")
@pytest.mark.slow_unless(seed=0)
@pytest.mark.parametrize("seed", range(3))
def test_clean_inputs_are_left_alone(seed):
    X, T = regression(seed=seed)
    plain = RobustELMRegressor(**SMALL).fit(X[:160], T[:160])
    checked = RobustELMRegressor(**SMALL, check_inputs=True).fit(X[:160], T[:160])
    assert not checked.input_mask_.any()
    np.testing.assert_array_equal(plain.predict(X), checked.predict(X))


def test_skewed_inputs_of_skewed_targets_are_left_alone():
    # Without the large inputs most rows, whose targets are small, are predicted better.
    rng = np.random.default_rng(8)
    X = np.round(rng.gamma(1.0, 2.0, size=(200, 12)))
    rates = np.exp(-1.0 + 0.5 * (X - 2.0) / 2.0 @ rng.standard_normal((12, 3)) / np.sqrt(3))
    T = rng.poisson(rates).astype(float)
    model = RobustELMRegressor(check_inputs=True, **SMALL).fit(X, T)
    assert not model.input_mask_.any()


def test_new_rows_with_gross_errors_after_a_clean_fit():
    X, T = regression()
    model = RobustELMRegressor(**SMALL, check_inputs=True).fit(X[:160], T[:160])
    new = X[160:].copy()
    new[::4, 0] += 100
    off = np.abs(model.predict(new) - model.predict(X[160:]))
    assert np.median(off[::4]) < 0.5 * T.std()
    np.testing.assert_array_equal(off[1::4], 0)


@pytest.mark.usefixtures("few_layers")
def test_only_words_or_labels():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, size=(60, 4)).astype(float)
    T = X @ rng.standard_normal((4, 2)) + 0.1 * rng.standard_normal((60, 2))
    model = RobustELMRegressor(**SMALL, check_inputs=True).fit(X, T)
    assert not model.input_mask_.any()
    np.testing.assert_array_equal(
        model.predict(X), RobustELMRegressor(**SMALL).fit(X, T).predict(X)
    )


@pytest.mark.usefixtures("few_layers")
def test_a_fit_without_the_check_forgets_it():
    X, T = regression()
    model = RobustELMRegressor(**SMALL, check_inputs=True).fit(X, T)
    model.set_params(check_inputs=False).fit(X, T)
    assert not hasattr(model, "input_mask_")
    assert not hasattr(model, "input_scores_")
    assert model._input_check is None


def test_rows_elsewhere_are_refused():
    X, T = regression()
    with pytest.raises(ValueError, match="in the memory of this process"):
        RobustELMRegressor(**SMALL, check_inputs=True).fit(RowBlocks.from_array(X), T)


@pytest.mark.usefixtures("few_layers")
def test_no_graph_of_a_check():
    pytest.importorskip("onnx")
    from gorelm.onnx import to_onnx

    X, T = regression()
    with pytest.raises(TypeError, match="check_inputs"):
        to_onnx(RobustELMRegressor(**SMALL, check_inputs=True).fit(X, T))


@pytest.mark.usefixtures("few_layers")
def test_saved_models_check_as_before(tmp_path):
    pytest.importorskip("skops")
    from gorelm.io import load, save

    X, T = regression()
    dirty, _ = contaminate(X, 0.1, kind="unit-cells", random_state=0)
    model = RobustELMRegressor(**SMALL, check_inputs=True).fit(dirty, T)
    save(model, tmp_path / "model.gorelm")
    again = load(tmp_path / "model.gorelm")
    np.testing.assert_array_equal(again.predict(dirty), model.predict(dirty))


def table(n=240):
    """A frame with wrong numbers, a column of words between them, and gaps."""
    X, T = regression(n)
    dirty, _, cells = contaminate(X, 0.1, kind="unit-cells", random_state=0, return_cells=True)
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pd.DataFrame(dirty, columns=list("abcdef"))
    frame.loc[::20, "b"] = np.nan
    frame.insert(1, "word", np.where(np.arange(n) % 3, "red", "blue"))
    cells[::20, 1] = False
    return frame, T, np.insert(cells, 1, False, axis=1)


@pytest.fixture(scope="module")
def checked_table():
    """A model that checks its inputs, the wrong ones of which are known."""
    frame, T, cells = table()
    own = RobustELMRegressor(**SMALL, check_inputs=True, missing_targets="ignore")
    return TableRegressor(own, random_state=0).fit(frame, T), frame, T, cells


def test_a_table_says_which_of_its_cells(checked_table):
    model, frame, T, cells = checked_table
    found = model.input_mask_
    assert found.shape == frame.shape
    assert not found[:, 1].any()
    assert np.isnan(model.input_scores_[:, 1]).all()
    assert (found & cells).sum() / cells.sum() > 0.7
    assert (found & cells).sum() / found.sum() > 0.8
    [note] = [note for note in model.notes_ if note.startswith("Wrong numbers")]
    assert f"'a' ({found[:, 0].sum()})" in note
    with pytest.raises(ValueError, match="in the estimator instead"):
        TableRegressor(model.estimator, check_inputs=True).fit(frame, T)
    plain = TableRegressor(RobustELMRegressor(**SMALL)).fit(frame, T)
    assert not hasattr(plain, "input_mask_")


def test_findings_of_a_table_with_wrong_inputs(checked_table):
    """The table of the fit is the one that was given, not the one that was filled in."""
    model, frame, T, _ = checked_table
    wrong = model.input_mask_.any(axis=1)
    assert wrong.any()
    found = model.findings(frame, T).sort_values("gorelm.row")
    assert found["gorelm.flagged"][wrong].all()
    assert (found["gorelm.kind"] == "input").any()


def test_inputs_of_trusted_rows_stay():
    X, T = regression()
    dirty, _ = contaminate(X, 0.1, kind="unit-cells", random_state=0)
    model = RobustELMRegressor(**SMALL, check_inputs=True)
    wrong = model.fit(dirty, T).input_mask_.any(axis=1)
    trusted = wrong & (np.arange(len(X)) % 2 == 0)
    assert trusted.any()
    again = model.fit(dirty, T, trusted=trusted).input_mask_.any(axis=1)
    assert again.any()
    assert not again[trusted].any()


@pytest.mark.usefixtures("few_layers")
def test_the_tables_own_estimator_checks():
    frame, T, _ = table(60)
    model = TableRegressor(effort="fast", check_inputs=True, random_state=0).fit(frame, T)
    assert model.regressor_.check_inputs
    assert model.input_mask_.shape == frame.shape
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(frame)
