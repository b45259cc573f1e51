"""The table of findings: what it holds follows from the scores of the fit and from the table."""

import copy

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from gorelm import RobustELMRegressor, TableRegressor, load, save
from gorelm.datasets import make_multitarget
from gorelm.findings import Names, findings, quality, ranking


def make_table(n=120, m=2, seed=0):
    data = make_multitarget(n, 4, m, noise=0.3, outlier_ratio=0, random_state=seed)
    X = pd.DataFrame(data.X, columns=list("abcd"), index=[f"r{i}" for i in range(n)])
    X["colour"] = np.random.default_rng(seed).choice(["red", "blue"], n)
    return X, pd.DataFrame(data.T, columns=[f"t{j}" for j in range(m)], index=X.index)


@pytest.fixture(scope="module")
def fitted():
    X, y = make_table()
    y.iloc[17] += 40
    y.iloc[3, 0] = np.nan
    small = RobustELMRegressor(n_hidden=20, effort="fast", missing_targets="ignore")
    return TableRegressor(small, random_state=0).fit(X, y), X, y


def test_all_of_a_clear_group_are_certain(fitted):
    model, X, y = fitted
    for clear in (False, True):
        judge = copy.deepcopy(model)
        judge.regressor_.contaminated_ = clear
        judge.regressor_.outlier_threshold_ = judge.outlier_scores_.max() / 1.5
        judge.regressor_.cell_thresholds_ = np.nanmax(judge.cell_scores_, axis=0) / 1.5
        assert judge.findings(X, y)["gorelm.certain"].iloc[0]  # more than ten spreads off
        judge.regressor_.target_spreads_ = 100.0 * judge.target_spreads_
        found = judge.findings(X, y)
        assert found["gorelm.kind"].iloc[0] == "row"
        assert found["gorelm.certain"].iloc[0] == clear


def test_three_spreads_are_certain_on_another_scale(fitted):
    model, X, y = fitted
    judge = copy.deepcopy(model)
    judge.regressor_.contaminated_ = False
    judge.regressor_.outlier_threshold_ = judge.outlier_scores_.max() / 1.5
    judge.regressor_.cell_thresholds_ = np.nanmax(judge.cell_scores_, axis=0) / 1.5
    off = np.nanmax(np.abs(judge.findings(X, y).filter(like="spreads").iloc[0]))
    judge.regressor_.target_spreads_ = judge.target_spreads_ * off / 5.0
    certain = [judge.findings(X, y)["gorelm.certain"].iloc[0]]
    judge.regressor_.target_transforms_ = ["sqrt"] * y.shape[1]
    certain.append(judge.findings(X, y)["gorelm.certain"].iloc[0])
    assert certain == [False, True]


def test_order_and_kinds_without_the_frame(fitted):
    model, X, y = fitted
    found, of = model.findings(X, y), Names([*X, *y])
    short = ranking(model, y, X)
    np.testing.assert_array_equal(short.order, found[of.row])
    assert short.kind[short.order].tolist() == found[of.kind].tolist()
    assert short.certain[short.order].tolist() == found[of.certain].tolist()
    np.testing.assert_array_equal(np.exp2(-short.worst[short.order]), found[of.quality])


def test_columns_follow_from_the_fit_and_the_table(fitted):
    model, X, y = fitted
    found = model.findings(X, y)
    of = Names([*X, *y])
    assert list(found)[:5] == list(X)
    assert len(found.columns) == 5 + 8 + 6 * 2
    row = found[of.row].to_numpy()
    assert sorted(row) == list(range(120))
    assert found.index.tolist() == X.index[row].tolist()
    pd.testing.assert_frame_equal(found[list(X)], X.iloc[row])
    pd.testing.assert_frame_equal(found[list(y)], y.iloc[row])
    np.testing.assert_array_equal(found[of.score], model.outlier_scores_[row])
    assert found[of.flagged].tolist() == (found[of.kind] != "").tolist()
    judged = found[of.kind].isin(["row", "cell"])
    assert found[of.certain].tolist() == (judged & (found[of.quality] < 0.25)).tolist()
    rows_flagged = found[of.kind] == "row"
    np.testing.assert_array_equal(rows_flagged, model.outlier_mask_[row])
    for j, name in enumerate(y):
        expected = model.out_of_fold_[row, j]
        np.testing.assert_array_equal(found[of.expected(name)], expected)
        np.testing.assert_allclose(found[of.off_by(name)], y.iloc[row, j] - expected)
        in_spreads = found[of.off_by(name)] / model.target_spreads_[j]
        np.testing.assert_allclose(found[of.spreads(name)], in_spreads)
        listed = [name in off.split(",") for off in found[of.off]]
        assert listed == found[of.flagged_of(name)].tolist()
    # most suspicious first; a quality below 1/2 is a finding
    assert (np.diff(found[of.quality]) >= 0).all()
    assert (found[of.quality] < 0.5).tolist() == found[of.flagged].tolist()
    assert found.index[0] == "r17"
    assert found[of.off].iloc[0] == "t0,t1"


