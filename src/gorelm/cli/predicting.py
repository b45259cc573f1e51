"""A saved model on a new table: columns matched by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from gorelm.cli.reading import saying_warnings
from gorelm.cli.summary import wrapped
from gorelm.datasets.fetch import suggest
from gorelm.datasets.table import read_table
from gorelm.estimators._encoding import in_words
from gorelm.estimators.table import TableRegressor

__all__ = ["predicted"]


def predicted(model: Any, path: Path, keep: tuple[str, ...]) -> Any:
    """Return the columns to keep and the predicted targets as a frame."""
    words = list(model.words()) if isinstance(model, TableRegressor) else []
    frame = saying_warnings(lambda: read_table(path, words=words))
    if not len(frame):
        raise ValueError(f"{path} has names of columns, but no rows.")
    X = _inputs(model, frame, keep, path)
    y = saying_warnings(lambda: np.asarray(model.predict(X)))
    y = y.reshape(len(frame), -1)
    names = getattr(model, "target_names_", None) or [f"y{j}" for j in range(y.shape[1])]
    for name in keep:
        if name not in frame.columns:
            raise ValueError(f"{path} has no column {name!r}; {suggest(name, frame.columns)}")
        if name in names:
            raise ValueError(f"{name!r} is predicted; it cannot be kept from {path} as well.")
    return frame[list(keep)].assign(**dict(zip(names, y.T, strict=True)))


def _inputs(model: Any, frame: Any, keep: tuple[str, ...], path: Path) -> Any:
    """Return the model's columns in its order; says which others there are."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        if frame.shape[1] != model.n_features_in_:
            raise ValueError(
                f"{path} has {frame.shape[1]} columns; the model was fitted to "
                f"{model.n_features_in_} without names."
            )
        return frame.to_numpy()
    names = [str(name) for name in names]
    kinds = getattr(model, "kinds_", ["number"] * len(names))
    needed = [name for name, kind in zip(names, kinds, strict=True) if kind != "ignored"]
    if lacking := [name for name in needed if name not in frame.columns]:
        hint = f"; {suggest(lacking[0], frame.columns)}" if len(lacking) == 1 else "."
        raise ValueError(f"{path} lacks {in_words(lacking)}, which the model needs{hint}")
    targets = getattr(model, "target_names_", [])
    extra = [c for c in frame.columns if c not in {*names, *targets, *keep}]
    if extra:
        click.echo("\n".join(wrapped(f"note: {path} has more columns than the model knows; "
                                     f"ignored: {in_words(extra)}.")), err=True)  # fmt: skip
    return frame.reindex(columns=names)
