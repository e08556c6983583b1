"""What the viewer behind a request may do, and whether the viewer really sent the request.

A program sends its token with every request (`Authorization: Bearer …`). A browser has a cookie, and other sites can
make the browser send it. So a request that changes something needs a header that other sites cannot add, and the
dashboard's own Origin.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from peers.dashboard.tokens import SESSION_S, Access, Attempts, Sessions, Tokens

HEADER = "x-swarm-peer"
_LONGEST_TOKEN = 512


class Denied(Exception):
    """A request is refused. It is answered with the error `status`, and the seconds to wait if waiting helps."""

    def __init__(self, status: int, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Opening:
    """Who may use the dashboard."""

    exposed: bool
    """True if the dashboard is reachable from other machines. Then reading needs a token too, or is public."""
    public: bool
    """True if everyone may read, but without seeing addresses."""
    cookie: str
    """Name of the cookie. It differs between dashboards, because browsers send one machine's cookies to all its
    ports.
    """
    observed: bool = False
    """True if the dashboard has no organiser, so nobody can control the run from it."""

    @property
    def to_all(self) -> Access:
        """What a viewer without a token may do."""
        if self.exposed:
            return Access.PUBLIC if self.public else Access.NONE
        return Access.READ


class Gate:
    """Checks access. Every route calls it first."""

    def __init__(
        self,
        tokens: Callable[[], Tokens],
        opening: Opening,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens`: the tokens at present. `clock`: Unix time. `steady`: a clock that nobody sets, for the waits after
        wrong tokens.
        """
        self._tokens = tokens
        self._opening = opening
        self._clock = clock
        self._sessions = Sessions(tokens(), clock)
        self._attempts = Attempts(steady)

    @property
    def opening(self) -> Opening:
        return self._opening

    def access(self, request: Request) -> Access:
        """What the sender of a request may do. Raises Denied for a wrong token; an expired cookie is ignored."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._by_token(request, token.strip())
        return max(self._sessions_now().access(request.cookies.get(self._opening.cookie, "")), self._opening.to_all)

    def require(self, request: Request, least: Access) -> Access:
        """The viewer's access. Raises Denied if it is less than `least`."""
        access = self.access(request)
        if access >= least:
            return access
        if least is Access.ORGANISER:
            raise Denied(403 if access else 401, "this needs the organiser's token")
        raise Denied(401, "this dashboard needs a token to be read")

    def keeps(self, request: Request, access: Access) -> bool:
        """True if the sender of an earlier request still has the access that it had then."""
        try:
            return self.access(request) >= access
        except Denied:
            return False

    def require_own(self, request: Request) -> None:
        """Check that a request which changes something comes from the dashboard's own page or from a program. Raises
        Denied.
        """
        if request.headers.get(HEADER) != "1":
            raise Denied(403, "the header X-Swarm-Peer: 1 is missing")
        origin = request.headers.get("origin")
        if origin is None and request.headers.get("authorization") is not None:
            return  # a program; browsers add a cookie by themselves, but never this header
        if origin is None or origin.partition("://")[2] != request.headers.get("host"):
            raise Denied(403, "this request comes from another site")

    def exchange(self, request: Request, token: str, response: Response) -> Access:
        """Give the response a cookie for the token. Raises Denied."""
        access = self._by_token(request, token)
        response.set_cookie(
            self._opening.cookie,
            self._sessions_now().open(access),
            max_age=int(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return access

    def _sessions_now(self) -> Sessions:
        tokens = self._tokens()
        if tokens != self._sessions.tokens:
            self._sessions = Sessions(tokens, self._clock)
        return self._sessions

    def _by_token(self, request: Request, token: str) -> Access:
        access = self._sessions_now().tokens.access(token[:_LONGEST_TOKEN])
        if access is not Access.NONE:  # even after failed attempts: all users of one machine share an address
            return max(access, self._opening.to_all)
        client = request.client.host if request.client is not None else ""
        if wait := self._attempts.wait_s(client):
            raise Denied(429, "too many wrong tokens: wait a little", wait)
        self._attempts.failed(client)
        raise Denied(401, "this is not a token of this dashboard")
