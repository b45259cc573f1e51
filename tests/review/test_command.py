"""`gorelm review` as a person starts and ends it."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

pytest.importorskip("click")
pytest.importorskip("pandas")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from click.testing import CliRunner

from gorelm.cli import main
from gorelm.review.store import Decisions
from support.processes import left_after, marked
from support.review_cases import people

MARK = "GORELM_REVIEW_TEST"


@contextlib.contextmanager
def reviewing(folder, *more):
    """Start the command; yields the process, the address of its page, and its mark."""
    value = uuid.uuid4().hex
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gorelm", "review", "people.csv", "--targets", "weight,waist"),
            *("--effort", "fast", "--nodes", "10", *more),
        ],
        cwd=folder,
        env={**os.environ, MARK: value},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:(\d+)(/\S+)", line):
                yield process, int(found[1]), found[2], value
                break
        else:
            pytest.fail(said)
    finally:
        if process.poll() is None:
            process.kill()
        process.stdout.close()
        process.wait()


def ask(port, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {} if body is None else {"origin": f"http://127.0.0.1:{port}"}
    method = "GET" if body is None else "POST"
    connection.request(method, path, body and json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return json.loads(text)


def ready(port, path):
    end = time.monotonic() + 60
    while not (state := ask(port, f"{path}api/state"))["fitted"]:
        assert state["fit"]["state"] == "fitting", state
        assert time.monotonic() < end
        time.sleep(0.1)
    return state


@pytest.fixture
def folder(tmp_path):
    people()[0].to_csv(tmp_path / "people.csv")
    return tmp_path


@pytest.mark.slow
def test_from_the_first_fit_to_the_next_review(folder):
    table = (folder / "people.csv").read_bytes()
    with reviewing(folder) as (process, port, path, mark):
        assert ready(port, path)["counts"]["flagged"] >= 8
        row = ask(port, f"{path}api/rows")["rows"][0]["row"]
        ask(port, f"{path}api/decide", {"row": row, "verdict": "wrong", "note": "ten times"})
        ask(port, f"{path}api/refit", {})
        process.send_signal(signal.SIGINT)  # while it fits
        said = process.stdout.read()
        assert process.wait(20) == 0, said
        assert "Ended. The decisions are in people.csv.review.sqlite." in said
        assert "Traceback" not in said
    assert not left_after(5, lambda: marked(MARK, mark))
    assert (folder / "people.csv").read_bytes() == table
    # Another run on the same table finds the decision; killed, it loses none.
    with reviewing(folder, "--seed", "3") as (process, port, path, mark):
        ready(port, path)
        known = ask(port, f"{path}api/row/{row}")["decision"]
        assert (known["verdict"], known["note"]) == ("wrong", "ten times")
        ask(port, f"{path}api/decide", {"row": row + 1, "verdict": "right"})
        process.kill()
    assert not left_after(5, lambda: marked(MARK, mark))
    with Decisions(folder / "people.csv.review.sqlite") as store:
        assert sorted(d.verdict for d in store.current().values()) == ["right", "wrong"]


@pytest.mark.slow
def test_a_thousand_decisions_and_five_kills(folder):
    """What the server has answered is there, wherever it is killed."""
    answered, notes = [], iter(range(10**6))
    for stop_at in (200, 400, 600, 800, 1000):
        with reviewing(folder) as (process, port, path, mark):
            timer = None
            while process.poll() is None:
                note = str(next(notes))
                decision = {"row": int(note) % 60, "verdict": "right", "note": note}
                try:
                    ask(port, f"{path}api/decide", decision)
                except (OSError, http.client.HTTPException):
                    break  # killed before it answered
                answered.append(note)
                if len(answered) >= stop_at and timer is None:
                    timer = threading.Timer(0.02, process.kill)  # in the midst of the next ones
                    timer.start()
            assert process.wait(10) == -signal.SIGKILL
        assert not left_after(5, lambda mark=mark: marked(MARK, mark))
    assert len(answered) >= 1000
    with Decisions(folder / "people.csv.review.sqlite") as store:
        histories = [store.history(row) for row in store.current()]
    saved = {decision.note for history in histories for decision in history}
    assert saved >= set(answered)


def call(*arguments):
    return CliRunner().invoke(main, ["review", *map(str, arguments)])


def test_what_cannot_be_reviewed_is_said_in_a_line(folder, monkeypatch):
    table = folder / "people.csv"
    options = ["--targets", "weight"]
    for wrong, words in (
        ([table, *options, "--decisions", table], "is the table itself"),
        ([table, *options, "--decisions", folder / "no" / "d.sqlite"], "no folder"),
        ([table, "--targets", "nothing"], "nothing"),
        ([folder / "none.csv", *options], "none.csv"),
    ):
        result = call(*wrong)
        assert result.exit_code == 1
        assert words in result.stderr
    taken = folder / "taken.sqlite"
    taken.write_text("not a database, but a text of some length")
    assert "does not hold decisions" in call(table, *options, "--decisions", taken).stderr
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert 'pip install "gorelm[review]"' in call(table, *options).stderr
    assert not (folder / "people.csv.review.sqlite").exists()  # nothing before there is a review
