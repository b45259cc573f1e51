"""The batch methods: ELM, R-ELM, OR-ELM, GR-ELM and GOR-ELM, each a declared problem."""

from __future__ import annotations

from dataclasses import field, replace
from numbers import Real
from typing import ClassVar

import numpy as np

from gorelm._compat import Interval
from gorelm._solver.admm import PAPER, Settings
from gorelm._solver.least_squares import minimum_norm
from gorelm._solver.linalg import product
from gorelm._solver.problem import Problem
from gorelm._typing import Array, Constraints, Inputs, Mask, Record
from gorelm.estimators._base import SizedELM, Weights, by_pattern, parameters
from gorelm.estimators._docs import document
from gorelm.estimators._owners import LargeELM

_POSITIVE = Interval(Real, 0, None, closed="neither")
_SHARE = Interval(Real, 0, 1, closed="both")
_EXACT = 1e-14  # relative gap at which an iteration stands for a closed form


@document
@parameters
class ELMRegressor(SizedELM):
    r"""Extreme learning machine: least squares without regularisation.

    .. math:: B = H^\dagger T,

    the least-squares output weights of smallest norm. Fast and simple; it fits outliers as
    faithfully as everything else.

    Parameters
    ----------
    {hidden}
    {seed}

    Attributes
    ----------
    {fitted}

    Examples
    --------
    >>> from gorelm import ELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(200, outlier_ratio=0.0, random_state=0)
    >>> ELMRegressor(n_hidden=50, random_state=0).fit(data.X, data.T).predict(data.X).shape
    (200, 3)
    """

    @property
    def _overwrites_hidden(self) -> bool:
        return True

    def _hidden_outputs(self, X_scaled: Inputs, offset: Array | None) -> Array:
        # LAPACK's precision and order, so that least squares works in this memory, not in a copy.
        out = np.empty((X_scaled.shape[0], self.hidden_.n_outputs), order="F")
        return self.hidden_.transform(X_scaled.astype(np.float64), offset=offset, out=out)

    def _solve(self, H: Array, T: Array, omega: Array | None, observed: Mask | None) -> Weights:
        return by_pattern(lambda H, T, _: Weights(minimum_norm(H, T)), H, T, omega, observed)


@document
@parameters
class RELMRegressor(LargeELM):
    r"""Regularised ELM: ridge, or an elastic net with intercept, for each target by itself.

    .. math:: \min_{\beta_0, \beta}\; \frac{C}{2} \|H\beta + \beta_0 - t\|_2^2
              + \frac{1-\alpha}{2} \|\beta\|_2^2 + \alpha \|\beta\|_1,
              \qquad \alpha = \texttt{l1\_ratio}.

    With ``l1_ratio=0`` the closed form :math:`(H'H + I/C)^{-1}H't`. The paper fixes
    :math:`\alpha = 0` and :math:`\beta_0 = 0`, the defaults here; the general definition is
    ``fit_intercept=True``.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the errors against the penalty; smaller is smoother.
    l1_ratio : float, default=0.0
        Share of the l1 penalty.
    fit_intercept : bool, default=False
        Whether to fit an unpenalised intercept.
    {hidden}
    {solver}
    {large}
    {seed}

    Attributes
    ----------
    {fitted}

    Examples
    --------
    >>> from gorelm import RELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(200, outlier_ratio=0.0, random_state=0)
    >>> RELMRegressor(C=100, n_hidden=50, random_state=0).fit(data.X, data.T).dual_gap_
    0.0
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **LargeELM._parameter_constraints,
        "C": [_POSITIVE],
        "l1_ratio": [_SHARE],
        "fit_intercept": ["boolean"],
    }

    C: float = field(default=1.0, kw_only=False)
    l1_ratio: float = 0.0
    fit_intercept: bool = False

    def problem(self) -> Problem:
        """Return the problem that the parameters describe."""
        return Problem("squared", self.C, self.l1_ratio, 1 - self.l1_ratio, grouped=False)

    def _settings(self) -> Settings:
        settings = super()._settings()
        if self.l1_ratio:
            return settings
        # The model of a search must not depend on where its rows are: of unknown targets there is a
        # closed form in memory, and elsewhere there are iterations, which converge fast.
        if self._check_every is not None and np.dtype(self._block_dtype) == np.float64:
            settings = replace(settings, tol=min(settings.tol, _EXACT))
        # The paper's R-ELM is the ridge, in closed form.
        return replace(settings, stop="gap")

    def _solve(self, H: Array, T: Array, omega: Array | None, observed: Mask | None) -> Weights:
        stopped = False

        def ask(record: Record) -> bool:
            """Once the callback has ended one pattern of known cells, the others end too."""
            nonlocal stopped
            stopped = stopped or bool(self.callback and self.callback(record))
            return stopped

        def solve_complete(H: Array, T: Array, omega: Array | None) -> Weights:
            if not self.fit_intercept:
                return self._iterate(H, T, omega, None, ask)
            # An unpenalised intercept is the same as weighted means of zero.
            ones = np.ones(len(H)) if omega is None else omega
            mean_h = product(H, ones[:, None])[:, 0] / (ones @ ones)
            mean_t = ones @ T / (ones @ ones)
            for start in range(0, len(H), 1024):  # without a second array of H's size
                H[start : start + 1024] -= ones[start : start + 1024, None] * mean_h
            found = self._iterate(H, T - ones[:, None] * mean_t, omega, None, ask)
            return replace(found, intercept=mean_t - mean_h @ found.coef)

        return by_pattern(solve_complete, H, T, omega, observed)

    @property
    def _overwrites_hidden(self) -> bool:
        return self.fit_intercept

    def _require_streamable(self, remedy: str = "raise memory_budget") -> None:
        if self.fit_intercept:
            raise ValueError(f"fit_intercept=True needs all of H in memory: {remedy}, or centre y")
        super()._require_streamable(remedy)


@document
@parameters
class ORELMRegressor(LargeELM):
    r"""Outlier-robust ELM: absolute errors of each target by itself, and ridge.

    .. math:: \min_B\; \sum_{ij} |(HB - T)_{ij}| + \frac{1}{2C} \|B\|_F^2

    The choice when single cells are wrong rather than whole rows.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the errors against the penalty; smaller is smoother.
    {hidden}
    {solver}
    {large}
    {seed}

    Attributes
    ----------
    {fitted}

    Examples
    --------
    >>> from gorelm import ORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(200, outlier_kind="cells", random_state=0)
    >>> ORELMRegressor(C=1, n_hidden=50, random_state=0).fit(data.X, data.T).converged_
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **LargeELM._parameter_constraints,
        "C": [_POSITIVE],
    }
    # Its authors run twenty steps on the residual split alone.
    _paper: ClassVar[Settings] = replace(PAPER, always_split=False, stop="never", max_iter=20)

    C: float = field(default=1.0, kw_only=False)

    def problem(self) -> Problem:
        """Return the problem that the parameters describe."""
        return Problem("l1", 1.0, 0.0, 1.0 / self.C)


