"""From a table of numbers to the Bunch that every loader returns."""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

from gorelm._extras import needs
from gorelm.datasets.arff import Column

if TYPE_CHECKING:
    import pandas

Matrix = NDArray[np.float64]

_DESCR = """\
{title}
{n_rows} rows in the file, {n_missing} of them with missing values ({fate}).
{n_features} features{nominal}; {n_targets} targets: {targets}.
"""


def make_bunch(
    columns: list[Column],
    table: Matrix,
    features: list[int],
    targets: list[int],
    *,
    title: str,
    path: str | os.PathLike[str],
    drop_missing: bool,
    as_frame: bool,
    ids: pandas.Index | None = None,
) -> Bunch:
    """Split a table into features and targets, which are indices of columns.

    Missing values count in the chosen columns only. The index of frames is `ids`; None: the
    numbers of the rows.
    """
    for name, categories in (columns[j] for j in targets):
        if categories is not None:
            raise ValueError(
                f"Target {name!r} of {path} is not numeric: it has the categories "
                f"{', '.join(categories[:5])}{', ...' if len(categories) > 5 else ''}."
            )
    missing = np.isnan(table[:, features + targets]).any(axis=1)
    rows = np.flatnonzero(~missing) if drop_missing else np.arange(len(table))
    if len(table) and not len(rows):
        raise ValueError(
            f"Every row of {path} has a missing value. Pass drop_missing=False and fill them in, "
            "or leave out the columns they are in."
        )

    table_kept = table[rows]
    X, T = (np.ascontiguousarray(table_kept[:, chosen]) for chosen in (features, targets))
    kinds = [columns[j] for j in features]
    categories_of = {c.name: list(c.categories) for c in kinds if c.categories is not None}
    target_names = [columns[j].name for j in targets]
    data: Matrix | pandas.DataFrame = X
    target: Matrix | pandas.DataFrame = T
    frame = None
    if as_frame:
        index = rows if ids is None else ids[rows]
        data = make_frame(kinds, X, index)
        target = make_frame([columns[j] for j in targets], T, index)
        frame = import_pandas("as_frame=True").concat([data, target], axis=1)
    return Bunch(
        data=data,
        target=target,
        frame=frame,
        feature_names=[c.name for c in kinds],
        target_names=target_names,
        categories=categories_of,
        DESCR=_DESCR.format(
            title=title,
            n_rows=len(table),
            n_missing=missing.sum(),
            fate="dropped" if drop_missing else "kept",
            n_features=len(features),
            nominal=f", {len(categories_of)} of them nominal" if categories_of else "",
            n_targets=len(targets),
            targets=", ".join(target_names),
        ),
    )


def make_frame(
    columns: list[Column], values: Matrix, index: NDArray[np.intp] | pandas.Index | None = None
) -> pandas.DataFrame:
    """Return a pandas frame, with nominal columns as categoricals; index None: 0, 1, ..."""
    pandas = import_pandas("as_frame=True")
    series = {}
    for column, value in zip(columns, values.T, strict=True):
        if column.categories is None:
            series[column.name] = value
        else:
            codes = np.where(np.isnan(value), -1, value).astype(np.intp)
            series[column.name] = pandas.Categorical.from_codes(codes, column.categories)
    return pandas.DataFrame(series, index=index)


def import_pandas(what: str) -> ModuleType:
    """Return the module pandas, or say which extra `what` needs."""
    with needs(f"{what} needs pandas", "data"):
        import pandas
    module: ModuleType = pandas
    return module
