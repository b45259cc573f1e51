"""A regressor for raw tables, with categories, missing values and invalid cells."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import field
from numbers import Integral
from operator import attrgetter
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, MultiOutputMixin, RegressorMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from gorelm._compat import HasMethods, Interval, in_cross_validation, validate_params
from gorelm._progress import doing
from gorelm._typing import Array, Constraints, Mask, RandomState
from gorelm.backends.dask.source import Partitioned
from gorelm.datasets.columns import (
    Cells,
    RawColumn,
    are_missing,
    by_frequency,
    columns_of,
    distinct,
    in_words,
    target_columns,
)
from gorelm.estimators._base import (
    all_or_nothing,
    levels_to_caller,
    parameters,
    takes_groups,
    with_groups,
)
from gorelm.estimators._elsewhere import here
from gorelm.estimators._owners import is_dask
from gorelm.estimators._prepare import is_tensor, require_same_inputs, take_names
from gorelm.estimators._raw_tables import (
    EncodableTable,
    Learnt,
    TableInMemory,
    blocks_of,
    encodable_table,
    encoded_lazily,
    few_rows,
    like,
)
from gorelm.estimators.robust import RobustELMRegressor
from gorelm.findings import WithFindings
from gorelm.stream import ParquetTable, RowBlocks

_FEWEST_WORDS = 5  # fewer may differ in more than half of the rows of a small table
_FEWEST_MISSING = 5  # an indicator of fewer missing values cannot learn its weight


@parameters
class TableRegressor(
    WithFindings, MetaEstimatorMixin, MultiOutputMixin, RegressorMixin, BaseEstimator
):
    """Robust multi-target regression on a raw table: encodes, fills in, then fits.

    Columns of categories (text, categoricals) become one input for each category; truth values
    become 0 and 1. Missing numbers are filled in with the median of their column, and where at
    least five are missing, a further input marks them. Columns without information (empty, the same
    in every row, another text in nearly every row) and dates are left out. `notes_` says what
    was done, a sentence each.

    Parameters
    ----------
    estimator : estimator, default=None
        What is fitted to the encoded table. None: :class:`RobustELMRegressor`, which uses the
        targets that are known where others are missing (``missing_targets="ignore"``).
    effort : {"fast", "default", "high"}, default="default"
        How much that :class:`RobustELMRegressor` tries. An `estimator` of your own has its own
        parameters: with one, this must be "default".
    check_inputs : bool, default=False
        Whether that :class:`RobustELMRegressor` looks for wrong numbers among the inputs, and fills
        them in. With an `estimator` of your own, this must be False.
    target_transform : {"auto", "log", "sqrt", None}, default="auto"
        Scale on which that :class:`RobustELMRegressor` fits the targets; by default it chooses, and
        `notes_` name the targets that are fitted on another scale than the given one.
    max_categories : int, default=20
        Most inputs that a column of categories may become: of more categories the most frequent
        have one each, and the others share one.
    random_state : int, RandomState instance or None, default=None
        Seed, for the estimator if it has a `random_state` of None.

    Attributes
    ----------
    encoder_ : ColumnTransformer
        From cells (numbers and categories) to inputs: medians, missing indicators, one-hot codes.
    regressor_ : estimator
        The fitted estimator.
    kinds_ : list of {"number", "words", "ignored"}
        What every column was taken for ("words": categories).
    target_names_ : list of str
        Names of the targets; y0, y1, ... where y had none.
    notes_ : list of str
        What was filled in, encoded, ignored or taken for missing, a sentence each.
    outlier_scores_, outlier_threshold_, outlier_mask_, cell_scores_, cell_thresholds_, \
