"""Estimators that choose their own penalty and layer, and the scores they choose by."""

import ast
import inspect
import pickle
import re
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import make_scorer, mean_absolute_error
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneOut, ShuffleSplit
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import gorelm
from gorelm import (
    GORELMRegressor,
    GORELMRegressorCV,
    GRELMRegressor,
    GRELMRegressorCV,
    ORELMRegressor,
    ORELMRegressorCV,
    RELMRegressor,
    RELMRegressorCV,
)
from gorelm._features.scaling import Scaling
from gorelm.datasets import make_multitarget
from gorelm.estimators import cv as cv_module
from gorelm.metrics import arrmse, arrmse_scorer
from gorelm.selection import (
    ROBUST_SCORES,
    error_norms,
    folds_of,
    one_standard_error,
    scores_of,
    track,
)

# cv estimator -> the estimator it fits in the end
SINGLE = {
    GORELMRegressorCV: GORELMRegressor,
    RELMRegressorCV: RELMRegressor,
    ORELMRegressorCV: ORELMRegressor,
    GRELMRegressorCV: GRELMRegressor,
}
ALL = list(SINGLE)
KFOLD = KFold(3, shuffle=True, random_state=1)
TIGHT = 1e-7

each_estimator = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
# They differ in the problem that they state (`each_estimator` tries that); the search is one.
all_estimators = pytest.mark.parametrize(
    "cls",
    [
        pytest.param(cls, id=cls.__name__, marks=() if cls is ALL[0] else pytest.mark.slow)
        for cls in ALL
    ],
)


def make(cls, **params):
    return cls(**{"n_hidden": 12, "n_lams": 5, "cv": 3, "random_state": 0, **params})


def make_data(n_rows=60, n_features=4, n_targets=2, ratio=0.0, seed=0):
    data = make_multitarget(n_rows, n_features, n_targets, outlier_ratio=ratio, random_state=seed)
    return data.X, data.T * 10.0 ** np.arange(n_targets)


def inner_seed(random_state):
    """What the search seeds its folds and layers with."""
    return int(np.random.RandomState(random_state).randint(np.iinfo(np.int32).max))


def grid_name(cls):
    return "lams" if cls is GORELMRegressorCV else "Cs"


def chosen(model):
    """Penalty of the chosen model, as parameters of the single estimator."""
    names = inspect.signature(SINGLE[type(model)]).parameters
    searched = [name for name in ("lam", "C", "l1_ratio", "delta") if hasattr(model, name + "_")]
    assert set(searched) <= set(names)
    return {name: getattr(model, name + "_") for name in searched}


def single(model, **params):
    """Return the unfitted estimator that the search should have ended with."""
    cls = SINGLE[type(model)]
    names = set(inspect.signature(cls).parameters)
    shared = {k: v for k, v in model.get_params().items() if k in names}
    return cls(**{**shared, "random_state": inner_seed(model.random_state), **params})


def splits(model):
    table = model.cv_results_
    count = sum(name.startswith("split") for name in table)
    return np.stack([table[f"split{k}_test_score"] for k in range(count)])


def by_hand(model, X, T, w=None, score=None):
    """Loop over folds and candidates with single fits; scores (folds, candidates)."""
    table = model.cv_results_
    names = [name.removeprefix("param_") for name in table if name.startswith("param_")]
    w = np.ones(len(X)) if w is None else w
    scale = Scaling.fit(model.target_scaling, T[w > 0], w[w > 0]).scale
    scores = []
    for train, test in model.cv.split(X):
        for k in range(len(table["mean_test_score"])):
            one = single(model, **{name: table[f"param_{name}"][k] for name in names})
            predicted = one.fit(X[train], T[train], w[train]).predict(X[test])
            norms = np.linalg.norm((predicted - T[test]) / scale, axis=1)
            scores.append(-np.average(norms, weights=w[test]) if score is None else score(norms))
    return np.reshape(scores, (-1, len(table["mean_test_score"])))


# -- scikit-learn's own checks -------------------------------------------------------------------


# The search is one: all checks of the class whose fits are quickest.
@parametrize_with_checks([RELMRegressorCV(n_hidden=20, n_lams=3, cv=2)])
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [cls(n_hidden=20, n_lams=3, cv=2) for cls in ALL if cls is not RELMRegressorCV]
)
def test_scikit_learn_of_the_others(estimator, check):
    check(estimator)


def test_all_searching_estimators_are_here():
    named = {name for name in gorelm.__all__ if name.endswith("RegressorCV")}
    assert named == {cls.__name__ for cls in ALL}


# -- the table is what a loop gives --------------------------------------------------------------


GRIDS = {
    GORELMRegressorCV: {"lams": [0.1, 1.0, 10.0], "l1_ratios": [0.0, 0.4], "deltas": [0.0, 0.3]},
    RELMRegressorCV: {"Cs": [0.1, 1.0, 20.0], "l1_ratios": [0.0, 0.5]},
    ORELMRegressorCV: {"Cs": [0.1, 1.0, 20.0]},
    GRELMRegressorCV: {"Cs": [0.1, 1.0, 20.0], "l1_ratios": [0.0, 0.5]},
}


@each_estimator
def test_table_is_what_a_loop_gives(cls):
    X, T = make_data(ratio=0.2)
    model = make(cls, cv=KFOLD, tol=TIGHT, **GRIDS[cls]).fit(X, T)
    n_points = np.prod([len(values) for values in GRIDS[cls].values()])
    assert len(model.cv_results_["mean_test_score"]) == n_points
    np.testing.assert_allclose(splits(model), by_hand(model, X, T), rtol=1e-3)


