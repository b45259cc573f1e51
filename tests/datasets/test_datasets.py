import builtins
import gzip
import warnings

import numpy as np
import pandas as pd
import pooch
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import stats
from scipy.special import expit
from sklearn.linear_model import Ridge

from gorelm.datasets import (
    CONTAMINATIONS,
    MULAN_TARGETS,
    contaminate,
    load_mulan,
    make_multitarget,
)
from gorelm.metrics import arrmse

KINDS = list(CONTAMINATIONS)
BOXPLOT_KINDS = ["rows", "cells", "one-sided", "independent-cells", "rows-and-cells"]
OWN_CELLS = ["independent-cells", "unit-cells", "rows-and-cells"]  # of each target
OWN_ROWS = [*OWN_CELLS, "stuck", "drift"]  # do not draw whole rows
WHOLE_ROWS = [kind for kind in KINDS if kind not in OWN_ROWS]
CELLS_A_ROW = {"cells": 1, "stuck": 1, "drift": 1, "swapped-targets": 2}
all_kinds = pytest.mark.parametrize("kind", KINDS)


def clean_targets(n=500, m=3, seed=0):
    return np.random.default_rng(seed).normal([0.0, 50.0, -1.0], [1.0, 10.0, 0.1], size=(n, m))


def in_intervals(T, values):
    """Which of the values (any rows, T's columns) lie in the lower and in the upper interval."""
    q1, q3 = np.percentile(T, [25, 75], axis=0)
    slack = 1e-9 * (1 + np.abs(T).max())
    iqr = q3 - q1
    lower = (values >= q1 - 3 * iqr - slack) & (values <= q1 - 1.5 * iqr + slack)
    upper = (values >= q3 + 1.5 * iqr - slack) & (values <= q3 + 3 * iqr + slack)
    return lower, upper


# --- contamination ---------------------------------------------------------------------------


def test_the_kinds_promised():
    assert set(KINDS) == {
        "rows",
        "cells",
        "one-sided",
        "heavy-tailed",
        "independent-cells",
        "rows-and-cells",
        "units",
        "unit-cells",
        "swapped-targets",
        "swapped-rows",
        "stuck",
        "drift",
    }


def test_stored_results_stay_reproducible():
    """The first draws of the kinds of the published results, by seed."""
    T = np.linspace(0, 1, 60).reshape(20, 3) ** 2 * [1, 50, -3]
    first = {
        "rows": [1.3518286363378724, 90.59590745770583, 2.9676350867369137],
        "cells": [0.0, 73.13423151643656, -0.0034472852628555017],
        "one-sided": [1.3689072165421292, 81.52591588279161, 2.855288285329406],
        "heavy-tailed": [-1.3917113091965267, -16.3578045305302, 2.341486843908907],
    }
    for kind, values in first.items():
        dirty, planted = contaminate(T, 0.3, kind=kind, random_state=7)
        np.testing.assert_array_equal(np.flatnonzero(planted), [0, 1, 2, 5, 11, 17])
        np.testing.assert_allclose(dirty[planted][0], values, rtol=1e-12)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in OWN_CELLS])
@pytest.mark.parametrize(("n", "ratio", "count"), [(500, 0.2, 100), (103, 0.2, 21), (10, 0.0, 0)])
def test_planted_are_exactly_the_changed_rows(kind, n, ratio, count):
    T = clean_targets(n)
    T_dirty, planted = contaminate(T, ratio, kind=kind, random_state=0)
    assert T_dirty.shape == T.shape
    assert planted.shape == (n,)
    assert planted.dtype == np.bool_
    assert planted.sum() == count
    # the clean targets are continuous: a replaced cell has a new value
    np.testing.assert_array_equal(planted, (T_dirty != T).any(axis=1))
    assert np.all((T_dirty != T)[planted].sum(axis=1) == CELLS_A_ROW.get(kind, 3))


