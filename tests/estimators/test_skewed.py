"""Targets whose errors grow with their size: which are transformed, and that it is undone."""

import numpy as np
import pytest

import gorelm
from gorelm import RobustELMRegressor, TableRegressor
from gorelm.estimators._robust import skewed
from gorelm.estimators._robust.skewed import choose_transforms, growth_of, is_skewed


def fast(**params):
    return RobustELMRegressor(effort="fast", n_hidden=60, random_state=0, **params)


def prices(n=400, n_wrong=12, seed=0):
    """Return inputs, prices with errors of 10 %, and which of them are ten times too low."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    y = np.exp(7 + 1.2 * X[:, 0] + 0.8 * X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n))
    wrong = np.zeros(n, dtype=bool)
    wrong[rng.choice(n, n_wrong, replace=False)] = True
    return X, np.where(wrong, y / 10, y), wrong


@pytest.fixture(scope="module")
def table():
    X, y, wrong = prices()
    return X, y, wrong, fast(target_transform="auto").fit(X, y)


def test_prices_are_judged_by_their_logarithms(table):
    X, y, wrong, model = table
    assert model.target_transforms_ == ["log"]
    assert model.outlier_mask_[wrong].mean() >= 0.95
    assert wrong[model.outlier_mask_].mean() >= 0.9
    given = fast().fit(X, y)
    assert given.target_transforms_ == ["none"]
    assert given.outlier_mask_[wrong].mean() < 0.9
    assert np.median(np.abs(np.log(model.predict(X) / y))) < 0.1


@pytest.mark.parametrize(
    ("kind", "there", "back"),
    [("log", np.log, np.exp), ("sqrt", np.sqrt, lambda z: np.maximum(z, 0) ** 2)],
)
def test_a_transform_is_a_fit_by_hand(kind, there, back):
    X, y, _ = prices(150, 5)
    T = np.column_stack([y, y[::-1]])
    model = fast(target_transform=kind).fit(X, T)
    alone = fast().fit(X, there(T))
    np.testing.assert_allclose(model.predict(X), back(alone.predict(X)))
    np.testing.assert_allclose(model.out_of_fold_, back(alone.out_of_fold_))
    np.testing.assert_array_equal(model.outlier_scores_, alone.outlier_scores_)
    np.testing.assert_array_equal(model.outlier_mask_, alone.outlier_mask_)
    assert model.target_transforms_ == [kind, kind]


def test_units_do_not_matter(table):
    X, y, _, model = table
    other = fast(target_transform="auto").fit(X, 1e-6 * y)
    assert other.target_transforms_ == ["log"]
    np.testing.assert_allclose(other.predict(X), 1e-6 * model.predict(X), rtol=1e-6)


def test_other_targets_stay_as_they_are():
    X, y, _ = prices(600, 10)
    rng = np.random.default_rng(1)
    additive = np.exp(1.2 * X[:, 0]) + 0.1 * rng.normal(size=600) + 5.0
    one_sided = 20 + X[:, 0] + 0.1 * rng.normal(size=600)
    one_sided[::5] += 30.0
    negative = y - y.max() / 2
    T = np.column_stack([additive, one_sided, negative, y])
    model = fast(target_transform="auto").fit(X, T)
    assert model.target_transforms_ == ["none", "none", "none", "log"]
    few = fast(target_transform="auto").fit(X[:100], y[:100])
    assert few.target_transforms_ == ["none"]


def apartments(n=300, seed=0):
    """Return inputs, and targets with errors of 12 %, some of them ten times too large."""
    rng = np.random.default_rng(seed)
    size, age = rng.lognormal(4.2, 0.45, n), rng.uniform(0, 90, n)
    factor = np.exp(0.12 * rng.normal(size=(n, 2)))
    rent = 11 * size**0.9 * np.exp(-0.002 * age) * factor[:, 0]
    energy = (40 + 1.1 * age) * size / 60 * factor[:, 1]
    wrong = rng.choice(n, 10, replace=False)
    rent[wrong] *= 10
    counts = rng.poisson(np.exp(0.5 + size / 60))
    level = 50 + 0.1 * age + rng.normal(size=n)
    return np.column_stack([size, age]), np.column_stack([rent, energy, counts, level])


def chosen(X, T, **params):
    """Return the choice, without the fit that follows."""

    class Chosen(Exception):
        pass

    def told(task):
        raise Chosen(choose_transforms(task))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gorelm.estimators.robust.choose_transforms", told)
        with pytest.raises(Chosen) as info:
            RobustELMRegressor(target_transform="auto", **params).fit(X, T)
    return info.value.args[0]


def test_no_seed_nor_effort_changes_the_choice():
    X, T = apartments()
    first = chosen(X, T, random_state=0)
    assert first == ["log", "log", "none", "none"]  # counts: errors do not double
    for seed in range(1, 5):
        assert chosen(X, T, random_state=seed) == first
    assert chosen(X, T, random_state=0, effort="fast", n_hidden=20) == first


def test_gross_errors_of_prices_are_left_out_of_the_training():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 3))
    y = np.exp(7 + 0.7 * X[:, 0] + 0.25 * rng.normal(size=300))
    y[:6] *= 10
    model = fast(target_transform="log").fit(X, y)
    assert not model.contaminated_
    assert model.outlier_mask_[:6].all()
    spreads = np.log(y / model.out_of_fold_) / model.target_spreads_
    assert (spreads[:6] < 10).all()
    again = fast(target_transform="log").fit(X, y * np.where(np.arange(300) < 6, 5.0, 1.0))
    # What they are does not matter, but for the screen, by which the pull of the others is bounded.
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-5)


def test_a_negative_value_outside_of_the_sample(monkeypatch):
    monkeypatch.setattr(skewed, "MOST_ROWS", 300)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 2))
    y = np.exp(7 + X[:, 0] + 0.3 * rng.normal(size=600))
    assert fast(target_transform="auto").fit(X, y).target_transforms_ == ["log"]
    for row in range(0, 600, 120):  # not all of these are in the sample
        one = np.where(np.arange(600) == row, -1.0, y)
        assert fast(target_transform="auto").fit(X, one).target_transforms_ == ["none"]


def test_counts_with_zeros_get_roots():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(600, 2))
    y = rng.poisson(np.exp(2.0 + 2.0 * X[:, 0])).astype(float)
    assert (y == 0).mean() > 0.01
    assert fast(target_transform="auto").fit(X, y).target_transforms_ == ["sqrt"]


def test_skewness_and_growth():
    rng = np.random.default_rng(0)
    w = np.ones(2000)
    assert is_skewed(rng.lognormal(size=2000), w)
    assert not is_skewed(-rng.lognormal(size=2000), w)
    assert not is_skewed(10 + rng.normal(size=2000), w)
    assert not is_skewed(np.full(2000, np.nan), w)
    level = rng.uniform(1, 10, size=2000)
    noise = rng.normal(size=2000)
    assert abs(growth_of(level, noise, w)) < 0.25
    assert growth_of(level, noise * level, w) > 1.0
    assert growth_of(level, -noise / level, w) < -1.0
    noise[::5] = 1e6  # wrong rows
    assert abs(growth_of(level, noise, w)) < 0.3
    assert growth_of(np.zeros(2000), noise, w) == 0.0


def test_negative_values_have_no_logarithm():
    X, y, _ = prices(60, 0)
    with pytest.raises(ValueError, match="target_transform='log' needs values"):
        fast(target_transform="log").fit(X, y - 5000)
    with pytest.raises(ValueError, match="'target_transform' parameter"):
        fast(target_transform="cube").fit(X, y)


def test_tables_choose_and_say_so():
    X, y, wrong = prices()
    model = TableRegressor(effort="fast", random_state=0).fit(X, y)
    assert model.target_transforms_ == ["log"]
    assert "on the scale of logarithms: 'y'" in model.notes_[-1]
    assert model.outlier_mask_[wrong].mean() >= 0.95
    plain = TableRegressor(effort="fast", target_transform=None, random_state=0).fit(X, y)
    assert plain.target_transforms_ == ["none"]
    assert plain.notes_ == []
    own = TableRegressor(fast(), target_transform="log")
    with pytest.raises(ValueError, match="set it in the estimator instead"):
        own.fit(X, y)


def test_files_and_graphs(tmp_path):
    pytest.importorskip("skops", reason="skops is not installed")
    X, y, _ = prices(100, 4)
    for target in (np.column_stack([y, y + 1, y + 2]), y):
        model = fast(target_transform="log").fit(X, target)
        if target.ndim == 2:  # mixed scales
            kinds = ["log", "none", "sqrt"]
            model._target_transforms = type(model._target_transforms).fit(kinds, target)
            model.target_transforms_ = kinds
        restored = gorelm.load(gorelm.save(model, tmp_path / "model"))
        np.testing.assert_array_equal(restored.predict(X), model.predict(X))
        assert restored.target_transforms_ == model.target_transforms_
        runtime = pytest.importorskip("onnxruntime")
        graph = gorelm.onnx.to_onnx(model).SerializeToString()
        session = runtime.InferenceSession(graph, providers=["CPUExecutionProvider"])
        far = np.vstack([X, 50 * X])
        np.testing.assert_allclose(session.run(["y"], {"X": far})[0], model.predict(far), rtol=1e-9)


def test_findings_and_new_rows_are_on_the_scale_of_the_fit(table):
    pytest.importorskip("pandas")
    X, y, wrong, model = table
    found = model.findings(X, y)
    assert found["gorelm.flagged"].sum() == model.outlier_mask_.sum()
    worst = found["gorelm.row"].to_numpy()[: wrong.sum()]
    assert wrong[worst].all()
    np.testing.assert_allclose(found["gorelm.expected.y"], model.out_of_fold_[found["gorelm.row"]])
    off = np.log(y) - np.log(model.out_of_fold_)
    np.testing.assert_allclose(
        found["gorelm.spreads.y"], (off / model.target_spreads_)[found["gorelm.row"]]
    )
    new, _, _ = prices(100, 0, seed=5)
    scores = model.score_rows(new, model.predict(new) / 10)
    assert (scores > model.outlier_threshold_).all()
