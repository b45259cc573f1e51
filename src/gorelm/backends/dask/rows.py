"""Rows on a Dask cluster: every method is a command to all partitions, whose results are summed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gorelm._solver.linalg import Factor
from gorelm._solver.problem import Problem
from gorelm._solver.rows import Rows, StepSums, Which, factor_for
from gorelm._typing import Array, Indices, Mask
from gorelm.backends.dask.coordinator import Coordinator
from gorelm.backends.dask.partition import reach_and_sum


class DaskRows:
    """H, T, E and U on the workers of a cluster, in partitions that are prepared.

    There is a checkpoint every `checkpoint_every` iterations; 0: none.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        n_rows: int,
        n_hidden: int,
        n_targets: int,
        *,
        checkpoint_every: int = 0,
    ) -> None:
        self._coordinator, self._shape = coordinator, (n_rows, n_hidden, n_targets)
        self._checkpoint_every, self._n_steps = checkpoint_every, 0
        self._complete = all(coordinator.call("complete"))
        self.HtT: Array = np.empty((0, 0))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, L, m)."""
        return self._shape

    @property
    def complete(self) -> bool:
        """Whether every target cell is known."""
        return self._complete

    def factor(self, like: Problem) -> Factor:
        """Sum H'H and H'T over the partitions; see `Rows.factor`."""
        G, self.HtT = self._coordinator.call("moments")
        return factor_for(like)(G)

    def start(self, problem: Problem, cap: float = np.inf) -> Array:
        """Set U = 0 and E = 0 or near it, and return H'(E - U); see `Rows.start`."""
        return np.asarray(self._coordinator.call("start", problem, cap, mutates=True))

    def step(
        self,
        B: Array,
        problem: Problem,
        rho: Array,
        relax: float,
        *,
        cap: Array,
        measure: bool = False,
    ) -> tuple[Array, StepSums | None]:
        """Update E and U for the weights `B`; see `Rows.step`."""
        args = (B, problem, rho, relax, cap, measure)
        HtD, sums = self._coordinator.call("step", *args, mutates=True)
        self._n_steps += 1
        if self._checkpoint_every and self._n_steps % self._checkpoint_every == 0:
            self._coordinator.checkpoint()
        return HtD, sums

    def rescale(self, factor: Array) -> None:
        """Divide U by `factor` (P,)."""
        self._coordinator.call("rescale", factor, mutates=True)

    def keep(self, which: Mask) -> None:
        """Drop the state of the problems that have left the batch."""
        self._coordinator.call("keep", which, mutates=True)

    def HtU(self, which: Which) -> Array:
        """Return H'U of some problems, (L, ., m)."""
        return np.asarray(self._coordinator.call("HtU", which))

    def corrected_dual(
        self, A: Array, which: Indices, problem: Problem, rho: Array
    ) -> tuple[Array, Array]:
        """Measure the multipliers rho U - HA; see `Rows.corrected_dual`."""
        args = (A, which, problem, rho)
        reach, squares = self._coordinator.call("corrected_dual", *args, merge=reach_and_sum)
        return reach, squares

    def loss(self, X: Array, problem: Problem, cap: Array | None = None) -> Array:
        """Evaluate the loss at weights `X` (L, P, m), plain and capped; shape (2, P)."""
        return np.asarray(self._coordinator.call("loss", X, problem, cap))

    def residual_sums(self, X: Array) -> tuple[Array, Array, Array]:
        """Return H'R, <R, T> and <R, R> of the residuals R = HX - T."""
        HtR, RT, RR = self._coordinator.call("residual_sums", X)
        return HtR, RT, RR

    def TT(self) -> float:
        """Return the squared norm of T."""
        return float(self._coordinator.call("TT"))

    def typical_residual(self, problem: Problem) -> float:
        """Return the geometric mean of the residual norms of B = 0."""
        return float(self._coordinator.call("norm_summary", problem).typical)


if TYPE_CHECKING:
    _implements: type[Rows] = DaskRows
