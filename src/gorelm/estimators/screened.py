"""Any regressor, fitted to the rows and cells in which the screen finds nothing wrong."""

from __future__ import annotations

from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.utils import Tags, check_random_state, get_tags, indexable
from sklearn.utils.validation import check_is_fitted, validate_data

from gorelm._compat import (
    HasMethods,
    StrOptions,
    check_method_params,
    safe_indexing,
    validate_params,
)
from gorelm._typing import Array, Constraints, Mask, RandomState
from gorelm.estimators._base import all_or_nothing, parameters, seeded, takes_groups, with_groups
from gorelm.estimators._prepare import usable_rows, validate_targets
from gorelm.estimators.table import TableRegressor

if TYPE_CHECKING:
    import pandas

__all__ = ["ScreenedRegressor"]


@parameters
class ScreenedRegressor(MetaEstimatorMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Any regressor, trained without the rows and cells that a robust screen finds wrong.

    A :class:`TableRegressor` (with its :class:`RobustELMRegressor`) flags rows, and single cells of
    the targets, by predictions of models that were not fitted to them. The estimator is then fitted
    to what is left: one fit for all targets if it takes several and the same rows are left for all
    of them, otherwise one fit for each target.

    Parameters
    ----------
    estimator : regressor
        What is fitted to the rows that are left, and predicts.
    screen : estimator, default=None
        What flags rows: an estimator with `outlier_mask_` after its fit. By default a
        :class:`TableRegressor`, so that X may have whatever the estimator takes: numbers,
        categories, missing values.
    missing_targets : {"error", "ignore"}, default="error"
        What NaN in y means: a mistake, or a cell to leave out.
    random_state : int, RandomState instance or None, default=None
        Seed of every `random_state` that is None in the screen and in the estimator.

    Attributes
    ----------
    screen_ : estimator
        The fitted screen.
    estimators_ : list of estimators
        The fitted estimator: one for all targets, or one for each.
    fitted_mask_ : ndarray of bool, shape (n_samples, n_targets)
        The cells of y that the estimator was fitted to.
    outlier_scores_, outlier_threshold_, outlier_mask_, contaminated_, out_of_fold_, \
cell_scores_, cell_thresholds_, cell_mask_, notes_, timings_
        Those of `screen_`, where it has them. `out_of_fold_` are predictions of the screen's
        networks, not of the estimator.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of str
        Names of the inputs, when X was a frame with string column names.

    Notes
    -----
    The screen is part of the fit: in a cross-validation it sees the training rows of a fold only,
    and test rows are never left out. Score the folds by a measure that outliers cannot dominate,
    such as :data:`gorelm.metrics.trimmed_norm_scorer`, as the test rows have outliers, too.

    Examples
    --------
    >>> from gorelm import ScreenedRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.metrics import arrmse
    >>> from sklearn.neighbors import KNeighborsRegressor
    >>> data = make_multitarget(300, outlier_ratio=0.3, random_state=0)
    >>> model = ScreenedRegressor(KNeighborsRegressor(), random_state=0).fit(data.X, data.T)
    >>> alone = KNeighborsRegressor().fit(data.X, data.T)
    >>> truth = make_multitarget(300, outlier_ratio=0.0, random_state=0).T
    >>> arrmse(truth, model.predict(data.X)) < 0.7 * arrmse(truth, alone.predict(data.X))
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        "estimator": [HasMethods(["fit", "predict"])],
        "screen": [HasMethods(["fit"]), None],
        "missing_targets": [StrOptions({"error", "ignore"})],
        "random_state": ["random_state"],
    }

    estimator: BaseEstimator = field(kw_only=False)
    screen: BaseEstimator | None = None
    missing_targets: str = "error"
    random_state: RandomState = None

    def fit(self, X: object, y: object, groups: object = None, **fit_params: object) -> Self:
        """Screen the rows and fit the estimator to those that are left.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs, as the screen and the estimator take them.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        groups : array of shape (n_samples,), optional
            Label of the group of every row: the screen judges rows by fits without their group. An
            estimator that takes groups gets them, too.
        **fit_params
            For the estimator's ``fit``; what has an entry per row is cut to the rows fitted. A
            ``sample_weight`` is for the screen, too.

        Returns
        -------
        self : object
            The fitted estimator. A fit that fails or is interrupted leaves it as it was.
        """
        with all_or_nothing(self):
            validate_params(self)
            self._fit(X, y, groups, fit_params)
        return self

    def _fit(self, X: object, y: object, groups: object, fit_params: dict[str, object]) -> None:
        validate_data(self, X, skip_check_array=True)
        weight = fit_params.get("sample_weight")
        T, w = validate_targets(self, X, y, weight)
        usable = usable_rows(T, w)
        X, T = indexable(X, T)
        rng = check_random_state(self.random_state)
        screen = seeded(TableRegressor() if self.screen is None else clone(self.screen), rng)
        model = seeded(clone(self.estimator), rng)
        targets = T[:, 0] if self._one_target else T
        weights = {} if weight is None else {"sample_weight": weight}
        self.screen_ = screen.fit(X, targets, **with_groups(weights, groups))
        if takes_groups(model):
            fit_params = with_groups(fit_params, groups)
        good = ~np.isnan(T) & usable[:, None] & ~self._wrong_cells()
        self._require_rows(good)
        self.fitted_mask_ = good
        self.estimators_ = [
            self._fitted(clone(model), X, np.where(good, T, np.nan)[:, columns], fit_params)
            for columns in self._fits(good)
        ]

    def _wrong_cells(self) -> Mask:
        """Return the cells, or else columns of whole rows, that the screen found wrong."""
        if not hasattr(self.screen_, "outlier_mask_"):
            raise ValueError(
                f"the screen, a {type(self.screen_).__name__}, has no outlier_mask_ after its fit"
            )
        rows: Mask = np.asarray(self.screen_.outlier_mask_)[:, None]
        cells: Mask | None = getattr(self.screen_, "cell_mask_", None)
        return rows if cells is None else rows | cells

    @staticmethod
    def _require_rows(good: Mask) -> None:
        if empty := [j for j in range(good.shape[1]) if not good[:, j].any()]:
            raise ValueError(
                f"the screen leaves no row of target column(s) {empty} to fit (n_samples = "
                f"{len(good)})"
            )

    def _fits(self, good: Mask) -> list[list[int]]:
        """Return the columns of each fit."""
        every = list(range(good.shape[1]))
        takes_several = len(every) == 1 or get_tags(self.estimator).target_tags.multi_output
        same_rows = bool((good == good[:, :1]).all())
        if takes_several and (same_rows or _takes_missing_targets(self.estimator)):
            return [every]
        return [[j] for j in every]

    def _fitted(
        self, model: BaseEstimator, X: object, T: Array, fit_params: dict[str, object]
    ) -> BaseEstimator:
        """Fit a copy of the estimator to the rows with a known target."""
        rows = np.flatnonzero(~np.isnan(T).all(axis=1))
        T = T[rows]
        flat = T.shape[1] == 1 and (self._one_target or self.fitted_mask_.shape[1] > 1)
        # Some, such as MultiOutputRegressor, take a matrix only.
        flat = flat and get_tags(model).target_tags.single_output
        params = check_method_params(X, fit_params, indices=rows)
        return model.fit(safe_indexing(X, rows), T[:, 0] if flat else T, **params)

    def predict(self, X: object) -> Array:
        """Predict the targets of new rows, as the estimator does.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
        """
        check_is_fitted(self)
        predicted = [np.asarray(model.predict(X)) for model in self.estimators_]
        y = np.column_stack(predicted)
        return y[:, 0] if self._one_target else y

    def score_rows(self, X: object, y: object) -> Array:
        """Return outlier scores of new rows by the screen, on the scale of `outlier_scores_`.

        See :meth:`gorelm.RobustELMRegressor.score_rows`.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        return np.asarray(self.screen_.score_rows(X, y))

    def findings(self, X: object, y: object, *, new: bool = False) -> pandas.DataFrame:
        """Return all rows as the screen judges them, the most suspicious first.

        See :func:`gorelm.findings.findings`, which says what the columns hold. What is expected is
        what the screen predicts, not the estimator.

        Parameters
        ----------
        X : array or frame of shape (n_samples, n_features)
            Inputs: those of the fit.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets: those of the fit.
        new : bool, default=False
            X and y are new rows, to be judged by the screen.

        Returns
        -------
        pandas.DataFrame
            One line a row, with its index and inputs.
        """
        check_is_fitted(self)
        return self.screen_.findings(X, y, new=new)

    # Attributes of the screen; an AttributeError where it has none of the name.
    outlier_scores_ = property(attrgetter("screen_.outlier_scores_"))
    outlier_threshold_ = property(attrgetter("screen_.outlier_threshold_"))
    outlier_mask_ = property(attrgetter("screen_.outlier_mask_"))
    contaminated_ = property(attrgetter("screen_.contaminated_"))
    out_of_fold_ = property(attrgetter("screen_.out_of_fold_"))
    cell_scores_ = property(attrgetter("screen_.cell_scores_"))
    cell_thresholds_ = property(attrgetter("screen_.cell_thresholds_"))
    cell_mask_ = property(attrgetter("screen_.cell_mask_"))
    notes_ = property(attrgetter("screen_.notes_"))
    timings_ = property(attrgetter("screen_.timings_"))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        parts = [self.estimator, TableRegressor() if self.screen is None else self.screen]
        of_parts = [get_tags(part).input_tags for part in parts]
        tags.input_tags.allow_nan = all(one.allow_nan for one in of_parts)
        tags.input_tags.string = all(one.string for one in of_parts)
        tags.target_tags.single_output = True
        return tags


def _takes_missing_targets(estimator: BaseEstimator) -> bool:
    return getattr(estimator, "missing_targets", "error") == "ignore"
