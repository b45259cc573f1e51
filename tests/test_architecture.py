"""The map of the package: no import cycle, arrows one way, private interfaces in one file.

The imports are read from the source with `ast`, wherever they stand: an import inside a function
counts as much as one at the top. Imports under ``if TYPE_CHECKING`` are for mypy and do not count.
"""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
TESTS = ROOT / "tests"

# From top to bottom. A module may import from lower layers, and from its own layer only within its
# own package. The longest prefix of a module's name decides where it belongs.
LAYERS = [
    {"gorelm"},
    {"gorelm._moved"},  # former import paths, all of gorelm.extend
    {"gorelm.extend"},
    {"gorelm.__main__"},
    {"gorelm.cli"},
    {"gorelm.review"},
    {"gorelm.experiments"},
    {"gorelm.onnx"},
    {"gorelm.io"},
    {"gorelm.intervals", "gorelm.diagnostics", "gorelm.cleaning"},
    {"gorelm.estimators"},
    {"gorelm.path", "gorelm.selection"},
    {"gorelm.backends"},
    {"gorelm.findings"},
    # the one preparation, for every owner of rows
    {"gorelm.estimators._prepare"},
    {"gorelm.stream", "gorelm.datasets", "gorelm.metrics", "gorelm.diagnostics.outlier_scores"},
    {"gorelm._solver"},
    {"gorelm._features"},
    {
        "gorelm._compat",
        "gorelm._extras",
        "gorelm._files",
        "gorelm._processes",
        "gorelm._progress",
        "gorelm._typing",
        "gorelm._version",
    },
]


