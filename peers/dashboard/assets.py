"""The files of the pages, read once at the start and served from memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from peers.dashboard.body import Body

FOLDER = Path(__file__).with_name("static")
INDEX = "index.html"

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}


class Assets:
    """The files by path below `static/`."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._bodies = {name: Body.of(path.read_bytes(), _KINDS[path.suffix]) for name, path in _files(folder)}

    @property
    def packed_bytes(self) -> int:
        """Bytes that a browser downloads when it visits all pages for the first time, without the licences."""
        return sum(len(body.packed or body.raw) for name, body in self._bodies.items() if not name.endswith(".txt"))

    def response(self, request: Request, name: str) -> Response:
        body = self._bodies.get(name)
        if body is None:
            return JSONResponse({"error": "there is no such page"}, 404)
        return body.response(request)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in _KINDS:
            yield path.relative_to(folder).as_posix(), path
