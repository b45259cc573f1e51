"""Streams with a fifth of their rows wrong, steady or with a drift, learnt in one pass.

    python benchmarks/online.py                           # OS-ELM, robust OS-ELM, scikit-learn
    python benchmarks/online.py --river --streams steady,sudden --kinds one-sided --seeds 1
    python benchmarks/online.py --check                   # exit status 1 if a promise is not kept

The streams have 4000 rows, 8 inputs, 3 targets (`make_multitarget`), in chunks of 50 rows:

    steady   one function
    sudden   another function from the middle on
    slow     the weight of the other function grows from 0 to 1 over the whole stream

Errors (aRRMSE) are those on 1000 rows of the function at the end, without noise, after one pass.
Wrong rows are replaced by `contaminate`: "rows" on either side of the targets, "one-sided" above
them. OS-ELM has the same layer (200 nodes), C and forgetting factor (1 for the steady stream, 0.999
for the others) on the clean and on the dirty stream as robust OS-ELM on the dirty one. With a
sudden change, OS-ELM on the clean stream is also begun at the change: it was told of it.

SGD with Huber's loss and Passive-Aggressive get the outputs of the same layer and scaled targets;
each has the best of four step sizes, chosen by the error itself. River's models
(`pip install river`) get the inputs, one model for each target. Recall and precision are those of
the rows after the first tenth.
"""

import argparse
import sys
import time

import numpy as np
from sklearn.linear_model import SGDRegressor

from gorelm import OSELMRegressor, RobustOSELMRegressor
from gorelm.datasets import contaminate, make_multitarget
from gorelm.metrics import arrmse

N, N_TEST, CHUNK = 4000, 1000, 50
NETWORK = {"C": 100.0, "n_hidden": 200, "random_state": 0}
FORGETTING = {"steady": 1.0, "sudden": 0.999, "slow": 0.999}


