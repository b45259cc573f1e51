"""H and T with their decompositions: from hidden outputs and targets to output weights.

=====================================  ====================================================
problem                                how it is solved
=====================================  ====================================================
squared loss, no sparse penalty        closed form, one factorisation
squared loss, sparse penalty           ADMM without the residual split
robust loss                            ADMM
N < L and no sparse penalty            first shrunk to N columns by a QR decomposition of H'
N < L with a sparse penalty            linear systems on the N x N side (`WideFactor`)
=====================================  ====================================================

`Prepared` keeps the decompositions for many problems on one H, and for an H that grows: `extend`
adds nodes to H and to its decompositions, `resume` continues where the last solution ended.
`solve` is for one problem in memory, `solve_rows` for rows of any owner.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from gorelm._solver import admm
from gorelm._solver.admm import ADAPTIVE, Settings
from gorelm._solver.certificate import MANY_NEW, Directions
from gorelm._solver.far_targets import bring_near
from gorelm._solver.linalg import (
    CholeskyFactor,
    EighFactor,
    Factor,
    RowSpace,
    WideFactor,
    gram,
    gram_rows,
    product,
)
from gorelm._solver.problem import Problem, norms
from gorelm._solver.rows import MemoryRows, Rows, cut, factor_for
from gorelm._solver.state import Checkpoint, Solution, StrictlyFeasible, WarmStart
from gorelm._typing import Array, Callback, Indices, Mask


class PathProblem(Protocol):
    """What `gorelm.path` needs of H and T, in memory or on a device."""

    keeps_states: bool
    """Whether a problem can start where another ended."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, L, m)."""
        ...

    @property
    def itemsize(self) -> int:
        """Bytes of an element of H."""
        ...

    def solve(
        self,
        problem: Problem,
        settings: Settings = ADAPTIVE,
        callback: Callback | None = None,
        *,
        start: WarmStart | None = None,
        keep_state: bool = False,
    ) -> Solution:
        """Minimise a batch of problems; see `gorelm._solver.admm.solve`."""
        ...

    def largest_pull(self, problem: Problem) -> float:
        """Return the largest row of H'Y for the pull Y of the targets on an empty model.

        With tau times that for l1, or more, the best model is empty.
        """
        ...

    def empty_objective(self, problem: Problem) -> float:
        """Return the loss of the model without weights (of the first problem)."""
        ...


# Cached attributes of `Prepared` that cannot be reduced to some nodes.
_MADE_OF_H = (
    "_gram",
    "_leading",
    "_wide_factor",
    "_space",
    "_shrunk",
    "_row_gram",
    "_row_factor",
)


class _Way(NamedTuple):
    """How the ADMM loop will see a problem."""

    factor: Factor
    H: Array
    HtT: Array
    space: RowSpace | None  # the coordinates of the weights, if not the weights themselves


