"""The contract between the ADMM loop and the owners of rows, and rows whose state is in memory.

Everything as long as the data (H, T, E and U) belongs to an owner of rows; the loop in `admm.py`
never sees N. E and U of a row depend only on that row of H and T: one pass over the rows takes the
weights B and returns sums of the size of B. Every owner implements `Rows` (memory, streamed blocks,
a GPU, a cluster), so all owners get the same iterates. `DeviceRows` and `WarmRows` are optional.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from gorelm._solver.far_targets import NormSummary, within
from gorelm._solver.linalg import CholeskyFactor, EighFactor, Factor, gram, product
from gorelm._solver.problem import Problem
from gorelm._typing import Array, Indices, Mask

Which = Mask | Indices | slice
Result = TypeVar("Result")


@dataclass
class StepSums:
    """What one step did, summed over the rows; arrays of shape (P,) unless said."""

    primal: Array  # ||HB - T - E||^2
    size: Array  # ||HB - T||^2, no norm counting for more than the cap
    error_change: Array  # ||E - E_old||^2
    UU: Array  # ||U||^2
    UT: Array  # <U, T>
    loss: Array  # (2, P): loss at the weights of the step, and with norms capped
    hidden: Array  # ||HB||^2
    error: Array  # ||E||^2

    def move(self, to: Callable[[list[Array]], list[Array]]) -> None:
        """Bring the sums to where `to` brings arrays."""
        names = [field.name for field in fields(self)]
        for name, there in zip(names, to([getattr(self, name) for name in names]), strict=True):
            setattr(self, name, there)


class Rows(Protocol):
    """An owner of H (N, L), T (N, m), and of the row state E and U (N, P, m) of P problems.

    Rows of H and T are multiplied by omega, the square roots of the sample weights. A cell of T
    that is not known holds 0 and has no residual: its E follows the prediction and its U stays 0.
    Arrays that go in and out have the size of B, (L, P, m), or one number for each problem, (P,);
    they are float64, whatever the precision of the rows.
    """

    HtT: Array
    """H'T (L, m); known once `factor` has been called."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, L, m)."""
        ...

    @property
    def complete(self) -> bool:
        """Whether every target cell is known."""
        ...

    def factor(self, like: Problem) -> Factor:
        """Sum H'H and H'T over the rows; return what solves (H'H + s I) X = R.

        `like` tells for how many problems at once.
        """
        ...

    def typical_residual(self, problem: Problem) -> float:
        """Return the geometric mean of the residual norms of B = 0 (`NormSummary.typical`)."""
        ...

    def TT(self) -> float:
        """Return the squared norm of T."""
        ...

    def start(self, problem: Problem, cap: float = np.inf) -> Array:
        """Set U = 0, and E = 0 but in rows whose T has a norm beyond `cap`.

        In these E takes back what is beyond it, so that T + E has the norm `cap`. Returns H'(E -
        U).
        """
        ...

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
        r"""Update E and U for the weights `B`, reading every row of H once.

        .. math:: v = \mathrm{relax}\,(HB - T) + (1 - \mathrm{relax}) E + U, \qquad
                  E \leftarrow \mathrm{prox}(v), \qquad U \leftarrow v - E

        Parameters
        ----------
        B : array (L, P, m)
            Weights.
        problem, rho, relax
            The problems, their penalties (P,), and the over-relaxation.
        cap : array (P,)
            Largest residual norm that counts in the second, capped, loss of the sums.
        measure : bool, default=False
            Whether to return sums.

        Returns
        -------
        HtD : array (L, P, m)
            H'(E - U), all that the next B needs.
        sums : StepSums or None
        """
        ...

    def loss(self, X: Array, problem: Problem, cap: Array | None = None) -> Array:
        """Evaluate the loss at weights `X` (L, P, m), plain and capped; shape (2, P)."""
        ...

    def residual_sums(self, X: Array) -> tuple[Array, Array, Array]:
        """Return H'R (L, P, m), <R, T> (P,) and <R, R> (P,) of the residuals R = HX - T."""
        ...

    def corrected_dual(
        self, A: Array, which: Indices, problem: Problem, rho: Array
    ) -> tuple[Array, Array]:
        """Measure the multipliers Y = rho U - HA of the problems `which`, for A (L, ., m).

        Returns
        -------
        reach : array (.,)
            The largest norm of a row (or cell) of Y, in units of the radius of the dual ball.
        squares : array (.,)
            The squared norm of Y.
        """
        ...

    def HtU(self, which: Which) -> Array:
        """Return H'U of some problems, (L, ., m), summed over the rows."""
        ...

    def keep(self, which: Mask) -> None:
        """Drop the state of the problems that have left the batch."""
        ...

    def rescale(self, factor: Array) -> None:
        """Divide U by `factor` (P,), as a change of rho by that factor asks for."""
        ...


