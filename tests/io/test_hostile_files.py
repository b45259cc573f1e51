"""Files that are damaged, foreign or malicious: one class of error, and nothing in them is run."""

import functools
import hashlib
import io
import json
import operator
import os
import pickle
import re
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import skops.io
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.tree import DecisionTreeRegressor

import gorelm
from gorelm import RELMRegressor
from gorelm.io import FORMAT, ModelFileError
from gorelm.io.audit import LARGEST_SCHEMA
from support.model_cases import fitted, rows, same_predictions, small

HEADER = b'{"estimator": "RELMRegressor"}\n'


def sealed(payload, header=HEADER):
    """Return a file with a checksum that is right."""
    digest = hashlib.sha256(header + payload).hexdigest()
    return f"gorelm-model {FORMAT} {digest}\n".encode() + header + payload


def zipped(members, **options):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


@functools.cache
def good_file():
    """Return the bytes of a model file, and the place of its payload."""
    with tempfile.TemporaryDirectory() as folder:
        content = gorelm.save(fitted(RELMRegressor), Path(folder) / "model").read_bytes()
    first = content.index(b"\n") + 1
    return content, content.index(b"\n", first) + 1


def members():
    content, start = good_file()
    with zipfile.ZipFile(io.BytesIO(content[start:])) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_node(node, extra=None):
    """Return a file whose model has a node of its own making among its attributes."""
    parts = members()
    schema = json.loads(parts["schema.json"])
    attributes = schema["content"]
    attributes["content"]["extra"] = node
    attributes["key_types"]["content"].append(TEXT_TYPE)
    return sealed(zipped({**parts, **(extra or {}), "schema.json": json.dumps(schema)}))


def refused(content, folder, match=""):
    path = folder / "file"
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        gorelm.load(path)
    _, file, reason = str(caught.value).partition(str(path))
    assert file, "the file is not named"
    assert re.search(match, reason), reason
    assert caught.value.__cause__ is None  # no traceback from the depths
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.fixture
def before_skops(monkeypatch):
    """Fail the test if a file gets as far as skops."""

    def reached(*args, **kwargs):
        pytest.fail("the file reached skops")

    monkeypatch.setattr("skops.io.loads", reached)


# -- other files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x,y\n1,2\n",
        b"gorelm-model 1\n",
        b"gorelm-model 0 " + b"0" * 64 + b"\n",
        zipped({"schema.json": "{}"}),
        skops.io.dumps({"a": 1}),
        pickle.dumps(small(RELMRegressor)),
        bytes(range(256)) * 100,
    ],
)
def test_other_files_are_not_models(content, tmp_path, before_skops):
    refused(content, tmp_path, match=r"is not a model file .*gorelm\.save")


@pytest.mark.parametrize(
    "payload",
    [b"", b"no zip", zipped({}), zipped({"a": "b"}), pickle.dumps(3)],
)
def test_other_payloads_are_not_models(payload, tmp_path):
    refused(sealed(payload), tmp_path)


def test_what_is_no_estimator(tmp_path):
    refused(sealed(skops.io.dumps([1, 2])), tmp_path, match="no estimator but a list")


@pytest.mark.parametrize("header", [b"{}", b"no json\n", b"[1]\n", b"[" * 60_000 + b"\n"])
def test_headers(header, tmp_path, before_skops):
    refused(sealed(b"", header), tmp_path, match="header")


def test_newer_formats_say_what_to_do(tmp_path, before_skops):
    content, _ = good_file()
    newer = content.replace(b"gorelm-model 2 ", b"gorelm-model 3 ", 1)
    refused(newer, tmp_path, match="upgrade gorelm")


def test_damage_says_what_to_do(tmp_path, before_skops):
    content, start = good_file()
    refused(content[:-1], tmp_path, match="damaged.*cut off or altered")
    refused(content[:start], tmp_path, match="damaged")
    refused(content + b"\n", tmp_path, match="damaged")


def test_not_a_file(tmp_path):
    with pytest.raises(ModelFileError, match="not a file"):
        gorelm.load(tmp_path)
    with pytest.raises(ModelFileError, match="not a file"):
        gorelm.load("/dev/zero")
    with pytest.raises(FileNotFoundError):
        gorelm.load(tmp_path / "nowhere")