class Prepared:
    """H and T with the decompositions that solving takes, each made when first needed and kept.

    Parameters
    ----------
    H, T, omega, observed
        As for `solve`.
    like : Problem
        One of the problems, or a batch of as many as will be solved together.
    tol : float
        Smallest tolerance that will be asked for.
    capacity : int, default=0
        Number of nodes that H is expected to grow to.
    """

    keeps_states = True  # whether a solution can start where another ended

    def __init__(
        self,
        H: Array,
        T: Array,
        like: Problem,
        omega: Array | None = None,
        observed: Mask | None = None,
        *,
        tol: float = ADAPTIVE.tol,
        capacity: int = 0,
    ) -> None:
        self._capacity = capacity
        self._use(H)
        T = bring_near(T, like, omega, self.H.dtype)
        self.T, self._omega, self._observed = T, omega, observed
        self._like = like
        self._direct = like.loss == "squared" and observed is None
        self._kind = factor_for(like)
        self._exact = tol < ADAPTIVE.tol
        self._checkpoint: Checkpoint | None = None
        self._directions: Directions | None = None

    def _use(self, H: Array, spare: Array | None = None) -> None:
        if H.shape[0] < H.shape[1]:  # small, and its null space magnifies float32's rounding
            H = H.astype(np.float64, copy=False)
        self.H, self._spare = H, spare

    def solve(
        self,
        problem: Problem,
        settings: Settings = ADAPTIVE,
        callback: Callback | None = None,
        *,
        start: WarmStart | None = None,
        keep_state: bool = False,
    ) -> Solution:
        """Minimise; see `gorelm._solver.admm.solve` for the parameters.

        Where the loop works in the row space of H, so do the states.
        """
        if self._direct and not problem.is_sparse and settings.stop == "gap":
            return self._ridge(problem)
        way = self._way(problem, settings)
        solution = admm.solve(
            self._rows(way),
            way.factor,
            problem,
            settings,
            callback,
            direct=self._direct,
            start=start,
            keep_state=keep_state,
            directions=self._leading if way.factor is vars(self).get("_factor") else None,
        )
        return solution if way.space is None else _expanded(solution, way.space)

    def resume(
        self, problem: Problem, settings: Settings = ADAPTIVE, callback: Callback | None = None
    ) -> Solution:
        """Minimise one problem, continuing the last call's run; H may have grown since."""
        if self._direct:
            return self.solve(problem, settings, callback)
        way = self._way(problem, settings)
        last, self._checkpoint = self._checkpoint, None
        if last is not None and not _continues(last, problem, settings):
            last = None
        if last is not None and way.space is not None:
            B = last.iterate.B
            padded = np.zeros((self.H.shape[1], *B.shape[1:]))
            padded[: len(B)] = B
            last = last.without_nodes(way.space.shrink(padded))
        solution = admm.solve(
            self._rows(way),
            way.factor,
            problem,
            settings,
            callback,
            resume=last,
            keep_checkpoint=True,
            directions=self._directions_for(way, settings),
        )
        if way.space is not None:
            solution = _expanded(solution, way.space)
            if solution.checkpoint is not None:
                solution.checkpoint = solution.checkpoint.without_nodes(solution.coef)
        self._checkpoint, solution.checkpoint = solution.checkpoint, None
        return solution

    def _directions_for(self, way: _Way, settings: Settings) -> Directions | None:
        """Return the leading directions of H, which follow it as it grows, where they help."""
        adaptive = settings.rho is None and way.space is None and self._observed is None
        if not adaptive or self.H.size < admm.LARGE:
            self._directions = None
        elif self._directions is None:
            self._directions = Directions.find(self.H, way.factor)
        return self._directions

    def extend(self, dH: Array) -> None:
        """Add nodes with outputs `dH` (N, d), times omega, to H and to its decompositions."""
        (n_rows, n_old), n_new = self.H.shape, dH.shape[1]
        n_nodes = n_old + n_new
        kept = vars(self)  # where cached_property puts what has been made
        for name in ("_gram", "_leading"):
            kept.pop(name, None)
        factor = kept.pop("_factor", None)
        corner = None
        if n_rows >= n_nodes and isinstance(factor, CholeskyFactor):
            corner = gram(dH)
            factor.extend(product(self.H, dH), corner)
            self._factor = factor
        if "_HtT" in kept:
            self._HtT = np.concatenate([self._HtT, product(dH, self._T)])
        if self._spare is None or self._spare.shape[1] < n_nodes:
            spare = np.empty((n_rows, max(n_nodes, self._capacity)), self.H.dtype)
            spare[:, :n_old] = self.H
        else:
            spare = self._spare
        spare[:, n_old:n_nodes] = dH
        self._use(spare[:, :n_nodes], spare)
        if n_new > MANY_NEW:
            self._directions = None
        elif self._directions is not None:
            self._directions.extend(dH, corner)
        if "_wide_factor" in kept:
            self._wide_factor.widen(self.H, n_new)
        if "_space" in kept:
            self._space.extend(dH)
            kept.pop("_shrunk", None)
        if "_row_gram" in kept:
            self._row_gram = self._row_gram + gram_rows(dH)
            kept.pop("_row_factor", None)

    def keep(self, nodes: Indices) -> None:
        """Keep some nodes, by their increasing indices. What is left out must have weights of 0."""
        self._directions = None
        kept = vars(self)
        self._use(np.ascontiguousarray(self.H[:, nodes]))
        if "_factor" in kept:
            if isinstance(self._factor, CholeskyFactor):
                self._factor.keep(nodes)
            else:
                del kept["_factor"]
        if "_HtT" in kept:
            self._HtT = self._HtT[nodes]
        for name in _MADE_OF_H:
            kept.pop(name, None)
        if self._checkpoint is not None:
            whole = len(self._checkpoint.iterate.HtD) > 0
            self._checkpoint = self._checkpoint.keep(nodes) if whole else None

    def part(self, nodes: Indices) -> Prepared:
        """Return the system of some nodes, by their increasing indices, for a single problem."""
        part = copy(self)
        for name in ("_factor", "_HtT", *_MADE_OF_H):
            vars(part).pop(name, None)
        part._use(np.take(self.H, nodes, axis=1))
        part._kind, part._checkpoint = CholeskyFactor, None
        part._directions = None
        if "_gram" in vars(self):
            part._gram = np.asfortranarray(self._gram[np.ix_(nodes, nodes)])
        if "_HtT" in vars(self):
            part._HtT = self._HtT[nodes]
        return part

    def outputs(self, coef: Array) -> Array:
        """Return H times weights (L, m)."""
        weights = np.ascontiguousarray(coef, dtype=self.H.dtype)
        outputs = np.empty((len(self.H), weights.shape[1]), dtype=self.H.dtype)
        n_rows, n_hidden = self.H.shape
        for rows in cut(n_rows, n_hidden, weights.shape[1]):
            outputs[rows] = self.H[rows] @ weights
        return outputs

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

    def dual_point(self, dual: Array, problem: Problem) -> StrictlyFeasible:
        """Return H'Y and the dual value of multipliers Y (N, P, m) of other problems."""
        Y = dual.astype(np.float64, copy=False)
        HtY = product(self.H, Y.reshape(len(Y), -1)).reshape(-1, *Y.shape[1:])
        YT, YY = np.einsum("npm,nm->p", Y, self._T), np.einsum("npm,npm->p", Y, Y)
        return StrictlyFeasible(HtY, -YT - 0.5 * problem.curvature * YY)

    def empty_objective(self, problem: Problem) -> float:
        """Return the loss of the model without weights (of the first problem)."""
        first = problem.select(np.arange(1))
        return float(first.loss_values(-self.T[:, None], self._omega)[0])

    def _way(self, problem: Problem, settings: Settings) -> _Way:
        if self.H.shape[0] >= self.H.shape[1]:
            return _Way(self._factor, self.H, self._HtT, None)
        if problem.is_sparse or settings.always_split:
            return _Way(self._wide_factor, self.H, self._HtT, None)
        return self._shrunk

    def _rows(self, way: _Way) -> MemoryRows:
        return MemoryRows(way.H, self.T, self._omega, self._observed, way.HtT)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, L, m)."""
        return (*self.H.shape, self.T.shape[1])

    @property
    def itemsize(self) -> int:
        """Bytes of an element of H."""
        return self.H.itemsize

    @property
    def _T(self) -> Array:
        return self.T.astype(self.H.dtype, copy=False)

    @cached_property
    def _HtT(self) -> Array:
        return product(self.H, self._T)

    @cached_property
    def _gram(self) -> Array:
        return gram(self.H)

    @cached_property
    def _factor(self) -> Factor:
        return self._kind(self._gram)

    @cached_property
    def _leading(self) -> Directions | None:
        """The leading directions of H, where the factor knows them."""
        factor = self._factor
        return Directions.of(factor, self.H) if isinstance(factor, EighFactor) else None

    @cached_property
    def _wide_factor(self) -> WideFactor:
        return WideFactor(self.H, self._kind, exact=self._exact)

    @cached_property
    def _space(self) -> RowSpace:
        return RowSpace(self.H)

    @cached_property
    def _shrunk(self) -> _Way:
        H = self._space.H
        return _Way(self._kind(gram(H)), H, product(H, self._T), self._space)

    @cached_property
    def _row_gram(self) -> Array:
        return gram_rows(self.H)

    @cached_property
    def _row_factor(self) -> Factor:
        return self._kind(self._row_gram)

    def _ridge(self, problem: Problem) -> Solution:
        r"""Solve :math:`(H'H + (l_2/\tau) I) B = H'T`, on the N x N side when H is wide."""
        H, T, count = self.H, self.T, problem.n_problems
        shifts, HtT = problem.l2 / problem.tau, self._HtT
        if H.shape[0] < H.shape[1]:
            A = self._row_factor.solve(shifts, repeat(T, count))
            coef: Array = (H.T @ A.reshape(len(A), -1)).reshape(-1, *A.shape[1:])
        else:
            coef = self._factor.solve(shifts, repeat(HtT, count))
        TT = float(np.vdot(T, T))
        return Solution.exact(coef, ridge_objective(problem, TT, HtT, coef))


def ridge_objective(problem: Problem, TT: float, HtT: Array, coef: Array) -> Array:
    """Return the least objective of problems without a sparse penalty, from where it is met."""
    # There <HB, HB - T> = -(l2 / tau) <B, B>.
    return np.asarray(0.5 * problem.tau * (TT - np.einsum("lpm,lm->p", coef, HtT)))


def _expanded(solution: Solution, space: RowSpace) -> Solution:
    return replace(solution, coef=space.expand(solution.coef))


def _continues(last: Checkpoint, problem: Problem, settings: Settings) -> bool:
    """Whether a run's multipliers are those of a problem: with its loss and its splits."""
    before, sigma = last.iterate.problem, last.iterate.sigma
    same_loss = (before.loss, before.tau, before.delta, before.grouped) == (
        problem.loss,
        problem.tau,
        problem.delta,
        problem.grouped,
    )
    split = problem.is_sparse or settings.always_split
    if split and not (before.l1 == problem.l1).all():  # its sigma belongs to the other l1
        return False
    fixed = settings.rho is None or bool((last.iterate.rho == settings.rho).all())
    return same_loss and fixed and split == (sigma is not None)


