"""Select rows of any kind of X: arrays, tensors, blocks, dask collections; for searches and folds.

`select` returns some rows in the place where they are, `here` brings values into memory.
`CheckedTable` is a checked X with targets and weights in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gorelm._compat import safe_indexing
from gorelm._extras import needs
from gorelm._typing import Array, Indices, Inputs
from gorelm.backends import TakesTable
from gorelm.backends.dask.source import Partitioned
from gorelm.estimators._owners import is_dask, is_elsewhere, require_device
from gorelm.estimators._prepare import is_tensor, take_names, validate_targets
from gorelm.stream import ParquetTable, RowBlocks


def here(values: Any) -> Any:
    """Return tensors and dask collections as arrays in memory, and anything else unchanged."""
    if is_dask(values):
        from gorelm.backends.dask.source import computed

        return computed(values)
    if is_tensor(values):
        return values.get() if hasattr(values, "get") else values.detach().cpu().numpy()
    return values


def is_in_memory(X: object) -> bool:
    """Whether X is neither a tensor, nor in blocks or files, nor on a cluster."""
    return not (is_tensor(X) or is_elsewhere(X) or isinstance(X, ParquetTable))


def n_rows_of(X: Any) -> int:
    """Return the number of rows; those of a dask collection are counted."""
    if is_dask(X):
        from gorelm.backends.dask.source import lengths_of

        return sum(lengths_of(X))
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def select(X: Any, rows: Indices) -> Any:
    """Return some rows of X, in the order given, without bringing them into memory.

    Rows of blocks and of dask collections must come in increasing order.
    """
    if is_tensor(X):
        return X[rows] if hasattr(X, "detach") else X[rows.tolist()]
    if isinstance(X, RowBlocks | ParquetTable):
        return X.take(rows)
    if isinstance(X, Partitioned):
        return X.take(rows)
    if is_dask(X):
        from gorelm.backends.dask.source import taken

        return taken(X, rows)
    return safe_indexing(X, rows)


def in_order(X: Any, rows: Indices, work: Callable[[Any], Array]) -> Array:
    """Return the results of `work` for some rows, whose numbers may be in any order."""
    if is_in_memory(X) or is_tensor(X):
        return work(select(X, rows))
    order = np.argsort(rows, kind="stable")
    found = work(select(X, rows[order]))
    result = np.empty_like(found)
    result[order] = found
    return result


def chunk_of(X: Any) -> Any:
    """Return inputs to be learnt block by block: arrays as they are, tensors as arrays."""
    if is_dask(X):
        from gorelm.backends.dask.source import as_blocks

        return as_blocks(X)
    return np.asarray(X) if isinstance(X, Partitioned) else here(X)


def blocks_of(X: Inputs | RowBlocks) -> Iterator[tuple[slice, Inputs]]:
    """Go through the rows once: an array is one block."""
    if isinstance(X, RowBlocks):
        yield from X
    else:
        yield slice(0, X.shape[0]), X


def _none_left(rows: Indices) -> Inputs:
    raise ValueError(f"{len(rows)} rows were to be brought after all that a search needs")


@dataclass(frozen=True)
class CheckedTable:
    """A checked table: inputs in any place, targets and weights in memory."""

    X: Any  # as fits and predictions take it
    T: Array  # NaN: unknown
    w: Array
    shown: Inputs  # inputs for splitters; zeros for inputs that are not an array
    take: Callable[[Indices], Inputs]  # brings the inputs of some rows, in increasing order, here
    held: Any  # the checked inputs: array, tensor, RowBlocks, or Partitions of a dask collection

    def whole(self) -> Inputs:
        """Bring all inputs here."""
        return self.shown if self.X is self.shown else self.take(np.arange(len(self.T)))

    def brought(self) -> CheckedTable:
        """Return the table with `take` disabled, so that workers can free the rows."""
        return replace(self, take=_none_left, held=None)

    @classmethod
    def of(
        cls,
        model: TakesTable,
        X: Any,
        y: object,
        sample_weight: object,
        *,
        blocks_on_device: bool = False,
    ) -> CheckedTable:
        """Check a table; the model remembers the number and names of its inputs.

        With `blocks_on_device`, the rows of `RowBlocks` are moved to the model's device.
        """
        require_device(model, X, takes_blocks=blocks_on_device)
        if model.device is not None or is_tensor(X):
            with needs(f"{type(model).__name__} on a device needs PyTorch", "torch"):
                from gorelm.backends.torch.fit import checked, gathered, naming_lack_of_memory

            with naming_lack_of_memory():
                source = gathered(X, model.device) if isinstance(X, RowBlocks) else X
                there, T, w = checked(model, source, y, sample_weight)
            if isinstance(X, RowBlocks):
                take_names(model, X)
            shown = np.broadcast_to(0.0, tuple(there.shape))
            return cls(
                there, here(T), here(w), shown, lambda rows: here(select(there, rows)), there
            )
        if isinstance(X, RowBlocks):
            take_names(model, X)
            T, w = validate_targets(model, X, y, sample_weight)
            shown = np.broadcast_to(0.0, X.shape)
            return cls(X, T, w, shown, lambda rows: X.take(rows).whole(), X)
        if is_elsewhere(X):
            from gorelm.backends.dask.inputs import Partitions

            parts = Partitions(X)
            take_names(model, parts)
            shown = np.broadcast_to(0.0, parts.shape)
            T, w = validate_targets(model, shown, here(y), here(sample_weight))
            return cls(X, T, w, shown, parts.take, parts)
        inputs, T, w = model._validate(X, y, sample_weight)
        return cls(inputs, T, w, inputs, lambda rows: inputs[rows], inputs)
