"""Robust OS-ELM: each row is judged by the model so far before it is learnt."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import ClassVar

import numpy as np

from gorelm._compat import Interval
from gorelm._solver.least_squares import RecursiveRidge
from gorelm._typing import Array, Constraints, Indices, Inputs, Mask
from gorelm.estimators._base import parameters
from gorelm.estimators._docs import document
from gorelm.estimators._elsewhere import blocks_of
from gorelm.estimators._online_judging import Fences, Verdict, judge_first, medians
from gorelm.estimators._prepare import Design, Targets, known_cells, usable_rows
from gorelm.estimators.online import OSELMRegressor, learnt
from gorelm.stream import RowBlocks

_BLOCK = 32  # rows judged at a time, by the model before them
_RECENT = 300  # rows whose errors set the fences
_RUN = 50  # rows: if most of them are wrong, they may be right
_BETTER = 0.75  # times the error that a model of these rows alone must have
_ROUNDING = 3e-5  # of a target's typical size


@document
@parameters
class RobustOSELMRegressor(OSELMRegressor):
    r"""Online sequential ELM that judges each row, by the model so far, before it learns it.

    .. math:: a_{ij} = \frac{|t_{ij} - h_i b_j|}{\sqrt{1 + h_i (R'R)^{-1} h_i'}}, \qquad
              R'R = H'H + I/C

    is how far cell j of a row is off: its error by the model before it, in units that do not
    depend on how much that model knew about such inputs. The errors of the last 300 rows decide
    what is usual:

    - a cell is *wrong* beyond 1.3 times Tukey's outer fence for its target; a row if one of its
      cells is, or if the norm of its errors, each in units of the target's median error, lies
      beyond 1.3 times that fence for norms;
    - a cell beyond the fence is brought to it: its influence is bounded;
    - if the logarithms of a target's errors form two clear groups, cells of the upper one are *left
      out* (replaced by their predictions, so that they do not move the model), and whole rows of
      which half of the cells are.

    The rest is learnt as in `OSELMRegressor`. So errors of the model itself, large where it has
    seen little, are learnt in bounded steps, whereas rows that are clearly wrong have no influence.

    The first `n_start` rows are kept until there are that many, and judged by each other: by ridge
    regressions with a bounded loss on all rows but the one they predict. So the first rows may be
    wrong, too, as any others: up to half of the cells of a target.

    **Changes.** If more than half of a target's cells in the last 50 rows are beyond the fence,
    either they are wrong or the model is. So a model of these rows alone is fitted, as to the first
    ones. If it predicts them (each left out in turn) with at most 0.75 times the median error of
    the model so far, the target has changed: that model replaces the other. It begins from zero or
    from the former weights, whichever predicts better, and judges the next rows as the first ones,
    by each other, until there are `n_start`. Rows of the last call among these are judged again.
    Every `n_start` rows the model so far is compared in this way with one of the last `n_start`
    rows, in case that it went astray slowly. A steady drift is what `forgetting` is for.

    Kept are a triangular matrix of the size of the layer (one for each group of targets that began
    at the same time), the hidden outputs of `n_start` rows and the errors of 300.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the errors against the penalty; smaller is smoother.
    forgetting : float, default=1.0
        Factor on the weight of all former rows with each one that is learnt: 0.99 remembers about
        100 rows, 0.999 about 1000, 1 all of them since the last change. The penalty does not fade
        (it is between 1/(2C) and 1/C).
    n_start : int, default=200
        Rows to judge by each other before the stream begins.
    {hidden}
    {seed}

    Attributes
    ----------
    outlier_scores_ : ndarray of shape (n_samples,)
        For the rows of the last call, how far each was off when it came: the larger of its worst
        error and of the norm of its errors, as shares of what is called wrong.
    outlier_threshold_ : float
        1.
    outlier_mask_ : ndarray of bool, shape (n_samples,)
        Rows of the last call with a larger score, which are wrong.
    cell_mask_ : ndarray of bool, shape (n_samples, n_targets)
        Cells of these rows that are wrong.
    error_scales_ : ndarray of shape (n_targets,)
        Usual error of each target in recent rows, before they were learnt, in the units of y (the
        median of the absolute errors, times 1.48: the deviation if they are normal).
    n_samples_seen_ : int
        Number of rows (of positive weight) seen so far.
    n_outliers_seen_ : int
        Number of those that were wrong.
    n_changes_ : int
        How many times the model of a target was replaced.
    {weights_fitted}

    Notes
    -----
    Rows are judged 32 at a time, so chunks of other sizes give slightly other models. A weight of 2
    is the row twice among the first `n_start` rows, and within a chunk of at most 32 rows.

    A change of few rows, in a part of the inputs that is rare, is not told from wrong rows.

    Examples
    --------
    >>> import numpy as np
    >>> from gorelm import RobustOSELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(900, outlier_ratio=0.2, random_state=0)
    >>> model = RobustOSELMRegressor(C=100, n_hidden=50, random_state=0)
    >>> for rows in np.split(np.arange(900), 9):
    ...     model = model.partial_fit(data.X[rows], data.T[rows])
    >>> bool((model.outlier_mask_ == data.planted[800:]).mean() >= 0.95)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **OSELMRegressor._parameter_constraints,
        "n_start": [Interval(Integral, 1, None, closed="left")],
    }

    n_start: int = 200

    def _fit_rows(self, X: Inputs | RowBlocks, T: Array, w: Array) -> None:
        used = usable_rows(T, w)
        if isinstance(X, RowBlocks):
            self._begin(X, T, w, used)
        else:
            self.hidden_ = self._draw(X.shape[1], self._design(X[used], T[used], w[used]))
        n_outputs, n_targets = self.hidden_.n_outputs, T.shape[1]
        self.n_samples_seen_ = self.n_outliers_seen_ = self.n_changes_ = 0
        self._recursions = []
        self._young = np.arange(n_targets)
        self._origin = np.zeros((n_outputs, n_targets))
        none: Array = np.empty((0, n_targets))
        self._held: tuple[Array, Array, Array] = np.empty((0, n_outputs)), none, np.empty(0)
        self._held_beyond = np.empty((0, n_targets), dtype=bool)
        self._recent: tuple[Array, Array] = none, np.empty(0)
        self._smallest = np.zeros(n_targets)
        self._unchecked = 0
        self._absorb_rows(X, T, w, used)

    def _absorb_rows(self, X: Inputs | RowBlocks, T: Array, w: Array, used: Mask) -> None:
        """Judge and learn the rows of a chunk, and say what became of them."""
        scores, wrong = np.zeros(len(T)), np.zeros(T.shape, dtype=bool)
        inputs, targets = Reader(X, used), Targets.scaled(self._target_scaling, T[used], w[used])
        T_used = self._target_scaling.dense(T[used])
        at, done = np.flatnonzero(used), 0
        while done < len(at):
            size = self.n_start - len(self._held[0]) if len(self._young) else _BLOCK
            rows = slice(done, min(done + size, len(at)))
            x = inputs.read(rows.stop - rows.start)
            design = Design.of(self._input_scaling, x, targets.take(rows))
            H = self.hidden_.transform(design.X, offset=design.offset)
            verdict = self._judge_and_learn(H.astype(float), T_used[rows], design.w)
            done = rows.stop
            last = at[max(done - len(verdict.scores), 0) : done]
            again = slice(len(verdict.scores) - len(last), None)
            scores[last], wrong[last] = verdict.scores[again], verdict.wrong[again]
        self.n_samples_seen_ += len(at)
        self.n_outliers_seen_ += int(wrong[at].any(axis=1).sum())
        self._remember(self._found(T.shape[1]))
        if not used.all():  # rows of no weight, or without a target: judged, and not learnt
            errors = np.full((np.count_nonzero(~used), T.shape[1]), np.nan)
            done = 0
            for block, x in blocks_of(X):
                rest = ~used[block]
                scaled, offset = self._input_scaling.apply(x[rest])
                H = self.hidden_.transform(scaled, offset=offset)
                there = slice(done, done + len(H))
                errors[there], _ = self._errors(H, self._target_scaling.dense(T[block][rest]))
                done = there.stop
            scores[~used], wrong[~used], *_ = self._fences().judge(errors)
        self.outlier_scores_, self.outlier_threshold_ = scores, 1.0
        self.outlier_mask_, self.cell_mask_ = scores > 1.0, wrong
        self.error_scales_ = self._fences().scales * self._target_scaling.scale

    def _fences(self) -> Fences:
        return Fences.of(*self._recent, self._smallest)

    def _errors(self, H: Array, T: Array) -> tuple[Array, Array]:
        """Return the errors of new rows as they are judged, and their predictions."""
        errors, expected = np.full(T.shape, np.nan), np.zeros(T.shape)
        for columns, recursion in self._recursions:
            expected[:, columns], leverage = recursion.predicted(H)
            errors[:, columns] = np.abs(T[:, columns] - expected[:, columns])
            errors[:, columns] /= np.sqrt(1.0 + leverage)[:, None]
        return errors, expected

    def _judge_and_learn(self, H: Array, T: Array, w: Array) -> Verdict:
        """Judge rows by the model so far, then learn them; returns the verdict on the last rows.

        These are the rows given, or all that are held if targets are young or have changed.
        """
        errors, expected = self._errors(H, T)
        self._hold(H, T, w, errors)
        if len(self._young):
            verdict = self._judge_young()
            self._learn_old(H, T, w, verdict, expected)
            return verdict
        verdict = self._fences().judge(errors)
        self._learn_old(H, T, w, verdict, expected)
        self._held_beyond = np.concatenate([self._held_beyond, verdict.cells > 1.0])
        self._let_go(max(self.n_start, _RUN))
        self._unchecked += len(H)
        for n_rows, suspects in self._suspicious():
            self._young = self._changed(n_rows, suspects)
            if len(self._young):
                self.n_changes_ += len(self._young)
                self._let_go(n_rows)
                return self._judge_young()
        return verdict

    def _hold(self, H: Array, T: Array, w: Array, errors: Array) -> None:
        held, recent = (*self._held, *self._recent), (H, T, w, errors, w)
        H, T, w, errors, w_errors = (np.concatenate(p) for p in zip(held, recent, strict=True))
        self._held, self._recent = (H, T, w), (errors, w_errors)

    def _let_go(self, n_rows: int) -> None:
        """Hold the last rows only."""
        H, T, w = (part[-n_rows:] for part in self._held)
        self._held, self._held_beyond = (H, T, w), self._held_beyond[-n_rows:]
        self._recent = self._recent[0][-_RECENT:], self._recent[1][-_RECENT:]

    def _learn_old(self, H: Array, T: Array, w: Array, verdict: Verdict, expected: Array) -> None:
        """Learn the targets that are not young, from rows that are right."""
        young = [part for part in self._recursions if part[0][0] in self._young]
        self._recursions = [part for part in self._recursions if part[0][0] not in self._young]
        if self._recursions:
            rows, targets, known = learnable(T, verdict, expected)
            omega = np.sqrt(w[rows])
            H, T = self._fade(H[rows] * omega[:, None], targets * omega[:, None], omega)
            self._learn(H, T, known)
        self._recursions += young

    # -- targets of which few rows are known, at first and after a change ------------------------

    def _judge_young(self) -> Verdict:
        """Judge the rows held by each other, and learn their young targets anew."""
        young, (H, T, w) = self._young, self._held
        # Below are errors of rounding.
        self._smallest = np.maximum(_ROUNDING * medians(np.abs(T), w), 1e-300)
        start = H @ self._origin
        part = (T - start)[:, young]
        first = judge_first(H, part, w, self.C, self._smallest[young])
        errors = self._recent[0].copy()
        errors[: -len(H), young] = np.nan
        errors[-len(H) :, young] = first.errors
        self._recent = errors, self._recent[1]
        verdict = self._fences().judge(errors[-len(H) :])

        expected = start
        expected[:, young] += first.expected
        rows, targets, known = learnable(T, verdict, expected)
        root = np.sqrt(w[rows] * self._left(w[rows])[1:])[:, None]
        origin = self._origin[:, young]
        fresh = RecursiveRidge(len(origin), len(young), self.C, origin if origin.any() else None)
        parts = learnt(young, fresh, H[rows] * root, targets * root, known)
        old = (
            (columns, np.flatnonzero(~np.isin(columns, young)), part)
            for columns, part in self._recursions
        )
        self._recursions = [
            *((columns[own], part.take(own)) for columns, own, part in old if len(own)),
            *parts,
        ]
        self._held_beyond = verdict.cells > 1.0
        if len(H) >= self.n_start:
            self._young, self._unchecked = young[:0], 0
        return verdict

    def _suspicious(self) -> Iterator[tuple[int, Mask]]:
        """Yield numbers of last rows that may tell of a change, and of which targets."""
        known = known_cells(self._held[1][-_RUN:]).sum(axis=0)
        share = self._held_beyond[-_RUN:].sum(axis=0) / np.maximum(known, _RUN / 2)
        if (share > 1 / 2).any():  # then others that are often off have changed, too
            yield _RUN, share > 1 / 3
        if self._unchecked >= self.n_start:
            self._unchecked = 0
            yield max(self.n_start, _RUN), share >= 0

    def _changed(self, n_rows: int, suspects: Mask) -> Indices:
        """Return the targets whose last rows are better predicted by a model of these alone."""
        H, T, w = (part[-n_rows:] for part in self._held)
        _, former = self._errors(H, T)
        errors = []
        for start in (0.0 * former, former):
            first = judge_first(H, T - start, w, self.C, self._smallest)
            errors.append(medians(np.abs(T - start - first.expected), w))
        from_zero, from_former = errors
        self._origin = np.where(from_zero <= from_former, 0.0, self._found(T.shape[1]).coef)
        best, so_far = np.minimum(from_zero, from_former), medians(np.abs(T - former), w)
        better = (best <= _BETTER * so_far) & (so_far > self._smallest)
        return np.flatnonzero(suspects & better)

    def _keep(self, outputs: Indices) -> None:
        self._held = (self._held[0][:, outputs], *self._held[1:])
        super()._keep(outputs)


