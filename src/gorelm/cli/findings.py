"""The table of findings: every row of a table, with what is wrong with it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from gorelm._features.scaling import Scaling
from gorelm._typing import Array
from gorelm.cli.reading import Table, numbers_of
from gorelm.estimators.table import TableRegressor

if TYPE_CHECKING:
    import pandas


class Names:
    """Names of the columns of findings, none of which is one of the `columns` of the table.

    All start with ``gorelm.``; or, if a column of the table does, with ``gorelm1.``, or the first
    of ``gorelm2.``, ... with which none does.

    Attributes
    ----------
    line, row, score, flagged, off : str
        Of a row: its line in the file; its number, from 0; how far it is off; whether it is
        flagged; the targets that are off, in the form that ``--targets`` takes.
    """

    def __init__(self, columns: Iterable[str]) -> None:
        columns, number = tuple(columns), 0
        while any(name.startswith(self._prefix(number)) for name in columns):
            number += 1
        self._start = self._prefix(number)
        self.line = f"{self._start}line"
        self.row = f"{self._start}row"
        self.score = f"{self._start}score"
        self.flagged = f"{self._start}flagged"
        self.off = f"{self._start}off"

    @staticmethod
    def _prefix(number: int) -> str:
        return f"gorelm{number or ''}."

    def expected(self, target: str) -> str:
        """Return the name for what models that did not see the row expect."""
        return f"{self._start}expected.{target}"

    def off_by(self, target: str) -> str:
        """Return the name for the value less the expected one, in units of the target."""
        return f"{self._start}off_by.{target}"

    def spreads(self, target: str) -> str:
        """Return the name for the same in units of the target's robust spread."""
        return f"{self._start}spreads.{target}"


def findings(model: TableRegressor, table: Table) -> pandas.DataFrame:
    """Return all rows as a frame, the most suspicious first: what is off, and by how much.

    The index holds the ids of the rows, if the table has some. The robust spread of a target is its
    interquartile range / 1.349.
    """
    import pandas

    names = Names(table.columns)
    y, expected = numbers_of(table.y, table.path), expected_by(model)
    known_rows = ~np.isnan(y).all(axis=1)
    scale = Scaling.fit("robust", y[known_rows], np.ones(known_rows.sum())).scale
    with np.errstate(over="ignore"):  # of a cell of 1e308; the largest number stands for more
        off_by = _finite(y - expected)
        spreads = _finite(off_by / scale)
    is_off = np.abs(np.nan_to_num(spreads)) > model.outlier_threshold_
    content: dict[str, object] = {} if table.lines is None else {names.line: table.lines}
    content |= {
        names.row: np.arange(len(y)),
        names.score: model.outlier_scores_,
        names.flagged: model.outlier_mask_,
        names.off: [_list(np.array(table.target_names)[mask]) for mask in is_off],
    }
    for j, name in enumerate(table.target_names):
        content |= {
            name: y[:, j],
            names.expected(name): expected[:, j],
            names.off_by(name): off_by[:, j],
            names.spreads(name): spreads[:, j],
        }
    order = np.argsort(-model.outlier_scores_, kind="stable")
    frame = pandas.DataFrame(content, index=table.ids).iloc[order]
    return frame if table.ids is not None else frame.reset_index(drop=True)


def expected_by(model: TableRegressor) -> Array:
    """Return what models that did not see the row expect of each target."""
    return np.asarray(model.out_of_fold_.reshape(len(model.outlier_mask_), -1))


def _finite(values: Array) -> Array:
    return np.nan_to_num(values, nan=np.nan)


def _list(names: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()
