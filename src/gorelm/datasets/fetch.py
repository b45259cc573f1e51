"""Where the Mulan files are: on this machine, else on the net."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
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


def _mulan(name: str, sha256: str | None) -> Source:
    # a commit, not a branch: what is behind the address never changes
    commit = "43f6389095ad71984264db4387a8074b22bc7d4a"
    folder = f"https://raw.githubusercontent.com/tsoumakas/mulan/{commit}/data/multi-target"
    return Source(f"{folder}/{name}.arff", sha256)


def _openml(name: str, file_id: int, sha256: str) -> Source:
    return Source(f"https://www.openml.org/data/download/{file_id}/{name}.arff", sha256)


SOURCES = {
    "andro": _mulan("andro", "08f0e2757b2a7635136ac58ea76c4e801ffeb0a81116b29e6ac169228c8aa132"),
    "atp1d": _mulan("atp1d", "ed935ba476c4994ba40d6712d590fb389709cceba7cf7dbbb33ef28c84762bb9"),
    "atp7d": _mulan("atp7d", "77d59efdf4a6329c71c854684de7409d0d61d3bebccd6821ae268c1620c95b2d"),
    "edm": _mulan("edm", "37777374030f592a53cbcf597ae0aa6105238a1c696dd04ccb229be982f6bc5b"),
    "enb": _mulan("enb", "8277d9094ccda6da2cd1c2b79c90ca201fa3695e75aca173ffc43138dcab0071"),
    "jura": _mulan("jura", "78ce7655f49073e3622ef7ba25657b3900a2b279ba3d48cb82e353e56bac3d2a"),
    "oes10": _mulan("oes10", "37f9fa429f6f2ece2cdfd08e84649971e61ee0b4e75d66166c082bacf3d36251"),
    "oes97": _mulan("oes97", "aee74aa656c709f797f45d817c41996be94c2e924c0f1e7ad315fb7e2f1a9498"),
    "osales": _mulan("osales", None),
    "rf1": _openml(
        "rf1", 21230440, "994f9e334811e040d2002e46d3ce06504e5d441249bf65448f53d6ea24b33cf0"
    ),
    "rf2": _openml(
        "rf2", 21230441, "b2d841515a70bbfdd212bd8bd6d138280caa4b7fc2ab16d0e3f28cb6fc2b7145"
    ),
    "scm1d": _openml(
        "scm1d", 21230442, "4def7af4a1da3e20b719513d6d7e581f8b743c3d5094f7def925d53ba8a86268"
    ),
    "scm20d": _openml(
        "scm20d", 21230443, "2261a94bff5cfb617dbd2e7fd2c17d15d45135103a081917d1358c2ad13a4bd2"
    ),
    "scpf": _mulan("scpf", "f7d3c7b134c0e5ddff56a7900371cb44328f9b7f550203c4a556929203ea81e9"),
    "sf1": _mulan("sf1", None),
    "sf2": _mulan("sf2", None),
    "slump": _mulan("slump", "3a9a9eba416b06c7668153b44073a0e165afbfc9e526d53b174e5f97a707ca6c"),
    "wq": _mulan("wq", "4a0906b4a51bf52c986790ddaf261ba51faa3da9cffe823badabd88d38d252fe"),
}

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
