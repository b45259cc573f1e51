"""Workers end with their parent, however that ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid

import pytest

from support.processes import left_after, marked

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
MARK = "GORELM_TEST_WORKERS"

SEARCH = """
    import numpy as np
    from gorelm import ORELMRegressorCV
    X = np.random.default_rng(0).normal(size=(3000, 40))
    print("ready", flush=True)
    ORELMRegressorCV(n_hidden=[300, 400, 500], n_jobs=2, random_state=0).fit(X, X[:, :3] ** 2)
"""
EXPERIMENT = """
    from gorelm.experiments.runner import _outcomes
    import time
    print("ready", flush=True)
    list(_outcomes([(time.sleep, (60,), k) for k in range(9)], 2))
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [SEARCH, EXPERIMENT], ids=["search", "experiment"])
@pytest.mark.parametrize("seconds", [0.2, 3.0])
def test_no_worker_outlives_a_killed_parent(code, seconds):
    value = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", "if __name__ == '__main__':\n" + code],
        env={**os.environ, MARK: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"ready\n"
    find = lambda: set(marked(MARK, value)) - {process.pid}  # noqa: E731
    end = time.monotonic() + 60
    while len(find()) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    assert find(), "no worker was started"
    time.sleep(seconds)
    process.kill()
    process.wait()
    process.stdout.close()
    left = left_after(5, find)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.mark.slow
@pytest.mark.parametrize("option", ["-n0", "-n1"])
def test_a_run_that_leaves_a_process_behind_fails(tmp_path, option):
    """What tests/conftest.py checks at the end of a run, tried on a test that does so."""
    tests = os.path.dirname(__file__)
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {tests!r})\nfrom conftest_of_the_suite import *\n"
    )
    with open(os.path.join(tests, "conftest.py")) as file:
        (tmp_path / "conftest_of_the_suite.py").write_text(file.read())
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
        import subprocess

        def test_it():
            subprocess.run(["sh", "-c", "sleep 20 > /dev/null 2>&1 & exit"], check=True)
    """)
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", option, str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.endswith(": sleep 20")]
    os.kill(int(line.split(":")[0]), signal.SIGKILL)
