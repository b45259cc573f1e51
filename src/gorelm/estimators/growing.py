"""The growing methods: I-ELM, EM-ELM, IR-ELM and IGOR-ELM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from numbers import Real
from typing import ClassVar, Generic, TypeVar

import numpy as np

from gorelm._compat import Interval
from gorelm._solver.least_squares import GrowingLeastSquares, ResidualFitting
from gorelm._solver.prepared import Prepared
from gorelm._solver.problem import Problem
from gorelm._typing import Array, Constraints, Indices, Mask
from gorelm.estimators._base import IterativeELM, Weights, parameters
from gorelm.estimators._docs import document
from gorelm.estimators._growing import GrowingELM, GrowingSolver
from gorelm.estimators._prepare import patterns
from gorelm.estimators.batch import GORELMRegressor, gor_problem

_POSITIVE = Interval(Real, 0, None, closed="neither")


Part = TypeVar("Part", bound=GrowingSolver)


class _SeparateTargets(Generic[Part]):
    """Solvers for methods that treat targets separately: one for all known in the same rows."""

    def __init__(
        self,
        make: Callable[[Array, Array, Array | None], Part],
        H: Array,
        T: Array,
        omega: Array | None,
        observed: Mask | None,
    ) -> None:
        self._shape = T.shape
        self._parts: list[tuple[Mask | slice, Indices, Part]] = []
        for rows, columns in patterns(observed, T.shape[1]):
            weights = None if omega is None else omega[rows]
            self._parts.append((rows, columns, make(H[rows], T[rows][:, columns], weights)))

    def extend(self, dH: Array) -> None:
        for rows, _, part in self._parts:
            part.extend(dH[rows])

    def keep(self, nodes: Indices) -> None:
        for _, _, part in self._parts:
            part.keep(nodes)

    def outputs(self, coef: Array) -> Array:
        out = np.zeros(self._shape)
        for rows, columns, part in self._parts:
            known = out[rows]
            known[:, columns] = part.outputs(coef[:, columns])
            out[rows] = known
        return out

    def solve(self, solve: Callable[[Part], tuple[Array, float]]) -> Weights:
        """Join the weights and objectives that `solve` finds for every part."""
        found = [(columns, *solve(part)) for _, columns, part in self._parts]
        coef = np.empty((len(found[0][1]), self._shape[1]))
        for columns, weights, _ in found:
            coef[:, columns] = weights
        return Weights(coef, objective=float(sum(objective for _, _, objective in found)))


@document
@parameters
class IELMRegressor(GrowingELM[_SeparateTargets[ResidualFitting]]):
    r"""Incremental ELM: one node after the other, fitted to what the others left over.

    .. math:: \beta_j = \frac{h_j' e_{j-1}}{h_j' h_j}, \qquad e_j = e_{j-1} - h_j \beta_j,
              \qquad e_0 = T.

    Weights once found stay as they are, so a node costs a pass over the rows and no more; the
    squared error never increases, and is larger than that of the other methods.

    Parameters
    ----------
    {growing}
    {layer}
    {seed}

    Attributes
    ----------
    {grown}
    {fitted}

    Examples
    --------
    >>> from gorelm import IELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(200, outlier_ratio=0.0, random_state=0)
    >>> model = IELMRegressor(max_hidden=200, random_state=0).fit(data.X, data.T)
    >>> [record["n_hidden"] for record in model.grow(50).growth_]
    [100.0, 200.0, 250.0]
    """

    def _make_solver(
        self, H: Array, T: Array, omega: Array | None, observed: Mask | None
    ) -> _SeparateTargets[ResidualFitting]:
        return _SeparateTargets(lambda H, T, _: ResidualFitting(H, T), H, T, omega, observed)

    def _solve_nodes(self, solver: _SeparateTargets[ResidualFitting]) -> Weights:
        return solver.solve(ResidualFitting.solve)


@document
@parameters
class EMELMRegressor(GrowingELM[_SeparateTargets[GrowingLeastSquares]]):
    r"""Error-minimised ELM: least squares without regularisation, for nodes in groups.

    .. math:: B = H^\dagger T,

    at every size what `ELMRegressor` finds, but only new columns of H meet the rows. H may have
    any rank.

    Parameters
    ----------
    {growing}
    {layer}
    {seed}

    Attributes
    ----------
    {grown}
    {fitted}

    Examples
    --------
    >>> from gorelm import EMELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(300, outlier_ratio=0.0, random_state=0)
    >>> model = EMELMRegressor(n_initial=10, n_step=10, max_hidden=200, target_error=0.3,
    ...                        random_state=0).fit(data.X, data.T)
    >>> model.stopped_by_
    'target_error'
    """

    def _make_solver(
        self, H: Array, T: Array, omega: Array | None, observed: Mask | None
    ) -> _SeparateTargets[GrowingLeastSquares]:
        return _SeparateTargets(lambda H, T, _: GrowingLeastSquares(H, T), H, T, omega, observed)

    def _solve_nodes(self, solver: _SeparateTargets[GrowingLeastSquares]) -> Weights:
        return solver.solve(GrowingLeastSquares.solve)


@document
@parameters
class IRELMRegressor(GrowingELM[_SeparateTargets[Prepared]]):
    r"""Incremental regularised ELM: ridge, for nodes in groups.

    .. math:: B = (H'H + I/C)^{-1} H'T,

    at every size what ``RELMRegressor(C)`` finds. New nodes border the Cholesky factor of
    :math:`H'H + I/C` instead of starting it again.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the errors against the penalty; smaller is smoother.
    {growing}
    {layer}
    {seed}

    Attributes
    ----------
    {grown}
    {fitted}

    Examples
    --------
    >>> from gorelm import IRELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(300, outlier_ratio=0.0, random_state=0)
    >>> model = IRELMRegressor(C=100, validation=5, patience=2, random_state=0)
    >>> model.fit(data.X, data.T).stopped_by_ in ("patience", "max_hidden")
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **GrowingELM._parameter_constraints,
        "C": [_POSITIVE],
    }

    C: float = field(default=1.0, kw_only=False)

    def problem(self) -> Problem:
        """Return the problem that the parameters describe."""
        return Problem("squared", self.C, 0.0, 1.0)

    def _make_solver(
        self, H: Array, T: Array, omega: Array | None, observed: Mask | None
    ) -> _SeparateTargets[Prepared]:
        def make(H: Array, T: Array, omega: Array | None) -> Prepared:
            return Prepared(H, T, self.problem(), omega, capacity=self.max_hidden)

        return _SeparateTargets(make, H, T, omega, observed)

    def _solve_nodes(self, solver: _SeparateTargets[Prepared]) -> Weights:
        def solve(part: Prepared) -> tuple[Array, float]:
            found = part.solve(self.problem())
            return found.coef[:, 0], found.objective[0]

        return solver.solve(solve)


