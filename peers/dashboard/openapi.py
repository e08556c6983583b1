"""Makes the OpenAPI document from the models of schema.py."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from peers.dashboard import schema

_REF = "#/components/schemas/{model}"
_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "number"}
_WHOLE: dict[str, Any] = {"type": "integer", "minimum": 0}
_PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "at": (_NUMBER, "Unix seconds: the answer describes the run at this time. Default: now"),
    "offset": (_WHOLE, "Number of entries to leave out at the beginning"),
    "limit": ({**_WHOLE, "maximum": 200}, "Entries at most"),
    "first": (_NUMBER, "A step, or unix seconds for series and marks"),
    "last": (_NUMBER, "As `first`; it is included"),
    "points": (_WHOLE, "Number of buckets. The answer has the least, greatest and last value of each"),
    "name": (_TEXT, "Of the series"),
    "sort": (_TEXT, "The column by which the list is sorted. With `-` before it, the order is reversed"),
    "q": (_TEXT, "Text that occurs in a peer's id or the description of its machine"),
    "actor": (_TEXT, "Only lines about this actor"),
    "kind": (_TEXT, "Kinds of events, separated by commas"),
    "before": (_NUMBER, "Only lines before this time, in unix seconds"),
    "topics": (_TEXT, "Topics, separated by commas"),
}
_PAGED = ("at", "offset", "limit")


@dataclass(frozen=True)
class Operation:
    path: str
    answer: type[BaseModel] | None
    text: str
    parameters: tuple[str, ...] = ()
    method: str = "get"
    body: type[BaseModel] | None = None
    kind: str = "application/json"
    organiser: bool = False


OPERATIONS = (
    Operation("/api/v1/run", schema.Run, "The run: state, progress, speed, cost", ("at",)),
    Operation("/api/v1/pipeline", schema.Pipeline, "Stages and the peers that serve them", _PAGED),
    Operation("/api/v1/peers", schema.Peers, "All peers, present and former", (*_PAGED, "sort", "q")),
    Operation("/api/v1/peers/{actor}", schema.PeerPage, "One peer, by actor or peer id", ("at",)),
    Operation(
        "/api/v1/timeline", schema.Timeline, "What each peer did in at most 16 steps", (*_PAGED, "first", "last")
    ),
    Operation("/api/v1/trace", None, "The same as Chrome trace JSON, for Perfetto", (*_PAGED, "first", "last")),
    Operation("/api/v1/links", schema.Links, "Pairs of peers", _PAGED),
    Operation("/api/v1/faults", schema.Faults, "Faults and their cost, newest first", _PAGED),
    Operation("/api/v1/people", schema.People, "What each gave", _PAGED),
    Operation("/api/v1/checkpoints", schema.Checkpoints, "Checkpoints and exports", ("at",)),
    Operation("/api/v1/samples", schema.Samples, "The model's text at each evaluation", ("at",)),
    Operation("/api/v1/series", schema.Series, "A figure over time", ("name", "first", "last", "points")),
    Operation("/api/v1/marks", schema.Marks, "Marks of the time bar", ("first", "last")),
    Operation("/api/v1/log", schema.Log, "Lines of the event log, newest first", ("actor", "kind", "before", "limit")),
    Operation("/api/v1/session", schema.Session, "What this viewer may do"),
    Operation("/api/v1/session", schema.Session, "Exchange a token for a cookie", method="post", body=schema.Token),
    Operation("/api/v1/join", schema.Join, "The command with which peers join", organiser=True),
    Operation(
        "/api/v1/control",
        schema.Done,
        "A command to the coordinator",
        method="post",
        body=schema.Command,
        organiser=True,
    ),
    Operation("/api/v1/passes", schema.PassList, "Passes of the run", organiser=True),
    Operation("/api/v1/passes", schema.MadePass, "A new one", method="post", body=schema.NewPass, organiser=True),
    Operation(
        "/api/v1/passes/revoke",
        schema.Done,
        "Take one back",
        method="post",
        body=schema.RevokedPass,
        organiser=True,
    ),
    Operation("/api/v1/exports", schema.Exports, "Exports"),
    Operation("/api/v1/exports", schema.Ordered, "Order one", method="post", body=schema.Order, organiser=True),
    Operation(
        "/downloads/checkpoints/{version}/{stage}",
        None,
        "A checkpoint",
        kind="application/octet-stream",
        organiser=True,
    ),
    Operation("/downloads/exports/{name}", None, "An export as tar", kind="application/x-tar", organiser=True),
    Operation("/events", None, "Server-sent events: snapshot, then change", ("topics",), kind="text/event-stream"),
    Operation("/metrics", None, "Prometheus", kind="text/plain"),
)


def document() -> dict[str, Any]:
    models = {model for each in OPERATIONS for model in (each.answer, each.body) if model is not None} | {schema.Error}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, defined = models_json_schema([(model, "serialization") for model in ordered], ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "swarm-peer dashboard", "version": version("swarm-peer"), "description": schema.__doc__},
        "paths": paths,
        "components": {
            "schemas": defined["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(each: Operation) -> dict[str, Any]:
    content = {each.kind: {"schema": _of(each.answer) if each.answer is not None else {}}}
    told: dict[str, Any] = {
        "summary": each.text,
        "parameters": [
            *(_parameter(name, "path", _TEXT, "") for name in _in_path(each.path)),
            *(_parameter(name, "query", *_PARAMETERS[name]) for name in each.parameters),
        ],
        "responses": {
            "200": {"description": each.text, "content": content},
            "4XX": {"description": "Why not", "content": {"application/json": {"schema": _of(schema.Error)}}},
        },
    }
    if each.body is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": _of(each.body)}}}
    if each.method == "post":
        told["parameters"].append(_parameter("X-Swarm-Peer", "header", {"const": "1"}, "Always 1"))
    if each.organiser:
        told["security"] = [{"token": []}]
    return told


def _of(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _in_path(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _parameter(name: str, where: str, kind: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where != "query", "schema": kind, "description": text}
