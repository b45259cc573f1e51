r"""The one preparation of training rows, for every owner of rows.

==========================  =====================================================================
which rows count            `usable_rows`: a positive weight and a known target
how inputs are scaled       `gorelm._features.scaling.fit_scaling`, from summaries of blocks
how targets are scaled      `Targets.scaled`: scaled, unknown cells 0
how weights enter           `Targets.scaled`: rows of T (and of H) times :math:`\omega = \sqrt w`
how far targets may lie     `gorelm._solver.far_targets`: shortened in float64, before T has the
                            precision of H
which targets go together   `patterns`: those known in the same rows
how rows are scored         `row_scores`
==========================  =====================================================================

Functions that name "array or tensor" use only what NumPy arrays share with PyTorch's tensors.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import check_is_fitted

from gorelm._compat import check_sample_weight
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling, weighted_quantiles
from gorelm._solver.far_targets import refuse_huge
from gorelm._solver.problem import norms
from gorelm._typing import Array, Indices, Inputs, Mask, NamedInputs

# -- which rows and cells count ------------------------------------------------------------------


def known_cells(T: Array) -> Mask:
    """Return which cells of an array or tensor are not NaN, the only value unequal to itself."""
    known: Mask = T == T
    return known


def has_target(T: Array, w: Array) -> Mask:
    """Return which rows of an array or tensor have a positive weight and a known target."""
    return (w > 0) & known_cells(T).any(1)


def usable_rows(T: Array, w: Array) -> Mask:
    """Return `has_target`; raise if no such row is left, or none that knows one of the targets."""
    used = has_target(T, w)
    require_targets(known_cells(T)[used])
    return used


def require_targets(known: Mask) -> None:
    """Raise unless every target is known in some of the rows that count (array or tensor)."""
    if not len(known):
        raise ValueError("no row has both a positive sample weight and a known target")
    if empty := [j for j in range(known.shape[1]) if not known[:, j].any()]:
        raise ValueError(f"no value of target column(s) {empty} is known (of positive weight)")


def patterns(observed: Mask | None, n_targets: int) -> Iterator[tuple[Mask | slice, Indices]]:
    """Yield groups of targets known in the same rows: these rows, and the targets' indices.

    Methods that treat targets separately solve each group as a problem without unknown cells. All
    rows are a slice, so that H of them is no copy; such a group comes last, and may overwrite H.
    """
    if observed is None:
        yield slice(None), np.arange(n_targets)
        return
    rows_of, which = np.unique(observed, axis=1, return_inverse=True)
    for k, rows in enumerate(rows_of.T):  # in lexical order, all True last
        yield slice(None) if rows.all() else rows, np.flatnonzero(which.ravel() == k)


def fingerprint(table: Array) -> str:
    """Return a hash of a table; empty for a placeholder of inputs that are not in memory."""
    if 0 in table.strides and table.size > 1:  # rows that are elsewhere
        return ""
    table = np.where(np.isnan(table), np.nan, table)  # one NaN of many
    digest = hashlib.blake2b(str(table.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(table, dtype=np.float64).data)
    return digest.hexdigest()


# -- rows as the solvers take them ---------------------------------------------------------------


@dataclass
class Targets:
    """Targets of the rows that count, as the solvers take them (arrays or tensors)."""

    T: Array  # scaled, in float64, times omega; 0 where unknown
    w: Array  # sample weights, all positive
    omega: Array | None  # their square roots; None: all 1
    observed: Mask | None  # known cells of T; None: all

    @staticmethod
    def scaled(scaling: Scaling, T: Array, w: Array) -> Targets:
        """Scale the targets of rows that count."""
        known = known_cells(T)
        T = scaling.dense(T)
        T[~known] = 0.0
        remedy = "set target_scaling, rescale y, or mark as NaN what cannot be a measurement"
        refuse_huge(T, "y", np.float64, remedy)
        refuse_huge(w, "sample_weight", np.float64, "divide the weights by their mean")
        omega = None if (w == 1.0).all() else w**0.5
        if omega is not None:
            T *= omega[:, None]
        return Targets(T, w, omega, None if known.all() else known)

    def take(self, rows: Indices | slice) -> Self:
        """Return some of the rows."""
        return replace(
            self,
            T=self.T[rows],
            w=self.w[rows],
            omega=None if self.omega is None else self.omega[rows],
            observed=None if self.observed is None else self.observed[rows],
        )

    def sizes(self) -> Array:
        """Return the norm of every row, without omega."""
        sizes = norms(self.T, grouped=True)
        return sizes if self.omega is None else sizes / self.omega

    def typical_size(self) -> float:
        """Return the median norm of a row."""
        return float(weighted_quantiles(self.sizes(), 0.5, self.w))

    def residuals(self, outputs: Array, intercept: Array | float = 0.0) -> Array:
        """Return outputs (times omega) less targets, divided by omega; 0 where unknown."""
        residuals: Array = outputs - self.T
        if self.omega is not None:
            residuals /= self.omega[:, None]
        residuals += intercept
        if self.observed is not None:
            residuals *= self.observed
        return residuals


@dataclass
class Design(Targets):
    """Training rows in memory: targets, and scaled inputs."""

    X: Inputs
    offset: Array | None  # still to be added to a sparse X

    @staticmethod
    def of(scaling: Scaling, X: Inputs, targets: Targets) -> Design:
        """Scale the inputs of rows that count, with their scaled targets."""
        X, offset = scaling.apply(X)
        values = X if isinstance(X, np.ndarray) else X.data
        refuse_huge(values, "X", X.dtype, "set input_scaling or rescale X")
        return Design(**vars(targets), X=X, offset=offset)

    def take(self, rows: Indices | slice) -> Self:
        """Return some of the rows."""
        return replace(super().take(rows), X=self.X[rows])

    def times_omega(self, H: Array) -> Array:
        """Multiply the rows of hidden outputs by omega, in their own memory."""
        if self.omega is not None:
            H *= self.omega[:, None].astype(H.dtype)
        return H

    def hidden(self, layer: HiddenLayer) -> Array:
        """Return the outputs of a hidden layer for the rows, times omega."""
        return self.times_omega(layer.transform(self.X, offset=self.offset))


# -- what is checked, and how rows are scored ----------------------------------------------------


def is_tensor(X: object) -> bool:
    """Whether X is an array of PyTorch's or CuPy's."""
    return type(X).__module__.split(".")[0] in ("torch", "cupy")


@contextmanager
def naming_table_regressor() -> Iterator[None]:
    """Add to scikit-learn's message about text or NaN in X that `TableRegressor` accepts both."""
    try:
        yield
    except ValueError as error:
        if not any(words in str(error) for words in ("contains NaN", "convert", "numeric")):
            raise
        raise ValueError(
            f"{error}\ngorelm.TableRegressor takes tables with text and missing values: it encodes "
            "categories, fills in missing values, and fits a RobustELMRegressor"
        ) from None


