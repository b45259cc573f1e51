"""Networks that grow, as their users meet them: when they stop, what they drop, keep and refuse."""

import copy
import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit
from sklearn.utils.estimator_checks import parametrize_with_checks

from gorelm import EMELMRegressor, IELMRegressor, IGORELMRegressor, IRELMRegressor
from gorelm._solver.admm import Settings
from gorelm._solver.prepared import solve
from gorelm._solver.problem import Problem
from gorelm.datasets import make_multitarget
from support.growing_cases import (
    TIGHT,
    TOL,
    UNSCALED,
    all_cases,
    assert_close,
    assert_same,
    data,
    make,
    not_one_by_one,
    robust_cases,
)

CLASSES = [IELMRegressor, EMELMRegressor, IRELMRegressor, IGORELMRegressor]
RECORD = {
    *("n_drawn", "n_hidden", "n_active", "error", "validation_error"),
    *("objective", "dual_gap", "n_iter", "seconds"),
}


# -- when to stop ----------------------------------------------------------------------------------


@all_cases
def test_growth_is_written_down(case):
    X, T = data()
    model = make(case, n_step=7).fit(X, T)
    assert model.stopped_by_ == "max_hidden"
    model.grow()
    assert [record["n_drawn"] for record in model.growth_] == [10, 17, 24, 30, 37]
    assert all(record.keys() == RECORD for record in model.growth_)
    assert all(np.isnan(record["validation_error"]) for record in model.growth_)
    last = model.growth_[-1]
    assert last["n_hidden"] == 37
    assert (last["n_active"], last["dual_gap"]) == (model.n_active_, model.dual_gap_)


