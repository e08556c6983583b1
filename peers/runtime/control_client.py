"""Sends the organiser's commands to the coordinator that runs in a home on this machine, through its control socket.

Request and reply are one line of JSON each; docs/control.md explains the commands. `swarm-peer control` and the
dashboard use it; it needs only the standard library.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import socket
import stat
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from peers.run.home import Home

MAX_LINE = 64 << 10
"""Maximum size of a request or a reply in bytes."""
LONGEST_PATH = 107
"""Maximum length of a socket's path in bytes."""
TIMEOUT_S = 45.0
MOST_TIMEOUT_S = 600.0


class ControlError(ValueError):
    """The command was not executed, or it is unknown whether it was; the text says why."""


class NoCoordinator(ControlError):
    """No coordinator runs in that home."""


class NotPermitted(ControlError):
    """This user may not control that coordinator."""


class Unanswered(ControlError):
    """No answer: the command may still take effect, or not."""


class Refused(ControlError):
    """The coordinator refuses the command, which has no effect."""


@dataclass(frozen=True, slots=True)
class Request:
    command: str
    value: str = ""
    by: str = ""
    why: str = ""
    timeout: float = TIMEOUT_S
    """Seconds to wait for an answer."""
    request: str = field(default_factory=lambda: secrets.token_hex(16))
    """The name of the request. A request repeated under the same name is one command."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Read a request from its bytes. Raises ValueError. Unknown fields are ignored."""
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"a request is one line of JSON, of at most {MAX_LINE} bytes") from None
        if not isinstance(fields, dict):
            raise ValueError("a request is a JSON object")
        known = {name: fields[name] for name in cls.__dataclass_fields__ if fields.get(name) is not None}
        timeout = known.pop("timeout", TIMEOUT_S)
        if not isinstance(timeout, int | float) or not 0 < timeout <= MOST_TIMEOUT_S:
            raise ValueError(f"`timeout` is {str(timeout)[:80]!r}: give seconds, at most {MOST_TIMEOUT_S:g}")
        for name, value in known.items():
            if not isinstance(value, str) or len(value) > 4096:
                raise ValueError(f"`{name}` must be a text of at most 4096 characters")
        name = known.get("request", "x")
        if "command" not in known or not (0 < len(name) <= 64 and name.isascii() and name.isalnum()):
            raise ValueError("a request needs a `command`; its name, if it has one, is 1 to 64 letters and digits")
        return cls(**known, timeout=float(timeout))


@dataclass(frozen=True, slots=True)
class Reply:
    number: int
    """Number of the command in the record; 0 for `status`, which is not a command."""
    text: str
    """The effect of the command."""
    state: dict[str, Any]
    """The state of the run; only for `status`."""


def pointer(home: Path) -> Path:
    """The path of the file that names the socket if the socket is not in the home. The file's second line is the home
    to which it belongs.
    """
    return home / "control.path"


def socket_path(home: Path) -> Path:
    """The path of a home's socket. A copied home has its own path, even though it contains a pointer to the original's
    socket.
    """
    try:
        path, of = os.fsdecode(pointer(home).read_bytes()).splitlines()
    except (OSError, ValueError):
        return home / "control.sock"
    return Path(path) if of == str(home.resolve()) else home / "control.sock"


def send(home: Path, command: str, value: str = "", by: str = "", why: str = "", timeout: float = TIMEOUT_S) -> Reply:
    """Make the coordinator of `home` execute a command. Returns when the command is in force. Raises ControlError."""
    if not (0 < timeout <= MOST_TIMEOUT_S and math.isfinite(timeout)):
        raise ControlError(f"a timeout of {timeout} s: give more than 0, at most {MOST_TIMEOUT_S:g}")
    request = Request(command, value, by, why, timeout)
    reply = _exchange(home, request)
    if reply.get("ok") is not True:
        error = str(reply.get("error", "no reason is given"))
        raise Unanswered(error) if reply.get("unsure") is True else Refused(error)
    number, state = reply.get("number", 0), reply.get("state")
    number = number if isinstance(number, int) else 0
    return Reply(number, str(reply.get("text", "")), state if isinstance(state, dict) else {})


def _exchange(home: Path, request: Request) -> dict[str, Any]:
    path = socket_path(home)
    deadline = time.monotonic() + request.timeout + 1.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(request.timeout + 1.0)
        try:
            connection.connect(str(path))
        except PermissionError:
            raise NotPermitted(f"you may not use {path}: only the user that runs the coordinator may") from None
        except OSError:
            raise _nobody(home, path) from None
        try:
            connection.sendall(request.encode())
            line = _line(connection, deadline)
        except OSError as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else "it ended before it could answer"
            raise Unanswered(
                f"the coordinator of {home}: {why}; the command may still be in force: see `swarm-peer control status`"
            ) from None
    try:
        reply = json.loads(line)
    except ValueError:
        reply = None
    if not isinstance(reply, dict):
        raise Unanswered(
            f"the coordinator of {home} has answered {line[:80]!r}, which is not a reply: "
            "is it the same release as this program?"
        )
    return reply


def _line(connection: socket.socket, deadline: float) -> bytes:
    """Read a line. Raises OSError."""
    received = b""
    while not received.endswith(b"\n"):
        if (left := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left)
        chunk = connection.recv(MAX_LINE)
        if not chunk or len(received) > MAX_LINE:
            raise ConnectionResetError
        received += chunk
    return received


def _nobody(home: Path, path: Path) -> NoCoordinator:
    if not home.is_dir():
        return NoCoordinator(f"{home} is not a home: name the --home that `swarm-peer coordinate` runs with")
    process = None
    with contextlib.suppress(OSError):  # a lock that this user may not read
        process = Home(home).occupant()
    if process is not None:
        who = f"process {process}" if process else "a process"
        return NoCoordinator(
            f"{who} uses {home}, but takes no commands: a coordinator that is starting or ending answers only while it "
            "runs, so try again in some seconds. If that process is no coordinator, name the --home of one"
        )
    there = path.exists() and stat.S_ISSOCK(os.lstat(path).st_mode)
    why = "its socket is left over from one that died, or was copied with the home" if there else "there is no socket"
    return NoCoordinator(f"no coordinator runs in {home} ({why}): start it, or name the --home of one that runs")
