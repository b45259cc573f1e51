"""A saved model on a new table: columns matched by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import BaseEstimator

from gorelm._typing import Array
from gorelm.cli.app import say
from gorelm.cli.elsewhere import predict_on
from gorelm.cli.reading import about_ids, has_ids, saying_warnings, with_ids
from gorelm.cli.summary import wrapped
from gorelm.datasets.columns import in_words
from gorelm.datasets.fetch import suggest
from gorelm.datasets.table import read_table, split_names
from gorelm.estimators.table import TableRegressor

if TYPE_CHECKING:
    import pandas


def predicted(
    model: BaseEstimator,
    path: Path,
    keep: str,
    id_name: str | None = None,
    device: str | None = None,
) -> pandas.DataFrame:
    """Return the columns to keep and the predicted targets as a frame."""
    words = list(model.words()) if isinstance(model, TableRegressor) else []
    frame = with_ids(saying_warnings(lambda: read_table(path, words=words)), id_name, path)
    if not len(frame):
        raise ValueError(f"{path} has names of columns, but no rows.")
    kept = split_names(keep, frame.columns) if keep else []
    if has_ids(frame):
        say(*wrapped(f"note: {about_ids(path, id_name)}"), err=True)
    X = _inputs(model, frame, kept, path)
    y = saying_warnings(lambda: predict_on(device, model, X))
    y = y.reshape(len(frame), -1)
    names = getattr(model, "target_names_", None) or [f"y{j}" for j in range(y.shape[1])]
    for name in kept:
        if name not in frame.columns:
            raise ValueError(f"{path} has no column {name!r}; {suggest(name, frame.columns)}")
        if name in names:
            raise ValueError(f"{name!r} is predicted; it cannot be kept from {path} as well.")
    result = frame[list(dict.fromkeys(kept))].copy()
    for name, values in zip(names, y.T, strict=True):
        result[name] = values
    return result


def _inputs(
    model: BaseEstimator, frame: pandas.DataFrame, kept: list[str], path: Path
) -> pandas.DataFrame | Array:
    """Return the model's columns in its order; says which others there are."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        if frame.shape[1] != model.n_features_in_:
            raise ValueError(
                f"{path} has {frame.shape[1]} columns; the model was fitted to "
                f"{model.n_features_in_} without names."
            )
        return np.asarray(frame.to_numpy())
    names = [str(name) for name in names]
    kinds = getattr(model, "kinds_", ["number"] * len(names))
    needed = [name for name, kind in zip(names, kinds, strict=True) if kind != "ignored"]
    if lacking := [name for name in needed if name not in frame.columns]:
        hint = f"; {suggest(lacking[0], frame.columns)}" if len(lacking) == 1 else "."
        raise ValueError(f"{path} lacks {in_words(lacking)}, which the model needs{hint}")
    targets = getattr(model, "target_names_", [])
    extra = [c for c in frame.columns if c not in {*names, *targets, *kept}]
    if extra:
        note = f"{path} has more columns than the model knows; ignored: {in_words(extra)}."
        say(*wrapped(f"note: {note}"), err=True)
    return frame.reindex(columns=names)
