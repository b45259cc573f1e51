"""Models in files, without pickle: a file is data, and loading it runs no code from it.

A file is two lines of text and a payload::

    gorelm-model 2 <SHA-256 of all that follows>
    {"estimator": "GORELMRegressor", "gorelm": "0.1.0", "scikit-learn": "1.6.0", ...}
    <what skops writes: a zip archive of arrays and a tree of nodes in JSON>

The checksum finds damaged files. :mod:`gorelm.io.audit` checks the content of a file, which may
come from anyone, before any object is made.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import numpy as np
import sklearn
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from gorelm._extras import needs
from gorelm._files import write_whole
from gorelm._version import __version__
from gorelm.io.audit import SCHEMA, Refused, audit, schema_for_file

FORMAT = 2  # 1 named the modules in which gorelm had its classes; it is still read
_FIRST_LINE = re.compile(rb"gorelm-model (\d{1,6}) ([0-9a-f]{64})\n")
_FIRST_LINE_BYTES = len("gorelm-model 999999 \n") + 64
_LONGEST_HEADER = 2**16


class ModelFileError(ValueError):
    """A file is no model of gorelm's, or a model cannot be put into one."""


def save(model: BaseEstimator, path: str | os.PathLike[str]) -> Path:
    """Write a fitted model to a file from which :func:`load` makes it again, to the bit.

    Parameters
    ----------
    model : estimator
        A fitted estimator of gorelm, or a pipeline, column transformer, search or ensemble of
        scikit-learn's around such.
    path : path
        Where to; an existing file is replaced. The usual ending is ``.gorelm``.

    Returns
    -------
    path : Path
        Where it is.

    Raises
    ------
    ModelFileError
        If the model holds functions or objects of other libraries or of your own (a splitter, a
        scorer), which only pickle could store.
    NotFittedError
        If the model is not fitted.

    Warns
    -----
    UserWarning
        If a `callback` is set. It is a function of yours, and the model in the file has none.

    Notes
    -----
    Kept are the parameters and all that a pickle keeps: weights, scalings, `cv_results_`,
    `history_`, and the outlier scores and flags of the training rows (9 bytes a row). The training
    rows themselves are not: a growing estimator wants X and y again for its next ``grow``. An
    `OSELMRegressor` continues with ``partial_fit`` where it was.

    The file appears whole or not at all: it is written beside its place, then moved there. A
    symbolic link stays, and the file that it leads to is replaced.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import gorelm
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(100, random_state=0)
    >>> model = gorelm.RELMRegressor(n_hidden=20, random_state=0).fit(data.X, data.T)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     restored = gorelm.load(gorelm.save(model, Path(folder) / "model.gorelm"))
    >>> bool((restored.predict(data.X) == model.predict(data.X)).all())
    True
    """
    if not isinstance(model, BaseEstimator):
        raise TypeError(f"save takes a fitted estimator, got {type(model).__name__}")
    check_is_fitted(model)
    payload = _packed(_without_callbacks(model))
    header = {"estimator": type(model).__name__, **_versions()}
    body = json.dumps(header).encode() + b"\n" + payload
    first = f"gorelm-model {FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode()
    path = Path(path)
    write_whole(path, first, body)
    return path


def load(path: str | os.PathLike[str]) -> Any:
    """Load a model that :func:`save` wrote.

    No code from the file is run, whatever its origin: only objects of the types listed in
    :func:`gorelm.io.audit.allowed_types` are made. A model is as trustworthy as its author all the
    same: the weights may be anything.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    model : estimator
        The fitted estimator.

    Raises
    ------
    ModelFileError
        If the file is damaged, of a newer format, or not a model.
    """
    path = Path(path)
    _skops()
    header, payload = _read(path)
    try:
        return _unpacked(payload)
    except Refused as refused:
        reason = f"it holds what no model of gorelm's does ({_quotable(refused)})"
        raise ModelFileError(f"{path}: {reason}; nothing in it was loaded") from None
    except Exception as error:
        reason = (
            f"the model in it cannot be made again ({type(error).__name__}: {_quotable(error)})"
        )
        raise ModelFileError(f"{path}: {reason}.{_other_versions(header)}") from None


# -- the payload ---------------------------------------------------------------------------------


def _skops() -> ModuleType:
    with needs("saving and loading models needs skops", "io"):
        import skops.io
    module: ModuleType = skops
    return module


