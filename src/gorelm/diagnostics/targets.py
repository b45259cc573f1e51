"""Targets as they come, arrays or frames, as columns with names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gorelm._typing import Array

__all__ = ["as_table", "names_of_targets"]


def as_table(y: Any) -> Array:
    """Return targets of shape (n_samples,) or (n_samples, n_targets) as columns of floats."""
    table = np.asarray(y, dtype=float)
    if table.ndim not in (1, 2):
        raise ValueError(f"targets have {table.ndim} dimensions; 1 or 2 were expected")
    return table.reshape(len(table), -1)


def names_of_targets(y: Any, names: Sequence[Any] | None = None) -> list[str]:
    """Return given names, the columns of a frame, or numbers."""
    count = as_table(y).shape[1]
    if names is not None:
        if len(names) != count:
            raise ValueError(f"{len(names)} target_names for {count} targets")
        return [str(name) for name in names]
    columns = getattr(y, "columns", None)
    if columns is None and getattr(y, "name", None) is not None:
        columns = [y.name]
    if columns is not None:
        return [str(name) for name in columns]
    return [f"target {k + 1}" for k in range(count)] if count > 1 else ["target"]
