"""Estimators that choose their own hyperparameters by robust cross-validation over whole paths."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from gorelm._solver.problem import Problem
from gorelm.estimators._base import IterativeELM, parameters
from gorelm.estimators._docs import document
from gorelm.estimators._search import GRID, SearchingELM
from gorelm.estimators.batch import (
    GORELMRegressor,
    GRELMRegressor,
    ORELMRegressor,
    RELMRegressor,
)
from gorelm.path import checked_grid

__all__ = [
    "GORELMRegressorCV",
    "GRELMRegressorCV",
    "ORELMRegressorCV",
    "RELMRegressorCV",
]


@document
@parameters
class GORELMRegressorCV(SearchingELM):
    r"""GOR-ELM whose penalty (and layer) is chosen by cross-validation that outliers cannot rule.

    Each fold solves the whole grid as one path (:func:`gorelm.path.gorelm_path`); the score of a
    validation row is the norm of its error, not its square (:mod:`gorelm.selection`).

    Parameters
    ----------
    lams : array, default=None
        Weights of the penalty to try; None: `n_lams` values from the one at which the model is
        empty down to `eps` times it.
    l1_ratios : float or array, default=0.0
        Shares of the l2,1 penalty to try.
    deltas : float or array, default=0.0
        Row norms, in units of the scaled targets, up to which errors count squared, to try.
    {search}
    {hidden}
    {seed}

    Attributes
    ----------
    lam_, l1_ratio_, delta_ : float
        What was chosen.
    {searched}
    {fitted}

    Examples
    --------
    >>> from gorelm import GORELMRegressorCV
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(300, outlier_ratio=0.2, random_state=0)
    >>> model = GORELMRegressorCV(n_hidden=50, n_lams=9, random_state=0).fit(data.X, data.T)
    >>> bool(model.cv_outlier_mask_[data.planted].mean() > 0.9)
    True
    """

    _single: ClassVar[type[IterativeELM]] = GORELMRegressor
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SearchingELM._parameter_constraints,
        "lams": [*GRID, None],
        "l1_ratios": GRID,
        "deltas": GRID,
    }

    lams: Any = field(default=None, kw_only=False)
    l1_ratios: Any = 0.0
    deltas: Any = 0.0

    def _like(self) -> Problem:
        return Problem("l21", [1.0, 1.0], 1.0, 1.0)

    def _grids(self) -> tuple[Any, Any, Any]:
        return self.lams, self.l1_ratios, self.deltas

    def _at(self, delta: float, l1_ratio: float, lam: float) -> dict[str, float]:
        return {"lam": lam, "l1_ratio": l1_ratio, "delta": delta}


@parameters
class _SearchingC(SearchingELM):
    """Methods whose one number is C = 1 / lam."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SearchingELM._parameter_constraints,
        "Cs": [*GRID, None],
    }

    Cs: Any = field(default=None, kw_only=False)

    def _grids(self) -> tuple[Any, Any, Any]:
        lams = None
        if self.Cs is not None:
            Cs = checked_grid("Cs", self.Cs)
            if Cs[0] == 0:
                raise ValueError("Cs must be positive")
            lams = 1.0 / Cs
        return lams, getattr(self, "l1_ratios", 0.0), 0.0

    def _at(self, delta: float, l1_ratio: float, lam: float) -> dict[str, float]:
        at = {"C": 1.0 / lam}
        if self.Cs is not None:  # as it was given, not after two divisions
            given = np.atleast_1d(np.asarray(self.Cs, dtype=float))
            at = {"C": float(given[np.argmin(np.abs(given * lam - 1.0))])}
        return {**at, "l1_ratio": l1_ratio} if hasattr(self, "l1_ratios") else at


@document
@parameters
class RELMRegressorCV(_SearchingC):
    """R-ELM (ridge or elastic net) whose C is chosen by robust cross-validation.

    Parameters
    ----------
    Cs : array, default=None
        Weights of the errors to try; None: `n_lams` values of 1 / C from the data.
    l1_ratios : float or array, default=0.0
        Shares of the l1 penalty to try.
    {search}
    {hidden}
    {seed}

    Attributes
    ----------
    C_, l1_ratio_ : float
        What was chosen.
    {searched}
    {fitted}
    """

    _single: ClassVar[type[IterativeELM]] = RELMRegressor
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_SearchingC._parameter_constraints,
        "l1_ratios": GRID,
    }

    l1_ratios: Any = 0.0

    def _like(self) -> Problem:
        return Problem("squared", [1.0, 1.0], 1.0, 1.0, grouped=False)


@document
@parameters
class ORELMRegressorCV(_SearchingC):
    """OR-ELM whose C is chosen by robust cross-validation.

    Parameters
    ----------
    Cs : array, default=None
        Weights of the errors to try; None: `n_lams` values of 1 / C from the data.
    {search}
    {hidden}
    {seed}

    Attributes
    ----------
    C_ : float
        What was chosen.
    {searched}
    {fitted}
    """

    _single: ClassVar[type[IterativeELM]] = ORELMRegressor

    def _like(self) -> Problem:
        return Problem("l1", [1.0, 1.0], 1.0, 1.0)


@document
@parameters
class GRELMRegressorCV(_SearchingC):
    """GR-ELM whose C and l1_ratio are chosen by robust cross-validation.

    Parameters
    ----------
    Cs : array, default=None
        Weights of the errors to try (`lam` is 1); None: `n_lams` values of 1 / C from the data.
    l1_ratios : float or array, default=0.5
        Shares of the l2,1 penalty to try.
    {search}
    {hidden}
    {seed}

    Attributes
    ----------
    C_, l1_ratio_ : float
        What was chosen.
    {searched}
    {fitted}
    """

    _single: ClassVar[type[IterativeELM]] = GRELMRegressor
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_SearchingC._parameter_constraints,
        "l1_ratios": GRID,
    }

    l1_ratios: Any = 0.5

    def _like(self) -> Problem:
        return Problem("squared", [1.0, 1.0], 1.0, 1.0)
