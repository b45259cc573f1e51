"""Check the table of a robust fit, and scale its inputs in the place where they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gorelm._features.scaling import Scaling, Summary, fit_scaling
from gorelm._progress import doing
from gorelm._typing import Array, Mask
from gorelm.backends.inputs import InMemory, ScaledRows, within_reach
from gorelm.backends.streamed import summarise
from gorelm.backends.streamed_inputs import StreamedInputs
from gorelm.estimators._elsewhere import CheckedTable
from gorelm.estimators._prepare import is_tensor, naming_table_regressor, usable_rows
from gorelm.stream import RowBlocks

if TYPE_CHECKING:
    from gorelm.estimators.robust import RobustELMRegressor


@dataclass(frozen=True)
class Given:
    """A checked table: scaled inputs in any place, targets and weights in memory."""

    rows: ScaledRows
    scaling: Scaling  # of the inputs
    T: Array  # NaN: unknown
    w: Array
    usable: Mask  # rows with a weight and a known target
    inputs: Array  # as given, for splitters; zeros for inputs that are not an array

    def with_inputs(self, inputs: Array) -> Given:
        """Return the table with other inputs, scaled anew."""
        scaling = Scaling.fit("standard", inputs[self.usable], self.w[self.usable])
        rows = InMemory(within_reach(scaling, inputs))
        return replace(self, rows=rows, scaling=scaling, inputs=inputs)


def given(model: RobustELMRegressor, X: object, y: object, sample_weight: object) -> Given:
    """Check a table and scale its inputs; the model remembers their names."""
    with naming_table_regressor():
        table = CheckedTable.of(model, X, y, sample_weight, blocks_on_device=True)
    usable = usable_rows(table.T, table.w)
    rows, scaling = _scaled(table, usable)
    return Given(rows, scaling, table.T, table.w, usable, np.asarray(table.shown))


def _scaled(table: CheckedTable, usable: Mask) -> tuple[ScaledRows, Scaling]:
    """Return the inputs scaled in the place where they are, and their scaling."""
    held, w = table.held, table.w
    if isinstance(held, np.ndarray):
        scaling = Scaling.fit("standard", held[usable], w[usable])
        return InMemory(within_reach(scaling, held)), scaling
    if is_tensor(held):
        from gorelm.backends.torch.inputs import scaled_inputs

        return scaled_inputs(held, w, usable)
    if isinstance(held, RowBlocks):

        def counted(summary: Callable[[Array, Array], Summary]) -> Summary:
            with doing("read", 0.0):
                return summarise(held, w, usable, summary)

        scaling = fit_scaling("standard", held.shape[1], counted)
        return StreamedInputs(held, scaling), scaling
    scaling = held.scaling(w, usable)
    return held.scaled(scaling), scaling
