"""A thousand hostile calls of the command line, seeded: what was asked for, how each ended.

Names that clear the screen, tables that are none, models cut in half, results that would go over
their own input, a link, a pipe, a device or a folder; a disk that fills up, kill -9, a user who may
not write. After every call: no traceback, an exit code that is documented, one line for an error,
no control character on the terminal, no file lost, changed or half-written, no temporary file but
of a killed process, no process left after five seconds. The calls are those of
`tests/support/hostile.py`: forks of this process, and one in twenty a process of its own.

    pip install "gorelm[dev]"
    python benchmarks/hostile.py [--calls 1000] [--seed 0]
"""

from __future__ import annotations

import os

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import argparse  # noqa: E402 (threads are pinned before NumPy loads)
import shutil  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from pathlib import Path  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.hostile import COMMANDS, Hostile  # noqa: E402

FRESH = 20  # one in so many calls is a process of its own, and every second of these is killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="gorelm-hostile-"))
    folder.chmod(0o755)
    os.environ["GORELM_DATA"] = "data"
    counts: Counter[str] = Counter()
    start, n_wrong = time.perf_counter(), 0
    try:
        hostile = Hostile(folder, options.seed)
        for number in range(options.calls):
            fresh = number % FRESH == 0
            call = hostile.killed_with_workers() if number % (2 * FRESH) == 0 else hostile.call()
            call.fresh = fresh and call.fault != "user"  # who may not even start Python
            wrong = hostile.faults_of(call)
            counts[f"exit {hostile.last.code}"] += 1
            counts[f"fault {call.fault}"] += 1
            counts[call.arguments[0] if call.arguments[0] in COMMANDS else "nonsense"] += 1
            counts["own process"] += call.fresh
            if wrong:
                n_wrong += 1
                print(f"{number}: {call}\n  " + "\n  ".join(wrong))
                sys.stdout.flush()
    finally:
        (folder / "f" / "read-only").chmod(0o755)
        shutil.rmtree(folder)
    for name, count in sorted(counts.items()):
        print(f"{count:5} {name}")
    print(
        f"{options.calls} calls, seed {options.seed}, {time.perf_counter() - start:.0f} s: "
        f"{n_wrong} ended wrongly."
    )
    sys.exit(1 if n_wrong else 0)


if __name__ == "__main__":
    main()
