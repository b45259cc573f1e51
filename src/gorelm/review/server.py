"""The server of a review: on 127.0.0.1 only, for requests with the token of its address.

Refused are requests without the token, for another host (a name that an attacker points to
127.0.0.1) and from pages of another origin. Pages load and send nothing elsewhere, which the
browser enforces (Content-Security-Policy).
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from typing import TYPE_CHECKING, Any

from gorelm._extras import needs
from gorelm.review.session import MOST_ROWS, File, Json, Session

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
LONGEST_BODY = 100_000  # bytes
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_PAGE = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}


def new_token() -> str:
    """Return 32 random bytes as they can stand in an address."""
    return secrets.token_urlsafe(32)


class Guard:
    """Lets requests for the right host, from the right origin and with the token through."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token = app, token
        self._hosts = {f"{name}:{port}".encode() for name in (HOST, "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse to."""
        if scope["type"] != "http":
            return  # no web sockets
        if reason := self._reason_to_refuse(scope):
            from starlette.responses import PlainTextResponse

            refusal = PlainTextResponse(f"Refused: {reason}.\n", 403, HEADERS)
            await refusal(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _reason_to_refuse(self, scope: Scope) -> str | None:
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
        hosts, origins = headers.get(b"host", []), headers.get(b"origin", [])
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return "this server answers on 127.0.0.1 only"
        if origins and origins != [b"http://" + hosts[0]]:
            return "the request comes from another page"
        if scope["method"] != "GET" and not origins:
            return "the request does not say which page it comes from"
        given, _, rest = str(scope["path"]).removeprefix("/").partition("/")
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return "use the whole address that `gorelm review` printed"
        # The page itself may be opened by a link in another one.
        site = headers.get(b"sec-fetch-site", [b"none"])
        if rest and not set(site) <= {b"same-origin", b"none"}:
            return "the request comes from another page"
        return None


def make_app(session: Session, *, token: str, port: int) -> ASGIApp:
    """Return the application; its paths begin with the token."""
    with needs("gorelm review needs starlette and uvicorn", "review"):
        from starlette.applications import Starlette
        from starlette.routing import Mount, Route
    api = _Api(session)
    routes = [
        *(Route(f"/{path}", _file(*content)) for path, content in _PAGE.items()),
        Route("/api/state", api.state),
        Route("/api/rows", api.rows),
        Route("/api/row/{row:int}", api.row),
        Route("/api/decisions", api.about),
        Route("/api/points", api.points),
        Route("/api/decide", api.decide, methods=["POST"]),
        Route("/api/refit", api.refit, methods=["POST"]),
        Route("/export/clean", api.clean),
        Route("/export/changes", api.changes),
        Route("/export/decisions", api.decisions),
    ]
    app: Starlette = Starlette(routes=[Mount(f"/{token}", routes=routes)])
    return Guard(app, token=token, port=port)


class _Api:
    """The answers; those that are not `async` are given by threads."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def state(self, request: Request) -> Response:
        return _json(self._session.state())

    def rows(self, request: Request) -> Response:
        asked = request.query_params
        return _answer(lambda: self._session.page(
            asked.get("show", "todo"),
            after=_number(asked.get("after")),
            before=_number(asked.get("before")),
            count=_number(asked.get("count")) or 50,
            find=asked.get("find", ""),
        ))  # fmt: skip

    def row(self, request: Request) -> Response:
        return _answer(lambda: self._session.detail(request.path_params["row"]))

    def about(self, request: Request) -> Response:
        numbers = map(_number, request.query_params.get("rows", "").split(",")[:MOST_ROWS])
        return _json(self._session.decisions_about([n for n in numbers if n is not None]))

    def points(self, request: Request) -> Response:
        return _json(self._session.points())

    async def decide(self, request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > LONGEST_BODY:
                return _json({"error": "the request is too long"}, 413)
        return await run_in_threadpool(_answer, lambda: self._session.decide(**_decision(body)))

    def refit(self, request: Request) -> Response:
        return _json({"started": self._session.refit()})

    def clean(self, request: Request) -> Response:
        return self._cleaned(request, 0)

    def changes(self, request: Request) -> Response:
        return self._cleaned(request, 1)

    def _cleaned(self, request: Request, which: int) -> Response:
        drop = request.query_params.get("flagged") == "drop"
        return _answer(lambda: _download(self._session.cleaned(drop_flagged=drop)[which]))

    def decisions(self, request: Request) -> Response:
        return _download(self._session.decided())


def _decision(body: bytes | bytearray) -> Json:
    """Return the arguments of `Session.decide` in a request."""
    try:
        given = json.loads(bytes(body))
    except ValueError as error:
        raise ValueError("the request is not JSON") from error
    kinds: dict[str, Any] = {"row": int, "verdict": str, "cells": list, "note": str, "seen": int}
    if not isinstance(given, dict) or "row" not in given or given.keys() - kinds.keys():
        raise ValueError(f"a decision has row, and some of {', '.join(list(kinds)[1:])}")
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ValueError(f"{name} is no {kinds[name].__name__}")
    if not all(isinstance(name, str) for name in given.get("cells", [])):
        raise ValueError("cells are names of targets")
    return given


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    return int(text) if text.isascii() and text.removeprefix("-").isdecimal() else None


def _json(content: Json, status: int = 200) -> Response:
    from starlette.responses import Response

    # Text of cells may hold half a character, which UTF-8 has not: escaped.
    text = json.dumps(content, allow_nan=False)
    return Response(text, status, media_type="application/json")


def _answer(work: Callable[[], Json | Response]) -> Response:
    try:
        answer = work()
        return _json(answer) if isinstance(answer, dict) else answer
    except LookupError as error:
        return _json({"error": str(error.args[0])}, 404)
    except ValueError as error:
        return _json({"error": str(error)}, 400)


def _download(file: File) -> Response:
    from urllib.parse import quote

    from starlette.responses import Response

    safe = quote(file.name.encode("utf-8", "backslashreplace"))
    return Response(
        file.content,
        media_type="application/octet-stream",  # of the encoding of the table, and not to be shown
        headers={"content-disposition": f"attachment; filename*=UTF-8''{safe}"},
    )


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = resources.files("gorelm.review").joinpath(name).read_bytes()

    async def answer(request: Request) -> Response:
        from starlette.responses import Response

        return Response(content, media_type=kind)

    return answer


@contextmanager
def listening_socket(port: int) -> Iterator[socket.socket]:
    """Open a socket on 127.0.0.1; port 0 takes a free one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((HOST, port))
        except OSError as error:
            raise OSError(f"port {port} of {HOST} cannot be used: {error.strerror}") from error
        opened.listen(64)
        yield opened


def serve(session: Session, *, port: int, told: Callable[[str], object]) -> None:
    """Fit and serve until Ctrl-C; `told` gets the address of the page once it can be opened."""
    with needs("gorelm review needs starlette and uvicorn", "review"):
        import uvicorn
    with listening_socket(port) as opened:
        token, port = new_token(), opened.getsockname()[1]
        config = uvicorn.Config(
            make_app(session, token=token, port=port),
            access_log=False,  # it would write the token down
            log_level=logging.WARNING,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=2,
            ws="none",
        )
        session.refit()
        told(f"http://{HOST}:{port}/{token}/")
        with suppress(KeyboardInterrupt):  # how it is meant to end
            uvicorn.Server(config).run(sockets=[opened])