def module_name(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules_under(root):
    return {module_name(path, root): path for path in sorted(root.rglob("*.py"))}


def is_type_checking(node):
    name = node.test.attr if isinstance(node.test, ast.Attribute) else getattr(node.test, "id", "")
    return name == "TYPE_CHECKING"


def walk(node):
    """Yield every node below `node` but for those under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and is_type_checking(child):
            for other in child.orelse:
                yield other
                yield from walk(other)
        else:
            yield child
            yield from walk(child)


_parsed = cache(ast.parse)


def imported(text, module="", is_package=False):
    """Yield (module, name or None, line) of every import in a source text."""
    package = module if is_package else module.rpartition(".")[0]
    for node in walk(_parsed(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            yield from ((base, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = getattr(node.func, "id", called)
            first = node.args[0]
            if called in ("import_module", "__import__"):
                # A name put together at run time may be any module of the package, unless it
                # begins with the name of another.
                name = first.value if isinstance(first, ast.Constant) else f"{package}.*"
                if isinstance(first, ast.JoinedStr) and isinstance(first.values[0], ast.Constant):
                    name = f"{first.values[0].value}*"
                yield str(name), None, node.lineno


def graph_of(sources):
    """Return {module: {imported module: line}} for {module: (text, whether it is a package)}.

    ``from package import name`` leads to the module of that name where there is one, and to the
    package's ``__init__`` otherwise. That importing a module runs the ``__init__`` of the packages
    around it does not count: it would make a cycle of every package that re-exports.
    """
    graph = {}
    for module, (text, is_package) in sources.items():
        graph[module] = {}
        for base, name, line in imported(text, module, is_package):
            target = f"{base}.{name}" if f"{base}.{name}" in sources else base
            inside = [other for other in sources if other.startswith(target[:-1])]
            for other in inside if target.endswith(".*") else [target]:
                if other in sources and other != module:
                    graph[module].setdefault(other, line)
    return graph


def cycles(graph):
    """Return the strongly connected components of two modules or more (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def layer_of(module):
    """Return (number of the layer, counted from above; the entry of LAYERS)."""
    fitting = [
        (entry, number)
        for number, layer in enumerate(LAYERS)
        for entry in layer
        # "gorelm" alone is the root, not everything in it
        if module == entry or (entry != "gorelm" and module.startswith(f"{entry}."))
    ]
    assert fitting, f"{module} is in no layer: give it a place in LAYERS"
    entry, number = max(fitting)
    return number, entry


@pytest.fixture(scope="module")
def graph():
    modules = modules_under(SRC)
    return graph_of(
        {
            module: (path.read_text(encoding="utf-8"), path.name == "__init__.py")
            for module, path in modules.items()
        }
    )


def test_there_is_no_import_cycle(graph):
    assert len(graph) > 40
    lines = []
    for component in cycles(graph):
        lines.append(f"cycle of {len(component)} modules:")
        for module in component:
            for other, line in graph[module].items():
                if other in component:
                    lines.append(f"  {module}:{line} imports {other}")
    assert not lines, "\n".join(lines)


def test_arrows_point_one_way(graph):
    wrong = []
    for module, targets in graph.items():
        number, entry = layer_of(module)
        for target, line in targets.items():
            below, other = layer_of(target)
            if entry != other and below <= number:
                wrong.append(f"{module}:{line} imports {target}")
    assert not wrong, "against the order of LAYERS:\n" + "\n".join(wrong)


@pytest.mark.slow
def test_every_module_can_be_imported_first():
    """Importing a module runs the ``__init__`` of its packages, whose imports must not need it."""
    code = """
import importlib, sys
import gorelm
for name in sys.argv[1:]:
    for loaded in [m for m in sys.modules if m.partition(".")[0] == "gorelm"]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ImportError as error:
        if "partially initialized" in str(error):  # not one about an extra
            print(name, error)
"""
    names = list(modules_under(SRC))
    command = [sys.executable, "-c", code, *names]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(names) > 100
    assert not told, told


def private_sklearn(text):
    for base, name, line in imported(text):
        parts = [*base.split("."), *([name] if name else [])]
        if parts[0] == "sklearn" and any(part.startswith("_") for part in parts):
            yield line, ".".join(parts)


def test_private_interfaces_of_scikit_learn_are_in_compat_alone():
    wrong = [
        f"{module}:{line} imports {name}"
        for module, path in modules_under(SRC).items()
        if module != "gorelm._compat"
        for line, name in private_sklearn(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)
    compat = (SRC / "gorelm" / "_compat.py").read_text(encoding="utf-8")
    assert any(private_sklearn(compat)), "the check sees no private import where there are some"


def test_no_test_module_imports_another():
    modules = modules_under(TESTS)
    names = {module.rpartition(".")[2] for module in modules if ".test_" in f".{module}"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {base}"
        for path in modules.values()
        for base, name, line in imported(path.read_text(encoding="utf-8"))
        if names & {*base.split("."), name}
    ]
    assert len(names) > 30
    assert not wrong, "what tests share belongs in tests/support:\n" + "\n".join(wrong)


def test_the_overview_names_the_files_that_there_are():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(\w+\.py)\b", text))
    there = {
        path.name
        for folder in ("src", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert not named - there
    for folder in ("_features", "_solver", "estimators"):
        files = {path.name for path in (SRC / "gorelm" / folder).glob("*.py")}
        assert not files - named - {"__init__.py", "_docs.py"}, folder


# -- the checks can fail --------------------------------------------------------------------------


def test_cycles_are_found():
    sources = {
        "p": ("def f():\n    from p import a\n", True),  # nobody imports p: no cycle
        "p.a": ("from . import b", False),
        "p.b": ("def f():\n    import importlib\n    importlib.import_module('p.c')", False),
        "p.c": ("def f():\n    from p.a import g", False),
        "p.d": ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import e", False),
        "p.e": ("from p.d import x", False),
        "p.l": ("from importlib import import_module\nimport_module(f'p.l.{name}')", True),
        "p.l.m": ("from p.l import x", False),
        "p.q": ("from .r import x", True),
        "p.q.r": ("from ..a import y\nfrom . import z", False),
    }
    graph = graph_of(sources)
    assert graph["p.a"] == {"p.b": 1}
    assert graph["p.d"] == {}
    assert graph["p.q.r"] == {"p.a": 1, "p.q": 2}
    assert sorted(cycles(graph)) == [
        ["p.a", "p.b", "p.c"],
        ["p.l", "p.l.m"],
        ["p.q", "p.q.r"],
    ]


def test_layers_are_told_apart():
    assert layer_of("gorelm")[1] == "gorelm"
    assert layer_of("gorelm._solver.admm")[1] == "gorelm._solver"
    with pytest.raises(AssertionError, match="give it a place"):
        layer_of("gorelm.new_module")
    assert list(private_sklearn("def f():\n    from sklearn.utils import _x")) == [
        (2, "sklearn.utils._x")
    ]
    assert not list(private_sklearn("from sklearn.utils import validation"))
