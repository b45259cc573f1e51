r"""Model selection on contaminated data.

A validation row may be an outlier too. Squared errors would let such rows choose the model; the
scores here measure each validation row by the norm of its error,

.. math:: r_i = \|D^{-1}(\hat t_i - t_i)\|_2 ,

D holding the scales of the targets, and average these norms, or take their median, or their
trimmed mean. (An unknown target counts as if it were off as much as the known ones.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self, TypeAlias, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import get_scorer
from sklearn.model_selection import GroupKFold, KFold, check_cv
from sklearn.utils import check_consistent_length

from gorelm._extras import needs
from gorelm._features.scaling import weighted_quantiles
from gorelm._typing import Array, Indices, Inputs
from gorelm.metrics import trimmed_mean

__all__ = [
    "ROBUST_SCORES",
    "Fold",
    "Scoring",
    "error_norms",
    "folds_of",
    "listening",
    "one_standard_error",
    "scores_of",
    "track",
]

# A name of `ROBUST_SCORES`, or whatever `sklearn.metrics.get_scorer` takes.
Scoring: TypeAlias = str | Callable[..., float]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Fold:
    """Row numbers of one split."""

    train: Indices
    test: Indices


def folds_of(cv: object, X: Inputs, T: Array, seed: int, groups: object = None) -> list[Fold]:
    """Return the splits that `cv` describes: a number of shuffled folds, a splitter, or splits.

    With groups (a label for each row), a number of folds has each group in one fold, and a splitter
    is told them.
    """
    n_rows = X.shape[0]
    if groups is not None:
        groups = np.asarray(groups)
        check_consistent_length(T, groups)
    if isinstance(cv, int | np.integer):
        if not 2 <= cv <= n_rows:
            raise ValueError(
                f"cv={cv} must be at least 2 and at most the number of rows; here "
                f"n_samples = {n_rows}"
            )
        if groups is None:
            cv = KFold(int(cv), shuffle=True, random_state=seed)
        else:
            cv = GroupKFold(int(cv), shuffle=True, random_state=seed)
    splits = check_cv(cv).split(X, T, groups)
    folds = [Fold(np.asarray(train), np.asarray(test)) for train, test in splits]
    if not folds:
        raise ValueError("cv gives no splits")
    for fold in folds:
        if not len(fold.train) or not len(fold.test):
            raise ValueError("every split of cv needs rows to train on and rows to test")
    return folds


def error_norms(predicted: Array, T: Array, scale: Array) -> Array:
    """Return the row norms of errors in units of `scale`, (n, P), for predictions (n, P, m).

    NaN in T marks unknown cells; a row without a known cell has norm 0.
    """
    known = ~np.isnan(T)
    errors = np.where(known[:, None], (predicted - np.where(known, T, 0.0)[:, None]) / scale, 0.0)
    share = known.mean(axis=1)
    squares = np.einsum("npm,npm->np", errors, errors)
    return np.asarray(np.sqrt(squares / np.where(share > 0, share, 1.0)[:, None]))


def mean_norm(norms: Array, weights: Array) -> Array:
    """Average over the rows, one number for each column."""
    return np.asarray(weights @ norms / weights.sum())


def median_norm(norms: Array, weights: Array) -> Array:
    """Median over the rows, which ignores all but the order of the larger half."""
    return np.array([float(weighted_quantiles(column, 0.5, weights)) for column in norms.T])


def trimmed_norm(norms: Array, weights: Array) -> Array:
    """Average over the rows but the worst quarter."""
    return np.array([trimmed_mean(column, weights) for column in norms.T])


ROBUST_SCORES: dict[str, Callable[[Array, Array], Array]] = {
    "mean_norm": mean_norm,
    "median_norm": median_norm,
    "trimmed_norm": trimmed_norm,
}


class _Predictions(RegressorMixin, BaseEstimator):
    """Given predictions with the interface that scikit-learn's scorers use."""

    def __init__(self, y: Array) -> None:
        self._y = y

    def fit(self, X: object, y: object) -> Self:
        return self

    def predict(self, X: object) -> Array:
        return self._y


def scores_of(
    scoring: Scoring,
    predicted: Array,
    norms: Array,
    X: Inputs | None,
    T: Array,
    weights: Array,
    *,
    one_target: bool = False,
) -> Array:
    """Score P models on validation rows, larger is better; shape (P,).

    Parameters
    ----------
    scoring : str or callable
        A name of `ROBUST_SCORES`, or whatever `sklearn.metrics.get_scorer` takes.
    predicted : array (n, P, m)
        Predictions in the units of the targets.
    norms : array (n, P)
        Their `error_norms`.
    X, T, weights
        The validation rows.
    one_target : bool, default=False
        Whether scorers should see targets of shape (n,).
    """
    if isinstance(scoring, str) and scoring in ROBUST_SCORES:
        return -ROBUST_SCORES[scoring](norms, weights)
    scorer = get_scorer(scoring)
    if np.isnan(T).any():
        raise ValueError(
            "scikit-learn's scorers need every target; with missing targets use one of "
            f"{', '.join(ROBUST_SCORES)}"
        )
    y = T[:, 0] if one_target else T
    weighted = {} if (weights == 1).all() else {"sample_weight": weights}
    columns = (predicted[:, p, 0] if one_target else predicted[:, p] for p in range(norms.shape[1]))
    return np.array([scorer(_Predictions(column), X, y, **weighted) for column in columns])


def one_standard_error(means: Array, errors: Array, simplicity: Sequence[Array]) -> int:
    """Return the simplest candidate whose mean score is within one standard error of the best.

    Parameters
    ----------
    means, errors : array (candidates,)
        Mean score over the folds, and its standard error.
    simplicity : sequence of array (candidates,)
        Keys, most important first; larger is simpler. Ties go to the better score.
    """
    best = int(np.argmax(means))
    (near,) = np.nonzero(means >= means[best] - errors[best])
    order = np.lexsort([means[near], *(key[near] for key in reversed(list(simplicity)))])
    return int(near[order[-1]])


# Told of the progress of what this thread fits: what, items done, items in all.
Listener: TypeAlias = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Report the progress of every fit in the block to a function; its exceptions end the fit."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def _told(work: Iterable[Item], total: int, what: str, listener: Listener) -> Iterator[Item]:
    listener(what, 0, total)
    for done, item in enumerate(work, start=1):
        listener(what, done, total)
        yield item


def track(work: Iterable[Item], total: int, what: str, *, show: bool) -> Iterator[Item]:
    """Pass `work` on, with a progress bar on stderr if asked for."""
    listener = _listener.get()
    if listener is not None:
        work = _told(work, total, what, listener)
    if not show:
        yield from work
        return
    with needs("progress=True needs the package rich", "progress"):
        from rich.console import Console
        from rich.progress import track as rich_track
    yield from rich_track(work, what, total=total, console=Console(stderr=True))
