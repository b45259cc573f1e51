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
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg

from gorelm import admm
from gorelm.admm import ADAPTIVE, Record, Settings, Solution
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
from gorelm.prox import Array
from gorelm.rows import Rows, typical_norm, within

__all__ = ["minimum_norm", "refuse_huge", "solve"]

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
    if problem.loss != "squared":
        T = within(T, problem, omega, _FARTHEST * typical_norm(T, problem, omega))
    refuse_huge(T, "y", H.dtype, "set target_scaling or rescale y")
    if H.shape[0] < H.shape[1]:  # small, and its null space magnifies float32's rounding
        H = H.astype(np.float64, copy=False)
    direct = problem.loss == "squared" and observed is None
    if direct and not problem.is_sparse and settings.stop == "gap":
        return _ridge(H, T, problem)
    kind, expand = _factor_for(problem), None
    factor: Factor
    if H.shape[0] >= H.shape[1]:
        factor = kind(gram(H))
    elif problem.is_sparse or settings.always_split:
        factor = WideFactor(H, kind, exact=settings.tol < 1e-3)
    else:
        H, expand = _row_space(H)
        factor = kind(gram(H))
    rows = Rows(H, T, omega, observed)
    solution = admm.solve(rows, factor, problem, settings, callback, direct=direct)
    return solution if expand is None else replace(solution, coef=expand(solution.coef))


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


def _ridge(H: Array, T: Array, problem: Problem) -> Solution:
    r"""Solve :math:`(H'H + (l_2/\tau) I) B = H'T`, on the N x N side when H is wide."""
    shifts, HtT = problem.l2 / problem.tau, product(H, T)
    if H.shape[0] < H.shape[1]:
        A = _factor_for(problem)(gram_rows(H)).solve(shifts, _repeat(T, len(shifts)))
        coef: Array = (H.T @ A.reshape(len(A), -1)).reshape(-1, *A.shape[1:])
    else:
        coef = _factor_for(problem)(gram(H)).solve(shifts, _repeat(HtT, len(shifts)))
    # At the optimum <HB, HB - T> = -(l2 / tau) <B, B>.
    objective = 0.5 * problem.tau * (np.vdot(T, T) - np.einsum("lpm,lm->p", coef, HtT))
    count = problem.n_problems
    return Solution(
        np.asarray(coef, dtype=np.float64),
        [1] * count,
        ["converged"] * count,
        objective.tolist(),
        [0.0] * count,
        [[] for _ in range(count)],
    )


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
