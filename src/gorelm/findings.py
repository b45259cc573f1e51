"""The table of findings: every row of a table, what is wrong with it, and what was expected.

:func:`findings` makes it of any fitted model that judges rows; :class:`gorelm.RobustELMRegressor`
and :class:`gorelm.TableRegressor` have it as a method.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from gorelm._extras import needs
from gorelm._features.scaling import Scaling
from gorelm._typing import Array, Mask
from gorelm.datasets.columns import RawColumn, columns_of, is_counter, target_columns
from gorelm.stream import RowBlocks

if TYPE_CHECKING:
    import pandas

__all__ = ["Names", "findings", "quality"]

# Inputs that differ by less than this share of their column's spread are the same.
_SAME_INPUT = 1e-6
# Standard deviations (of the difference of two errors) by which the targets of two rows with the
# same inputs must differ to contradict each other.
_CONTRADICTION = 5.0
# Where more rows than this share have the inputs of another one, rows are repeated by design.
_REPEATED = 0.1
# Where errors form one group, a finding is certain only if it is this many thresholds off, or so
# many spreads of the target (of a target that is judged on another scale, by the second number):
# the fit leaves such values out.
_CERTAIN, _CERTAIN_SPREADS = 2.0, (10.0, 3.0)
_OTHER_TABLE = (
    "X and y are not the table that the model was fitted to, whose rows were judged by models that "
    "did not see them; fit again, or pass new=True for new rows"
)


class Judge(Protocol):
    """A fitted model that judges rows: what findings use of it.

    Read where there: `contaminated_`; `out_of_fold_`, `outlier_scores_`, `outlier_mask_` of the
    training rows; `target_spreads_`; `cell_scores_`, `cell_thresholds_`, `cell_mask_`;
    `input_mask_`; `kinds_`, which of the columns are ignored; ``_was_fitted_to(X, y)``.
    """

    outlier_threshold_: float

    def predict(self, X: object) -> Array:
        """Return predictions of shape (n_samples,) or (n_samples, n_targets)."""

    def score_rows(self, X: object, y: object) -> Array:
        """Return outlier scores of new rows, of shape (n_samples,)."""


class WithFindings:
    """A model that judges rows (`Judge`), with its findings as a method."""

    def findings(self: Judge, X: object, y: object, *, new: bool = False) -> pandas.DataFrame:
        """Return all rows, the most suspicious first: what is off, by how much, what was expected.

        See :func:`gorelm.findings.findings`, which says what the columns hold.

        Parameters
        ----------
        X : frame or array of shape (n_samples, n_features)
            Inputs: those of the fit.
        y : frame or array of shape (n_samples,) or (n_samples, n_targets)
            Targets: those of the fit.
        new : bool, default=False
            X and y are new rows, to be judged by the model.

        Returns
        -------
        pandas.DataFrame
            One line a row, with its index and inputs.

        Raises
        ------
        ValueError
            If X and y are not the table that the model was fitted to and `new` is false; or if the
            model does not judge rows.
        """
        check_is_fitted(self)
        return findings(self, X, y, new=new)


class Names:
    """Names of the columns of findings, none of which is one of the `columns` of the table.

    All start with ``gorelm.``; or, if a column of the table does, with ``gorelm1.``, or the first
    of ``gorelm2.``, ... with which none does.

    Parameters
    ----------
    columns : iterable of str
        Names of the inputs and the targets.

    Attributes
    ----------
    line, row, score, quality, flagged, certain, kind, off, twin : str
        Of a row: its line in the file; its number, from 0; how far it is off; that between 0
        (wrong) and 1; whether something is wrong with it, whether that is certain, and what it is;
        the targets that are off, in the form that ``--targets`` takes; the number of a row with the
        same inputs that contradicts it.

    Examples
    --------
    >>> from gorelm.findings import Names
    >>> Names(["size", "price"]).expected("price")
    'gorelm.expected.price'
    """

    def __init__(self, columns: Iterable[str]) -> None:
        columns, number = tuple(columns), 0
        while any(name.startswith(self._prefix(number)) for name in columns):
            number += 1
        self.prefix = self._prefix(number)
        self.line = f"{self.prefix}line"
        self.row = f"{self.prefix}row"
        self.score = f"{self.prefix}score"
        self.quality = f"{self.prefix}quality"
        self.flagged = f"{self.prefix}flagged"
        self.certain = f"{self.prefix}certain"
        self.kind = f"{self.prefix}kind"
        self.off = f"{self.prefix}off"
        self.twin = f"{self.prefix}twin"

    @staticmethod
    def _prefix(number: int) -> str:
        return f"gorelm{number or ''}."

    def expected(self, target: str) -> str:
        """Return the name for what models that did not see the row expect."""
        return f"{self.prefix}expected.{target}"

    def off_by(self, target: str) -> str:
        """Return the name for the value less the expected one, in units of the target."""
        return f"{self.prefix}off_by.{target}"

    def spreads(self, target: str) -> str:
        """Return the name for the same in units of the target's robust spread."""
        return f"{self.prefix}spreads.{target}"

    def score_of(self, target: str) -> str:
        """Return the name for how far the cell is off, in errors that are usual there."""
        return f"{self.prefix}score.{target}"

    def flagged_of(self, target: str) -> str:
        """Return the name for whether the cell is flagged."""
        return f"{self.prefix}flagged.{target}"


