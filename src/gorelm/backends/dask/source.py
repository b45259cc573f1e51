"""Dask collections or arrays in memory as aligned partitions, sent as often as one is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gorelm._typing import Array

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd
    from dask.delayed import Delayed
    from distributed import Client, Future

    Collection: TypeAlias = da.Array | dd.DataFrame | dd.Series
    InMemory: TypeAlias = npt.NDArray[np.generic] | pd.DataFrame | pd.Series
    Part: TypeAlias = Delayed | InMemory | None

_PAUSED = 0.5  # seconds after which sending rows to a paused worker raises TimeoutError


class Partitioned:
    """Inputs in this process's memory, to be fitted by the workers of a cluster."""

    def __init__(self, X: InMemory, n_partitions: int) -> None:
        self.values: InMemory = X if hasattr(X, "iloc") else np.asarray(X)
        self.shape, self.ndim = self.values.shape, self.values.ndim
        count = min(n_partitions, max(self.shape[0], 1))
        self.ends = np.linspace(0, self.shape[0], count + 1).astype(int).tolist()

    @property
    def npartitions(self) -> int:
        """Number of partitions."""
        return len(self.ends) - 1

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[np.generic]:
        return np.array(self.values, dtype=dtype, copy=copy)


class DaskSource:
    """Inputs, targets and weights of a fit, partition by partition; the partitions are those of X.

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

    def __init__(
        self,
        X: da.Array | dd.DataFrame | Partitioned,
        y: Collection | InMemory,
        sample_weight: Collection | InMemory | None = None,
    ) -> None:
        if np.ndim(X) != 2:
            raise ValueError(f"X must have two dimensions, got {np.ndim(X)}")
        self.shape = (None, len(X.columns) if hasattr(X, "columns") else int(X.shape[1]))
        self.one_target = np.ndim(y) == 1
        if isinstance(X, Partitioned):
            self.feature_names, self.dtype = names_of(X.values), _precision(X.values)
            X_parts = delayed_parts(X)
        else:
            self.feature_names, self.dtype = names_of(X), _precision(X)
            X_parts = delayed_parts(X)
        y_parts = _aligned(y, X, len(X_parts), "y")
        w_parts: list[Part] = [None] * len(X_parts)
        if sample_weight is not None:
            w_parts = _aligned(sample_weight, X, len(X_parts), "sample_weight")
        self._parts = list(zip(X_parts, y_parts, w_parts, strict=True))

    def __len__(self) -> int:
        return len(self._parts)

    def futures(
        self, client: Client, places: dict[int, str], *, direct: bool
    ) -> dict[int, tuple[Future | None, ...]]:
        """Return the inputs, targets and weights (or None) of some partitions as futures.

        `places` are the addresses of their workers, which can be reached without the scheduler if
        `direct`.
        """
        from dask import is_dask_collection

        lazy = [p for n in places for p in self._parts[n] if is_dask_collection(p)]
        # Not on other workers: one may hang.
        workers = sorted(set(places.values()))
        ready = iter(client.compute(lazy, workers=workers, allow_other_workers=False))

        def future(part: Part, place: str) -> Future | None:
            if part is None:
                return None
            if is_dask_collection(part):
                return next(ready)
            return client.scatter(part, workers=[place], hash=False, direct=direct, timeout=_PAUSED)

        return {n: tuple(future(p, place) for p in self._parts[n]) for n, place in places.items()}


def array_of_parts(
    read: Callable[[Any, list[str]], Array],
    columns: list[str],
    parts: Sequence[object],
    lengths: Sequence[int],
    n_columns: int,
) -> da.Array:
    """Return a dask array of which workers read a part each, by ``read(part, columns)``."""
    import dask
    import dask.array as da

    reading, names = dask.delayed(read, pure=False), dask.delayed(columns, pure=False)
    blocks = [
        da.from_delayed(reading(part, names), shape=(n_rows, n_columns), dtype=np.float64)
        for part, n_rows in zip(parts, lengths, strict=True)
    ]
    return da.concatenate(blocks)


def _sliced(values: InMemory, ends: list[int]) -> list[Part]:
    rows = values.iloc if hasattr(values, "iloc") else values
    return [rows[start:stop] for start, stop in pairwise(ends)]


def names_of(X: Collection | InMemory) -> list[str] | None:
    """Return the names of a frame's columns if all are strings, as scikit-learn does."""
    if not hasattr(X, "columns") or not all(isinstance(name, str) for name in X.columns):
        return None
    return list(X.columns)


def _precision(X: Collection | InMemory) -> np.dtype[np.floating]:
    dtypes = dict(X.dtypes) if hasattr(X, "dtypes") else {"X": X.dtype}
    for name, dtype in dtypes.items():
        if not isinstance(dtype, np.dtype) or dtype.kind not in "fiub":
            raise TypeError(f"inputs must be numbers, but {name!r} is of type {dtype}; encode it")
    return np.dtype("f4" if all(dtype == np.float32 for dtype in dtypes.values()) else "f8")


def delayed_parts(X: da.Array | dd.DataFrame | Partitioned) -> list[Part]:
    """Return the partitions of inputs, in their order."""
    if isinstance(X, Partitioned):
        return _sliced(X.values, X.ends)
    return _delayed(X.rechunk({1: -1}) if hasattr(X, "chunks") else X)


def _delayed(collection: Collection) -> list[Part]:
    parts = collection.to_delayed()
    return list(parts.ravel()) if isinstance(parts, np.ndarray) else list(parts)


def _aligned(
    values: Collection | InMemory, X: Collection | Partitioned, n_partitions: int, name: str
) -> list[Part]:
    """Return the parts of `values` that belong to the partitions of X."""
    if not hasattr(values, "__dask_graph__"):
        values = values if hasattr(values, "iloc") else np.asarray(values)
        ends = X.ends if isinstance(X, Partitioned) else [0, *accumulate(_lengths(X))]
        if ends[-1] != len(values):
            raise ValueError(f"X has {ends[-1]} rows, {name} has {len(values)}")
        return _sliced(values, ends)
    if isinstance(X, Partitioned):
        raise TypeError(f"{name} is a dask collection, but X is in memory; use the same for both")
    collection: Collection = values
    if hasattr(collection, "chunks"):
        collection = collection.rechunk({1: -1}) if collection.ndim > 1 else collection
        n_rows, n_values = X.shape[0], collection.shape[0]
        if hasattr(X, "chunks") and not (np.isnan(n_rows) or np.isnan(n_values)):
            if n_rows != n_values:
                raise ValueError(f"X has {n_rows} rows, {name} has {n_values}")
            collection = collection.rechunk({0: X.chunks[0]})
    parts = _delayed(collection)
    if len(parts) != n_partitions:
        raise ValueError(
            f"X has {n_partitions} partitions, {name} has {len(parts)}; partition them alike"
        )
    return parts


def _lengths(X: Collection) -> list[int]:
    """Return the numbers of rows of the partitions."""
    if hasattr(X, "columns"):
        return [int(length) for length in X.map_partitions(len).compute()]
    if np.isnan(X.shape[0]):
        X = X.copy().compute_chunk_sizes()
    return [int(length) for length in X.chunks[0]]
