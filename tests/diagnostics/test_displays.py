import copy
import itertools
import sys

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from gorelm import (  # noqa: E402
    GORELMRegressor,
    GORELMRegressorCV,
    GRELMRegressorCV,
    IRELMRegressor,
    RELMRegressor,
    RobustELMRegressor,
    TableRegressor,
)
from gorelm.datasets import make_multitarget  # noqa: E402
from gorelm.diagnostics import (  # noqa: E402
    CellMapDisplay,
    ConvergenceDisplay,
    GrowthDisplay,
    OutlierDisplay,
    PathDisplay,
    PredictedObservedDisplay,
    outlier_threshold,
)
from gorelm.diagnostics.drawing import number, powers, shortened  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")

DATA = make_multitarget(150, outlier_ratio=0.2, random_state=0)
X, T = DATA.X, DATA.T
ELM = {"n_hidden": 25, "random_state": 0}
MODELS = {
    "training": GORELMRegressor(lam=0.1, l1_ratio=0.5, tol=1e-4, **ELM),
    "cv": GORELMRegressorCV(n_lams=6, l1_ratios=[0.0, 0.5], **ELM),
    "robust": RobustELMRegressor(n_members=2, **ELM),
    "pipeline": make_pipeline(StandardScaler(), GORELMRegressor(lam=0.1, **ELM)),
    "grid": GridSearchCV(GORELMRegressor(**ELM), {"lam": [0.1, 1.0, 10.0]}, cv=3),
}


@pytest.fixture(scope="module")
def fitted():
    return {name: clone(model).fit(X, T) for name, model in MODELS.items()}


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    plt.close("all")


def inner(name, model):
    return {"pipeline": lambda: model[-1], "grid": lambda: model.best_estimator_}.get(
        name, lambda: model
    )()


# -- outlier map -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_outlier_map_shows_the_scores(name, fitted):
    display = OutlierDisplay.from_estimator(fitted[name])
    own = inner(name, fitted[name])
    prefix = "cv_" if name == "cv" else ""
    scores, flagged, threshold = (
        getattr(own, f"{prefix}outlier_{what}_") for what in ("scores", "mask", "threshold")
    )
    assert flagged.any()
    for points, rows in ((display.points_, ~flagged), (display.flagged_points_, flagged)):
        (index,) = np.nonzero(rows)
        np.testing.assert_array_equal(points.get_offsets(), np.c_[index, scores[index]])
    assert set(display.threshold_line_.get_ydata()) == {threshold}
    largest = [str(i) for i in np.argsort(-scores)[:10]]
    names = [label.get_text() for label in display.labels_]
    assert names[0] == largest[0]
    assert len(names) >= 4
    assert names == [name for name in largest if name in names]
    assert display.unseen == (name in ("cv", "robust"))
    assert ("did not see" in display.ax_.get_ylabel()) == display.unseen
    # Colour and mark differ.
    kept, flags = display.points_, display.flagged_points_
    assert not np.allclose(kept.get_facecolors()[0], flags.get_facecolors()[0])
    assert len(kept.get_paths()[0].vertices) != len(flags.get_paths()[0].vertices)


def test_cv_threshold_is_the_one_that_flags(fitted):
    model = fitted["cv"]
    over = model.cv_outlier_scores_ > model.cv_outlier_threshold_
    np.testing.assert_array_equal(model.cv_outlier_mask_, over)


