"""How likely cells are wrong, by a mixture of errors and values."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_t, norm
from scipy.stats import t as student

from gorelm.estimators._robust import wrong_values
from gorelm.estimators._robust.cells import BESIDE_OTHERS, TWO_GROUPS, two_groups
from gorelm.estimators._robust.wrong_values import DoubtedCells, RightErrors, WrongValues


def mixture(n, shares, *, noise=0.3, seed=0):
    """Draw targets: right ones near their predictions, wrong ones around 3 wherever these are."""
    rng = np.random.default_rng(seed)
    expected = rng.standard_normal((n, len(shares)))
    wrong = rng.uniform(size=expected.shape) < shares
    values = expected + noise * rng.standard_normal(expected.shape)
    values[wrong] = 3.0 + 0.5 * rng.standard_normal(wrong.sum())
    return cells(values, expected, noise), wrong


def cells(values, expected, usual):
    scores = np.abs(values - expected) / usual
    return DoubtedCells(values, scores, np.broadcast_to(usual, values.shape), scores > 5.0)


def flagged(seen, rows):
    return replace(seen, off=np.broadcast_to(rows[:, None], seen.values.shape))


def test_posterior_is_that_of_the_mixture():
    seen, _ = mixture(300, [0.3])
    found = WrongValues.learn(seen, np.ones(300))
    new, _ = mixture(50, [0.3], seed=1)
    got = found.doubt(new, np.zeros(50))[:, 0]

    # The same by the sum of normal densities around the values that are likely wrong.
    doubt = found.doubt(seen, np.ones(300))[:, 0]
    values, at = seen.values[:, 0], new.values[:, 0]
    width = wrong_values.BANDWIDTH * doubt.sum() ** -0.2
    density = norm.pdf(at[:, None], values, width) @ doubt / doubt.sum()
    width = wrong_values.BANDWIDTH * len(values) ** -0.2
    every = norm.pdf(at[:, None], values, width).mean(axis=1)
    share = doubt.mean()
    wrong = share * ((1 - wrong_values.OF_ALL) * density + wrong_values.OF_ALL * every)
    scale = 0.3 * found.scale[0] * norm.ppf(0.75) / student(2).ppf(0.75)
    right = (1 - share) * student.pdf(0.3 * new.scores[:, 0], 2, scale=scale)
    np.testing.assert_allclose(got, wrong / (wrong + right), atol=0.02)


def test_finds_the_share_and_the_scale():
    seen, wrong = mixture(4000, [0.15, 0.3])
    found = WrongValues.learn(seen, np.ones(4000))
    np.testing.assert_allclose(found.scale, 1.0, rtol=0.1)
    own = wrong.mean(axis=0)
    np.testing.assert_allclose(found.share, (own + own.mean()) / 2, atol=0.02)
    doubt = found.doubt(seen, np.ones(4000))
    assert np.mean((doubt > 0.5) == wrong) > 0.98


def test_a_value_among_wrong_ones_is_doubted_at_a_smaller_error():
    seen, _ = mixture(2000, [0.3])
    found = WrongValues.learn(seen, np.ones(2000))
    values = np.array([[3.0], [0.0]])
    among_wrong, among_right = found.doubt(cells(values, values - 1.0, 0.3), np.zeros(2))[:, 0]
    assert among_wrong > 0.5 > among_right


def test_weights_are_repeats():
    seen, _ = mixture(80, [0.2, 0.3])
    w = np.random.default_rng(2).integers(0, 4, size=80)
    parts = (seen.values, seen.scores, seen.usual, seen.off)
    repeated = DoubtedCells(*(np.repeat(part, w, axis=0) for part in parts))
    one = WrongValues.learn(repeated, np.ones(w.sum()))
    many = WrongValues.learn(seen, w.astype(float))
    for name in ("centre", "scale", "share", "density", "kernel", "pooled_kernel", "pooled_width"):
        np.testing.assert_allclose(getattr(many, name), getattr(one, name), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(many.doubt(seen, w), one.doubt(seen, np.minimum(w, 1)), atol=1e-9)


def test_a_cell_does_not_vouch_against_itself():
    """A lonely value says nothing of where wrong values are, but that there is one."""
    seen, _ = mixture(200, [0.2])
    values, expected = seen.values.copy(), seen.values - 0.3 * seen.scores
    values[0], expected[0] = -6.0, -5.0
    seen = cells(values, expected, 0.3)
    found = WrongValues.learn(seen, np.ones(200))
    itself, other = (found.doubt(seen, w)[0, 0] for w in (np.ones(200), np.zeros(200)))
    assert itself < other


@pytest.mark.parametrize("unknown", [0.3, 1.0])
def test_unknown_cells(unknown):
    seen, _ = mixture(100, [0.2, 0.2])
    rows = np.arange(100) < 100 * unknown
    for part in (seen.values, seen.scores):
        part[rows, 0] = np.nan
    found = WrongValues.learn(seen, np.ones(100))
    for part in (found.centre, found.scale, found.share, found.density, found.kernel):
        assert np.isfinite(part).all()
    doubt = found.doubt(seen, np.ones(100))
    np.testing.assert_array_equal(np.isnan(doubt[:, 0]), rows)
    assert np.isfinite(doubt[:, 1]).all()


def test_groups_of_a_target_are_seen_sooner_beside_those_of_others():
    nearly = TWO_GROUPS - BESIDE_OTHERS / 2
    assert list(two_groups(np.array([0.9, 0.8, nearly]))) == [True, True, True]
    assert list(two_groups(np.array([0.9, nearly, 0.5]))) == [True, False, False]
    assert list(two_groups(np.array([0.9, 0.8, 0.0]))) == [True, True, False]


@pytest.mark.parametrize("w", [1.0, 2.0])
def test_right_rows_that_are_hard_to_predict_have_other_values_than_wrong_rows(w):
    """Their errors are not unusual where they are, and no wrong row has such values."""
    rng = np.random.default_rng(0)
    expected, usual = rng.standard_normal((400, 3)), np.full((400, 3), 0.2)
    wrong, hard = np.arange(400) < 60, np.arange(400) >= 396
    usual[hard] = 0.8
    values = expected + usual * rng.standard_normal(expected.shape)
    values[wrong] = rng.choice([-4.0, 4.0], (60, 3)) + 0.5 * rng.standard_normal((60, 3))
    values[hard] = expected[hard] + 1.5 * usual[hard]
    off = wrong | hard
    seen = flagged(cells(values, expected, usual), off)
    found = WrongValues.of_rows(seen, np.full(400, w))
    of_off = DoubtedCells(*(array[off] for array in vars(seen).values()))
    likely = found.log_odds(of_off, np.full(off.sum(), w)).sum(axis=1) > 0
    assert likely[:60].all()
    assert not likely[60:].any()


@pytest.mark.parametrize("given", [[7.0, -7.0], [7.0, 7.0], [7.0, 7.0, 7.0, 7.0]])
def test_a_row_is_not_likely_wrong_by_its_own_values_alone(given):
    """Else one flagged row would be what wrong rows look like."""
    rng = np.random.default_rng(0)
    expected = rng.standard_normal((100, len(given)))
    values = expected + 0.3 * rng.standard_normal(expected.shape)
    values[0], off = given, np.arange(100) == 0
    expected[0] = values[0] - 1.5 * np.sign(values[0])
    seen = flagged(cells(values, expected, 0.3), off)
    first = DoubtedCells(*(array[:1] for array in vars(seen).values()))
    found = WrongValues.of_rows(seen, np.ones(100))
    assert found.log_odds(first, np.zeros(1)).sum() > 0
    assert found.log_odds(first, np.ones(1)).sum() < 0


def test_the_unit_of_the_weights_does_not_matter():
    seen, wrong = mixture(200, [0.3, 0.3])
    seen = flagged(seen, wrong.all(axis=1))
    odds = [
        WrongValues.of_rows(seen, np.full(200, w)).log_odds(seen, np.zeros(200))
        for w in (1e-3, 1e-8)
    ]
    np.testing.assert_allclose(*odds, rtol=1e-9, atol=1e-12)


def test_density_of_right_rows_against_scipy():
    """Also of rows of which some targets are unknown: a margin of Student's distribution."""
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 4))
    right = RightErrors(root @ root.T + np.eye(4))
    z = 3.0 * rng.standard_normal((60, 4))
    z[::3, 1] = z[::4, 3] = np.nan
    known = ~np.isnan(z)
    expected = [
        multivariate_t(shape=right.scatter[np.ix_(of, of)], df=wrong_values.DEGREES).logpdf(x[of])
        for x, of in zip(z, known, strict=True)
    ]
    np.testing.assert_allclose(right.log_density(z), expected, rtol=1e-10)


