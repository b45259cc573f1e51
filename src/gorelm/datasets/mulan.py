"""The multi-target regression sets of the Mulan project."""

import os
from pathlib import Path
from typing import NamedTuple

from sklearn.utils import Bunch

from gorelm.datasets.arff import read_arff
from gorelm.datasets.bunch import make_bunch
from gorelm.datasets.fetch import REGISTRY, fetch_mulan, find_mulan

# The targets are the last columns of a file.
MULAN_TARGETS = {row["name"]: int(row["targets"]) for row in REGISTRY}


class MulanSet(NamedTuple):
    """One line of :func:`list_mulan`.

    Attributes
    ----------
    name : str
        What :func:`load_mulan` calls it.
    rows, features, targets : int
        Size of the published file; the rows include those with missing values.
    path : pathlib.Path or None
        The file on this machine, None if it is not there.
    """

    name: str
    rows: int
    features: int
    targets: int
    path: Path | None


def list_mulan(data_home: str | os.PathLike[str] | None = None) -> list[MulanSet]:
    """List the Mulan sets, their sizes, and which of them are on this machine.

    Parameters
    ----------
    data_home : path-like, optional
        Folder to look in, as for :func:`load_mulan`.

    Returns
    -------
    list of MulanSet
        In alphabetical order. Nothing is downloaded.
    """
    return [
        MulanSet(
            row["name"],
            int(row["rows"]),
            int(row["features"]),
            int(row["targets"]),
            find_mulan(row["name"], data_home),
        )
        for row in REGISTRY
    ]


def load_mulan(
    name: str,
    *,
    data_home: str | os.PathLike[str] | None = None,
    drop_missing: bool = True,
    as_frame: bool = False,
    download_if_missing: bool = True,
    progress: bool = False,
) -> Bunch:
    """Load one of the Mulan multi-target regression sets.

    The files are not part of this package. ``NAME.arff`` or ``NAME.arff.gz`` is taken from the
    data home; if neither is there, the file is downloaded to it, see
    :func:`~gorelm.datasets.fetch_mulan`.

    Parameters
    ----------
    name : str
        One of the keys of ``MULAN_TARGETS``.
    data_home : path-like, optional
        Folder of the files. By default the environment variable ``GORELM_DATA``, and where that
        is not set, the user's cache folder for gorelm.
    drop_missing : bool, default=True
        Leave out the rows with a missing value in any feature or target. If False they are kept,
        with NaN.
    as_frame : bool, default=False
        Return pandas frames instead of arrays, with nominal features as categoricals. Their index
        is the number of the row in the file, from 0.
    download_if_missing : bool, default=True
        If False, raise FileNotFoundError instead of downloading.
    progress : bool, default=False
        Show a progress bar of a download (needs ``gorelm[progress]``).

    Returns
    -------
    Bunch
        With the attributes

        - ``data``: float64 ndarray of shape (n_samples, n_features); a nominal feature (sf1 and
          sf2 have them) is the index of its category;
        - ``target``: float64 ndarray of shape (n_samples, n_targets);
        - ``frame``: None, or with `as_frame` features and targets in one frame;
        - ``feature_names``, ``target_names``: lists of str;
        - ``categories``: dict from the names of nominal features to lists of str;
        - ``DESCR``: str.

    Raises
    ------
    ValueError
        If the name is unknown, the file cannot be read or has too few columns, or every row has a
        missing value and `drop_missing` is True.
    FileNotFoundError
        If the file is not there and `download_if_missing` is False.
    DownloadError
        If the download fails. It is an OSError.
    ImportError
        If a package of the extra ``data`` is needed and not installed.

    Examples
    --------
    >>> from gorelm.datasets import load_mulan
    >>> energy = load_mulan("enb")  # doctest: +SKIP
    >>> energy.data.shape, energy.target.shape  # doctest: +SKIP
    ((768, 8), (768, 2))
    """
    path = fetch_mulan(name, data_home, progress, download_if_missing=download_if_missing)
    relation, columns, table = read_arff(path)
    n_targets = MULAN_TARGETS[name]
    if len(columns) <= n_targets:
        raise ValueError(
            f"{path} has {len(columns)} columns; {name!r} has {n_targets} targets, after at least "
            "one feature."
        )
    numbers = list(range(len(columns)))
    return make_bunch(
        columns,
        table,
        numbers[:-n_targets],
        numbers[-n_targets:],
        title=f"Mulan multi-target regression set {name!r} (relation {relation!r}).",
        path=path,
        drop_missing=drop_missing,
        as_frame=as_frame,
    )