@document
@parameters
class IGORELMRegressor(GrowingELM[Prepared], IterativeELM):
    r"""Incremental generalised outlier-robust ELM: a GOR-ELM that grows.

    .. math:: \min_B\; \tau \sum_i h_\delta(\|h_i B - t_i\|_2) + \lambda\alpha \|B\|_{2,1}
              + \frac{\lambda(1-\alpha)}{2} \|B\|_F^2, \qquad \alpha = \texttt{l1\_ratio},

    at every size what ``GORELMRegressor(lam, l1_ratio)`` finds, with its certificate. The iteration
    starts from the last solution (warm start), new nodes border the Cholesky factor of
    :math:`H'H + sI`, and of the hidden outputs only the new columns are computed.

    ``solver="paper"`` runs the published iteration on that factor. (The published update of the
    explicit inverse multiplies rounding by up to the squared condition number of :math:`H'H + sI`
    each time; `benchmarks/growing.py` shows it.)

    Parameters
    ----------
    lam : float, default=1.0
        Weight of the penalty; larger is smoother, see `GORELMRegressor`.
    l1_ratio : float, default=0.0
        Share of the l2,1 penalty, which empties nodes for all targets together.
    tau : float, default=1.0
        Weight of the errors; only lam / tau matters.
    delta : float, default=0.0
        Row norm, in units of the scaled targets, up to which errors count squared.
    {growing}
    {layer}
    {solver}
    {seed}

    Attributes
    ----------
    {grown}
    {fitted}

    Examples
    --------
    >>> from gorelm import IGORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(300, outlier_ratio=0.2, random_state=0)
    >>> model = IGORELMRegressor(lam=0.1, max_hidden=200, random_state=0).fit(data.X, data.T)
    >>> bool(model.grow(100).growth_[-1]["dual_gap"] <= 1e-3)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **GrowingELM._parameter_constraints,
        **IterativeELM._parameter_constraints,
        **{
            name: GORELMRegressor._parameter_constraints[name]
            for name in ("lam", "l1_ratio", "tau", "delta")
        },
    }

    lam: float = field(default=1.0, kw_only=False)
    l1_ratio: float = 0.0
    tau: float = 1.0
    delta: float = 0.0

    def problem(self) -> Problem:
        """Return the problem that the parameters describe."""
        return gor_problem(self.lam, self.l1_ratio, self.tau, self.delta)

    def _make_solver(
        self, H: Array, T: Array, omega: Array | None, observed: Mask | None
    ) -> Prepared:
        problem, size = self.problem(), self.max_hidden
        return Prepared(H, T, problem, omega, observed, tol=self.tol, capacity=size)

    def _solve_nodes(self, solver: Prepared) -> Weights:
        found = solver.resume(self.problem(), self._settings(), self.callback)
        return self._weights_of(found)
