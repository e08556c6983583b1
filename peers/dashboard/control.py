"""Passes the organiser's commands to the coordinator, through the socket in its home.

The coordinator decides, records and answers. The dashboard has no other influence on the run.
"""

from __future__ import annotations

import asyncio
from typing import Any

from peers.dashboard.access import Denied
from peers.run.home import Home
from peers.runtime.control_client import ControlError, NoCoordinator, NotPermitted, Unanswered, send, socket_path

COMMANDS = ("pause", "resume", "expel", "dismiss", "checkpoint", "stop_after", "steps", "rate")
BY = "dashboard"


class Control:
    def __init__(self, home: Home) -> None:
        self._home = home.path

    @property
    def there(self) -> bool:
        """True if a coordinator takes commands here."""
        try:
            return socket_path(self._home).is_socket()
        except OSError:
            return False

    async def give(self, command: str, value: str, why: str) -> dict[str, Any]:
        """Give a command. Return {"ok": true, "number", "text"}.

        Raises Denied: 400 no such command, 409 refused, 503 no coordinator, 504 unknown whether it is in force.
        """
        if command not in COMMANDS:
            raise Denied(400, f"no such command; choose one of {', '.join(COMMANDS)}")
        return await self._send(command, value, why)

    async def revoke(self, serial: str, why: str) -> dict[str, Any]:
        """Revoke a pass. Returns and raises as `give`."""
        return await self._send("revoke", serial, why)

    async def _send(self, command: str, value: str, why: str) -> dict[str, Any]:
        try:
            reply = await asyncio.to_thread(send, self._home, command, value, BY, why)
        except ControlError as error:
            gone = isinstance(error, NoCoordinator | NotPermitted)
            raise Denied(503 if gone else 504 if isinstance(error, Unanswered) else 409, str(error)[:400]) from None
        return {"ok": True, "number": reply.number, "text": reply.text[:400]}