@all_kinds
@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.4])
def test_wrong_cells_are_those_that_changed(kind, ratio):
    T = clean_targets(200)
    T_dirty, planted = contaminate(T, ratio, kind=kind, random_state=3)
    again, rows, cells = contaminate(T, ratio, kind=kind, random_state=3, return_cells=True)
    np.testing.assert_array_equal(again, T_dirty)
    np.testing.assert_array_equal(rows, planted)
    np.testing.assert_array_equal(cells, T_dirty != T)
    np.testing.assert_array_equal(cells.any(axis=1), planted)


@pytest.mark.parametrize("kind", ["independent-cells", "unit-cells"])
def test_cells_are_drawn_for_each_target_by_itself(kind):
    T = clean_targets(5000)
    _, planted, cells = contaminate(T, 0.4, kind=kind, random_state=3, return_cells=True)
    np.testing.assert_array_equal(cells.sum(axis=0), 2000)
    # independent: all of a row with probability 0.4 ** 3, none with 0.6 ** 3; five deviations
    for share, expected in [(cells.all(axis=1), 0.4**3), (~planted, 0.6**3)]:
        assert abs(share.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / 5000)


def test_beside_wrong_rows_there_are_wrong_cells():
    T = clean_targets(1000)
    _, planted = contaminate(T, 0.1, kind="rows", random_state=3)
    _, _, cells = contaminate(T, 0.1, kind="rows-and-cells", random_state=3, return_cells=True)
    assert cells[planted].all()
    np.testing.assert_array_equal(cells[~planted].sum(axis=0), 30)
    assert not cells[~planted].all(axis=1).any()


def test_units_are_mistaken_by_one_factor_per_row_or_cell():
    T = clean_targets(4000)
    for kind in ("units", "unit-cells"):
        T_dirty, _, cells = contaminate(T, 0.5, kind=kind, random_state=0, return_cells=True)
        factors = (T_dirty / T)[cells]
        found, counts = np.unique(factors.round(9), return_counts=True)
        np.testing.assert_allclose(found, [2.54, 10, 100, 1000])
        np.testing.assert_allclose(counts / counts.sum(), 0.25, atol=0.03)
        same = np.ptp((T_dirty / T)[cells.all(axis=1)], axis=1) < 1e-6
        assert same.mean() == 1 if kind == "units" else same.mean() < 0.15


def test_two_targets_of_a_row_are_swapped():
    T = clean_targets(3000)
    T_dirty, planted = contaminate(T, 0.5, kind="swapped-targets", random_state=0)
    np.testing.assert_array_equal(np.sort(T_dirty, axis=1), np.sort(T, axis=1))
    kept = (T_dirty == T)[planted]
    np.testing.assert_allclose(kept.mean(axis=0), 1 / 3, atol=0.06)  # every pair alike
    with pytest.raises(ValueError, match="two targets"):
        contaminate(T[:, 0], 0.5, kind="swapped-targets")


@pytest.mark.parametrize(("n", "moved"), [(2, 2), (3, 3), (100, 100), (101, 101)])
def test_rows_are_swapped_in_pairs(n, moved):
    T = clean_targets(2 * n)
    T_dirty, planted = contaminate(T, 0.5, kind="swapped-rows", random_state=0)
    assert (T_dirty != T).any(axis=1).sum() == moved == planted.sum()
    np.testing.assert_array_equal(np.sort(T_dirty, axis=0), np.sort(T, axis=0))
    came_from = np.array([np.flatnonzero((row == T).all(axis=1))[0] for row in T_dirty])
    in_pairs = came_from[came_from] == np.arange(2 * n)
    assert (~in_pairs).sum() == (3 if n % 2 else 0)