def crowded(kind, n_rows=200):
    scores = np.abs(np.random.default_rng(0).normal(size=n_rows))
    where = {
        "neighbours": np.arange(90, 100),
        "start": np.arange(10),
        "end": np.arange(n_rows - 10, n_rows),
        "apart": np.arange(0, n_rows, n_rows // 10)[:10],
    }[kind]
    scores[where] = 6.0 + 1e-3 * np.arange(10)
    return scores


@pytest.mark.slow_unless(names=None)
@pytest.mark.crossed
@pytest.mark.parametrize("size", [(8, 4), (4, 3)])
@pytest.mark.parametrize("names", [None, [f"station {i} north" for i in range(200)]])
def test_labels_can_be_read(size, names):
    for kind in ("neighbours", "start", "end", "apart"):
        scores = crowded(kind)
        figure = Figure(figsize=size, layout="constrained")
        display = OutlierDisplay(scores, 3.0, scores > 3.0, row_names=names)
        display.plot(ax=figure.subplots())
        figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in display.labels_]
        if kind == "apart" and names is None:
            assert len(boxes) >= 9
        # The largest score has its name.
        largest = int(np.argmax(scores))
        name = str(largest) if names is None else names[largest]
        assert display.labels_[0].get_text() == name
        for one, two in itertools.combinations(boxes, 2):
            assert not one.overlaps(two)
        # No name is cut off, and the points that are named stay visible.
        frame = figure.bbox
        points = [display.ax_.transData.transform(label.xy) for label in display.labels_]
        for box in boxes:
            assert frame.contains(*box.min)
            assert frame.contains(*box.max)
            assert not box.count_contains(points)


def test_scale_of_scores():
    near = np.linspace(1.0, 2.0, 50)
    far = np.r_[near, 1e4]
    with_zeros = np.r_[far, np.zeros(3)]
    scales = {}
    for name, scores in {"near": near, "far": far, "zeros": with_zeros}.items():
        display = OutlierDisplay(scores, 3.0, scores > 3.0).plot()
        scales[name] = display.ax_.get_yscale()
        low, high = display.ax_.get_ylim()
        assert low <= scores.min()
        assert scores.max() < high
    assert scales == {"near": "linear", "far": "log", "zeros": "symlog"}


def test_scores_that_are_not_there():
    scores = np.r_[np.nan, np.linspace(0, 1, 20), np.nan]
    display = OutlierDisplay(scores, np.inf, np.zeros(22, dtype=bool)).plot()
    assert len(display.points_.get_offsets()) == 20
    assert display.threshold_line_ is None
    assert "2 not judged" in display.ax_.get_xlabel()
    one = OutlierDisplay(np.array([0.5]), 1.0, np.array([False])).plot()
    assert [label.get_text() for label in one.labels_] == ["0"]
    with pytest.raises(ValueError, match="3 row_names for 22 rows"):
        OutlierDisplay(scores, 1.0, scores > 1, row_names=["a", "b", "c"])


def test_many_rows_are_one_image():
    scores = np.random.default_rng(0).lognormal(size=100_000)
    threshold = outlier_threshold(scores)
    display = OutlierDisplay(scores, threshold, scores > threshold).plot()
    assert display.points_.get_rasterized()
    assert display.flagged_points_.get_rasterized()
    assert not OutlierDisplay(scores[:100], 3.0, scores[:100] > 3).plot().points_.get_rasterized()


# -- cell map ----------------------------------------------------------------------------------


def outlined(display):
    """Return the cells (row of the table, target) that are outlined."""
    middles = [path.vertices[:4].mean(axis=0) for path in display.outlines_.get_paths()]
    return sorted((display.rows_[int(y)], display.targets_[int(x)]) for x, y in middles)


def test_cell_map_shows_the_worst_rows(fitted):
    model = fitted["robust"]
    display = CellMapDisplay.from_estimator(model, n_rows=40, target_names=["a", "b$", "$c"])
    display.figure_.draw_without_rendering()  # a dollar is no formula
    assert [label.get_text() for label in display.ax_.get_xticklabels()] == ["a", "b$", "$c"]
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == [
        str(i) for i in display.rows_
    ]
    ratios = model.cell_scores_ / model.cell_thresholds_
    drawn = display.cells_.get_array().reshape(40, 3)
    np.testing.assert_allclose(drawn, np.clip(ratios[display.rows_], 0.1, 10.0))
    # Flagged ones first, then by the largest cell; no other row is worse.
    keys = list(zip(~model.cell_mask_.any(axis=1), -ratios.max(axis=1), strict=True))
    assert [keys[i] for i in display.rows_] == sorted(keys)[:40]
    assert model.cell_mask_.any(axis=1).sum() < 40
    assert outlined(display) == [tuple(cell) for cell in np.argwhere(model.cell_mask_)]
    marked = display.rows_[(display.row_marks_.get_ydata() - 0.5).astype(int)]
    assert sorted(marked) == np.flatnonzero(model.outlier_mask_).tolist()
    assert "worst 40 of 150" in display.ax_.get_ylabel()
    low, high = display.ax_.get_ylim()
    assert low > high  # the worst row is on top


