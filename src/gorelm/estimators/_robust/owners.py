"""From what a user gives to what the steps of a robust fit read, wherever the rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gorelm._extras import needs
from gorelm._features.scaling import Scaling, Summary, fit_scaling
from gorelm._progress import doing
from gorelm._typing import Array, Mask
from gorelm.backends.dask.source import Partitioned
from gorelm.backends.inputs import InMemory, ScaledRows, within_reach
from gorelm.backends.streamed import summarise
from gorelm.backends.streamed_inputs import StreamedInputs
from gorelm.estimators._elsewhere import here
from gorelm.estimators._owners import is_dask
from gorelm.estimators._prepare import (
    is_tensor,
    naming_table_regressor,
    take_names,
    usable_rows,
    validate_targets,
)
from gorelm.stream import RowBlocks

if TYPE_CHECKING:
    from gorelm.estimators.robust import RobustELMRegressor


@dataclass(frozen=True)
class Given:
    """A checked table: scaled inputs wherever they are, targets and weights in memory."""

    rows: ScaledRows
    scaling: Scaling  # of the inputs
    T: Array  # NaN: unknown
    w: Array
    usable: Mask  # rows with a weight and a known target
    inputs: Array  # as given, for splitters; of rows that are elsewhere zeros

    def with_inputs(self, inputs: Array) -> Given:
        """Return the table with other inputs, scaled anew."""
        scaling = Scaling.fit("standard", inputs[self.usable], self.w[self.usable])
        rows = InMemory(within_reach(scaling, inputs))
        return replace(self, rows=rows, scaling=scaling, inputs=inputs)


def given(model: RobustELMRegressor, X: object, y: object, sample_weight: object) -> Given:
    """Check a table and scale its inputs; the model remembers their names."""
    if model.device is not None and (is_dask(X) or isinstance(X, Partitioned)):
        raise TypeError(
            f"rows on a cluster cannot be fitted on a device (device={model.device!r}): pass an "
            "array, blocks or a tensor, or leave out device"
        )
    if model.device is not None or is_tensor(X):
        return _on_device(model, X, y, sample_weight)
    if isinstance(X, RowBlocks):
        return _in_blocks(model, X, y, sample_weight)
    if is_dask(X) or isinstance(X, Partitioned):
        return _in_partitions(model, X, y, sample_weight)
    with naming_table_regressor():
        inputs, T, w = model._validate(X, y, sample_weight)
    usable = usable_rows(T, w)
    scaling = Scaling.fit("standard", inputs[usable], w[usable])
    return Given(InMemory(within_reach(scaling, inputs)), scaling, T, w, usable, inputs)


def _in_blocks(model: RobustELMRegressor, X: RowBlocks, y: object, sample_weight: object) -> Given:
    take_names(model, X)
    T, w = validate_targets(model, X, y, sample_weight)
    usable = usable_rows(T, w)

    def counted(summary: Callable[[Array, Array], Summary]) -> Summary:
        with doing("read", 0.0):
            return summarise(X, w, usable, summary)

    scaling = fit_scaling("standard", X.shape[1], counted)
    return Given(StreamedInputs(X, scaling), scaling, T, w, usable, np.broadcast_to(0.0, X.shape))


def _in_partitions(model: RobustELMRegressor, X: object, y: object, sample_weight: object) -> Given:
    """Return the rows of a dask collection; its targets and weights come into memory."""
    from gorelm.backends.dask.inputs import Partitions

    parts = Partitions(X)
    take_names(model, parts)
    shown = np.broadcast_to(0.0, parts.shape)
    T, w = validate_targets(model, shown, here(y), here(sample_weight))
    usable = usable_rows(T, w)
    scaling = parts.scaling(w, usable)
    return Given(parts.scaled(scaling), scaling, T, w, usable, shown)


def _on_device(model: RobustELMRegressor, X: object, y: object, sample_weight: object) -> Given:
    with needs("RobustELMRegressor on a device needs PyTorch", "torch"):
        from gorelm.backends.torch import inputs
    source = inputs.gathered(X, model.device) if isinstance(X, RowBlocks) else X
    rows, scaling, T, w, usable = inputs.prepare(model, source, y, sample_weight)
    if isinstance(X, RowBlocks):
        take_names(model, X)
    return Given(rows, scaling, T, w, usable, np.broadcast_to(0.0, rows.shape))