def test_a_stuck_value_repeats_what_was_before():
    T = clean_targets(100)
    for seed in range(20):
        T_dirty, planted, cells = contaminate(
            T, 0.2, kind="stuck", random_state=seed, return_cells=True
        )
        run, [target] = np.flatnonzero(planted), np.flatnonzero(cells.any(axis=0))
        np.testing.assert_array_equal(np.diff(run), 1)
        np.testing.assert_array_equal(T_dirty[run, target], T[max(run[0] - 1, 0), target])


def test_a_drift_grows_along_a_run():
    T = clean_targets(100)
    sides = set()
    for seed in range(20):
        T_dirty, planted, cells = contaminate(
            T, 0.2, kind="drift", random_state=seed, return_cells=True
        )
        run, [target] = np.flatnonzero(planted), np.flatnonzero(cells.any(axis=0))
        np.testing.assert_array_equal(np.diff(run), 1)
        iqr = np.subtract(*np.percentile(T[:, target], [75, 25]))
        offset = (T_dirty - T)[run, target] / iqr
        np.testing.assert_allclose(np.abs(offset), 3 * np.arange(1, 21) / 20)
        assert len(set(np.sign(offset))) == 1
        sides.add(np.sign(offset[0]))
    assert sides == {-1, 1}


@pytest.mark.parametrize("kind", BOXPLOT_KINDS)
def test_a_rule_that_plants_nothing_says_so(kind):
    frame = pd.DataFrame({"flat": np.r_[np.zeros(32), 1:9], "fine": np.arange(40.0)})
    with pytest.warns(UserWarning, match=r"quartiles are equal.*: flat$"):
        contaminate(frame, 0.2, kind=kind, random_state=0)
    with pytest.warns(UserWarning, match=r": 0$"):
        contaminate(frame.to_numpy()[:, 0], 0.2, kind=kind, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        contaminate(frame[["fine"]], 0.2, kind=kind, random_state=0)
        contaminate(frame, 0.0, kind=kind, random_state=0)


def test_a_constant_that_stays_is_told():
    for kind in ("heavy-tailed", "stuck", "drift", "swapped-rows"):
        with pytest.warns(UserWarning, match="changed no value"):
            contaminate(np.full(20, 0.1), 0.5, kind=kind, random_state=0)


@pytest.mark.parametrize("kind", BOXPLOT_KINDS)
def test_boxplot_kinds_fill_the_intervals(kind):
    T = clean_targets(5000)
    T_dirty, _ = contaminate(T, 0.4, kind=kind, random_state=1)
    lower, upper = in_intervals(T, T_dirty)
    changed = T_dirty != T
    assert np.all((lower | upper)[changed])
    share = upper[changed].mean()
    # a fair coin over at least 2000 cells: five standard deviations
    assert share == 1.0 if kind == "one-sided" else abs(share - 0.5) < 5 * 0.5 / np.sqrt(2000)
    # uniform from end to end, in every target
    q1, q3 = np.percentile(T, [25, 75], axis=0)
    for j in range(3):
        values = T_dirty[changed[:, j] & upper[:, j], j]
        position = ((values - q3[j]) / (q3[j] - q1[j]) - 1.5) / 1.5
        assert stats.kstest(position, "uniform").pvalue > 1e-3


def test_the_coin_is_tossed_per_cell():
    T = clean_targets(2000)
    T_dirty, planted = contaminate(T, 0.5, random_state=2)
    _, upper = in_intervals(T, T_dirty[planted])
    mixed = upper.any(axis=1) & ~upper.all(axis=1)
    assert mixed.mean() == pytest.approx(0.75, abs=0.07)


def test_single_cells_fall_in_every_target():
    T = clean_targets(3000)
    T_dirty, planted = contaminate(T, 0.5, kind="cells", random_state=3)
    per_target = (T_dirty != T).sum(axis=0)
    assert per_target.sum() == planted.sum()
    np.testing.assert_allclose(per_target, planted.sum() / 3, rtol=0.2)


def test_heavy_tails_are_student_t_in_units_of_the_iqr():
    T = clean_targets(20000)
    T_dirty, planted = contaminate(T, 0.5, kind="heavy-tailed", random_state=4)
    q1, q3 = np.percentile(T, [25, 75], axis=0)
    noise = ((T_dirty - T) / (q3 - q1))[planted]
    for column in noise.T:
        assert stats.kstest(column, stats.t(2).cdf).pvalue > 1e-3
    # enough draws to tell 2 degrees of freedom from 3
    assert stats.kstest(noise.ravel(), stats.t(3).cdf).pvalue < 1e-6


def test_heavy_tails_fall_back_to_the_standard_deviation():
    T = np.zeros((2000, 2))
    T[:100, 0] = 20.0  # IQR 0, standard deviation 20 * sqrt(0.05 * 0.95)
    T[:, 1] = 0.1
    T_dirty, planted = contaminate(T, 0.9, kind="heavy-tailed", random_state=5)
    noise = (T_dirty - T)[planted, 0] / (20 * np.sqrt(0.05 * 0.95))
    assert stats.kstest(noise, stats.t(2).cdf).pvalue > 1e-3
    np.testing.assert_array_equal(T_dirty[:, 1], 0.1)


@pytest.mark.parametrize("kind", BOXPLOT_KINDS)
def test_zero_iqr_moves_values_onto_the_median(kind):
    T = np.zeros(40)
    T[:5] = 7.0
    with pytest.warns(UserWarning, match="quartiles are equal"):
        T_dirty, planted = contaminate(T, 0.9, kind=kind, random_state=0)
    assert planted[:5].any()
    np.testing.assert_array_equal(T_dirty[planted], 0.0)
    np.testing.assert_array_equal(T_dirty[~planted], T[~planted])


@all_kinds
def test_contaminate_is_reproducible(kind):
    T = clean_targets(200)
    once, planted = contaminate(T, 0.3, kind=kind, random_state=7)
    again, planted_again = contaminate(T, 0.3, kind=kind, random_state=7)
    other, planted_other = contaminate(T, 0.3, kind=kind, random_state=8)
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(planted, planted_again)
    assert not np.array_equal(planted, planted_other)
    assert not np.array_equal(once, other)


def test_a_seed_plants_the_same_rows_for_every_kind_of_row():
    T = clean_targets(200)
    _, expected = contaminate(T, 0.3, random_state=7)
    for kind in WHOLE_ROWS:
        np.testing.assert_array_equal(contaminate(T, 0.3, kind=kind, random_state=7)[1], expected)


@all_kinds
@pytest.mark.parametrize("order", ["C", "F"])
def test_contaminate_leaves_its_input_alone(kind, order):
    T = np.asarray(clean_targets(100), order=order)
    before = T.copy()
    T_dirty, _ = contaminate(T, 0.5, kind=kind, random_state=0)
    np.testing.assert_array_equal(T, before)
    assert not np.shares_memory(T, T_dirty)
    assert not np.shares_memory(T, contaminate(T, 0.0, kind=kind)[0])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "swapped-targets"])