def test_cell_map_of_many_cells_one_target_and_unknown_ones():
    rng = np.random.default_rng(0)
    scores = np.abs(rng.normal(size=(5000, 100)))
    scores[17, 60], scores[2, 3], scores[17, 4] = 50.0, np.inf, np.nan
    flagged = scores > 5.0
    scores[40, 8] = 80.0  # of a trusted row: not flagged
    display = CellMapDisplay(scores, np.full(100, 5.0), flagged).plot(n_rows=10, n_targets=20)
    display.figure_.draw_without_rendering()
    assert display.rows_[:3].tolist() == [2, 17, 40]
    assert outlined(display) == [(2, 3), (17, 60)]
    assert len(display.targets_) == 20
    assert np.all(np.diff(display.targets_) > 0)
    assert "worst 20 of 100" in display.ax_.get_xlabel()
    cells = display.cells_.get_array().reshape(10, 20)
    assert not np.ma.is_masked(cells[0])  # infinite: as dark as can be
    whole = CellMapDisplay(scores[:30], np.full(100, 5.0), flagged[:30]).plot(n_targets=100)
    masked = np.ma.getmaskarray(whole.cells_.get_array().reshape(30, 100))
    assert np.argwhere(masked).tolist() == [[list(whole.rows_).index(17), 4]]
    legend = [text.get_text() for text in whole.ax_.get_legend().get_texts()]
    assert legend == ["2 flagged cells", "unknown or not judged"]
    assert whole.ax_.get_ylabel() == "training row"
    # One target; nothing to flag, and a threshold of 0.
    one = CellMapDisplay(np.zeros((3, 1)), np.zeros(1), np.zeros((3, 1), dtype=bool)).plot()
    assert outlined(one) == []
    assert not np.ma.is_masked(one.cells_.get_array())


def test_cell_map_has_the_names_of_the_table():
    pd = pytest.importorskip("pandas")
    quick = RobustELMRegressor(effort="fast", n_members=1, **ELM)
    frame = pd.DataFrame(T, columns=["a", "b", "c"])
    model = TableRegressor(quick).fit(pd.DataFrame(X).add_prefix("x"), frame)
    for names in (None, frame.columns[::-1]):
        display = CellMapDisplay.from_estimator(model, target_names=names)
        labels = [label.get_text() for label in display.ax_.get_xticklabels()]
        assert labels == (["a", "b", "c"] if names is None else ["c", "b", "a"])


def test_cell_map_of_bad_input(fitted):
    scores, off = np.ones((4, 2)), np.zeros((4, 2), dtype=bool)
    with pytest.raises(ValueError, match="1 dimensions"):
        CellMapDisplay(scores[:, 0], np.ones(1), off[:, :1])
    with pytest.raises(ValueError, match=r"thresholds \(3,\)"):
        CellMapDisplay(scores, np.ones(3), off)
    with pytest.raises(ValueError, match="3 row_names for 4 rows"):
        CellMapDisplay(scores, np.ones(2), off, row_names="abc")
    with pytest.raises(ValueError, match="1 target_names for 2 targets"):
        CellMapDisplay(scores, np.ones(2), off, target_names=["a"])
    with pytest.raises(ValueError, match="at least 1"):
        CellMapDisplay(scores, np.ones(2), off).plot(n_rows=0)
    with pytest.raises(ValueError, match="GORELMRegressor has no cell_scores_"):
        CellMapDisplay.from_estimator(fitted["pipeline"])


# -- predicted against observed ----------------------------------------------------------------


def drawn(display, k):
    parts = (display.points_[k], display.flagged_points_[k], display.beyond_points_[k])
    return [np.asarray(part.get_offsets()) for part in parts]


