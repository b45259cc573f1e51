"""Tables for choosing defaults: none is a Mulan set, so that results on those stay a fair test.

Seven are real, as scikit-learn ships them; where a table has no target of its own, its last columns
are predicted from the others. Twenty-one are drawn, for the kinds of regression that engineers
meet: smooth functions, steps, levels, counts with many zeros, physical laws, more inputs than rows,
noise that depends on the inputs, inputs with long tails, interactions of two and three inputs,
rules, categories, words, prices and counts with long tails, a short series. Four have one target.
None has more than 1000 rows, but for `large`.

`pairs` and `interactions` draw another law for every seed, so that benchmarks can take seeds that
no default was chosen by.
"""

from __future__ import annotations

import numpy as np
from sklearn import datasets
from sklearn.tree import DecisionTreeRegressor

from gorelm.datasets import make_multitarget

__all__ = ["interactions", "large", "pairs", "tables"]

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
        "proline": last_columns(datasets.load_wine().data, 1),
        "holes": holes(),
        "pairs": pairs(600, seed=101),
        "threes": interactions(900, seed=102, n_inputs=15, n_targets=3, noise=0.2),
        "words": words(),
        "tallies": tallies(),
        "rules": rules(),
        "menu": menu(),
        "ridge": ridge(),
        "fares": fares(),
        "branches": branches(),
        "pond": pond(),
    }


def large(*, many: bool = False) -> dict[str, Table]:
    """Return the tables to choose by what depends on many rows; `many`: one of 200,000 as well."""
    found = {
        "lorenz": lorenz(9000),
        "arm": arm(9000),
        "weather": weather(7000),
        "rivers": rivers(7000),
        "all digits": last_columns(datasets.load_digits().data, 16),
    }
    return found | {"interactions": interactions(200_000, seed=103)} if many else found


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


def weather(n: int) -> Table:
    """Lorenz's flow of 40 places on a circle: 8 of them 0.6 later, from all; no few inputs do."""
    rng = np.random.default_rng(20)
    dt, ahead, state = 0.01, 60, 8 + rng.standard_normal(40)

    def speed(s: Array) -> Array:
        return (np.roll(s, -1) - np.roll(s, 2)) * np.roll(s, 1) - s + 8

    states = []
    for _ in range(5 * n + 1000):  # Heun's method
        slope = speed(state)
        state = state + dt / 2 * (slope + speed(state + dt * slope))
        states.append(state)
    S = np.array(states)[500:]
    now = rng.choice(len(S) - ahead, n, replace=False)
    return noisy(S[now], 0.02, rng), S[now + ahead, :8]


