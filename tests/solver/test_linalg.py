import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gorelm._solver.linalg import (
    CholeskyFactor,
    EighFactor,
    WideFactor,
    gram,
    gram_rows,
)

# Each way to (H'H + sI)^-1, given H.
WAYS = {
    "cholesky": lambda H: CholeskyFactor(gram(H)),
    "eigh": lambda H: EighFactor(gram(H)),
    "wide, cholesky": lambda H: WideFactor(H),
    "wide, eigh": lambda H: WideFactor(H, EighFactor),
}
ways = pytest.mark.parametrize("way", WAYS)
SHAPES = [(40, 12), (12, 40), (20, 20), (1, 5), (5, 1), (1, 1)]


def reference(H, shifts, R):
    H = H.astype(float)
    G = H.T @ H
    columns = [np.linalg.solve(G + s * np.eye(len(G)), R[:, p]) for p, s in enumerate(shifts)]
    return np.stack(columns, axis=1)


@ways
@pytest.mark.parametrize("shape", SHAPES)
def test_solves_the_shifted_system(way, shape):
    rng = np.random.default_rng(0)
    H = rng.standard_normal(shape)
    factor = WAYS[way](H)
    # Up, down, twice the same: what is kept from one call must not leak into the next.
    for shifts in ([1.0], [1.0], [1e-3], [50.0], [0.1, 0.1, 7.0], [3.0, 0.1]):
        R = rng.standard_normal((shape[1], len(shifts), 4))
        before = R.copy()
        X = factor.solve(np.array(shifts), R)
        np.testing.assert_allclose(X, reference(H, shifts, R), rtol=1e-8, atol=1e-9)
        np.testing.assert_array_equal(R, before)


@pytest.mark.parametrize("kind", [CholeskyFactor, EighFactor])
@pytest.mark.parametrize("shape", [(40, 12), (20, 20), (5, 1)])
def test_times_is_a_product_with_the_gram_matrix(kind, shape):
    rng = np.random.default_rng(2)
    H, X = rng.standard_normal(shape), rng.standard_normal((shape[1], 3, 2))
    expected = np.einsum("kl,lpm->kpm", H.T @ H, X)
    factor = kind(gram(H))
    np.testing.assert_allclose(factor.times(X), expected, rtol=1e-9, atol=1e-9)
    if kind is not EighFactor:
        dH = rng.standard_normal((shape[0], 4))
        factor.extend(H.T @ dH, gram(dH))
        H, X = np.hstack([H, dH]), rng.standard_normal((shape[1] + 4, 3, 2))
        expected = np.einsum("kl,lpm->kpm", H.T @ H, X)
        np.testing.assert_allclose(factor.times(X), expected, rtol=1e-9, atol=1e-9)


@ways
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 9), n_hidden=st.integers(1, 9))
def test_residual_is_small(way, seed, n, n_hidden):
    rng = np.random.default_rng(seed)
    H = rng.standard_normal((n, n_hidden))
    shifts = 10.0 ** rng.uniform(-3, 3, 3)
    R = rng.standard_normal((n_hidden, 3, 2))
    X = WAYS[way](H).solve(shifts, R)
    back = np.einsum("kl,lpm->kpm", H.T @ H, X) + shifts[:, None] * X
    assert np.abs(back - R).max() <= 1e-9 * (1 + np.abs(X).max() * np.linalg.norm(H) ** 2)


