"""Check of model files: only types from one list, and arrays of their declared size.

skops writes an object as a tree of nodes. A node names a type and the loader that makes an object
of that type. Here every node is checked before skops reads it: its loader and its type must be in
one table, `allowed_types`. No loader in the table calls what a file names, other than the
constructors of plain containers, arrays and random states.

In files, a class of gorelm is called ``gorelm.Name``, wherever its module lies. Files of earlier
versions name its module of that time, which is ignored: `_own_classes` alone decides which class a
name means.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any, TypeAlias
from zipfile import ZIP_STORED, ZipFile

import numpy as np
from sklearn.base import BaseEstimator

SCHEMA = "schema.json"
LARGEST_SCHEMA = 32 * 2**20  # bytes; parsed, hostile JSON takes up to twenty times as much
_OLDEST_PROTOCOL = 2  # older ones of skops name functions where this audit does not look

# Parts of pipelines around a model. With wrong arrays they raise exceptions, whereas compiled trees
# and support vector machines read beyond the arrays.
_SKLEARN_PACKAGES = (
    "compose",
    "decomposition",
    "ensemble",
    "feature_selection",
    "impute",
    "kernel_approximation",
    "linear_model",
    "model_selection",
    "multioutput",
    "pipeline",
    "preprocessing",
    "random_projection",
)
_SPLITTERS = (
    "GroupKFold",
    "GroupShuffleSplit",
    "KFold",
    "LeaveOneGroupOut",
    "LeaveOneOut",
    "LeavePGroupsOut",
    "LeavePOut",
    "PredefinedSplit",
    "RepeatedKFold",
    "ShuffleSplit",
    "TimeSeriesSplit",
)
_SKLEARN_PARTS = {
    "sklearn.compose._column_transformer.make_column_selector",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.metrics._scorer._Scorer",
}

Content: TypeAlias = tuple[object, ...]
Node: TypeAlias = dict[str, Any]  # parsed JSON


class Refused(Exception):
    """A file or a model holds `what` at `where`, which it may not."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where, self.what = where, what


@cache
def allowed_types() -> dict[str, frozenset[str]]:
    """Return the names of the types that each of skops's loaders may make."""
    plain = {f"builtins.{name}" for name in ("bool", "float", "int", "str")}
    # Not `void`: a void made from a number is that many bytes.
    scalars = {
        f"numpy.{kind.__name__}"
        for kind in set(np.sctypeDict.values())
        if np.dtype(kind).kind in "biufcU"
    }
    splitters = {_name_of(splitter) for splitter in _splitters()}
    objects = {_name_of(kind) for kind in [*_own_classes().values(), *_sklearn_estimators()]}
    table = {
        "DictNode": {"builtins.dict", "sklearn.utils._bunch.Bunch"},
        "DTypeNode": {"numpy.dtype"},
        "FunctionNode": {_name_of(function) for function in _functions()} | _ufuncs(),
        "JsonNode": {"builtins.str"},
        "ListNode": {"builtins.list"},
        "MaskedArrayNode": {"numpy.ma.MaskedArray"},
        "NdArrayNode": {"numpy.ndarray"} | scalars,
        "ObjectNode": objects | splitters | _SKLEARN_PARTS,
        "RandomStateNode": {"numpy.random.mtrand.RandomState"},
        "SetNode": {"builtins.set"},
        "SliceNode": {"builtins.slice"},
        "TupleNode": {"builtins.tuple", "sklearn.impute._iterative._ImputerTriplet"},
        "TypeNode": plain | scalars | splitters,
    }
    return {loader: frozenset(names) for loader, names in table.items()}


@cache
def _own_classes() -> dict[str, type]:
    """Return the classes of gorelm that a file may hold, by their names there.

    A class that is renamed keeps its former name here, as one more entry.
    """
    from gorelm import estimators
    from gorelm._features.layer import HiddenLayer
    from gorelm._features.scaling import Scaling
    from gorelm._features.target_transforms import TargetTransforms
    from gorelm._solver.least_squares import RecursiveRidge
    from gorelm.estimators._robust.inputs import CellCheck, Filling, InputCheck
    from gorelm.intervals import ConformalRegressor

    public = [getattr(estimators, name) for name in estimators.__all__]
    parts = [ConformalRegressor, HiddenLayer, RecursiveRidge, Scaling, TargetTransforms]
    parts += [CellCheck, Filling, InputCheck]
    return {kind.__name__: kind for kind in [*public, *parts]}