def test_predictions_are_drawn(fitted):
    model = fitted["training"]
    display = PredictedObservedDisplay.from_estimator(model, X, T, target_names=["a", "b$", "$c"])
    display.figure_.draw_without_rendering()  # a dollar is no formula
    assert [ax.get_title(loc="left") for ax in display.axes_] == ["a", "b$", "$c"]
    predicted, flagged = model.predict(X), model.outlier_mask_
    for k, ax in enumerate(display.axes_):
        rows, flags, beyond = drawn(display, k)
        np.testing.assert_array_equal(rows, np.c_[T[:, k], predicted[:, k]][~flagged])
        assert len(flags) + len(beyond) == flagged.sum()
        low, high = ax.get_xlim()
        assert ax.get_ylim() == (low, high)
        inside = (T[flagged, k] >= low) & (T[flagged, k] <= high)
        pairs = np.c_[T[:, k], predicted[:, k]][flagged]
        np.testing.assert_array_equal(flags, pairs[inside])
        np.testing.assert_array_equal(beyond, np.clip(pairs[~inside], low, high))
    assert display.unseen is False


def test_flagged_cells_are_marked_in_their_panel(fitted):
    model = copy.copy(fitted["training"])
    observed = T.copy()
    right = np.flatnonzero(~model.outlier_mask_)[:2]
    observed[right, 1] = 1e6
    model.cell_mask_ = np.zeros(T.shape, dtype=bool)
    model.cell_mask_[right, 1] = True
    display = PredictedObservedDisplay.from_estimator(model, X, observed)
    n_flagged = int(model.outlier_mask_.sum())
    for k, more in enumerate((0, 2, 0)):
        rows, flags, beyond = drawn(display, k)
        assert len(rows) == len(T) - n_flagged - more
        assert len(flags) + len(beyond) == n_flagged + more
    assert display.axes_[1].get_xlim()[1] < 1e4  # the others keep their room
    with pytest.raises(ValueError, match="flagged has shape"):
        PredictedObservedDisplay.from_predictions(T, T, flagged=model.cell_mask_[:, :2])


def test_out_of_fold_predictions_come_first(fitted):
    model = copy.copy(fitted["training"])
    model.out_of_fold_ = T + 1000.0
    display = PredictedObservedDisplay.from_estimator(model, X, T)
    np.testing.assert_array_equal(display.predicted, model.out_of_fold_)
    assert display.unseen is True
    # Other rows are predicted, and have no flags.
    other = PredictedObservedDisplay.from_estimator(model, X[:50], T[:50])
    np.testing.assert_array_equal(other.predicted, model.predict(X[:50]))
    assert other.unseen is None
    assert not other.flagged.any()
    # Inside of it the targets are other ones.
    outer = TransformedTargetRegressor(clone(model)).fit(X, T)
    outer.regressor_.out_of_fold_ = T + 1000.0
    display = PredictedObservedDisplay.from_estimator(outer, X, T)
    np.testing.assert_array_equal(display.predicted, outer.predict(X))


def test_unknown_targets_are_not_drawn(fitted):
    gaps = T.copy()
    gaps[::3, 0] = np.nan
    gaps[:, 1] = np.nan
    display = PredictedObservedDisplay.from_predictions(gaps, T)
    assert [sum(map(len, drawn(display, k))) for k in range(3)] == [100, 0, 150]


def test_one_target_and_names_of_frames():
    pd = pytest.importorskip("pandas")
    model = RELMRegressor(**ELM).fit(X, T[:, 0])
    series = pd.Series(T[:, 0], name="strength")
    display = PredictedObservedDisplay.from_estimator(model, X, series)
    assert display.target_names == ["strength"]
    assert len(display.axes_) == 1
    frame = pd.DataFrame(T, columns=["a", "b", "c"])
    both = PredictedObservedDisplay.from_predictions(frame, T, targets=[2, 0])
    assert [ax.get_title(loc="left") for ax in both.axes_] == ["c", "a"]
    with pytest.raises(ValueError, match="2 target_names for 3 targets"):
        PredictedObservedDisplay.from_predictions(T, T, target_names=["a", "b"])
    with pytest.raises(ValueError, match="observed has shape"):
        PredictedObservedDisplay.from_predictions(T, T[:, :2])


# -- convergence -------------------------------------------------------------------------------


