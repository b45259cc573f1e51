"""What every estimator shares: validate, scale, draw the hidden layer, solve, score the rows."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from numbers import Integral, Real
from typing import ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from gorelm._compat import Interval, StrOptions, validate_params
from gorelm._features.layer import HiddenLayer, RowSource
from gorelm._features.scaling import INPUT_SCALINGS, TARGET_SCALINGS, Scaling
from gorelm._solver.admm import ADAPTIVE, PAPER, Settings
from gorelm._solver.prepared import solve
from gorelm._solver.problem import Problem
from gorelm._solver.state import Solution
from gorelm._typing import (
    Array,
    Callback,
    Constraints,
    Indices,
    Inputs,
    Mask,
    RandomState,
    Record,
)
from gorelm.diagnostics.outlier_scores import outlier_threshold
from gorelm.estimators._prepare import (
    Design,
    Targets,
    known_cells,
    patterns,
    row_scores,
    usable_rows,
    validate_targets,
)

# Turns the annotated names of an estimator's class body into its constructor. scikit-learn reads
# parameters off the constructor's signature, and so each is written once, where it belongs.
parameters = dataclass(kw_only=True, eq=False, repr=False)

_PREDICT_ROWS = 1024
_LOST = 1e150  # squares overflow beyond


@dataclass
class Weights:
    """Output weights found by a method, with the status of its iteration."""

    coef: Array
    intercept: Array | float = 0.0
    n_iter: int = 1
    status: str = "converged"
    dual_gap: float = 0.0
    history: list[Record] = field(default_factory=list)
    objective: float = float("nan")


@parameters
class BaseELM(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Random hidden layer plus output weights; methods differ in `_solve`."""

    _parameter_constraints: ClassVar[Constraints] = {
        "activation": [str],  # the layer knows the table as it is now, entries of users included
        "weights": [StrOptions({"uniform", "normal"})],
        "weight_scale": [Interval(Real, 0, None, closed="neither")],
        "n_inputs": [Interval(Integral, 1, None, closed="left"), None],
        "direct_link": ["boolean"],
        "input_scaling": [StrOptions(set(INPUT_SCALINGS)), None],
        "target_scaling": [StrOptions(set(TARGET_SCALINGS)), None],
        "missing_targets": [StrOptions({"error", "ignore"})],
        "random_state": ["random_state"],
    }

    activation: str = "sigmoid"
    weights: str = "uniform"
    weight_scale: float = 1.0
    n_inputs: int | None = None
    direct_link: bool = False
    input_scaling: str | None = "minmax"
    target_scaling: str | None = "robust"
    missing_targets: str = "error"
    random_state: RandomState = None

    # -- for each method to define ---------------------------------------------------------------

    @property
    def _n_first(self) -> int:
        """Number of nodes to draw at the start."""
        raise NotImplementedError

    def _solve(self, H: Array, T: Array, omega: Array | None, observed: Mask | None) -> Weights:
        """Find the output weights, for rows already multiplied by `omega`.

        `omega` holds the square roots of the sample weights (None: all 1), `observed` the known
        cells of T (None: all). H must be left as it is, or `_overwrites_hidden` be set.
        """
        raise NotImplementedError

    @property
    def _overwrites_hidden(self) -> bool:
        """Whether `_solve` overwrites H."""
        return False

    def _warn_unless_converged(self, found: Weights) -> None:
        """Warn if an iteration ended before it converged."""

    # -- fitting ---------------------------------------------------------------------------------

    def fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Fit the output weights.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
            Inputs; float32 inputs are worked on in float32.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets. NaN marks an unknown cell when ``missing_targets="ignore"``.
        sample_weight : array of shape (n_samples,), optional
            Weight of every row; a weight of 2 equals the row twice, a weight of 0 its absence.

        Returns
        -------
        self : object
            The fitted estimator. A fit that fails or is interrupted leaves it as it was.
        """
        with all_or_nothing(self):
            validate_params(self)
            self._fit(X, y, sample_weight)
        return self

    def _fit(self, X: object, y: object, sample_weight: object) -> None:
        self._fit_rows(*self._validate(X, y, sample_weight))

    def _fit_rows(self, X: Inputs, T: Array, w: Array) -> None:
        used = usable_rows(T, w)
        rows = slice(None) if used.all() else used
        w = w[rows]

        H, design = self._drawn(X[rows], T[rows], w)
        size = design.typical_size()
        self._remember(self._solve(H, design.T, design.omega, design.observed))

        if used.all() and not self._overwrites_hidden:
            residuals = design.residuals(H @ self.coef_.astype(H.dtype), self.intercept_)
        else:
            del H
            residuals = self._residuals(X, T)
        self._score(row_scores(residuals, T), used, w, size)

    def _score(self, scores: Array, used: Mask, w: Array, size: float) -> None:
        """Set the outlier scores of all rows; `used` ones of weight `w` set the threshold.

        `size` is their typical norm of the targets.
        """
        self.outlier_scores_ = scores
        # A model that passes through most rows leaves rounding, and rounding has no outliers.
        self.outlier_threshold_ = max(outlier_threshold(scores[used], w), 1e-4 * size)
        self.outlier_mask_ = scores > self.outlier_threshold_

    def _design(self, X: Inputs, T: Array, w: Array) -> Design:
        """Fit the scalings and apply them. Every row must have a weight and a known target."""
        self._input_scaling = Scaling.fit(self.input_scaling, X, w)
        self._target_scaling = Scaling.fit(self.target_scaling, T, w)
        return self._scaled(X, T, w)

    def _scaled(self, X: Inputs, T: Array, w: Array) -> Design:
        """Apply the scalings."""
        return Design.of(self._input_scaling, X, Targets.scaled(self._target_scaling, T, w))

    def _drawn(self, X: Inputs, T: Array, w: Array) -> tuple[Array, Design]:
        """Scale, draw the hidden layer, and return its outputs (times omega) and the rows."""
        design = self._design(X, T, w)
        self.hidden_ = self._draw(X.shape[1], design)
        return design.times_omega(self._hidden_outputs(design.X, design.offset)), design

    def _draw(
        self,
        n_features: int,
        design: Design | None = None,
        *,
        rows: RowSource | None = None,
        w: Array | None = None,
    ) -> HiddenLayer:
        """Draw the layer; radial nodes have centres among `design`, or `rows` of weight `w`."""
        return HiddenLayer.draw(
            self._n_first,
            n_features,
            activation=self.activation,
            weights=self.weights,
            weight_scale=self.weight_scale,
            n_inputs=self.n_inputs,
            direct_link=self.direct_link,
            random_state=self.random_state,
            X=rows if design is None else design.X,
            sample_weight=w if design is None else design.w,
            offset=None if design is None else design.offset,
        )

    def _remember(self, found: Weights) -> None:
        require_finite(found)
        self._warn_unless_converged(found)
        # In one order, or a copy of the model would predict other last digits.
        self.coef_ = np.ascontiguousarray(found.coef)
        self.intercept_ = np.broadcast_to(found.intercept, found.coef.shape[1:]).astype(float)
        self.n_iter_, self.dual_gap_ = found.n_iter, found.dual_gap
        self.converged_, self.history_ = found.status == "converged", found.history
        self.n_active_ = int(np.count_nonzero(found.coef.any(axis=1)))

    def _validate(self, X: object, y: object, sample_weight: object) -> tuple[Inputs, Array, Array]:
        X = validate_data(self, X, accept_sparse=("csr",), dtype=[np.float64, np.float32])
        return X, *validate_targets(self, X, y, sample_weight)

    def _targets_again(self, X: Inputs, y: object, sample_weight: object) -> tuple[Array, Array]:
        """Validate the targets of more rows: they must be as the first ones were."""
        one_target = self._one_target
        T, w = validate_targets(self, X, y, sample_weight)
        if T.shape[1] != self.coef_.shape[1] or self._one_target != one_target:
            before = "(n_samples,)" if one_target else f"(n_samples, {self.coef_.shape[1]})"
            now = T.shape[:1] if self._one_target else T.shape
            raise ValueError(f"y has shape {now}; the model was fitted with {before}")
        return T, w

    def _hidden_outputs(self, X_scaled: Inputs, offset: Array | None) -> Array:
        return self.hidden_.transform(X_scaled, offset=offset)

    def _residuals(self, X: Inputs, T: Array) -> Array:
        """Residuals in units of the scaled targets; 0 where a target is unknown."""
        residuals = self._outputs(X) - self._target_scaling.dense(T)
        residuals[~known_cells(T)] = 0.0
        return residuals

    # -- using a fitted model --------------------------------------------------------------------

    def predict(self, X: object) -> Array:
        """Predict the targets of new rows.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Predictions, in the shape that y had.
        """
        outputs = self._outputs(self._validate_new(X))
        y = self._target_scaling.undo(outputs)
        return y[:, 0] if self._one_target else y

    def _outputs(self, X: Inputs) -> Array:
        """Return outputs in units of the scaled targets, a block of rows at a time."""
        out = np.empty((X.shape[0], self.coef_.shape[1]))
        for start in range(0, X.shape[0], _PREDICT_ROWS):
            rows = slice(start, start + _PREDICT_ROWS)
            scaled, offset = self._input_scaling.apply(X[rows])
            out[rows] = self.hidden_.transform(scaled, offset=offset) @ self.coef_
        out += self.intercept_
        return out

    def hidden_outputs(self, X: object) -> Array:
        """Return H, the outputs of the hidden layer for the rows of X (scaled as in the fit).

        Predictions in units of the scaled targets are ``hidden_outputs(X) @ coef_ + intercept_``.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        H : array of shape (n_samples, n_outputs)
        """
        checked = self._validate_new(X)
        scaled, offset = self._input_scaling.apply(checked)
        return self.hidden_.transform(scaled, offset=offset)

    def _validate_new(self, X: object) -> Inputs:
        check_is_fitted(self)
        checked: Inputs = validate_data(
            self, X, accept_sparse=("csr",), dtype=[np.float64, np.float32], reset=False
        )
        return checked

    def prune(self) -> Self:
        """Remove the hidden nodes whose output weights are all exactly zero.

        Predictions stay the same (to rounding); prediction gets cheaper in proportion.

        Returns
        -------
        self : object
            The same estimator, its `hidden_` and `coef_` reduced to `n_active_` outputs.
        """
        check_is_fitted(self)
        self._keep(np.flatnonzero(self.coef_.any(axis=1)))
        return self

    def _keep(self, outputs: Indices) -> None:
        """Keep some outputs of the hidden layer, in all that has an entry for each."""
        self.hidden_ = self.hidden_.keep(outputs)
        self.coef_ = self.coef_[outputs]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


@parameters
class SizedELM(BaseELM):
    """A `BaseELM` whose number of nodes is given."""

    _parameter_constraints: ClassVar[Constraints] = {
        **BaseELM._parameter_constraints,
        "n_hidden": [Interval(Integral, 0, None, closed="left")],
    }

    n_hidden: int = 1000

    @property
    def _n_first(self) -> int:
        return self.n_hidden


@parameters
class IterativeELM(BaseELM):
    """A `BaseELM` whose weights come out of the ADMM loop."""

    _parameter_constraints: ClassVar[Constraints] = {
        **BaseELM._parameter_constraints,
        "solver": [StrOptions({"adaptive", "paper"})],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "callback": [callable, None],
    }
    _paper: ClassVar[Settings] = PAPER

    solver: str = "adaptive"
    tol: float = 1e-3
    max_iter: int | None = None
    callback: Callback | None = None

    def problem(self) -> Problem:
        """Return the method: the problem its parameters describe."""
        raise NotImplementedError

    def _settings(self) -> Settings:
        base = ADAPTIVE if self.solver == "adaptive" else self._paper
        return replace(base, tol=self.tol, max_iter=self.max_iter or base.max_iter)

    def _solve(self, H: Array, T: Array, omega: Array | None, observed: Mask | None) -> Weights:
        return self._iterate(H, T, omega, observed, self.callback)

    def _iterate(
        self,
        H: Array,
        T: Array,
        omega: Array | None,
        observed: Mask | None,
        callback: Callback | None,
    ) -> Weights:
        found = solve(
            H,
            T,
            self.problem(),
            omega=omega,
            observed=observed,
            settings=self._settings(),
            callback=callback,
        )
        return self._weights_of(found)

    def _take_solution(self, found: Solution) -> None:
        self._remember(self._weights_of(found))

    def _weights_of(self, found: Solution) -> Weights:
        gap, status = found.dual_gap[0], found.status[0]
        if not np.isfinite(found.objective[0]):
            raise ValueError(
                f"{type(self).__name__} diverged: after {found.n_iter[0]} iterations its objective "
                "is not finite. This happens where sample_weight, targets without target_scaling, "
                "or penalties differ by more powers of ten than the hidden outputs have digits. "
                "Make them more alike, or pass X as float64."
            )
        if self._settings().stop == "never" and status == "max_iter":  # the steps asked for
            status = "converged" if gap <= self.tol else "steps done"
        return Weights(
            found.coef[:, 0],
            0.0,
            found.n_iter[0],
            status,
            gap,
            found.history[0],
            found.objective[0],
        )

    def _warn_unless_converged(self, found: Weights) -> None:
        if found.status != "max_iter":
            return
        state = (
            f"{type(self).__name__} stopped after {found.n_iter} iterations; its objective is "
            f"proven to be within {found.dual_gap:.1e} of the optimum (relative). "
        )
        remedy = (
            f"tol={self.tol:g} was asked for: raise max_iter or tol; more regularisation or a "
            "smaller l1_ratio converges faster."
            if self.solver == "adaptive"
            else "The paper's rule (in which tol plays no part) was not met: raise max_iter, or "
            'use solver="adaptive".'
        )
        warnings.warn(state + remedy, ConvergenceWarning, stacklevel=levels_to_caller())


def require_finite(found: Weights) -> None:
    """Raise if the weights are not finite, or so large that their squares overflow."""
    if not (np.abs(found.coef) < _LOST).all():
        raise ValueError(
            "the output weights are not finite: the fit has lost all its digits; use more "
            "regularisation (larger lam, smaller C), scaling, a sample_weight of ordinary "
            "size, or float64 inputs"
        )


def seeded(model: BaseEstimator, rng: np.random.RandomState) -> BaseEstimator:
    """Give every `random_state` of a model, and of the models in it, that is None a seed."""
    seeds = {
        name: rng.randint(np.iinfo(np.int32).max)
        for name, value in sorted(model.get_params().items())
        if name.split("__")[-1] == "random_state" and value is None
    }
    return model.set_params(**seeds)


def with_groups(fit_params: dict[str, object], groups: object) -> dict[str, object]:
    """Return the parameters of an inner fit, with groups if there are any."""
    return fit_params if groups is None else {**fit_params, "groups": groups}


def takes_groups(model: BaseEstimator) -> bool:
    """Whether the fit of a model takes groups; one that passes them on says it by a method."""
    if hasattr(model, "_takes_groups"):
        return bool(model._takes_groups())
    return "groups" in signature(model.fit).parameters


def levels_to_caller() -> int:
    """Return the stack level, for a warning, of the first call from outside this library."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("gorelm."):
        level, frame = level + 1, frame.f_back
    return level


def by_pattern(
    solve_complete: Callable[[Array, Array, Array | None], Weights],
    H: Array,
    T: Array,
    omega: Array | None,
    observed: Mask | None,
) -> Weights:
    """Solve methods that treat targets separately: targets known in the same rows together."""
    if observed is None:
        return solve_complete(H, T, omega)
    coef, intercept = np.empty((H.shape[1], T.shape[1])), np.empty(T.shape[1])
    parts = []
    for rows, columns in patterns(observed, T.shape[1]):
        omega_there = None if omega is None else omega[rows]
        part = solve_complete(H[rows], T[rows][:, columns], omega_there)
        coef[:, columns], intercept[columns] = part.coef, part.intercept
        parts.append(part)
    worst = max(parts, key=lambda part: (part.status != "converged", part.dual_gap))
    return replace(
        worst,
        coef=coef,
        intercept=intercept,
        n_iter=max(part.n_iter for part in parts),
        history=[record for part in parts for record in part.history],
    )


@contextmanager
def all_or_nothing(estimator: BaseEstimator) -> Iterator[None]:
    """Restore the estimator's attributes if the block raises, also by KeyboardInterrupt."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
