"""The command line among hostile names, paths and faults: nothing lost, nothing left behind."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from support.hostile import COMMANDS, FAULTS, Hostile, may_run_as_another

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links, pipes and limits of POSIX")


@pytest.fixture(scope="module")
def hostile():
    # not below tmp_path: an ordinary user could not enter that
    folder = Path(tempfile.mkdtemp(prefix="gorelm-hostile-"))
    folder.chmod(0o755)
    os.environ["GORELM_DATA"], before = "data", os.environ.get("GORELM_DATA")
    try:
        yield Hostile(folder)
    finally:
        if before is None:
            del os.environ["GORELM_DATA"]
        else:
            os.environ["GORELM_DATA"] = before
        (folder / "f" / "read-only").chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.crossed
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_under_every_fault(hostile, command, fault):
    if fault == "user" and not may_run_as_another():
        pytest.skip("needs root, and code that every user can read")
    hostile.draw_for(f"{command} {fault}")
    for _ in range(1 if fault == "killed" else 2):  # of which each starts a Python
        call = hostile.call(command, fault)
        assert not hostile.faults_of(call), str(call)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_many_hostile_calls(hostile, command):
    hostile.draw_for(f"many {command}")
    for number in range(40):
        call = hostile.call(command)
        call.fresh = number % 10 == 0 and call.fault != "user"  # who may not even start Python
        assert not hostile.faults_of(call), str(call)
