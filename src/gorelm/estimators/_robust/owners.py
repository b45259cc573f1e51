"""From what a user gives to what the steps of a robust fit read, wherever the rows are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import validate_data

from gorelm._features.scaling import Scaling, fit_scaling
from gorelm._typing import Array, Mask
from gorelm.backends.inputs import InMemory, ScaledRows, within_reach
from gorelm.backends.streamed import summarise
from gorelm.backends.streamed_inputs import StreamedInputs
from gorelm.estimators._prepare import take_names, usable_rows, validate_targets
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


def given(model: RobustELMRegressor, X: object, y: object, sample_weight: object) -> Given:
    """Check a table and scale its inputs; the model remembers their names."""
    if isinstance(X, RowBlocks):
        return _in_blocks(model, X, y, sample_weight)
    inputs: Array = validate_data(model, X, dtype=np.float64)
    T, w = validate_targets(model, inputs, y, sample_weight)
    usable = usable_rows(T, w)
    scaling = Scaling.fit("standard", inputs[usable], w[usable])
    return Given(InMemory(within_reach(scaling, inputs)), scaling, T, w, usable, inputs)


def _in_blocks(model: RobustELMRegressor, X: RowBlocks, y: object, sample_weight: object) -> Given:
    take_names(model, X)
    T, w = validate_targets(model, X, y, sample_weight)
    usable = usable_rows(T, w)
    scaling = fit_scaling("standard", X.shape[1], partial(summarise, X, w, usable))
    return Given(StreamedInputs(X, scaling), scaling, T, w, usable, np.broadcast_to(0.0, X.shape))