@pytest.mark.parametrize("n_targets", [1, 2, 4])
def test_scores_of_new_rows_are_those_of_the_fit(n_targets):
    """The score of a training row follows from its out-of-fold prediction by the same formula.

    But for rows of several targets with cells that are off: of new rows, errors of other targets
    tell nothing about a cell.
    """
    X, y = make_table(200, n_targets)
    y.iloc[17] += 40
    X, y = X.drop(columns="colour").to_numpy(), y.to_numpy()
    model = RobustELMRegressor(n_hidden=20, effort="fast", random_state=0).fit(X, y)

    class Unseen(RobustELMRegressor):
        def predict(self, X):
            return model.out_of_fold_

    stand_in = Unseen().set_params(**model.get_params())
    stand_in.__dict__.update(model.__dict__)
    scores = stand_in.score_rows(X, y)
    assert np.isclose(scores, model.outlier_scores_, rtol=1e-12).mean() > (
        1.0 - 1e-9 if n_targets == 1 else 0.8
    )
    flagged = scores > model.outlier_threshold_
    assert (flagged == model.outlier_mask_).mean() > 0.97


def test_new_rows_are_flagged_as_rarely_as_training_rows():
    """By the fences of the fit; and all of the wrong ones are."""
    X, y = make_table(700, m=3)
    small = RobustELMRegressor(n_hidden=60, missing_targets="ignore")
    model = TableRegressor(small, random_state=0).fit(X[:200], y[:200])
    later = y[200:].copy()
    later.iloc[:5] += 60
    scores = model.score_rows(X[200:], later)
    flagged = scores > model.outlier_threshold_
    assert flagged[:5].all()
    assert flagged[5:].mean() < 0.02
    found = model.findings(X[200:], later, new=True)
    assert set(found.index[:5]) == {f"r{i}" for i in range(200, 205)}
    np.testing.assert_array_equal(found["gorelm.score"], scores[found["gorelm.row"]])
    predicted = model.predict(X[200:])[found["gorelm.row"]]
    np.testing.assert_array_equal(found["gorelm.expected.t1"], predicted[:, 1])
    later.iloc[7] = np.nan
    assert np.isnan(model.score_rows(X[200:], later)[7])


@pytest.mark.parametrize("change", ["fewer rows", "another order", "a target", "an input"])
def test_another_table_is_not_taken_for_the_training_table(fitted, change):
    model, X, y = fitted
    X, y = X.copy(), y.copy()
    if change == "fewer rows":
        X, y = X[:100], y[:100]
    elif change == "another order":
        X, y = X[::-1], y[::-1]
    elif change == "a target":
        y.iloc[50, 1] += 1e-9
    else:
        X.iloc[50, 1] += 1e-9
    with pytest.raises(ValueError, match="new=True"):
        model.findings(X, y)
    assert len(model.findings(X, y, new=True)) == len(X)


def test_a_model_from_a_file_knows_its_table(fitted, tmp_path):
    model, X, y = fitted
    again = load(save(model, tmp_path / "m.gorelm"))
    pd.testing.assert_frame_equal(again.findings(X, y), model.findings(X, y))
    with pytest.raises(ValueError, match="new=True"):
        again.findings(X[::-1], y)


def test_arrays_one_target_and_names():
    data = make_multitarget(60, 3, 1, outlier_ratio=0, random_state=0)
    y = data.T[:, 0].copy()
    y[5] += 30
    model = RobustELMRegressor(n_hidden=10, effort="fast", random_state=0).fit(data.X, y)
    found = model.findings(data.X, y)
    assert list(found)[:3] == ["x0", "x1", "x2"]
    assert found.index[0] == found["gorelm.row"].iloc[0] == 5
    assert found["gorelm.off"].iloc[0] == "y"
    np.testing.assert_array_equal(found["gorelm.score"], model.outlier_scores_[found.index])
    frame = pd.DataFrame(data.X, columns=["y", "gorelm.row", "gorelm1.x"])
    model.fit(frame, y)
    with pytest.raises(ValueError, match="'y' is the name of an input and of a target"):
        findings(model, frame, y)
    found = findings(model, frame, pd.Series(y, name="z"), lines=range(2, 62))
    assert found["gorelm2.line"].iloc[0] == 7


