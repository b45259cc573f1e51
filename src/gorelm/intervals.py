"""Prediction intervals around any regressor by split conformal prediction, on MAPIE."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import field
from fractions import Fraction
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.dummy import DummyRegressor
from sklearn.utils import (
    Tags,
    check_array,
    check_consistent_length,
    check_random_state,
    get_tags,
    indexable,
)
from sklearn.utils.validation import check_is_fitted

from gorelm._compat import (
    HasMethods,
    Interval,
    RealNotInt,
    StrOptions,
    check_method_params,
    validate_params,
)
from gorelm._extras import needs
from gorelm._typing import Array, Constraints, Indices, Mask, RandomState
from gorelm.diagnostics.outlier_scores import outlier_threshold, split_in_two
from gorelm.estimators import RobustELMRegressor, TableRegressor
from gorelm.estimators._base import all_or_nothing, parameters, seeded, takes_groups, with_groups
from gorelm.estimators._elsewhere import here, in_order, is_in_memory, n_rows_of, select
from gorelm.estimators._owners import is_dask
from gorelm.estimators._prepare import is_tensor, validate_targets
from gorelm.estimators._robust.judge import log_sizes

if TYPE_CHECKING:
    from mapie.regression import SplitConformalRegressor

__all__ = ["ConformalRegressor"]

# Share of the variance of the rows' log sizes that two groups must explain, and rows there must be,
# before any row is left out of the calibration: few rows look like two groups by chance, and right
# rows left out are coverage lost.
CLEAR_GROUPS = 0.8
FEWEST_TO_JUDGE = 20
# Of the upper group, rows within this fence of the lower one stay. With Tukey's 1.5 too many clean
# rows go where errors have heavy tails, with his 3 too many outliers stay.
WHISKER = 2.0
SCALING_SHARE = 0.25  # of the held-out rows, to learn the targets' scales of a joint region
# The same to learn the sizes of errors, where the estimator has no out-of-fold errors of its own.
SIZING_SHARE = 0.5
SMALL_ERROR = 0.05  # of the median error, added to errors before their logarithm is taken
GROUPS = (8, 4, 2, 1)  # of rows by the size of their errors: the first with enough rows in each
ENOUGH = 10  # times the rows that the level needs
LARGEST = 1e150  # in units; squares overflow beyond
NORMS = {True: 2.0, "ball": 2.0, "box": np.inf}


@parameters
class ConformalRegressor(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    r"""Prediction intervals around a regressor, by split conformal prediction.

    Part of the rows is held out of the fit. With their n absolute residuals in a target sorted,
    :math:`s_{(1)} \le \dots \le s_{(n)}`, the interval of a new row is

    .. math:: \hat y \pm s_{(k)}, \qquad k = \lceil (1 - \alpha)(n + 1) \rceil,

    and covers the truth with probability at least :math:`1 - \alpha`, the `confidence_level`,
    whatever the regressor and the distribution, if the new row comes from where the held-out rows
    came from. That is an average over new rows, and over the draw of the held-out ones.

    Parameters
    ----------
    estimator : regressor, default=None
        What predicts: any estimator of this library or of scikit-learn. By default a
        :class:`~gorelm.RobustELMRegressor`.
    confidence_level : float, default=0.9
        Probability to cover, unless :meth:`predict_interval` is asked for another.
    calibration : float, int or "prefit", default=0.25
        Share (or number) of the rows to hold out. With "prefit" the estimator is fitted already, on
        other rows, and all rows given to :meth:`fit` calibrate. (Cloning forgets fits: put the
        estimator into scikit-learn's ``FrozenEstimator`` to use it in a search.)
    joint : bool or {"ball", "box"}, default=False
        Whether all targets are to be covered at once. By default each has its own interval, and
        all m hold together only with probability :math:`1 - m\alpha` or more. With "ball" (or
        True) the score of a row is the norm of its residuals, with "box" the largest of them,
        each in units :math:`\sigma_j` of its target:

        .. math:: \|((y_j - \hat y_j) / \sigma_j)_j\|_2 \le s_{(k)} \quad\text{or}\quad
                  \max_j |y_j - \hat y_j| / \sigma_j \le s_{(k)}.

        A ball makes the smaller region where errors are normal, but :meth:`predict_interval` can
        only return the box around it; "box" gives narrower intervals that hold together.
        A quarter of the held-out rows sets the units (medians of their absolute residuals) and
        takes no other part, as units learnt from the rows that calibrate would make the region
        too small. Only rows with every target known calibrate.
    adaptive : bool or regressor, default=False
        Whether the width of an interval depends on the row: see Notes. With True the sizes of
        errors are learnt by a :class:`~gorelm.TableRegressor` with ``effort="fast"``, otherwise by
        the regressor given, from X to the logarithms of the sizes.
    clean : bool, default=True
        Leave rows out of the calibration whose errors, over all targets, are a group of their own:
        see Notes.
    random_state : int, RandomState instance or None, default=None
        Seed of the split, and of every `random_state` that is None in the estimator.

    Attributes
    ----------
    estimator_ : regressor
        The fitted estimator.
    calibration_rows_ : ndarray of int
        The rows held out, as indices into X.
    calibration_flagged_ : ndarray of bool
        Which of these rows were left out as corrupt.
    calibration_scores_ : ndarray of shape (n_rows, n_targets) or (n_rows, 1)
        Scores of the held-out rows: absolute residuals, or one norm per row if `joint` (without the
        rows that set the units), over the expected size of the row's errors if `adaptive`. NaN
        where a target is unknown or the row was left out.
    n_calibration_ : ndarray of int
        How many scores there are for each target (of the norm, if `joint`).
    scale_ : ndarray of shape (n_targets,)
        Units of the targets; ones unless `joint`.
    sizes_ : regressor
        What predicts the logarithms of the sizes of errors; only if `adaptive`.
    n_features_in_ : int
        Number of inputs, if the estimator knows it.
    feature_names_in_ : ndarray of str
        Names of the inputs, if the estimator knows them.

    Notes
    -----
    With ``clean=False`` and ``joint=False`` (or ``joint`` with complete rows) the guarantee is
    exact for new rows *like those given*: if a fifth of these are corrupt, then so are a fifth of
    the rows that it speaks of, and the intervals are as wide as the corruption. They still hold for
    clean rows if corrupt rows have the larger errors, as these only widen them.

    Cleaning is for intervals that are meant for clean rows. It looks at the size of each row's
    errors, the mean over the targets of log(1 + \|residual\|) in units of the target's median. If
    these fall into two groups that explain 0.8 of their variance, it leaves out the upper one, but
    for rows within a fence of the lower (Tukey's, two interquartile ranges out). Corrupt rows that
    it misses keep the intervals wider than they need be. Clean rows that it takes cost coverage: a
    share d of them lowers that of clean rows to about :math:`(1 - \alpha)(1 - d)` at worst. So the
    guarantee is approximate, and what breaks it are rows that are right but much harder to predict
    than all others: use ``clean=False`` where there are such rows. Fewer than 20 rows are never
    cleaned.

    With ``adaptive=True`` a regression on log(\|error\|) predicts the size :math:`s(x)` of a row's
    errors: from out-of-fold errors if the estimator has them (`out_of_fold_`), otherwise from half
    of the held-out rows. Scores are :math:`|y - \hat y| / s(x)`. The rows are calibrated in up to
    eight groups by :math:`s(x)`, so that the coverage holds within each of them: for rows that are
    easy to predict as for those that are hard. There are as many groups (8, 4, 2 or 1) as leave
    each of them ten times the rows that the level needs (90 for a level of 0.9).

    Unknown targets (NaN, for estimators with ``missing_targets="ignore"``) are left out cell by
    cell; the guarantee then speaks of rows whose cell is known.

    Examples
    --------
    >>> from gorelm import ConformalRegressor, GORELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(800, outlier_ratio=0.3, random_state=2)
    >>> train, test = slice(0, 400), slice(400, None)
    >>> model = ConformalRegressor(GORELMRegressor(lam=0.1, n_hidden=100), random_state=0)
    >>> intervals = model.fit(data.X[train], data.T[train]).predict_interval(data.X[test])
    >>> intervals.shape  # rows, targets, lower and upper end
    (400, 3, 2)
    >>> left_out = model.calibration_rows_[model.calibration_flagged_]
    >>> bool(data.planted[left_out].mean() > 0.9)  # of these rows, so many are outliers
    True
    >>> covered = model.covers(data.X[test], data.T[test])
    >>> bool(covered[~data.planted[test]].mean() > 0.85)  # of the rows that are not
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        "estimator": [HasMethods(["fit", "predict"]), None],
        "confidence_level": [Interval(Real, 0, 1, closed="neither")],
        "calibration": [
            Interval(RealNotInt, 0, 1, closed="neither"),
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"prefit"}),
        ],
        "joint": ["boolean", StrOptions({"ball", "box"})],
        "adaptive": ["boolean", HasMethods(["fit", "predict"])],
        "clean": ["boolean"],
        "random_state": ["random_state"],
    }

    estimator: BaseEstimator | None = field(default=None, kw_only=False)
    confidence_level: float = 0.9
    calibration: float | str = 0.25
    joint: bool | str = False
    adaptive: bool | BaseEstimator = False
    clean: bool = True
    random_state: RandomState = None

    # -- fitting ---------------------------------------------------------------------------------

    def fit(self, X: object, y: object, groups: object = None, **fit_params: object) -> Self:
        """Fit the estimator on part of the rows, and calibrate on the others.

        Parameters
        ----------
        X : array, sparse matrix or frame of shape (n_samples, n_features)
            Inputs, as the estimator takes them: with an estimator of this library that does, also
            tensors, :class:`~gorelm.stream.RowBlocks`, a :class:`~gorelm.stream.ParquetTable` or
            dask collections, whose rows are split where they are.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        groups : array of shape (n_samples,), optional
            Label of the group of every row, such as the patient or the machine that it comes from.
            Whole groups are held out, and the intervals are for rows of new groups (approximately:
            rows of a group are alike, so that there are fewer independent ones than rows). An
            estimator that takes groups gets those of its rows.
        **fit_params
            For the estimator's ``fit``; what has an entry per row is cut to the rows fitted. A
            ``sample_weight`` counts in the fit only, except that a row of weight 0 is not there.

        Returns
        -------
        self : object
            The fitted estimator. A fit that fails or is interrupted leaves it as it was.
        """
        with all_or_nothing(self):
            validate_params(self)
            _split_conformal()  # missing? before a long fit, not after it
            self._fit(X, y, groups, fit_params)
        return self

    def _fit(self, X: object, y: object, groups: object, fit_params: dict[str, object]) -> None:
        if fit_params.get("sample_weight") is not None:
            fit_params = {**fit_params, "sample_weight": here(fit_params["sample_weight"])}
        X, shown = _rows_to_select(X)
        T, w = validate_targets(self, shown, here(y), fit_params.get("sample_weight"))
        check_consistent_length(T, groups)
        rng = check_random_state(self.random_state)
        fitted, held_out = self._split(np.flatnonzero(w > 0), groups, rng)
        self._norm = NORMS[self.joint] if self.joint and T.shape[1] > 1 else None
        if self.calibration == "prefit":
            self.estimator_ = self._prefit(fit_params)
        else:
            model = self._unfitted(rng)
            if takes_groups(model):
                fit_params = with_groups(fit_params, groups)
            fit_params = check_method_params(shown, fit_params, indices=fitted)
            targets = T[fitted, 0] if self._one_target else T[fitted]
            self.estimator_ = model.fit(select(X, fitted), targets, **fit_params)
        errors = self._out_of_fold_errors(T[fitted])
        share = SCALING_SHARE if self._norm is not None else 0.0
        if self.adaptive is not False and errors is None:
            share = SIZING_SHARE
        n_scaling = math.ceil(share * len(held_out))
        n_scored = len(held_out) - n_scaling
        if n_scored < _rows_needed(self.confidence_level):  # another level may be asked for later
            message = _needs_more_rows(self.confidence_level, f"{n_scored}")
            warnings.warn(message, UserWarning, stacklevel=3)
        predicted = in_order(X, held_out, lambda some: self._predictions(some, T.shape[1]))
        residuals = T[held_out] - predicted
        sizes = None
        if self.adaptive is not False:
            # The first of the held-out rows, or the rows that were fitted.
            rows = held_out[:n_scaling] if errors is None else fitted
            errors = residuals[:n_scaling] if errors is None else errors
            order = np.argsort(rows)
            self._learn_sizes(X, rows[order], np.abs(errors[order]), rng)
            sizes = in_order(X, held_out, self._sizes)
        self._calibrate(residuals, n_scaling, sizes)
        self.calibration_rows_ = held_out

    def _out_of_fold_errors(self, T: Array) -> Array | None:
        """Return errors of fits without the row, where the estimator has such for its rows."""
        predicted = getattr(self.estimator_, "out_of_fold_", None)
        if self.calibration == "prefit" or predicted is None or not len(T):
            return None
        predicted = np.asarray(predicted, dtype=np.float64).reshape(len(predicted), -1)
        return None if predicted.shape != T.shape else T - predicted

    def _learn_sizes(
        self, X: object, rows: Indices, sizes: Array, rng: np.random.RandomState
    ) -> None:
        """Fit what predicts the sizes of errors, to those of some rows."""
        logs = np.log(sizes + SMALL_ERROR * _units(sizes))
        self._log_sizes = np.nanmin(logs, axis=0), np.nanmax(logs, axis=0)
        table = TableRegressor(effort="fast", target_transform=None)  # it takes unknown targets
        model = seeded(table if self.adaptive is True else clone(self.adaptive), rng)
        unknown = np.isnan(logs)
        fit = ~(unknown.all(axis=1) if self.adaptive is True else unknown.any(axis=1))
        X, logs = select(X, rows[fit]), logs[fit]
        self.sizes_ = model.fit(X, logs[:, 0] if logs.shape[1] == 1 else logs)
        levels = np.arange(1, GROUPS[0]) / GROUPS[0]
        keys = self._group_keys(self._sizes(X))
        self._size_ends = np.quantile(keys, levels, axis=0)

    def _sizes(self, X: object) -> Array:
        """Return the expected sizes of rows' errors, (n, m)."""
        low, high = self._log_sizes
        logs = np.asarray(here(self.sizes_.predict(X)), dtype=np.float64)
        return np.exp(np.clip(logs.reshape(len(logs), -1), low, high))

    def _group_keys(self, sizes: Array) -> Array:
        """Return what rows are grouped by: sizes, of all targets together if `joint`."""
        logs = np.log(sizes)
        return logs if self._norm is None else logs.mean(axis=1, keepdims=True)

    def _split(
        self, rows: Indices, groups: object, rng: np.random.RandomState
    ) -> tuple[Indices, Indices]:
        """Return the rows to fit, in their order, and the rows to calibrate on, in random order."""
        shuffled = rng.permutation(rows)
        if self.calibration == "prefit":
            return shuffled[:0], shuffled
        share = self.calibration
        size = share if isinstance(share, Integral) else math.ceil(float(share) * len(rows))
        if size >= len(rows):
            raise ValueError(
                f"calibration={share!r} would hold out {size} of {len(rows)} sample(s) (of "
                "positive weight) and leave none to fit"
            )
        if groups is not None:
            return self._split_groups(rows, np.asarray(groups)[rows], int(size), rng)
        return np.sort(shuffled[size:]), shuffled[:size]

    def _split_groups(
        self, rows: Indices, groups: Array, size: int, rng: np.random.RandomState
    ) -> tuple[Indices, Indices]:
        """Hold out whole groups, in random order, until there are `size` rows or more."""
        labels, members = np.unique(groups, return_inverse=True)
        order = rng.permutation(len(labels))
        counts = np.bincount(members)[order]
        n_held_out = int(np.searchsorted(np.cumsum(counts), size)) + 1
        if n_held_out >= len(labels):
            raise ValueError(
                f"calibration={self.calibration!r} would hold out {n_held_out} of {len(labels)} "
                "group(s) and leave none to fit"
            )
        held_out = np.isin(members, order[:n_held_out])
        return rows[~held_out], rng.permutation(rows[held_out])

    def _prefit(self, fit_params: dict[str, object]) -> BaseEstimator:
        if self.estimator is None:
            raise ValueError('calibration="prefit" needs a fitted estimator; there is none')
        check_is_fitted(self.estimator)
        if unused := sorted(fit_params.keys() - {"sample_weight"}):
            raise ValueError(f'with calibration="prefit" nothing is fitted: {unused} have no use')
        return self.estimator

    def _unfitted(self, rng: np.random.RandomState) -> BaseEstimator:
        """Return a copy of the estimator; what it leaves to chance, `rng` decides."""
        model = RobustELMRegressor() if self.estimator is None else clone(self.estimator)
        return seeded(model, rng)

    def _calibrate(self, residuals: Array, n_scaling: int, sizes: Array | None) -> None:
        """Take the scores of held-out rows, over the expected `sizes` of their errors if given."""
        if sizes is not None:
            self._calibration_keys = self._group_keys(sizes)[n_scaling:]
            residuals = residuals / sizes
        unclean = _corrupt_rows(residuals) if self.clean else np.zeros(len(residuals), dtype=bool)
        self.calibration_flagged_ = unclean
        residuals[unclean] = np.nan
        joint = self._norm is not None
        units = _units(residuals[:n_scaling]) if joint else np.ones(residuals.shape[1])
        self.scale_ = units
        self.calibration_scores_ = self._scores(residuals[n_scaling:])
        self.n_calibration_ = (~np.isnan(self.calibration_scores_)).sum(axis=0)

    def _predictions(self, X: object, n_targets: int) -> Array:
        """Return predictions as a matrix; raises if they do not fit the targets."""
        predicted = np.asarray(here(self.estimator_.predict(X)), dtype=np.float64)
        predicted = predicted.reshape(len(predicted), -1)
        if predicted.shape[1] != n_targets:
            raise ValueError(
                f"the estimator predicts {predicted.shape[1]} target(s), y has {n_targets}"
            )
        if not np.isfinite(predicted).all():
            raise ValueError("the estimator predicts NaN or infinity: nothing can be calibrated")
        return predicted

    def _scores(self, residuals: Array) -> Array:
        """Return what is compared: a column for each target, or the rows' norms; NaN: unknown."""
        if self._norm is None:
            return np.abs(residuals)
        scaled = _in_units(residuals, self.scale_)
        return np.asarray(np.linalg.norm(scaled, ord=self._norm, axis=1, keepdims=True))

    # -- using it --------------------------------------------------------------------------------

    def predict(self, X: object) -> Array:
        """Predict the targets of new rows, as the estimator does.

        Parameters
        ----------
        X : array, sparse matrix or frame of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Of tensors and dask collections, what the estimator makes of them.
        """
        check_is_fitted(self)
        predicted: Array = self.estimator_.predict(X)
        return predicted if is_tensor(X) or is_dask(X) else np.asarray(predicted)

    def predict_interval(self, X: object, confidence_level: float | None = None) -> Array:
        """Predict intervals of the targets of new rows.

        Parameters
        ----------
        X : array, sparse matrix or frame of shape (n_samples, n_features)
            Inputs.
        confidence_level : float, optional
            Probability to cover; by default that of the constructor.

        Returns
        -------
        intervals : ndarray of shape (n_samples, n_targets, 2) or (n_samples, 2)
            Lower and upper ends; without the middle axis where predictions are without it. With
            ``joint="ball"`` the box around the region, which is larger than the region.

        Raises
        ------
        ValueError
            If there are too few calibration rows for the level: fewer than level / (1 - level).
        """
        check_is_fitted(self)
        half = self._half_widths(confidence_level)
        y = np.asarray(here(self.predict(X)))
        if self.adaptive is not False:
            sizes = self._sizes(X)
            half = (self.scale_ * sizes * self._row_radii(sizes, confidence_level)).reshape(y.shape)
        return np.stack([y - half, y + half], axis=-1)

    def covers(self, X: object, y: object, confidence_level: float | None = None) -> Mask:
        """Tell whether targets lie where they were predicted to: in their interval, or the region.

        Parameters
        ----------
        X : array, sparse matrix or frame of shape (n_samples, n_features)
            Inputs.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets, all known.
        confidence_level : float, optional
            Probability to cover; by default that of the constructor.

        Returns
        -------
        covered : ndarray of bool, shape (n_samples,) or (n_samples, n_targets)
            For each target of each row; for each row if `joint`, or if y is one target.
        """
        check_is_fitted(self)
        radii = self._radii(confidence_level)
        T = check_array(here(y), ensure_2d=False, dtype=np.float64, input_name="y")
        X, shown = _rows_to_select(X)
        check_consistent_length(shown, T)
        rows = T.reshape(len(T), -1)
        residuals = rows - self._predictions(X, rows.shape[1])
        if self.adaptive is not False:
            sizes = self._sizes(X)
            residuals, radii = residuals / sizes, self._row_radii(sizes, confidence_level)
        covered = self._scores(residuals) <= radii
        return np.asarray(covered[:, 0] if self._norm is not None or T.ndim == 1 else covered)

    def _half_widths(self, confidence_level: float | None = None) -> Array:
        """Return half the width of the interval of each target."""
        return np.asarray(self.scale_ * self._radii(confidence_level))

    def _radii(self, confidence_level: float | None) -> Array:
        """Return how far from the prediction each score may be."""
        level = self.confidence_level if confidence_level is None else confidence_level
        if not (isinstance(level, Real) and 0 < level < 1):
            raise ValueError(f"confidence_level must be between 0 and 1, got {level!r}")
        if self.n_calibration_.min() < _rows_needed(level):
            raise ValueError(self._too_few(level))
        columns = (column[~np.isnan(column)] for column in self.calibration_scores_.T)
        return np.array([_conformal_quantile(scores, level) for scores in columns])

    def _row_radii(self, sizes: Array, confidence_level: float | None) -> Array:
        """Return how far each score of each row may be, by its group."""
        level = self.confidence_level if confidence_level is None else float(confidence_level)
        every = self._radii(level)
        keys = self._group_keys(sizes)
        radii = np.empty(keys.shape)
        for j, scores in enumerate(self.calibration_scores_.T):
            known = ~np.isnan(scores)
            for n_groups in GROUPS:
                step = GROUPS[0] // n_groups
                ends = self._size_ends[step - 1 :: step, j]
                group = np.searchsorted(ends, self._calibration_keys[:, j])
                counts = np.bincount(group[known], minlength=n_groups)
                if counts.min() >= ENOUGH * _rows_needed(level):
                    break
            if n_groups == 1:
                radii[:, j] = every[j]
                continue
            by_group = [
                _conformal_quantile(scores[known & (group == k)], level) for k in range(n_groups)
            ]
            radii[:, j] = np.array(by_group)[np.searchsorted(ends, keys[:, j])]
        return radii

    def _too_few(self, level: float) -> str:
        worst = int(self.n_calibration_.argmin())
        n_flagged = int(self.calibration_flagged_.sum())
        found = f"{self.n_calibration_[worst]}"
        found += f" for target {worst}" if len(self.n_calibration_) > 1 else ""
        found += f" ({n_flagged} more were left out as corrupt)" if n_flagged else ""
        return _needs_more_rows(level, found)

    # -- what the estimator decides --------------------------------------------------------------

    @property
    def missing_targets(self) -> str:
        """What NaN in y means: as the estimator (or a step of a pipeline) has it."""
        own = getattr(self.estimator, "missing_targets", "error")
        settings: dict[str, object] = getattr(self.estimator, "get_params", dict)()
        steps = [v for name, v in settings.items() if name.endswith("__missing_targets")]
        return "ignore" if "ignore" in (own, *steps) else "error"

    @property
    def n_features_in_(self) -> int:
        """Number of inputs."""
        check_is_fitted(self)
        return int(self.estimator_.n_features_in_)

    @property
    def feature_names_in_(self) -> npt.NDArray[np.object_]:
        """Names of the inputs."""
        check_is_fitted(self)
        return np.asarray(self.estimator_.feature_names_in_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        inner = get_tags(RobustELMRegressor() if self.estimator is None else self.estimator)
        tags.input_tags, tags.target_tags = inner.input_tags, inner.target_tags
        return tags


def _rows_to_select(X: object) -> tuple[object, object]:
    """Return X such that rows can be selected, and what shows scikit-learn how many there are."""
    if is_in_memory(X):
        (X,) = indexable(X)
        return X, X
    return X, np.broadcast_to(0.0, (n_rows_of(X), 1))


def _corrupt_rows(residuals: Array) -> Mask:
    """Return the rows whose errors are a group of their own, far above the others."""
    units = _of_known(np.median, np.abs(residuals))
    # Where most residuals are 0 there is no unit to judge the others by.
    sizes = log_sizes(_in_units(residuals[:, units > 0], units[units > 0]))
    known = ~np.isnan(residuals[:, units > 0]).all(axis=1)
    none: Mask = np.zeros(len(residuals), dtype=bool)
    if known.sum() < FEWEST_TO_JUDGE:
        return none
    threshold, explained = split_in_two(sizes[known])
    if explained < CLEAR_GROUPS:
        return none
    fence = outlier_threshold(sizes[known & (sizes <= threshold)], whisker=WHISKER)
    return np.asarray(known & (sizes > max(fence, threshold)))


def _units(residuals: Array) -> Array:
    """Return the typical size of each target's residuals: never 0."""
    sizes = np.abs(residuals)
    medians, means = _of_known(np.median, sizes), _of_known(np.mean, sizes)
    units = np.where(medians > 0, medians, means)
    return np.where(units > 0, units, 1.0)


def _in_units(residuals: Array, units: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.clip(residuals / units, -LARGEST, LARGEST)


def _of_known(statistic: Callable[[Array], object], columns: Array) -> Array:
    """Return a statistic of each column's known cells; 0 where there are none."""
    known = (column[~np.isnan(column)] for column in columns.T)
    return np.array([statistic(values) if len(values) else 0.0 for values in known])


def _rows_needed(level: float) -> int:
    """Return the smallest n with ceil(level (n + 1)) <= n, for the level as it is written."""
    exact = Fraction(str(level))
    return math.ceil(exact / (1 - exact))


def _needs_more_rows(level: float, found: str) -> str:
    return (
        f"confidence_level={level:g} needs {_rows_needed(level)} calibration rows, and there are "
        f"{found}: give more rows, hold out more of them (calibration), or lower confidence_level"
    )


def _conformal_quantile(scores: Array, level: float) -> float:
    """Return the ceil(level (n + 1))-th smallest of n scores, as MAPIE finds it."""
    # Scores as the targets of a model that predicts 0: MAPIE compares y with its prediction plus
    # residual to 1e-8, absolutely, and so would refuse large targets.
    rows = np.zeros((len(scores), 1))
    zero = DummyRegressor(strategy="constant", constant=0.0).fit(rows, scores)
    conformal = _split_conformal()(zero, confidence_level=float(level), prefit=True)
    # Its own check of the number of rows asks for one too many; ours is done.
    _, ends = conformal.conformalize(rows, scores).predict_interval(
        rows[:1], allow_infinite_bounds=True
    )
    return float(ends[0, 1, 0])


def _split_conformal() -> type[SplitConformalRegressor]:
    with needs("prediction intervals need MAPIE", "intervals"):
        from mapie.regression import SplitConformalRegressor as Found
    found: type[SplitConformalRegressor] = Found
    return found
