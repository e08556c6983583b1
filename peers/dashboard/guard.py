"""The guard handles every request before the routes: it refuses requests that the dashboard's pages do not send, and
adds security headers for browsers.

* Requests with a foreign Host: by DNS rebinding, a site can make its own name lead to this machine, and its pages
  could then read the dashboard. Numbers and localhost cannot be rebound; other names must be configured.
* Requests that another site makes a browser send (Sec-Fetch-Site), except following a link to a page.
* Bodies of more than 16 kB, which is longer than any valid body.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY = 16_384
_MOST_PATH = 2_048
_MOST_HEADERS = 16_384
_TOO_LONG = "the request is too long"

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)

_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """ASGI middleware. `hosts`: names of this server, in lower case."""

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts) | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-cache")
            await send(message)

        if (refusal := self._refusal(scope)) is not None:
            await JSONResponse({"error": refusal[1]}, refusal[0])(scope, receive, guarded_send)
            return
        left = MOST_BODY

        async def bounded_receive() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, _TOO_LONG)
            return message

        await self._app(scope, bounded_receive, guarded_send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        if not self._leads_here(headers.getlist("host")):
            return 421, "this is not the address of this dashboard: start it with --host NAME to use a name"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            # same-site: another port of this machine may belong to another program
            followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            if scope["method"] != "GET" or not followed:
                return 403, "this request comes from another site"
        if len(scope["raw_path"]) + len(scope["query_string"]) > _MOST_PATH:
            return 414, "the address is too long"
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _MOST_HEADERS:
            return 431, "the headers are too long"
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length[:12]) > MOST_BODY:
            return 413, _TOO_LONG
        return None

    def _leads_here(self, given: list[str]) -> bool:
        if len(given) != 1:
            return False
        host = given[0].lower()
        name = host.partition("]")[0][1:] if host.startswith("[") else host.rpartition(":")[0] or host
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True