def median(T):
    """The lower of two in the middle."""
    return np.sort(T, axis=0)[(len(T) - 1) // 2]


def size_of(errors):
    return np.linalg.norm(errors, axis=1).sum()


@all_cases
def test_error_is_the_share_of_the_medians(case):
    X, T = data()
    model = make(case, target_scaling=None).fit(X, T)
    share = size_of(model.predict(X) - T) / size_of(median(T) - T)
    assert model.growth_[-1]["error"] == pytest.approx(share, rel=1e-9)


@all_cases
def test_stops_at_a_target_error(case):
    X, T = data()
    errors = [record["error"] for record in make(case, max_hidden=60).fit(X, T).growth_]
    goal = (errors[1] + errors[2]) / 2
    model = make(case, max_hidden=60, target_error=goal).fit(X, T)
    assert model.stopped_by_ == "target_error"
    expected = next(k for k, error in enumerate(errors) if error <= goal)
    assert len(model.growth_) == expected + 1
    assert model.hidden_.n_nodes == 10 * (expected + 1)


@pytest.mark.parametrize(("patience", "min_improvement"), [(1, 0.0), (1, 0.3), (2, 0.2), (1, 0.9)])
def test_stops_out_of_patience(patience, min_improvement):
    X, T = data(50)
    every = [record["error"] for record in make("EM-ELM", max_hidden=80).fit(X, T).growth_]
    best, waited, expected = np.inf, 0, 0
    while waited < patience and expected < len(every):
        better = every[expected] < (1 - min_improvement) * best
        best, waited = (every[expected], 0) if better else (best, waited + 1)
        expected += 1
    model = make("EM-ELM", max_hidden=80, patience=patience, min_improvement=min_improvement)
    assert len(model.fit(X, T).growth_) == expected
    assert model.stopped_by_ == ("patience" if waited == patience else "max_hidden")
    assert model.hidden_.n_nodes == 10 * expected


def test_stops_when_nodes_are_left_empty():
    X, T = data()
    params = {"lam": 5.0, "l1_ratio": 0.9, "max_hidden": 200}
    every = IGORELMRegressor(n_initial=10, n_step=10, random_state=0, **params).fit(X, T)
    shares = [1 - record["n_active"] / record["n_hidden"] for record in every.growth_]
    goal = shares[5]
    assert goal > 0
    model = clone(every).set_params(max_pruned=goal).fit(X, T)
    assert model.stopped_by_ == "max_pruned"
    assert len(model.growth_) == 1 + next(k for k, share in enumerate(shares) if share >= goal)
    assert model.n_active_ <= (1 - goal) * model.hidden_.n_nodes + 1e-9


@robust_cases
def test_stops_when_the_callback_says_so(case):
    X, T = data()
    seen = []

    def enough(record):
        seen.append(record)
        return len(seen) == 4

    model = make(case, tol=1e-7, callback=enough).fit(X, T)
    assert model.stopped_by_ == "callback"
    assert len(seen) == 4
    assert not model.converged_


VALIDATIONS = {
    "share": (0.3, ShuffleSplit(1, test_size=0.3, random_state=0)),
    "folds": (4, KFold(4, shuffle=True, random_state=0)),
    "splitter": (KFold(3), KFold(3)),
    "splits": (list(KFold(3).split(np.zeros((80, 1)))), KFold(3)),
}
all_validations = pytest.mark.parametrize("validation", VALIDATIONS)


@all_validations
def test_validation_error_is_that_of_rows_not_seen(validation):
    X, T = data(80)
    given, splitter = VALIDATIONS[validation]
    model = make("EM-ELM", validation=given, target_scaling=None).fit(X, T)
    for record in model.growth_:
        layer = make("EM-ELM", max_hidden=record["n_drawn"], target_scaling=None).fit(X, T)
        H, errors, unit = layer.hidden_outputs(X), 0.0, 0.0
        for seen, unseen in splitter.split(X):
            B = np.linalg.lstsq(H[seen], T[seen])[0]
            errors += size_of(H[unseen] @ B - T[unseen])
            unit += size_of(median(T[seen]) - T[unseen])
        assert record["validation_error"] == pytest.approx(errors / unit, rel=1e-6)


@pytest.mark.crossed
@all_validations
@all_cases
def test_validation_chooses_the_size(case, validation):
    X, T = data(80)
    params = {"n_initial": 5, "n_step": 5, "max_hidden": 60}
    given, _ = VALIDATIONS[validation]
    model = make(case, **params, validation=given, patience=2, min_improvement=0.01).fit(X, T)
    errors = [record["validation_error"] for record in model.growth_]
    best = 5 * (1 + int(np.argmin(errors)))
    assert model.hidden_.n_nodes == model.coef_.shape[0] == best
    if model.stopped_by_ == "patience":
        assert min(errors[-2:]) >= min(errors[:-2]) * 0.99
    else:
        assert model.stopped_by_ == "max_hidden"
        assert len(errors) == 12
    assert_same(model, make(case, n_initial=best, max_hidden=best).fit(X, T), X, 1e-9)
    model.grow(5)
    assert_same(model, make(case, max_hidden=best + 5, n_initial=best).fit(X, T), X, 1e-9)


def test_target_error_is_judged_by_validation():
    X, T = data(80)
    judged = make("IR-ELM", validation=4, max_hidden=60).fit(X, T)
    errors = [record["validation_error"] for record in judged.growth_]
    goal = sorted(errors)[2]
    model = make("IR-ELM", validation=4, max_hidden=60, target_error=goal).fit(X, T)
    assert model.stopped_by_ == "target_error"
    assert model.growth_[-1]["validation_error"] <= goal
    assert len(model.growth_) == 1 + next(k for k, error in enumerate(errors) if error <= goal)


def test_splits_name_rows_as_given():
    # A row without weight is absent from the fit, but not from the counting.
    X, T = data(80)
    w = np.ones(80)
    w[:5] = 0
    splits = list(KFold(4, shuffle=True, random_state=1).split(X))
    shifted = [tuple(part[part >= 5] - 5 for part in split) for split in splits]
    model = make("EM-ELM", validation=splits).fit(X, T, w)
    absent = make("EM-ELM", validation=shifted).fit(X[5:], T[5:])
    for one, two in zip(model.growth_, absent.growth_, strict=True):
        assert one["validation_error"] == pytest.approx(two["validation_error"], rel=1e-9)


@all_cases
def test_a_target_unknown_in_a_fold_is_said_so_or_left_out(case):
    X, T = data()
    T[1:, 1] = np.nan
    model = make(case, validation=4, missing_targets="ignore")
    try:
        model.fit(X, T)
    except ValueError as error:
        assert "target" in str(error)  # noqa: PT017
    else:
        assert np.isfinite([record["validation_error"] for record in model.growth_]).all()


# -- dropping nodes --------------------------------------------------------------------------------


def test_nodes_emptied_are_dropped_and_the_rest_is_optimal():
    X, T = data(120)
    params = {"lam": 3.0, "l1_ratio": 0.8, "n_initial": 20, "n_step": 20, "random_state": 0}
    model = IGORELMRegressor(**params, max_hidden=100, prune_on_grow=True, target_scaling=None)
    model.fit(X, T)
    for _ in range(2):
        last = model.growth_[-1]
        assert last["n_active"] <= last["n_hidden"] < last["n_drawn"]
        assert last["n_hidden"] == model.hidden_.n_nodes == len(model.coef_)
        problem = Problem("l21", 1.0, 3.0 * 0.8, 3.0 * (1 - 0.8))
        best = solve(model.hidden_outputs(X), T, problem, settings=Settings(tol=TIGHT))
        assert best.bound[0] <= last["objective"] <= best.objective[0] * (1 + TOL)
        assert model.growth_[-2]["n_active"] + 20 >= last["n_hidden"]
        model.grow(20)
    every = clone(model).set_params(prune_on_grow=False, max_hidden=140).fit(X, T)
    assert model.hidden_.n_drawn == every.hidden_.n_nodes == 140
    assert {tuple(a) for a in model.hidden_.A} < {tuple(a) for a in every.hidden_.A}


@all_cases
def test_nodes_dropped_before_growing_with_other_rows_count_no_more(case):
    X, T = data()
    params = {"activation": "relu", "prune_on_grow": True, "max_hidden": 10, **UNSCALED}
    model = make(case, **params).fit(X - 2.5, T)  # some nodes are dead there, and not in X
    model.grow(5, X, T)
    norms = np.linalg.norm(model.predict(X) - T, axis=1)
    np.testing.assert_allclose(model.outlier_scores_, norms, atol=1e-8)


@all_cases
def test_pruned_by_hand_grows_on(case):
    X, T = data()
    model = make(case, activation="relu", input_scaling=None).fit(X - 3.0, T)
    before = model.predict(X - 3.0)
    nodes = model.prune().hidden_.n_nodes
    assert nodes == model.n_active_
    assert_close(model.predict(X - 3.0), before, 1e-9)
    model.grow(5)
    assert model.hidden_.n_nodes == len(model.coef_) == nodes + 5


@not_one_by_one
def test_an_empty_model_pruned_by_hand_grows_on(case):
    X, _ = data()
    y = np.full(len(X), 3.0)
    model = make(case).fit(X, y).prune()
    assert model.hidden_.n_nodes == model.n_active_ == 0
    model.grow(5)
    assert model.hidden_.n_nodes == len(model.coef_) == 5
    np.testing.assert_allclose(model.predict(X), y)


@all_cases
def test_directly_linked_inputs_are_not_nodes(case):
    X, T = data()
    last = make(case, direct_link=True).fit(X, T).growth_[-1]
    assert 0 <= last["n_active"] <= last["n_hidden"] == 30


# -- storing, bad input, interruption --------------------------------------------------------------

COPIES = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "forget": lambda model: clone(model).fit(X60, T60).forget_rows(),
}