@document
@parameters
class GRELMRegressor(LargeELM):
    r"""Generalised regularised ELM: squared errors, nodes emptied for all targets together.

    .. math:: \min_B\; \frac{C}{2} \|HB - T\|_F^2 + \lambda\alpha \|B\|_{2,1}
              + \frac{\lambda(1-\alpha)}{2} \|B\|_F^2, \qquad \alpha = \texttt{l1\_ratio}

    Parameters
    ----------
    C : float, default=1.0
        Weight of the errors.
    lam : float, default=1.0
        Weight of the penalty; only C / lam matters, and the paper fixes 1.
    l1_ratio : float, default=0.5
        Share of the l2,1 penalty, which empties nodes.
    {hidden}
    {solver}
    {large}
    {seed}

    Attributes
    ----------
    {fitted}

    Examples
    --------
    >>> from gorelm import GRELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(200, outlier_ratio=0.0, random_state=0)
    >>> model = GRELMRegressor(C=10, n_hidden=50, random_state=0).fit(data.X, data.T)
    >>> model.n_active_ <= 50
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **LargeELM._parameter_constraints,
        "C": [_POSITIVE],
        "lam": [_POSITIVE],
        "l1_ratio": [_SHARE],
    }

    C: float = field(default=1.0, kw_only=False)
    lam: float = 1.0
    l1_ratio: float = 0.5

    def problem(self) -> Problem:
        """Return the problem that the parameters describe."""
        return Problem("squared", self.C, self.lam * self.l1_ratio, self.lam * (1 - self.l1_ratio))


@document
@parameters
class GORELMRegressor(LargeELM):
    r"""Generalised outlier-robust ELM: a corrupted row cannot bend the model, and is named.

    .. math:: \min_B\; \tau \sum_i h_\delta(\|h_i B - t_i\|_2) + \lambda\alpha \|B\|_{2,1}
              + \frac{\lambda(1-\alpha)}{2} \|B\|_F^2, \qquad \alpha = \texttt{l1\_ratio},

    where :math:`h_\delta` is the Huber function; with ``delta=0`` the norm itself, as in the paper.
    Errors count by the norm of their row and not by its square: the pull of a row is bounded
    however wrong it is. `outlier_scores_` and `outlier_mask_` say which rows to distrust.

    Parameters
    ----------
    lam : float, default=1.0
        Weight of the penalty; larger is smoother. The loss is a sum over rows, so twice the rows
        want about twice the `lam`. Choose it by cross-validation with a score that outliers cannot
        rule (``examples/demo.py`` shows how); 4.0 ** arange(-4, 3) is a usable first grid.
    l1_ratio : float, default=0.0
        Share of the l2,1 penalty, which empties nodes for all targets together.
    tau : float, default=1.0
        Weight of the errors; only lam / tau matters.
    delta : float, default=0.0
        Row norm, in units of the scaled targets, up to which errors count squared. The plain norm
        predicts a median; where most rows share one value of a target (zero-inflated data) a delta
        of about the noise keeps the model from predicting just that.
    {hidden}
    {solver}
    {large}
    {seed}

    Attributes
    ----------
    {fitted}

    Examples
    --------
    >>> from gorelm import GORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(400, outlier_ratio=0.2, random_state=0)
    >>> model = GORELMRegressor(lam=0.1, n_hidden=100, random_state=0).fit(data.X, data.T)
    >>> bool(model.outlier_mask_[data.planted].mean() > 0.9)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **LargeELM._parameter_constraints,
        "lam": [_POSITIVE],
        "l1_ratio": [_SHARE],
        "tau": [_POSITIVE],
        "delta": [Interval(Real, 0, None, closed="left")],
    }

    lam: float = field(default=1.0, kw_only=False)
    l1_ratio: float = 0.0
    tau: float = 1.0
    delta: float = 0.0

    def problem(self) -> Problem:
        """Return the problem that the parameters describe."""
        return gor_problem(self.lam, self.l1_ratio, self.tau, self.delta)


def gor_problem(lam: float, l1_ratio: float, tau: float, delta: float) -> Problem:
    """Return what GOR-ELM minimises, and IGOR-ELM at every size."""
    return Problem("l21", tau, lam * l1_ratio, lam * (1 - l1_ratio), delta)
