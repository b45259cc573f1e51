"""Hostile calls of the command line: names, paths and faults, and what must hold after each call.

A call is made in a fork of this process (which has imported the library already; its fits try two
layers instead of eleven), or in a process of its own. Its files may be limited in size, as on a
disk that is full; it may be killed, or run as a user who may not write.
"""

import codecs
import contextlib
import gzip
import hashlib
import importlib
import io
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
import uuid
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import pandas as pd

import gorelm
from support.processes import left_after, marked

__all__ = [
    "COMMANDS",
    "FAULTS",
    "NAMES",
    "Call",
    "Hostile",
    "Result",
    "called",
    "may_run_as_another",
]

MARK = "GORELM_HOSTILE_CALL"
NOBODY = 65534

NAMES = [
    "self", "score", "row", "line", "flagged", "off", "id", "index", "columns", "name", "y",
    "y expected", "gorelm.score", "gorelm.line", "gorelm1.row", "gorelm.expected.y", "T", "data",
    "a,b", 'say "x"', "'single'", "semi;colon", "\x1b[2J\x1b]0;title\x07", "\x07", "\u202egnp.exe",
    "caf\xe9", "日本語", "\U0001f4a5", "--help", "-", "1", "2", "nan", "inf", "[red]x[/]", "{x}",
    "%s%n", "$HOME", "`id`", "<script>alert(1)</script>", "../../etc/passwd", "a" * 300, "C:\\x",
    "__class__", "frame", "=1+1", "@data", "%",
]  # fmt: skip
ONLY_IN_PARQUET = ["new\nline", "tab\there", "cr\rhere"]
# Of experiments and their reports, which root may also write into a read-only folder.
FOLDERS = (b"results", b"page", b"broken", b"read-only/r", b"read-only/p", b"\x1b[31m/")
COMMANDS = [
    "fit", "outliers", "clean", "predict", "inspect", "export", "contaminate",
    "datasets", "experiment", "status", "report", "nonsense",
]  # fmt: skip
TABLES = (".csv", ".tsv", ".csv.gz", ".parquet")
FAULTS = ["none", "full", "killed", "user"]


@dataclass
class Call:
    """One call: its arguments, and under which circumstances it is made."""

    arguments: list[str]
    fault: str = "none"
    limit: int = 0  # bytes a file may have, if the disk is full
    seconds: float = 0.0  # until it is killed
    fresh: bool = False  # in a process of its own

    def __str__(self):
        return f"{self.arguments!r} fault={self.fault} {self.limit or self.seconds or ''}"


@dataclass
class Result:
    """What came of it."""

    code: int
    stdout: str
    stderr: str
    left: dict = field(default_factory=dict)  # processes, five seconds later


def called(call, folder):
    """Make a call in a folder."""
    value = uuid.uuid4().hex
    pipes = [os.pipe() for _ in range(2)]  # limits of files do not hold for pipes
    ends = [end for _, end in pipes]
    if call.fresh:
        process = subprocess.Popen(
            [sys.executable, "-m", "gorelm", *call.arguments],
            cwd=folder, stdout=ends[0], stderr=ends[1], stdin=subprocess.DEVNULL,
            env={**os.environ, MARK: value}, preexec_fn=lambda: _circumstances(call),
        )  # fmt: skip
        pid = process.pid
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of the test runner
            pid = os.fork()
        if pid == 0:
            _in_fork(call, folder, ends, value)
    for end in ends:
        os.close(end)
    with ThreadPoolExecutor() as readers:
        texts = [readers.submit(_all_of, start) for start, _ in pipes]
        if call.fault == "killed":
            time.sleep(call.seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = process.wait() if call.fresh else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        left = left_after(5, lambda: marked(MARK, value)) if call.fresh else {}
        for other in left:
            os.kill(other, signal.SIGKILL)  # named below
    return Result(code, *(text.result() for text in texts), left)


def _all_of(descriptor):
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read().decode("utf-8", "backslashreplace")


def may_run_as_another():
    """Whether calls can be made as an ordinary user, who must be able to read the code."""
    if os.getuid() != 0:
        return False
    files = [Path(module.__file__).resolve() for module in (click, gorelm)]
    folders = {folder for file in files for folder in file.parents}
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)