def rivers(n: int) -> Table:
    """Flows at eight places of a river basin half a day ahead, from those of the last two days.

    Rain fills stores that empty by a power of what they hold, into those downstream; the rain that
    is still to come is not known.
    """
    rng = np.random.default_rng(21)
    places, ahead, steps = 8, 12, 4 * n + 1000
    lags = (0, 3, 6, 12, 18, 24, 36, 48)
    upstream: list[list[int]] = [[], [], [0], [1], [2, 3], [], [5], [4, 6]]
    storms = (rng.random(steps) < 0.02)[:, None] * rng.gamma(1.5, 4.0, (steps, 1))
    rain = storms * rng.uniform(0.3, 1.0, (steps, places))
    fading = np.exp(-np.arange(40) / 8)
    rain = np.array([np.convolve(r, fading / fading.sum())[:steps] for r in rain.T]).T
    kept, power = rng.uniform(0.9, 0.98, places), rng.uniform(1.1, 1.6, places)
    store, flow = np.ones(places), np.ones((steps, places))
    for t in range(1, steps):
        arriving = np.array([flow[max(t - 4, 0), above].sum() for above in upstream])
        flow[t] = np.minimum(0.5 * (1 - kept) * store**power, 0.5 * store)
        store = store + 0.3 * (rain[t] + arriving) - flow[t] + 0.01
    now = rng.choice(np.arange(500, steps - ahead), n, replace=False)
    return noisy(np.hstack([flow[now - lag] for lag in lags]), 0.01, rng), noisy(
        flow[now + ahead], 0.01, rng
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


def holes() -> Table:
    """How many holes a written digit has, from its pixels: one target, of three values."""
    X, digit = datasets.load_digits(return_X_y=True)
    T = np.array([1.0, 0, 0, 0, 0, 0, 1, 0, 2, 1])[digit]
    return some_rows(X, T[:, None], 600)


def pairs(n: int, seed: int = 0) -> Table:
    """Ten inputs; each of four targets is a sum of four functions of two of them."""
    rng = np.random.default_rng([12, seed])
    return drawn_sums(n, rng, n_inputs=10, n_targets=4, orders=(2,) * 4, noise=0.05)


def interactions(
    n: int, seed: int = 0, *, n_inputs: int = 10, n_targets: int = 4, noise: float = 0.1
) -> Table:
    """Few inputs at a time: each target sums three functions of two inputs, one of three."""
    rng = np.random.default_rng([13, seed])
    orders = (2, 2, 2, 3)
    return drawn_sums(n, rng, n_inputs=n_inputs, n_targets=n_targets, orders=orders, noise=noise)


def smooth_interactions(n: int, seed: int = 0) -> Table:
    """Likewise, but products and waves alone, without steps and edges."""
    rng = np.random.default_rng([13, seed])
    return drawn_sums(
        n, rng, n_inputs=10, n_targets=4, orders=(2, 2, 2, 3), noise=0.1, kinds=(1, 4)
    )


def drawn_sums(
    n: int,
    rng: np.random.Generator,
    *,
    n_inputs: int,
    n_targets: int,
    orders: tuple[int, ...],
    noise: float,
    kinds: tuple[int, ...] = (0, 1, 2, 3),
) -> Table:
    """Draw sums of functions of few inputs: the law first, so that it is the same for every n."""
    law = [
        [
            (
                rng.choice(n_inputs, order, replace=False),
                kinds[rng.integers(len(kinds))],
                rng.uniform(0.5, 1.5),
            )
            for order in orders
        ]
        for _ in range(n_targets)
    ]
    X = rng.uniform(-1, 1, size=(n, n_inputs))
    T = np.column_stack(
        [sum(size * term(X[:, of], kind) for of, kind, size in terms) for terms in law]
    )
    return X, noisy(T, noise, rng)


def term(U: Array, kind: int) -> Array:
    """Return a function of all columns of U, of one of five kinds, with deviation about 1."""
    last, others = U[:, -1], U[:, :-1]
    if kind == 0:  # a product, with an edge
        return 3.5 * np.abs(last) * others.prod(axis=1)
    if kind == 1:  # a wave as high as the others say
        return 2.4 * np.sin(1.5 * np.pi * last) * others.prod(axis=1)
    if kind == 2:  # a slope where the others are positive
        return 2.5 * last * (others > 0).all(axis=1)
    if kind == 3:  # a step
        return 2.0 * (U > 0).all(axis=1)
    return 3.0 * U.prod(axis=1)


def words() -> Table:
    """Texts of a few words out of 400, present or not: some words count, some only together."""
    rng = np.random.default_rng(14)
    often = np.minimum(0.5, 3.0 / np.arange(1, 401) ** 0.7)  # as in languages: few are frequent
    X = (rng.uniform(size=(300, 400)) < often).astype(float)
    a = X[:, 1:31]
    T = np.column_stack(
        [
            a[:, :10] @ rng.standard_normal(10) + 2 * a[:, 0] * a[:, 1],
            (a[:, 3:15].sum(axis=1) > 3) + 1.5 * a[:, 2] * (1 - a[:, 4]),
            np.maximum(a[:, 5:25] @ rng.standard_normal(20), 0),
        ]
    )
    return X, noisy(T, 0.3, rng)


def tallies() -> Table:
    """Sparse counts in 450 columns, 250 rows: effects that saturate, begin late, or need two."""
    rng = np.random.default_rng(15)
    X = rng.poisson(rng.gamma(0.4, 1.5, size=450) * rng.gamma(2.0, 0.5, size=(250, 1)))
    X = X[:, np.argsort(-(X > 0).sum(axis=0))].astype(float)  # those that matter are not empty
    a = X[:, 10:22]
    T = np.column_stack(
        [
            np.minimum(a[:, :4], 2).sum(axis=1),
            3.0 * (a[:, 4] > 2) + (a[:, 5] > 0) * (a[:, 6] > 0) * 2.0 + np.log1p(a[:, 7]),
            np.sqrt(a[:, 8:12].sum(axis=1)) + 2.0 * (a[:, 0] > a[:, 1]),
        ]
    )
    return X, noisy(T, 0.3, rng)


def rules() -> Table:
    """Rules of two and three thresholds each on fifteen inputs, as trees say them; 1000 rows."""
    rng = np.random.default_rng(16)
    X = np.hstack([rng.standard_normal((1000, 10)), rng.gamma(1.5, 1.0, size=(1000, 5))])
    T = np.zeros((1000, 4))
    for k in range(4):
        for _ in range(6):
            of = rng.choice(15, rng.integers(2, 4), replace=False)
            edges = np.quantile(X[:, of], rng.uniform(0.3, 0.5), axis=0)
            T[:, k] += rng.normal(scale=2.0) * (X[:, of] > edges).all(axis=1)
        T[:, k] += 0.3 * X[:, k]
    return X, noisy(T, 0.2, rng)


def menu() -> Table:
    """Twelve choices of two to four kinds, one column for each kind; some go well together."""
    rng = np.random.default_rng(17)
    kinds = rng.integers(2, 5, size=12)
    chosen = rng.integers(0, kinds, size=(800, 12))
    T = np.zeros((800, 3))
    for k in range(3):
        T[:, k] = rng.normal(size=4)[chosen[:, k]]
        for _ in range(5):
            i, j = rng.choice(12, 2, replace=False)
            T[:, k] += rng.normal(size=(4, 4))[chosen[:, i], chosen[:, j]]
    X = np.hstack([np.eye(many)[column] for many, column in zip(kinds, chosen.T, strict=True)])
    return X, noisy(T, 0.2, rng)


def ridge() -> Table:
    """One target: a wave along a direction of eight inputs, cut off by a threshold of a ninth."""
    rng = np.random.default_rng(18)
    X = rng.standard_normal((500, 9))
    along = X[:, :8] @ rng.standard_normal(8) / np.sqrt(8)
    T = np.sin(2 * along) + along * (X[:, 8] > 0)
    return X, noisy(T[:, None], 0.15, rng)


def fares() -> Table:
    """Prices of 240 routes on 320 days, from which six of them are predicted a week ahead.

    A few markets move all prices, by factors; some days are many times dearer than others.
    """
    rng = np.random.default_rng(22)
    markets = rng.standard_normal((320, 6))
    for day in range(1, 320):
        markets[day] = 0.9 * markets[day - 1] + 0.45 * markets[day]
    later = markets[7:] + 0.2 * rng.standard_normal((313, 6))
    loads = 0.5 * rng.gamma(1.0, 1.0, (6, 240)) * (rng.random((6, 240)) < 0.5)
    base = rng.uniform(50, 500, 240)
    own = np.exp(0.2 * rng.standard_normal((320, 240)))
    X = base * np.exp(markets @ loads) * own
    T = base[:6] * np.exp(later @ loads[:, :6] + 0.15 * rng.standard_normal((313, 6)))
    return np.round(X[:313]), np.round(T)


def branches() -> Table:
    """Staff of 300 branches in 200 jobs, from which those in ten others are predicted.

    Branches differ in size by a factor of hundreds, and in what they do.
    """
    rng = np.random.default_rng(23)
    size = np.exp(1.3 * rng.standard_normal((300, 1)))
    mix = rng.dirichlet(np.full(5, 0.7), 300) @ rng.gamma(0.5, 20.0, (5, 210))
    staff = rng.poisson(size * mix * np.exp(0.3 * rng.standard_normal((300, 210)))).astype(float)
    return staff[:, :200], staff[:, 200:]


def pond() -> Table:
    """Six properties of a pond four days ahead, from those of five days; 48 rows."""
    rng = np.random.default_rng(24)
    n = 60
    season = np.column_stack([f(2 * np.pi * np.arange(n) / 45) for f in (np.sin, np.cos)])
    state, noise = np.zeros((n, 4)), rng.standard_normal((n, 4))
    for day in range(1, n):
        state[day] = 0.85 * state[day - 1] + 0.4 * noise[day]
    drivers = np.hstack([season, state])
    S = np.exp(0.5 * drivers @ rng.standard_normal((6, 6))) + 0.1 * rng.standard_normal((n, 6))
    lagged = [S[k : n - 8 + k] for k in range(5)]
    return np.hstack(lagged)[:48], S[8:][:48]