def test_convergence_is_the_history(fitted):
    model = fitted["training"]
    display = ConvergenceDisplay.from_estimator(model)
    for name in ("dual_gap", "primal_residual", "dual_residual", "rho", "sigma"):
        (line,) = display.lines_[name]
        np.testing.assert_array_equal(line.get_xdata(), [r["iteration"] for r in model.history_])
        np.testing.assert_array_equal(line.get_ydata(), [r[name] for r in model.history_])
    assert set(display.tolerance_line_.get_ydata()) == {model.tol}
    assert all(ax.get_yscale() == "log" for ax in display.axes_)
    plain = ConvergenceDisplay.from_estimator(fitted["pipeline"])
    assert plain.lines_["sigma"] == []  # nothing is sparse, there is no such split


def test_convergence_of_members_and_parts(fitted):
    # Iterative members are those of files of earlier versions.
    model = copy.copy(fitted["robust"])
    model.members_ = [
        GORELMRegressor(lam=lam, activation=activation, n_inputs=n_inputs, **ELM).fit(X, T)
        for lam, activation, n_inputs in ((0.1, "tanh", None), (1.0, "cosine", 2))
    ]
    display = ConvergenceDisplay.from_estimator(model)
    assert list(display.histories) == ["1 tanh", "2 cosine of 2 inputs"]
    assert len(display.lines_["dual_gap"]) == 2
    for line, member in zip(display.lines_["dual_gap"], model.members_, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), [r["dual_gap"] for r in member.history_])
    gaps = T.copy()
    gaps[:40, 0] = np.nan
    parts = RELMRegressor(l1_ratio=0.5, missing_targets="ignore", **ELM).fit(X, gaps)
    steps = [r["iteration"] for r in parts.history_]
    lines = ConvergenceDisplay.from_estimator(parts).lines_["dual_gap"]
    assert len(lines) == 2  # targets known in the same rows are solved together
    assert len(lines) == 1 + sum(b <= a for a, b in itertools.pairwise(steps))
    assert all(np.all(np.diff(line.get_xdata()) > 0) for line in lines)
    assert sum(len(line.get_xdata()) for line in lines) == len(steps)


def test_the_papers_rule_has_no_tolerance():
    model = GORELMRegressor(lam=10.0, solver="paper", **ELM).fit(X, T)
    assert ConvergenceDisplay.from_estimator(model).tolerance_line_ is None


def test_closed_forms_have_nothing_to_show():
    clean = make_multitarget(100, outlier_ratio=0.0, random_state=0)
    for model in (RELMRegressor(**ELM), RobustELMRegressor(n_members=2, **ELM)):
        for table in (clean, DATA):
            model.fit(table.X, table.T)
            with pytest.raises(ValueError, match="closed form"):
                ConvergenceDisplay.from_estimator(model)


# -- paths -------------------------------------------------------------------------------------


def test_path_is_the_search(fitted):
    model = fitted["cv"]
    table = model.cv_results_
    display = PathDisplay.from_estimator(model)
    assert list(display.lines_) == [0.0, 0.5]
    splits = np.stack([table[f"split{k}_test_score"] for k in range(5)])
    for ratio, line in display.lines_.items():
        rows = np.flatnonzero(table["param_l1_ratio"] == ratio)[::-1]  # lam was decreasing
        np.testing.assert_array_equal(line.get_xdata(), table["param_lam"][rows])
        np.testing.assert_array_equal(line.get_ydata(), -table["mean_test_score"][rows])
        nodes = display.node_lines_[ratio]
        np.testing.assert_array_equal(nodes.get_ydata(), table["mean_n_active"][rows])
        deviation = splits[:, rows].std(axis=0, ddof=1) / np.sqrt(5)
        extent = display.bands_[ratio].get_datalim(display.ax_.transData)
        assert extent.y1 == pytest.approx(np.max(line.get_ydata() + deviation))
        assert extent.y0 == pytest.approx(np.min(line.get_ydata() - deviation))
    best = model.best_index_
    assert display.chosen_.get_xdata() == [table["param_lam"][best]] == [model.lam_]
    assert display.chosen_.get_ydata() == [-model.best_score_]
    assert display.ax_.get_xscale() == "log"


