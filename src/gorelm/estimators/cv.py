"""Estimators that choose their own hyperparameters by robust cross-validation over whole paths."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import field, replace
from functools import partial
from itertools import product
from numbers import Integral, Real
from typing import ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from gorelm._compat import Interval, validate_params
from gorelm._features.scaling import Scaling
from gorelm._solver.admm import checks_apart
from gorelm._solver.prepared import Prepared
from gorelm._typing import Array, Constraints, Indices, Mask
from gorelm.diagnostics.outlier_scores import outlier_threshold
from gorelm.estimators._base import IterativeELM, SizedELM, all_or_nothing, parameters
from gorelm.estimators._docs import document
from gorelm.estimators._elsewhere import CheckedTable, here
from gorelm.estimators._owners import LargeELM, PredictsAnywhere
from gorelm.estimators._prepare import has_target, usable_rows
from gorelm.estimators._search import (
    Candidate,
    FoldPrediction,
    SearchTable,
    out_of_fold,
    require_known_targets,
    sampled,
    thinned,
)
from gorelm.estimators.batch import (
    GORELMRegressor,
    GRELMRegressor,
    ORELMRegressor,
    RELMRegressor,
)
from gorelm.path import checked_grid, default_lams
from gorelm.selection import (
    Fold,
    Scoring,
    error_norms,
    folds_of,
    one_standard_error,
    scores_of,
    track,
)

__all__ = [
    "GORELMRegressorCV",
    "GRELMRegressorCV",
    "ORELMRegressorCV",
    "RELMRegressorCV",
]

FEW_CELLS = 10**6  # of H, rows times outputs, up to which threads of BLAS gain little
_LAYER_LISTS = ("n_hidden", "activation", "weight_scale", "n_inputs", "direct_link")
_SHARED = (
    *("weights", "input_scaling", "target_scaling", "missing_targets", "tol", "max_iter"),
    "memory_budget",
)
_ALIKE = ("_check_every", "_block_dtype")  # see `LargeELM`
_NUMBERS: list[object] = ["array-like", Interval(Real, 0, None, closed="left")]


class FoldScores(NamedTuple):
    """Scores and errors of a candidate on the test rows of a fold."""

    scores: Array  # (penalties,), larger is better
    norms: Array  # (test rows, penalties), of errors in units of the targets' scales
    n_active: Indices  # (penalties,)


def fold_scores(
    table: SearchTable, test: FoldPrediction, *, scoring: Scoring, scale: Array, one_target: bool
) -> FoldScores:
    """Score the test rows that may be fitted; norms are those of all test rows."""
    T, scored = table.T[test.rows], table.kept[test.rows]
    norms = error_norms(test.predicted, T, scale)
    scores = scores_of(
        scoring,
        test.predicted[scored],
        norms[scored],
        table.X[test.rows][scored],
        T[scored],
        table.w[test.rows][scored],
        one_target=one_target,
    )
    return FoldScores(scores, norms, test.n_active)


@parameters
class SearchingELM(PredictsAnywhere, SizedELM):
    """A `SizedELM` that tries lists of layers and a grid of penalties, then fits the best."""

    _single: ClassVar[type[IterativeELM]]
    _parameter_constraints: ClassVar[Constraints] = {
        **SizedELM._parameter_constraints,
        **{name: [*SizedELM._parameter_constraints[name], "array-like"] for name in _LAYER_LISTS},
        "n_lams": [Interval(Integral, 1, None, closed="left")],
        "eps": [Interval(Real, 0, 1, closed="neither")],
        "cv": ["cv_object"],
        "search_rows": [Interval(Integral, 2, None, closed="left"), None],
        "scoring": [str, callable],
        "one_standard_error": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "memory_budget": LargeELM._parameter_constraints["memory_budget"],
        "device": LargeELM._parameter_constraints["device"],
        "n_jobs": [Integral, None],
        "progress": ["boolean"],
    }

    n_lams: int = 41
    eps: float = 1e-6
    cv: object = 5
    search_rows: int | None = 20_000
    scoring: Scoring = "mean_norm"
    one_standard_error: bool = False
    tol: float = 1e-3
    max_iter: int | None = None
    memory_budget: float | str | None = None
    device: str | None = None
    n_jobs: int | None = None
    progress: bool = False

    # -- for each method to define ---------------------------------------------------------------

    def _grids(self) -> tuple[object, object, object]:
        """Return lams (None: from the data), l1_ratios and deltas."""
        raise NotImplementedError

    def _at(self, delta: float, l1_ratio: float, lam: float) -> dict[str, float]:
        """Return the single estimator's parameters at a point of the grid."""
        raise NotImplementedError

    # -- fitting ---------------------------------------------------------------------------------

    def fit(
        self, X: object, y: object, sample_weight: object = None, groups: object = None
    ) -> Self:
        """Choose the penalty and the hidden layer by folds, and fit the output weights.

        Parameters
        ----------
        X : array, sparse matrix, tensor, RowBlocks or dask collection (n_samples, n_features)
            Inputs; float32 inputs are worked on in float32 (blocks in float64).
            :class:`~gorelm.stream.RowBlocks` are read a block at a time; the partitions of a dask
            array or dataframe stay on the workers of a cluster. Splitters are shown zeros in
            place of inputs that are not arrays.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets; they are held in memory. NaN marks an unknown cell when
            ``missing_targets="ignore"``.
        sample_weight : array of shape (n_samples,), optional
            Weight of every row; a weight of 2 equals the row twice, a weight of 0 its absence.
        groups : array of shape (n_samples,), optional
            Label of the group of every row, such as the patient or the machine that it comes from.
            If `cv` is a number, every group is in one fold; a splitter is told the groups.

        Returns
        -------
        self : object
            The fitted estimator. A fit that fails or is interrupted leaves it as it was.
        """
        with all_or_nothing(self):
            validate_params(self)
            self._fit(X, y, sample_weight, groups)
        return self

    def _fit(self, X: object, y: object, sample_weight: object, groups: object = None) -> None:
        given = CheckedTable.of(self, X, y, sample_weight)
        T, w = given.T, given.w
        usable = usable_rows(T, w)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        folds = folds_of(self.cv, given.shown, T, seed, groups)
        if not all(usable[fold.train].any() and usable[fold.test].any() for fold in folds):
            raise ValueError("a fold of cv has no row with a positive weight and a known target")
        scale = Scaling.fit(self.target_scaling, T[usable], w[usable]).scale
        rows = sampled(usable, self.search_rows, seed)
        table, given = SearchTable.of(given, usable, rows), given.brought()
        searched = folds if rows is None else thinned(folds, rows, len(w))
        layers = self._layers()
        candidates = [self._candidate(layer, seed, table) for layer in layers]
        score = partial(fold_scores, scoring=self.scoring, scale=scale, one_target=self._one_target)
        runs = out_of_fold(
            candidates,
            table,
            searched,
            score,
            one_thread=len(table.T) * (np.max(self.n_hidden) + table.X.shape[1]) <= FEW_CELLS,
            n_jobs=self.n_jobs,
            progress=self.progress,
            what="folds",
        )
        results = list(runs)

        points = [(k, *at) for k, one in enumerate(candidates) for at in one.penalties()]
        scores = np.hstack([[fold.scores for fold in one] for one in results])
        n_active = np.hstack([[fold.n_active for fold in one] for one in results])
        best = _best(scores, points, simplest=self.one_standard_error)
        settings = [{**self._at(*at), **layers[k]} for k, *at in points]
        self.cv_results_ = _results(settings, scores, n_active)
        self.best_index_, self.best_score_ = best, float(scores[:, best].mean())

        k, *at = points[best]
        final = self._model(layers[k], seed).set_params(**self._at(*at))
        if rows is None:
            first = sum(len(one.penalties()) for one in candidates[:k])
            norms = [fold.norms[:, best - first] for fold in results[k]]
        else:
            norms = self._norms_of_all(final, given, folds, scale)
        self.cv_outlier_scores_, tested = _mean_over_folds(folds, norms, len(w))
        judged = tested & (w > 0)
        self.cv_outlier_threshold_ = outlier_threshold(self.cv_outlier_scores_[judged], w[judged])
        self.cv_outlier_mask_ = tested & (
            np.nan_to_num(self.cv_outlier_scores_) > self.cv_outlier_threshold_
        )

        self._fit_to(final, given, w)
        mine = {*self.get_params(), *final.get_params(), *_ALIKE}
        self.__dict__.update({k: v for k, v in vars(final).items() if k not in mine})
        for name, value in self._at(*at).items():
            setattr(self, name + "_", value)

    def _fit_to(self, model: IterativeELM, given: CheckedTable, w: Array) -> None:
        """Fit a model to all rows of positive weight, in the place where they are."""
        n_outputs = model._n_first + (given.shown.shape[1] if model.direct_link else 0)
        n_used = int(has_target(given.T, w).sum())
        alike = checks_apart((n_used, n_outputs)), given.shown.dtype
        for name, value in zip(_ALIKE, alike, strict=True):
            setattr(model, name, value)
        model.fit(given.X, given.T[:, 0] if self._one_target else given.T, w)

    def _norms_of_all(
        self, model: IterativeELM, given: CheckedTable, folds: Sequence[Fold], scale: Array
    ) -> list[Array]:
        """Return the norms of the errors of all test rows: fits to the training rows of each fold.

        Rows of weight 0 are not there.
        """
        norms = []
        for fold in track(folds, len(folds), "folds of all rows", show=self.progress):
            one, w = clone(model), np.zeros(len(given.w))
            np.add.at(w, fold.train, given.w[fold.train])
            require_known_targets(given.T[w > 0])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # as in the search
                self._fit_to(one, given, w)
            predicted = np.asarray(here(one.predict(given.X)))[fold.test]
            predicted = predicted.reshape(len(fold.test), 1, -1)
            norms.append(error_norms(predicted, given.T[fold.test], scale)[:, 0])
        return norms

    def _layers(self) -> list[dict[str, object]]:
        """Return the settings of every hidden layer to try."""
        lists = []
        # A column of None would be one of missing values in a table of results.
        names = [name for name in _LAYER_LISTS if getattr(self, name) is not None]
        for name in names:
            value = getattr(self, name)
            single = isinstance(value, str) or np.ndim(value) == 0
            values = [value] if single else list(value)
            if not values:
                raise ValueError(f"{name} is an empty list: give at least one value")
            lists.append(values)
        return [dict(zip(names, layer, strict=True)) for layer in product(*lists)]

    def _model(self, layer: dict[str, object], seed: int) -> IterativeELM:
        settings = {name: getattr(self, name) for name in _SHARED} | layer
        model = self._single(random_state=seed)
        model.set_params(**settings)
        validate_params(model)
        return model

    def _candidate(self, layer: dict[str, object], seed: int, table: SearchTable) -> Candidate:
        lams, l1_ratios, deltas = self._grids()
        model = self._model(layer, seed)
        ratios = checked_grid("l1_ratios", l1_ratios, largest=1.0)
        one = Candidate(model, np.ones(1), ratios, checked_grid("deltas", deltas))
        if lams is None:
            usable = table.kept
            H, design = copy(model)._drawn(table.X[usable], table.T[usable], table.w[usable])
            problem = one.problem()
            prepared = Prepared(H, design.T, problem, design.omega, design.observed)
            lams = default_lams(prepared, problem, ratios, self.n_lams, self.eps)
        return replace(one, lams=checked_grid("lams", lams)[::-1])


