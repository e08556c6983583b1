"""The control socket: through it, the organiser's programs on this machine send commands to the coordinator.

Each connection carries one line of JSON in each direction (`peers/runtime/control_client.py` is the client). Only the
user of this process and root may connect; the kernel tells who connects. The socket is in the home. If the home's path
is too long for a socket, or its file system has no sockets, the socket is in a separate folder among the user's
temporary files; a file in the home names that folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import struct
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from peers.runtime.control_client import LONGEST_PATH, MAX_LINE, Request, pointer, socket_path
from swarm.atomic import atomic_file, write_whole

REQUEST_S = 10.0
"""Seconds within which a whole request must have arrived."""
MOST = 16
"""Maximum number of concurrent requests."""
_MOST_READ = 1 << 20
"""Maximum number of bytes that are read and dropped after a line that is too long."""

_FOLDER = "swarm-peer-"
"""Name prefix of the folder for a socket that cannot be in its home."""

Answer = Callable[[Request], Awaitable[dict[str, Any]]]


class ControlSocketError(ValueError):
    """No socket can be opened here; the text says what to change."""


class ControlSocket:
    """The control socket of one coordinator. Call `open`. Then `answer(request)` is called for each request from the
    organiser, until `close`.
    """

    def __init__(self, home: Path, answer: Answer) -> None:
        self.path = home / "control.sock"
        self._home = home
        self._answer = answer
        self._folder: Path | None = None
        """The folder made for a socket that cannot be in the home."""
        self._server: asyncio.Server | None = None
        self._open = 0

    async def open(self) -> None:
        """Open the socket, and remove the socket that an earlier process left (this process holds the home's lock).
        Raises ControlSocketError.
        """
        left = socket_path(self._home)
        _remove(left)
        if left.parent.name.startswith(_FOLDER):
            shutil.rmtree(left.parent, ignore_errors=True)
        _remove(self.path)
        pointer(self._home).unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, sock=self._bound(), limit=MAX_LINE)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        _remove(self.path)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            pointer(self._home).unlink(missing_ok=True)

    # ------------------------------------------------------------ where

    def _bound(self) -> socket.socket:
        if len(os.fsencode(self.path)) <= LONGEST_PATH:
            try:
                return _bind(self.path)
            except OSError:
                pass  # this file system has no sockets
        self._folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=_short_folder()))
        self.path = self._folder / "control.sock"
        try:
            bound = _bind(self.path)
        except OSError as error:
            raise ControlSocketError(
                f"no control socket at {self.path}: {error}; set XDG_RUNTIME_DIR to a folder with a short path"
            ) from None
        with atomic_file(pointer(self._home)) as file:
            write_whole(file, os.fsencode(f"{self.path}\n{self._home.resolve()}\n"))
        return bound

    # ------------------------------------------------------------ one connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            reply = await self._reply(reader, writer)
            writer.write(json.dumps(reply).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), REQUEST_S)
        except (OSError, TimeoutError):
            pass  # the client has disconnected
        finally:
            self._open -= 1
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> dict[str, Any]:
        try:
            async with asyncio.timeout(REQUEST_S):  # read it whole, or the reply is lost too
                line = await _line(reader)
        except TimeoutError:
            return _error(f"no request came within {REQUEST_S:g} s")
        user = _user(writer.get_extra_info("socket"))
        if user not in (0, os.geteuid()):
            return _error(f"user {user} may not control this run: ask the organiser, who runs the coordinator")
        if self._open > MOST:
            return _error(f"{MOST} other requests are being answered: try again")
        try:
            request = Request.decode(line)
        except ValueError as error:
            return _error(str(error))
        try:
            async with asyncio.timeout(request.timeout):
                return await self._answer(request)
        except TimeoutError:
            late = f"no answer within {request.timeout:g} s: it may still take effect; see `control status`"
            return {**_error(late), "unsure": True}


def _short_folder() -> str | None:
    """The user's runtime folder, if the path of a socket in it is short enough; None: use the folder for temporary
    files.
    """
    folder = os.environ.get("XDG_RUNTIME_DIR")
    longest = f"{folder}/{_FOLDER}12345678/control.sock"
    return folder if folder and os.path.isdir(folder) and len(os.fsencode(longest)) <= LONGEST_PATH else None


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Read a line. Returns an empty text if the data contain no line, or if the line is too long."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return b""
    except asyncio.LimitOverrunError:
        for _ in range(_MOST_READ // MAX_LINE):
            if (await reader.read(MAX_LINE)).endswith(b"\n") or reader.at_eof():
                break
        return b""


def _error(text: str) -> dict[str, Any]:
    return {"ok": False, "error": text}


def _bind(path: Path) -> socket.socket:
    """Bind a socket to which no other user can connect at any moment."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        bound.bind(str(path))
    except BaseException:
        bound.close()
        raise
    finally:
        os.umask(before)
    return bound


def _remove(path: Path) -> None:
    """Remove a socket that an earlier process left. Raises ControlSocketError if it is something else."""
    try:
        kind = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(kind):
        raise ControlSocketError(f"{path} is not a socket, but has the path of the control socket: move it elsewhere")
    path.unlink(missing_ok=True)


def _user(connection: Any) -> int:
    """Return the user at the other end, as the kernel reports it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