def test_table_with_weights_is_what_a_loop_gives():
    X, T = make_data(ratio=0.2)
    w = np.arange(60) % 4 + 0.5
    model = make(GORELMRegressorCV, lams=[0.5, 5.0], cv=KFOLD, tol=TIGHT).fit(X, T, w)
    np.testing.assert_allclose(splits(model), by_hand(model, X, T, w), rtol=1e-3)


@pytest.mark.parametrize("scoring", ["median_norm", "trimmed_norm"])
def test_other_norms_are_what_a_loop_gives(scoring):
    X, T = make_data(ratio=0.2)

    def score(norms):
        norms = np.sort(norms)  # 20 test rows: the median is the 10th, 15 stay after trimming
        return -norms[9] if scoring == "median_norm" else -norms[:15].mean()

    model = make(GORELMRegressorCV, lams=[0.5, 5.0], cv=KFOLD, tol=TIGHT, scoring=scoring)
    model.fit(X, T)
    np.testing.assert_allclose(splits(model), by_hand(model, X, T, score=score), rtol=1e-3)


@pytest.mark.crossed
@all_estimators
@pytest.mark.parametrize("one_target", [False, True])
def test_table_is_grid_search(cls, one_target):
    pd = pytest.importorskip("pandas")
    X, T = make_data()
    y = T[:, 0] if one_target else T
    scoring = "neg_mean_squared_error"
    model = make(cls, cv=KFOLD, tol=TIGHT, scoring=scoring, **GRIDS[cls]).fit(X, y)
    grid = {
        {"lams": "lam", "Cs": "C", "l1_ratios": "l1_ratio", "deltas": "delta"}[name]: values
        for name, values in GRIDS[cls].items()
    }
    search = GridSearchCV(single(model), grid, scoring=scoring, cv=KFOLD, error_score="raise")
    search.fit(X, y)
    mine, theirs = pd.DataFrame(model.cv_results_), pd.DataFrame(search.cv_results_)
    keys = [f"param_{name}" for name in grid]
    mine, theirs = (
        table.assign(**table[keys].astype(float).round(9)).sort_values(keys)
        for table in (mine, theirs)
    )
    np.testing.assert_allclose(mine[keys], theirs[keys])
    for name in ("split0_test_score", "split2_test_score", "mean_test_score"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-2)
    assert chosen(model) == pytest.approx(search.best_params_)
    np.testing.assert_allclose(model.predict(X), search.predict(X), rtol=1e-6, atol=1e-6)


def test_custom_scorer_is_grid_search():
    X, T = make_data(ratio=0.2)
    scale = Scaling.fit("robust", T, np.ones(60)).scale

    def mean_norm(model, X, y):
        return -np.linalg.norm((model.predict(X) - y) / scale, axis=1).mean()

    lams = [0.1, 1.0, 10.0]
    model = make(GORELMRegressorCV, lams=lams, cv=KFOLD, tol=TIGHT).fit(X, T)
    search = GridSearchCV(single(model), {"lam": lams}, scoring=mean_norm, cv=KFOLD).fit(X, T)
    mine = model.cv_results_["mean_test_score"][::-1]
    np.testing.assert_allclose(mine, search.cv_results_["mean_test_score"], rtol=1e-3)
    assert model.lam_ == search.best_params_["lam"]


@all_estimators
def test_table_with_missing_targets(cls):
    """By hand: errors of known cells, as if the unknown were like them."""
    X, T = make_data(ratio=0.2)
    T[::6, 0], T[1::6, 1] = np.nan, np.nan
    grid = {name: values for name, values in GRIDS[cls].items() if name != "deltas"}
    model = make(cls, cv=KFOLD, tol=TIGHT, missing_targets="ignore", **grid).fit(X, T)
    scale = Scaling.fit("robust", T, np.ones(60)).scale
    table = model.cv_results_
    names = [name for name in ("lam", "C", "l1_ratio") if f"param_{name}" in table]
    for k, (train, test) in enumerate(KFOLD.split(X)):
        for p, score in enumerate(table[f"split{k}_test_score"]):
            one = single(model, **{name: table[f"param_{name}"][p] for name in names})
            predicted = one.fit(X[train], T[train]).predict(X[test])
            squares = ((predicted - T[test]) / scale) ** 2
            expected = -np.sqrt(2 * np.nanmean(squares, axis=1)).mean()
            assert score == pytest.approx(expected, rel=1e-3)


# -- scores --------------------------------------------------------------------------------------


def test_error_norms():
    T = np.array([[0.0, 0.0], [1.0, np.nan], [np.nan, np.nan]])
    predicted = np.array([[[3.0, 8.0], [0.0, 0.0]], [[4.0, 7.0], [1.0, 0.0]], [[1.0, 1.0]] * 2])
    norms = error_norms(predicted, T, np.array([1.0, 2.0]))
    np.testing.assert_allclose(norms, [[5, 0], [3 * np.sqrt(2), 0], [0, 0]])


def test_robust_scores():
    norms = np.array([[3.0, 1.0], [1.0, 1.0], [2.0, 1.0], [100.0, 1.0]])
    ones = np.ones(4)
    np.testing.assert_allclose(ROBUST_SCORES["mean_norm"](norms, ones), [26.5, 1])
    np.testing.assert_allclose(ROBUST_SCORES["median_norm"](norms, ones), [2, 1])
    np.testing.assert_allclose(ROBUST_SCORES["trimmed_norm"](norms, ones), [2, 1])