def _best(
    scores: Array, points: Sequence[tuple[int, float, float, float]], *, simplest: bool
) -> int:
    """Return the point of best mean score over the folds, or the simplest of those as good."""
    means = scores.mean(axis=0)
    if not np.isfinite(means).any():
        raise ValueError("no candidate has a finite score; check `scoring` and the data")
    means = np.where(np.isfinite(means), means, -np.inf)
    if not simplest:
        return int(np.argmax(means))
    n_folds = len(scores)
    errors = scores.std(axis=0, ddof=min(1, n_folds - 1)) / np.sqrt(n_folds)
    _, _, ratios, lams = np.array(points).T
    return one_standard_error(means, errors, [lams, ratios])


def _results(
    settings: Sequence[dict[str, object]], scores: Array, n_active: Indices
) -> dict[str, Array]:
    """Return parameters and scores of every candidate as columns."""
    table = {f"param_{name}": np.array([one[name] for one in settings]) for name in settings[0]}
    table |= {f"split{k}_test_score": of_fold for k, of_fold in enumerate(scores)}
    table["mean_test_score"] = scores.mean(axis=0)
    table["std_test_score"] = scores.std(axis=0)
    order = np.argsort(-table["mean_test_score"], kind="stable")
    table["rank_test_score"] = np.empty(len(order), dtype=int)
    table["rank_test_score"][order] = np.arange(1, len(order) + 1)
    table["mean_n_active"] = n_active.mean(axis=0)
    return table