@runtime_checkable
class DeviceRows(Rows, Protocol):
    """Rows on a device: the loop's arrays live there too, and come back only to be checked.

    The loop asks such owners for fewer checks, as each one waits for the device.
    """

    def put(self, values: list[Array]) -> list[Array]:
        """Bring arrays of the loop to the device."""
        ...

    def get(self, values: list[Array]) -> list[Array]:
        """Bring them back."""
        ...

    def accelerate(self, step: Step) -> Step:
        """Return a faster version of the loop's step."""
        ...


@runtime_checkable
class WarmRows(Rows, Protocol):
    """Rows whose state can be handed over: for warm starts, and for networks that grow."""

    E: Array
    U: Array

    def resume(
        self,
        B: Array,
        dual: Array,
        problem: Problem,
        rho: Array,
        cap: Array,
        HtE: Array | None = None,
    ) -> tuple[Array, Array, StepSums]:
        """Set E = HB - T and U = dual / rho; return H'(E - U), H'U and sums, for no step.

        Parameters
        ----------
        B : array (L, P, m)
            Weights.
        dual : array (N, P, m)
            Multipliers rho U within the loss's dual ball.
        problem, rho, cap
            As for `step`.
        HtE : array (L, P, m), optional
            H'E, where it is known.
        """
        ...

    def new_products(self, start: int) -> tuple[Array, Array]:
        """Return H'(E - U) and H'U of the nodes from `start` on, for E and U as they are."""
        ...

    def multipliers(
        self, which: Mask, rho: Array, scale: Array, correction: Array | None = None
    ) -> Array:
        """Return the multipliers scale (rho U - H correction) of some problems, (N, ., m)."""
        ...


class Step(Protocol):
    """A step of the loop: weights, then rows; see `admm.py`."""

    def __call__(self, s: Any, *, measure: bool = False) -> StepSums | None:
        """Advance the iterate `s`; return sums over the rows if asked to `measure`."""
        ...