@pytest.mark.parametrize("name", ROBUST_SCORES)
def test_scores_do_not_see_how_far_outliers_are(name):
    norms = np.array([[1.0, 1.1], [2.0, 2.1], [3.0, 3.1], [1e9, 3.2]])
    score = ROBUST_SCORES[name](norms, np.ones(4))
    assert (score[0] < score[1]) == (name != "mean_norm")


@pytest.mark.crossed
@pytest.mark.parametrize("name", ROBUST_SCORES)
@pytest.mark.parametrize("seed", range(5))
def test_weights_are_repeats_in_scores(name, seed):
    rng = np.random.RandomState(seed)
    norms, w = rng.exponential(size=(11, 3)), rng.randint(1, 4, size=11)
    score = ROBUST_SCORES[name]
    repeated = score(np.repeat(norms, w, axis=0), np.ones(w.sum()))
    np.testing.assert_allclose(score(norms, w.astype(float)), repeated, rtol=1e-12)
    order = rng.permutation(11)
    np.testing.assert_allclose(score(norms[order], w[order].astype(float)), repeated, rtol=1e-12)


@pytest.mark.parametrize(
    "scorer", ["neg_mean_absolute_error", make_scorer(mean_absolute_error, greater_is_better=False)]
)
@pytest.mark.parametrize("one_target", [False, True])
def test_scorers_of_scikit_learn(scorer, one_target):
    rng = np.random.RandomState(0)
    predicted, T, w = rng.normal(size=(7, 2, 1)), rng.normal(size=(7, 1)), rng.uniform(1, 2, 7)
    norms = error_norms(predicted, T, np.ones(1))
    scores = scores_of(scorer, predicted, norms, None, T, w, one_target=one_target)
    expected = -np.average(np.abs(predicted[..., 0] - T), axis=0, weights=w)
    np.testing.assert_allclose(scores, expected)


def test_one_standard_error_on_numbers():
    means = np.array([-1.0, -0.9, -1.3, -1.05, -1.0])
    errors = np.full(5, 0.11)
    lams = np.array([8.0, 1.0, 100.0, 16.0, 8.0])
    assert lams[one_standard_error(means, errors, [lams])] == 8.0
    assert one_standard_error(means, errors * 2, [lams]) == 3
    assert one_standard_error(means, errors * 10, [lams]) == 2
    assert one_standard_error(means, errors * 0, [lams]) == 1


def test_one_standard_error_uses_the_error_of_the_best():
    means, lams = np.array([-1.0, -1.2, -1.4]), np.array([1.0, 2.0, 3.0])
    assert one_standard_error(means, np.array([0.1, 9.0, 9.0]), [lams]) == 0
    assert one_standard_error(means, np.array([0.25, 0.0, 0.0]), [lams]) == 1


def test_one_standard_error_breaks_ties_by_the_next_key_and_then_by_score():
    means, errors = np.array([-1.0, -1.01, -1.02, -1.03]), np.full(4, 1.0)
    first, second = np.ones(4), np.array([0.0, 0.5, 0.5, 0.0])
    assert one_standard_error(means, errors, [first, second]) == 1
    assert one_standard_error(means, errors, [first]) == 0


@all_estimators
def test_one_standard_error_end_to_end(cls):
    X, T = make_data(ratio=0.2)
    best = make(cls, n_lams=9, n_hidden=20).fit(X, T)
    simple = make(cls, n_lams=9, n_hidden=20, one_standard_error=True).fit(X, T)
    table = simple.cv_results_
    scores, means = splits(simple), table["mean_test_score"]
    top = best.best_index_
    assert top == np.argmax(means)
    error = scores[:, top].std(ddof=1) / np.sqrt(3)
    near = means >= means[top] - error
    lams = table["param_lam"] if "param_lam" in table else 1 / table["param_C"]
    assert lams[simple.best_index_] == lams[near].max()
    assert lams[simple.best_index_] >= lams[top]
    assert simple.best_score_ == means[simple.best_index_]
    assert near.sum() > 1


@pytest.mark.slow_unless(n_targets=[None, 2])
@pytest.mark.crossed
@pytest.mark.parametrize(
    "scoring",
    [*ROBUST_SCORES, "r2", "neg_median_absolute_error", arrmse_scorer, "a callable"],
    ids=lambda s: s if isinstance(s, str) else "scorer",
)
@pytest.mark.parametrize("n_targets", [None, 1, 2])
def test_scorings_and_shapes_of_y(scoring, n_targets):
    X, T = make_data()
    y = T[:, 0] if n_targets is None else T[:, :n_targets]
    shapes = []
    if scoring == "a callable":

        def scoring(model, X, y):
            shapes.append((X.shape, y.shape, model.predict(X).shape))
            return -np.abs(model.predict(X) - y).mean()

    model = make(GORELMRegressorCV, scoring=scoring).fit(X, y)
    assert model.predict(X).shape == y.shape
    assert np.isfinite(model.best_score_)
    assert model.best_score_ == model.cv_results_["mean_test_score"].max()
    assert set(shapes) <= {((20, 4), (20, *y.shape[1:]), (20, *y.shape[1:]))}


# -- what is searched, and what comes out --------------------------------------------------------


def assert_ends_as(model, X, T, w=None, **layer):
    """The result is the single estimator, fitted with what was chosen."""
    final = single(model, **layer, **chosen(model)).fit(X, T, w)
    np.testing.assert_array_equal(model.predict(X), final.predict(X))
    np.testing.assert_array_equal(model.coef_, final.coef_)
    np.testing.assert_array_equal(model.outlier_mask_, final.outlier_mask_)
    assert model.dual_gap_ == final.dual_gap_