def _circumstances(call):
    os.umask(0o022)
    if call.fault == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (call.limit, call.limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if call.fault == "user" and os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _in_fork(call, folder, ends, value):
    code = 70
    try:
        for number, end in zip((1, 2), ends, strict=True):
            os.dup2(end, number)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(os.fdopen(number, "wb", closefd=False), encoding="utf-8")
            for number in (1, 2)
        )
        sys.stdin = open(os.devnull)  # noqa: SIM115
        os.environ[MARK] = value
        os.chdir(folder)
        few_layers()
        from gorelm.cli import main

        _circumstances(call)
        try:
            main(args=call.arguments, prog_name="gorelm")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def few_layers():
    """Make fits cheap: what is tested is what happens around them."""
    from gorelm.estimators._robust import screen, search

    search.SEARCH_LAYERS = search.SEARCH_LAYERS[:2]
    screen.SCREEN_LAYERS = screen.SCREEN_LAYERS[:1]


# -- a folder with everything that is odd --------------------------------------------------------


class Hostile:
    """A folder of hostile tables, models and places to write to, and calls that use them."""

    def __init__(self, folder, seed=0):
        for module in (
            "cli.inspecting",
            "cli.predicting",
            "cli.planting",
            "cleaning",
            "cli.summary",
            "diagnostics",
            "onnx",
            "experiments.report",
            "experiments.runner",
        ):
            importlib.import_module(f"gorelm.{module}")  # another user may not read its files
        with contextlib.suppress(ImportError):  # nor look for fonts with it
            importlib.import_module("matplotlib.font_manager")
        for encoding in ("utf-8-sig", "utf-16", "latin-1", "unicode_escape", "idna"):
            codecs.lookup(encoding)
        self.rng = np.random.default_rng(seed)
        self.folder = Path(folder) / "f"
        self.folder.mkdir()
        self.folder.chmod(0o755)
        self.tables = self._tables()
        self.models = self._models()
        self.experiments = self._experiments()
        self.places = self._places()

    # Paths are relative to the folder, in which calls are made.

    def _tables(self):
        tables = {}
        for number, kind in enumerate(
            ["csv", "csv", "tsv", "semicolon", "ids", "parquet", "csv.gz", "csv", "csv", "csv"]
        ):
            frame = self._frame(odd_lines=kind == "parquet")
            ending = {"semicolon": "csv", "ids": "csv"}.get(kind, kind)
            stem = ["t", "\x1b[31mred", "sp ace", "--help", "caf\xe9"][number % 5]
            name = f"{stem}{number}.{ending}"
            path = self.folder / name
            if kind == "parquet":
                frame.to_parquet(path)
            elif kind == "semicolon":
                text = frame.to_csv(index=False, sep=";", decimal=",")
                path.write_text(text.replace("0,", "err,", 1) if number % 2 else text)
            else:
                separator = "\t" if kind == "tsv" else ","
                frame.to_csv(path, index=kind == "ids", sep=separator)
            tables[name] = frame
        for name, content in {
            "empty.csv": b"",
            "header.csv": b"a,b,c\n",
            "short.csv": b"a,b\n1,2\n",
            "ragged.csv": b"a,b\n" + b"1,2\n" * 11 + b"1,2,3\n",
            "binary.csv": bytes(range(256)) * 9,
            "fake.parquet": b"PAR1 nothing PAR1",
            "fake.csv.gz": b"\x1f\x8b\x08 nothing",
            "fake.arff": b"@relation x\n@attribute a {\n",
            "huge.csv": b"a,b\n" + b"".join(b"%d,%de307\n" % (i, i % 9 + 1) for i in range(20)),
            "bomb.csv.gz": gzip.compress(b"\0" * 10**7),
            "unknown.xls": b"a,b\n1,2\n",
        }.items():
            (self.folder / name).write_bytes(content)
            tables[name] = None
        return tables

    def _frame(self, odd_lines=False, n_rows=14):
        pool = NAMES + ONLY_IN_PARQUET * odd_lines
        names = [str(name) for name in self.rng.choice(pool, size=5, replace=False)]
        X = self.rng.normal(size=(n_rows, 3)).round(4)
        Y = np.column_stack([X.sum(axis=1), X[:, 0] ** 2]).round(4)
        Y[3] += 50
        frame = pd.DataFrame(np.hstack([X, Y]), columns=names)
        frame[names[1]] = self.rng.choice(["red", "blue", "\x1b[31m", "a,b"], n_rows)
        return frame

    def _models(self):
        from gorelm import RELMRegressor, TableRegressor
        from gorelm.io import save

        models = {}
        for name, table in list(self.tables.items())[:3]:
            X, y = table.iloc[:, :3], table.iloc[:, 3:]
            model = TableRegressor(RELMRegressor(n_hidden=3), random_state=0).fit(X, y)
            models[f"{Path(name).stem}.gorelm"] = name
            save(model, self.folder / f"{Path(name).stem}.gorelm")
        whole = (self.folder / next(iter(models))).read_bytes()
        for name, content in {
            "cut.gorelm": whole[: len(whole) // 2],
            "flipped.gorelm": whole[:900] + bytes([whole[900] ^ 1]) + whole[901:],
            "text.gorelm": b"no model\n",
            "empty.gorelm": b"",
        }.items():
            (self.folder / name).write_bytes(content)
            models[name] = None
        return models

    def _experiments(self):
        config = [
            'name = "\\u001b[31mhostile"', 'datasets = ["slump"]', "ratios = [0.0]", "repeats = 2",
            "[common]", "n_hidden = 5", "[[methods]]", 'name = "R[red]\\u001b[31m"',
            'estimator = "RELMRegressor"', "params = { C = 1.0 }",
        ]  # fmt: skip
        (self.folder / "e.toml").write_text("\n".join(config))
        (self.folder / "bad.toml").write_text("name = [")
        rng = np.random.default_rng(0)
        lines = ["@relation s", *(f"@attribute c{j} numeric" for j in range(10)), "@data"]
        lines += [",".join(f"{x:.3f}" for x in row) for row in rng.normal(size=(30, 10))]
        (self.folder / "data").mkdir()
        (self.folder / "data" / "slump.arff").write_text("\n".join(lines))
        (self.folder / "broken").mkdir()
        (self.folder / "broken" / "records.sqlite").write_bytes(b"no database" * 100)
        return ["e.toml"] * 5 + ["bad.toml", "papr", "\x1b[31m"]

    def _places(self):
        """Make what a result could be written over, and return the names."""
        old = b"an old file that must not be lost\n" * 20
        for name in ("old.csv", "old.gorelm", "old.html", "old.onnx", "old.parquet", "aim.csv"):
            (self.folder / name).write_bytes(old)
            (self.folder / name).chmod(0o640)
        for name in ("old.csv", "old.gorelm", "old.html"):
            link = self.folder / f"link-{name}"
            link.symlink_to(name)
        (self.folder / "link-far.csv").symlink_to("link-old.csv")
        (self.folder / "dangling.csv").symlink_to("not-there-yet.csv")
        (self.folder / "loop.csv").symlink_to("loop.csv")
        (self.folder / "null.gorelm").symlink_to("/dev/null")
        (self.folder / "full.csv").symlink_to("/dev/full")
        os.link(self.folder / "aim.csv", self.folder / "hard.csv")
        for name in ("fifo.csv", "fifo.gorelm", "fifo.html"):
            os.mkfifo(self.folder / name)
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(self.folder):
            server.bind("socket.csv")
        (self.folder / "folder.csv").mkdir()
        (self.folder / "read-only").mkdir()
        (self.folder / "read-only" / "old.csv").write_bytes(old)
        (self.folder / "read-only").chmod(0o555)
        (self.folder / "locked.csv").write_bytes(old)
        (self.folder / "locked.csv").chmod(0o444)
        return [
            "new.csv", "new.gorelm", "new.html", "new.onnx", "new.parquet", "new.tsv", "new.csv.gz",
            "old.csv", "old.gorelm", "old.html", "old.onnx", "old.parquet", "link-old.csv",
            "link-old.gorelm", "link-old.html", "link-far.csv", "dangling.csv", "loop.csv",
            "null.gorelm", "full.csv", "hard.csv", "fifo.csv", "fifo.gorelm", "fifo.html",
            "socket.csv", "folder.csv", "read-only/old.csv", "read-only/new.csv", "locked.csv",
            "no/new.csv", "old.csv/new.csv", "new.xls", "\x1b[2J.csv", "x" * 300 + ".csv", "-",
            "/dev/null", "/dev/stdout", "new.arff", "", "caf\udce9.csv", "new\nline.csv",
        ]  # fmt: skip

    # -- calls -----------------------------------------------------------------------------------

    def draw_for(self, test):
        """Draw what follows from a test's name, whichever tests this process has run before."""
        self.rng = np.random.default_rng(zlib.crc32(test.encode()))

    def call(self, command=None, fault=None):
        """Draw a call."""
        command = command or str(self.rng.choice(COMMANDS))
        fault = fault or str(self.rng.choice(FAULTS, p=[0.6, 0.2, 0.1, 0.1]))
        if fault == "user" and not may_run_as_another():
            fault = "none"
        call = Call(["--"], fault)
        call.arguments = getattr(self, f"_{command}")()
        call.limit = int(self.rng.choice([1, 100, 2000, 20000])) if fault == "full" else 0
        call.seconds = float(self.rng.uniform(0.0, 1.5)) if fault == "killed" else 0.0
        return call

    def killed_with_workers(self):
        """Draw a call with two worker processes, killed while they start or work."""
        data = next(name for name, frame in self.tables.items() if frame is not None)
        arguments = (
            ["fit", data, "--targets", "2", "--jobs", "2", "--model", "new.gorelm"]
            if self.rng.random() < 0.5
            else ["experiment", "run", "e.toml", "--jobs", "2", "--out", "results"]
        )
        return Call(arguments, "killed", seconds=float(self.rng.uniform(1, 8)), fresh=True)

    def _one(self, options):
        return str(options[self.rng.integers(len(options))])

    def _place(self, *endings):
        """Draw where a result goes: mostly a place with the right ending, odd or not."""
        right = [p for p in self.places if p.endswith(endings) and "\x1b" not in p]
        plain = [p for p in right if p.startswith(("new.", "old.", "link-"))]
        return self._one([plain, right, self.places][self.rng.choice(3, p=[0.5, 0.3, 0.2])])

    def _data(self):
        whole = [name for name, frame in self.tables.items() if frame is not None]
        name = self._one(whole if self.rng.random() < 0.85 else [*self.tables, *self.places])
        return name if name != "--help3.csv" else f"./{name}"

    def _targets(self, data):
        frame = self.tables.get(data.removeprefix("./"))
        how = self.rng.integers(10)
        if frame is None or how == 0:
            return self._one([*NAMES, "1", "2", "99", "0", "", ",", "\x1b[31m", "\u0662"])
        if how <= 2:
            return "2"
        names = list(frame.columns[3:] if how < 9 else frame.columns[[1, 4]])
        return ",".join('"' + name.replace('"', '""') + '"' for name in names)

    def _fit(self):
        data = self._data()
        words = ["fit", data, f"--targets={self._targets(data)}", "--nodes", "3"]
        if self.rng.random() < 0.7:
            words.append(f"--model={self._place('.gorelm')}")
        if self.rng.random() < 0.15:
            words.append(f"--report={self._place('.html')}")
        return words

    def _outliers(self):
        data = self._data()
        words = ["outliers", data, f"--targets={self._targets(data)}", "--nodes", "3"]
        if self.rng.random() < 0.8:
            words.append(f"--out={self._place(*TABLES)}")
        return words

    def _clean(self):
        data = self._data()
        out = data if self.rng.random() < 0.1 else self._place(*TABLES)
        words = ["clean", f"--targets={self._targets(data)}", "--nodes", "3", "--out", out]
        words += [
            "--rows",
            self._one(["drop", "keep"]),
            "--cells",
            self._one(["blank", "expected"]),
        ]
        if self.rng.random() < 0.5:
            words.append(f"--log={self._place('.csv')}")
        if self.rng.random() < 0.2:
            words.append(f"--undo={self._place('.csv')}")
        return [*words, "--", data]

    def _model(self):
        return self._one([*list(self.models)[:3] * 20, *self.models, *self.places])

    def _predict(self):
        model = self._model()
        data = self.models.get(model) or self._data()
        words = ["predict", "--out", self._place(*TABLES)]
        if self.rng.random() < 0.3:
            words.append(f"--keep={self._targets(data)}")
        return [*words, "--", model, data]

    def _inspect(self):
        return ["inspect", "--", self._model()]

    def _export(self):
        return ["export", "--onnx", self._place(".onnx"), "--", self._model()]

    def _contaminate(self):
        data = self._data()
        out = data if self.rng.random() < 0.1 else self._place(*TABLES)
        ratio = self._one(["0.2", "0.2", "0.5", "0.5", "0", "1", "-1", "nan", "x"])
        kind = self._one(["rows", "unit-cells", "swapped-rows", "drift", "stuck", "\x1b[31m"])
        return [
            "contaminate", f"--targets={self._targets(data)}", "--ratio", ratio, "--kind", kind,
            "--out", out, "--", data,
        ]  # fmt: skip

    def _datasets(self):
        return (
            self._one(["list", "fetch \x1b[31m", "fetch", "list --data-home data"])
            .join(["datasets ", ""])
            .split(" ")
        )

    def _experiment(self):
        out = self._one(
            ["results"] * 6 + ["old.csv", "fifo.csv", "read-only/r", "broken", "\x1b[31m"]
        )
        return ["experiment", "run", self._one(self.experiments), "--out", out, "--jobs", "1"]

    def _status(self):
        return [
            "experiment",
            "status",
            self._one(["results"] * 4 + ["broken", "data", "old.csv", "\x1b"]),
        ]

    def _report(self):
        folder = self._one(["results"] * 4 + ["broken", "data", "\x1b[31m"])
        out = self._one(["page"] * 4 + ["old.csv", "read-only/p", "fifo.csv"])
        return ["report", folder, "--out", out, "--title", self._one(NAMES)]

    def _nonsense(self):
        words = ["--\x1b[31m", "--debug", "--version", "--help", "fit", "--targets", *NAMES[:8]]
        return [self._one(words) for _ in range(self.rng.integers(1, 4))]

    # -- what must hold --------------------------------------------------------------------------

    def snapshot(self):
        """Return what every path is: its kind, the hash of its content, its permissions."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            mode = path.lstat().st_mode
            content = os.readlink(path) if stat.S_ISLNK(mode) else ""
            if stat.S_ISREG(mode):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            found[os.fsencode(path.relative_to(self.folder))] = (stat.S_IFMT(mode), content, mode)
        return found

    def faults_of(self, call):
        """Make a call, and return what is wrong with how it ended (nothing, one hopes)."""
        # Rows of what is written: those of every table here, or fewer if it is cleaned.
        self.lengths = range(15) if call.arguments[0] == "clean" else [14]
        before = self.snapshot()
        result = called(call, self.folder)
        self.last, after = result, self.snapshot()
        wrong = [*self._wrong_words(call, result), *self._wrong_files(call, result, before, after)]
        if result.left:
            wrong.append(f"processes left: {result.left}")
        if wrong:
            wrong.append(f"exit {result.code}; stderr: {result.stderr[-2000:]}")
        self._clear(after)
        return wrong

    def _wrong_words(self, call, result):
        text = result.stdout + result.stderr
        if "Traceback" in text and "--debug" not in call.arguments:
            yield "traceback"
        allowed = {0, 1, 2, 3, 4, *([-signal.SIGKILL] if call.fault == "killed" else [])}
        if result.code not in allowed:
            yield "wrong exit code"
        # A file of CSV on stdout is data; all else is for a terminal.
        shown = result.stderr if "-" in call.arguments else text
        if not all(c.isprintable() or c == "\n" for c in shown):
            yield f"raw control characters: {shown!r}"
        if "Warning" in result.stderr and result.code != -signal.SIGKILL:  # trackers clean up
            yield "warning of a library"
        if result.code == 1 and "--debug" not in call.arguments:
            lines = [n for n in result.stderr.splitlines() if not n.startswith(("note: ", "  "))]
            if len(lines) != 1 or not lines[0].startswith("gorelm: "):
                yield "not one line"

    def _wrong_files(self, call, result, before, after):
        done = result.code == 0
        killed = result.code == -signal.SIGKILL
        for name, (kind, content, mode) in before.items():
            if name.startswith(FOLDERS):
                continue  # a database keeps itself whole; tests/experiments has its own trial
            now = after.get(name)
            if now is None:
                yield f"lost: {name!r}"
            elif now[0] != kind or (stat.S_ISLNK(kind) and now[1] != content):
                yield f"replaced by something else: {name!r}"
            elif now[1] != content:
                if not (done or killed):
                    yield f"changed by a call that failed: {name!r}"
                if name.startswith((b"t0", b"sp", b"data", b"e.toml")):
                    yield f"an input changed: {name!r}"
                if now[2] != mode:
                    yield f"permissions changed: {name!r}"
                yield from self._half(name)
        for name in after.keys() - before.keys():
            if name.startswith(FOLDERS) or name == b"\x1b[31m":
                continue
            if name.endswith(b".part"):
                if not killed:
                    yield f"a temporary file is left: {name!r}"
            elif not (done or killed):
                yield f"written by a call that failed: {name!r}"
            elif stat.S_ISREG(after[name][0]):
                yield from self._half(name)

    def _half(self, name):
        """Yield what is wrong with a file that was written."""
        path = self.folder / os.fsdecode(name)
        content = path.read_bytes()
        try:
            if content.startswith(b"gorelm-model"):
                from gorelm.io import load

                load(path)
            elif content.startswith(b"<!doctype html") or content.startswith(b"<!DOCTYPE html"):
                assert content.rstrip().endswith(b"</html>"), "half a page"
            elif content.startswith(b'"line","row","id","column","old","new","why"'):
                pd.read_csv(path)
            elif content.startswith(b"PAR1"):
                assert len(pd.read_parquet(path)) in self.lengths
            elif content.startswith(b"\x08") and b"gorelm" in content[:20]:  # whatever its name is
                import onnx

                onnx.checker.check_model(onnx.load_from_string(content))
            else:
                text = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
                separator = max(",;\t", key=text.splitlines()[0].decode().count)
                assert len(pd.read_csv(io.BytesIO(text), sep=separator)) in self.lengths
        except Exception as error:
            yield f"not whole: {name!r}: {error!r}"

    def _clear(self, after):
        """Remove what is new, and put back what is old, for the next call."""
        for name in after:
            path = self.folder / os.fsdecode(name)
            if name.endswith(b".part") or name.startswith((b"new", b"not-there", b"caf\xe9.csv")):
                path.unlink(missing_ok=True)
