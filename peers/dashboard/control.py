"""Control: the organiser's commands, handed to the coordinator through the socket in its home.

One line of JSON each way; the coordinator decides, records and answers. This process has no other way to touch the run.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from peers.dashboard.access import Denied
from peers.home import Home

COMMANDS = ("pause", "resume", "expel", "dismiss", "checkpoint", "stop_after", "steps", "rate")
BY = "dashboard"

_CONNECT_S = 5.0
_ANSWER_S = 46.0  # the coordinator gives up after 45
_MOST_ANSWER = 65_536


class Control:
    def __init__(self, home: Home) -> None:
        self._home = home.path

    @property
    def there(self) -> bool:
        """Whether a coordinator takes commands here."""
        try:
            return self._socket.is_socket()
        except OSError:
            return False

    @property
    def _socket(self) -> Path:
        """In the home, or where a file in the home says, if the home's path is too long for a socket."""
        try:
            return Path((self._home / "control.path").read_text(encoding="utf-8").strip())
        except (OSError, ValueError):
            return self._home / "control.sock"

    async def give(self, command: str, value: str, why: str) -> dict[str, Any]:
        """{"ok": true, "number", "text"}.

        Raises Denied: 400 no such command, 409 refused, 503 nobody there, 504 nobody knows whether it is in force.
        """
        if command not in COMMANDS:
            raise Denied(400, f"no such command; there are {', '.join(COMMANDS)}")
        line = json.dumps({"command": command, "value": value, "by": BY, "why": why}).encode() + b"\n"
        try:
            answer = json.loads(await self._ask(line))
        except (OSError, TimeoutError, ValueError):
            answer = None
        if not isinstance(answer, dict):
            raise Denied(504, "the coordinator has not answered; the command may be in force: see the log")
        if answer.get("ok") is not True:
            raise Denied(504 if answer.get("unsure") is True else 409, str(answer.get("error", "refused"))[:400])
        return {"ok": True, "number": answer.get("number"), "text": str(answer.get("text", ""))[:400]}

    async def _ask(self, line: bytes) -> bytes:
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=_MOST_ANSWER)
        except (OSError, TimeoutError):
            raise Denied(503, "no coordinator answers here: is it running?") from None
        try:
            writer.write(line)
            async with asyncio.timeout(_ANSWER_S):
                await writer.drain()
                return await reader.readline()
        finally:
            writer.close()