@all_estimators
def test_ends_with_the_chosen_single_estimator(cls):
    X, T = make_data(ratio=0.2)
    model = make(cls, **({"l1_ratios": [0.1, 0.6]} if cls is not ORELMRegressorCV else {}))
    model.fit(X, T)
    table, best = model.cv_results_, model.best_index_
    assert {f"param_{name}" for name in chosen(model)} <= set(table)
    for name, value in chosen(model).items():
        assert table[f"param_{name}"][best] == value
    assert table["rank_test_score"][best] == 1
    assert model.best_score_ == table["mean_test_score"][best] == table["mean_test_score"].max()
    np.testing.assert_allclose(table["mean_test_score"], splits(model).mean(axis=0))
    np.testing.assert_allclose(table["std_test_score"], splits(model).std(axis=0))
    assert_ends_as(model, X, T)


@all_estimators
def test_ends_with_the_chosen_single_estimator_under_weights(cls):
    X, T = make_data(ratio=0.2)
    w = np.arange(60) % 3 + 1.0
    assert_ends_as(make(cls).fit(X, T, w), X, T, w)


@pytest.mark.slow_unless(name=["n_hidden", "activation"])
@pytest.mark.crossed
@pytest.mark.crossed("cls", "name")
@pytest.mark.parametrize("cls", [GORELMRegressorCV, RELMRegressorCV])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n_hidden", [2, 25]),
        ("n_hidden", np.array([2, 25])),
        ("activation", ["hardlim", "tanh"]),
        ("weight_scale", (1e-4, 1.0)),
        ("n_inputs", [1, 3]),
        ("direct_link", [False, True]),
    ],
)
def test_lists_of_layers_are_searched(cls, name, values):
    X, T = make_data(90)
    model = make(cls, **{"n_hidden": 12, name: values}).fit(X, T)
    table = model.cv_results_
    assert list(np.unique(table[f"param_{name}"])) == sorted(values)
    best = table[f"param_{name}"][model.best_index_]
    assert getattr(model.hidden_, {"n_hidden": "n_nodes"}.get(name, name), best) == best
    if name in ("n_hidden", "weight_scale"):
        assert best == values[1]
    assert_ends_as(model, X, T, **{name: best})
    # Each layer's part is the search of that layer alone.
    alone = make(cls, **{"n_hidden": 12, name: values[0]}).fit(X, T)
    np.testing.assert_allclose(splits(alone), splits(model)[:, :5], rtol=1e-12)


def test_numbers_of_inputs_may_be_all():
    X, T = make_data(90)
    model = make(RELMRegressorCV, n_hidden=12, n_inputs=[None, 2, 99], n_lams=3).fit(X, T)
    table = model.cv_results_
    assert list(table["param_n_inputs"]) == 3 * [None] + 3 * [2] + 3 * [99]
    scores = splits(model)
    np.testing.assert_array_equal(scores[:, :3], scores[:, 6:])
    assert not np.array_equal(scores[:, :3], scores[:, 3:6])
    assert "param_n_inputs" not in make(RELMRegressorCV, n_lams=3).fit(X, T).cv_results_


def test_every_combination_of_layers():
    pd = pytest.importorskip("pandas")
    X, T = make_data()
    model = make(RELMRegressorCV, n_hidden=[5, 9], activation=["tanh", "sine"], n_lams=3)
    table = pd.DataFrame(model.fit(X, T).cv_results_)
    assert len(table) == 12
    assert len(table.groupby(["param_n_hidden", "param_activation", "param_C"])) == 12
    assert sorted(table["rank_test_score"]) == list(range(1, 13))
    assert table["mean_test_score"].idxmax() == model.best_index_
    assert not table.isna().any(axis=None)


@all_estimators
def test_default_grid(cls):
    X, T = make_data()
    table = make(cls, n_lams=7, eps=1e-4).fit(X, T).cv_results_
    lams = table["param_lam"] if "param_lam" in table else 1 / table["param_C"]
    assert len(lams) == 7
    np.testing.assert_allclose(lams[1:] / lams[:-1], 1e-4 ** (1 / 6), rtol=1e-9)


@all_estimators
def test_the_largest_default_penalty_is_all_but_empty(cls):
    X, T = make_data()
    model = make(cls, n_lams=1, eps=1e-6, **({} if cls is ORELMRegressorCV else {"l1_ratios": 1.0}))
    model.fit(X, T)
    if cls is ORELMRegressorCV:
        assert np.linalg.norm(model.hidden_outputs(X) @ model.coef_, axis=1).max() < 10
    else:
        assert model.n_active_ <= 1


@all_estimators
def test_one_candidate(cls):
    X, T = make_data()
    model = make(cls, **{grid_name(cls): 2.0}).fit(X, T)
    assert next(iter(chosen(model).values())) == 2.0
    assert model.best_index_ == 0


@all_estimators
def test_Cs_come_back_as_given(cls):
    X, T = make_data()
    grid = [3.0, 49.0, 0.1, 3.0, 98.0]
    model = make(cls, **{grid_name(cls): grid}).fit(X, T)
    table = model.cv_results_
    values = table["param_lam"] if cls is GORELMRegressorCV else table["param_C"]
    assert sorted(values) == sorted(set(grid))
    assert next(iter(chosen(model).values())) in grid


def test_contaminated_data_choose_a_better_model_than_squares_do():
    errors = {"mean_norm": [], "neg_mean_squared_error": []}
    for seed in range(3):
        data = make_multitarget(160, outlier_ratio=0.3, random_state=seed)
        for scoring, found in errors.items():
            cls = GORELMRegressorCV if scoring == "mean_norm" else RELMRegressorCV
            model = make(cls, n_hidden=40, n_lams=9, scoring=scoring).fit(data.X, data.T)
            found.append(arrmse(data.T_clean, model.predict(data.X)))
    assert np.mean(errors["mean_norm"]) < 0.7 * np.mean(errors["neg_mean_squared_error"])


