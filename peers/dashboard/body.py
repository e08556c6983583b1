"""The bytes of one answer, made once and sent to every viewer that asks."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

_LEAST_PACKED = 600  # bytes; shorter bodies are not worth packing
_LEVEL = 5

_START = rb"(?:(?<!\w)|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"
"""Not inside a word. In JSON, the letter of an escape such as \n stands in front of what begins a line."""
_PART = rb"(?:[^\s\"\\,:;)/]|\\u[0-9a-f]{4})"
"""One character of a name in a path; in JSON, letters beyond ASCII are escaped."""
_ADDRESS = re.compile(
    rb"/(?:ip4|ip6|dns|dns4|dns6|dnsaddr)/[^/\s\"\\,)]+(?:/(?:tcp|udp)/\d+)?"
    rb"|(?=[0-9A-Fa-f:])" + _START + rb"(?:"
    rb"(?:[0-9A-Fa-f]{0,4}:){2,7}\d{1,3}(?:\.\d{1,3}){3}\b"  # IPv4 inside IPv6
    rb"|\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b"
    rb"|(?:[0-9A-Fa-f]{1,4}:){4,7}[0-9A-Fa-f]{1,4}(?![\w:])"
    rb"|(?:[0-9A-Fa-f]{1,4}:){0,6}[0-9A-Fa-f]{0,4}::(?:[0-9A-Fa-f]{1,4}:){0,6}[0-9A-Fa-f]{1,4}(?![\w:])"
    rb"|(?:[0-9A-Fa-f]{1,4}:){2,7}:(?![\w:])"
    rb")"
    rb"|/(?:home|root|Users|tmp|var|mnt|srv|media|opt)(?:/" + _PART + rb"*)+"
    rb"|(?:" + _START + rb"(?<![<./])|(?<=file://))/(?=[\w.~@+-]|\\u)" + _PART + rb"+(?:/" + _PART + rb"*)+"
)
"""Matches addresses, and paths of a machine, inside texts. A path begins at the root and has two parts or more: `6/s`
and the `</s>` of a tokenizer are none. (A time of day has two colons; an IPv6 address has more, or two in a row.)
"""


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of an answer. `packed`: the same with gzip; empty if it would not be shorter."""

    raw: bytes
    packed: bytes
    etag: str
    kind: str = "application/json"

    @classmethod
    def of(cls, raw: bytes, kind: str = "application/json") -> Body:
        packed = gzip.compress(raw, _LEVEL, mtime=0) if len(raw) >= _LEAST_PACKED else b""
        etag = hashlib.blake2s(raw, digest_size=12).hexdigest()
        return cls(raw, packed if len(packed) < len(raw) else b"", f'W/"{etag}"', kind)

    @property
    def size(self) -> int:
        return len(self.raw) + len(self.packed)

    def response(self, request: Request, headers: dict[str, str] | None = None) -> Response:
        """The response: unpacked, packed, or 304 if the viewer has the answer already."""
        told = {"etag": self.etag, "vary": "accept-encoding, cookie, authorization", **(headers or {})}
        if self.etag in (tag.strip() for tag in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=told)
        if self.packed and takes_gzip(request):
            return Response(self.packed, headers={"content-encoding": "gzip", **told}, media_type=self.kind)
        return Response(self.raw, headers=told, media_type=self.kind)


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def to_json(value: Any) -> bytes:
    """ASCII JSON; numbers that are not finite become null, because browsers cannot read them."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode()


def without_addresses(raw: bytes) -> bytes:
    """The same text for the public, without the addresses of machines and without paths on them."""
    return _ADDRESS.sub(b"(address)", raw)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
