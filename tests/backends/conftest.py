"""Dask clusters on this machine, shared by the tests of all modules."""

from collections.abc import Iterator
from typing import Any

import pytest

LOCAL = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}


def _client(processes: bool) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="dask is not installed")
    with (
        distributed.LocalCluster(**LOCAL, processes=processes) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def client_of_processes() -> Iterator[Any]:
    """Two workers that are processes, restarted when they die."""
    yield from _client(processes=True)


@pytest.fixture(scope="session")
def client_of_threads() -> Iterator[Any]:
    """Two workers in this process."""
    yield from _client(processes=False)


@pytest.fixture
def current_client(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make two worker processes the current cluster, for tests named "dask"."""
    if "dask" in request.node.name:
        with request.getfixturevalue("client_of_processes").as_current():
            yield
    else:
        yield