@pytest.mark.crossed
@all_cases
@pytest.mark.parametrize("way", COPIES)
def test_copies_predict_and_grow_with_rows_only(case, way):
    X, T = data()
    model = make(case).fit(X, T)
    other = COPIES[way](model)
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    with pytest.raises(ValueError, match=r"grow\(n_new, X, y\)"):
        other.grow(10)
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    assert_same(other.grow(10, X, T), model.grow(10), X, 1e-7)
    assert_same(other.grow(10), model.grow(10), X, 1e-6)


def test_a_pickle_holds_no_rows():
    X, T = data(3000)
    model = make("IR-ELM").fit(X, T)
    rows_in_it = len(pickle.dumps(model)) - len(pickle.dumps(clone(model).fit(X[:60], T[:60])))
    assert rows_in_it < X[60:].nbytes / 2


X60, T60 = data()
BAD_GROWTH = {
    "no nodes": ((0,), ValueError, "at least 1"),
    "less than none": ((-3,), ValueError, "at least 1"),
    "half a node": ((2.5,), TypeError, "whole number"),
    "a word": (("ten",), TypeError, "whole number"),
    "other features": ((5, X60[:, :3], T60), ValueError, "3 features"),
    "other targets": ((5, X60, T60[:, :2]), ValueError, "fitted with"),
    "one target": ((5, X60, T60[:, 0]), ValueError, "fitted with"),
    "other rows in y": ((5, X60, T60[:-1]), ValueError, "inconsistent"),
    "X without y": ((5, X60), ValueError, "requires y"),
    "y without X": ((5, None, T60), ValueError, "pass X"),
    "unknown inputs": ((5, X60 * np.nan, T60), ValueError, "X contains NaN"),
    "unknown targets": ((5, X60, T60 * np.nan), ValueError, "y contains NaN"),
    "negative weights": ((5, X60, T60, -np.ones(60)), ValueError, "sample_weight"),
    "no weights": ((5, X60, T60, np.zeros(60)), ValueError, "eight"),
}


