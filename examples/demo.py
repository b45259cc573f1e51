"""Train on data with 30 % corrupted rows, compare methods, flag the corrupted rows.

    python examples/demo.py [--out out/demo.png] [--kind rows] [--ratio 0.3] [--seed 0]

Every method is fitted to the same contaminated training rows and chooses its parameter on them, by
five-fold cross-validation with an outlier-resistant score (the mean row norm of the validation
error). Errors are measured on clean test rows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import HuberRegressor, Ridge
from sklearn.metrics import make_scorer, precision_score, recall_score
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from threadpoolctl import threadpool_limits

from gorelm import GORELMRegressor, GRELMRegressor, ORELMRegressor, RELMRegressor
from gorelm.datasets import CONTAMINATIONS, make_multitarget
from gorelm.metrics import arrmse

N_TRAIN, N_TEST = 800, 400
LAMS = 4.0 ** np.arange(-4, 3)
ELM = {"n_hidden": 300, "random_state": 0}

robust_score = make_scorer(
    lambda t, p: float(np.linalg.norm(t - p, axis=1).mean()), greater_is_better=False
)

METHODS = {
    "Ridge (linear)": (Ridge(), {"alpha": LAMS}),
    "Huber (linear)": (
        MultiOutputRegressor(HuberRegressor(max_iter=1000)),
        {"estimator__alpha": LAMS},
    ),
    "R-ELM": (RELMRegressor(**ELM), {"C": 1 / LAMS}),
    "GR-ELM": (GRELMRegressor(**ELM), {"C": 1 / LAMS}),
    "OR-ELM": (ORELMRegressor(**ELM), {"C": 1 / LAMS}),
    "GOR-ELM": (GORELMRegressor(**ELM), {"lam": LAMS}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/demo.png"), help="picture to write")
    parser.add_argument("--kind", choices=sorted(CONTAMINATIONS), default="rows")
    parser.add_argument("--ratio", type=float, default=0.3, help="share of corrupted training rows")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    start = time.perf_counter()
    train = make_multitarget(
        N_TRAIN, outlier_ratio=args.ratio, outlier_kind=args.kind, random_state=args.seed
    )
    # The same function on other rows, without noise and outliers.
    everything = make_multitarget(N_TRAIN + N_TEST, outlier_ratio=0.0, random_state=args.seed)
    X_test, T_test = everything.X[N_TRAIN:], everything.T_clean[N_TRAIN:]

    print(
        f"{N_TRAIN} training rows, {train.X.shape[1]} inputs, {train.T.shape[1]} targets; "
        f"{train.planted.sum()} rows corrupted ({args.ratio:.0%}, kind '{args.kind}').\n"
        f"Error on {N_TEST} clean test rows (aRRMSE: 0 is perfect, 1 is predicting the mean):\n"
    )
    print(f"  {'method':<16}{'aRRMSE':>8}")
    fitted, errors = {}, {}
    for name, (model, grid) in METHODS.items():
        search = GridSearchCV(model, grid, scoring=robust_score, cv=5).fit(train.X, train.T)
        fitted[name] = search.best_estimator_
        errors[name] = arrmse(T_test, search.predict(X_test))
        print(f"  {name:<16}{errors[name]:>8.3f}", flush=True)

    robust = fitted["GOR-ELM"]
    found = robust.outlier_mask_
    precision = precision_score(train.planted, found, zero_division=0.0)
    recall = recall_score(train.planted, found)
    print(
        f"\nGOR-ELM (lam = {robust.lam:g}) is proven to be within {robust.dual_gap_:.1e} of its "
        f"optimum.\nIt flags {found.sum()} training rows; "
        f"{(found & train.planted).sum()} of the {train.planted.sum()} corrupted rows are among "
        f"them (precision {precision:.2f}, recall {recall:.2f})."
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    draw(args.out, errors, fitted, robust, train, X_test, T_test)
    print(f"\nPicture: {args.out}   ({time.perf_counter() - start:.0f} s in all)")


def draw(out, errors, fitted, robust, train, X_test, T_test) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grey, blue, orange, green = "#8c8c8c", "#0072b2", "#d55e00", "#009e73"  # colour-blind safe
    plt.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 110}
    )
    fig, (bars, truth, rows) = plt.subplots(1, 3, figsize=(15, 4.6), layout="constrained")

    names = list(errors)
    colours = [green if name == "GOR-ELM" else grey for name in names]
    drawn = bars.barh(names, list(errors.values()), color=colours)
    bars.bar_label(drawn, fmt="%.2f", padding=3)
    bars.invert_yaxis()
    bars.set_xlabel("aRRMSE on clean test rows (lower is better)")
    bars.set_title(f"Trained with {train.planted.mean():.0%} corrupted rows")

    for name, colour, marker in (("R-ELM", orange, "x"), ("GOR-ELM", green, "o")):
        predicted = fitted[name].predict(X_test)[:, 0]
        truth.scatter(
            T_test[:, 0],
            predicted,
            s=18,
            marker=marker,
            linewidths=1,
            facecolors="none" if marker == "o" else colour,
            edgecolors=colour if marker == "o" else None,
            label=f"{name} ({errors[name]:.2f})",
            alpha=0.8,
        )
    ends = [T_test[:, 0].min(), T_test[:, 0].max()]
    truth.plot(ends, ends, color="black", linewidth=1)
    truth.set_xlabel(f"true value of {train.target_names[0]}")
    truth.set_ylabel("prediction")
    truth.set_title("What the corrupted rows do to a model")
    truth.legend(frameon=False)

    scores, planted = robust.outlier_scores_, train.planted
    index = np.arange(len(scores))
    rows.scatter(index[~planted], scores[~planted], s=12, color=blue, label="clean row")
    rows.scatter(
        index[planted], scores[planted], s=16, color=orange, marker="^", label="corrupted row"
    )
    rows.axhline(robust.outlier_threshold_, color="black", linewidth=1, linestyle="--")
    rows.annotate(
        "rows above are flagged",
        (0.99, 1.15 * robust.outlier_threshold_),
        xycoords=("axes fraction", "data"),
        ha="right",
    )
    rows.set_xlabel("training row")
    rows.set_ylabel("outlier score (residual norm)")
    rows.set_yscale("log")
    rows.set_title("GOR-ELM names the corrupted rows")
    rows.set_ylim(max(scores.min(), 1e-3), 4 * scores.max())
    rows.legend(frameon=False, loc="upper left", ncols=2)
    fig.savefig(out)


if __name__ == "__main__":
    with threadpool_limits(1):  # the matrices are too small for a second BLAS thread
        main()