@pytest.mark.parametrize("unit", [1.0, 1e-8])
def test_scatter_of_right_rows(unit):
    """Whatever the unit of the weights; rows without weight have no influence."""
    shape = np.array([[1.0, 0.8, -0.3], [0.8, 2.0, 0.0], [-0.3, 0.0, 0.5]])
    z = multivariate_t(shape=shape, df=wrong_values.DEGREES, seed=0).rvs(6000)
    w = np.where(np.arange(6000) < 5000, unit, 0.0)
    z[w == 0] = 1e100
    np.testing.assert_allclose(RightErrors.learn(z, w).scatter, shape, atol=0.12)


def test_rows_of_independent_errors_have_the_odds_of_their_cells():
    """If the scatter of right errors is unknown."""
    rng = np.random.default_rng(0)
    off = np.zeros((50, 3), dtype=bool)
    off[:10] = True
    seen = DoubtedCells(rng.normal(size=(50, 3)), rng.normal(size=(50, 3)), np.ones((50, 3)), off)
    found = WrongValues.of_rows(seen, np.ones(50))
    odds = found.log_odds(seen, np.ones(50))
    assert found.right_errors(seen, np.zeros(50)) is None
    np.testing.assert_array_equal(found.log_odds_of_rows(seen, odds, None), odds.sum(axis=1))
    # Of one target, both are the same.
    one = seen.of_targets(slice(0, 1))
    found = WrongValues.of_rows(one, np.ones(50))
    odds, alone = found.log_odds(one, np.ones(50)), RightErrors(np.eye(1))
    np.testing.assert_allclose(found.log_odds_of_rows(one, odds, alone), odds[:, 0], atol=1e-12)
