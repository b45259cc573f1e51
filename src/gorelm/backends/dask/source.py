"""Dask collections or arrays in memory as aligned partitions, sent as often as one is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gorelm._typing import Array, Indices
from gorelm.stream import RowBlocks, require_increasing

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    import pandas as pd
    from dask.delayed import Delayed
    from distributed import Client, Future

    Collection: TypeAlias = da.Array | dd.DataFrame | dd.Series
    InMemory: TypeAlias = npt.NDArray[np.generic] | pd.DataFrame | pd.Series
    Part: TypeAlias = Delayed | InMemory | None

# Errors of distributed's, which need not be installed.
_LOST = ("ClosedClientError", "CommClosedError")
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

    def take(self, rows: Indices) -> Partitioned:
        """Return some rows, in as many partitions."""
        values = self.values.iloc if hasattr(self.values, "iloc") else self.values
        return Partitioned(values[rows], self.npartitions)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[np.generic]:
        return np.array(self.values, dtype=dtype, copy=copy)


class SomeRows:
    """Some rows of a dask dataframe, in its partitions: what this package uses of a dataframe.

    (``dask.dataframe.from_delayed`` would make one that cannot be taken apart again: with dask
    2026.8 its keys form a cycle.)
    """

    ndim = 2

    def __init__(self, X: Any, rows: list[Indices]) -> None:
        self.columns, self.dtypes, self.whole, self._rows = X.columns, X.dtypes, X, rows
        self._parts = delayed_parts(X)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return sum(map(len, self._rows)), len(self.columns)

    def to_delayed(self) -> list[Delayed]:
        """Return the partitions."""
        import dask

        pick = dask.delayed(_rows_of, pure=False)
        return [pick(*both) for both in zip(self._parts, self._rows, strict=True)]

    def __dask_graph__(self) -> None:
        """Return None: only its partitions have a graph."""

    def compute(self) -> pd.DataFrame:
        """Return the rows in memory."""
        import pandas as pd

        return pd.concat(_all_computed(self.to_delayed()))


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
    read: Callable[[Any], Array], parts: Sequence[object], lengths: Sequence[float], n_columns: int
) -> da.Array:
    """Return a dask array of which workers make a part each, by ``read(part)``.

    A length of NaN is not known yet.
    """
    import dask
    import dask.array as da

    # In the graph once, and not in every task: what it holds may be large.
    reading = dask.delayed(_read, pure=False)
    how = dask.delayed(read, pure=False, traverse=False)
    blocks = [
        da.from_delayed(reading(how, part), shape=(n_rows, n_columns), dtype=np.float64)
        for part, n_rows in zip(parts, lengths, strict=True)
    ]
    return da.concatenate(blocks)


def _read(read: Callable[[Any], Array], part: object) -> Array:
    return read(part)


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


def delayed_parts(X: Any) -> list[Part]:
    """Return the partitions of inputs, in their order."""
    if isinstance(X, Partitioned):
        return _sliced(X.values, X.ends)
    if hasattr(X, "chunks"):
        return _delayed(X.rechunk({1: -1}))
    import dask

    check, names = dask.delayed(_require_columns, pure=False), list(X.columns)
    return [check(part, names, number) for number, part in enumerate(_delayed(X))]


def _require_columns(part: pd.DataFrame, names: list[object], number: int) -> pd.DataFrame:
    if list(part.columns) != names:
        raise ValueError(
            f"partition {number} of X has the columns {list(part.columns)}, and not {names}: all "
            "partitions must have the same columns in the same order"
        )
    return part


@contextmanager
def naming_lost_cluster() -> Iterator[None]:
    """Raise an error that names the loss of a scheduler, or of data on its workers."""
    try:
        yield
    except Exception as error:
        lost = isinstance(error, CancelledError | ConnectionError | TimeoutError)
        if not lost and type(error).__name__ not in _LOST:
            raise
        raise RuntimeError(
            f"the cluster's scheduler cannot be reached, or has lost the rows ({error}); connect "
            "a new client and fit again"
        ) from error


def computed(values: Any) -> Any:
    """Return what a collection holds, in memory."""
    return values.compute() if isinstance(values, SomeRows) else _all_computed([values])[0]


def _all_computed(values: Sequence[Any]) -> list[Any]:
    """Return what collections hold, by the workers of the cluster if there is one."""
    try:
        from distributed import get_client

        client = get_client()
    except (ImportError, ValueError):
        import dask

        return list(dask.compute(*values))
    from gorelm.backends.dask.workers import gathered

    with naming_lost_cluster():
        return gathered(client, client.compute(list(values)))


def _delayed(collection: Collection) -> list[Part]:
    parts = collection.to_delayed()
    return list(parts.ravel()) if isinstance(parts, np.ndarray) else list(parts)


def _aligned(
    values: Collection | InMemory, X: Collection | Partitioned, n_partitions: int, name: str
) -> list[Part]:
    """Return the parts of `values` that belong to the partitions of X."""
    if not hasattr(values, "__dask_graph__"):
        values = values if hasattr(values, "iloc") else np.asarray(values)
        ends = X.ends if isinstance(X, Partitioned) else [0, *accumulate(lengths_of(X))]
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


def lengths_of(X: Collection) -> list[int]:
    """Return the numbers of rows of the partitions."""
    if hasattr(X, "columns"):
        import dask

        # Not X.map_partitions(len): where files are read, dask may join partitions for it.
        lengths = [dask.delayed(len, pure=False)(part) for part in _delayed(X)]
        return _all_computed(lengths)
    return [int(length) for length in _counted(X).chunks[0]]


def _counted(X: da.Array) -> da.Array:
    """Return an array that knows how many rows its chunks have."""
    if not np.isnan(X.shape[0]):
        return X
    with naming_lost_cluster():
        return X.copy().compute_chunk_sizes()


def taken(X: Any, rows: Indices) -> Collection | SomeRows:
    """Return some rows of a collection, by increasing numbers, in its partitions."""
    if hasattr(X, "chunks"):
        X = _counted(X)
        require_increasing(rows, X.shape[0])
        return X[rows]
    ends = [0, *accumulate(lengths_of(X))]
    require_increasing(rows, ends[-1])
    cuts = np.searchsorted(rows, ends)
    local = [rows[i:j] - start for (i, j), start in zip(pairwise(cuts), ends, strict=False)]
    return SomeRows(X, local)


def as_blocks(X: Collection) -> RowBlocks:
    """Return the partitions of a collection as blocks, each computed when its turn comes."""
    if np.ndim(X) != 2:
        raise ValueError(f"X must have two dimensions, got {np.ndim(X)}")
    names, n_columns = names_of(X), len(X.columns) if hasattr(X, "columns") else int(X.shape[1])
    parts: list[Any] = delayed_parts(X)
    return RowBlocks(lambda: (computed(p) for p in parts), sum(lengths_of(X)), n_columns, names)


def _rows_of(part: pd.DataFrame, rows: Indices) -> pd.DataFrame:
    return part.iloc[rows]