def _mean_over_folds(
    folds: Sequence[Fold], values: Sequence[Array], n_rows: int
) -> tuple[Array, Mask]:
    """Return each row's mean over the folds that tested it (NaN: none), and which were tested."""
    total, count = np.zeros(n_rows), np.zeros(n_rows)
    for fold, of_fold in zip(folds, values, strict=True):
        total[fold.test] += of_fold
        count[fold.test] += 1
    tested = count > 0
    return np.where(tested, total / np.where(tested, count, 1), np.nan), tested


@document
@parameters
class GORELMRegressorCV(SearchingELM):
    r"""GOR-ELM; penalty and layer are chosen by cross-validation with an outlier-resistant score.

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
    _parameter_constraints: ClassVar[Constraints] = {
        **SearchingELM._parameter_constraints,
        "lams": [*_NUMBERS, None],
        "l1_ratios": _NUMBERS,
        "deltas": _NUMBERS,
    }

    lams: object = field(default=None, kw_only=False)
    l1_ratios: object = 0.0
    deltas: object = 0.0

    def _grids(self) -> tuple[object, object, object]:
        return self.lams, self.l1_ratios, self.deltas

    def _at(self, delta: float, l1_ratio: float, lam: float) -> dict[str, float]:
        return {"lam": lam, "l1_ratio": l1_ratio, "delta": delta}


@parameters
class _SearchingC(SearchingELM):
    """Methods whose one number is C = 1 / lam."""

    _parameter_constraints: ClassVar[Constraints] = {
        **SearchingELM._parameter_constraints,
        "Cs": [*_NUMBERS, None],
    }

    Cs: object = field(default=None, kw_only=False)

    def _grids(self) -> tuple[object, object, object]:
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
    _parameter_constraints: ClassVar[Constraints] = {
        **_SearchingC._parameter_constraints,
        "l1_ratios": _NUMBERS,
    }

    l1_ratios: object = 0.0


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
    _parameter_constraints: ClassVar[Constraints] = {
        **_SearchingC._parameter_constraints,
        "l1_ratios": _NUMBERS,
    }

    l1_ratios: object = 0.5