def test_other_versions_are_named_when_a_model_cannot_be_made(tmp_path):
    header = b'{"gorelm": "9.9", "numpy": "1.0"}\n'
    parts = members()
    schema = json.loads(parts["schema.json"])
    del schema["content"]["content"]["_input_scaling"]["content"]["content"]["scale"]["type"]
    content = sealed(zipped({**parts, "schema.json": json.dumps(schema)}), header)
    refused(content, tmp_path, match=r"written with gorelm 9\.9 \(here .*numpy 1\.0 \(here")


# -- code in a file ------------------------------------------------------------------------------


class Touch:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_pickles_are_not_loaded(tmp_path):
    marker = tmp_path / "marker"
    poison = pickle.dumps(Touch(marker))
    refused(poison, tmp_path)
    refused(sealed(poison), tmp_path)
    holds_pickle = io.BytesIO()
    np.save(holds_pickle, np.array([Touch(marker)]), allow_pickle=True)
    for content in (poison, holds_pickle.getvalue()):
        array = {"__class__": "ndarray", "__module__": "numpy", "__loader__": "NdArrayNode"}
        node = {**array, "__id__": 7, "type": "numpy", "file": "7.npy"}
        refused(with_node(node, {"7.npy": content}), tmp_path)
    assert not marker.exists()
    pickle.loads(poison)
    assert marker.exists()  # it would have worked