# -- cv ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cv", [2, np.int64(4), None, KFold(4), LeaveOneOut(), ShuffleSplit(3, random_state=0), "list"]
)
def test_kinds_of_cv(cv):
    X, T = make_data(24)
    if cv == "list":
        cv = [(np.arange(12), np.arange(12, 24)), (np.arange(12, 24), np.arange(12))]
    model = make(RELMRegressorCV, cv=cv).fit(X, T)
    n_splits = {"LeaveOneOut": 24}.get(type(cv).__name__) or getattr(cv, "n_splits", None)
    n_splits = n_splits or (5 if cv is None else len(cv) if isinstance(cv, list) else int(cv))
    assert len(splits(model)) == n_splits
    assert np.isfinite(model.predict(X)).all()


def test_integer_cv_shuffles_by_the_seed():
    X = np.zeros((20, 1))
    folds = folds_of(4, X, X, 7)
    again, other = folds_of(4, X, X, 7), folds_of(4, X, X, 8)
    tested = np.concatenate([fold.test for fold in folds])
    np.testing.assert_array_equal(np.sort(tested), np.arange(20))
    assert not np.array_equal(tested, np.arange(20))
    for fold, same, different in zip(folds, again, other, strict=True):
        np.testing.assert_array_equal(fold.test, same.test)
        assert not np.array_equal(fold.test, different.test)
        assert not np.intersect1d(fold.train, fold.test).size
        assert len(fold.train) + len(fold.test) == 20


@all_estimators
def test_same_seed_same_result(cls):
    X, T = make_data()
    first, second = make(cls).fit(X, T), make(cls).fit(X, T)
    np.testing.assert_array_equal(splits(first), splits(second))
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    other = make(cls, random_state=1).fit(X, T)
    assert not np.array_equal(splits(first), splits(other))


def test_unfinished_splits_cannot_be_silent():
    X = np.zeros((4, 1))
    with pytest.raises(ValueError, match="no splits"):
        folds_of([], X, X, 0)
    with pytest.raises(ValueError, match="rows to train on"):
        folds_of([(np.arange(4), np.arange(0))], X, X, 0)


# -- rows judged by models that did not see them -------------------------------------------------


@all_estimators
def test_outlier_scores_are_out_of_fold(cls):
    X, T = make_data()
    model = make(cls, cv=KFOLD, tol=TIGHT, n_lams=3, eps=1e-2).fit(X, T)
    scale = Scaling.fit("robust", T, np.ones(60)).scale
    expected = np.empty(60)
    for train, test in KFOLD.split(X):
        one = single(model, **chosen(model)).fit(X[train], T[train])
        expected[test] = np.linalg.norm((one.predict(X[test]) - T[test]) / scale, axis=1)
    np.testing.assert_allclose(model.cv_outlier_scores_, expected, rtol=1e-3, atol=1e-4)


def test_a_row_cannot_talk_its_own_score_down():
    """A flexible model would pass through it; the out-of-fold error grows as the row moves."""
    X, T = make_data()
    scale = Scaling.fit("robust", T, np.ones(60)).scale
    scores = []
    for shift in (0.0, 1e3):
        moved = T.copy()
        moved[7] += shift * scale
        model = make(RELMRegressorCV, Cs=1e6, n_hidden=40, cv=KFOLD, target_scaling=None)
        scores.append(model.fit(X, moved).cv_outlier_scores_)
        train = next(train for train, test in KFOLD.split(X) if 7 in test)
        one = single(model, **chosen(model)).fit(X[train], T[train])
        np.testing.assert_allclose(
            scores[-1][7], np.linalg.norm(one.predict(X[[7]]) - moved[7]), rtol=1e-6
        )
    together = next(test for _, test in KFOLD.split(X) if 7 in test)
    others = together[together != 7]
    np.testing.assert_allclose(scores[0][others], scores[1][others])  # tested by the same model


@pytest.mark.parametrize("seed", range(3))
def test_mask_finds_planted_rows(seed):
    data = make_multitarget(150, 5, outlier_ratio=0.2, random_state=seed)
    model = make(GORELMRegressorCV, n_hidden=40, n_lams=9, direct_link=True).fit(data.X, data.T)
    assert model.cv_outlier_mask_.dtype == bool
    assert model.cv_outlier_mask_[data.planted].mean() >= 0.9
    assert data.planted[model.cv_outlier_mask_].mean() >= 0.7


def test_rows_that_are_never_or_often_tested():
    X, T = make_data(30)
    cv = ShuffleSplit(3, test_size=0.2, random_state=0)
    model = make(RELMRegressorCV, Cs=1.0, cv=cv).fit(X, T)
    scale = Scaling.fit("robust", T, np.ones(30)).scale
    found = [[] for _ in range(30)]
    for train, test in cv.split(X):
        one = single(model, C=1.0).fit(X[train], T[train])
        norms = np.linalg.norm((one.predict(X[test]) - T[test]) / scale, axis=1)
        for row, norm in zip(test, norms, strict=True):
            found[row].append(norm)
    assert {len(f) for f in found} >= {0, 1, 2}
    expected = np.array([np.mean(f) if f else np.nan for f in found])
    np.testing.assert_allclose(model.cv_outlier_scores_, expected, rtol=1e-6)
    assert not model.cv_outlier_mask_[np.isnan(expected)].any()


