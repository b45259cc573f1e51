"""One estimator for contaminated tables: it needs no parameter to be chosen.

Its four steps, screen, search, refine and fit, are in `gorelm.estimators._robust`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from gorelm._compat import Interval, StrOptions, validate_params
from gorelm._extras import needs
from gorelm._features.target_transforms import TargetTransforms
from gorelm._progress import begin
from gorelm._solver.threads import n_threads, one_blas_thread
from gorelm._typing import Array, Constraints, Mask, RandomState
from gorelm.backends.inputs import within_reach
from gorelm.estimators._base import all_or_nothing, parameters
from gorelm.estimators._owners import is_dask
from gorelm.estimators._prepare import (
    fingerprint,
    is_tensor,
    require_same_inputs,
    validate_targets,
)
from gorelm.estimators._robust.checking import checked_inputs
from gorelm.estimators._robust.layers import PATH, Trial
from gorelm.estimators._robust.members import fit_members, refine
from gorelm.estimators._robust.new_rows import cell_scores, row_scores, spread_of, usual_curves
from gorelm.estimators._robust.owners import Given, given
from gorelm.estimators._robust.plan import followed
from gorelm.estimators._robust.screen import screen
from gorelm.estimators._robust.search import search
from gorelm.estimators._robust.skewed import choose_transforms
from gorelm.estimators._robust.task import EFFORTS, RobustTask
from gorelm.estimators.batch import RELMRegressor
from gorelm.findings import WithFindings
from gorelm.selection import Fold, folds_of
from gorelm.stream import RowBlocks

__all__ = ["RobustELMRegressor"]

GROUP_FOLDS = 5  # of whole groups, where groups are given and folds are not


@parameters
class RobustELMRegressor(WithFindings, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Robust multi-target regression without a parameter to choose.

    Scales inputs and targets, sets aside rows whose targets nothing explains, searches hidden
    layers and penalties out of sample on the others, and averages the best few networks
    (the guide has the whole story).

    Parameters
    ----------
    effort : {"fast", "default", "high"}, default="default"
        How much is tried: rows, nodes and draws of the search, number and nodes of the networks.
        From 1000 rows on "fast" takes about a quarter of the time of "default", "high" twice as
        much and more.
    n_hidden : int or "auto", default="auto"
        Hidden nodes of every network. "auto": with up to `search_rows` rows 2000 and with fewer
        rows more, up to 3000. With more rows than that 1000, more by the fifth root of the rows
        beyond 2000 and by the square root of inputs times targets beyond 40, up to 3000, and 1.2
        times as many (0.75 from 30,000 rows on) are shared among all networks. With more than
        `search_rows` and up to 5000 rows, if inputs times targets are 160 or more, up to twice as
        many nodes as rows are shared. ("fast": about a third of all these; "high": twice as many.)
    n_members : int, default=None
        Most networks to average for a target; those with more than 1.25 times the squared error of
        the best are left out. Targets may have different ones, up to twice as many in all. By
        default 4 ("fast": 2; "high": 6). With several rows a node they are fitted jointly, as one
        regression on the nodes of all; from 30,000 rows on, of up to 1.5 times as many networks.
    cv : int, splitter or iterable of splits, default=None
        Folds by which layers are compared and rows judged. By default every row is left out by
        itself, or, with more than `search_rows` rows, with a quarter of the others.
    search_rows : int, default=None
        Layers and penalties are compared on a random sample of so many rows when there are more;
        the best of them are then fitted to all. By default 1000 ("fast": 500; "high": 2000).
    target_transform : {None, "auto", "log", "sqrt"}, default=None
        Scale on which targets are fitted and judged: as given, logarithms or square roots. "auto"
        chooses one for each target, whatever the seed: another than the given one only if the
        target has no negative value and a long upper tail, its out-of-sample errors grow with its
        size, and do so much less on the other scale. Predictions, `out_of_fold_` and the like are
        in the units of y, and are then about its median, which for a skewed target is less than its
        mean.
    missing_targets : {"error", "ignore"}, default="error"
        What NaN in y means: a mistake, or a cell to leave out.
    check_inputs : bool, default=False
        Whether to look for wrong cells of the inputs, which the other inputs and the targets
        contradict, and to fill them in with what the other inputs of the row say. Cells are
        replaced only if the errors out of sample fall clearly.
    n_jobs : int, default=None
        Threads to share the layers or the rows among, -1 for all cores; by default as many as BLAS
        would use. The result is the same to the last digit for every number.
    device : str, default=None
        PyTorch device, such as "cuda", on which all rows are fitted: their inputs, hidden outputs
        and sums stay there, in float64. Layers are drawn and searched on the host. By default that
        of X if it is a tensor, else the memory of this process.
    progress : bool, default=False
        Show a progress bar (needs ``gorelm[progress]``).
    random_state : int, RandomState instance or None, default=None
        Seed of folds and hidden layers; pass an int for reproducible results.

    Attributes
    ----------
    members_ : list of RELMRegressor
        The fitted networks, on scaled inputs and targets.
    contaminated_ : bool
        Whether the errors of rows, or of a target's cells, fell into two clear groups, so that
        rows, or cells clearly apart, of the upper group were excluded.
    outlier_scores_ : ndarray of shape (n_samples,)
        Typical size e of each row's out-of-sample errors, in units of the targets' spread:
        1 + e is the geometric mean of 1 + abs(error) over the targets (NaN where `cv` never tests).
    outlier_threshold_ : float
        Scores above it are flagged, but for rows most of whose targets are right, and for rows
        whose values look more like those of right rows than of wrong ones.
    outlier_mask_ : ndarray of bool, shape (n_samples,)
        The flagged rows; they had no part in the fit if `contaminated_`.
    cell_scores_ : ndarray of shape (n_samples, n_targets)
        Absolute out-of-sample error of each cell, in units of the error that is usual for its
        target at such a prediction and beside such errors of the row's other targets (NaN where
        the cell is unknown or `cv` never tests).
    cell_thresholds_ : ndarray of shape (n_targets,)
        Scores above it are flagged.
    cell_mask_ : ndarray of bool, shape (n_samples, n_targets)
        The flagged cells, in flagged rows and in others; with one target ``outlier_mask_``.
    out_of_fold_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
        What the networks, fitted without the row (or its fold), predict for each row, in the units
        of y (NaN where `cv` never tests). ``y - out_of_fold_`` tells which of a row's targets are
        off, and by how much.
    input_mask_ : ndarray of bool, shape (n_samples, n_features)
        The cells of the inputs that were filled in. Only with `check_inputs`.
    input_scores_ : ndarray of shape (n_samples, n_features)
        How far each cell of the inputs is from what the other columns say, in units of what is
        usual in its column (NaN in columns with fewer than four values, which are not checked).
        Only with `check_inputs`.
    target_transforms_ : list of {"none", "sqrt", "log"}
        The scale on which each target was fitted. `outlier_scores_` are on it, too.
    target_spreads_ : ndarray of shape (n_targets,)
        Robust spread of each target (interquartile range / 1.349), the unit of the scores' errors,
        on the scale on which it was fitted.
    cv_results_ : dict of arrays
        Settings and score (larger is better) in the search of every layer at its best penalty.
    timings_ : dict of str to float
        Seconds of each step.
    n_features_in_ : int
        Number of inputs.
    feature_names_in_ : ndarray of str
        Names of the inputs, when X was a frame with string column names.

    Examples
    --------
    >>> from gorelm import RobustELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(300, outlier_ratio=0.3, random_state=0)
    >>> model = RobustELMRegressor(n_hidden=100, random_state=0).fit(data.X, data.T)
    >>> bool(model.outlier_mask_[data.planted].mean() > 0.9)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        "effort": [StrOptions(set(EFFORTS))],
        "n_hidden": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "n_members": [Interval(Integral, 1, None, closed="left"), None],
        "cv": ["cv_object"],
        "search_rows": [Interval(Integral, 2, None, closed="left"), None],
        "target_transform": [StrOptions({"auto", "log", "sqrt"}), None],
        "missing_targets": RELMRegressor._parameter_constraints["missing_targets"],
        "check_inputs": ["boolean"],
        "n_jobs": [Integral, None],
        "device": [str, None],
        "progress": ["boolean"],
        "random_state": ["random_state"],
    }

    n_hidden: int | str = "auto"
    effort: str = "default"
    n_members: int | None = None
    cv: object = None
    search_rows: int | None = None
    target_transform: str | None = None
    missing_targets: str = "error"
    check_inputs: bool = False
    n_jobs: int | None = None
    device: str | None = None
    progress: bool = False
    random_state: RandomState = None

    def fit(
        self,
        X: object,
        y: object,
        sample_weight: object = None,
        groups: object = None,
        trusted: object = None,
    ) -> Self:
        """Screen, search, refine and fit.

        Parameters
        ----------
        X : array, tensor, RowBlocks or dask collection of shape (n_samples, n_features)
            Inputs. :class:`~gorelm.stream.RowBlocks` are read a block at a time; the partitions of
            a dask array or dataframe stay on the workers of a cluster.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets; they are held in memory.
        sample_weight : array of shape (n_samples,), optional
            Weight of every row.
        groups : array of shape (n_samples,), optional
            Label of the group of every row, such as the patient or the machine that it comes from.
            Rows are then judged, and layers compared, by fits without all rows of the group: in
            folds of whole groups (five, unless `cv` says otherwise).
        trusted : array of bool of shape (n_samples,), optional
            Rows that are known to be right, however far off they seem: they are never flagged, set
            aside or moved towards their predictions, and their inputs are not filled in.

        Returns
        -------
        self : object
            The fitted estimator. A fit that fails or is interrupted leaves it as it was.
        """
        with all_or_nothing(self):
            validate_params(self)
            threads = n_threads(self.n_jobs)
            with one_blas_thread():
                table = given(self, X, y, sample_weight)
                self._fit(table, groups, _checked_mask(trusted, len(table.T)), threads)
        return self

    def _fit(self, table: Given, groups: object, trusted: Mask | None, threads: int) -> None:
        usable = table.usable
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        chosen = {"n_members": self.n_members, "search_rows": self.search_rows}
        effort = replace(
            EFFORTS[self.effort], **{name: n for name, n in chosen.items() if n is not None}
        )
        task = RobustTask(
            table.rows,
            table.T,
            table.w,
            usable,
            self._folds(table, groups, seed),
            seed,
            effort,
            None if isinstance(self.n_hidden, str) else self.n_hidden,
            threads,
            self.progress,
            trusted,
        )
        if self.cv is None and usable.sum() < 2:
            raise ValueError(
                "a row cannot be left out of one: at least 2 rows with a positive weight and a "
                f"known target are needed; here n_samples = {int(usable.sum())}"
            )
        if not usable[task.tested].any():
            raise ValueError("cv tests no row that has a positive weight and a known target")
        clock = Clock()
        self._fitted_to = fingerprint(table.inputs), fingerprint(table.T)
        self._input_check = None
        for name in ("input_mask_", "input_scores_"):  # of an earlier fit
            self.__dict__.pop(name, None)
        if self.check_inputs:
            checked = checked_inputs(table, task)
            table = table.with_inputs(checked.X)
            task = replace(task, X=table.rows)
            self.input_mask_, self.input_scores_ = checked.wrong, checked.scores
            self._input_check = checked.of_new_rows
            clock.lap("inputs")
        transforms = TargetTransforms.fit(self._transforms_of(task), table.T[usable])
        task = replace(task, T=transforms.apply(table.T), kinds=transforms.kinds)
        task = followed(task)
        begin("screen")
        # In lists, so that each step can free the results of the one before: large for many rows.
        screened = [screen(task)]
        clock.lap("screen")
        begin("search")
        found = [search(task, screened.pop())]
        clock.lap("search")
        begin("refine")
        refined = refine(task, found.pop())
        clock.lap("refine")
        begin("fit")
        members = fit_members(task, refined)
        clock.lap("fit")

        judged = refined.judged
        expected = transforms.undo(judged.expected)
        self.contaminated_ = refined.screened.dirty
        self.cv_results_ = _results(refined.trials, task.rows.shape[1])
        self.out_of_fold_ = expected[:, 0] if self._one_target else expected
        self.outlier_scores_ = judged.scores
        self.outlier_threshold_ = judged.threshold
        self.outlier_mask_ = judged.flagged
        self.cell_scores_ = judged.cells.scores
        self.cell_thresholds_ = judged.cells.thresholds
        self.cell_mask_ = judged.cells.mask
        self.target_spreads_ = spread_of(task)
        self._judging = refined.screened.judging
        self._usual = usual_curves(judged.expected, judged.cells.rules, self.target_spreads_)
        self.members_ = members
        self.timings_ = clock.laps
        self._input_scaling, self._target_scaling = table.scaling, refined.scaling
        self.target_transforms_, self._target_transforms = transforms.kinds, transforms

    def _folds(self, table: Given, groups: object, seed: int) -> list[Fold] | None:
        """Return the folds to judge by; None: every row is left out by itself."""
        cv = self.cv
        if cv is None and groups is not None:
            cv = min(GROUP_FOLDS, len(np.unique(np.asarray(groups))))
            if cv < 2:
                raise ValueError("groups has one label only: no row can be judged by other groups")
        return None if cv is None else folds_of(cv, table.inputs, table.T, seed, groups)

    def _transforms_of(self, task: RobustTask) -> list[str]:
        if self.target_transform == "auto":
            return choose_transforms(task)
        return [self.target_transform or "none"] * task.T.shape[1]

    def predict(self, X: object) -> Array:
        """Predict the targets of new rows: the average of the members.

        With `check_inputs`, cells of X that deviate more than all cells of their column that were
        kept in the fit (if none was filled in there, three times as much) are filled in first.

        Parameters
        ----------
        X : array, tensor, RowBlocks or dask collection of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Predictions; of a tensor, a tensor on its device; of a dask collection, a dask array in
            its partitions, computed when it is asked for.
        """
        check_is_fitted(self)
        if isinstance(X, RowBlocks):
            require_same_inputs(self, X.shape[1], X.feature_names)
            return np.concatenate([self._predict(x.astype(np.float64)) for _, x in X])
        if is_tensor(X):
            with needs("predictions of tensors need PyTorch", "torch"):
                from gorelm.backends.torch import inputs as device

            there: Array = device.predict(self, X)
            return there
        if is_dask(X):
            from gorelm.backends.dask.fit import predict

            lazy: Array = predict(self, X)
            return lazy
        inputs: Array = validate_data(self, X, dtype=np.float64, reset=False)
        return self._predict(inputs)

    def _validate(self, X: object, y: object, sample_weight: object) -> tuple[Array, Array, Array]:
        inputs: Array = validate_data(self, X, dtype=np.float64)
        return inputs, *validate_targets(self, inputs, y, sample_weight)

    def _predict(self, inputs: Array) -> Array:
        if (check := getattr(self, "_input_check", None)) is not None:
            inputs, _ = check.of(inputs)
        scaled = within_reach(self._input_scaling, inputs)
        mean = np.mean([member.predict(scaled) for member in self.members_], axis=0)
        y = self._target_scaling.undo(mean.reshape(len(scaled), -1))
        if hasattr(self, "_target_transforms"):  # models in files of version 0.1 have none
            y = self._target_transforms.undo(y)
        return np.asarray(y[:, 0] if self._one_target else y)

    def score_rows(self, X: object, y: object) -> Array:
        r"""Return outlier scores of new rows, on the scale of `outlier_scores_`.

        .. math:: \exp\Bigl(\frac1m \sum_j \log(1 + |\hat y_j - y_j| / s_j)\Bigr) - 1

        over the known targets of the row, on the scale of `target_transforms_`, with the spreads
        :math:`s` of the training targets (`target_spreads_`). Unlike in `outlier_scores_`, wrong
        cells of a row most of whose targets are right do not count: a score above
        `outlier_threshold_` says that the row is wrong. (The rows of the fit are also judged by
        what the values of wrong rows look like, new ones are not.) The rows must be new: the model
        is fitted to the training rows, and would find little wrong with them.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Inputs.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets; NaN where unknown.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
            NaN where no target is known.
        """
        expected, T = self._expected_and_given(X, y)
        off = cell_scores(expected, T, self.target_spreads_, self._usual) > self.cell_thresholds_
        return row_scores(expected, T, self.target_spreads_, self._judging, off)

    def score_cells(self, X: object, y: object) -> Array:
        """Return scores of the cells of new rows, on the scale of `cell_scores_`.

        The absolute error of each cell, in units of the error that is usual for its target at such
        a prediction. A score above `cell_thresholds_` says that the cell is wrong. Unlike
        `cell_scores_`, it does not take into account what the row's other errors tell about the
        cell.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Inputs.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets; NaN where unknown.

        Returns
        -------
        scores : ndarray of shape (n_samples, n_targets)
            NaN where the target is unknown.
        """
        expected, T = self._expected_and_given(X, y)
        return cell_scores(expected, T, self.target_spreads_, self._usual)

    def _expected_and_given(self, X: object, y: object) -> tuple[Array, Array]:
        """Return predictions and targets of new rows, on the scale on which they are judged."""
        check_is_fitted(self)
        if not hasattr(self, "_usual"):
            raise ValueError(
                "the model comes from a file of an earlier version, which did not keep how large "
                "errors usually are: fit it again to judge new rows"
            )
        expected = self.predict(X).reshape(-1, len(self.target_spreads_))
        T = check_array(y, dtype=np.float64, ensure_2d=False, ensure_all_finite=False)
        T = T.reshape(len(T), -1)
        if T.shape != expected.shape:
            raise ValueError(f"y has shape {T.shape}; {expected.shape} was expected")
        return self._on_scale(expected), self._on_scale(T)

    def _on_scale(self, T: Array) -> Array:
        """Return targets, or predictions of them, on the scale on which they are judged."""
        if not hasattr(self, "_target_transforms"):
            return T
        return self._target_transforms.apply(T)

    def _was_fitted_to(self, X: object, y: object) -> bool:
        inputs: Array = validate_data(self, X, dtype=np.float64, reset=False)
        T = np.asarray(y, dtype=np.float64)
        now = fingerprint(inputs), fingerprint(T.reshape(len(T), -1))
        # Nothing is known of inputs that were read in blocks, nor by files of earlier versions.
        return all(a in (b, "") for a, b in zip(getattr(self, "_fitted_to", now), now, strict=True))


@dataclass
class Clock:
    """Seconds of the steps of a fit."""

    laps: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, step: str) -> None:
        """Note how long a step has taken."""
        now = time.perf_counter()
        self.laps[step], self._last = now - self._last, now


def _checked_mask(trusted: object, n_rows: int) -> Mask | None:
    if trusted is None:
        return None
    mask = np.asarray(trusted)
    if mask.dtype != bool or mask.shape != (n_rows,):
        raise ValueError(
            f"trusted must hold a truth value for each of the {n_rows} rows; it is an array of "
            f"{mask.dtype} and of shape {mask.shape}"
        )
    return mask


def _results(trials: Sequence[Trial], n_features: int) -> dict[str, Array]:
    """Return settings and scores as columns, best first."""
    trials = sorted(trials, key=lambda trial: trial.score)
    return {
        "activation": np.array([one.layer.activation for one in trials]),
        "spread": np.array([one.layer.spread for one in trials]),
        "direct_link": np.array([one.layer.direct_link for one in trials]),
        "n_inputs": np.array([min(one.layer.n_inputs or n_features, n_features) for one in trials]),
        "guided": np.array([one.guide is not None for one in trials]),
        "penalty": PATH[[one.lam for one in trials]],
        "mean_test_score": np.array([-one.score for one in trials]),
    }