def repeat(A: Array, n_problems: int) -> Array:
    """Return A (., m) once for each problem, (., P, m)."""
    return np.broadcast_to(A[:, None], (len(A), n_problems, A.shape[1]))


def solve(
    H: Array,
    T: Array,
    problem: Problem,
    *,
    omega: Array | None = None,
    observed: Mask | None = None,
    settings: Settings = ADAPTIVE,
    callback: Callback | None = None,
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
        See `gorelm._solver.admm.solve`.
    """
    prepared = Prepared(H, T, problem, omega, observed, tol=settings.tol)
    return prepared.solve(problem, settings, callback)


def solve_rows(
    rows: Rows,
    problem: Problem,
    *,
    settings: Settings = ADAPTIVE,
    callback: Callback | None = None,
) -> Solution:
    """Minimise `problem` over B for rows of any owner, by H'H whatever the shape of H.

    Parameters
    ----------
    rows : Rows
        Owner of H and T.
    problem, settings, callback
        See `gorelm._solver.admm.solve`.
    """
    factor = rows.factor(problem)
    direct = problem.loss == "squared" and rows.complete
    if direct and not problem.is_sparse and settings.stop == "gap":
        coef = factor.solve(problem.l2 / problem.tau, repeat(rows.HtT, problem.n_problems))
        return Solution.exact(coef, ridge_objective(problem, rows.TT(), rows.HtT, coef))
    return admm.solve(rows, factor, problem, settings, callback, direct=direct)
