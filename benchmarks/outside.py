"""Tables for choosing defaults: none is a Mulan set, so that results on those stay a fair test.

Five are real, as scikit-learn ships them; where a table has no target of its own, its last columns
are predicted from the others. Eleven are drawn, for the kinds of regression that engineers meet:
smooth functions, steps, levels, counts with many zeros, physical laws, more inputs than rows, noise
that depends on the inputs, inputs with long tails. None has more than 600 rows, but for `large`.
"""

from __future__ import annotations

import numpy as np
from sklearn import datasets
from sklearn.tree import DecisionTreeRegressor

from gorelm.datasets import make_multitarget

__all__ = ["large", "tables"]

Array = np.ndarray
Table = tuple[Array, Array]  # inputs, targets


def tables() -> dict[str, Table]:
    """Return the tables to choose by."""
    return {
        "diabetes": last_columns(np.column_stack(datasets.load_diabetes(return_X_y=True)), 1),
        "wine": last_columns(datasets.load_wine().data, 3),
        "cancer": some_rows(*last_columns(datasets.load_breast_cancer().data, 10), 400),
        "iris": last_columns(datasets.load_iris().data, 2),
        "digits": some_rows(*last_columns(datasets.load_digits().data, 16), 500),
        "friedman1": friedman1(),
        "friedman23": friedman23(),
        "factors": factors(),
        "network": network(),
        "steps": steps(),
        "levels": levels(),
        "lorenz": lorenz(500),
        "counts": counts(),
        "arm": arm(600),
        "uneven": uneven(),
        "sizes": sizes(),
    }


def large() -> dict[str, Table]:
    """Return the tables to choose by what depends on many rows."""
    return {"lorenz": lorenz(9000), "arm": arm(9000)}


def last_columns(values: Array, n_targets: int) -> Table:
    return values[:, :-n_targets], values[:, -n_targets:]


def some_rows(X: Array, T: Array, n: int) -> Table:
    rows = np.random.default_rng(0).choice(len(X), n, replace=False)
    return X[rows], T[rows]


def noisy(T: Array, share: float, rng: np.random.Generator) -> Array:
    """Add noise with a share of each target's deviation."""
    return T + share * T.std(axis=0) * rng.standard_normal(T.shape)


def friedman1() -> Table:
    """Ten uniform inputs; each of three targets has its own five of them, in Friedman's law."""
    X, first = datasets.make_friedman1(300, noise=1.0, random_state=0)
    rng = np.random.default_rng(1)
    others = []
    for shift in (2, 5):
        a, b, c, d, e = np.roll(X, shift, axis=1)[:, :5].T
        law = 10 * np.sin(np.pi * a * b) + 20 * (c - 0.5) ** 2 + 10 * d + 5 * e
        others.append(law + rng.standard_normal(len(X)))
    return X, np.column_stack([first, *others])


def friedman23() -> Table:
    """Impedance and phase of a circuit, from the same four inputs."""
    X, impedance = datasets.make_friedman2(200, noise=50.0, random_state=2)
    _, phase = datasets.make_friedman3(200, noise=0.1, random_state=2)
    return X, np.column_stack([impedance, phase])


def factors() -> Table:
    """More inputs than rows; eight factors make inputs and targets."""
    rng = np.random.default_rng(3)
    F = rng.standard_normal((240, 8))
    X = F @ rng.standard_normal((8, 300)) + rng.standard_normal((240, 300))
    T = F @ rng.standard_normal((8, 10)) + 0.5 * np.tanh(F @ rng.standard_normal((8, 10)))
    return X, noisy(T, 0.3, rng)


def network() -> Table:
    """Draw the library's own problem; few rows."""
    data = make_multitarget(120, outlier_ratio=0.0, noise=0.1, random_state=4)
    return data.X, data.T


