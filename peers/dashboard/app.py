"""The web application: the routes, the access that each requires, and their answers.

/                      the pages, and /static/… their files
/api/v1/TOPIC          one answer of `topics.py`; `?at=` for a moment
/api/v1/session        exchanges a token for a cookie
/api/v1/control        takes a command of the organiser
/api/v1/passes         lists passes, makes one; /api/v1/passes/revoke revokes one
/api/v1/exports        a model for others, made by a separate process
/downloads/…           checkpoints and exports
/events                what changes
/metrics /openapi.json for programs
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from peers.dashboard import downloads
from peers.dashboard.access import Denied, Gate
from peers.dashboard.answers import Answers
from peers.dashboard.assets import INDEX, Assets
from peers.dashboard.body import Body, to_json, without_addresses
from peers.dashboard.control import Control
from peers.dashboard.exports import Exports
from peers.dashboard.guard import Guard
from peers.dashboard.joining import join_lines
from peers.dashboard.metrics import metrics_text
from peers.dashboard.passes import Passes
from peers.dashboard.query import Query
from peers.dashboard.reader import Reader
from peers.dashboard.stream import TOPICS, Hub
from peers.dashboard.tokens import Access
from peers.dashboard.topics import NAMES
from peers.run.home import Home

METRICS_KIND = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Parts:
    """The parts that the routes use. `home`: the first home. Its coordinator takes commands and keeps the archive."""

    home: Home
    reader: Reader
    answers: Answers
    hub: Hub
    gate: Gate
    assets: Assets
    control: Control
    passes: Passes
    exports: Exports
    hosts: Sequence[str]
    work: Callable[[], Any]
    """Called when the server starts: an async context manager. The logs are followed while it is open."""


def application(parts: Parts) -> ASGIApp:
    routes = _Routes(parts)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with parts.work():
            yield

    def get(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
        return Route(path, answer, methods=["GET"])

    app = Starlette(
        routes=[
            *(get(f"/api/v1/{name}", routes.topic(name)) for name in NAMES if name not in ("peer", "trace")),
            get("/api/v1/peers/{actor:path}", routes.peer),
            get("/api/v1/trace", routes.trace),
            get("/api/v1/join", routes.join),
            get("/api/v1/session", routes.session),
            Route("/api/v1/session", routes.open_session, methods=["POST"]),
            Route("/api/v1/session", routes.close_session, methods=["DELETE"]),
            Route("/api/v1/control", routes.command, methods=["POST"]),
            get("/api/v1/passes", routes.passes),
            Route("/api/v1/passes", routes.make_pass, methods=["POST"]),
            Route("/api/v1/passes/revoke", routes.revoke_pass, methods=["POST"]),
            get("/api/v1/exports", routes.exports),
            Route("/api/v1/exports", routes.export, methods=["POST"]),
            get("/downloads/checkpoints/{version:int}/{stage:int}", routes.checkpoint),
            get("/downloads/exports/{name}", routes.exported),
            get("/events", routes.events),
            get("/metrics", routes.metrics),
            get("/openapi.json", routes.openapi),
            get("/static/{path:path}", routes.asset),
            get("/favicon.ico", routes.icon),
            get("/", routes.page),
        ],
        exception_handlers={Denied: _denied, HTTPException: _status, 500: _broken},
        lifespan=lifespan,
    )
    return Guard(app, parts.hosts)


class _Routes:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._openapi: Body | None = None
        self._metrics = ("", b"")  # the position of the history, and the answer

    # ------------------------------------------------------------ answers

    def topic(self, name: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            access = self._parts.gate.require(request, Access.PUBLIC)
            body = await self._parts.answers.body(name, Query.of(request.query_params), access)
            return body.response(request)

        return answer

    async def peer(self, request: Request) -> Response:
        access = self._parts.gate.require(request, Access.PUBLIC)
        query = Query.of({**request.query_params, "actor": request.path_params["actor"]})
        return (await self._parts.answers.body("peer", query, access)).response(request)

    async def trace(self, request: Request) -> Response:
        access = self._parts.gate.require(request, Access.PUBLIC)
        body = await self._parts.answers.body("trace", Query.of(request.query_params), access)
        return body.response(request, {"content-disposition": 'attachment; filename="trace.json"'})

    async def events(self, request: Request) -> Response:
        gate = self._parts.gate
        access = gate.require(request, Access.PUBLIC)
        topics = request.query_params.get("topics", ",".join(TOPICS)).split(",")
        last = request.headers.get("last-event-id") or request.query_params.get("last_id", "")
        return self._parts.hub.response(request, topics, last, access, lambda: gate.keeps(request, access))

    async def metrics(self, request: Request) -> Response:
        self._parts.gate.require(request, Access.PUBLIC)
        position, text = self._metrics
        if position != self._parts.reader.position:
            position, now = self._parts.reader.position, Query()
            run, _ = await self._parts.answers.data("run", now)
            pipeline, _ = await self._parts.answers.data("pipeline", now)
            text = metrics_text(run, pipeline, self._parts.hub.streams)
            self._metrics = (position, text)
        return Response(text, media_type=METRICS_KIND)

    async def openapi(self, request: Request) -> Response:
        if self._openapi is None:
            from peers.dashboard.openapi import document  # imports pydantic, which costs memory

            self._openapi = Body.of(to_json(document()))
        return self._openapi.response(request)

    async def join(self, request: Request) -> Response:
        self._parts.gate.require(request, Access.ORGANISER)
        return JSONResponse(join_lines(self._parts.home))

    # ------------------------------------------------------------ joining

    async def session(self, request: Request) -> Response:
        gate = self._parts.gate
        facts = {"access": gate.access(request).word, "public": gate.opening.public and gate.opening.exposed}
        more = {"token_needed": not gate.opening.to_all, "observed": gate.opening.observed}
        return JSONResponse(facts | more, headers={"cache-control": "no-store"})

    async def open_session(self, request: Request) -> Response:
        self._parts.gate.require_own(request)
        given = await _object(request)
        response = JSONResponse({})
        access = self._parts.gate.exchange(request, _text(given, "token", 512), response)
        answer = JSONResponse({"access": access.word}, headers={"cache-control": "no-store"})
        answer.raw_headers += [header for header in response.raw_headers if header[0] == b"set-cookie"]
        return answer

    async def close_session(self, request: Request) -> Response:
        self._parts.gate.require_own(request)
        response = JSONResponse({"access": self._parts.gate.opening.to_all.word})
        response.delete_cookie(self._parts.gate.opening.cookie, httponly=True, samesite="strict")
        return response

    # ------------------------------------------------------------ the organiser's

    async def command(self, request: Request) -> Response:
        self._organiser_acts(request)
        given = await _object(request)
        text = await self._parts.control.give(
            _text(given, "command", 40), _text(given, "value", 400), _text(given, "why", 400)
        )
        return JSONResponse(text)

    async def passes(self, request: Request) -> Response:
        self._parts.gate.require(request, Access.ORGANISER)
        return JSONResponse(await self._parts.passes.listed(), headers={"cache-control": "no-store"})

    async def make_pass(self, request: Request) -> Response:
        self._organiser_acts(request)
        given = await _object(request)
        name, expires, role = (_text(given, key, 40) for key in ("name", "expires", "role"))
        made = await self._parts.passes.make(name, given.get("devices"), expires, role)
        return JSONResponse(made, headers={"cache-control": "no-store"})

    async def revoke_pass(self, request: Request) -> Response:
        self._organiser_acts(request)
        given = await _object(request)
        return JSONResponse(await self._parts.passes.revoke(_text(given, "serial", 64), _text(given, "why", 400)))

    async def exports(self, request: Request) -> Response:
        access = self._parts.gate.require(request, Access.PUBLIC)
        raw = to_json({"exports": self._parts.exports.listed()})  # the reason of a failed export can name a path
        return Body.of(without_addresses(raw) if access is Access.PUBLIC else raw).response(request)

    async def export(self, request: Request) -> Response:
        self._organiser_acts(request)
        version = (await _object(request)).get("version")
        if type(version) is not int:
            raise Denied(400, "version must be a whole number")
        return JSONResponse(self._parts.exports.order(version), 202)

    async def checkpoint(self, request: Request) -> Response:
        self._parts.gate.require(request, Access.ORGANISER)
        version, stage = request.path_params["version"], request.path_params["stage"]
        return downloads.checkpoint(self._parts.home.archive, version, stage)

    async def exported(self, request: Request) -> Response:
        self._parts.gate.require(request, Access.ORGANISER)
        name = request.path_params["name"]
        return downloads.folder(self._parts.exports.finished(name), name)

    def _organiser_acts(self, request: Request) -> None:
        self._parts.gate.require_own(request)
        self._parts.gate.require(request, Access.ORGANISER)

    # ------------------------------------------------------------ files

    async def page(self, request: Request) -> Response:
        return self._parts.assets.response(request, INDEX)

    async def asset(self, request: Request) -> Response:
        return self._parts.assets.response(request, request.path_params["path"])

    async def icon(self, request: Request) -> Response:
        return self._parts.assets.response(request, "icon.svg")


async def _object(request: Request) -> dict[str, Any]:
    try:
        given = json.loads(await request.body())
    except (ValueError, RecursionError, ClientDisconnect):
        given = None
    if not isinstance(given, dict):
        raise Denied(400, "the body is not a JSON object")
    return given


def _text(given: dict[str, Any], key: str, most: int) -> str:
    value = given.get(key, "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > most:
        raise Denied(400, f"{key} must be a text of at most {most} characters")
    return value


async def _denied(request: Request, error: Exception) -> Response:
    assert isinstance(error, Denied)
    headers = {"cache-control": "no-store"}
    content: dict[str, Any] = {"error": error.text}
    if error.retry_after_s is not None:
        content["retry_after_s"] = round(error.retry_after_s, 1)
        headers["retry-after"] = str(int(error.retry_after_s) + 1)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(content, error.status, headers)


async def _status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _broken(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the dashboard failed to answer: its output says why"}, 500)