def test_mean_number_of_nodes_is_that_of_single_fits():
    lams = [0.5, 5.0, 20.0, 1e6]
    split = [(np.arange(100), np.arange(100, 150)), (np.arange(50, 150), np.arange(50))]
    search = GORELMRegressorCV(lams, l1_ratios=[0.0, 0.9], cv=split, tol=1e-6, **ELM).fit(X, T)
    seed = check_random_state(0).randint(np.iinfo(np.int32).max)
    table = search.cv_results_
    for lam, ratio, found in zip(
        table["param_lam"], table["param_l1_ratio"], table["mean_n_active"], strict=True
    ):
        single = GORELMRegressor(lam, l1_ratio=ratio, tol=1e-6, n_hidden=25, random_state=seed)
        counts = [clone(single).fit(X[train], T[train]).n_active_ for train, _ in split]
        assert found == pytest.approx(np.mean(counts), abs=1.0)
    assert set(table["mean_n_active"][table["param_l1_ratio"] == 0]) == {25.0}
    assert table["mean_n_active"].min() == 0


def test_path_of_other_searches(fitted):
    grid = PathDisplay.from_estimator(fitted["grid"])
    (line,) = grid.lines_.values()
    np.testing.assert_array_equal(line.get_xdata(), [0.1, 1.0, 10.0])
    scores = fitted["grid"].cv_results_["mean_test_score"]
    np.testing.assert_array_equal(line.get_ydata(), scores)  # R2: no error
    assert "larger is better" in grid.ax_.get_ylabel()
    assert len(grid.axes_) == 1

    named = GridSearchCV(
        GORELMRegressor(**ELM), {"lam": [0.1, 1.0]}, cv=2, scoring="neg_mean_absolute_error"
    )
    display = PathDisplay.from_estimator(named.fit(X, T))
    np.testing.assert_array_equal(
        display.lines_[0.0].get_ydata(), -named.cv_results_["mean_test_score"]
    )

    piped = GridSearchCV(
        make_pipeline(StandardScaler(), GORELMRegressor(**ELM)),
        [
            {"gorelmregressor__lam": [0.1, 1.0], "gorelmregressor__l1_ratio": [0.0, 0.5]},
            {"gorelmregressor__delta": [0.1]},
        ],
        cv=2,
    )
    display = PathDisplay.from_estimator(piped.fit(X, T))
    assert list(display.lines_) == [0.0, 0.5]
    np.testing.assert_array_equal(display.lines_[0.5].get_xdata(), [0.1, 1.0])

    layers = GRELMRegressorCV(
        [0.1, 1.0], n_hidden=[10, 25], l1_ratios=[0.5], cv=2, random_state=0
    ).fit(X, T)
    display = PathDisplay.from_estimator(layers)
    table = layers.cv_results_
    same = table["param_n_hidden"] == table["param_n_hidden"][layers.best_index_]
    (line,) = display.lines_.values()
    np.testing.assert_array_equal(np.sort(line.get_xdata()), np.sort(table["param_C"][same]))
    assert "C (" in display.axes_[-1].get_xlabel()


# -- growth ------------------------------------------------------------------------------------


def test_growth_display_draws_what_was_recorded():
    model = IRELMRegressor(n_initial=5, n_step=5, max_hidden=20, validation=3, random_state=0)
    display = GrowthDisplay.from_estimator(model.fit(X, T), color="k")
    assert [line.get_label() for line in display.lines_] == ["training rows", "rows not seen"]
    for line, name in zip(display.lines_, ("error", "validation_error"), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [5, 10, 15, 20])
        np.testing.assert_array_equal(line.get_ydata(), [r[name] for r in model.growth_])
        assert line.get_color() == "k"
    one, two = display.lines_
    assert one.get_marker() != two.get_marker()
    assert one.get_linestyle() != two.get_linestyle()
    again = GrowthDisplay(model.growth_[:2]).plot(ax=display.ax_)
    assert again.ax_ is display.ax_
    plain = IRELMRegressor(n_initial=5, max_hidden=5, random_state=0).fit(X, T)
    assert len(GrowthDisplay.from_estimator(plain).lines_) == 1


# -- what they share ---------------------------------------------------------------------------

DISPLAYS = {
    CellMapDisplay: ("robust", ()),
    OutlierDisplay: ("training", ()),
    PredictedObservedDisplay: ("training", (X, T)),
    ConvergenceDisplay: ("training", ()),
    PathDisplay: ("cv", ()),
}
by_display = pytest.mark.parametrize("cls", DISPLAYS, ids=lambda cls: cls.__name__)


