"""Who may ask the server, and what it answers."""

import io
import json
import socket

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("starlette")

from gorelm.review.server import LONGEST_BODY, listening_socket, make_app, new_token  # noqa: E402
from support.asgi import Client  # noqa: E402
from support.review_cases import EVIL, people, session_of  # noqa: E402

TOKEN, PORT = new_token(), 8123
HERE = f"http://127.0.0.1:{PORT}"
PATHS = [
    "", "page.js", "page.css", "api/state", "api/rows", "api/row/0", "api/points",
    "api/decisions", "export/clean", "export/changes", "export/decisions",
]  # fmt: skip
ORIGIN = {"origin": HERE}


@pytest.fixture
def case(tmp_path):
    frame, wrong = people()
    session = session_of(tmp_path / "d.sqlite", frame)
    client = Client(make_app(session, token=TOKEN, port=PORT), f"127.0.0.1:{PORT}")
    yield client, session, wrong
    session.close()


def url(path, token=TOKEN):
    return f"/{token}/{path}"


def test_tokens_are_long_and_random():
    assert len({new_token() for _ in range(100)}) == 100
    assert min(len(new_token()) for _ in range(100)) >= 43  # 256 bits


@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_guarded(case, path):
    client = case[0]
    answer = client.get(url(path))
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in answer.headers
    for refused in (
        client.get(f"/{path}"),
        client.get(url(path, "x")),
        client.get(url(path, TOKEN[:-1])),
        client.get(url(path, TOKEN + "x")),
        client.get(url(path, "")),
        client.get(url(path), headers={"host": f"evil.example:{PORT}"}),
        client.get(url(path), headers={"host": "127.0.0.1:1"}),
        client.get(url(path), headers={"host": "127.0.0.1"}),
        client.get(url(path), headers={"origin": "http://evil.example"}),
        client.get(url(path), headers={"origin": "null"}),
        client.get(url(path), headers={"origin": f"https://127.0.0.1:{PORT}"}),
    ):
        assert refused.status_code == 403
        assert refused.text.startswith("Refused: ")
        assert TOKEN not in refused.text
        assert "default-src 'none'" in refused.headers["content-security-policy"]
    assert client.get(url(path), headers={"host": f"localhost:{PORT}"}).status_code == 200
    from_elsewhere = client.get(url(path), headers={"sec-fetch-site": "cross-site"})
    assert from_elsewhere.status_code == (403 if path else 200)  # the page may be linked to


@pytest.mark.parametrize("path", ["api/decide", "api/refit"])
def test_only_the_page_itself_may_change_something(case, path):
    client, session, _ = case
    body = b'{"row": 0, "verdict": "wrong"}'
    for headers in (
        {},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {**ORIGIN, "host": f"evil.example:{PORT}"},
        {**ORIGIN, "sec-fetch-site": "same-site"},
    ):
        assert client.post(url(path), content=body, headers=headers).status_code == 403
    assert client.post(url(path, "x"), content=body, headers=ORIGIN).status_code == 403
    assert client.get(url(path)).status_code == 405
    assert session.decisions.current() == {}
    assert client.post(url(path), content=body, headers=ORIGIN).status_code == 200
    session.wait()


