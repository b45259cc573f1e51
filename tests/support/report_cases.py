"""Records to report, and pages read back."""

import csv
import itertools
import json
from html.parser import HTMLParser

import numpy as np

from gorelm.experiments.published import published_results

KEYS = [
    "reason",
    "arrmse_train",
    "arrmse_test",
    "seconds_select",
    "seconds_fit",
    "seconds_predict",
    "n_iter",
    "converged",
    "dual_gap",
    "nodes",
    "n_rows",
    "n_features",
    "n_targets",
    "params",
    "seed",
    "outlier_recall",
    "outlier_precision",
    "versions",
    "started",
]


def make_run(dataset, method, arrmse_test, *, ratio=0.2, repeat=0, **more):
    """One record with every key, None where nothing is said."""
    failed = arrmse_test == "failed"
    return {
        **dict.fromkeys(KEYS),
        "dataset": dataset,
        "ratio": ratio,
        "method": method,
        "repeat": repeat,
        "config": "paper",
        "status": "failed" if failed else "done",
        "arrmse_test": None if failed else arrmse_test,
        **more,
    }


def published_runs(subset="test"):
    """The paper's figures as if each were a run."""
    return [
        make_run(p["dataset"], p["method"], p["mean"], ratio=p["ratio"])
        for p in published_results()
        if p["metric"] == "aRRMSE" and p["subset"] == subset
    ]


def fake_runs(n_datasets=3, methods=("R-ELM", "GOR-ELM", "Mine"), repeats=3, ratios=(0.0, 0.2)):
    rng = np.random.default_rng(0)
    names = ["andro", "edm", "own <set> & $x_1$", "slump", "wq"][:n_datasets]
    return [
        make_run(
            dataset,
            method,
            float(rng.uniform(0.3, 1.0)),
            ratio=ratio,
            repeat=repeat,
            arrmse_train=0.1,
            seconds_fit=float(rng.exponential()),
            seconds_select=1.5,
            seconds_predict=0.001,
            n_iter=50,
            converged=1,
            dual_gap=1e-4,
            nodes=400 + repeat,
            n_rows=100,
            n_features=5,
            n_targets=2,
            seed=repeat,
            params=json.dumps({"lam": 0.25 if repeat else 0.5}),
            versions=json.dumps({"numpy": "2.0"}),
            started="2026-01-01T00:00:00",
        )
        for dataset, ratio, method, repeat in itertools.product(
            names, ratios, methods, range(repeats)
        )
    ]


class Page(HTMLParser):
    """What a page refers to, names, says and runs."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.references, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
                self.references.append((tag, value))
            assert not name.startswith("on"), name

    def handle_data(self, data):
        self.words.append(data)


def read_page(path):
    return Page(path.read_text("utf-8"))


def read_csv(folder, name):
    with (folder / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