# -- processes and threads -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "cls", [GORELMRegressorCV, pytest.param(RELMRegressorCV, marks=pytest.mark.slow)]
)
def test_processes_change_no_digit(monkeypatch, cls):
    """Where H is small, even if BLAS has more threads here than there; else only by rounding."""
    X, T = make_data(400, ratio=0.2)
    for few_cells in (cv_module.FEW_CELLS, 0):
        monkeypatch.setattr(cv_module, "FEW_CELLS", few_cells)
        model = make(cls, n_hidden=[60, 150], n_lams=3, one_standard_error=True)
        with threadpool_limits(2, "blas"):
            alone, shared = (clone(model).set_params(n_jobs=n).fit(X, T) for n in (1, 2))
        np.testing.assert_allclose(splits(shared), splits(alone), rtol=1e-6)
        if few_cells:
            for name, column in alone.cv_results_.items():
                np.testing.assert_array_equal(shared.cv_results_[name], column)
            np.testing.assert_array_equal(shared.predict(X), alone.predict(X))
            np.testing.assert_array_equal(shared.cv_outlier_scores_, alone.cv_outlier_scores_)


@all_estimators
def test_threads_change_next_to_nothing(cls):
    X, T = make_data(ratio=0.2)
    default = make(cls).fit(X, T)
    with threadpool_limits(1):
        single_threaded = make(cls).fit(X, T)
    np.testing.assert_allclose(splits(default), splits(single_threaded), rtol=1e-6)


# -- unlucky folds -------------------------------------------------------------------------------


def finite(model, X, T, w=None):
    with np.errstate(all="raise", under="ignore"):
        model.fit(X, T, w)
    for values in (model.predict(X), model.coef_, model.best_score_, model.outlier_scores_):
        assert np.isfinite(values).all()
    assert not np.isnan(splits(model)).any()
    return model


@pytest.mark.crossed
@all_estimators
@pytest.mark.parametrize("scoring", ["mean_norm", "neg_mean_squared_error"])
@pytest.mark.parametrize("part", ["train", "test"])
def test_corrupt_fold(cls, scoring, part):
    X, T = make_data()
    cv = [(np.arange(20, 60), np.arange(20)), (np.arange(40), np.arange(40, 60))]
    rows = slice(20, 60) if part == "train" else slice(0, 20)
    T[rows] = 1e6 * np.random.RandomState(0).normal(size=T[rows].shape)
    finite(make(cls, cv=cv, scoring=scoring), X, T)


@pytest.mark.crossed
@all_estimators
@pytest.mark.parametrize("value", [0.0, 3.0, -1e6])
def test_constant_targets_in_a_fold(cls, value):
    X, T = make_data()
    T[20:] = value
    cv = [(np.arange(20, 60), np.arange(20)), (np.arange(40), np.arange(40, 60))]
    finite(make(cls, cv=cv), X, T)


@pytest.mark.crossed
@all_estimators
@pytest.mark.parametrize("value", [0.0, 7.0])
def test_constant_targets(cls, value):
    X, T = make_data()
    model = finite(make(cls), X, np.full_like(T, value))
    np.testing.assert_allclose(model.predict(X), value, atol=1e-9)
    assert not model.cv_outlier_mask_.any()


@all_estimators
def test_constant_inputs(cls):
    X, T = make_data()
    finite(make(cls), np.ones_like(X), T)


@all_estimators
def test_a_gross_outlier(cls):
    X, T = make_data()
    T[3] = 1e12
    model = finite(make(cls), X, T)
    assert model.cv_outlier_mask_[3]


@all_estimators
def test_two_rows(cls):
    X, T = make_data()
    finite(make(cls, cv=2), X[:2], T[:2])


# -- missing targets and weights -----------------------------------------------------------------


@pytest.mark.crossed
@all_estimators
@pytest.mark.parametrize("scoring", ROBUST_SCORES)
def test_missing_targets(cls, scoring):
    X, T = make_data()
    T[::4, 0], T[1::9, 1], T[10] = np.nan, np.nan, np.nan
    model = finite(make(cls, missing_targets="ignore", scoring=scoring), X, T)
    assert model.cv_outlier_scores_[10] == 0
    assert not model.cv_outlier_mask_[10]
    complete = finite(make(cls), X, make_data()[1])
    unit = np.ptp(make_data()[1], axis=0)
    assert np.mean(np.abs(model.predict(X) - complete.predict(X)) / unit) < 0.2


@pytest.mark.parametrize("scoring", ["r2", arrmse_scorer])
def test_missing_targets_need_a_robust_score(scoring):
    X, T = make_data()
    T[::4, 0] = np.nan
    model = make(GORELMRegressorCV, missing_targets="ignore", scoring=scoring)
    with pytest.raises(ValueError, match=r"missing targets use one of mean_norm, median_norm"):
        model.fit(X, T)


def test_a_target_unknown_in_a_whole_fold():
    X, T = make_data()
    T[2:, 0] = np.nan
    model = make(GORELMRegressorCV, missing_targets="ignore", cv=KFold(3))
    with pytest.raises(ValueError, match="use fewer folds"):
        model.fit(X, T)


@all_estimators
@pytest.mark.parametrize("columns", [[0], [0, 1]])
def test_a_target_that_is_never_known(cls, columns):
    X, T = make_data()
    T[:, columns] = np.nan
    with pytest.raises(ValueError, match="known"):
        make(cls, missing_targets="ignore").fit(X, T)