def steps() -> Table:
    """Piecewise constant: what trees with sixteen leaves say."""
    rng = np.random.default_rng(5)
    X = rng.uniform(size=(400, 6))
    tree = DecisionTreeRegressor(max_leaf_nodes=16, random_state=0)
    T = tree.fit(X, rng.standard_normal((400, 4))).predict(X)
    return X, noisy(T, 0.2, rng)


def levels() -> Table:
    """Design an experiment: inputs at a few levels, products of their effects."""
    rng = np.random.default_rng(6)
    X = rng.integers(0, [2, 3, 4, 4, 5, 7], size=(500, 6)).astype(float)
    a, b, c, d, e, f = (X / X.max(axis=0)).T
    T = np.column_stack(
        [20 * (1 + b) * (0.5 + c**2) + 5 * e * f, 15 * (1 + a * c) * np.exp(-d) + 4 * np.sqrt(e)]
    )
    return X, noisy(T, 0.05, rng)


def lorenz(n: int) -> Table:
    """Lorenz's chaotic flow: its state 0.05, 0.1, 0.2 later, from the present and two before."""
    rng = np.random.default_rng(7)
    dt, states = 0.01, [np.array([1.0, 1.0, 20.0])]

    def speed(s: Array) -> Array:
        return np.array([10 * (s[1] - s[0]), s[0] * (28 - s[2]) - s[1], s[0] * s[1] - 8 / 3 * s[2]])

    for _ in range(10 * n + 100):  # Heun's method
        slope = speed(states[-1])
        states.append(states[-1] + dt / 2 * (slope + speed(states[-1] + dt * slope)))
    S = noisy(np.array(states), 0.02, rng)
    now = rng.choice(np.arange(50, len(S) - 20), n, replace=False)
    return np.hstack([S[now], S[now - 10], S[now - 20]]), np.hstack(
        [S[now + ahead] for ahead in (5, 10, 20)]
    )


def counts() -> Table:
    """Events, most of the time none; their rates depend on the inputs' exponentials."""
    rng = np.random.default_rng(8)
    X = np.round(rng.gamma(1.0, 2.0, size=(300, 12)))  # skewed and whole, like counts themselves
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    rates = np.exp(-1.0 + 0.5 * Z @ rng.standard_normal((12, 3)) / np.sqrt(3))
    return X, rng.poisson(rates).astype(float)


def arm(n: int) -> Table:
    """Where a robot's arm of four links ends, and how fast, from its angles and their speeds."""
    rng = np.random.default_rng(9)
    angles, speeds = rng.uniform(-1, 1, (2, n, 4)) * np.array([np.pi / 2, 1.0])[:, None, None]
    turned, turning = angles.cumsum(axis=1), speeds.cumsum(axis=1)
    lengths = np.array([1.0, 0.8, 0.6, 0.4])
    x, y = np.cos(turned) @ lengths, np.sin(turned) @ lengths
    vx = (-np.sin(turned) * turning) @ lengths
    vy = (np.cos(turned) * turning) @ lengths
    return np.hstack([angles, speeds]), noisy(np.column_stack([x, y, vx, vy]), 0.05, rng)


def uneven() -> Table:
    """Waves of two inputs among eight; the noise grows with a third, and has heavy tails."""
    rng = np.random.default_rng(10)
    X = rng.standard_normal((400, 8))
    wave = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] ** 2
    T = np.column_stack([wave, wave * X[:, 2], X[:, 3] + wave])
    spread = 0.1 * np.exp(0.5 * X[:, 4])[:, None]
    return X, T + spread * rng.standard_t(4, size=T.shape)


def sizes() -> Table:
    """Towns, most of them small and a few very large: inputs and targets grow with the size."""
    rng = np.random.default_rng(11)
    size = np.exp(1.2 * rng.standard_normal((300, 1)))
    X = size * rng.gamma(2.0, 0.5, size=(300, 40))
    shares = rng.gamma(0.3, 1.0, size=(40, 6)) / 12
    return X, X @ shares + 0.2 * size * rng.standard_normal((300, 6))
