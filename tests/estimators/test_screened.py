"""Any regressor on the rows and cells that a screen leaves."""

import pickle

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

import gorelm
from gorelm import RELMRegressor, RobustELMRegressor, ScreenedRegressor, TableRegressor
from gorelm.datasets import make_multitarget
from gorelm.metrics import arrmse

pd = pytest.importorskip("pandas")


class Marked(BaseEstimator):
    """A screen that flags given rows, and cells if there are any."""

    def __init__(self, rows=(), cells=None):
        self.rows = rows
        self.cells = cells

    def fit(self, X, y, sample_weight=None):
        self.seen_ = (X, y, sample_weight)
        self.outlier_mask_ = np.isin(np.arange(len(y)), self.rows)
        self.outlier_scores_ = self.outlier_mask_.astype(float)
        if self.cells is not None:
            self.cell_mask_ = np.zeros(np.shape(y), dtype=bool)
            for cell in self.cells:
                self.cell_mask_[cell] = True
        return self


def fast(**params):
    return RobustELMRegressor(effort="fast", n_hidden=20, random_state=0, **params)


@pytest.mark.usefixtures("few_layers")
@parametrize_with_checks([ScreenedRegressor(Ridge(), screen=fast(), random_state=0)])
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ScreenedRegressor(HistGradientBoostingRegressor(max_iter=5), random_state=0),
        ScreenedRegressor(KNeighborsRegressor(), random_state=0),
    ]
)
def test_scikit_learn_with_the_default_screen(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def dirty():
    return make_multitarget(240, outlier_ratio=0.3, random_state=0)


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize(
    "estimator", [ExtraTreesRegressor(30), HistGradientBoostingRegressor(), RELMRegressor(C=10.0)]
)
def test_wrong_rows_do_not_bend_any_model(dirty, estimator):
    truth = make_multitarget(240, outlier_ratio=0.0, random_state=0).T
    model = ScreenedRegressor(estimator, screen=fast(), random_state=0).fit(dirty.X, dirty.T)
    found = model.outlier_mask_
    assert found[dirty.planted].mean() > 0.95
    assert found[~dirty.planted].mean() < 0.1
    columns = [clone(estimator).fit(dirty.X, column).predict(dirty.X) for column in dirty.T.T]
    bent = arrmse(truth, np.column_stack(columns))
    assert arrmse(truth, model.predict(dirty.X)) < 0.7 * bent


def test_the_fit_is_that_of_the_rows_that_stay(dirty):
    X, T = dirty.X, dirty.T
    model = ScreenedRegressor(Ridge(), screen=Marked(range(50))).fit(X, T)
    np.testing.assert_array_equal(model.predict(X), Ridge().fit(X[50:], T[50:]).predict(X))
    assert len(model.estimators_) == 1
    np.testing.assert_array_equal(model.fitted_mask_[:, 0], np.arange(len(X)) >= 50)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_wrong_cells_are_left_out_of_the_fit_of_their_target_only(dirty):
    X, T = dirty.X, dirty.T
    cells = [(3, 1), (7, 0), (0, 2)]
    model = ScreenedRegressor(Ridge(), screen=Marked([0], cells)).fit(X, T)
    assert len(model.estimators_) == 3
    for j, left_out in enumerate([[0, 7], [0, 3], [0]]):
        rows = np.setdiff1d(np.arange(len(X)), left_out)
        alone = Ridge().fit(X[rows], T[rows, j]).predict(X)
        np.testing.assert_allclose(model.predict(X)[:, j], alone)
    # Estimators that take unknown targets get them.
    network = RELMRegressor(n_hidden=10, missing_targets="ignore", random_state=0)
    model = ScreenedRegressor(network, screen=Marked([0], cells)).fit(X, T)
    known = T.copy()
    for cell in cells:
        known[cell] = np.nan
    known[0] = np.nan
    assert len(model.estimators_) == 1
    alone = clone(network).fit(X[1:], known[1:])
    np.testing.assert_array_equal(model.predict(X), alone.predict(X))


def test_estimators_of_one_target_are_fitted_to_each(dirty):
    boosted = HistGradientBoostingRegressor(max_iter=3)
    model = ScreenedRegressor(boosted, screen=Marked([1])).fit(dirty.X, dirty.T)
    assert len(model.estimators_) == dirty.T.shape[1]
    assert model.predict(dirty.X).shape == dirty.T.shape
    one = ScreenedRegressor(boosted, screen=Marked([1])).fit(dirty.X, dirty.T[:, 0])
    assert one.predict(dirty.X).shape == (len(dirty.X),)
    column = ScreenedRegressor(Ridge(), screen=Marked([1])).fit(dirty.X, dirty.T[:, :1])
    assert column.predict(dirty.X).shape == (len(dirty.X), 1)


def test_estimators_that_take_a_matrix_only(dirty):
    X, T = dirty.X, dirty.T
    both = {
        name: ScreenedRegressor(model, screen=Marked([0], [(3, 1)])).fit(X, T).predict(X)
        for name, model in (("matrix", MultiOutputRegressor(Ridge())), ("each", Ridge()))
    }
    np.testing.assert_allclose(both["matrix"], both["each"])


def test_unknown_targets(dirty):
    T = dirty.T.copy()
    T[::7, 1] = np.nan
    with pytest.raises(ValueError, match="y contains NaN"):
        ScreenedRegressor(Ridge()).fit(dirty.X, T)
    screen = fast(missing_targets="ignore")
    model = ScreenedRegressor(Ridge(), screen=screen, missing_targets="ignore").fit(dirty.X, T)
    assert not model.fitted_mask_[::7, 1].any()
    assert np.isfinite(model.predict(dirty.X)).all()


def test_weights_go_to_screen_and_estimator(dirty):
    X, T = dirty.X, dirty.T
    w = np.arange(len(X)) % 3.0
    model = ScreenedRegressor(Ridge(), screen=Marked([4])).fit(X, T, sample_weight=w)
    np.testing.assert_array_equal(model.screen_.seen_[2], w)
    rows = np.setdiff1d(np.flatnonzero(w), [4])
    alone = Ridge().fit(X[rows], T[rows], sample_weight=w[rows])
    np.testing.assert_allclose(model.predict(X), alone.predict(X))


@pytest.mark.usefixtures("few_layers")
def test_no_leak_in_a_cross_validation(dirty):
    """What a fold predicts does not depend on the targets of its test rows."""
    X, T = dirty.X, dirty.T
    model = ScreenedRegressor(Ridge(), screen=fast(), random_state=0)
    train, test = np.arange(120), np.arange(120, 240)
    folds = [(train, test), (test, train)]
    other = T.copy()
    other[test] = -1e6
    one, two = (cross_val_predict(model, X, values, cv=folds)[test] for values in (T, other))
    np.testing.assert_array_equal(one, two)
    model.set_params(screen=Marked([0]))
    search = GridSearchCV(model, {"estimator__alpha": [1.0, 1e6]}, cv=2).fit(X, T)
    assert search.best_estimator_.estimators_[0].alpha == search.best_params_["estimator__alpha"]


@pytest.mark.usefixtures("few_layers")
def test_what_the_screen_found_is_passed_on(dirty):
    model = ScreenedRegressor(Ridge(), screen=fast()).fit(dirty.X, dirty.T)
    alone = fast().fit(dirty.X, dirty.T)
    for name in ("outlier_scores_", "outlier_threshold_", "outlier_mask_", "out_of_fold_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(alone, name))
    assert model.contaminated_
    assert not hasattr(model, "notes_")
    found = model.findings(dirty.X, dirty.T)
    assert found["gorelm.flagged"].to_numpy().sum() >= model.outlier_mask_.sum()
    np.testing.assert_array_equal(
        model.score_rows(dirty.X, dirty.T), alone.score_rows(dirty.X, dirty.T)
    )
    with pytest.raises(NotFittedError):
        ScreenedRegressor(Ridge()).predict(dirty.X)


@pytest.mark.usefixtures("few_layers")
def test_seeds(dirty):
    X, T = dirty.X[:80], dirty.T[:80]
    trees = ExtraTreesRegressor(3)
    one, same, other = (
        ScreenedRegressor(trees, screen=RobustELMRegressor(n_hidden=9), random_state=seed)
        .fit(X, T)
        .predict(X)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert trees.random_state is None


def make_frame(n=120):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.uniform(size=n), "colour": rng.choice(["red", "blue"], n)})
    frame.loc[5, "size"] = np.nan
    y = np.nan_to_num(frame["size"].to_numpy()) + (frame["colour"] == "red")
    y[::6] += 30.0
    return frame, y


@pytest.mark.usefixtures("few_layers")
def test_tables_with_text_and_missing_values():
    frame, y = make_frame()
    inner = ScreenedRegressor(Ridge(), screen=fast())
    outside = ScreenedRegressor(TableRegressor(Ridge()), random_state=0)
    for model in (TableRegressor(inner, random_state=0), outside):
        model.fit(frame, y)
        assert model.outlier_mask_[::6].all()
        assert model.outlier_mask_.sum() < 25
        assert np.abs(model.predict(frame) - y)[1:5].max() < 0.3
        assert not any("Not screened" in note for note in model.notes_)


def test_a_table_without_a_screen_says_so():
    frame, y = make_frame()
    model = TableRegressor(Ridge()).fit(frame, y)
    assert "Not screened: Ridge was fitted to all rows" in model.notes_[-1]
    assert "ScreenedRegressor(Ridge())" in model.notes_[-1]


@pytest.mark.usefixtures("few_layers")
def test_files_and_graphs(dirty, tmp_path):
    X, T = dirty.X, dirty.T
    network = RELMRegressor(n_hidden=10, random_state=0)
    found = fast().fit(X, T)
    for screen, n_fits in ((Marked([0]), 1), (Marked([0], [(3, 1)]), 3)):
        model = ScreenedRegressor(network, screen=screen).fit(X, T)
        assert len(model.estimators_) == n_fits
        with pytest.raises(gorelm.io.ModelFileError, match="Marked"):
            gorelm.save(model, tmp_path / "model")
        model.screen, model.screen_ = None, found
        restored = gorelm.load(gorelm.save(model, tmp_path / "model"))
        np.testing.assert_array_equal(restored.predict(X), model.predict(X))
        np.testing.assert_array_equal(restored.outlier_mask_, model.outlier_mask_)
        runtime = pytest.importorskip("onnxruntime")
        table = TableRegressor(ScreenedRegressor(network, screen=screen)).fit(X, T)
        for one in (model, table):
            graph = gorelm.onnx.to_onnx(one).SerializeToString()
            session = runtime.InferenceSession(graph, providers=["CPUExecutionProvider"])
            np.testing.assert_allclose(session.run(["y"], {"X": X})[0], one.predict(X))
    with pytest.raises(TypeError, match="Ridge cannot be written as ONNX"):
        gorelm.onnx.to_onnx(ScreenedRegressor(Ridge(), screen=Marked([0])).fit(X, T))


def test_nothing_left_or_no_screen(dirty):
    X, T = dirty.X, dirty.T
    with pytest.raises(ValueError, match=r"leaves no row of target column\(s\) \[0, 1, 2\]"):
        ScreenedRegressor(Ridge(), screen=Marked(range(len(X)))).fit(X, T)
    with pytest.raises(ValueError, match="a LinearRegression, has no outlier_mask_"):
        ScreenedRegressor(Ridge(), screen=LinearRegression()).fit(X, T)
    for params, name in (({"estimator": 3}, "estimator"), ({"screen": 3}, "screen")):
        with pytest.raises(ValueError, match=f"'{name}' parameter of ScreenedRegressor"):
            ScreenedRegressor(**{"estimator": Ridge(), **params}).fit(X, T)
