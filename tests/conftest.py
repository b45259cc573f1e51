"""Shared fixtures; the real data sets are found through GORELM_DATA only."""

import gc
import os
import sys
import uuid
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from gorelm.datasets import load_mulan
from support.processes import children_of, left_after, marked

# `make test` draws the same few examples every time, so that it fails for nobody by chance;
# `make test-slow` and `make test-all` draw more, and new ones unless CI must be reproducible.
settings.register_profile("default", deadline=None, max_examples=10, derandomize=True)
settings.register_profile(
    "thorough", deadline=None, max_examples=25, derandomize=os.environ.get("CI") == "true"
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# In the environment of every process that the tests start.
MARK = "GORELM_TEST_SESSION"


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items):
    """Mark as slow what `crossed` and `slow_unless` say, as `data` what asks for real data sets."""
    first = {}  # test function -> parameter -> its first value
    for item in items:
        for unless in item.iter_markers("slow_unless"):
            for name, quick in unless.kwargs.items():
                known = quick if isinstance(quick, list) else [quick]
                if repr(item.callspec.params[name]) not in map(repr, known):
                    item.add_marker("slow")
        if crossed := item.get_closest_marker("crossed"):
            params = item.callspec.params
            names = crossed.args or tuple(params)
            base = first.setdefault(item.nodeid.split("[")[0], params)
            if sum(repr(params[name]) != repr(base[name]) for name in names) > 1:
                item.add_marker("slow")
        if "load_real" in getattr(item, "fixturenames", ()):
            item.add_marker("data")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Leave all modules and tests out of the garbage collections, which else take seconds each."""
    gc.freeze()
    gc.enable()


Data = tuple[NDArray[np.float64], NDArray[np.float64]]


def pytest_configure(config):
    gc.disable()  # until the tests are collected: what is imported and collected stays
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist inherit it
        os.environ[MARK] = uuid.uuid4().hex


@pytest.hookimpl(trylast=True)  # after pytest-xdist has ended its workers
def pytest_sessionfinish(session):
    """Fail the run if processes that it started are still there, and name them."""
    if hasattr(session.config, "workerinput"):
        return
    if "joblib" in sys.modules:  # idle workers are kept until this process ends: end them now
        from joblib.externals.loky import reusable_executor

        if reusable_executor._executor is not None:
            reusable_executor._executor.shutdown(wait=True, kill_workers=True)
    left = left_after(5, _started)
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.section("processes left behind", red=True)
        for pid, command in left.items():
            reporter.write_line(f"{pid}: {command}")


def _started():
    """Return processes of this run, but for the trackers that end when this process does."""
    own = children_of(os.getpid())
    found = {**marked(MARK, os.environ[MARK]), **own}
    return {
        pid: command
        for pid, command in found.items()
        if not (pid in own and "resource_tracker" in command)
    }


@pytest.fixture
def few_layers(monkeypatch):
    """Searches of two layers and a screen of one, for tests of what happens around a fit."""
    from gorelm.estimators._robust import screen, search

    monkeypatch.setattr(search, "SEARCH_LAYERS", search.SEARCH_LAYERS[:2])
    monkeypatch.setattr(screen, "SCREEN_LAYERS", screen.SCREEN_LAYERS[:1])


@cache
def _load_once(name: str) -> Data:
    bunch = load_mulan(name, download_if_missing=False)  # tests never go to the network
    for array in (bunch.data, bunch.target):
        array.setflags(write=False)  # shared between tests: a test that writes fails, itself
    return bunch.data, bunch.target


@pytest.fixture(scope="session")
def load_real() -> Callable[[str], Data]:
    """Name of a Mulan set -> (X, T), read once; skips the test if the set is not there."""

    def load(name: str) -> Data:
        if not os.environ.get("GORELM_DATA"):
            pytest.skip("GORELM_DATA is not set")
        try:
            return _load_once(name)
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return load


@pytest.fixture
def data_home(tmp_path, monkeypatch):
    """Small tables under the names of known data sets."""
    home = tmp_path / "data"
    home.mkdir()
    for name, n_features, n_targets in (("slump", 7, 3), ("enb", 8, 2)):
        rng = np.random.RandomState(n_features)
        X = rng.uniform(size=(60, n_features))
        T = np.sin(X @ rng.normal(size=(n_features, n_targets)))
        columns = [f"@attribute c{j} numeric" for j in range(n_features + n_targets)]
        rows = [",".join(f"{value:.6f}" for value in row) for row in np.hstack([X, T])]
        text = "\n".join([f"@relation {name}", *columns, "@data", *rows])
        (home / f"{name}.arff").write_text(text)
    monkeypatch.setenv("GORELM_DATA", str(home))
    return home