def test_flat_targets_and_frames(kind):
    T = clean_targets(100)[:, 0]
    flat, planted = contaminate(T, 0.3, kind=kind, random_state=0)
    column, planted_column = contaminate(T[:, None], 0.3, kind=kind, random_state=0)
    frame, _ = contaminate(pd.DataFrame({"t": T}), 0.3, kind=kind, random_state=0)
    assert flat.shape == (100,)
    np.testing.assert_array_equal(flat, column[:, 0])
    np.testing.assert_array_equal(frame, column)
    np.testing.assert_array_equal(planted, planted_column)


def test_integer_targets_become_floats():
    T_dirty, _ = contaminate(np.arange(30), 0.5, random_state=0)
    assert T_dirty.dtype == np.float64
    assert np.any(T_dirty != np.round(T_dirty))


@given(
    T=arrays(
        np.float64,
        array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=12),
        elements=st.floats(-1e6, 1e6),
    ),
    ratio=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**32 - 1),
)
def test_contaminate_touches_the_planted_rows_only(T, ratio, kind, seed):
    assume(kind != "swapped-targets" or (T.ndim == 2 and T.shape[1] > 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # equal quartiles
        T_dirty, planted = contaminate(T, ratio, kind=kind, random_state=seed)
    assert T_dirty.shape == T.shape
    if kind not in OWN_CELLS:
        assert planted.sum() == round(ratio * len(T))
    np.testing.assert_array_equal(T_dirty[~planted], T[~planted])
    assert np.isfinite(T_dirty).all()
    if kind in BOXPLOT_KINDS:
        lower, upper = in_intervals(T, T_dirty)
        assert np.all((T_dirty == T) | lower | upper)
    if kind == "cells" and T.ndim == 2:
        assert np.all((T_dirty != T).sum(axis=1) <= 1)


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5, np.nan])
def test_bad_ratios_are_refused(ratio):
    with pytest.raises(ValueError, match=r"ratio must be in \[0, 1\)"):
        contaminate(clean_targets(10), ratio)