cell_mask_, out_of_fold_, contaminated_, target_transforms_, target_spreads_, timings_
        Those of `regressor_`, where it has them.
    input_mask_ : ndarray of bool, shape (n_samples, n_features)
        The numbers that were filled in because the other columns contradict them, if `regressor_`
        checked its inputs; False in columns of categories.
    input_scores_ : ndarray of shape (n_samples, n_features)
        How far numbers are from what the other columns say (NaN in columns that are not checked).
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray of str
        Names of the columns, when X was a frame with string column names.

    Notes
    -----
    In a column of text, cells that are not numbers count as missing where at least four fifths of
    the known cells are numbers; otherwise all cells are categories. Infinite numbers count as
    missing in X and y. New rows are encoded as the training rows were: an unseen category counts as
    one of the rare categories, or, if there are none, as none of the known ones; `predict` warns of
    it.

    Examples
    --------
    >>> import numpy as np
    >>> from gorelm import TableRegressor
    >>> rng = np.random.default_rng(0)
    >>> size = rng.uniform(size=90).round(3)
    >>> colour = rng.choice(["red", "blue"], size=90)
    >>> y = size + (colour == "red")
    >>> table = np.column_stack([size.astype(object), colour])
    >>> table[7, 0] = None
    >>> model = TableRegressor(random_state=0).fit(table, y)
    >>> model.kinds_
    ['number', 'words']
    >>> model.predict([[0.5, "red"], [0.5, "blue"]]).round(1)
    array([1.5, 0.5])
    """

    _parameter_constraints: ClassVar[Constraints] = {
        "estimator": [HasMethods(["fit", "predict"]), None],
        "effort": RobustELMRegressor._parameter_constraints["effort"],
        "check_inputs": ["boolean"],
        "target_transform": RobustELMRegressor._parameter_constraints["target_transform"],
        "max_categories": [Interval(Integral, 2, None, closed="left")],
        "random_state": ["random_state"],
    }

    estimator: BaseEstimator | None = field(default=None, kw_only=False)
    effort: str = "default"
    check_inputs: bool = False
    target_transform: str | None = "auto"
    max_categories: int = 20
    random_state: RandomState = None

    # -- fitting ---------------------------------------------------------------------------------

    def fit(self, X: object, y: object, groups: object = None, **fit_params: object) -> Self:
        """Encode the table and fit the estimator.

        Parameters
        ----------
        X : table of shape (n_samples, n_features)
            Columns of numbers, truth values, categories; values may be missing. A frame, an array,
            or a table that need not fit in memory, if the estimator takes such rows (those of
            gorelm do): a :class:`~gorelm.stream.ParquetTable`, :class:`~gorelm.stream.RowBlocks` of
            frames, a dask dataframe or array, a tensor. Of these the numbers of a few columns at a
            time are in memory, and then a block of rows.
        y : frame, series, array, tensor or dask collection, (n_samples,) or (n_samples, n_targets)
            Targets, with missing values if the estimator takes them; brought into memory.
        groups : array of shape (n_samples,), optional
            Label of the group of every row, for an estimator that takes them (those of gorelm with
            a `cv` do): rows are then judged by fits without their group.
        **fit_params : dict
            Passed on to the estimator's `fit`, such as `sample_weight`.

        Returns
        -------
        self : object
            The fitted estimator. A fit that fails or is interrupted leaves it as it was.
        """
        with all_or_nothing(self):
            validate_params(self)
            self._fit(X, y, with_groups(fit_params, groups))
        return self

    def _fit(self, X: object, y: object, fit_params: dict[str, object]) -> None:
        self.notes_: list[str] = []
        table = encodable_table(X)
        if isinstance(table, TableInMemory):
            validate_data(self, table.values, skip_check_array=True)
        else:
            take_names(self, table)
        y = self._targets(here(y))
        if len(y) != table.shape[0]:
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: "
                f"{[table.shape[0], len(y)]}"
            )
        with doing("learn", *table.shape):
            inputs = self._encoded_inputs(table)
        self.regressor_ = self._new_regressor().fit(inputs, y, **fit_params)
        if hasattr(self.regressor_, "input_mask_"):
            counts = self.input_mask_.sum(axis=0)
            places = [f"{self._name(j)!r} ({n})" for j, n in enumerate(counts) if n]
            self.notes_.append(
                "Wrong numbers among the inputs, filled in with what the other inputs say: "
                f"{_listed(places) or 'none'}."
            )
        self._note_transforms()
        if not hasattr(self.regressor_, "outlier_mask_"):
            name = type(self.regressor_).__name__
            self.notes_.append(
                f"Not screened: {name} was fitted to all rows, without a search for outliers; "
                f"ScreenedRegressor({name}()) as the estimator excludes them."
            )

    def _encoded_inputs(self, table: EncodableTable) -> object:
        """Learn the encoding of the columns; returns the inputs, where the table is."""
        columns = table.learn()
        self.kinds_ = ["words" if c.kind == "words" else "number" for c in columns]
        self._ignore(columns)
        self._note_counters(columns)
        named = [(f"column {self._name(j)!r}", c) for j, c in enumerate(columns)]
        used = zip(named, self.kinds_, strict=True)
        self._note_invalid({n: c.invalid for (n, c), kind in used if kind == "number"})
        self.encoder_ = self._new_encoder(columns)
        few = few_rows(columns, self.kinds_, self.max_categories)
        n_inputs = self.encoder_.fit_transform(few).shape[1]
        return table.encoded(self._without_results()._encoded, n_inputs)

    def _without_results(self) -> TableRegressor:
        """Return what encodes, for workers: the rest may be large."""
        encoder: TableRegressor = clone(self)
        encoder.encoder_, encoder.kinds_ = self.encoder_, self.kinds_
        return encoder

    def _encoded(self, frame: object) -> Array:
        return np.asarray(self.encoder_.transform(self._cells(columns_of(frame))[0]))

    def _new_regressor(self) -> BaseEstimator:
        if self.estimator is None:
            return RobustELMRegressor(
                effort=self.effort,
                target_transform=self.target_transform,
                missing_targets="ignore",
                check_inputs=self.check_inputs,
                random_state=self.random_state,
            )
        if self.check_inputs:
            raise ValueError(
                "check_inputs is for the RobustELMRegressor that is fitted without an estimator; "
                "set it in the estimator instead"
            )
        if self.effort != "default":
            raise ValueError(
                f"effort={self.effort!r} is for the RobustELMRegressor that is fitted without an "
                "estimator; set it in the estimator instead"
            )
        if self.target_transform not in ("auto", None):
            raise ValueError(
                f"target_transform={self.target_transform!r} is for the RobustELMRegressor that is "
                "fitted without an estimator; set it in the estimator instead"
            )
        regressor = clone(self.estimator)
        if regressor.get_params().get("random_state", self) is None:
            regressor.set_params(random_state=self.random_state)
        return regressor

    def _note_transforms(self) -> None:
        kinds: list[str] = getattr(self.regressor_, "target_transforms_", [])
        for kind, scale in (("log", "logarithms"), ("sqrt", "square roots")):
            names = [n for n, k in zip(self.target_names_, kinds, strict=False) if k == kind]
            if names:
                self.notes_.append(
                    f"Fitted and judged on the scale of {scale}: {in_words(names)}. Predictions "
                    "are in the given units (target_transform=None fits the values as given)."
                )

    def _on_scale(self, T: Array) -> Array:
        return np.asarray(getattr(self.regressor_, "_on_scale", np.asarray)(T))

    def _takes_groups(self) -> bool:
        return self.estimator is None or takes_groups(self.estimator)

    def _targets(self, y: object) -> Array:
        """Return y as numbers, NaN where unknown; remembers their names."""
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y "
                "is None."
            )
        self.target_names_, columns, one_target = target_columns(y)
        values, invalid = [], {}
        for name, column in zip(self.target_names_, columns, strict=True):
            if column.kind not in ("number", "empty"):
                example = in_words([str(next(c for c in column.cells if c is not None))])
                held = "text" if column.kind == "words" else column.kind
                raise ValueError(
                    f"target {name!r} is not numeric: it holds {held}, such as {example}"
                )
            numbers, invalid[f"target {name!r}"] = column.numbers()
            values.append(numbers)
        self._note_invalid(invalid)
        T = np.column_stack(values)
        self._note_missing_targets(T)
        return T[:, 0] if one_target else T

    def _note_missing_targets(self, T: Array) -> None:
        missing = np.isnan(T)
        if missing.all(axis=0).any():
            empty = [self.target_names_[j] for j in np.flatnonzero(missing.all(axis=0))]
            raise ValueError(f"target {in_words(empty)} has no known value")
        if not missing.any():
            return
        counts = [
            f"{name!r} ({count})"
            for name, count in zip(self.target_names_, missing.sum(axis=0), strict=True)
            if count
        ]
        self.notes_.append(f"Missing targets: {_listed(counts)}; the known ones are used.")
        if lost := missing.all(axis=1).sum():
            self.notes_.append(f"{_rows(lost)} without any target had no part in the fit.")

    # -- encoding --------------------------------------------------------------------------------

    def _name(self, j: int) -> str:
        names = getattr(self, "feature_names_in_", None)
        return f"column {j}" if names is None else str(names[j])

    def _ignore(self, columns: Sequence[Learnt]) -> None:
        """Mark the columns without information, and say why."""
        reasons: dict[str, list[str]] = {}
        for j, column in enumerate(columns):
            if reason := self._reason_to_ignore(column):
                self.kinds_[j] = "ignored"
                reasons.setdefault(reason, []).append(self._name(j))
        for reason, names in reasons.items():
            self.notes_.append(f"Ignored: {in_words(names)} ({reason}).")
        if all(kind == "ignored" for kind in self.kinds_):
            raise ValueError(
                "no column of X is left to learn from (n_samples = "
                f"{columns[0].n_rows}). {' '.join(self.notes_)}"
            )

    def _note_counters(self, columns: Sequence[Learnt]) -> None:
        for j, column in enumerate(columns):
            if column.first is not None:
                last = column.first + column.n_rows - 1
                self.notes_.append(
                    f"Input {self._name(j)!r} counts the rows, from {column.first} to {last:,}: if "
                    "it is an id and says nothing about the targets, leave it out (option --id of "
                    "the commands)."
                )

    def _reason_to_ignore(self, column: Learnt) -> str | None:
        if column.kind == "empty":
            return "empty"
        if column.kind == "dates":
            return "dates; turn them into numbers to use them"
        if column.kind == "nested":
            return "neither numbers nor categories"
        if len(column.words.keys() - {None}) > max(_FEWEST_WORDS, column.n_known / 2):
            return "a text of its own in more than half of the rows"
        if column.same and min(column.n_missing, column.n_known) < _FEWEST_MISSING:
            return "the same in every row" if column.n_known else "empty"
        return None

    def _cells(self, columns: Sequence[RawColumn]) -> tuple[Cells, dict[str, list[str]]]:
        """Return numbers and words, as the encoder takes them, and what was neither by column."""
        table: list[Cells] = []
        invalid = {}
        for j, (column, kind) in enumerate(zip(columns, self.kinds_, strict=True)):
            if kind == "words":
                table.append(column.words())
            elif kind == "number":
                numbers, invalid[f"column {self._name(j)!r}"] = column.numbers()
                table.append(numbers)
            else:
                table.append(np.zeros(len(column.cells)))
        kind_of_all = object if "words" in self.kinds_ else np.float64
        cells = np.empty((len(table[0]), len(table)), dtype=kind_of_all)
        for j, values in enumerate(table):
            cells[:, j] = values
        return cells, invalid

    def _new_encoder(self, columns: Sequence[Learnt]) -> ColumnTransformer:
        """Return the encoder for the table, and say what it will do."""
        full, marked, words, filled = list[int](), list[int](), list[int](), list[str]()
        for j, (kind, column) in enumerate(zip(self.kinds_, columns, strict=True)):
            if kind == "number":
                n_missing = column.n_missing
                mark = n_missing >= _FEWEST_MISSING
                (marked if mark else full).append(j)
                if n_missing:
                    filled.append(f"{self._name(j)!r} ({n_missing}{', with an indicator' * mark})")
            elif kind == "words":
                words.append(j)
                self._note_words(j, column)
        if filled:
            self.notes_.append(
                f"Missing numbers, filled in with the column's median: {_listed(filled)}."
            )
        one_hot = OneHotEncoder(
            max_categories=self.max_categories,
            handle_unknown="infrequent_if_exist",
            sparse_output=False,
        )
        steps = [
            ("numbers", SimpleImputer(strategy="median"), full),
            ("numbers_with_gaps", SimpleImputer(strategy="median", add_indicator=True), marked),
            ("words", one_hot, words),
        ]
        return ColumnTransformer([step for step in steps if step[2]], sparse_threshold=0)

    def _note_words(self, j: int, column: Learnt) -> None:
        found = by_frequency(column.words)
        name, n_missing = self._name(j), column.n_missing
        missing = f"; {_rows(n_missing)} without one, which counts as one more" * bool(n_missing)
        note = f"{name!r} has {_categories(len(found))}: {in_words(found, 6)}{missing}."
        if len(found) + (n_missing > 0) > self.max_categories:
            note = (
                f"{name!r} has {len(found)} categories: the {self.max_categories - 1} most "
                f"frequent ones are encoded separately, the others as one{missing}."
            )
        self.notes_.append(f"Encoded: {note}")

    def _note_invalid(self, invalid: dict[str, list[str]]) -> None:
        for note in _invalid_in_words(invalid):
            self.notes_.append(note)
            warnings.warn(note, UserWarning, stacklevel=levels_to_caller())

    # -- using it --------------------------------------------------------------------------------

    def predict(self, X: object) -> Array:
        """Predict the targets of new rows.

        Parameters
        ----------
        X : table of shape (n_samples, n_features)
            Columns as in the fit. Missing values are filled in as there.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Of a dask collection a dask array in its partitions, computed when it is asked for; of a
            tensor a tensor on its device.

        Warns
        -----
        UserWarning
            If there are unseen categories (not in scikit-learn's cross-validation, where every
            fold may lack some, nor for a dask collection), or cells that should be numbers and
            are not.
        """
        check_is_fitted(self)
        if isinstance(X, RowBlocks | ParquetTable):
            require_same_inputs(self, X.shape[1], X.feature_names)
            return np.concatenate([self.predict(block) for block in blocks_of(X)])
        if is_dask(X):
            return self._predicted_lazily(X)
        if isinstance(X, Partitioned):
            X = X.values
        if is_tensor(X):
            predicted: Array = self.regressor_.predict(like(X, self._encoded_new(here(X))))
            return predicted
        return np.asarray(self.regressor_.predict(self._encoded_new(X)))

    def _predicted_lazily(self, X: Any) -> Array:
        """Return the predictions for a dask collection, in its partitions."""
        named = hasattr(X, "columns")
        n_columns = len(X.columns) if named else int(X.shape[1])
        require_same_inputs(self, n_columns, [str(name) for name in X.columns] if named else None)
        n_inputs = max(places.stop for places in self.encoder_.output_indices_.values())
        encoded = encoded_lazily(X, self._without_results()._encoded, n_inputs)
        predicted: Array = self.regressor_.predict(encoded)
        return predicted

    def _encoded_new(self, X: object) -> Array:
        """Return the inputs of new rows, with warnings of what there is to say."""
        cells, notes = self._encodable(X)
        for note in notes:
            warnings.warn(note, UserWarning, stacklevel=levels_to_caller())
        return np.asarray(self.encoder_.transform(cells))

    def _encodable(self, X: object) -> tuple[Cells, list[str]]:
        """Return the cells of new rows, as the encoder takes them, and what there is to say."""
        columns = columns_of(X)
        validate_data(self, X, skip_check_array=True, reset=False)
        cells, invalid = self._cells(columns)
        # Folds that lack a rare category are what a cross-validation is made of.
        unseen = [] if in_cross_validation() else self._unseen_words(cells)
        return cells, [*_invalid_in_words(invalid), *unseen]

    def score_rows(self, X: object, y: object) -> Array:
        """Return outlier scores of new rows, on the scale of `outlier_scores_`.

        See :meth:`gorelm.RobustELMRegressor.score_rows`.

        Parameters
        ----------
        X : frame or array of shape (n_samples, n_features)
            Columns as in the fit.
        y : frame or array of shape (n_samples,) or (n_samples, n_targets)
            Targets; missing values and cells that are no numbers are unknown.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
            NaN where no target is known. A score above `outlier_threshold_` says that the row is
            wrong.
        """
        check_is_fitted(self)
        inputs = self.encoder_.transform(self._encodable(X)[0])
        return np.asarray(self.regressor_.score_rows(inputs, _target_numbers(y)))

    def score_cells(self, X: object, y: object) -> Array:
        """Return scores of the cells of new rows, on the scale of `cell_scores_`.

        See :meth:`gorelm.RobustELMRegressor.score_cells`.

        Parameters
        ----------
        X : frame or array of shape (n_samples, n_features)
            Columns as in the fit.
        y : frame or array of shape (n_samples,) or (n_samples, n_targets)
            Targets; missing values and cells that are no numbers are unknown.

        Returns
        -------
        scores : ndarray of shape (n_samples, n_targets)
            NaN where the target is unknown.
        """
        check_is_fitted(self)
        inputs = self.encoder_.transform(self._encodable(X)[0])
        return np.asarray(self.regressor_.score_cells(inputs, _target_numbers(y)))

    def _was_fitted_to(self, X: object, y: object) -> bool:
        known = getattr(self.regressor_, "_was_fitted_to", None)
        if known is None:
            return True
        inputs = self.encoder_.transform(self._encodable(X)[0])
        return bool(known(inputs, _target_numbers(y)))

    def words(self) -> dict[str, list[str]]:
        """Return the categories of every column of categories, by the column's name.

        Missing values count as one more where the training rows had such.
        """
        check_is_fitted(self)
        return {
            self._name(j): [word for word in known if isinstance(word, str)]
            for j, known in self._categories()
        }

    def _categories(self) -> Iterator[tuple[int, list[object]]]:
        """Yield the columns of words and their categories, NaN among them where words lacked."""
        places = [j for j, kind in enumerate(self.kinds_) if kind == "words"]
        if places:
            known = self.encoder_.named_transformers_["words"].categories_
            yield from zip(places, map(list, known), strict=True)

    def _unseen_words(self, cells: Cells) -> list[str]:
        notes = []
        for j, known in self._categories():
            words = {word for word in known if isinstance(word, str)}
            missing_known = len(words) < len(known)
            unseen = np.array([
                word not in words if isinstance(word, str) else not missing_known
                for word in cells[:, j]
            ])  # fmt: skip
            if unseen.any():
                shown = distinct(cells[unseen, j])
                missing = ["missing"] * bool(are_missing(cells[unseen, j]).any())
                n = len(shown) + len(missing)
                most = self.encoder_.named_transformers_["words"].max_categories
                notes.append(
                    f"Column {self._name(j)!r}: unseen {'category' if n == 1 else 'categories'} "
                    f"{in_words(shown + missing, 4)} in {_rows(unseen.sum())}; counts as "
                    f"{'a rare category' if len(known) > most else 'none of the known ones'}."
                )
        return notes

    def _as_pipeline(self) -> Pipeline:
        """Return the fitted steps as a pipeline, with the names of the columns."""
        encoder = copy(self.encoder_)
        if hasattr(self, "feature_names_in_"):
            encoder.feature_names_in_ = self.feature_names_in_
        return Pipeline([("encoder", encoder), ("regressor", self.regressor_)])

    def _by_column(self, values: Array) -> Array:
        """Return values of the encoder's outputs, for the columns of numbers they are made of."""
        of_columns = np.full((len(values), self.n_features_in_), np.nan)
        for name, _, columns in self.encoder_.transformers_:
            if name in ("numbers", "numbers_with_gaps"):
                first = self.encoder_.output_indices_[name].start
                of_columns[:, columns] = values[:, first : first + len(columns)]
        return of_columns

    @property
    def input_mask_(self) -> Mask:  # noqa: D102 (an attribute, documented on the class)
        return np.asarray(self._by_column(self.regressor_.input_mask_) == 1)

    @property
    def input_scores_(self) -> Array:  # noqa: D102
        return self._by_column(self.regressor_.input_scores_)

    # Attributes of the fitted estimator; an AttributeError where it has none of the name.
    outlier_scores_ = property(attrgetter("regressor_.outlier_scores_"))
    outlier_threshold_ = property(attrgetter("regressor_.outlier_threshold_"))
    outlier_mask_ = property(attrgetter("regressor_.outlier_mask_"))
    cell_scores_ = property(attrgetter("regressor_.cell_scores_"))
    cell_thresholds_ = property(attrgetter("regressor_.cell_thresholds_"))
    cell_mask_ = property(attrgetter("regressor_.cell_mask_"))
    out_of_fold_ = property(attrgetter("regressor_.out_of_fold_"))
    contaminated_ = property(attrgetter("regressor_.contaminated_"))
    target_transforms_ = property(attrgetter("regressor_.target_transforms_"))
    target_spreads_ = property(attrgetter("regressor_.target_spreads_"))
    timings_ = property(attrgetter("regressor_.timings_"))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.target_tags.single_output = True
        return tags


def _target_numbers(y: object) -> Array:
    """Return targets as numbers, NaN where unknown, in as many dimensions as they came in."""
    _, columns, one_target = target_columns(y)
    T = np.column_stack([column.numbers()[0] for column in columns])
    return T[:, 0] if one_target else T


def _invalid_in_words(invalid: dict[str, list[str]]) -> list[str]:
    notes = []
    for place, cells in invalid.items():
        if cells:
            examples = in_words(list(dict.fromkeys(cells)), 4)
            number = "1 cell is no finite number" if len(cells) == 1 else (
                f"{len(cells)} cells are no finite numbers"
            )  # fmt: skip
            notes.append(f"{place[0].upper()}{place[1:]}: {number} ({examples}); taken as missing.")
    return notes


def _listed(entries: list[str], limit: int = 8) -> str:
    if len(entries) > limit:
        return f"{', '.join(entries[: limit - 1])} and {len(entries) - limit + 1} others"
    return ", ".join(entries)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _categories(count: int) -> str:
    return "1 category" if count == 1 else f"{count} categories"