def stream(kind, name, seed):
    """Return inputs, clean and dirty targets, wrong rows, test inputs and their truth."""
    data = make_multitarget(N + N_TEST, outlier_ratio=0.0, noise=0.0, random_state=seed)
    at = np.arange(N + N_TEST)
    share = {"steady": 0.0 * at, "sudden": 1.0 * (at >= N // 2), "slow": np.minimum(at / N, 1.0)}
    share = share[name][:, None]
    X, truth = data.X, (1 - share) * data.T_clean + share * other_function(data.X, seed)
    rng = np.random.RandomState(seed)
    clean = truth + 0.05 * truth.std(axis=0) * rng.standard_normal(truth.shape)
    dirty, wrong = contaminate(clean[:N], 0.2, kind=kind, random_state=rng)
    return X[:N], clean[:N], dirty, wrong, X[N:], truth[N:]


def other_function(X, seed):
    """Return targets of another function of the same inputs."""
    rng = np.random.RandomState(seed + 1000)
    A = rng.standard_normal((X.shape[1], 3, 3)) / 2
    p = np.einsum("ni,ikl->nkl", X, A)
    return 2 * np.tanh(p[:, 0]) + p[:, 1] * p[:, 2] + np.sin(2 * p[:, 1])


def chunks(start=0):
    return (slice(i, i + CHUNK) for i in range(start, N, CHUNK))


def os_elm(model, X, T, start=0):
    """Return the model after one pass, the rows that it named, and the seconds."""
    named, began = [], time.perf_counter()
    for rows in chunks(start):
        named.append(model.partial_fit(X[rows], T[rows]).outlier_mask_)
    return model, np.concatenate(named), time.perf_counter() - began


class Separate:
    """One model with partial_fit for each target, on hidden outputs and scaled targets."""

    def __init__(self, make, layer, T):
        self._models = [make() for _ in range(T.shape[1])]
        self._layer = layer
        self._centre = np.median(T[:200], axis=0)
        self._scale = np.subtract(*np.quantile(T[:200], [0.75, 0.25], axis=0)) / 1.349

    def partial_fit(self, X, T):
        """Learn rows."""
        H = self._layer.hidden_outputs(X)
        for model, t in zip(self._models, ((T - self._centre) / self._scale).T, strict=True):
            model.partial_fit(H, t)

    def predict(self, X):
        """Predict the targets of rows."""
        H = self._layer.hidden_outputs(X)
        outputs = np.column_stack([model.predict(H) for model in self._models])
        return outputs * self._scale + self._centre


def linear_peers():
    sgd = {"penalty": "l2", "alpha": 1e-6, "random_state": 0}
    return {
        "SGD, Huber": [
            lambda eta=eta: SGDRegressor(
                loss="huber", epsilon=0.3, learning_rate="constant", eta0=eta, **sgd
            )
            for eta in (0.003, 0.01, 0.03, 0.1)
        ],
        "Passive-Aggressive": [
            lambda eta=eta: SGDRegressor(
                loss="epsilon_insensitive", epsilon=0.1, learning_rate="pa1", eta0=eta, **sgd
            )
            for eta in (1e-4, 1e-3, 1e-2, 0.1)
        ],
    }


def river_peers():
    from river import forest, linear_model, neighbors, optim, preprocessing, tree

    return {
        "river: linear, Huber": lambda: (
            preprocessing.StandardScaler()
            | linear_model.LinearRegression(loss=optim.losses.Huber())
        ),
        "river: k nearest": neighbors.KNNRegressor,
        "river: adaptive tree": lambda: tree.HoeffdingAdaptiveTreeRegressor(seed=0),
        "river: adaptive forest": lambda: forest.ARFRegressor(n_models=5, seed=0),
    }


def by_river(make, X, T, X_test):
    models = [make() for _ in range(T.shape[1])]
    for x, targets in zip(X, T, strict=True):
        row = dict(enumerate(x.tolist()))
        for model, t in zip(models, targets.tolist(), strict=True):
            model.learn_one(row, t)
    rows = [dict(enumerate(x.tolist())) for x in X_test]
    return np.array([[model.predict_one(row) for model in models] for row in rows])


def measure(kind, name, seed, with_river):
    """Return errors, and recall, precision and seconds of robust OS-ELM."""
    X, clean, dirty, wrong, X_test, truth = stream(kind, name, seed)
    settings = {**NETWORK, "forgetting": FORGETTING[name]}
    errors = {}
    model, _, plain_seconds = os_elm(OSELMRegressor(**settings), X, clean)
    errors["OS-ELM, clean stream"] = arrmse(truth, model.predict(X_test))
    if name == "sudden":
        told, _, _ = os_elm(OSELMRegressor(**settings), X, clean, N // 2)
        errors["the same, told of the change"] = arrmse(truth, told.predict(X_test))
    model, _, _ = os_elm(OSELMRegressor(**settings), X, dirty)
    errors["OS-ELM"] = arrmse(truth, model.predict(X_test))
    robust, named, seconds = os_elm(RobustOSELMRegressor(**settings), X, dirty)
    errors["robust OS-ELM"] = arrmse(truth, robust.predict(X_test))
    for peer, makers in linear_peers().items():
        found = []
        for make in makers:
            separate = Separate(make, model, dirty)
            for rows in chunks():
                separate.partial_fit(X[rows], dirty[rows])
            found.append(arrmse(truth, np.clip(separate.predict(X_test), -1e6, 1e6)))
        errors[peer] = min(found)
    for peer, make in (river_peers() if with_river else {}).items():
        errors[peer] = arrmse(truth, by_river(make, X, dirty, X_test))
    later = slice(N // 10, None)
    recall, precision = named[later][wrong[later]].mean(), wrong[later][named[later]].mean()
    return errors, (recall, precision, robust.n_changes_, seconds / N, plain_seconds / N)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default=",".join(FORGETTING))
    parser.add_argument("--kinds", default="rows,one-sided")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--river", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    kept = True
    for name in options.streams.split(","):
        for kind in options.kinds.split(","):
            runs = [measure(kind, name, seed, options.river) for seed in range(options.seeds)]
            errors = {peer: np.array([run[0][peer] for run in runs]) for peer in runs[0][0]}
            clean = errors["OS-ELM, clean stream"]
            print(f"\n{name}, {kind}: aRRMSE, mean of {options.seeds} streams")
            for peer, values in errors.items():
                ratios = values / clean
                print(
                    f"  {peer:30s} {values.mean():.3f}   {np.exp(np.log(ratios).mean()):5.2f} times"
                    f" the first ({ratios.min():.2f} to {ratios.max():.2f})"
                )
            recall, precision, changes, seconds, plain = np.array([run[1] for run in runs]).T
            print(
                f"  wrong rows named: recall {recall.mean():.3f} (at least {recall.min():.3f}), "
                f"precision {precision.mean():.3f} ({precision.min():.3f}); changes "
                f"{changes.astype(int).tolist()}; {1e3 * np.median(seconds):.2f} ms a row, OS-ELM "
                f"{1e3 * np.median(plain):.2f}"
            )
            kept &= np.exp(np.log(errors["robust OS-ELM"] / clean).mean()) <= 1.1
            kept &= min(recall.mean(), precision.mean()) >= 0.9
    return 1 if options.check and not kept else 0


if __name__ == "__main__":
    sys.exit(main())
