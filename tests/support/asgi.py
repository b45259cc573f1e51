"""Requests to an ASGI application, made in this process without a server."""

import asyncio
import json
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

__all__ = ["Answer", "Client"]


@dataclass
class Answer:
    """What came back."""

    status_code: int
    headers: dict
    content: bytes

    @property
    def text(self):
        return self.content.decode()

    def json(self):
        return json.loads(self.content)


class Client:
    """Asks an application; `host` is what a browser would send."""

    def __init__(self, app, host):
        self.app, self.host = app, host

    def get(self, url, headers=None):
        return self._ask("GET", url, b"", headers or {})

    def post(self, url, content=b"", headers=None):
        return self._ask("POST", url, content, headers or {})

    def _ask(self, method, url, content, headers):
        address = urlsplit(url)
        sent = {"host": self.host, "content-length": str(len(content)), **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(address.path),
            "raw_path": address.path.encode(),
            "root_path": "",
            "query_string": address.query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        return asyncio.run(self._answer(scope, content))

    async def _answer(self, scope, content):
        parts = [content[k : k + 10_000] for k in range(0, len(content), 10_000)] or [b""]
        got = []

        async def receive():
            body = parts.pop(0) if parts else b""
            return {"type": "http.request", "body": body, "more_body": bool(parts)}

        async def send(message):
            got.append(message)

        await self.app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in got[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in got[1:])
        return Answer(got[0]["status"], headers, body)
