"""The row pass: everything that is as long as the data lives here, and nowhere else.

E and U of a row need only that row of H and T. One pass over the rows takes the weights B and
returns sums of the size of B; the loop in `admm.py` never sees N. Other owners of rows (streamed
blocks, a GPU, a cluster) have the same methods and get the same iterates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gorelm._solver.linalg import CholeskyFactor, EighFactor, Factor, gram, product
from gorelm._solver.problem import Array, Problem
from gorelm._solver.targets import NormSummary, within
from gorelm._solver.threads import spread

__all__ = [
    "SUM_ELEMENTS",
    "Moves",
    "Rows",
    "across",
    "cut",
    "factor_for",
    "inner",
    "squares",
    "total",
    "upright",
]

Step = TypeVar("Step", bound=Callable[..., Any])
Result = TypeVar("Result")


@dataclass
class Moves:
    """What one step did, summed over the rows; arrays of shape (P,) unless said."""

    exact = True  # whether the step had all the digits of H
    primal: Array  # ||HB - T - E||^2
    size: Array  # ||HB - T||^2, no norm counting for more than the cap
    error_change: Array  # ||E - E_old||^2
    UU: Array  # ||U||^2
    UT: Array  # <U, T>
    loss: Array  # (2, P): loss at the weights of the step, and with norms capped
    hidden: Array  # ||HB||^2
    error: Array  # ||E||^2

    def move(self, to: Callable[[list[Any]], list[Any]]) -> None:
        """Bring the sums to where `to` brings arrays."""
        names = list(vars(self))
        for name, there in zip(names, to([getattr(self, name) for name in names]), strict=True):
            setattr(self, name, there)


class Rows:
    """H, T, E and U in memory.

    Parameters
    ----------
    H : array (N, L)
        Hidden outputs, rows multiplied by `omega`.
    T : array (N, m)
        Targets, rows multiplied by `omega`; unobserved cells hold 0.
    omega : array (N,), optional
        Square roots of the sample weights, all positive.
    observed : boolean array (N, m), optional
        Which target cells are known. An unobserved cell has no residual: its E follows the
        prediction and its U stays 0.
    HtT : array (L, m), optional
        H'T in float64, where it is known.
    """

    def __init__(
        self,
        H: Array,
        T: Array,
        omega: Array | None = None,
        observed: npt.NDArray[np.bool_] | None = None,
        HtT: Array | None = None,
    ) -> None:
        self.H = H
        self.T = T.astype(H.dtype, copy=False)
        self.HtT = product(H, self.T) if HtT is None else HtT
        self._omega = omega
        self._observed = observed
        self.E = self.U = np.zeros((H.shape[0], 0, T.shape[1]), dtype=self.dtype)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (N, L, m)."""
        return (*self.H.shape, self.T.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Precision of E and U."""
        return self.H.dtype

    # Whether a lower bound costs little beside a step, so that every step may improve it.
    bounds_are_cheap = True
    # Whether H, T, E and U are arrays here.
    in_memory = True
    # How many iterations to leave between checks at first; None: by the size of the problem.
    check_every: int | None = None

    def put(self, values: list[Any]) -> list[Any]:
        """Bring arrays of the loop to where the rows are; here they are there already."""
        return values

    def get(self, values: list[Any]) -> list[Any]:
        """Bring them back."""
        return values

    def accelerate(self, step: Step) -> Step:
        """Return a faster version of the loop's step, where there is one."""
        return step

    def refine(self) -> bool:
        """Go on with all digits; returns whether there were fewer before."""
        return False

    def factor(self, like: Problem) -> Factor:
        """Return what solves (H'H + s I) X = R, for as many problems at once as `like` has."""
        G, self.HtT = self.moments()
        return factor_for(like)(G)

    def moments(self) -> tuple[Array, Array]:
        """Return H'H (lower triangle) and H'T, both in float64."""
        return gram(self.H), product(self.H, self.T)

    def start(self, problem: Problem, cap: float = np.inf) -> Array:
        """Set U = 0 and E = 0, but where a norm of T is beyond `cap`, the E that takes it back.

        Returns
        -------
        HtD : array (L, P, m)
            H'(E - U).
        """
        n_rows, n_hidden, n_targets = self.shape
        shape = (problem.n_problems, n_targets)
        self.E = np.zeros((n_rows, *shape), dtype=self.dtype)
        self.U = np.zeros_like(self.E)
        HtD = np.zeros((n_hidden, *shape))
        near = within(self.T, problem, self._omega, cap)
        if near is not self.T:
            self.E += (near - self.T)[:, None]
            HtD += self.summed(self.E)
        return HtD

    def resume(
        self,
        B: Array,
        dual: Array,
        problem: Problem,
        rho: Array,
        cap: Array,
        HtE: Array | None = None,
    ) -> tuple[Array, Array, Moves]:
        """Set E = HB - T and U = dual / rho; returns H'(E - U), H'U and moves, for no step.

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
            return across(h, both), squares(e), squares(u), inner(u, t), loss

        products, size, UU, UT, loss = self._totals(begin, weights.shape[1])
        still = np.zeros(count)
        moves = Moves(still, size, still, UU, UT, loss, size, size)
        HtU, *summed = (upright(part, B.shape) for part in np.split(products, n_sums))
        return (summed[0] if HtE is None else HtE) - HtU, HtU, moves

    def products(self, start: int) -> tuple[Array, Array]:
        """Return H'(E - U) and H'U of the nodes from `start` on, for E and U as they are."""
        both = np.concatenate([self.E - self.U, self.U], axis=1)
        sums = self.summed(both, self.H[:, start:])
        return sums[:, : self.U.shape[1]], sums[:, self.U.shape[1] :]

    def inner(self) -> tuple[Array, Array]:
        """Return <U, T> and <U, U> of every problem."""
        return inner(self.U, self.T), squares(self.U)

    def pull(self, which: Any) -> Array:
        """Return H'U of some problems, (L, ., m)."""
        return self.summed(self.U[:, which])

    def summed(self, D: Array, H: Array | None = None) -> Array:
        """Return H'D (L, P, m), of all nodes or of those whose H is given."""
        n_hidden, n_columns = self.shape[1] if H is None else H.shape[1], D.shape[1] * D.shape[2]
        (sums,) = self._totals(lambda rows, h: (across(h, D[rows]),), n_columns, H)
        return upright(sums, (n_hidden, *D.shape[1:]))

    def dual(
        self,
        which: npt.NDArray[np.bool_],
        rho: Array,
        scale: Array,
        correction: Array | None = None,
    ) -> Array:
        """Return the multipliers scale (rho U - H correction) of some problems, (N, ., m)."""
        Y = self.U[:, which] * (scale * rho)[which, None]
        if correction is not None and correction[:, which].any():
            A = self._flat(scale[which, None] * correction[:, which])

            def correct(rows: slice, h: Array) -> None:
                Y[rows] -= (h @ A).reshape(-1, *Y.shape[1:])

            for _ in self._pass(correct, A.shape[1]):
                pass
        return np.asarray(Y, dtype=self.dtype)

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        """Drop the state of the problems that have left the batch."""
        self.E, self.U = self.E[:, which].copy(), self.U[:, which].copy()

    def rescale(self, factor: Array) -> None:
        """Divide U by `factor` (P,), as a change of rho by that factor asks for."""
        self.U /= factor.astype(self.U.dtype)[:, None]

    def TT(self) -> float:
        """Return the squared norm of T."""
        return float(np.einsum("nm,nm->", self.T, self.T, dtype=float))

    def norm_summary(self, problem: Problem) -> NormSummary:
        """Return what `typical_residual` needs to know of these rows."""
        return NormSummary.of(self.T, problem, self._omega)

    def typical_residual(self, problem: Problem) -> float:
        """Return the geometric mean of the residual norms of B = 0."""
        return self.norm_summary(problem).typical

    def bring_within(self, problem: Problem, limit: float) -> None:
        """Shorten targets beyond `limit`, in units of the rows' omega; `factor` sums H'T anew."""
        self.T = within(self.T, problem, self._omega, limit)

    def step(
        self,
        B: Array,
        problem: Problem,
        rho: Array,
        relax: float,
        *,
        cap: Array,
        measure: bool = False,
    ) -> tuple[Array, Moves | None]:
        """Update E and U for the weights `B` (L, P, m), reading every row once.

        Parameters
        ----------
        B : array (L, P, m)
            Weights.
        problem, rho, relax
            The problem, its penalties (P,), and the over-relaxation.
        cap : array (P,)
            Largest residual norm that counts in the moves' second, capped, loss.
        measure : bool, default=False
            Return moves.

        Returns
        -------
        HtD : array (L, P, m)
            H'(E - U), all that the next B needs.
        moves : Moves or None
        """
        weights = self._flat(B)
        relax_, keep_ = self.dtype.type(relax), self.dtype.type(1.0 - relax)
        if measure:
            residuals, before = np.empty_like(self.E), self.E.copy()

        def update(rows: slice, h: Array) -> tuple[Array, ...]:
            residual = (h @ weights).reshape(len(h), *B.shape[1:])
            residual -= self.T[rows][:, None]
            v = relax_ * residual
            v += keep_ * self.E[rows]
            v += self.U[rows]
            u = self._multipliers(v, problem, rho, rows)
            e = v - u
            if measure:
                residuals[rows] = residual
            self.E[rows], self.U[rows] = e, u
            return (across(h, e - u),)

        (sums,) = self._totals(update, weights.shape[1])
        HtD = upright(sums, B.shape)
        return HtD, self._moves(residuals, before, problem, cap) if measure else None

    def _moves(self, residuals: Array, before: Array, problem: Problem, cap: Array) -> Moves:
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

        return Moves(*total(spread(measured, range(0, max(1, len(residuals)), n_rows))))

    def corrected(self, A: Array, which: Any, problem: Problem, rho: Array) -> tuple[Array, Array]:
        """Judge the multipliers rho U - HA of the problems `which`, for corrections A (L, P, m).

        Returns
        -------
        reach, squares : array (P,)
            How many times the radius of the loss's dual ball they reach, and their squared norm.
        """
        weights, rho = self._flat(A), rho.astype(self.dtype)[:, None]

        def judge(rows: slice, h: Array) -> tuple[Array, Array]:
            Y = rho * self.U[rows][:, which]
            Y -= (h @ weights).reshape(Y.shape)
            return problem.dual_reach(Y, self.omega(rows)), squares(Y)

        reach, size = zip(*self._pass(judge, weights.shape[1]), strict=True)
        return np.max(reach, axis=0), np.sum(size, axis=0)

    @property
    def complete(self) -> bool:
        """Whether every target cell is known."""
        return self._observed is None or bool(self._observed.all())

    def loss(self, X: Array, problem: Problem, cap: Array | None = None) -> Array:
        """Evaluate the loss at weights `X` (L, P, m), plain and capped; shape (2, P)."""
        weights = self._flat(X)

        def lost(rows: slice, h: Array) -> tuple[Array, ...]:
            residual = (h @ weights).reshape(-1, *X.shape[1:]) - self.T[rows][:, None]
            return (self._loss(residual, problem, cap, rows),)

        (loss,) = self._totals(lost, weights.shape[1])
        return loss

    def residual_sums(self, X: Array) -> tuple[Array, Array, Array]:
        """Return H'R (L, P, m), <R, T> (P,) and <R, R> (P,) of the residuals R = HX - T."""
        weights = self._flat(X)

        def summed(rows: slice, h: Array) -> tuple[Array, ...]:
            t = self.T[rows]
            R = (h @ weights).reshape(-1, *X.shape[1:]) - t[:, None]
            return across(h, R), inner(R, t), squares(R)

        HtR, RT, RR = self._totals(summed, weights.shape[1])
        return upright(HtR, X.shape), RT, RR

    def _loss(self, residual: Array, problem: Problem, cap: Array | None, rows: slice) -> Array:
        if self._observed is not None:
            residual = residual * self._observed[rows][:, None]
        omega = self.omega(rows)
        if cap is None:
            return np.stack([problem.loss_values(residual, omega)] * 2)
        return np.stack(problem.capped_loss_values(residual, omega, cap))

    def _multipliers(self, v: Array, problem: Problem, rho: Array, rows: slice) -> Array:
        if self._observed is not None:
            v = v * self._observed[rows][:, None]
        return problem.multipliers(v, rho, self.omega(rows))

    def _pass(
        self, work: Callable[[slice, Array], Result], n_columns: int, H: Array | None = None
    ) -> Iterator[Result]:
        """Go through the rows once, for products with so many columns.

        Yields what `work` makes of a block of rows and of H there, in the order of the blocks.
        """
        H = self.H if H is None else H
        return spread(lambda rows: work(rows, H[rows]), self._blocks(n_columns))

    def _totals(
        self,
        work: Callable[[slice, Array], tuple[Array, ...]],
        n_columns: int,
        H: Array | None = None,
    ) -> list[Array]:
        """Go through the rows once and add up what `work` makes of them."""
        return total(self._pass(work, n_columns, H))

    def _blocks(self, n_columns: int) -> Iterator[slice]:
        n_rows, n_hidden, _ = self.shape
        return cut(n_rows, n_hidden, n_columns, single=self.H.dtype == np.float32)

    def _flat(self, B: Array) -> Array:
        return np.ascontiguousarray(B.reshape(len(B), -1), dtype=self.dtype)

    def omega(self, rows: slice) -> Array | None:
        """Return the square roots of some rows' weights; None: all are 1."""
        return None if self._omega is None else self._omega[rows]


def factor_for(problem: Problem) -> type[CholeskyFactor] | type[EighFactor]:
    """One decomposition for many shifts, or the cheapest for one."""
    return CholeskyFactor if problem.n_problems == 1 else EighFactor


# == src/gorelm/blocks.py
# """Rows in blocks: where to cut them, and what one block adds to a sum."""


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


def across(h: Array, D: Array) -> Array:
    """Return (H'D)' of a block of rows, (P m, L): BLAS is up to twice as fast as for H'D."""
    return np.asarray(D.reshape(len(D), D.shape[1] * D.shape[2]).T @ h)


def upright(sums: Array, shape: tuple[int, ...]) -> Array:
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