@pytest.mark.parametrize(
    "smuggled",
    [
        os.system,
        subprocess.Popen,
        functools.partial(os.system, "true"),
        functools.partial(print, "hello"),
        small(RELMRegressor).fit,
        "a".join,
        operator.methodcaller("system", "true"),
        operator.attrgetter("__class__"),
        operator.itemgetter(0),
        eval,
        np.load,
        np.frompyfunc(int, 1, 1),
        np.random.default_rng(0),
        DecisionTreeRegressor().fit([[0.0], [1.0]], [0.0, 1.0]),
        sparse.csr_array(np.eye(2)),
        b"bytes",
        bytearray(b"bytes"),
        np.array([[1, "a"]], dtype=object),
        np.void(b"bytes"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_skops_would_write(smuggled, tmp_path, before_skops):
    model = small(RELMRegressor).fit(*rows())
    model.extra = smuggled
    with pytest.raises(ModelFileError):
        gorelm.save(model, tmp_path / "model")
    try:
        payload = skops.io.dumps(model)
    except Exception:
        pytest.skip("skops does not write it either")
    refused(sealed(payload), tmp_path)


def node(loader, kind, number=7, **rest):
    module, _, name = kind.rpartition(".")
    return {
        "__loader__": loader,
        "__module__": module,
        "__class__": name,
        "__id__": number,
        **rest,
    }


TEXT = node("JsonNode", "builtins.str", 8, content='"true"', is_json=True)
EMPTY = node("ListNode", "builtins.list", 9, content=[])
SYSTEM = node("FunctionNode", "posix.system", 10)
TEXT_TYPE = node("TypeNode", "builtins.str", 4)
ITEMS = node("TupleNode", "builtins.tuple", 11, content=[TEXT])


@pytest.mark.parametrize(
    "malicious",
    [
        SYSTEM,
        node("TypeNode", "evil.Thing"),
        node("ObjectNode", "evil.Thing"),
        node("ObjectNode", "posix.system"),
        node("ObjectNode", "gorelm._features.layer.np"),
        node("ListNode", "evil.run", content=[TEXT]),
        node("SetNode", "posix.system", content=[TEXT]),
        node("TupleNode", "evil.Thing", content=[TEXT]),
        node("DictNode", "evil.run", content={}, key_types=EMPTY),
        node(
            "DictNode",
            "builtins.dict",
            content={"true": TEXT},
            key_types=node("ListNode", "builtins.list", 12, content=[SYSTEM]),
        ),
        node(
            "DictNode",
            "builtins.dict",
            content={"true": TEXT},
            # NumPy's functions are allowed, but not as types of keys
            key_types=node(
                "ListNode", "builtins.list", 12, content=[node("FunctionNode", "numpy.exp", 13)]
            ),
        ),
        node(
            "DictNode",
            "builtins.dict",
            content={"true": TEXT},
            key_types=node(
                "ListNode", "builtins.list", 12, content=[node("TypeNode", "evil.Thing", 13)]
            ),
        ),
        node(
            "DictNode",
            "builtins.dict",
            content={},
            key_types=node("ListNode", "evil.run", 12, content=[]),
        ),
        node(
            "NdArrayNode",
            "numpy.ndarray",
            type="json",
            content=[],
            shape=node("TupleNode", "evil.Thing", 12, content=[TEXT]),
        ),
        node("ConstructorFromReduceNode", "posix.system", content=ITEMS),
        node("ConstructorFromReduceNode", "gorelm._features.layer.HiddenLayer", content=ITEMS),
        node(
            "PartialNode",
            "functools.partial",
            content={"func": SYSTEM, "args": ITEMS, "kwds": EMPTY, "namespace": EMPTY},
        ),
        node(
            "MethodNode",
            "gorelm._features.scaling.Scaling",
            content={
                "func": "fit",
                "obj": node("ObjectNode", "gorelm._features.scaling.Scaling", 12),
            },
        ),
        node("OperatorFuncNode", "operator.methodcaller", attrs=ITEMS),
        node("LossNode", "posix.system", __reduce__={"args": ITEMS}, content=EMPTY),
        node("CachedNode", "builtins.str", 8),
        node("DefaultDictNode", "collections.defaultdict", content={}),
        node("NdArrayNode", "posix.system", type="json", content=[TEXT], shape=ITEMS),
        node("JsonNode", "evil.Thing", content='"a"'),
        node("NoSuchNode", "builtins.str"),
        TEXT | {"__id__": 0},
        TEXT | {"__id__": True},
        TEXT | {"__id__": [1]},
        {"__id__": 3},
        {},
        None,
        [],
    ],
    ids=lambda n: n.get("__loader__", "none") if isinstance(n, dict) else repr(n),
)
def test_nodes_that_name_code(malicious, tmp_path, before_skops, monkeypatch):
    (tmp_path / "evil.py").write_text(
        "import pathlib\nrun = Thing = pathlib.Path(__file__).with_name('marker').touch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    refused(with_node(malicious), tmp_path)
    assert "evil" not in sys.modules
    assert not (tmp_path / "marker").exists()


def test_messages_play_no_tricks(tmp_path):
    trick = "\x1b[2J" + "x" * 10_000
    header = json.dumps({"gorelm": trick}).encode() + b"\n"
    for content in (
        with_node(node("ObjectNode", trick)),
        with_node(TEXT | {"__id__": trick}),
        sealed(b"no zip", header),
    ):
        path = _written(tmp_path / "file", content)
        with pytest.raises(ModelFileError) as caught:
            gorelm.load(path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


def test_a_harmless_node_is_loaded(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(with_node(TEXT))  # so that the others are refused for what they are
    assert gorelm.load(path).extra == "true"


def test_protocols_that_hide_functions_elsewhere(tmp_path, before_skops):
    parts = members()
    schema = json.loads(parts["schema.json"])
    for protocol in (0, 1, 2.5, True, "2", None):
        schema["protocol"] = protocol
        content = sealed(zipped({**parts, "schema.json": json.dumps(schema)}))
        refused(content, tmp_path, match="protocol")


@pytest.mark.parametrize("position", [-1, 625, 10**9, 1.5])
def test_random_states_that_read_beyond_their_end(position, tmp_path, before_skops):
    model = small(RELMRegressor).set_params(random_state=np.random.RandomState(0)).fit(*rows())
    with zipfile.ZipFile(io.BytesIO(skops.io.dumps(model))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(parts["schema.json"])
    state = schema["content"]["content"]["random_state"]["content"]["content"]["state"]
    told = state["content"]["pos"]
    state["content"]["pos"] = told | {"content": json.dumps(position)}
    content = sealed(zipped({**parts, "schema.json": json.dumps(schema)}))
    refused(content, tmp_path, match="position")
    # An array for a number, which says another one in a place where nobody looks.
    state["content"]["pos"] = array_node(7) | {"__class__": "int64", "content": "5"}
    array = {"7.npy": npy((), np.array(position, "<i8").tobytes(), dtype="<i8")}
    content = sealed(zipped({**parts, **array, "schema.json": json.dumps(schema)}))
    refused(content, tmp_path, match="position")


# -- small files, large demands ------------------------------------------------------------------


def npy(shape, content=b"", dtype="<f8"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def array_node(number, file=None):
    rest = {"type": "numpy", "file": file or f"{number}.npy"}
    return node("NdArrayNode", "numpy.ndarray", number, **rest)


def listed(*nodes):
    return node("ListNode", "builtins.list", 6, content=list(nodes))


def overlapping(count=300, size=100_000):
    """Return members of an archive, each of which holds all that follow it, and their directory."""
    body, directory = bytes(size), b""
    for number in range(1000, 1000 + count):
        name = b"%d.npy" % number
        content = npy((len(body),), body, dtype="|u1")
        sizes = struct.pack("<III", zlib.crc32(content), len(content), len(content))
        common = struct.pack("<5H", 20, 0, 0, 0, 0) + sizes + struct.pack("<HH", len(name), 0)
        body = b"PK\x03\x04" + common + name + content
        # Offsets are from the end, until the whole length is known.
        directory += b"PK\x01\x02" + struct.pack("<H", 20) + common
        directory += struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name
    return body, directory


def overlapping_file():
    body, directory = overlapping()
    parts = members()
    schema = json.loads(parts["schema.json"])
    extra = listed(*(array_node(number) for number in range(1000, 1300)))
    schema["content"]["content"]["extra"] = extra
    schema["content"]["key_types"]["content"].append(TEXT_TYPE)
    good = zipped({**parts, "schema.json": json.dumps(schema)})
    end = good.rindex(b"PK\x05\x06")
    start, count = good.index(b"PK\x01\x02"), struct.unpack("<H", good[end + 10 : end + 12])[0]
    entries = bytearray(directory)
    place = 0
    while place < len(entries):
        from_end = struct.unpack("<I", entries[place + 42 : place + 46])[0]
        entries[place + 42 : place + 46] = struct.pack("<I", start + len(body) - from_end)
        place += 46 + struct.unpack("<H", entries[place + 28 : place + 30])[0]
    whole = good[:start] + body + good[start:end] + bytes(entries)
    count, size = count + 300, end - start + len(entries)
    ends = struct.pack("<4s4HIIH", b"PK\x05\x06", 0, 0, count, count, size, start + len(body), 0)
    return sealed(whole + ends)


def lying(payload):
    """Return an archive whose members claim to be of 100 bytes."""
    payload = bytearray(payload)
    for mark, at in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = payload.index(mark) + at
        payload[place : place + 4] = struct.pack("<I", 100)
    return bytes(payload)


TEN_GIGABYTES = 10 * 2**30
DEEP = "[" * 100_000
BOMBS = {
    "compressed schema": lambda: sealed(
        zipped({"schema.json": b"[" * 2**25}, compression=zipfile.ZIP_DEFLATED)
    ),
    "compressed array": lambda: sealed(
        zipped({**members(), "7.npy": bytes(2**25)}, compression=zipfile.ZIP_DEFLATED)
    ),
    "compressed schema that lies": lambda: sealed(
        lying(zipped({"schema.json": b"[" * 2**25}, compression=zipfile.ZIP_LZMA))
    ),
    "overlapping members": overlapping_file,
    "deep schema": lambda: sealed(zipped({"schema.json": DEEP})),
    "deep text": lambda: with_node(TEXT | {"content": DEEP}),
    "deep lists": lambda: with_node(
        functools.reduce(
            lambda inner, k: node("ListNode", "builtins.list", 99 + k, content=[inner]),
            range(300),
            TEXT,
        )
    ),
    "huge array": lambda: with_node(array_node(7), {"7.npy": npy((TEN_GIGABYTES,))}),
    "huge array of nothing": lambda: with_node(
        array_node(7), {"7.npy": npy((TEN_GIGABYTES,), dtype="<U0")}
    ),
    "two dimensions": lambda: with_node(array_node(7), {"7.npy": npy((-1, -8), bytes(64))}),
    "one member, many arrays": lambda: with_node(
        listed(*(array_node(k, "7.npy") for k in range(1000, 1500))),
        {"7.npy": npy((2**15,), bytes(2**18))},
    ),
    "one array unpacked many times": lambda: with_node(
        node(
            "NdArrayNode",
            "numpy.ndarray",
            type="json",
            content=[array_node(5)] * 500,
            shape=node("TupleNode", "builtins.tuple", 11, content=[TEXT, TEXT]),
        ),
        {"5.npy": npy((2**15,), bytes(2**18))},
    ),
    "one id, two nodes": lambda: with_node(
        listed(TEXT, node("ListNode", "builtins.list", 8, content=[]))
    ),
    "an id within itself": lambda: with_node(
        node(
            "ListNode",
            "builtins.list",
            7,
            content=[node("ListNode", "builtins.list", 7, content=[])],
        )
    ),
    "a member nobody names": lambda: with_node(TEXT, {"7.npy": npy((2,), bytes(16))}),
    "a member that is missing": lambda: with_node(array_node(7)),
    "long number": lambda: with_node(TEXT | {"content": "9" * 10_000}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name, tmp_path):
    content = BOMBS[name]()
    gorelm.load(_written(tmp_path / "good", good_file()[0]))  # imports, and what is kept once
    tracemalloc.start()
    refused(content, tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(content) + 20e6


def _written(path, content):
    path.write_bytes(content)
    return path


def test_a_schema_has_a_largest_size(tmp_path, before_skops):
    schema = zipped({"schema.json": b" " * (LARGEST_SCHEMA + 1)})
    refused(sealed(schema), tmp_path, match="MiB of structure")


# -- any damage at all ---------------------------------------------------------------------------


# Twice the examples of the profile in `make test`, hundreds when it is thorough.
many = settings(max_examples=2 * settings().max_examples if settings().max_examples < 20 else 400)


@st.composite
def damaged(draw, content):
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at, length = draw(st.integers(0, len(content) - 1)), draw(st.integers(1, 200))
        other = draw(st.integers(0, len(content) - 1))
        match draw(st.sampled_from(["flip", "cut", "end", "copy", "text"])):
            case "flip":
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[at : min(at + length, at + len(content) - 1)]
            case "end":
                del content[max(at, 1) :]
            case "copy":
                content[at:at] = content[other : other + length]
            case "text":
                content[at : at + length] = draw(st.binary(max_size=50)) or b"x"
    return bytes(content)


@many
@given(st.data())
def test_a_damaged_file_is_refused_or_the_same(tmp_path_factory, data):
    content = data.draw(damaged(good_file()[0]))
    path = _written(tmp_path_factory.getbasetemp() / "damaged", content)
    try:
        model = gorelm.load(path)
    except ModelFileError:
        return
    assert same_predictions(model, fitted(RELMRegressor), rows()[0])


def loads_or_is_refused(folder, payload):
    try:
        model = gorelm.load(_written(folder / "forged", sealed(payload)))
    except ModelFileError:
        return
    assert isinstance(model, BaseEstimator)


@many
@given(st.data())
def test_a_damaged_payload_with_a_right_checksum(tmp_path_factory, data):
    content, start = good_file()
    loads_or_is_refused(tmp_path_factory.getbasetemp(), data.draw(damaged(content[start:])))


@many
@given(st.data())
def test_replaced_members(tmp_path_factory, data):
    parts = members()
    name = data.draw(st.sampled_from(sorted(parts)))
    other = data.draw(st.sampled_from(sorted(parts)))
    parts[name] = data.draw(st.one_of(damaged(parts[name]), st.just(parts[other]), st.binary()))
    loads_or_is_refused(tmp_path_factory.getbasetemp(), zipped(parts))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 700) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def places(value, path=()):
    """Yield the paths of all values in nested lists and dicts."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def at(value, path):
    return functools.reduce(operator.getitem, path, value)


@many
@given(st.data())
def test_altered_nodes(tmp_path_factory, data):
    parts = members()
    schema = json.loads(parts["schema.json"])
    for _ in range(data.draw(st.integers(1, 3))):
        paths = list(places(schema))
        *outer, key = data.draw(st.sampled_from(paths))
        moved = st.sampled_from(paths).map(lambda path, schema=schema: at(schema, path))
        value = json.loads(json.dumps(data.draw(moved | JSON)))
        at(schema, outer)[key] = value
    content = zipped({**parts, "schema.json": json.dumps(schema)})
    loads_or_is_refused(tmp_path_factory.getbasetemp(), content)