@all_estimators
def test_rows_of_weight_zero_are_not_there(cls):
    """Whatever their targets are: the model, the scores, the scale of the targets."""
    X, T = make_data()
    w = np.ones(60)
    w[::6] = 0
    first = finite(make(cls), X, T, w)
    T[::6] = 1e4 * T[::6] + 7
    second = finite(make(cls), X, T, w)
    np.testing.assert_array_equal(splits(first), splits(second))
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    assert second.cv_outlier_mask_[::6].all()  # judged all the same
    without = np.flatnonzero(w)
    one = single(first, **chosen(first)).fit(X[without], T[without])
    np.testing.assert_array_equal(one.predict(X), first.predict(X))


@pytest.mark.parametrize("scoring", ["mean_norm", "neg_mean_squared_error"])
def test_weights_are_repeats(scoring):
    X, T = make_data(40)
    w = np.arange(40) % 3 + 1
    cv = KFold(2)
    repeated = [
        tuple(np.flatnonzero(np.isin(np.repeat(np.arange(40), w), part)) for part in split)
        for split in cv.split(X)
    ]
    params = {"lams": [0.3, 3.0], "tol": TIGHT, "scoring": scoring}
    one = make(GORELMRegressorCV, cv=cv, **params).fit(X, T, w)
    two = make(GORELMRegressorCV, cv=repeated, **params)
    two.fit(np.repeat(X, w, axis=0), np.repeat(T, w, axis=0))
    np.testing.assert_allclose(splits(one), splits(two), rtol=1e-3)
    np.testing.assert_array_equal(np.repeat(one.cv_outlier_mask_, w), two.cv_outlier_mask_)


# -- bad input -----------------------------------------------------------------------------------


NAN, INF = float("nan"), float("inf")
BAD = [
    *[(cls, {grid_name(cls): v}, grid_name(cls)) for cls in ALL for v in ([], -1.0, [1.0, -1.0])],
    *[(cls, {grid_name(cls): v}, grid_name(cls)) for cls in ALL for v in ([1, NAN], [INF], "ab")],
    *[
        (cls, {grid_name(cls): v}, f"{grid_name(cls)} must be positive")
        for cls in ALL
        for v in (0.0, [0.0, 1.0])
    ],
    *[
        (cls, {"l1_ratios": v}, "l1_ratios")
        for cls in ALL
        if cls is not ORELMRegressorCV
        for v in ([], 1.5, [0.0, 1.1], -0.1, [NAN])
    ],
    *[(GORELMRegressorCV, {"deltas": v}, "deltas") for v in ([], -0.1, [NAN])],
    *[
        (GORELMRegressorCV, {name: v}, name)
        for name, v in [
            ("n_hidden", []),
            ("activation", []),
            ("weight_scale", []),
            ("direct_link", []),
            ("n_inputs", []),
            ("n_inputs", [2, 0]),
            ("n_inputs", [2, 1.5]),
            ("n_inputs", 0),
            ("n_hidden", [10, -1]),
            ("n_hidden", [10, 2.5]),
            ("n_hidden", 2.5),
            ("activation", ["tanh", "sigmod"]),
            ("activation", "sigmod"),
            ("weight_scale", [1.0, 0.0]),
            ("direct_link", ["yes"]),
            ("cv", 1),
            ("cv", 0),
            ("cv", 61),
            ("cv", "five"),
            ("n_lams", 0),
            ("n_lams", 2.5),
            ("eps", 0.0),
            ("eps", 1.0),
            ("tol", 0.0),
            ("max_iter", 0),
            ("scoring", None),
            ("scoring", "mean_norms"),
            ("one_standard_error", "yes"),
            ("progress", "yes"),
            ("n_jobs", 1.5),
            ("missing_targets", "drop"),
        ]
    ],
]


@pytest.mark.parametrize(("cls", "params", "match"), BAD)
def test_bad_parameter(cls, params, match):
    X, T = make_data()
    model = make(cls, **params)
    with pytest.raises(ValueError, match=match):
        model.fit(X, T)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_too_many_folds_says_how_many_rows_there_are():
    X, T = make_data(10)
    with pytest.raises(ValueError, match=r"cv=11 .* n_samples = 10"):
        make(GORELMRegressorCV, cv=11).fit(X, T)


@all_estimators
def test_bad_data(cls):
    X, T = make_data()
    holes = T.copy()
    holes[3, 1] = np.nan
    for bad, match in [
        ((X, holes), "NaN"),
        ((np.where(X > 0.9, np.nan, X), T), "NaN"),
        ((X, T[:-1]), "inconsistent"),
        ((X, T, np.zeros(60)), "non-zero|positive sample weight"),
        ((X, T, np.full(60, -1.0)), "[Nn]egative"),
        ((X[:1], T[:1]), "n_samples = 1"),
    ]:
        with pytest.raises(ValueError, match=match):
            make(cls).fit(*bad)


def test_fold_without_a_usable_row():
    X, T = make_data()
    w = np.ones(60)
    w[:20] = 0
    with pytest.raises(ValueError, match="fold"):
        make(GORELMRegressorCV, cv=KFold(3)).fit(X, T, w)


def test_a_scorer_that_knows_no_number():
    X, T = make_data()
    with pytest.raises(ValueError, match="finite score"):
        make(RELMRegressorCV, scoring=lambda model, X, y: np.nan).fit(X, T)


def test_a_scorer_that_fails_says_so_itself():
    X, T = make_data()
    with pytest.raises(ValueError, match="Mean Squared Logarithmic Error"):
        make(RELMRegressorCV, scoring="neg_mean_squared_log_error").fit(X, T)


# -- progress ------------------------------------------------------------------------------------