def test_unknown_kind_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'row'.*rows, cells, one-sided, heavy-tailed"):
        contaminate(clean_targets(10), kind="row")


def test_bad_targets_are_refused():
    with pytest.raises(ValueError, match="T contains NaN"):
        contaminate([1.0, np.nan, 2.0])
    with pytest.raises(ValueError, match="0 sample"):
        contaminate(np.empty((0, 2)))
    with pytest.raises(ValueError, match="0 feature"):
        contaminate(np.empty((2, 0)))


# --- synthetic -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rows", "cells", "one-sided", "heavy-tailed"])
def test_synthetic_shapes_and_outliers(kind):
    problem = make_multitarget(250, 5, 4, outlier_ratio=0.2, outlier_kind=kind, random_state=0)
    assert problem.X.shape == (250, 5)
    assert problem.T.shape == problem.T_clean.shape == (250, 4)
    assert np.abs(problem.X).max() <= 1
    assert np.abs(problem.X).max() > 0.9
    assert problem.planted.sum() == 50
    assert len(problem.feature_names) == 5
    assert len(problem.target_names) == 4
    assert kind in problem.DESCR
    assert "250 rows" in problem.DESCR
    # unplanted rows are the truth plus small noise, planted ones are far off it
    off = np.abs(problem.T - problem.T_clean) / problem.T_clean.std(axis=0)
    assert off[~problem.planted].max() < 0.05 * 6
    assert np.median(off[problem.planted].max(axis=1)) > 0.5
    far_per_row = (off[problem.planted] > 0.5).sum(axis=1)
    assert (far_per_row.max() == 1) == (kind == "cells")


def test_synthetic_defaults():
    problem = make_multitarget(random_state=0)
    assert problem.X.shape == (600, 8)
    assert problem.T.shape == (600, 3)
    assert problem.planted.sum() == 180


def test_synthetic_without_noise_or_outliers_is_the_truth():
    problem = make_multitarget(50, noise=0, outlier_ratio=0, random_state=0)
    np.testing.assert_array_equal(problem.T, problem.T_clean)
    assert not problem.planted.any()


def test_synthetic_noise_has_the_size_asked_for():
    problem = make_multitarget(5000, noise=0.2, outlier_ratio=0, random_state=0)
    noise = (problem.T - problem.T_clean).std(axis=0) / problem.T_clean.std(axis=0)
    np.testing.assert_allclose(noise, 0.2, rtol=0.05)


def test_synthetic_is_reproducible():
    once, again, other = (make_multitarget(60, random_state=seed) for seed in (3, 3, 4))
    for key in ("X", "T", "T_clean", "planted"):
        np.testing.assert_array_equal(once[key], again[key])
        assert not np.array_equal(once[key], other[key])