class BlockRows:
    """T, E and U in memory; H is seen a block of rows at a time.

    Parameters
    ----------
    shape : tuple
        (N, L) of H.
    dtype : dtype
        Precision of H, T, E and U.
    T : array (N, m)
        Targets, rows multiplied by `omega`; unknown cells hold 0.
    omega : array (N,), optional
        Square roots of the sample weights, all positive.
    observed : boolean array (N, m), optional
        Which target cells are known; None: all.
    HtT : array (L, m), optional
        H'T in float64, where it is known.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        T: Array,
        omega: Array | None = None,
        observed: Mask | None = None,
        HtT: Array | None = None,
    ) -> None:
        self._n_hidden, self.dtype = shape[1], dtype
        self.T = T.astype(dtype, copy=False)
        self.HtT: Array = np.empty((0, 0)) if HtT is None else HtT
        self._omega, self._observed = omega, observed
        self.E = self.U = np.zeros((shape[0], 0, T.shape[1]), dtype=dtype)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, L, m)."""
        return len(self.T), self._n_hidden, self.T.shape[1]

    @property
    def complete(self) -> bool:
        """Whether every target cell is known."""
        return self._observed is None or bool(self._observed.all())

    # -- for each owner to define ----------------------------------------------------------------

    @abstractmethod
    def moments(self) -> tuple[Array, Array]:
        """Return H'H (lower triangle) and H'T, both in float64."""

    @abstractmethod
    def each_block(
        self, work: Callable[[slice, Array], Result], n_columns: int
    ) -> Iterator[Result]:
        """Go through the rows once, for products with so many columns.

        Yields the results of `work`, called with the rows and with H of each block, in order.
        """

    # -- the contract ----------------------------------------------------------------------------

    def factor(self, like: Problem) -> Factor:
        """Sum H'H and H'T over the rows; see `Rows.factor`."""
        G, self.HtT = self.moments()
        return factor_for(like)(G)

    def norm_summary(self, problem: Problem) -> NormSummary:
        """Return the summary of target norms that `typical_residual` needs."""
        return NormSummary.of(self.T, problem, self._omega)

    def typical_residual(self, problem: Problem) -> float:
        """Return the geometric mean of the residual norms of B = 0."""
        return self.norm_summary(problem).typical

    def TT(self) -> float:
        """Return the squared norm of T."""
        return float(np.einsum("nm,nm->", self.T, self.T, dtype=float))

    def start(self, problem: Problem, cap: float = np.inf) -> Array:
        """Set U = 0 and E = 0 or near it; return H'(E - U). See `Rows.start`."""
        n_rows, n_hidden, n_targets = self.shape
        shape = (problem.n_problems, n_targets)
        self.E = np.zeros((n_rows, *shape), dtype=self.dtype)
        self.U = np.zeros_like(self.E)
        near = within(self.T, problem, self._omega, cap)
        if near is self.T:
            return np.zeros((n_hidden, *shape))
        self.E += (near - self.T)[:, None]
        return self.products(self.E)

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
        """Update E and U for the weights `B` (L, P, m); see `Rows.step`."""
        weights = self._flat(B)
        relax_, keep_ = self.dtype.type(relax), self.dtype.type(1.0 - relax)
        if measure:
            residuals, before = np.empty_like(self.E), self.E.copy()

        def update(rows: slice, h: Array) -> tuple[Array]:
            residual = (h @ weights).reshape(len(h), *B.shape[1:])
            residual -= self.T[rows][:, None]
            v = relax_ * residual
            v += keep_ * self.E[rows]
            v += self.U[rows]
            known = v if self._observed is None else v * self._observed[rows][:, None]
            u = problem.multipliers(known, rho, self.omega(rows))
            e = v - u
            if measure:
                residuals[rows] = residual
            self.E[rows], self.U[rows] = e, u
            return (_transposed_product(h, e - u),)

        (sums,) = self.totals(update, weights.shape[1])
        HtD = _upright(sums, B.shape)
        return HtD, self._measured(residuals, before, problem, cap) if measure else None

    def _measured(self, residuals: Array, before: Array, problem: Problem, cap: Array) -> StepSums:
        """Sum up a step, in larger blocks than those of its products."""
        n_rows = max(1, SUM_ELEMENTS // max(1, residuals[:1].size))

        def measured(start: int) -> tuple[Array, ...]:
            rows = slice(start, start + n_rows)
            residual, e, u, t = residuals[rows], self.E[rows], self.U[rows], self.T[rows]
            return (
                squares(residual - e),
                problem.capped_squares(residual, self.omega(rows), cap),
                squares(e - before[rows]),
                squares(u),
                inner(u, t),
                self._loss(residual, problem, cap, rows),
                squares(residual + t[:, None]),
                squares(e),
            )

        return StepSums(*total(measured(i) for i in range(0, max(1, len(residuals)), n_rows)))

    def loss(self, X: Array, problem: Problem, cap: Array | None = None) -> Array:
        """Evaluate the loss at weights `X` (L, P, m), plain and capped; shape (2, P)."""
        weights = self._flat(X)

        def lost(rows: slice, h: Array) -> tuple[Array]:
            residual = (h @ weights).reshape(-1, *X.shape[1:]) - self.T[rows][:, None]
            return (self._loss(residual, problem, cap, rows),)

        (loss,) = self.totals(lost, weights.shape[1])
        return loss

    def _loss(self, residual: Array, problem: Problem, cap: Array | None, rows: slice) -> Array:
        if self._observed is not None:
            residual = residual * self._observed[rows][:, None]
        omega = self.omega(rows)
        if cap is None:
            return np.stack([problem.loss_values(residual, omega)] * 2)
        return np.stack(problem.capped_loss_values(residual, omega, cap))

    def residual_sums(self, X: Array) -> tuple[Array, Array, Array]:
        """Return H'R (L, P, m), <R, T> (P,) and <R, R> (P,) of the residuals R = HX - T."""
        weights = self._flat(X)

        def summed(rows: slice, h: Array) -> tuple[Array, ...]:
            t = self.T[rows]
            R = (h @ weights).reshape(-1, *X.shape[1:]) - t[:, None]
            return _transposed_product(h, R), inner(R, t), squares(R)

        HtR, RT, RR = self.totals(summed, weights.shape[1])
        return _upright(HtR, X.shape), RT, RR

    def corrected_dual(
        self, A: Array, which: Indices, problem: Problem, rho: Array
    ) -> tuple[Array, Array]:
        """Measure the multipliers rho U - HA of the problems `which`; see `Rows.corrected_dual`."""
        weights, rho = self._flat(A), rho.astype(self.dtype)[:, None]

        def measure(rows: slice, h: Array) -> tuple[Array, Array]:
            Y = rho * self.U[rows][:, which]
            Y -= (h @ weights).reshape(Y.shape)
            return problem.dual_reach(Y, self.omega(rows)), squares(Y)

        reach, size = zip(*self.each_block(measure, weights.shape[1]), strict=True)
        return np.max(reach, axis=0), np.sum(size, axis=0)

    def HtU(self, which: Which) -> Array:
        """Return H'U of some problems, (L, ., m)."""
        return self.products(self.U[:, which])

    def products(self, D: Array) -> Array:
        """Return H'D (L, P, m) for D (N, P, m)."""
        n_columns = D.shape[1] * D.shape[2]
        (sums,) = self.totals(lambda rows, h: (_transposed_product(h, D[rows]),), n_columns)
        return _upright(sums, (self._n_hidden, *D.shape[1:]))

    def keep(self, which: Mask) -> None:
        """Drop the state of the problems that have left the batch."""
        self.E, self.U = self.E[:, which].copy(), self.U[:, which].copy()

    def rescale(self, factor: Array) -> None:
        """Divide U by `factor` (P,)."""
        self.U /= factor.astype(self.U.dtype)[:, None]

    def omega(self, rows: slice) -> Array | None:
        """Return the square roots of some rows' weights; None: all are 1."""
        return None if self._omega is None else self._omega[rows]

    def totals(
        self, work: Callable[[slice, Array], Sequence[Array]], n_columns: int
    ) -> list[Array]:
        """Go through the rows once and add up the results of `work`."""
        return total(self.each_block(work, n_columns))

    def _flat(self, B: Array) -> Array:
        return np.ascontiguousarray(B.reshape(len(B), -1), dtype=self.dtype)


class MemoryRows(BlockRows):
    """H, T, E and U in memory.

    Parameters
    ----------
    H : array (N, L)
        Hidden outputs, rows multiplied by `omega`.
    T, omega, observed, HtT
        As for `BlockRows`.
    """

    def __init__(
        self,
        H: Array,
        T: Array,
        omega: Array | None = None,
        observed: Mask | None = None,
        HtT: Array | None = None,
    ) -> None:
        super().__init__(H.shape, H.dtype, T, omega, observed, HtT)
        self.H = H
        if HtT is None:
            self.HtT = product(H, self.T)

    def moments(self) -> tuple[Array, Array]:
        """Return H'H (lower triangle) and H'T, both in float64."""
        return gram(self.H), product(self.H, self.T)

    def each_block(
        self, work: Callable[[slice, Array], Result], n_columns: int
    ) -> Iterator[Result]:
        return (work(rows, self.H[rows]) for rows in self._blocks(n_columns))

    def _blocks(self, n_columns: int) -> Iterator[slice]:
        return cut(len(self.T), self._n_hidden, n_columns, single=self.dtype == np.float32)

    def resume(
        self,
        B: Array,
        dual: Array,
        problem: Problem,
        rho: Array,
        cap: Array,
        HtE: Array | None = None,
    ) -> tuple[Array, Array, StepSums]:
        """Set E = HB - T and U = dual / rho; see `WarmRows.resume`."""
        weights, count = self._flat(B), B.shape[1]
        self.E = np.empty((len(self.T), *B.shape[1:]), dtype=self.dtype)
        self.U = np.asarray(dual / rho[:, None], dtype=self.dtype)
        n_sums = 2 if HtE is None else 1

        def begin(rows: slice, h: Array) -> tuple[Array, ...]:
            t, u = self.T[rows], self.U[rows]
            e = (h @ weights).reshape(len(h), *B.shape[1:]) - t[:, None]
            self.E[rows] = e
            both = np.concatenate([u, e], axis=1) if HtE is None else u
            loss = self._loss(e, problem, cap, rows)
            return _transposed_product(h, both), squares(e), squares(u), inner(u, t), loss

        products, size, UU, UT, loss = self.totals(begin, weights.shape[1])
        still = np.zeros(count)
        sums = StepSums(still, size, still, UU, UT, loss, size, size)
        HtU, *summed = (_upright(part, B.shape) for part in np.split(products, n_sums))
        return (summed[0] if HtE is None else HtE) - HtU, HtU, sums

    def new_products(self, start: int) -> tuple[Array, Array]:
        """Return H'(E - U) and H'U of the nodes from `start` on."""
        both = np.concatenate([self.E - self.U, self.U], axis=1)
        sums = MemoryRows(self.H[:, start:], self.T, HtT=np.empty((0, 0))).products(both)
        return sums[:, : self.U.shape[1]], sums[:, self.U.shape[1] :]

    def multipliers(
        self, which: Mask, rho: Array, scale: Array, correction: Array | None = None
    ) -> Array:
        """Return the multipliers scale (rho U - H correction) of some problems, (N, ., m)."""
        Y = self.U[:, which] * (scale * rho)[which, None]
        if correction is not None and correction[:, which].any():
            A = self._flat(scale[which, None] * correction[:, which])
            for rows in self._blocks(A.shape[1]):
                Y[rows] -= (self.H[rows] @ A).reshape(-1, *Y.shape[1:])
        return np.asarray(Y, dtype=self.dtype)


def factor_for(problem: Problem) -> type[CholeskyFactor] | type[EighFactor]:
    """One decomposition for many shifts, or the cheapest for one."""
    return CholeskyFactor if problem.n_problems == 1 else EighFactor


# -- blocks of rows: where to cut, and what one block adds to a sum -------------------------------

# Multiplications per block and product. A small block stays in cache between its two products,
# and OpenBLAS does not repack what takes less than a million: twice as fast as all rows at once
# (6000 x 1000 x 8). Wide products want larger blocks, and so do those of float32, where few rows
# are left for a million, and sums over rows without products.
BLOCK_WORK = 990_000
_WIDE = 20  # columns
_SMALLEST, _SMALLEST_WIDE = 62, 512  # rows
_FEW_SINGLE, _LARGE_SINGLE = 256, 1024  # rows, of float32
SUM_ELEMENTS = 50_000


def cut(
    n_rows: int, n_hidden: int, n_columns: int, work: int = BLOCK_WORK, single: bool = False
) -> Iterator[slice]:
    """Cut rows into blocks that stay in cache between their two products; no rows are a block."""
    size = work // max(1, n_hidden * n_columns)
    if single:
        size = size if size >= _FEW_SINGLE else _LARGE_SINGLE
    else:
        size = max(_SMALLEST if n_columns < _WIDE else _SMALLEST_WIDE, size)
    for start in range(0, max(1, n_rows), size):
        yield slice(start, min(start + size, n_rows))


def squares(A: Array) -> Array:
    """Return the squared norm of every problem's part of A (n, P, m)."""
    return np.asarray(np.einsum("npm,npm->p", A, A), dtype=float)


def inner(A: Array, t: Array) -> Array:
    """Return its inner product with t (n, m)."""
    return np.asarray(np.einsum("npm,nm->p", A, t), dtype=float)


def _transposed_product(h: Array, D: Array) -> Array:
    """Return (H'D)' of a block of rows, (P m, L): BLAS is up to twice as fast as for H'D."""
    return np.asarray(D.reshape(len(D), D.shape[1] * D.shape[2]).T @ h)


def _upright(sums: Array, shape: tuple[int, ...]) -> Array:
    """Return the H'D of such sums, in its shape (L, P, m)."""
    return np.ascontiguousarray(sums.T).reshape(shape)


def total(parts: Iterable[Sequence[Array]]) -> list[Array]:
    """Add up what the blocks give, in their order and in float64."""
    sums: list[Array] = []
    for part in parts:
        if sums:
            for add_to, value in zip(sums, part, strict=True):
                add_to += value
        else:
            sums = [np.array(value, dtype=float) for value in part]
    return sums
