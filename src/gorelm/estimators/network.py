"""Networks that grow over training rows, and how wrong they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from gorelm.estimators.design import Design, Mask, row_norms
from gorelm.factor import Indices
from gorelm.hidden import HiddenLayer
from gorelm.prox import Array
from gorelm.quantiles import weighted_quantiles

__all__ = ["Machine", "Network", "Table", "ratio"]


class Machine(Protocol):
    """Training rows with what a method keeps of them while nodes come and go."""

    def extend(self, dH: Array) -> None:
        """Add nodes."""
        ...

    def keep(self, nodes: Indices) -> None:
        """Keep some nodes; the weights of the others are 0."""
        ...

    def outputs(self, coef: Array) -> Array:
        """Return H times the weights last found."""
        ...


Maker = Callable[[Array, Array, Array | None, Mask | None], Machine]


class Network:
    """A hidden layer over some of the training rows, and the machine that fits it.

    Parameters
    ----------
    make : callable
        Makes a machine of H, T, omega and which target cells are known.
    layer : HiddenLayer
        To begin with.
    every : Design
        All training rows; radial nodes take their centres from these.
    rows : array of int, optional
        Those that the network is fitted to; None: all.
    """

    def __init__(
        self, make: Maker, layer: HiddenLayer, every: Design, rows: Indices | None = None
    ) -> None:
        self.layer, self._every = layer, every
        self.design = every if rows is None else every.take(rows)
        self.machine = self._begin(make) if layer.n_outputs else None
        self.settled = False  # whether the model's weights are those of the nodes it has

    def _begin(self, make: Maker) -> Machine:
        design = self.design
        return make(design.hidden(self.layer), design.T, design.omega, design.observed)

    def grow(self, make: Maker, n_new: int) -> None:
        """Add nodes, to the machine too."""
        self.settled = False
        every, n_old = self._every, self.layer.n_outputs
        self.layer = self.layer.grow(n_new, X=every.X, sample_weight=every.w, offset=every.offset)
        if self.machine is None:
            self.machine = self._begin(make)
        else:
            new = self.layer.keep(np.arange(n_old, self.layer.n_outputs))
            self.machine.extend(self.design.hidden(new))

    def prune(self, coef: Array) -> None:
        """Drop the nodes without weights."""
        active = np.flatnonzero(coef.any(axis=1))
        if len(active) == len(coef):
            return
        self.settled = False
        self.layer = self.layer.keep(active)
        if self.machine is not None and len(active):
            self.machine.keep(active)
        else:
            self.machine = None

    def outputs(self, coef: Array) -> Array:
        """Return what the network says of its rows."""
        return np.zeros(self.design.T.shape) if self.machine is None else self.machine.outputs(coef)

    def count_active(self, coef: Array) -> int:
        """Return the number of nodes (not of directly linked inputs) with a weight."""
        return int(np.count_nonzero(coef[len(self.layer.inputs) :].any(axis=1)))

    def error(self, coef: Array) -> float:
        """Return the mean error norm of the rows, as a share of the best constant's."""
        residuals = self.design.residuals(self.outputs(coef))
        return ratio(_sum_of_norms(self.design, residuals), self._error_of_medians)

    @cached_property
    def _error_of_medians(self) -> float:
        return _error_of_medians(self.design)

    def validation_error(self, coef: Array, others: Design) -> tuple[float, float]:
        """Return the sum of error norms over other rows, and that of these rows' medians."""
        residuals = others.residuals(others.hidden(self.layer) @ coef)
        return _sum_of_norms(others, residuals), _error_of_medians(others, self.design)


@dataclass
class Table:
    """The training rows as given: those that count, scaled, and the others."""

    design: Design
    T: Array
    used: Mask
    unused: Any  # inputs of the rows that do not count

    def same_as(self, other: Table) -> bool:
        """Tell whether the other has the same rows."""
        one, two = self.design, other.design
        if one.X.shape != two.X.shape or not np.array_equal(self.T, other.T, equal_nan=True):
            return False
        return np.array_equal(one.w, two.w) and not (one.X != two.X).sum()


def _sum_of_norms(design: Design, residuals: Array) -> float:
    return float(design.w @ row_norms(residuals))


def _error_of_medians(design: Design, source: Design | None = None) -> float:
    """Return the sum of error norms of predicting each target's median (over `source`)."""
    source = source or design
    T = source.T if source.omega is None else source.T / source.omega[:, None]
    known = np.ones(T.shape, dtype=bool) if source.observed is None else source.observed
    medians = [
        float(weighted_quantiles(t[k], 0.5, source.w[k])) if k.any() else 0.0
        for t, k in zip(T.T, known.T, strict=True)
    ]
    omega = 1.0 if design.omega is None else design.omega[:, None]
    return _sum_of_norms(design, design.residuals(omega * np.array(medians)[None]))


def ratio(error: float, unit: float) -> float:
    """Return error / unit; where a constant is perfect, any error at all is infinitely worse."""
    if unit > 0:
        return float(error / unit)
    return 0.0 if error <= 0 else float("inf")