class Reader:
    """The used rows of a chunk, a few at a time, of which a block at most is held."""

    def __init__(self, X: Inputs | RowBlocks, used: Mask) -> None:
        self._blocks = (x[used[rows]] for rows, x in blocks_of(X))
        self._left, self._at = next(self._blocks), 0

    def read(self, n_rows: int) -> Inputs:
        """Return the next rows."""
        parts = []
        while True:
            part = self._left[self._at : self._at + n_rows]
            parts.append(part)
            self._at += part.shape[0]
            n_rows -= part.shape[0]
            if not n_rows:
                return parts[0] if len(parts) == 1 else np.concatenate(parts)
            self._left, self._at = next(self._blocks), 0


def learnable(T: Array, verdict: Verdict, expected: Array) -> tuple[Mask, Array, Mask | None]:
    """Return which rows to learn, their targets (0 where unknown), and the known cells (None: all).

    The verdict is one on these rows, or on more before them. Rows are learnt if most of their known
    cells are not apart. A cell that is apart is replaced by its prediction, so that it does not
    move the model; others are brought to within the fence around theirs.
    """
    cells, apart = verdict.cells[-len(T) :], verdict.apart[-len(T) :]
    known = known_cells(T)
    rows = (known & ~apart).sum(axis=1) > known.sum(axis=1) / 2
    step = np.where(known & ~apart, (T - expected) / np.maximum(cells, 1.0), 0.0)
    targets = np.where(known, expected + step, 0.0)[rows]
    return rows, targets, None if known[rows].all() else known[rows]