@by_display
def test_new_figures_are_pyplots_and_others_are_left_alone(cls, fitted):
    name, data = DISPLAYS[cls]
    display = cls.from_estimator(fitted[name], *data)
    assert plt.get_fignums() == [display.figure_.number]
    axes = getattr(display, "axes_", [display.ax_])
    assert display.ax_ is axes[0]
    assert all(ax.figure is display.figure_ for ax in axes)
    plt.close(display.figure_)

    figure = Figure(figsize=(12, 8))
    place = figure.subplots(2, 2)[1, 0]
    within = cls.from_estimator(fitted[name], *data, ax=place)
    assert within.figure_ is figure
    given = Figure().subplots(1, len(axes), squeeze=False)[0]
    assert cls.from_estimator(fitted[name], *data, ax=given).ax_ is given[0]
    assert plt.get_fignums() == []
    figure.draw_without_rendering()
    many = Figure().subplots(1, 7)
    with pytest.raises(ValueError, match=f"{len(axes)} axes are needed, 7 given"):
        cls.from_estimator(fitted[name], *data, ax=many)


@by_display
def test_drawing_inside_the_frame(cls, fitted):
    """Nothing of a new figure, legends included, is cut off."""
    name, data = DISPLAYS[cls]
    figure = cls.from_estimator(fitted[name], *data).figure_
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= -0.01
    assert box.x1 <= width + 0.01
    assert box.y0 >= -0.01
    assert box.y1 <= height + 0.01


@by_display
def test_unfitted_and_unsuitable_estimators(cls, fitted):
    name, data = DISPLAYS[cls]
    with pytest.raises(NotFittedError):
        cls.from_estimator(clone(MODELS[name]), *data)
    ridge = Ridge().fit(X, T)
    if cls is PredictedObservedDisplay:  # needs predictions only
        assert not cls.from_estimator(ridge, *data).flagged.any()
    else:
        with pytest.raises(ValueError, match="Ridge has no"):
            cls.from_estimator(ridge, *data)


def test_unsuitable_estimators_of_ours(fitted):
    with pytest.raises(NotFittedError):
        GrowthDisplay.from_estimator(IRELMRegressor())
    with pytest.raises(ValueError, match="GORELMRegressor has no growth_: only growing"):
        GrowthDisplay.from_estimator(fitted["pipeline"])
    for name in ("training", "robust"):
        with pytest.raises(ValueError, match="has not searched a path"):
            PathDisplay.from_estimator(fitted[name])
    with pytest.raises(ValueError, match="no path to show"):
        PathDisplay(fitted["robust"].cv_results_, 0)


@by_display
def test_without_matplotlib_the_extra_is_named(cls, fitted, monkeypatch):
    name, data = DISPLAYS[cls]
    for module in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"gorelm\[plot\]"):
        cls.from_estimator(fitted[name], *data)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.001, "0.001"),
        (0.0123456, "0.0123"),
        (1.0, "1"),
        (123.456, "123"),
        (99999.0, "99999"),
        (5.35e-4, "5.35 · 10⁻⁴"),
        (-2e-12, "-2 · 10⁻¹²"),
        (1e9, "1 · 10⁹"),
    ],
)
def test_numbers_in_print(value, text):
    assert number(value) == text


def test_powers_in_print():
    assert [powers(2.0**k, 2) for k in (-13, 0, 5)] == ["2⁻¹³", "2⁰", "2⁵"]
    assert [powers(v) for v in (1e-7, 10.0, 0.0, 3.0)] == ["10⁻⁷", "10¹", "0", "3"]


def test_long_names_are_shortened():
    assert shortened("a" * 26) == "a" * 26
    name = shortened("beginning" + "x" * 100 + "end")
    assert len(name) == 26
    assert name.startswith("beginning")
    assert name.endswith("end")
    display = PredictedObservedDisplay.from_predictions(T, T, target_names=["n" * 300] * 3)
    display.figure_.draw_without_rendering()  # room is left for the points
    assert display.ax_.get_window_extent().width > 100