def _packed(model: BaseEstimator) -> bytes:
    """Return a model as skops writes it, after the audit that a reader does."""
    name, skops = type(model).__name__, _skops()
    try:
        payload = skops.io.dumps(model)
        with ZipFile(io.BytesIO(payload)) as archive:
            schema = schema_for_file(archive.read(SCHEMA))
        payload = _with_schema(payload, schema)
        _audit(payload)
    except Refused as refused:
        raise ModelFileError(
            f"{refused.where} is {refused.what}, which a model file cannot hold: it holds no code, "
            "and only objects of gorelm's and of scikit-learn's pipelines. Set it to something "
            "else before saving"
        ) from None
    except Exception as error:
        raise ModelFileError(
            f"this {name} holds something that cannot be stored ({type(error).__name__}: {error})"
        ) from error
    return payload


def _with_schema(payload: bytes, schema: bytes) -> bytes:
    """Return an archive with another schema."""
    out = io.BytesIO()
    with ZipFile(io.BytesIO(payload)) as given, ZipFile(out, "w") as kept:
        for member in given.namelist():
            kept.writestr(member, schema if member == SCHEMA else given.read(member))
    return out.getvalue()


def _audit(payload: bytes) -> tuple[bytes, set[str]]:
    with ZipFile(io.BytesIO(payload)) as archive:
        return audit(archive)


def _unpacked(payload: bytes) -> BaseEstimator:
    schema, names = _audit(payload)
    model = _skops().io.loads(_with_schema(payload, schema), trusted=sorted(names))
    if not isinstance(model, BaseEstimator):
        raise Refused("the whole", f"no estimator but a {type(model).__name__}")
    check_is_fitted(model)
    return model


def _without_callbacks(model: BaseEstimator) -> BaseEstimator:
    """Return the model, or a copy of it whose estimators have no callback."""
    callbacks = [_callback_of(part) for part in _estimators(model, set())]
    if all(callback is None for callback in callbacks):
        return model
    warnings.warn(
        "the callback is a function of yours, which a model file does not hold: the model in the "
        "file has none",
        UserWarning,
        stacklevel=3,
    )
    # A callback may refer to what cannot be copied.
    model = copy.deepcopy(model, {id(callback): callback for callback in callbacks})
    for part in _estimators(model, set()):
        if _callback_of(part) is not None:
            part.callback = None
    return model


def _callback_of(part: BaseEstimator) -> object:
    return getattr(part, "callback", None) if type(part).__module__.startswith("gorelm.") else None


def _estimators(value: object, seen: set[int]) -> Iterator[BaseEstimator]:
    """Yield all estimators in an estimator, itself included."""
    if id(value) in seen:
        return
    if isinstance(value, BaseEstimator):
        yield value
        parts = list(vars(value).values())
    elif isinstance(value, dict | list | tuple):
        parts = list(value.values() if isinstance(value, dict) else value)
    else:
        return
    seen.add(id(value))
    for part in parts:
        yield from _estimators(part, seen)


# -- the file ------------------------------------------------------------------------------------


def _versions() -> dict[str, str]:
    libraries = {"scikit-learn": sklearn, "numpy": np, "skops": _skops()}
    return {"gorelm": __version__} | {name: it.__version__ for name, it in libraries.items()}


def _other_versions(header: dict[str, str]) -> str:
    """Say which versions the file was written with, where they are not these."""
    here = _versions().items()
    other = [f"{name} {header.get(name)} (here {v})" for name, v in here if header.get(name) != v]
    return f" It was written with {_quotable(', '.join(other))}: load it there." if other else ""


def _quotable(text: object) -> str:
    """Return text from a file, cut off and without control characters of terminals."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:300])


def _read(path: Path) -> tuple[dict[str, str], bytes]:
    """Return header and payload of a file that is whole."""
    if path.exists() and not path.is_file():
        raise ModelFileError(f"{path} is not a file")
    with path.open("rb") as file:
        match = _FIRST_LINE.match(first := file.read(_FIRST_LINE_BYTES))
        if match is None or int(match[1]) < 1:
            raise ModelFileError(
                f"{path} is not a model file of gorelm's; gorelm.save writes such files"
            )
        if int(match[1]) > FORMAT:
            raise ModelFileError(
                f"{path} has format {int(match[1])}, newer than this gorelm {__version__} knows "
                f"({FORMAT}): upgrade gorelm"
            )
        body = first[match.end() :] + file.read()
    if hashlib.sha256(body).hexdigest().encode() != match[2]:
        raise ModelFileError(
            f"{path} is damaged: its checksum is wrong. It was cut off or altered; copy it again, "
            "or save the model again"
        )
    try:
        end = body.index(b"\n", 0, _LONGEST_HEADER)
        header = {str(name): str(value) for name, value in json.loads(body[:end]).items()}
    except Exception:
        raise ModelFileError(f"{path} is not a model file: its header cannot be read") from None
    return header, body[end + 1 :]
