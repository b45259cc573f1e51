r"""Regularisation paths: every lam and l1_ratio of a grid, for about the cost of a few fits.

The problems of a grid differ in two numbers, so they share H, T, one decomposition and every pass
over the rows (`gorelm._solver.admm` runs them as one batch). They are also neighbours: the optimum
:math:`F^*(\lambda)` is concave, its dual jointly so in the multipliers and :math:`\lambda`. A point
between the solutions at two lams is therefore nearly a solution, and often certified as good enough
without a single iteration. So the grid is solved from coarse to fine (`gorelm._solver.grid`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gorelm._solver.admm import ADAPTIVE, Settings
from gorelm._solver.grid import Grid
from gorelm._solver.prepared import PathProblem, Prepared
from gorelm._solver.problem import LossName, Problem
from gorelm._typing import Array, Callback

__all__ = ["Path", "default_lams", "gorelm_path", "solve_path"]

MEMORY_BUDGET = 2**30


@dataclass
class Path:
    """Solutions over a grid; the leading axes are (l1_ratio, lam)."""

    lams: Array  # (n_lams,), decreasing
    l1_ratios: Array  # (n_ratios,)
    coefs: Array  # (n_ratios, n_lams, L, m)
    objective: Array
    dual_gap: Array  # proven relative distance of each objective from its optimum
    n_iter: Array  # 0: certified where it began, without an iteration
    converged: Array


def gorelm_path(
    H: Any,
    T: Any,
    lams: Any = None,
    l1_ratios: Any = 0.0,
    *,
    loss: LossName = "l21",
    tau: float = 1.0,
    delta: float = 0.0,
    grouped: bool = True,
    sample_weight: Any = None,
    n_lams: int = 41,
    eps: float = 1e-6,
    tol: float = 1e-3,
    max_iter: int | None = None,
    memory_budget: float = MEMORY_BUDGET,
    callback: Callback | None = None,
) -> Path:
    r"""Solve a GOR-ELM (or its relatives) for every lam and l1_ratio of a grid.

    .. math:: \min_B\; \tau \sum_i h_\delta(\|h_i B - t_i\|_2) + \lambda\alpha \|B\|_{2,1}
              + \frac{\lambda(1-\alpha)}{2} \|B\|_F^2

    ==============================  =====================================================
    method                          arguments
    ==============================  =====================================================
    GOR-ELM                         as they are
    OR-ELM, C = 1 / lam             ``loss="l1"``
    GR-ELM, C / lam = 1 / lam       ``loss="squared"``, ``l1_ratios`` above 0
    R-ELM, C = 1 / lam              ``loss="squared"`` (closed form)
    ==============================  =====================================================

    Parameters
    ----------
    H : array or tensor (N, L)
        Hidden outputs; with a tensor of PyTorch's, the grid is solved on its device.
    T : array or tensor (N, m)
        Targets, in the units that the loss should see.
    lams : array, optional
        Weights of the penalty; default: `default_lams` with `n_lams` and `eps`.
    l1_ratios : float or array, default=0
        Shares of the l2,1 penalty.
    loss : {"l21", "l1", "squared"}, default="l21"
        See `gorelm._solver.problem`.
    tau, delta : float
        Weight of the errors; norm up to which robust losses are quadratic.
    grouped : bool, default=True
        Whether the sparse penalty empties whole nodes or single weights.
    sample_weight : array (N,), optional
        Positive weights of the rows.
    n_lams, eps : int, float
        The default grid's length, and its smallest lam as a share of its largest.
    tol, max_iter
        Relative duality gap at which each problem stops, and its most iterations (with half as many
        again on few nodes before).
    memory_budget : float, default=2**30
        Bytes that the state of a batch may take beyond H, T and the result; the grid is split to
        stay below. Results do not depend on it, but for rounding and, where it leaves no room for
        warm starts, within the gap.
    callback : callable, optional
        Called with each record of each problem's history (see `GORELMRegressor`), with `lam` and
        `l1_ratio` added, and without a `dual_gap` (NaN) while it runs on few nodes; a true return
        value ends the batch it came from.

    Returns
    -------
    Path
        Weights, objectives and certificates, lams in decreasing order.

    Examples
    --------
    >>> import numpy as np
    >>> from gorelm.path import gorelm_path
    >>> rng = np.random.default_rng(0)
    >>> H, T = rng.random((60, 20)), rng.normal(size=(60, 2))
    >>> path = gorelm_path(H, T, l1_ratios=[0.0, 0.5], n_lams=9)
    >>> path.coefs.shape, bool(path.converged.all())
    ((2, 9, 20, 2), True)
    """
    if type(H).__module__.split(".")[0] == "torch":
        from gorelm.backends.torch.path import tensor_problem

        make_problem = tensor_problem
        T = T if hasattr(T, "ndim") else np.asarray(T, dtype=float)
    else:
        H, T, make_problem = np.asarray(H), np.asarray(T, dtype=float), _array_problem
    if H.ndim != 2 or T.ndim != 2 or len(H) != len(T) or not len(H):
        raise ValueError(
            f"H must be (N, L) and T (N, m) with the same N > 0; got {H.shape} and {T.shape}"
        )
    if not H.shape[1] or not T.shape[1]:
        raise ValueError("H and T need at least one column each")
    if max_iter is not None and max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, or None; got {max_iter}")
    if not tol > 0:
        raise ValueError(f"tol must be positive; got {tol}")
    omega = None
    if sample_weight is not None:
        weights = np.asarray(sample_weight, dtype=float)
        if weights.shape != (len(H),) or not ((weights > 0) & np.isfinite(weights)).all():
            raise ValueError("sample_weight must hold one positive, finite number for each row")
        omega = np.sqrt(weights)
    ratios = checked_grid("l1_ratios", l1_ratios, largest=1.0)
    like = Problem(loss, [tau, tau], 1.0, 1.0, delta, grouped)
    settings = replace(ADAPTIVE, tol=tol, max_iter=max_iter or ADAPTIVE.max_iter)
    problem = make_problem(H, T, like, omega, tol)
    if lams is None:
        lams = default_lams(problem, like, ratios, n_lams, eps)
    return solve_path(problem, like, lams, ratios, settings, memory_budget, callback)


def _array_problem(
    H: Array, T: Array, like: Problem, omega: Array | None, tol: float
) -> PathProblem:
    H = H if H.dtype == np.float32 else H.astype(float, copy=False)
    for name, A in (("H", H), ("T", T)):
        if not np.isfinite(A).all():
            raise ValueError(f"{name} has values that are not finite")
    if omega is not None:
        H, T = H * omega[:, None].astype(H.dtype), T * omega[:, None]
    return Prepared(H, T, like, omega, tol=tol)


def default_lams(
    problem: PathProblem, like: Problem, l1_ratios: Array, n_lams: int = 41, eps: float = 1e-6
) -> Array:
    r"""Geometric grid from the smallest lam that empties every model, down to `eps` of it.

    The model of share :math:`\alpha` is empty from
    :math:`\lambda = \tau \max_j \|(H'Y)_j\| / \alpha` on, where Y holds the directions of the
    targets (the targets themselves for the squared loss). Models without sparsity
    (:math:`\alpha = 0`) are never empty; at the value for :math:`\alpha = 1` they are all but
    constant.
    """
    if n_lams < 1 or not 0 < eps < 1:
        raise ValueError(f"n_lams must be at least 1 and eps in (0, 1); got {n_lams} and {eps}")
    positive = l1_ratios[l1_ratios > 0]
    share = positive.min() if positive.size else 1.0
    largest = float(like.tau[0]) * problem.largest_pull(like) / share
    return np.geomspace(largest or 1.0, (largest or 1.0) * eps, n_lams)


def checked_grid(name: str, values: Any, *, largest: float = np.inf) -> Array:
    """Return a grid as a sorted array without repeats, or say what is wrong with it."""
    grid = np.unique(np.atleast_1d(np.asarray(values, dtype=float)))
    if not grid.size:
        raise ValueError(f"{name} is empty: give at least one value")
    if not (np.isfinite(grid).all() and grid[0] >= 0 and grid[-1] <= largest):
        limits = "not negative" if largest == np.inf else f"between 0 and {largest:g}"
        raise ValueError(f"{name} must be finite and {limits}; got {values}")
    return grid


class _Plan(NamedTuple):
    """What memory allows."""

    at_once: int  # problems in a batch
    kept: int  # lines of the grid whose states are kept
    room: float  # bytes for a copy of some columns of H


def _plan(problem: PathProblem, n_lams: int, budget: float) -> _Plan:
    """Cut the grid to the budget."""
    n_rows, n_hidden, n_targets = problem.shape
    # A state is kept once, and in several copies while neighbours are mixed and the batch runs.
    row, node = n_targets * problem.itemsize * n_rows, n_targets * 8 * n_hidden
    one, line = 6 * row + 14 * node, 2 * (row + node) * n_lams
    share = min(budget, 2.0**60) / 2
    kept = int(share // line) if problem.keeps_states else 0
    return _Plan(max(1, int(share // one)), kept, share)


def solve_path(
    problem: PathProblem,
    like: Problem,
    lams: Any,
    l1_ratios: Array,
    settings: Settings = ADAPTIVE,
    memory_budget: float = MEMORY_BUDGET,
    callback: Callback | None = None,
) -> Path:
    """Solve the grid; `like` gives everything but the penalty's weights."""
    lams = checked_grid("lams", lams)[::-1]
    if lams[-1] == 0:
        raise ValueError("lams must be positive: without a penalty the solution is not unique")
    _, n_hidden, n_targets = problem.shape
    shape = (len(l1_ratios), len(lams))
    path = Path(
        lams,
        l1_ratios,
        np.empty((*shape, n_hidden, n_targets)),
        np.empty(shape),
        np.empty(shape),
        np.empty(shape, dtype=int),
        np.empty(shape, dtype=bool),
    )
    plan = _plan(problem, len(lams), memory_budget)
    grid = Grid(problem, like, lams, settings, plan.at_once, plan.room, callback)
    for ratios, which, solution in grid.solve(l1_ratios, plan.kept):
        at = ratios, which
        path.coefs[at] = solution.coef.transpose(1, 0, 2)
        path.objective[at] = solution.objective
        path.dual_gap[at] = solution.dual_gap
        path.n_iter[at] = solution.n_iter
        path.converged[at] = np.equal(solution.status, "converged")
    empty_from = like.tau[0] * problem.largest_pull(like)
    for k, ratio in enumerate(l1_ratios):
        empty = ratio * lams >= empty_from * (1 - 1e-12) if ratio > 0 else np.zeros(len(lams), bool)
        path.coefs[k, empty], path.dual_gap[k, empty], path.converged[k, empty] = 0.0, 0.0, True
        path.objective[k, empty] = problem.empty_objective(like)
    return path