def test_a_model_that_judges_no_rows_is_refused(fitted):
    _, X, y = fitted
    model = TableRegressor(Ridge()).fit(X, y.fillna(0))
    with pytest.raises(ValueError, match="does not judge rows"):
        model.findings(X, y)


# -- cells ---------------------------------------------------------------------------------------


def test_cells_come_from_a_model_that_judges_them(fitted):
    """A wrong cell of a row that is right stands where its own score puts it."""
    model, X, y = fitted

    class WithCells:
        outlier_threshold_ = model.outlier_threshold_
        out_of_fold_, target_spreads_ = model.out_of_fold_, model.target_spreads_
        outlier_scores_, outlier_mask_ = model.outlier_scores_, model.outlier_mask_
        cell_scores_ = np.full((120, 2), 0.5)
        cell_thresholds_ = np.array([4.0, 8.0])
        cell_mask_ = np.zeros((120, 2), dtype=bool)

    WithCells.cell_scores_[60] = [1.0, 1e6]
    WithCells.cell_mask_[60] = [False, True]
    WithCells.cell_scores_[61] = np.nan
    found = findings(WithCells(), X, y)
    assert found.index[0] == "r60"
    first = found.iloc[0]
    assert (first["gorelm.kind"], first["gorelm.off"]) == ("cell", "t1")
    assert first["gorelm.score.t1"] == 1e6
    assert first["gorelm.flagged.t1"]
    assert not first["gorelm.flagged.t0"]
    assert first["gorelm.score"] == model.outlier_scores_[60]
    of_row = quality(found["gorelm.score"], model.outlier_threshold_)
    of_cells = quality(found[["gorelm.score.t0", "gorelm.score.t1"]], WithCells.cell_thresholds_)
    worst = np.fmin(of_row, np.fmin.reduce(of_cells, axis=1))
    np.testing.assert_allclose(found["gorelm.quality"], worst)


@given(
    st.lists(st.floats(0, 1e300), min_size=2, max_size=30),
    st.floats(1e-300, 1e300),
)
def test_quality_falls_with_the_score_and_is_half_at_the_threshold(scores, threshold):
    values = quality(np.sort(scores), threshold)
    assert ((values >= 0) & (values <= 1)).all()
    assert (np.diff(values) <= 0).all()
    assert quality(np.array([threshold]), threshold)[0] == 0.5
    assert quality(np.array([0.0]), 0.0)[0] == 1.0
    assert quality(np.array([threshold]), 0.0)[0] == 0.0


# -- duplicates ----------------------------------------------------------------------------------


def with_copies(n_copies, change):
    """Return a table of which the first rows are there twice, the copies changed in t0."""
    X, y = make_table(200)
    X, y = pd.concat([X, X[:n_copies]]), pd.concat([y, y[:n_copies]])
    X["number"] = np.arange(1, len(X) + 1)
    y.iloc[200:, 0] += change
    X.index = y.index = range(len(X))
    small = RobustELMRegressor(n_hidden=40, effort="fast", missing_targets="ignore")
    return TableRegressor(small, random_state=0).fit(X, y), X, y


def test_equal_inputs_with_other_targets_are_found():
    model, X, y = with_copies(2, 0.0)
    usual = np.median(np.abs(y["t0"] - model.out_of_fold_[:, 0]))
    assert not (model.findings(X, y)["gorelm.kind"] == "duplicate").any()
    model, X, y = with_copies(2, 15 * usual)
    X.iloc[200, 0] += 1e-9  # almost equal
    model.fit(X, y)
    found = model.findings(X, y).set_index("gorelm.row")
    assert found.loc[[0, 1, 200, 201], "gorelm.twin"].tolist() == [200, 201, 0, 1]
    assert set(found.loc[[0, 1, 200, 201], "gorelm.kind"]) <= {"duplicate", "row", "cell"}
    assert found["gorelm.twin"].isna().sum() == 198
    assert (found["gorelm.quality"][[0, 1, 200, 201]] < 0.5).all()


def test_repeated_rows_by_design_are_no_finding():
    model, X, y = with_copies(30, 30.0)
    assert model.findings(X, y)["gorelm.twin"].isna().all()
