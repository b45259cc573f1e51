"""The row pass: everything that is as long as the data lives here, and nowhere else.

E and U of a row need only that row of H and T. One pass over the rows takes the weights B and
returns sums of the size of B; the loop in `admm.py` never sees N. Another owner of rows (streamed
blocks, a GPU, a cluster) implements the same methods and gets the same iterates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gorelm.problem import Problem
from gorelm.prox import Array

__all__ = ["Certificate", "Moves", "Rows"]

# A block of H this large stays in cache between its two products, and small products avoid the
# packing that dominates tall, narrow ones (measured by benchmarks/solver.py).
_BLOCK_CELLS = 64_000


@dataclass
class Moves:
    """How far one step moved, summed over the rows; arrays of shape (P,) unless said."""

    primal: Array  # ||HB - T - E||^2
    residual: Array  # ||HB - T||^2
    hidden: Array  # ||HB||^2
    error: Array  # ||E||^2
    error_change: Array  # ||E - E_old||^2
    multiplier: Array  # ||U||^2
    HtU: Array  # H'U, (L, P, m)
    Ht_error_change: Array  # H'(E - E_old), (L, P, m)

    @classmethod
    def zero(cls, shape: tuple[int, ...]) -> Moves:
        """Start a sum for weights of `shape` (L, P, m)."""
        sums = np.zeros((6, shape[1]))
        return cls(*sums, HtU=np.zeros(shape), Ht_error_change=np.zeros(shape))

    def add(self, h: Array, residual: Array, t: Array, e: Array, e_old: Array, u: Array) -> None:
        """Add a block of rows."""
        self.primal += _squares(residual - e)
        self.residual += _squares(residual)
        self.hidden += _squares(residual + t)
        self.error += _squares(e)
        self.error_change += _squares(e - e_old)
        self.multiplier += _squares(u)
        self.HtU += _product(h, u)
        self.Ht_error_change += _product(h, e - e_old)


@dataclass
class Certificate:
    """What the duality gap needs from the rows; arrays of shape (P,) unless said."""

    loss: Array  # loss of HX - T
    HtY: Array  # H'Y, (L, P, m), for the multipliers Y
    YT: Array  # <Y, T>
    YY: Array  # <Y, Y>


class Rows:
    """H, T, E and U in memory.

    Parameters
    ----------
    H : array (N, L)
        Hidden outputs, rows multiplied by `omega`.
    T : array (N, m)
        Targets, rows multiplied by `omega`; unobserved cells hold 0.
    omega : array (N,), optional
        Square roots of the sample weights.
    observed : boolean array (N, m), optional
        Which target cells are known. An unobserved cell has no residual: its E follows the
        prediction and its U stays 0.
    """

    def __init__(
        self,
        H: Array,
        T: Array,
        omega: Array | None = None,
        observed: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self.H = H
        self.T = T.astype(H.dtype, copy=False)
        self._omega = omega
        self._observed = observed
        self.E = self.U = np.zeros((len(H), 0, T.shape[1]), dtype=H.dtype)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return (N, L, m)."""
        return (*self.H.shape, self.T.shape[1])

    def start(self, n_problems: int) -> None:
        """Set E = U = 0 for `n_problems` problems."""
        n_rows, _, n_targets = self.shape
        self.E = np.zeros((n_rows, n_problems, n_targets), dtype=self.H.dtype)
        self.U = np.zeros_like(self.E)

    def keep(self, which: npt.NDArray[np.bool_]) -> None:
        """Drop the state of the problems that have left the batch."""
        self.E, self.U = self.E[:, which].copy(), self.U[:, which].copy()

    def rescale(self, factor: Array) -> None:
        """Divide U by `factor` (P,), as a change of rho by that factor asks for."""
        self.U /= factor.astype(self.U.dtype)[:, None]

    def HtT(self) -> Array:
        """Return H'T in float64, (L, m)."""
        return np.asarray(self.H.T @ self.T, dtype=np.float64)

    def TT(self) -> float:
        """Return the squared norm of T."""
        return float(np.einsum("nm,nm->", self.T, self.T, dtype=float))

    def typical_residual(self, problem: Problem) -> float:
        """Geometric mean of the nonzero residual norms of B = 0: a scale few rows can move."""
        r = problem.residual_norms(self.T)
        omega = np.ones(len(r)) if self._omega is None else self._omega
        omega = np.broadcast_to(omega.reshape((-1,) + (1,) * (r.ndim - 1)), r.shape)
        known = (r > 0) & (omega > 0)
        if not known.any():
            return 1.0
        logs, weights = np.log(r[known] / omega[known]), omega[known] ** 2
        return float(np.exp((weights @ logs) / weights.sum()))

    def step(
        self, B: Array, problem: Problem, rho: Array, relax: float, *, measure: bool = False
    ) -> tuple[Array, Moves | None]:
        """Update E and U for the weights `B` (L, P, m).

        Returns
        -------
        HtD : array (L, P, m)
            H'(E - U), all that the next B needs.
        moves : Moves or None
            When `measure` is set.
        """
        B2, shape = self._flat(B), self.E.shape[1:]
        HtD = np.zeros(B.shape)
        moves = Moves.zero(B.shape) if measure else None
        relax_, keep_ = self.H.dtype.type(relax), self.H.dtype.type(1.0 - relax)
        for rows in self._blocks(B2.shape[1]):
            h, t, e_old = self.H[rows], self.T[rows][:, None], self.E[rows]
            residual = (h @ B2).reshape(-1, *shape) - t
            v = relax_ * residual if relax != 1.0 else residual.copy()
            if relax != 1.0:
                v += keep_ * e_old
            v += self.U[rows]
            e = self._prox(v, problem, rho, rows)
            u = v - e
            HtD += _product(h, e - u)
            if moves is not None:
                moves.add(h, residual, t, e, e_old, u)
            self.E[rows], self.U[rows] = e, u
        return HtD, moves

    def certify(self, X: Array, problem: Problem, multipliers: Array | None) -> Certificate:
        """Evaluate the loss at weights `X` (L, P, m) and what bounds the optimum from below.

        The dual point is ``Y = multipliers * U``, or, for problems without E and U (squared loss),
        tau times the residual, when `multipliers` is None.
        """
        X2, shape = self._flat(X), X.shape[1:]
        total = Certificate(
            np.zeros(shape[0]), np.zeros(X.shape), np.zeros(shape[0]), np.zeros(shape[0])
        )
        scale = problem.tau if multipliers is None else multipliers
        for rows in self._blocks(X2.shape[1]):
            h, t = self.H[rows], self.T[rows][:, None]
            residual = (h @ X2).reshape(-1, *shape) - t
            if self._observed is not None:
                residual *= self._observed[rows][:, None]
            total.loss += problem.loss_values(residual, self._rows_of(self._omega, rows))
            y = residual if multipliers is None else self.U[rows]
            total.HtY += _product(h, y)
            total.YT += np.einsum("npm,nqm->p", y, t, dtype=float)
            total.YY += _squares(y)
        total.HtY *= scale[:, None]
        total.YT *= scale
        total.YY *= scale**2
        return total

    def _prox(self, v: Array, problem: Problem, rho: Array, rows: slice) -> Array:
        omega = self._rows_of(self._omega, rows)
        if self._observed is None:
            return problem.loss_prox(v, rho, omega).astype(v.dtype, copy=False)
        known = self._observed[rows][:, None]
        return np.where(known, problem.loss_prox(v * known, rho, omega), v).astype(v.dtype)

    def _blocks(self, n_columns: int) -> Iterator[slice]:
        n_rows, n_hidden, _ = self.shape
        size = max(32, _BLOCK_CELLS * 8 // max(1, n_hidden * n_columns))
        for start in range(0, n_rows, size):
            yield slice(start, min(start + size, n_rows))

    def _flat(self, B: Array) -> Array:
        return np.ascontiguousarray(B.reshape(len(B), -1), dtype=self.H.dtype)

    @staticmethod
    def _rows_of(values: Array | None, rows: slice) -> Array | None:
        return None if values is None else values[rows]


def _squares(A: Array) -> Array:
    return np.asarray(np.einsum("npm,npm->p", A, A, dtype=float))


def _product(h: Array, D: Array) -> Array:
    return np.asarray((h.T @ D.reshape(len(D), -1)).reshape(h.shape[1], *D.shape[1:]))
