"""Ridge paths: against least squares, and leave-one-out against explicit fits without the row."""

from itertools import product

import numpy as np
import pytest

from gorelm._solver.ridge import RidgePath, RidgeSums, ridge_coef
from support.sweeps import at

LAMS = 2.0 ** -np.array([0.0, 6.0, 14.0, 24.0])
SHAPES = [(12, 30), (40, 9), (15, 15), (3, 1), (1, 4)]


def make_rows(n_rows, n_nodes, n_targets=2, seed=0):
    rng = np.random.default_rng(seed)
    H = np.tanh(
        rng.normal(size=(n_rows, 3)) @ rng.normal(size=(3, n_nodes)) + rng.normal(size=n_nodes)
    )
    return H, rng.normal(size=(n_rows, n_targets))


def ridge(H, T, penalty):
    """A least-squares problem: the normal equations would lose digits."""
    rows = np.r_[H, np.sqrt(penalty) * np.eye(H.shape[1])]
    return np.linalg.lstsq(rows, np.r_[T, np.zeros((H.shape[1], T.shape[1]))])[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_those_of_least_squares(shape):
    H, T = make_rows(*shape)
    path, unit = RidgePath(H, LAMS), np.square(H).sum()
    coefs = path.coefs(T)
    for p, lam in enumerate(LAMS):
        with at(lam=lam):
            expected = ridge(H, T, lam * unit)
            each = np.full(T.shape[1], lam)
            for found in (
                coefs[:, p],
                path.coef(T, p + 0 * each.astype(int)),
                ridge_coef(H, T, each),
            ):
                np.testing.assert_allclose(H @ found, H @ expected, rtol=1e-8, atol=1e-8)
    own = np.arange(T.shape[1]) % len(LAMS)  # a penalty for each target
    for found in (path.coef(T, own), ridge_coef(H, T, LAMS[own])):
        for j, p in enumerate(own):
            np.testing.assert_allclose(H @ found[:, j], H @ coefs[:, p, j], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("shape", SHAPES[:-1])
def test_left_out_is_a_fit_without_the_row(shape):
    H, T = make_rows(*shape)
    found, unit = RidgePath(H, LAMS).left_out(T), np.square(H).sum()
    for (p, lam), i in product(enumerate(LAMS), range(len(H))):
        with at(lam=lam, row=i):
            others = np.arange(len(H)) != i
            expected = H[i] @ ridge(H[others], T[others], lam * unit)
            np.testing.assert_allclose(found[i, p], expected, rtol=1e-8, atol=1e-8)


def test_weighted_rows_are_left_out_with_their_weight():
    H, T = make_rows(30, 8)
    w = np.random.default_rng(1).uniform(0.2, 3.0, size=30)
    omega = np.sqrt(w)[:, None]
    unit = np.square(omega * H).sum()
    found = RidgePath(omega * H, LAMS).left_out(omega * T) / omega[:, None]
    for p, i in product(range(len(LAMS)), range(30)):
        others = np.arange(30) != i
        coef = ridge((omega * H)[others], (omega * T)[others], LAMS[p] * unit)
        np.testing.assert_allclose(found[i, p], H[i] @ coef, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_targets_of_their_own_for_every_penalty(shape):
    H, T = make_rows(*shape)
    path = RidgePath(H, LAMS)
    several = np.stack([T * (p + 1) + p for p in range(len(LAMS))], axis=1)
    for result in (path.left_out, path.coefs):
        together = result(several)
        for p in range(len(LAMS)):
            alone = result(np.ascontiguousarray(several[:, p]))[:, p]
            np.testing.assert_allclose(together[:, p], alone, rtol=1e-10, atol=1e-12)


def test_a_layer_that_interpolates_does_not_look_perfect():
    """Its residuals vanish, its leave-one-out errors do not."""
    H, T = make_rows(20, 200)
    path = RidgePath(H, np.array([1e-11]))
    assert np.abs(T - H @ path.coefs(T)[:, 0]).max() < 1e-3
    assert np.abs(T - path.left_out(T)[:, 0]).mean() > 0.1


def test_sums_add_and_subtract():
    H, T = make_rows(50, 10)
    parts = [slice(0, 17), slice(17, 18), slice(18, 50)]
    sums = []
    for part in parts:
        one = RidgeSums.zero(10, 2)
        one.add(H[part], T[part])
        sums.append(one)
    whole = sums[0] + sums[1] + sums[2]
    unit = np.square(H).sum()
    for lam in LAMS:
        np.testing.assert_allclose(H @ whole.coef(lam), H @ ridge(H, T, lam * unit), rtol=1e-8)
    rest = np.r_[H[:17], H[18:]]
    without = (whole - sums[1]).coef(LAMS[1])
    expected = ridge(rest, np.delete(T, 17, axis=0), LAMS[1] * np.square(rest).sum())
    np.testing.assert_allclose(without, expected, rtol=1e-8, atol=1e-9)
    moved = RidgeSums.zero(10, 2)
    moved.add(H[18:], -T[18:])
    zeroed = np.r_[T[:18], np.zeros((32, 2))]
    expected = ridge(H, zeroed, LAMS[1] * unit)
    found = whole.with_targets_of(moved).coef(LAMS[1])
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
    assert whole.trace == pytest.approx(unit, rel=1e-12)
    several = whole.coefs(LAMS)
    for p, lam in enumerate(LAMS):
        np.testing.assert_allclose(H @ several[:, p], H @ whole.coef(lam), rtol=1e-7, atol=1e-8)


def test_columns_of_zeros_and_equal_columns():
    H, T = make_rows(40, 6)
    H[:, 2], H[:, 3] = 0.0, H[:, 4]
    for coef in (RidgePath(H, LAMS).coefs(T)[:, 3], ridge_coef(H, T, LAMS[[3] * T.shape[1]])):
        assert np.isfinite(coef).all()
        np.testing.assert_allclose(coef[2], 0.0, atol=1e-9)
        np.testing.assert_allclose(coef[3], coef[4], rtol=1e-5)
    zero = np.zeros((5, 3))
    assert not RidgePath(zero, LAMS).left_out(T[:5]).any()