def _own_class(node: Node) -> type | None:
    """Return the class of gorelm that a node means, or None."""
    module, name = node.get("__module__"), node.get("__class__")
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    return _own_classes().get(name) if module.partition(".")[0] == "gorelm" else None


def _with_module(node: Node) -> Node:
    """Give a node of the JSON the module in which this version has its class."""
    if (kind := _own_class(node)) is not None:
        node |= {"__module__": kind.__module__, "__class__": kind.__name__}
    return node


def _for_file(node: Node) -> Node:
    """Return a node as files have it, whatever the versions of gorelm and scikit-learn."""
    if node.get("__class__") == "_RemainderColsList":
        # What scikit-learn up to 1.8 has for the list of columns that its later versions have.
        plain: Node = node["content"]["content"]["data"]
        return plain
    return node | {"__module__": "gorelm"} if _own_class(node) is not None else node


def schema_for_file(schema: bytes) -> bytes:
    """Return a schema of skops with names that do not depend on where modules lie, compact."""
    tree = json.loads(schema, object_hook=_for_file)
    return json.dumps(tree, separators=(",", ":")).encode()


def _sklearn_estimators() -> Iterator[type]:
    # Not by `all_estimators`, which imports all of scikit-learn: two seconds.
    for package in _SKLEARN_PACKAGES:
        for name, kind in vars(import_module(f"sklearn.{package}")).items():
            if (
                inspect.isclass(kind)
                and issubclass(kind, BaseEstimator)
                and kind.__module__.startswith(f"sklearn.{package}")
                and not (inspect.isabstract(kind) or name.startswith("_"))
            ):
                yield kind


def _splitters() -> list[type]:
    from sklearn import model_selection

    return [getattr(model_selection, name) for name in _SPLITTERS]


def _functions() -> Iterator[FunctionType]:
    """Yield the functions by which parts of pipelines score, and select features."""
    from sklearn import feature_selection
    from sklearn import metrics as sklearn_metrics

    from gorelm import metrics

    for module in (feature_selection, metrics, sklearn_metrics):
        for name in module.__all__:
            if inspect.isfunction(getattr(module, name)):
                yield getattr(module, name)


def _ufuncs() -> set[str]:
    """Return the names of NumPy's functions of numbers, as `FunctionTransformer` holds them."""
    return {f"numpy.{name}" for name in dir(np) if isinstance(getattr(np, name), np.ufunc)}


def _name_of(thing: type | FunctionType) -> str:
    return f"{thing.__module__}.{thing.__name__}"


def audit(archive: ZipFile) -> tuple[bytes, set[str]]:
    """Check an archive: each type in it must be in `allowed_types` for its loader.

    Returns the tree of nodes as it was checked, with the modules in which this version has gorelm's
    classes, for skops to read; and the names of all types in it, for skops to trust. Raises
    `Refused` if something is not allowed, and other exceptions if skops did not write it.
    """
    schema = _schema_of(archive)
    protocol = schema["protocol"]
    if type(protocol) is not int or protocol < _OLDEST_PROTOCOL:
        raise Refused(SCHEMA, f"protocol {protocol!r} of skops")
    tree = _Tree()
    tree.check(schema, str(schema["__class__"]))
    if sorted(tree.arrays | {SCHEMA}) != sorted(archive.namelist()):
        raise Refused("archive", "members that no node names, or nodes without their member")
    for file in tree.arrays:
        _check_array(archive, file)
    return json.dumps(schema).encode(), tree.types


def _schema_of(archive: ZipFile) -> Node:
    """Return the tree of nodes of an archive whose members are as large as they declare."""
    members = archive.infolist()
    # Compressed members, or members that overlap, could be far larger than the file.
    if any(member.compress_type != ZIP_STORED for member in members):
        raise Refused("archive", "a compressed member")
    if sum(member.file_size for member in members) > _size_of(archive):
        raise Refused("archive", "members larger than the file")
    if archive.getinfo(SCHEMA).file_size > LARGEST_SCHEMA:
        raise Refused(SCHEMA, f"more than {LARGEST_SCHEMA >> 20} MiB of structure")
    schema: Node = json.loads(archive.read(SCHEMA), object_hook=_with_module)
    return schema


