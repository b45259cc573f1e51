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
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import linalg

from gorelm import admm
from gorelm.admm import ADAPTIVE, Record, Settings, Solution
from gorelm.problem import Problem
from gorelm.prox import Array
from gorelm.rows import Rows
from gorelm.system import System, repeat, ridge_objective
from gorelm.targets import farthest

__all__ = ["minimum_norm", "solve", "solve_rows"]


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


def solve_rows(
    rows: Rows,
    problem: Problem,
    *,
    settings: Settings = ADAPTIVE,
    callback: Callable[[Record], Any] | None = None,
    near: bool = False,
) -> Solution:
    """Minimise `problem` over B for rows of any owner, by H'H whatever the shape of H.

    Parameters
    ----------
    rows : Rows
        Owner of H and T.
    problem, settings, callback
        See `gorelm.admm.solve`.
    near : bool, default=False
        Whether targets too far away have been shortened already, as by `bring_near`.
    """
    if problem.loss != "squared" and not near:
        rows.bring_within(problem, farthest(rows.dtype) * rows.typical_residual(problem))
    factor = rows.factor(problem)
    direct = problem.loss == "squared" and rows.complete
    if direct and not problem.is_sparse and settings.stop == "gap":
        coef = factor.solve(problem.l2 / problem.tau, repeat(rows.HtT, problem.n_problems))
        return Solution.exact(coef, ridge_objective(problem, rows.TT(), rows.HtT, coef))
    return admm.solve(rows, factor, problem, settings, callback, direct=direct)


def minimum_norm(H: Array, T: Array, cond: float | None = None) -> Array:
    """Return the least-squares weights of smallest norm, the pseudo-inverse of H times T.

    Singular values up to `cond` times the largest (default: rounding) count as 0.

    Works in the memory of `H` when that is float64 and in Fortran order (scipy's lstsq would copy
    it, however asked), and leaves it overwritten.
    """
    n_rows, n_hidden = H.shape
    right = np.zeros((max(H.shape), T.shape[1]), order="F")
    right[:n_rows] = T
    cond = max(H.shape) * np.finfo(float).eps if cond is None else cond
    lwork, iwork, _ = linalg.lapack.dgelsd_lwork(n_rows, n_hidden, T.shape[1], cond)
    B, _, _, failed = linalg.lapack.dgelsd(
        H, right, int(lwork), int(iwork), cond, overwrite_a=1, overwrite_b=1
    )
    if failed:
        raise linalg.LinAlgError("the singular value decomposition of the hidden outputs failed")
    return np.asarray(B[:n_hidden])