class TakesTargets(Protocol):
    """What checking targets uses of an estimator."""

    missing_targets: str
    _one_target: bool


def validate_targets(
    model: TakesTargets, X: object, y: object, sample_weight: object
) -> tuple[Array, Array]:
    """Return T (N, m) and the rows' weights for a checked X; the model remembers if y was 1-d."""
    if y is None:
        raise ValueError(
            f"This {type(model).__name__} estimator requires y to be passed, but the target y "
            "is None."
        )
    finite = "allow-nan" if model.missing_targets == "ignore" else True
    T = check_array(y, ensure_2d=False, dtype=np.float64, ensure_all_finite=finite, input_name="y")
    check_consistent_length(X, T)
    model._one_target = T.ndim == 1
    w = check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return T.reshape(len(T), -1), w


def take_names(model: BaseEstimator, X: NamedInputs) -> None:
    """Let a model remember the number and the names of its inputs, as scikit-learn does."""
    model.n_features_in_ = X.shape[1]
    vars(model).pop("feature_names_in_", None)
    if X.feature_names is not None:
        model.feature_names_in_ = np.array(X.feature_names, dtype=object)


def require_same_inputs(model: BaseEstimator, n_inputs: int, names: list[str] | None) -> None:
    """Raise unless the model was fitted with as many inputs, of the same names where both know."""
    check_is_fitted(model)
    fitted = getattr(model, "feature_names_in_", None)
    different = names is not None and fitted is not None and names != list(fitted)
    if n_inputs != model.n_features_in_ or different:
        raise ValueError(
            f"X has inputs {names or n_inputs}; the model was fitted with "
            f"{model.n_features_in_ if fitted is None else list(fitted)}"
        )


def row_norms(A: Array) -> Array:
    """Norm of every row, in float64."""
    return np.asarray(np.sqrt(np.einsum("nm,nm->n", A, A, dtype=float)))


def row_scores(residuals: Array, T: Array) -> Array:
    """Return the outlier scores: norms of residuals (0 where T is NaN) over the known targets."""
    return scores_of_norms(row_norms(residuals), known_cells(T).mean(axis=1))


def scores_of_norms(norms: Array, share_known: Array) -> Array:
    """Return what the norms of residuals would be if all targets of a row were known."""
    return norms / np.sqrt(np.where(share_known, share_known, 1.0))


# -- memory ---------------------------------------------------------------------------------------


def in_bytes(budget: float | str | None) -> float:
    """Return a budget, such as 4e9, "4GB", or None for half of the machine's memory, in bytes."""
    if budget is None:
        try:
            return 0.5 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, OSError, ValueError):  # not on this system
            return np.inf
    if not isinstance(budget, str):
        return float(budget)
    match = re.fullmatch(r"([0-9]+|[0-9]*\.[0-9]+)\s*([kmgt]?)(i?)b?", budget.strip().lower())
    if match is None or not float(match[1]):
        raise ValueError(f"memory_budget={budget!r} is not a size; write bytes, or such as '4GB'")
    base = 1024.0 if match[3] else 1000.0
    return float(match[1]) * base ** ("kmgt".find(match[2]) + 1 if match[2] else 0)