def _size_of(archive: ZipFile) -> int:
    assert archive.fp is not None
    return archive.fp.seek(0, 2)


class _Tree:
    """The nodes checked so far: the content of each id, and the members that hold arrays."""

    def __init__(self) -> None:
        self._contents: dict[int, Content] = {}
        self.arrays: set[str] = set()
        self.types: set[str] = set()

    def check(self, node: Node, where: str) -> Content:
        """Check a node and all below it; returns its content without ids."""
        loader, kind = node["__loader__"], f"{node['__module__']}.{node['__class__']}"
        if kind not in allowed_types().get(loader, ()):
            raise Refused(where, kind)
        self.types.add(kind)
        number = node["__id__"]
        if type(number) is not int or number < 1:
            raise Refused(where, f"an id of {number!r}")
        if loader == "NdArrayNode" and node["type"] == "numpy":
            # A member of its own: many nodes with one large member would be that many arrays.
            if node["file"] != f"{number}.npy":
                raise Refused(where, "an array in a member of another's name")
            self.arrays.add(node["file"])
        elif loader in _CHECKS:
            _CHECKS[loader](node, where)
        below = tuple(self.check(child, where + step) for step, child in _children(node, loader))
        content: Content = (loader, kind, below or repr(node.get("content")))
        # skops makes an object of the first node of an id and uses it for all others of that id.
        if self._contents.setdefault(number, content) != content:
            raise Refused(where, "two objects of one id")
        return content


def _children(node: Node, loader: str) -> Iterator[tuple[str, Node]]:
    """Yield (step of the path, node) for all that skops reads below a node."""
    content = node.get("content")
    if loader == "DictNode":
        yield "", node["key_types"]
        yield from ((f".{key}", child) for key, child in node["content"].items())
    elif loader == "MaskedArrayNode":
        yield from (("", node["content"][part]) for part in ("data", "mask"))
    elif loader in ("ListNode", "SetNode", "TupleNode"):
        yield from ((f"[{k}]", child) for k, child in enumerate(node["content"]))
    elif loader == "NdArrayNode" and node["type"] == "json":
        yield "", node["shape"]
        yield from ((f"[{k}]", child) for k, child in enumerate(node["content"]))
    elif loader in ("DTypeNode", "RandomStateNode") or (
        loader == "ObjectNode" and content is not None
    ):
        yield "", node["content"]


def _check_keys(node: Node, where: str) -> None:
    """Refuse a dict that calls anything but a type on its keys."""
    keys = node["key_types"]
    if keys["__loader__"] != "ListNode" or len(keys["content"]) != len(node["content"]):
        raise Refused(where, "a dict whose keys have no types")
    if any(key["__loader__"] != "TypeNode" for key in keys["content"]):
        raise Refused(where, "a dict whose keys have something else for a type")


def _check_object_array(node: Node, where: str) -> None:
    """Refuse object arrays of two dimensions: NumPy would unpack, and so copy, arrays in them."""
    if node["shape"]["__loader__"] != "TupleNode" or len(node["shape"]["content"]) != 1:
        raise Refused(where, "an array of objects that is not one-dimensional")


def _check_position(node: Node, where: str) -> None:
    """Refuse a random state that would read beyond its 624 words; NumPy does not check."""
    written = node["content"]["content"]["state"]["content"]["pos"]
    position = json.loads(written["content"]) if written["__loader__"] == "JsonNode" else None
    if type(position) is not int or not 0 <= position <= 624:
        raise Refused(where, f"a random state at position {position!r}")


_CHECKS = {
    "DictNode": _check_keys,
    "NdArrayNode": _check_object_array,
    "RandomStateNode": _check_position,
}


def _check_array(archive: ZipFile, file: str) -> None:
    """Refuse an array that is not exactly as large as its header declares, or holds objects."""
    with archive.open(file) as stream:
        version = np.lib.format.read_magic(stream)
        if version != (1, 0):
            raise Refused(file, f"version {version} of NumPy's format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        size = archive.getinfo(file).file_size - stream.tell()
    expected = dtype.itemsize * math.prod(shape)
    if dtype.kind not in "biufcmMSU" or not dtype.itemsize or expected != size:
        raise Refused(file, f"{size} bytes for an array of {dtype} and shape {shape}")