@ways
def test_broadcast_right_hand_sides(way):
    # The solver hands in a read-only view with a stride of zero.
    rng = np.random.default_rng(1)
    H, right = rng.standard_normal((15, 6)), rng.standard_normal((6, 1, 2))
    view = np.broadcast_to(right, (6, 3, 2))
    shifts = np.array([0.5, 1.0, 2.0])
    X = WAYS[way](H).solve(shifts, view)
    np.testing.assert_allclose(X, reference(H, shifts, view), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(30, 11), (11, 30), (1, 3), (5000, 3)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_gram_is_lower_and_float64(shape, dtype, order):
    H = np.random.default_rng(2).standard_normal((shape[0], 2 * shape[1])).astype(dtype)
    H = H[:, ::2] if order == "strided" else np.array(H[:, : shape[1]], order=order)
    exact = H.astype(float)
    for got, expected in (
        (gram(H), exact.T @ exact),
        (gram_rows(H[:50]), exact[:50] @ exact[:50].T),
    ):
        assert got.dtype == np.float64
        np.testing.assert_allclose(np.tril(got), np.tril(expected), rtol=1e-10, atol=1e-10)


def test_gram_of_float32_keeps_small_eigenvalues():
    # Two columns that differ by 1e-4: their difference has a squared norm of 1e-8 of theirs, which
    # a float32 product loses entirely.
    rng = np.random.default_rng(3)
    base = rng.standard_normal(10_000).astype(np.float32)
    H = np.stack(
        [base, base + np.float32(1e-4) * rng.standard_normal(10_000).astype(np.float32)], 1
    )
    exact = H.astype(float)
    small = np.linalg.eigvalsh(exact.T @ exact)[0]
    G = gram(H)
    assert np.linalg.eigvalsh(G, UPLO="L")[0] == pytest.approx(small, rel=1e-6)
    single = (H.T @ H).astype(float)
    assert abs(np.linalg.eigvalsh(single)[0] - small) > small  # and so the test can tell


@ways
def test_float32_rows_solve_as_their_float64_copy(way):
    rng = np.random.default_rng(4)
    H = rng.standard_normal((25, 10)).astype(np.float32)
    R, shifts = rng.standard_normal((10, 2, 3)), np.array([1e-4, 1.0])
    X = WAYS[way](H).solve(shifts, R)
    assert X.dtype == np.float64
    np.testing.assert_allclose(X, reference(H, shifts, R), rtol=1e-7, atol=1e-8)


def test_nothing_is_solved_without_a_nan():
    # as for constant inputs, which scaling has made 0, at the smallest penalty there is
    R = np.zeros((3, 2, 1))
    X = EighFactor(np.zeros((3, 3))).solve(np.array([5e-324, 1.0]), R)
    np.testing.assert_array_equal(X, R)


@pytest.mark.parametrize("kind", [CholeskyFactor, EighFactor])
@pytest.mark.parametrize("shift", [1e-300, 1e-20, 1e-15])
def test_rank_deficient_with_a_shift_below_rounding(kind, shift):
    # H'H is singular and the shift vanishes in it; a right-hand side in its range has an answer.
    rng = np.random.default_rng(5)
    low = rng.standard_normal((30, 4))
    H = low @ rng.standard_normal((4, 12))
    T = H @ rng.standard_normal((12, 2))
    G = gram(H)
    X = kind(G).solve(np.array([shift]), (H.T @ T)[:, None])[:, 0]
    assert np.isfinite(X).all()
    np.testing.assert_allclose(H @ X, T, atol=1e-5 * np.abs(T).max())


def test_cholesky_falls_back_and_comes_back(monkeypatch):
    # A Gram matrix that rounding made indefinite: the small shift needs the fallback, the next not.
    G = np.array([[1.0, 1.0], [1.0, 1.0 - 1e-13]])
    factor = CholeskyFactor(G)
    R = np.array([[[1.0]], [[1.0]]])
    calls = []
    solve = EighFactor.solve
    monkeypatch.setattr(EighFactor, "solve", lambda *a: calls.append(1) or solve(*a))
    small = factor.solve(np.array([1e-14]), R)
    assert len(calls) == 1
    np.testing.assert_allclose(small.sum(), 1.0, rtol=1e-6)
    for shift in (0.5, 2.0):
        exact = np.linalg.solve(G + shift * np.eye(2), R[:, 0])
        np.testing.assert_allclose(factor.solve(np.array([shift]), R)[:, 0], exact, rtol=1e-9)
    assert len(calls) == 1
    again = factor.solve(np.array([1e-14]), R)
    np.testing.assert_array_equal(again, small)


@ways
def test_no_information_at_all(way):
    # H = 0: what is left is division by the shift.
    R = np.random.default_rng(6).standard_normal((4, 2, 3))
    X = WAYS[way](np.zeros((6, 4))).solve(np.array([0.5, 2.0]), R)
    np.testing.assert_allclose(X, R / np.array([0.5, 2.0])[:, None], rtol=1e-12)
