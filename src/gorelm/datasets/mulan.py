"""The multi-target regression sets of the Mulan project, read from local ARFF files."""

import difflib
import gzip
import os
from pathlib import Path
from typing import TextIO, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch

__all__ = ["MULAN_TARGETS", "load_mulan"]

# name -> number of targets, which are the last columns of the file
MULAN_TARGETS = {
    "andro": 6,
    "atp1d": 6,
    "atp7d": 6,
    "edm": 2,
    "enb": 2,
    "jura": 3,
    "oes10": 16,
    "oes97": 16,
    "rf1": 8,
    "rf2": 8,
    "scm1d": 16,
    "scm20d": 16,
    "scpf": 3,
    "slump": 3,
    "wq": 14,
}

_DESCR = """\
Mulan multi-target regression set {name!r} (relation {relation!r}).
{n_rows} rows in the file, {n_missing} of them with missing values ({fate}).
{n_features} features; the last {n_targets} columns are the targets.
"""


def load_mulan(
    name: str,
    *,
    data_home: str | os.PathLike[str] | None = None,
    drop_missing: bool = True,
) -> Bunch:
    """Load one of the Mulan multi-target regression sets.

    The files are not part of this package. Place ``NAME.arff`` or ``NAME.arff.gz`` in a folder
    and name that folder by `data_home` or the environment variable ``GORELM_DATA``.

    Parameters
    ----------
    name : str
        One of the keys of ``MULAN_TARGETS``.
    data_home : path-like, optional
        Folder with the files. By default the environment variable ``GORELM_DATA``.
    drop_missing : bool, default=True
        Leave out the rows with a missing value in any feature or target. If False they are kept,
        with NaN.

    Returns
    -------
    Bunch
        With the attributes

        - ``data``: float64 ndarray of shape (n_samples, n_features);
        - ``target``: float64 ndarray of shape (n_samples, n_targets);
        - ``feature_names``, ``target_names``: lists of str;
        - ``DESCR``: str.

    Raises
    ------
    ValueError
        If the name is unknown, or the file has a value that is no number or too few columns.
    FileNotFoundError
        If no folder is named or it does not hold the file.
    ImportError
        If liac-arff, of the extra ``data``, is not installed.

    Examples
    --------
    >>> from gorelm.datasets import load_mulan
    >>> energy = load_mulan("enb")  # doctest: +SKIP
    >>> energy.data.shape, energy.target.shape  # doctest: +SKIP
    ((768, 8), (768, 2))
    """
    if name not in MULAN_TARGETS:
        near = difflib.get_close_matches(str(name), MULAN_TARGETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(MULAN_TARGETS)}."
        raise ValueError(f"Unknown Mulan set {name!r}; {hint}")
    n_targets = MULAN_TARGETS[name]
    path = _find_file(name, data_home)
    relation, names, table = _read_arff(path)
    if len(names) <= n_targets:
        raise ValueError(
            f"{path} has {len(names)} columns; {name!r} has {n_targets} targets, after at least "
            "one feature."
        )

    missing = np.isnan(table).any(axis=1)
    n_rows = len(table)
    if drop_missing:
        table = table[~missing]
    return Bunch(
        data=np.ascontiguousarray(table[:, :-n_targets]),
        target=np.ascontiguousarray(table[:, -n_targets:]),
        feature_names=names[:-n_targets],
        target_names=names[-n_targets:],
        DESCR=_DESCR.format(
            name=name,
            relation=relation,
            n_rows=n_rows,
            n_missing=missing.sum(),
            fate="dropped" if drop_missing else "kept",
            n_features=len(names) - n_targets,
            n_targets=n_targets,
        ),
    )


def _find_file(name: str, data_home: str | os.PathLike[str] | None) -> Path:
    """Return the path of NAME.arff or NAME.arff.gz, the plain file first."""
    files = f"{name}.arff", f"{name}.arff.gz"
    home = data_home if data_home is not None else os.environ.get("GORELM_DATA")
    remedy = (
        "Pass data_home or set the environment variable GORELM_DATA to the folder that holds it."
    )
    if not home:
        raise FileNotFoundError(f"No folder to look for {' or '.join(files)} in. {remedy}")
    folder = Path(home).expanduser()
    for file in files:
        if (folder / file).is_file():
            return folder / file
    raise FileNotFoundError(f"There is no {' or '.join(files)} in {str(folder)!r}. {remedy}")


def _read_arff(path: Path) -> tuple[str, list[str], NDArray[np.float64]]:
    """Return relation, column names and values (missing ones as NaN) of an all-numeric file."""
    try:
        import arff
    except ImportError as error:
        raise ImportError(
            'Reading ARFF files needs liac-arff: pip install "gorelm[data]"'
        ) from error

    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with cast(TextIO, opener(path, "rt", encoding="utf-8")) as file:
            content = arff.load(file)
    except arff.ArffException as error:
        raise ValueError(f"{path} is not a readable ARFF file: {error}") from error
    names = [column for column, _ in content["attributes"]]
    for column, kind in content["attributes"]:
        if kind not in ("NUMERIC", "REAL", "INTEGER"):
            raise ValueError(f"Column {column!r} of {path} is not numeric but {kind!r}.")
    # None, liac-arff's word for missing, becomes NaN
    table = np.array(content["data"], dtype=np.float64).reshape(-1, len(names))
    return content["relation"], names, table
