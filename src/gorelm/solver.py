"""From hidden outputs and targets to output weights: choose the way, then walk it.

=====================================  ====================================================
problem                                way
=====================================  ====================================================
squared loss, no sparse penalty        closed form, one factorisation
squared loss, sparse penalty           ADMM without the residual split
robust loss                            ADMM
N < L and no sparse penalty            first shrunk to N columns by a QR decomposition of H'
N < L with a sparse penalty            linear systems on the N x N side (`WideFactor`)
=====================================  ====================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg

from gorelm import admm
from gorelm.admm import ADAPTIVE, Record, Settings, Solution, State
from gorelm.factor import (
    CholeskyFactor,
    EighFactor,
    Factor,
    WideFactor,
    gram,
    gram_rows,
    product,
)
from gorelm.problem import Problem
from gorelm.prox import Array, norms
from gorelm.rows import Rows, typical_norm, within

__all__ = ["System", "minimum_norm", "refuse_huge", "solve"]

# Robust losses see only the direction of a target this many typical sizes away (to the eighth
# digit); its length would only cost digits of everything else.
_FARTHEST = 1e8


def solve(
    H: Array,
    T: Array,
    problem: Problem,
    *,
    omega: Array | None = None,
    observed: npt.NDArray[np.bool_] | None = None,
    settings: Settings = ADAPTIVE,
    callback: Callable[[Record], Any] | None = None,
) -> Solution:
    """Minimise `problem` over B for hidden outputs `H` (N, L) and targets `T` (N, m).

    Parameters
    ----------
    H, T : array
        Rows already multiplied by `omega`; unobserved cells of T hold 0.
    problem : Problem
        What to minimise.
    omega : array (N,), optional
        Square roots of the sample weights, all positive.
    observed : boolean array (N, m), optional
        Which cells of T are known; None: all.
    settings, callback
        See `gorelm.admm.solve`.
    """
    system = System(H, T, problem, omega, observed, tol=settings.tol)
    return system.solve(problem, settings, callback)


class System:
    """H and T with the decompositions that solving takes, each made when first needed and kept.

    Parameters
    ----------
    H, T, omega, observed
        As for `solve`.
    like : Problem
        One of the problems, or a batch of as many as will be solved together.
    tol : float
        Smallest tolerance that will be asked for.
    """

    def __init__(
        self,
        H: Array,
        T: Array,
        like: Problem,
        omega: Array | None = None,
        observed: npt.NDArray[np.bool_] | None = None,
        *,
        tol: float = ADAPTIVE.tol,
    ) -> None:
        if like.loss != "squared":
            T = within(T, like, omega, _FARTHEST * typical_norm(T, like, omega))
        refuse_huge(T, "y", H.dtype, "set target_scaling or rescale y")
        if H.shape[0] < H.shape[1]:  # small, and its null space magnifies float32's rounding
            H = H.astype(np.float64, copy=False)
        self.H, self.T, self._omega, self._observed = H, T, omega, observed
        self._direct = like.loss == "squared" and observed is None
        self._kind = _factor_for(like)
        self._exact = tol < 1e-3

    def solve(
        self,
        problem: Problem,
        settings: Settings = ADAPTIVE,
        callback: Callable[[Record], Any] | None = None,
        *,
        start: State | None = None,
        keep_state: bool = False,
    ) -> Solution:
        """Minimise; see `gorelm.admm.solve` for the parameters."""
        if self._direct and not problem.is_sparse and settings.stop == "gap":
            return self._ridge(problem)
        split = problem.is_sparse or settings.always_split
        H, expand = self.H, None
        if H.shape[0] >= H.shape[1]:
            factor = self._factor
        elif split:
            factor = self._wide_factor
        else:
            factor, H, expand = self._shrunk
        solution = admm.solve(
            Rows(H, self.T, self._omega, self._observed),
            factor,
            problem,
            settings,
            callback,
            direct=self._direct,
            start=start,
            keep_state=keep_state,
        )
        return solution if expand is None else replace(solution, coef=expand(solution.coef))

    def largest_pull(self, problem: Problem) -> float:
        """Return the largest row of H'Y for the pull Y of the targets on an empty model.

        With tau times that for l1, or more, the best model is empty.
        """
        T = self.T
        if problem.loss != "squared":
            r = problem.residual_norms(T)
            r = r[:, None] if r.ndim == 1 else r
            omega = 1.0 if self._omega is None else self._omega[:, None]
            T = omega * T / np.maximum(r, np.maximum(omega * problem.delta[0], 1e-300))
        return float(norms(product(self.H, T), grouped=problem.grouped).max(initial=0.0))

    def empty_objective(self, problem: Problem) -> float:
        """Return the loss of the model without weights (of the first problem)."""
        first = problem.select(np.arange(1))
        return float(first.loss_values(-self.T[:, None], self._omega)[0])

    @cached_property
    def _factor(self) -> Factor:
        return self._kind(gram(self.H))

    @cached_property
    def _wide_factor(self) -> Factor:
        return WideFactor(self.H, self._kind, exact=self._exact)

    @cached_property
    def _shrunk(self) -> tuple[Factor, Array, Callable[[Array], Array]]:
        H, expand = _row_space(self.H)
        return self._kind(gram(H)), H, expand

    @cached_property
    def _row_factor(self) -> Factor:
        return self._kind(gram_rows(self.H))

    def _ridge(self, problem: Problem) -> Solution:
        r"""Solve :math:`(H'H + (l_2/\tau) I) B = H'T`, on the N x N side when H is wide."""
        H, T, count = self.H, self.T, problem.n_problems
        shifts, HtT = problem.l2 / problem.tau, product(H, T)
        if H.shape[0] < H.shape[1]:
            A = self._row_factor.solve(shifts, _repeat(T, count))
            coef: Array = (H.T @ A.reshape(len(A), -1)).reshape(-1, *A.shape[1:])
        else:
            coef = self._factor.solve(shifts, _repeat(HtT, count))
        # At the optimum <HB, HB - T> = -(l2 / tau) <B, B>.
        objective = 0.5 * problem.tau * (np.vdot(T, T) - np.einsum("lpm,lm->p", coef, HtT))
        return Solution(
            np.asarray(coef, dtype=np.float64),
            [1] * count,
            ["converged"] * count,
            objective.tolist(),
            [0.0] * count,
            [[] for _ in range(count)],
            objective.tolist(),
        )


def refuse_huge(A: Array, name: str, dtype: np.dtype[Any], remedy: str) -> None:
    """Refuse values whose sums of squares come too near the end of the range of `dtype`."""
    limit = float(np.finfo(dtype).max) ** (1 / 3)
    if A.size and float(np.nanmax(np.abs(A))) > limit:
        raise ValueError(
            f"{name} has values above {limit:.0e} after scaling, whose squares overflow in "
            f"{dtype}; {remedy}"
        )


def minimum_norm(H: Array, T: Array) -> Array:
    """Return the least-squares weights of smallest norm, the pseudo-inverse of H times T.

    Works in the memory of `H` when that is float64 and in Fortran order (scipy's lstsq would copy
    it, however asked), and leaves it overwritten.
    """
    n_rows, n_hidden = H.shape
    right = np.zeros((max(H.shape), T.shape[1]), order="F")
    right[:n_rows] = T
    cond = max(H.shape) * np.finfo(float).eps
    lwork, iwork, _ = linalg.lapack.dgelsd_lwork(n_rows, n_hidden, T.shape[1], cond)
    B, _, _, failed = linalg.lapack.dgelsd(
        H, right, int(lwork), int(iwork), cond, overwrite_a=1, overwrite_b=1
    )
    if failed:
        raise linalg.LinAlgError("the singular value decomposition of the hidden outputs failed")
    return np.asarray(B[:n_hidden])


def _factor_for(problem: Problem) -> type[CholeskyFactor] | type[EighFactor]:
    """One decomposition for many shifts, or the cheapest for one."""
    return CholeskyFactor if problem.n_problems == 1 else EighFactor


def _repeat(A: Array, n_problems: int) -> Array:
    return np.broadcast_to(A[:, None], (len(A), n_problems, A.shape[1]))


def _row_space(H: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Replace a wide H by a square one with the same products and the same norms of weights.

    With H' = QR, weights outside the range of Q only cost penalty, so B = QC and HB = R'C.
    """
    (packed, reflectors), R = linalg.qr(
        H.T.astype(np.float64, copy=False), mode="raw", check_finite=False
    )
    n_rows = len(H)

    def expand(C: Array) -> Array:
        padded = np.zeros((packed.shape[0], C[0].size), order="F")
        padded[:n_rows] = C.reshape(n_rows, -1)
        work = max(1, padded.shape[1]) * 64
        B, _, failed = linalg.lapack.dormqr("L", "N", packed, reflectors, padded, work)
        if failed:
            raise linalg.LinAlgError("could not apply the QR factor")
        return np.asarray(B).reshape(packed.shape[0], *C.shape[1:])

    return np.ascontiguousarray(R[:n_rows].T), expand