@pytest.mark.crossed
@all_cases
@pytest.mark.parametrize("bad", BAD_GROWTH)
def test_bad_growth_leaves_the_model_as_it_was(case, bad):
    arguments, error, message = BAD_GROWTH[bad]
    model = make(case).fit(X60, T60)
    before = model.predict(X60)
    with pytest.raises(error, match=message):
        model.grow(*arguments)
    np.testing.assert_array_equal(model.predict(X60), before)
    assert_same(model.grow(10), make(case, max_hidden=40).fit(X60, T60), X60, 1e-9)


@pytest.mark.parametrize("cls", CLASSES)
def test_bad_parameters(cls):
    with pytest.raises(NotFittedError):
        cls().grow(10)
    for params, message in [
        ({"n_initial": 50, "max_hidden": 40}, "n_initial=50 is more than max_hidden=40"),
        ({"n_step": 0}, "n_step"),
        ({"max_hidden": 10.5}, "max_hidden"),
        ({"validation": 1.5}, "validation"),
        ({"validation": 61}, "number of rows, 60"),
        ({"patience": 0}, "patience"),
        ({"max_pruned": 2.0}, "max_pruned"),
    ]:
        with pytest.raises(ValueError, match=message):
            cls(**{"n_initial": 10, "max_hidden": 20, **params}).fit(X60, T60)


@all_cases
def test_warm_start_with_other_columns_fails_and_leaves_the_model(case):
    model = make(case, warm_start=True).fit(X60, T60)
    before = model.predict(X60)
    with pytest.raises(ValueError, match="features"):
        model.fit(X60[:, :3], T60)
    with pytest.raises(ValueError, match="fitted with"):
        model.fit(X60, T60[:, 0])
    np.testing.assert_array_equal(model.predict(X60), before)
    model.set_params(max_hidden=40).fit(X60, T60)
    assert_same(model, make(case, max_hidden=40).fit(X60, T60), X60, 1e-9)


def assert_grows_on(model, case):
    """By 10 nodes from 30: with its rows, or without if it says that it has lost them."""
    try:
        model.grow(10)
    except ValueError as error:
        assert "grow(n_new, X, y)" in str(error)  # noqa: PT017
        model.grow(10, X60, T60)
    assert_same(model, make(case, max_hidden=40).fit(X60, T60), X60, 1e-9)


