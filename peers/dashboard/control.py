"""Control: the organiser's commands, handed to the coordinator through the socket in its home.

One line of JSON each way; the coordinator decides, records and answers. This process has no other way to touch the run.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from peers.dashboard.access import Denied
from peers.home import Home

COMMANDS = ("pause", "resume", "expel", "dismiss", "checkpoint", "stop_after", "steps", "rate")
BY = "dashboard"

_CONNECT_S = 5.0
_ANSWER_S = 30.0
_MOST_ANSWER = 65_536


class Control:
    def __init__(self, home: Home) -> None:
        self._socket = home.path / "control.sock"

    @property
    def there(self) -> bool:
        """Whether a coordinator takes commands here."""
        try:
            return self._socket.is_socket()
        except OSError:
            return False

    async def give(self, command: str, value: str, why: str) -> dict[str, Any]:
        """{"ok": true, "number", "text"}. Raises Denied: 400 no such command, 409 refused, 503 nobody there."""
        if command not in COMMANDS:
            raise Denied(400, f"no such command; there are {', '.join(COMMANDS)}")
        line = json.dumps({"command": command, "value": value, "by": BY, "why": why}).encode() + b"\n"
        try:
            answer = json.loads(await self._ask(line))
        except (OSError, TimeoutError, ValueError, EOFError):
            raise Denied(503, "no coordinator answers here: is it running?") from None
        if not isinstance(answer, dict):
            raise Denied(503, "the coordinator's answer cannot be read: is it of another release?")
        if answer.get("ok") is not True:
            raise Denied(409, str(answer.get("error", "refused"))[:400])
        return {"ok": True, "number": answer.get("number"), "text": str(answer.get("text", ""))[:400]}

    async def _ask(self, line: bytes) -> bytes:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=_MOST_ANSWER)
        try:
            writer.write(line)
            async with asyncio.timeout(_ANSWER_S):
                await writer.drain()
                return await reader.readline()
        finally:
            writer.close()
