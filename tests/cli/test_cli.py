"""The command line: what a user types, sees, and gets wrong."""

import subprocess
import sys

import numpy as np
import pytest

from gorelm.cli import main
from gorelm.experiments.store import Store
from support.commands import call

pytestmark = pytest.mark.usefixtures("data_home")


def commands(group, path=()):
    for name, command in group.commands.items():
        yield (*path, name)
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("path", [(), *commands(main)], ids=" ".join)
def test_every_command_has_help_with_examples(path):
    text = call(*path, "--help").output
    assert "Examples:" in text
    assert "gorelm " + " ".join(path) in text


def test_help_does_not_wait_for_heavy_imports():
    code = (
        "import sys, gorelm.cli\n"
        "heavy = {'numpy', 'scipy', 'sklearn', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_experiment_from_run_to_status(tmp_path):
    out = tmp_path / "results"
    arguments = ["run", "paper", "--out", out, "--jobs", 1, "--datasets", "slump"]
    arguments += ["--methods", "R-ELM,IR-ELM", "--ratios", "0,0.2", "--repeats", 2]
    text = call("experiment", *arguments).output
    assert "8 of 8 runs done, 0 failed, 0 to do" in text
    assert call("experiment", "status", out).output.strip() == text.strip()
    assert "8 of 8" in call("experiment", *arguments).output  # resumed, nothing to do
    refused = call("experiment", *arguments, "--fresh", code=1)
    assert "has records already" in refused.output
    with Store(out) as store:
        assert {record["method"] for record in store.records()} == {"R-ELM", "IR-ELM"}


def test_failed_runs_show_in_the_exit_code(tmp_path, data_home):
    (data_home / "slump.arff").write_text("@relation x\n@attribute a numeric\n@data\n1\n")
    arguments = ["run", "paper", "--out", tmp_path / "out", "--jobs", 1, "--datasets", "slump"]
    result = call("experiment", *arguments, "--methods", "R-ELM", "--repeats", 1, code=None)
    from gorelm.experiments.execute import _load

    _load.cache_clear()
    assert result.exit_code in (0, 3)  # 0 only where the table was still remembered
    result = call("experiment", *arguments, "--methods", "R-ELM", "--repeats", 2, code=3)
    assert "failed" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["experiment", "run", "papr", "--out", "x"], 1, "one of paper, robust"),
        (["experiment", "run", "paper"], 2, "--out"),
        (["experiment", "run", "paper", "--out", "x", "--ratios", "a"], 2, "list of numbers"),
        (
            ["experiment", "run", "paper", "--out", "x", "--datasets", "emb"],
            1,
            "did you mean 'enb'",
        ),
        (["experiment", "status", "nowhere"], 1, "no experiment in 'nowhere'"),
        (["report", "nowhere"], 1, "no experiment in 'nowhere'"),
        (["datasets", "fetch"], 2, "name the sets"),
        (["experimnt"], 2, "No such command"),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments, code=code)
    assert message in result.output
    assert "Traceback" not in result.output
    if code == 1:
        assert len(result.output.strip().splitlines()) == 1
        debugged = call("--debug", *arguments, code=None)
        assert debugged.exit_code == 1
        assert isinstance(debugged.exception, (ValueError, OSError))


def test_second_runner_has_an_exit_code_of_its_own(tmp_path):
    with Store(tmp_path / "out") as store, store.alone():
        arguments = ["run", "paper", "--out", tmp_path / "out", "--jobs", 1, "--quick"]
        assert "another runner" in call("experiment", *arguments, code=4).output


def test_contaminate_a_table(tmp_path):
    rng = np.random.default_rng(0)
    table = tmp_path / "table.csv"
    np.savetxt(table, rng.normal(size=(50, 4)), delimiter=",", header="a,b,y,z", comments="")
    out = tmp_path / "dirty.csv"
    text = call("contaminate", table, "--targets", "y,z", "--ratio", 0.2, "--out", out).output
    assert text.startswith("10 of 50 rows made wrong")
    before = np.genfromtxt(table, delimiter=",", names=True)
    after = np.genfromtxt(out, delimiter=",", names=True)
    assert after.dtype.names == ("a", "b", "y", "z", "planted")
    np.testing.assert_allclose(after["a"], before["a"])
    moved = ~np.isclose(after["y"], before["y"])
    np.testing.assert_array_equal(moved, after["planted"] == 1)
    same = call(
        "contaminate", table, "--targets", 2, "--ratio", 0.2, "--out", tmp_path / "again.csv"
    )
    assert same.exit_code == 0
    assert (tmp_path / "again.csv").read_bytes() == out.read_bytes()
    wrong = call("contaminate", table, "--targets", "yy", "--ratio", 0.2, "--out", out, code=1)
    assert "'y'" in wrong.output


def test_contaminate_says_what_its_rule_does_not_plant(tmp_path):
    table = tmp_path / "table.csv"
    rows = np.column_stack([np.arange(40), np.r_[np.zeros(35), 1:6], np.arange(40) ** 2])
    np.savetxt(table, rows, delimiter=",", header="a,flat,y", comments="")
    arguments = ["contaminate", table, "--targets", "flat,y", "--ratio", 0.2]
    out = tmp_path / "dirty.csv"
    said = call(*arguments, "--kind", "rows", "--out", out).output
    assert "note: kind 'rows' plants no outlier" in said
    assert "flat" in said
    said = call(*arguments, "--kind", "unit-cells", "--out", out).output
    assert "note" not in said
    assert "rows made wrong" in said


def test_list_of_data_sets():
    lines = call("datasets", "list").output.splitlines()
    assert len(lines) == 19
    here = {line.split()[0] for line in lines[1:] if line.endswith("here")}
    assert here == {"slump", "enb"}


def test_report_of_an_experiment(tmp_path):
    arguments = ["--datasets", "slump,enb", "--repeats", 2, "--jobs", 1]
    for name, methods in (("one", "R-ELM,OR-ELM"), ("two", "IR-ELM")):
        call(
            "experiment", "run", "paper", "--out", tmp_path / name, "--methods", methods, *arguments
        )
    page = call("report", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "page").output
    text = (tmp_path / "page" / page.strip().split("/")[-1]).read_text(encoding="utf-8")
    assert all(name in text for name in ("R-ELM", "OR-ELM", "IR-ELM", "slump", "enb"))
    lines = (tmp_path / "page" / "records.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 2 * 3 * 3 * 2  # sets, ratios, methods, repeats
    assert lines[0].startswith("dataset,ratio,method,repeat,config,status")