@all_cases
def test_interrupted_growth_leaves_the_model_as_it_was(case, monkeypatch):
    model = make(case).fit(X60, T60)
    before, records = model.predict(X60), len(model.growth_)

    def interrupt(*_):
        raise KeyboardInterrupt

    if "IGOR" in case:
        model.set_params(callback=interrupt)
    else:
        monkeypatch.setattr(type(model), "_solve_nodes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.grow(10)
    monkeypatch.undo()
    if "IGOR" in case:
        model.set_params(callback=None)
    np.testing.assert_array_equal(model.predict(X60), before)
    assert len(model.growth_) == records
    assert_grows_on(model, case)


@robust_cases
@pytest.mark.parametrize("way", ["grow", "warm start"])
def test_growth_that_ends_in_a_warning_as_error_adds_nothing(case, way):
    model = make(case, warm_start=True).fit(X60, T60)
    before = model.predict(X60)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.set_params(max_iter=1, tol=1e-12, max_hidden=50)
        with pytest.raises(ConvergenceWarning):
            model.grow(20) if way == "grow" else model.fit(X60, T60)
    model.set_params(max_iter=None, tol=TOL)
    np.testing.assert_array_equal(model.predict(X60), before)
    assert_grows_on(model, case)


# -- scikit-learn ----------------------------------------------------------------------------------


SMALL = {"n_initial": 10, "n_step": 10, "max_hidden": 30, "random_state": 0}


@pytest.mark.slow  # other parameters than in test_base.py
@parametrize_with_checks(
    [IELMRegressor(random_state=0), *(cls(**SMALL) for cls in CLASSES if cls is not IELMRegressor)]
)
def test_scikit_learn(estimator, check):
    check(estimator)


@all_cases
def test_clone_and_seeds(case):
    results = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        state = np.random.get_state()[1].copy()  # noqa: NPY002
        results.append(clone(make(case, validation=0.3).fit(X60, T60)).fit(X60, T60).grow(5))
        np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    np.testing.assert_array_equal(results[0].predict(X60), results[1].predict(X60))


@all_cases
def test_grid_search(case):
    grid = {"max_hidden": [10, 30], "n_step": [5, 10]}
    search = GridSearchCV(make(case), grid, cv=3, error_score="raise").fit(X60, T60)
    assert search.best_estimator_.hidden_.n_nodes == search.best_params_["max_hidden"]
    scores = search.cv_results_["mean_test_score"].reshape(2, 2)
    # The step plays no part in where growth ends.
    np.testing.assert_allclose(scores[:, 0], scores[:, 1], atol=0.05 if "IGOR" in case else 1e-6)


# -- what a caller may do to the model and its rows ----------------------------------------------


@pytest.mark.parametrize("cls", [IRELMRegressor, IGORELMRegressor])
def test_warm_start_sees_targets_changed_in_place(cls):
    data = make_multitarget(80, outlier_ratio=0.0, random_state=0)
    y = data.T.copy()
    model = cls(n_initial=20, max_hidden=20, warm_start=True, random_state=0).fit(data.X, y)
    y[:] = -y
    fresh = cls(n_initial=20, max_hidden=20, random_state=0).fit(data.X, y)
    change = np.abs(model.fit(data.X, y).predict(data.X) - fresh.predict(data.X)).max()
    assert change < 0.1 * np.ptp(y)


def test_a_fitted_model_is_no_reference_cycle():
    data = make_multitarget(60, random_state=0)
    model = IGORELMRegressor(n_initial=5, n_step=5, max_hidden=10, random_state=0)
    watched = weakref.ref(model.fit(data.X, data.T))
    gc.collect()
    gc.disable()
    try:
        del model
        assert watched() is None
    finally:
        gc.enable()


def test_growth_goes_on_after_an_interrupted_one():
    data = make_multitarget(60, random_state=0)
    model = IGORELMRegressor(n_initial=5, n_step=5, max_hidden=10, random_state=0)
    model.fit(data.X, data.T)
    before = model.predict(data.X)

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.set_params(callback=interrupt).grow(5)
    np.testing.assert_array_equal(model.predict(data.X), before)
    model.set_params(callback=None).grow(5)
    assert model.hidden_.n_nodes == 15


@pytest.mark.parametrize("as_masks", [False, True])
def test_splits_may_be_lists_or_masks(as_masks):
    data = make_multitarget(80, random_state=0)
    inside = np.arange(80) < 50
    split = (inside, ~inside) if as_masks else (list(range(50)), list(range(50, 80)))
    options = {"n_initial": 5, "n_step": 5, "max_hidden": 15, "random_state": 0}
    model = EMELMRegressor(validation=[split], **options).fit(data.X, data.T)
    arrays = [(np.arange(50), np.arange(50, 80))]
    other = EMELMRegressor(validation=arrays, **options).fit(data.X, data.T)
    np.testing.assert_array_equal(model.predict(data.X), other.predict(data.X))
    with pytest.raises(ValueError, match="no splits"):
        EMELMRegressor(validation=iter([]), **options).fit(data.X, data.T)


def test_warm_start_that_has_arrived_stays():
    data = make_multitarget(80, random_state=0)
    options = {"n_initial": 20, "n_step": 20, "max_hidden": 60, "random_state": 0}
    model = IRELMRegressor(target_error=2.0, warm_start=True, **options).fit(data.X, data.T)
    assert model.hidden_.n_nodes == 20
    model.fit(data.X, data.T)
    assert [record["n_drawn"] for record in model.growth_] == [20]
    model.set_params(target_error=None).fit(data.X, data.T).fit(data.X, data.T)
    assert [record["n_drawn"] for record in model.growth_] == [20, 40, 60]
