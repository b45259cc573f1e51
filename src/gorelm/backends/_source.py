"""From dask collections to partitions of a table: aligned, and made again whenever one is lost."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["DaskSource"]


class DaskSource:
    """Inputs, targets and weights of a fit, partition by partition.

    Parameters
    ----------
    X : dask array (N, d) or dask dataframe
        Inputs; its partitions are those of the fit.
    y : dask array, dataframe or series; or NumPy array, pandas frame or series
        Targets.
    sample_weight : like `y`, optional
        Weights of the rows.

    Attributes
    ----------
    shape : tuple
        (None, d): rows are counted later.
    feature_names : list of str or None
        Columns of a dataframe.
    dtype : dtype
        float32 if that is what all inputs are in, and float64 otherwise.
    one_target : bool
        Whether y has one dimension.
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        if np.ndim(X) != 2:
            raise ValueError(f"X must have two dimensions, got {np.ndim(X)}")
        self.shape = (None, len(X.columns) if _is_frame(X) else int(X.shape[1]))
        self.feature_names = _names(X)
        self.dtype = _precision(X)
        self.one_target = np.ndim(y) == 1
        X = X if _is_frame(X) else X.rechunk({1: -1})
        X_parts = _delayed(X)
        y_parts = _aligned(y, X, len(X_parts), "y")
        w_parts: list[Any] = [None] * len(X_parts)
        if sample_weight is not None:
            w_parts = _aligned(sample_weight, X, len(X_parts), "sample_weight")
        self._parts = list(zip(X_parts, y_parts, w_parts, strict=True))

    def __len__(self) -> int:
        return len(self._parts)

    def futures(self, client: Any, numbers: list[int]) -> list[tuple[Any, Any, Any]]:
        """Return the inputs, targets and weights (or None) of some partitions as futures."""
        wanted = [part for n in numbers for part in self._parts[n] if part is not None]
        ready = iter(client.compute(wanted))
        return [
            tuple(None if part is None else next(ready) for part in self._parts[n])  # type: ignore[misc]
            for n in numbers
        ]


def _is_frame(collection: Any) -> bool:
    return hasattr(collection, "map_partitions") and hasattr(collection, "columns")


def _names(X: Any) -> list[str] | None:
    """Return the names of a frame's columns, if all are strings, as scikit-learn has it."""
    if not _is_frame(X) or not all(isinstance(name, str) for name in X.columns):
        return None
    return list(X.columns)


def _precision(X: Any) -> np.dtype[Any]:
    dtypes = dict(X.dtypes) if _is_frame(X) else {"X": X.dtype}
    for name, dtype in dtypes.items():
        if not isinstance(dtype, np.dtype) or dtype.kind not in "fiub":
            raise TypeError(f"inputs must be numbers, but {name!r} is of type {dtype}; encode it")
    return np.dtype("f4" if all(dtype == np.float32 for dtype in dtypes.values()) else "f8")


def _delayed(collection: Any) -> list[Any]:
    parts = collection.to_delayed()
    return list(parts.ravel()) if isinstance(parts, np.ndarray) else list(parts)


def _aligned(values: Any, X: Any, n_partitions: int, name: str) -> list[Any]:
    """Return the parts of `values` that belong to the partitions of X."""
    import dask
    import dask.array as da

    if not dask.is_dask_collection(values):  # in memory here
        values = np.asarray(values)
        lengths = _lengths(X)
        if sum(lengths) != len(values):
            raise ValueError(f"X has {sum(lengths)} rows, {name} has {len(values)}")
        values = da.from_array(values, chunks=(tuple(lengths), *values.shape[1:]))
    elif hasattr(values, "chunks"):
        if values.ndim > 1:
            values = values.rechunk({1: -1})
        known = not (_is_frame(X) or np.isnan(X.shape[0]) or np.isnan(values.shape[0]))
        if known and values.shape[0] != X.shape[0]:
            raise ValueError(f"X has {X.shape[0]} rows, {name} has {values.shape[0]}")
        if known:
            values = values.rechunk({0: X.chunks[0]})
    parts = _delayed(values)
    if len(parts) != n_partitions:
        raise ValueError(
            f"X has {n_partitions} partitions, {name} has {len(parts)}; partition them alike"
        )
    return parts


def _lengths(X: Any) -> list[int]:
    """Return the numbers of rows of the partitions."""
    if _is_frame(X):
        return [int(length) for length in X.map_partitions(len).compute()]
    if np.isnan(X.shape[0]):
        X = X.copy().compute_chunk_sizes()
    return [int(length) for length in X.chunks[0]]