def test_progress_shows_a_bar(capsys):
    pytest.importorskip("rich")
    X, T = make_data()
    quiet = make(RELMRegressorCV).fit(X, T)
    assert capsys.readouterr() == ("", "")
    model = make(RELMRegressorCV, progress=True).fit(X, T)
    out, err = capsys.readouterr()
    assert out == ""
    assert "folds" in err
    assert "100%" in err
    np.testing.assert_array_equal(model.predict(X), quiet.predict(X))


def test_progress_without_rich(monkeypatch):
    for name in list(sys.modules):
        if name == "rich" or name.startswith("rich."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    X, T = make_data()
    model = make(RELMRegressorCV, progress=True)
    with pytest.raises(ImportError, match=r"gorelm\[progress\]"):
        model.fit(X, T)
    with pytest.raises(NotFittedError):
        model.predict(X)
    make(RELMRegressorCV).fit(X, T)
    assert list(track(iter([1, 2]), 2, "what", show=False)) == [1, 2]


# -- as an estimator -----------------------------------------------------------------------------


@all_estimators
def test_refit_forgets(cls):
    pd = pytest.importorskip("pandas")
    X, T = make_data()
    model = make(cls).fit(pd.DataFrame(X[:30, :3], columns=list("abc")), T[:30, 0])
    model.fit(X, T)
    fresh = make(cls).fit(X, T)
    assert vars(model).keys() == vars(fresh).keys()
    np.testing.assert_array_equal(model.predict(X), fresh.predict(X))


@all_estimators
def test_refit_on_other_targets_of_the_same_shape(cls):
    X, T = make_data()
    model = make(cls).fit(X, T)
    model.fit(X, -100 * T)
    fresh = make(cls).fit(X, -100 * T)
    np.testing.assert_array_equal(model.predict(X), fresh.predict(X))
    np.testing.assert_array_equal(model.coef_, fresh.coef_)
    assert model.outlier_threshold_ == fresh.outlier_threshold_


@all_estimators
def test_a_failed_fit_changes_nothing(cls):
    X, T = make_data()
    model = make(cls).fit(X, T)
    prediction, before = model.predict(X), dict(vars(model))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((5, 2), np.nan), np.zeros(5))
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)

    def fail(model, X, y):
        raise RuntimeError("in the middle")

    model.set_params(scoring=fail)
    before = dict(vars(model))
    with pytest.raises(RuntimeError, match="in the middle"):
        model.fit(X[:, :2], T[:, 0])
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is before[name] for name in before)
    np.testing.assert_array_equal(model.predict(X), prediction)


@all_estimators
def test_clone_pickle_and_untouched_parameters(cls):
    X, T = make_data()
    w = np.arange(60) % 3
    before = [a.copy() for a in (X, T, w)]
    model = make(cls, n_hidden=[5, 12])
    params = model.get_params()
    model.fit(X, T, w)
    assert model.get_params() == params
    for old, new in zip(before, (X, T, w), strict=True):
        np.testing.assert_array_equal(new, old)
    copy = clone(model)
    with pytest.raises(NotFittedError):
        copy.predict(X)
    np.testing.assert_array_equal(copy.fit(X, T, w).predict(X), model.predict(X))
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))


@all_estimators
def test_frames_and_sparse_inputs(cls):
    pd = pytest.importorskip("pandas")
    X, T = make_data()
    plain = make(cls).fit(X, T)
    model = make(cls).fit(pd.DataFrame(X, columns=list("abcd")), pd.DataFrame(T))
    assert list(model.feature_names_in_) == list("abcd")
    frame = pd.DataFrame(X, columns=list("abcd"))
    np.testing.assert_array_equal(model.predict(frame), plain.predict(X))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("abdc")])
    thin = make(cls, tol=1e-6, n_lams=3, eps=1e-2).fit(sparse.csr_array(X), T)
    dense = make(cls, tol=1e-6, n_lams=3, eps=1e-2).fit(X, T)
    np.testing.assert_allclose(splits(thin), splits(dense), rtol=1e-3)


@all_estimators
def test_pruned_model_predicts_the_same(cls):
    X, T = make_data()
    model = make(cls, **({} if cls is ORELMRegressorCV else {"l1_ratios": 0.9})).fit(X, T)
    before = model.predict(X)
    model.prune()
    assert len(model.coef_) == model.n_active_
    np.testing.assert_allclose(model.predict(X), before, atol=1e-9 * np.ptp(T))


@all_estimators
def test_every_parameter_and_attribute_is_documented(cls):
    pd = pytest.importorskip("pandas")
    doc = inspect.getdoc(cls)
    assert not re.search(r"\{\w+\}$", doc, re.M)
    parameters, attributes = re.search(
        r"^Parameters\n-+\n(.*?)^Attributes\n-+\n(.*?)(?=^\w+\n---|\Z)", doc, re.M | re.S
    ).groups()
    entries = re.findall(r"^([\w, ]+?)(?: : (.+))?$", parameters, re.M)
    entries = {n: line for names, line in entries for n in names.split(", ")}
    signature = inspect.signature(cls).parameters
    assert set(entries) == set(signature)
    for name, line in entries.items():
        written = re.search(r"default=(.+)$", line)
        if written:
            assert ast.literal_eval(written.group(1)) == signature[name].default
    X, T = make_data()
    model = make(cls).fit(pd.DataFrame(X, columns=list("abcd")), T)
    names = re.findall(r"^([\w, ]+?)(?: : .+)?$", attributes, re.M)
    fitted = {n for n in vars(model) if n.endswith("_") and not n.startswith("_")}
    assert {n for line in names for n in line.split(", ")} == fitted
