"""What a saved model is, in lines of text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator

from gorelm.cli.summary import columns, number, of_networks, short, wrapped
from gorelm.estimators.table import TableRegressor

_MOST_INPUTS = 40
_MOST_TARGETS = 12


def described(model: BaseEstimator, path: Path) -> list[str]:
    """Return what there is to know about a model."""
    regressor = getattr(model, "regressor_", model)
    kind = type(model).__name__
    if regressor is not model:
        kind += f" of {type(regressor).__name__}"
    lines = [f"{path.name}: {kind}, {path.stat().st_size / 1e3:,.0f} kB", *_versions(path), ""]
    lines += [*_targets(model), "", *_inputs(model), ""]
    if hasattr(regressor, "members_"):
        lines += of_networks(regressor)
    else:
        lines += _settings(regressor)
    if hasattr(regressor, "outlier_mask_"):
        mask = regressor.outlier_mask_
        flagged = f"Training rows: {len(mask):,}, of which {int(np.sum(mask)):,} were flagged"
        if hasattr(regressor, "cell_mask_"):  # not in files of earlier versions
            cells = int(np.sum(regressor.cell_mask_[~mask]))
            flagged += f", and {cells:,} cell{'s' * (cells != 1)} of the others"
        lines += ["", f"{flagged}."]
    return lines


def _versions(path: Path) -> list[str]:
    """Return what the file says it was written with: its second line."""
    with path.open("rb") as file:
        file.readline()
        header = json.loads(file.readline())
    versions = [f"{name} {version}" for name, version in header.items() if name != "estimator"]
    return wrapped(f"Written with {', '.join(versions)}.")


def _targets(model: BaseEstimator) -> list[str]:
    names = getattr(model, "target_names_", None)
    if names is None:
        return ["Targets: without names"]
    shown = ", ".join(short(name) for name in names[:_MOST_TARGETS])
    more = f" and {len(names) - _MOST_TARGETS} more" if len(names) > _MOST_TARGETS else ""
    return wrapped(f"Targets ({len(names)}): {shown}{more}")


def _inputs(model: BaseEstimator) -> list[str]:
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    if not isinstance(model, TableRegressor):
        shown = ", ".join(short(name) for name in names[:_MOST_INPUTS]) or "without names"
        return wrapped(f"Inputs ({model.n_features_in_}): {shown}")
    lines = [f"Inputs ({model.n_features_in_}):"]
    words = model.words()
    medians = _medians(model)
    rows = [["column", "kind", ""]]
    for j, kind in enumerate(model.kinds_):
        name = names[j] if names else f"column {j}"
        about = ""
        if kind == "words":
            about = _few(words[name])
        elif kind == "number":
            about = f"{number(medians[j])} if missing"
        rows.append([short(name), "categories" if kind == "words" else kind, about])
    lines += columns(rows[: _MOST_INPUTS + 1], "lll")
    if len(rows) > _MOST_INPUTS + 1:
        lines.append(f"  ... and {len(rows) - _MOST_INPUTS - 1} more columns.")
    return lines


def _few(words: list[str], width: int = 40) -> str:
    """Return as many words as fit, and how many more there are."""
    shown = [short(words[0])]
    for word in words[1:]:
        if len(", ".join([*shown, short(word)])) > width:
            break
        shown.append(short(word))
    more = len(words) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _medians(model: TableRegressor) -> dict[int, float]:
    medians: dict[int, float] = {}
    for name, imputer, places in model.encoder_.transformers_:
        if name.startswith("numbers"):
            medians |= dict(zip(places, imputer.statistics_.tolist(), strict=True))
    return medians


def _settings(regressor: BaseEstimator) -> list[str]:
    usual = type(regressor)().get_params()
    changed = {k: v for k, v in regressor.get_params().items() if v != usual.get(k)}
    lines = wrapped("Settings: " + ", ".join(f"{k}={v!r}" for k, v in changed.items()))
    if hasattr(regressor, "dual_gap_"):
        lines.append(f"Certificate: a relative duality gap of {regressor.dual_gap_:.1e}.")
    return lines