def quality(score: Array, threshold: Array | float) -> Array:
    r"""Return scores as qualities, from 1 (nothing is wrong) to 0.

    .. math:: 2^{-s / \tau}

    of a score :math:`s` and its threshold :math:`\tau`: it falls as the score grows, and is 1/2 at
    the threshold. A row or cell is flagged if its quality is below 1/2.

    Parameters
    ----------
    score : array
        Outlier scores, NaN where not judged.
    threshold : float or array
        Scores above it are flagged.

    Returns
    -------
    array
        Of the shape of `score`, NaN where that is.

    Examples
    --------
    >>> from gorelm.findings import quality
    >>> quality([0.0, 2.0, 20.0], 2.0).round(3).tolist()
    [1.0, 0.5, 0.001]
    """
    return np.asarray(np.exp2(-_ratio(np.asarray(score, dtype=float), threshold)))


def _ratio(score: Array, threshold: Array | float) -> Array:
    """Score / threshold; for a threshold of 0, a score of 0 gives 0 and any other infinity."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(score == 0.0, 0.0, score / threshold)


def findings(
    model: Judge,
    X: object,
    y: object,
    *,
    new: bool = False,
    lines: Sequence[int] | npt.NDArray[np.intp] | None = None,
) -> pandas.DataFrame:
    """Return all rows of a table, the most suspicious first: what is off, and by how much.

    Parameters
    ----------
    model : estimator
        Fitted, with `outlier_scores_` and `out_of_fold_`: a :class:`~gorelm.RobustELMRegressor` or
        a :class:`~gorelm.TableRegressor`.
    X : frame or array of shape (n_samples, n_features)
        Inputs.
    y : frame or array of shape (n_samples,) or (n_samples, n_targets)
        Targets; NaN where unknown.
    new : bool, default=False
        False: X and y are the table that the model was fitted to, and every row is judged by models
        that did not see it. True: they are new rows, judged by the model. A model that saw a row
        finds little wrong with it, so that training rows must not be given as new ones.
    lines : sequence of int, optional
        Lines of the rows in their file.

    Returns
    -------
    pandas.DataFrame
        One line a row of the table, with its index. First all inputs, then columns whose names
        start with ``gorelm.`` (see :class:`Names`): ``row`` (its number, from 0), ``line`` (if
        given), ``score`` (as `outlier_scores_`), ``quality`` (see :func:`quality`; of the worst of
        row, cells and twin), ``flagged``, ``certain``, ``kind`` of finding, ``off`` (targets that
        are), ``twin`` (the row that it contradicts), and of each target T its value,
        ``expected.T``, ``off_by.T`` (value less expected), ``spreads.T`` (that in robust spreads of
        the target, on the scale on which it is judged), ``score.T`` (how far the cell is off, in
        errors usual there), ``flagged.T``. The kind is the first that applies of

        - ``row``: the targets do not go with the inputs;
        - ``cell``: one or some of the targets do not, the others do;
        - ``input``: an input does not go with the others (if these were checked);
        - ``duplicate``: another row has the same inputs, to a millionth of their spread, and its
          targets differ by more than 5 standard deviations of what two errors differ by. Not
          looked for where more than a tenth of the rows have the inputs of another: rows are
          repeated by design there;
        - empty: nothing is wrong.

        A finding of the kind ``row`` or ``cell`` is ``certain`` if the errors of the table form two
        clear groups (`contaminated_`), or if it is off by more than twice the threshold (a quality
        below 1/4) or ten spreads of a target (three, where logarithms or square roots are judged).
        The others are suspicious: isolated, and possibly right.

    Raises
    ------
    ValueError
        If X and y are not the table that the model was fitted to and `new` is false.
    ImportError
        If pandas is missing.

    Examples
    --------
    >>> from gorelm import RobustELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> from gorelm.findings import findings
    >>> data = make_multitarget(100, n_targets=1, outlier_ratio=0, random_state=0)
    >>> y = data.T[:, 0].copy()
    >>> y[17] += 50
    >>> model = RobustELMRegressor(n_hidden=30, random_state=0).fit(data.X, y)
    >>> found = findings(model, data.X, y)
    >>> int(found["gorelm.row"].iloc[0]), found["gorelm.kind"].iloc[0]
    (17, 'row')
    """
    with needs("the table of findings needs pandas", "data"):
        import pandas

    if isinstance(X, RowBlocks):
        raise ValueError("findings have all inputs in them; pass X in memory, not in blocks")
    target_names, columns, _ = target_columns(y)
    T = np.column_stack([column.numbers()[0] for column in columns])
    inputs = _input_frame(model, X)
    if both := [name for name in target_names if name in inputs.columns]:
        raise ValueError(f"{both[0]!r} is the name of an input and of a target; rename one of them")
    names = Names([*map(str, inputs.columns), *target_names])
    if not new and not getattr(model, "_was_fitted_to", lambda *_: True)(X, y):
        raise ValueError(_OTHER_TABLE)
    judged = _judged_as_new(model, X, y, T) if new else _judged(model, T)
    twins = _twins(_used(model, columns_of(X)), T, judged.expected)
    kind, worst, cells_off = _ranked(judged, T, twins)
    content: dict[str, object] = {names.row: np.arange(len(T))}
    if lines is not None:
        content[names.line] = np.asarray(lines)
    content |= {
        names.score: judged.scores,
        names.quality: np.exp2(-worst),
        names.flagged: kind != "",
        names.certain: _certain(model, judged, kind, worst),
        names.kind: kind.astype(object),
        names.off: _lists(cells_off, target_names),
        names.twin: pandas.array(twins.row, dtype="Int64"),
    }
    for j, name in enumerate(target_names):
        content |= {
            name: T[:, j],
            names.expected(name): judged.expected[:, j],
            names.off_by(name): judged.off_by[:, j],
            names.spreads(name): judged.spreads[:, j],
            names.score_of(name): judged.cell_scores[:, j],
            names.flagged_of(name): cells_off[:, j],
        }
    found = pandas.concat([inputs, pandas.DataFrame(content, index=inputs.index)], axis=1)
    found.loc[found[names.twin] < 0, names.twin] = pandas.NA
    return found.iloc[_order(judged.scores, worst)]


@dataclass(frozen=True)
class Ranking:
    """The findings of a table without its inputs and targets."""

    kind: npt.NDArray[np.str_]  # of finding; empty: none
    worst: Array  # how far the row is off, in thresholds; NaN: not judged
    certain: Mask
    cells_off: Mask  # (n, m)
    order: npt.NDArray[np.intp]  # of the rows, the most suspicious first


def ranking(model: Judge, y: object, X: object = None) -> Ranking:
    """Return what is wrong with the rows that the model was fitted to, and their order.

    Parameters
    ----------
    model : estimator
        Fitted, as for :func:`findings`.
    y : frame or array of shape (n_samples,) or (n_samples, n_targets)
        Targets; NaN where unknown.
    X : frame or array, optional
        Inputs; without them, no duplicates are looked for.
    """
    T = np.column_stack([column.numbers()[0] for column in target_columns(y)[1]])
    judged = _judged(model, T)
    columns = [] if X is None else _used(model, columns_of(X))
    kind, worst, cells_off = _ranked(judged, T, _twins(columns, T, judged.expected))
    order = _order(judged.scores, worst)
    return Ranking(kind, worst, _certain(model, judged, kind, worst), cells_off, order)


def _order(scores: Array, worst: Array) -> npt.NDArray[np.intp]:
    """NaN (not judged) comes last; of equally bad rows, the one with the larger score first."""
    return np.lexsort([np.arange(len(worst)), -np.nan_to_num(scores), -worst])


def _ranked(judged: _Judged, T: Array, twins: _Twins) -> tuple[npt.NDArray[np.str_], Array, Mask]:
    cells_off = judged.cell_mask & ~np.isnan(T)
    kind = np.select(
        [judged.mask, cells_off.any(axis=1), judged.input_mask, twins.row >= 0],
        ["row", "cell", "input", "duplicate"],
        "",
    )
    worst = np.fmax(judged.ratio, np.where(twins.row >= 0, twins.ratio, np.nan))
    # Rows that are trusted, or right by most of their targets or their values, may be beyond it.
    return kind, np.where(kind == "", np.minimum(worst, 1.0), worst), cells_off


def _certain(model: object, judged: _Judged, kind: npt.NDArray[np.str_], worst: Array) -> Mask:
    """Return which findings are certain: those of a clear group, and those far beyond the limit."""
    apart = bool(getattr(model, "contaminated_", False))
    kinds = getattr(model, "target_transforms_", None) or ["none"] * judged.spreads.shape[1]
    most = np.array([_CERTAIN_SPREADS[kind_of != "none"] for kind_of in kinds])
    far = (np.nan_to_num(np.abs(judged.spreads)) > most).any(axis=1)
    return np.isin(kind, ["row", "cell"]) & (apart | far | (worst > _CERTAIN))


@dataclass(frozen=True)
class _Judged:
    """Rows and cells, judged."""

    expected: Array  # (n, m)
    off_by: Array  # (n, m)
    spreads: Array  # (n, m)
    scores: Array  # (n,)
    mask: Mask  # (n,)
    cell_scores: Array  # (n, m)
    cell_mask: Mask  # (n, m)
    input_mask: Mask  # (n,), rows of which an input is wrong
    ratio: Array  # (n,), the largest of the scores over their thresholds


def _judged(model: Judge, T: Array) -> _Judged:
    """Return the training rows, as the fit judged them."""
    expected = np.asarray(_attribute(model, "out_of_fold_"), dtype=float)
    expected = expected.reshape(len(expected), -1)
    if expected.shape != T.shape:
        raise ValueError(_OTHER_TABLE)
    mask = np.asarray(_attribute(model, "outlier_mask_"), dtype=bool)
    return _measured(
        model,
        T,
        expected,
        np.asarray(_attribute(model, "outlier_scores_"), dtype=float),
        mask,
        getattr(model, "cell_scores_", None),
        getattr(model, "cell_mask_", None),
        getattr(model, "input_mask_", None),
    )


def _judged_as_new(model: Judge, X: object, y: object, T: Array) -> _Judged:
    """Return new rows, judged by a model that was not fitted to them."""
    expected = np.asarray(model.predict(X), dtype=float).reshape(len(T), -1)
    scores = np.asarray(model.score_rows(X, y), dtype=float)
    mask = scores > model.outlier_threshold_
    cell_scores, cell_mask = None, None
    if getattr(model, "cell_thresholds_", None) is not None and hasattr(model, "score_cells"):
        cell_scores = np.asarray(model.score_cells(X, y), dtype=float).reshape(T.shape)
        cell_mask = np.nan_to_num(cell_scores) > model.cell_thresholds_  # type: ignore[attr-defined]
    return _measured(model, T, expected, scores, mask, cell_scores, cell_mask, None)


def _measured(
    model: Judge,
    T: Array,
    expected: Array,
    scores: Array,
    mask: Mask,
    cell_scores: Array | None,
    cell_mask: Mask | None,
    input_mask: Mask | None,
) -> _Judged:
    spread = getattr(model, "target_spreads_", None)
    if spread is None:
        known = ~np.isnan(T).all(axis=1)
        spread = Scaling.fit("robust", T[known], np.ones(known.sum())).scale
    with np.errstate(over="ignore"):  # of a cell of 1e308; the largest number stands for more
        off_by = np.nan_to_num(T - expected, nan=np.nan)
        # Targets may be judged on another scale than the given one, such as logarithms.
        on_scale = getattr(model, "_on_scale", np.asarray)
        spreads = np.nan_to_num((on_scale(T) - on_scale(expected)) / spread, nan=np.nan)
    ratio = _ratio(scores, model.outlier_threshold_)
    if cell_scores is None:
        # Judged are rows alone. The score of a row lies between those of its cells.
        cell_scores = np.abs(spreads)
        cell_mask = mask[:, None] & (np.nan_to_num(cell_scores) > model.outlier_threshold_)
    else:
        limits = np.asarray(_attribute(model, "cell_thresholds_"), dtype=float)
        ratio = np.fmax(ratio, np.fmax.reduce(_ratio(cell_scores, limits), axis=1))
        cell_mask = cell_scores > limits if cell_mask is None else cell_mask
    rows = np.zeros(len(T), dtype=bool)
    if input_mask is not None:
        rows |= np.asarray(input_mask).any(axis=1)
    ratio = np.where(rows & ~(ratio > 1.0), 1.0 + 1e-9, ratio)
    return _Judged(
        expected, off_by, spreads, scores, mask, cell_scores, np.asarray(cell_mask), rows, ratio
    )


def _attribute(model: object, name: str) -> Any:
    value = getattr(model, name, None)
    if value is None:
        raise ValueError(f"{type(model).__name__} has no {name}: it does not judge rows")
    return value


def _input_frame(model: object, X: object) -> pandas.DataFrame:
    """Return the inputs as a frame, with names."""
    import pandas

    if isinstance(X, pandas.DataFrame):
        return X.set_axis([str(name) for name in X.columns], axis=1)
    if hasattr(X, "iter_columns"):
        return pandas.DataFrame({s.name: s.to_list() for s in X.iter_columns()})
    cells = np.asarray(X)
    names = getattr(model, "feature_names_in_", [f"x{j}" for j in range(cells.shape[1])])
    return pandas.DataFrame(cells, columns=[str(name) for name in names])


def _used(model: object, columns: list[RawColumn]) -> list[RawColumn]:
    """Return the inputs that tell rows apart: not ids, nor what the model ignores."""
    kinds = getattr(model, "kinds_", ["number"] * len(columns))
    return [
        column
        for column, kind in zip(columns, kinds, strict=True)
        if kind != "ignored" and not is_counter(column)
    ]


@dataclass(frozen=True)
class _Twins:
    row: npt.NDArray[np.intp]  # -1: none
    ratio: Array  # how far the targets differ, in units of the limit


def _twins(columns: list[RawColumn], T: Array, expected: Array) -> _Twins:
    """Return of each row the one with the same inputs from which its targets differ most."""
    twin, ratio = np.full(len(T), -1), np.zeros(len(T))
    if not columns:
        return _Twins(twin, ratio)
    codes = np.column_stack([_codes(column) for column in columns])
    _, group, count = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    shared = np.flatnonzero(count[group.ravel()] > 1)
    if not len(shared) or len(shared) > _REPEATED * len(T):
        return _Twins(twin, ratio)
    # Of two independent errors the difference has twice the variance of one.
    with np.errstate(over="ignore", invalid="ignore"):
        errors = np.abs(T - expected)
        sigma = np.array([_median(column) for column in errors.T]) * 1.4826 * np.sqrt(2.0)
        for rows in _groups(shared, group.ravel()[shared]):
            gaps = np.abs(T[rows][:, None] - T[rows][None])
            limit = _CONTRADICTION * sigma
            gaps = np.nan_to_num(_ratio(gaps, limit)).max(axis=2)
            far = gaps.argmax(axis=1)
            ratio[rows] = gaps[np.arange(len(rows)), far]
            twin[rows] = np.where(ratio[rows] > 1.0, rows[far], -1)
    return _Twins(twin, ratio)


def _groups(rows: npt.NDArray[np.intp], label: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    order = np.argsort(label, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(label[order])) + 1)


def _codes(column: RawColumn) -> npt.NDArray[np.float64]:
    """Return numbers that are the same where cells are (almost)."""
    if column.kind == "number":
        numbers = column.numbers()[0]
        known = numbers[~np.isnan(numbers)]
        low, high = np.quantile(known, [0.1, 0.9]) if len(known) else (0.0, 0.0)
        unit = _SAME_INPUT * ((high - low) or np.ptp(known) or 1.0) if len(known) else 1.0
        with np.errstate(over="ignore"):
            return np.nan_to_num(np.round((numbers - low) / unit), nan=np.inf) + 0.0  # no -0
    words = np.array([str(word) for word in column.words()], dtype=object)
    return np.unique(words.astype(str), return_inverse=True)[1].astype(float)


def _median(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.inf


def _lists(masks: Mask, names: Sequence[str]) -> list[str]:
    """Return the names that each mask marks, as a list separated by commas."""
    array, known = np.array(names, dtype=object), {}
    keys = [mask.tobytes() for mask in masks]
    for key, mask in zip(keys, masks, strict=True):
        if key not in known:
            known[key] = _list(array[mask])
    return [known[key] for key in keys]


def _list(names: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()
