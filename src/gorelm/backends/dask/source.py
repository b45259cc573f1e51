"""From dask collections to partitions of a table: aligned, and made again whenever one is lost."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

__all__ = ["DaskSource", "Partitioned"]

_PAUSED = 0.5  # seconds after which sending rows to a paused worker raises TimeoutError


class Partitioned:
    """Inputs in this process's memory, to be fitted by the workers of a cluster.

    Parameters
    ----------
    X : array or pandas frame (N, d)
        Inputs.
    n_partitions : int
        Number of partitions.
    """

    def __init__(self, X: Any, n_partitions: int) -> None:
        self.values = X if hasattr(X, "iloc") else np.asarray(X)
        self.shape, self.ndim = self.values.shape, self.values.ndim
        count = min(n_partitions, max(self.shape[0], 1))
        self.ends = np.linspace(0, self.shape[0], count + 1).astype(int).tolist()

    @property
    def npartitions(self) -> int:
        """Number of partitions."""
        return len(self.ends) - 1

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, dtype=dtype, copy=copy)


class DaskSource:
    """Inputs, targets and weights of a fit, partition by partition.

    Parameters
    ----------
    X : dask array (N, d), dask dataframe or `Partitioned`
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
        values = X.values if isinstance(X, Partitioned) else X
        self.feature_names, self.dtype = _names(values), _precision(values)
        self.one_target = np.ndim(y) == 1
        if hasattr(X, "chunks"):
            X = X.rechunk({1: -1})
        X_parts = _sliced(X.values, X.ends) if isinstance(X, Partitioned) else _delayed(X)
        y_parts = _aligned(y, X, len(X_parts), "y")
        w_parts: list[Any] = [None] * len(X_parts)
        if sample_weight is not None:
            w_parts = _aligned(sample_weight, X, len(X_parts), "sample_weight")
        self._parts = list(zip(X_parts, y_parts, w_parts, strict=True))

    def __len__(self) -> int:
        return len(self._parts)

    def futures(
        self, client: Any, places: dict[int, str], *, direct: bool
    ) -> dict[int, tuple[Any, ...]]:
        """Return the inputs, targets and weights (or None) of some partitions as futures.

        Parameters
        ----------
        client : distributed.Client
            Connection to the cluster.
        places : dict
            Of the partitions wanted, the addresses of the workers that want them.
        direct : bool
            Whether workers can be reached without the scheduler.
        """
        from dask import is_dask_collection

        lazy = [p for n in places for p in self._parts[n] if is_dask_collection(p)]
        # Only these workers are asked: another one may hang.
        workers = sorted(set(places.values()))
        ready = iter(client.compute(lazy, workers=workers, allow_other_workers=False))

        def future(part: Any, place: str) -> Any:
            if part is None:
                return None
            if is_dask_collection(part):
                return next(ready)
            return client.scatter(part, workers=[place], hash=False, direct=direct, timeout=_PAUSED)

        return {n: tuple(future(p, place) for p in self._parts[n]) for n, place in places.items()}


def _sliced(values: Any, ends: list[int]) -> list[Any]:
    rows = values.iloc if hasattr(values, "iloc") else values
    return [rows[start:stop] for start, stop in pairwise(ends)]


def _is_frame(collection: Any) -> bool:
    return hasattr(collection, "columns")


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
    from dask import is_dask_collection

    if not is_dask_collection(values):
        values = values if hasattr(values, "iloc") else np.asarray(values)
        ends = X.ends if isinstance(X, Partitioned) else [0, *accumulate(_lengths(X))]
        if ends[-1] != len(values):
            raise ValueError(f"X has {ends[-1]} rows, {name} has {len(values)}")
        return _sliced(values, ends)
    if isinstance(X, Partitioned):
        raise TypeError(f"{name} is a dask collection, but X is in memory; use the same for both")
    if hasattr(values, "chunks"):
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
