"""Other owners of rows: streamed blocks, a device of PyTorch's, the workers of a cluster."""

from __future__ import annotations

from typing import Protocol

from gorelm._features.layer import HiddenLayer, RowSource
from gorelm._features.scaling import Scaling
from gorelm._solver.admm import Settings
from gorelm._solver.problem import Problem
from gorelm._solver.state import Solution
from gorelm._typing import Array, Callback, Inputs, Mask, NamedInputs

__all__ = ["BatchModel", "FittedModel", "NamedInputs", "TakesTable"]


class FittedModel(Protocol):
    """What predictions of a fitted estimator need."""

    n_features_in_: int
    _one_target: bool
    _target_scaling: Scaling

    def predict(self, X: object) -> Array:
        """Return the predicted targets of new rows."""
        ...


class TakesTable(Protocol):
    """What checking a table uses of an estimator that may be fitted on a device."""

    device: str | None
    missing_targets: str
    n_features_in_: int
    _one_target: bool

    def _validate(
        self, X: object, y: object, sample_weight: object
    ) -> tuple[Inputs, Array, Array]: ...


class BatchModel(FittedModel, TakesTable, Protocol):
    """What a backend uses of a batch estimator, whose parameters have been checked."""

    activation: str
    input_scaling: str | None
    target_scaling: str | None
    memory_budget: float | str | None
    callback: Callback | None

    hidden_: HiddenLayer
    coef_: Array
    intercept_: Array
    _input_scaling: Scaling

    def _require_streamable(self, remedy: str) -> None: ...

    def _take_names(self, X: NamedInputs) -> None: ...

    def _draw(
        self, n_features: int, *, rows: RowSource | None = None, w: Array | None = None
    ) -> HiddenLayer: ...

    def problem(self) -> Problem:
        """Return the problem that the parameters describe."""
        ...

    def _settings(self) -> Settings: ...

    def _take_solution(self, found: Solution) -> None: ...

    def _residuals(self, X: Array, T: Array) -> Array: ...

    def _score(self, scores: Array, used: Mask, w: Array, size: float) -> None: ...
