"""Find the files of the Mulan sets on this machine, or download them."""

from __future__ import annotations

import csv
import difflib
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from gorelm._extras import needs
from gorelm.datasets.arff import read_arff

if TYPE_CHECKING:
    from gorelm.datasets.progress import DownloadBar


class DownloadError(OSError):
    """A data set could not be downloaded, or what came is not what was expected."""


class Source(NamedTuple):
    """Address of an ARFF file and the SHA-256 of its content, None where that is not known."""

    url: str
    sha256: str | None


# Sizes of the published files, and where they are: commits and files that never change.
REGISTRY = list(
    csv.DictReader(resources.files(__package__).joinpath("mulan.csv").read_text().splitlines())
)
SOURCES = {row["name"]: Source(row["url"], row["sha256"] or None) for row in REGISTRY}

_REMEDY = "Pass data_home or set the environment variable GORELM_DATA to the folder that holds it."


def fetch_mulan(
    name: str,
    data_home: str | os.PathLike[str] | None = None,
    progress: bool = False,
    *,
    download_if_missing: bool = True,
) -> Path:
    """Return the path of a Mulan set's ARFF file, downloading the file if it is not there yet.

    A file ``NAME.arff`` or ``NAME.arff.gz`` in the data home is taken as it is. A download
    appears there under its name only once it is complete and its SHA-256 is the expected one.
    For osales, sf1 and sf2 no checksum is known yet; what comes must at least be readable ARFF.

    Parameters
    ----------
    name : str
        One of the keys of ``MULAN_TARGETS``.
    data_home : path-like, optional
        Folder of the files. By default the environment variable ``GORELM_DATA``, and where that
        is not set, the user's cache folder for gorelm.
    progress : bool, default=False
        Show a progress bar of the download (needs ``gorelm[progress]``).
    download_if_missing : bool, default=True
        If False, raise FileNotFoundError instead of downloading.

    Returns
    -------
    pathlib.Path
        The file.

    Raises
    ------
    ValueError
        If the name is unknown.
    FileNotFoundError
        If the file is not there and `download_if_missing` is False.
    DownloadError
        If the download fails twice. It is an OSError.
    OSError
        If the folder cannot be written to.
    ImportError
        If pooch, of the extra ``data``, is needed and not installed.
    """
    if name not in SOURCES:
        raise ValueError(f"Unknown Mulan set {name!r}; {suggest(name, SOURCES)}")
    folder = _data_home(data_home)
    path = _find(name, folder)
    if path is not None:
        return path
    if not download_if_missing:
        raise FileNotFoundError(f"There is no {_files(name)} in {str(folder)!r}. {_REMEDY}")
    return _download(name, folder, progress)


def find_mulan(name: str, data_home: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the path of a Mulan set's file, None if it is not on this machine."""
    return _find(name, _data_home(data_home))


def suggest(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown word."""
    known = list(known)
    near = difflib.get_close_matches(str(word), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."


def _data_home(data_home: str | os.PathLike[str] | None) -> Path:
    home = data_home or os.environ.get("GORELM_DATA")
    return Path(home).expanduser() if home else _user_cache()


def _user_cache() -> Path:
    return Path(_import_pooch().os_cache("gorelm"))


def _find(name: str, folder: Path) -> Path | None:
    for path in (folder / f"{name}.arff", folder / f"{name}.arff.gz"):
        if path.is_file():
            return path
    return None


def _files(name: str) -> str:
    return f"{name}.arff or {name}.arff.gz"


def _download(name: str, folder: Path, progress: bool) -> Path:
    pooch = _import_pooch()
    from requests import RequestException  # pooch brings it

    source, file = SOURCES[name], f"{name}.arff"
    store = pooch.create(
        path=folder,
        base_url="",
        urls={file: source.url},
        registry={file: source.sha256 and f"sha256:{source.sha256}"},
        retry_if_failed=1,
    )
    by_hand = (
        f"Either try again later, or get {source.url} by other means, place it in a folder as "
        f"{_files(name)}, and pass that folder as data_home or set the environment variable "
        "GORELM_DATA to it."
    )
    try:
        with _progress_bar(name) if progress else nullcontext() as bar:
            return Path(store.fetch(file, downloader=_downloader(source, bar)))
    except (RequestException, ValueError) as error:
        raise DownloadError(
            f"Downloading {name!r} from {source.url} to {str(folder)!r} failed, nothing was kept: "
            f"{str(error).rstrip('.')}. {by_hand}"
        ) from error
    except OSError as error:
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        message = f"Cannot write {file} to {str(folder)!r}: {cause.strerror or cause}. {by_hand}"
        # by its number it becomes a PermissionError, NotADirectoryError, ... again
        raise OSError(*filter(None, [cause.errno]), message) from error


def _downloader(source: Source, bar: DownloadBar | None) -> Callable[[str, str, object], None]:
    """Return what pooch calls with an address and a temporary file, which it then renames.

    Whatever is raised here makes pooch remove that file.
    """
    get = _import_pooch().HTTPDownloader(progressbar=bar or False)

    def download(url: str, output_file: str, store: object) -> None:
        get(url, output_file, store)
        if source.sha256 is None:
            read_arff(output_file)  # refuses most of what is cut off, and pages that say sorry
        os.chmod(output_file, 0o644)  # temporary files are their owner's only; a folder is shared

    return download


def _progress_bar(name: str) -> AbstractContextManager[DownloadBar]:
    with needs("progress=True needs the package rich", "progress"):
        from gorelm.datasets.progress import DownloadBar
    return DownloadBar(f"downloading {name}")


def _import_pooch() -> ModuleType:
    try:
        import pooch
    except ImportError as error:
        raise ImportError(
            'Finding and downloading data sets needs pooch: pip install "gorelm[data]"; or set '
            "GORELM_DATA to a folder that holds them."
        ) from error
    module: ModuleType = pooch
    return module