def test_a_decision_is_saved_before_it_is_answered(case):
    client, session, wrong = case
    row = int(wrong[0])
    sent = {"row": row, "verdict": "cells", "cells": ["weight"], "note": EVIL, "seen": 0}
    answer = client.post(url("api/decide"), json.dumps(sent).encode(), ORIGIN).json()
    saved = session.decisions.current()[session.rows[row]]
    assert (saved.verdict, saved.cells, saved.note) == ("cells", ("weight",), EVIL)
    assert answer["decision"]["version"] == saved.version == 1
    assert answer["replaced"] is None
    late = json.dumps({"row": row, "verdict": "right", "seen": 0}).encode()
    stale = client.post(url("api/decide"), late, ORIGIN).json()
    assert stale["replaced"]["verdict"] == "cells"
    known = client.get(url(f"api/decisions?rows={row},5,x,-3,999")).json()["decisions"]
    assert list(known) == [str(row)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"{}", 400),
        (b'{"row": 0}', 400),
        (b'{"row": "0", "verdict": "right"}', 400),
        (b'{"row": true, "verdict": "right"}', 400),
        (b'{"row": 0, "verdict": "maybe"}', 400),
        (b'{"row": 0, "verdict": "cells", "cells": ["nothing"]}', 400),
        (b'{"row": 0, "verdict": "cells", "cells": [1]}', 400),
        (b'{"row": 0, "verdict": "right", "more": 1}', 400),
        (b'{"row": 10000, "verdict": "right"}', 404),
        (b'{"row": -1, "verdict": "right"}', 404),
        (json.dumps({"row": 0, "note": "x" * 20_000}).encode(), 400),
        (b" " * (LONGEST_BODY + 1), 413),
    ],
)
def test_requests_that_make_no_sense(case, body, status):
    client, session, _ = case
    answer = client.post(url("api/decide"), content=body, headers=ORIGIN)
    assert answer.status_code == status
    assert answer.json()["error"]
    assert session.decisions.current() == {}


def test_rows_are_json_whatever_the_cells_hold(case):
    client, _, wrong = case
    detail = client.get(url(f"api/row/{wrong[0]}"))
    assert detail.headers["content-type"] == "application/json"
    assert EVIL in detail.json()["inputs"]
    assert client.get(url("api/row/999")).status_code == 404
    assert client.get(url("api/row/-1")).status_code == 404
    assert client.get(url("api/rows?show=nothing")).status_code == 400
    page = client.get(url("api/rows?show=all&count=5&after=3&find=")).json()
    assert [row["place"] for row in page["rows"]] == [4, 5, 6, 7, 8]
    assert client.get(url("api/rows?count=x&after=y")).status_code == 200
    assert client.get(url("../../etc/passwd")).status_code in (403, 404)
    assert client.get(url("store.py")).status_code == 404


def test_files_to_download(case):
    client, session, wrong = case
    session.decide(int(wrong[0]), "wrong", note="no")
    answer = client.get(url("export/clean"))
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''people.clean.csv"
    assert len(pd.read_csv(io.StringIO(answer.text))) == len(session.rows) - 1
    strict = client.get(url("export/clean?flagged=drop"))
    assert len(pd.read_csv(io.StringIO(strict.text))) == len(session.rows) - len(wrong)
    made = pd.read_csv(io.StringIO(client.get(url("export/decisions")).text))
    assert made["verdict"].tolist() == ["wrong"]
    log = client.get(url("export/changes"))
    assert "people.changes.csv" in log.headers["content-disposition"]
    assert "reviewed: no" in log.text
    session.table.path.write_text("another table")
    refused = client.get(url("export/clean"))
    assert refused.status_code == 400
    assert "has changed since the review began" in refused.json()["error"]


def test_the_page_loads_nothing_from_elsewhere(case):
    client = case[0]
    texts = [client.get(url(path)).text for path in ("", "page.js", "page.css")]
    for text in texts:
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text
        assert "innerHTML" not in text  # text from the table never becomes HTML
        assert "insertAdjacentHTML" not in text
        assert "eval(" not in text
    assert "style=" not in texts[0]  # the policy would refuse it
    assert "<script>" not in texts[0]


def test_the_socket_is_local_and_says_if_the_port_is_taken():
    with listening_socket(0) as opened:
        assert opened.getsockname()[0] == "127.0.0.1"
        port = opened.getsockname()[1]
        with (
            pytest.raises(OSError, match=f"port {port} of 127.0.0.1 cannot be used"),
            listening_socket(port),
        ):
            pass
    with socket.socket() as free, pytest.raises(OSError):  # noqa: PT011
        free.connect(("127.0.0.1", port))