def test_synthetic_function_does_not_depend_on_the_number_of_rows():
    small, large = (make_multitarget(n, random_state=3) for n in (60, 200))
    np.testing.assert_array_equal(small.X, large.X[:60])
    np.testing.assert_allclose(small.T_clean, large.T_clean[:60], rtol=1e-12, atol=1e-12)


def test_synthetic_targets_are_correlated_but_not_equal():
    for seed in range(5):
        correlation = np.corrcoef(make_multitarget(2000, random_state=seed).T_clean.T)
        off_diagonal = correlation[~np.eye(3, dtype=bool)]
        assert off_diagonal.min() > 0.4
        assert off_diagonal.max() < 0.99


@pytest.mark.parametrize("seed", range(3))
def test_synthetic_is_learnable_by_random_features_but_not_linear(seed):
    problem = make_multitarget(1400, outlier_ratio=0, random_state=seed)
    X, T, X_test, T_test = problem.X[:400], problem.T[:400], problem.X[400:], problem.T_clean[400:]
    linear = Ridge(1e-3).fit(X, T).predict(X_test)
    assert arrmse(T_test, linear) > 0.4

    rng = np.random.default_rng(seed)
    A, b = rng.uniform(-1, 1, (8, 300)), rng.uniform(-1, 1, 300)
    network = Ridge(1e-4).fit(expit(X @ A + b), T).predict(expit(X_test @ A + b))
    assert arrmse(T_test, network) < 0.25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_samples": 0}, "n_samples"),
        ({"n_features": 0}, "n_features"),
        ({"n_targets": 0}, "n_targets"),
        ({"noise": -1.0}, "noise"),
        ({"noise": np.nan}, "noise"),
        ({"outlier_ratio": 1.0}, "ratio"),
        ({"outlier_kind": "all"}, "known kinds"),
    ],
)
def test_synthetic_refuses_nonsense(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_multitarget(**arguments)


# --- Mulan -----------------------------------------------------------------------------------

TINY = """\
% two features and the two targets of 'enb'
@RELATION tiny
@ATTRIBUTE 'first one' numeric
@ATTRIBUTE x2 real
@ATTRIBUTE y1 integer
@ATTRIBUTE y2 numeric
@DATA
1,2.5,3,4
5,?,7,8
-1e3,0,?,2
9,10,11,12.25
"""


def write_tiny(folder, name="enb", text=TINY, packed=False):
    path = folder / f"{name}.arff{'.gz' * packed}"
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    return path


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("by_environment", [False, True])
def test_tiny_arff(tmp_path, monkeypatch, packed, by_environment):
    write_tiny(tmp_path, packed=packed)
    monkeypatch.delenv("GORELM_DATA", raising=False)
    if by_environment:
        monkeypatch.setenv("GORELM_DATA", str(tmp_path))
        tiny = load_mulan("enb")
    else:
        tiny = load_mulan("enb", data_home=tmp_path)
    np.testing.assert_array_equal(tiny.data, [[1, 2.5], [9, 10]])
    np.testing.assert_array_equal(tiny.target, [[3, 4], [11, 12.25]])
    assert tiny.data.dtype == tiny.target.dtype == np.float64
    assert tiny.feature_names == ["first one", "x2"]
    assert tiny.target_names == ["y1", "y2"]
    assert "4 rows in the file, 2 of them with missing values (dropped)" in tiny.DESCR


def test_missing_values_can_be_kept(tmp_path):
    write_tiny(tmp_path)
    tiny = load_mulan("enb", data_home=tmp_path, drop_missing=False)
    np.testing.assert_array_equal(tiny.data, [[1, 2.5], [5, np.nan], [-1e3, 0], [9, 10]])
    np.testing.assert_array_equal(tiny.target, [[3, 4], [7, 8], [np.nan, 2], [11, 12.25]])
    assert "kept" in tiny.DESCR


def test_argument_wins_over_environment_and_plain_over_packed(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    write_tiny(here, text=TINY.replace("12.25", "100"))
    write_tiny(here, text=TINY.replace("12.25", "200"), packed=True)
    write_tiny(there, text=TINY.replace("12.25", "300"))
    monkeypatch.setenv("GORELM_DATA", str(there))
    assert load_mulan("enb", data_home=str(here)).target[-1, -1] == 100


def test_unknown_set_suggests_the_nearest():
    with pytest.raises(ValueError, match="'scm20'; did you mean 'scm20d'"):
        load_mulan("scm20")
    with pytest.raises(ValueError, match=r"known: andro, .*wq"):
        load_mulan("zzzzzz")


def test_missing_file_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.delenv("GORELM_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    with pytest.raises(FileNotFoundError, match=r"wq\.arff or wq\.arff\.gz.*GORELM_DATA"):
        load_mulan("wq", download_if_missing=False)
    with pytest.raises(FileNotFoundError, match=r"wq\.arff or wq\.arff\.gz in .*GORELM_DATA"):
        load_mulan("wq", data_home=tmp_path, download_if_missing=False)


def test_missing_reader_names_the_extra(tmp_path, monkeypatch):
    write_tiny(tmp_path)
    real_import = builtins.__import__

    def without_arff(name, *args, **kwargs):
        if name == "arff":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_arff)
    with pytest.raises(ImportError, match=r'pip install "gorelm\[data\]"'):
        load_mulan("enb", data_home=tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("enb", TINY.replace("x2 real", "x2 string"), "'x2' .*not numeric"),
        ("enb", TINY.replace("y2 numeric", "y2 {2,4,8,12.25}"), "Target 'y2' .*not numeric"),
        ("andro", TINY, "4 columns; 'andro' has 6 targets"),
        ("enb", TINY.replace("12.25", "12.25,13"), "not a readable ARFF file"),
        ("enb", TINY.replace("12.25", "twelve"), "not a readable ARFF file"),
    ],
)
def test_unfit_files_are_refused(tmp_path, name, text, message):
    write_tiny(tmp_path, name, text)
    with pytest.raises(ValueError, match=message):
        load_mulan(name, data_home=tmp_path)


# rows without missing values, features, targets
SIZES = {
    "andro": (49, 30, 6),
    "atp1d": (337, 411, 6),
    "atp7d": (296, 411, 6),
    "edm": (154, 16, 2),
    "enb": (768, 8, 2),
    "jura": (359, 15, 3),
    "oes10": (403, 298, 16),
    "oes97": (334, 263, 16),
    "rf1": (9005, 64, 8),
    "rf2": (7679, 576, 8),
    "scm1d": (9803, 280, 16),
    "scm20d": (8966, 61, 16),
    "scpf": (143, 23, 3),
    "slump": (103, 7, 3),
    "wq": (1060, 16, 14),
}


def test_all_sets_of_the_paper_and_the_other_three_are_known():
    others = {"osales": 12, "sf1": 3, "sf2": 3}
    assert {name: size[-1] for name, size in SIZES.items()} | others == MULAN_TARGETS


@pytest.mark.data
@pytest.mark.parametrize("name", SIZES)
def test_real_shapes(load_real, name):
    rows, features, targets = SIZES[name]
    X, T = load_real(name)
    assert X.shape == (rows, features)
    assert T.shape == (rows, targets)
    assert np.isfinite(X).all()
    assert np.isfinite(T).all()


@pytest.mark.data
def test_real_missing_rows_are_kept_on_request(load_real):
    load_real("scpf")
    scpf = load_mulan("scpf", drop_missing=False, download_if_missing=False)
    assert scpf.data.shape == (1137, 23)
    assert np.isnan(np.hstack([scpf.data, scpf.target])).any(axis=1).sum() == 994


@pytest.mark.data
def test_real_target_names(load_real):
    load_real("jura")
    assert load_mulan("jura", download_if_missing=False).target_names == ["Cd", "Co", "Cu"]
