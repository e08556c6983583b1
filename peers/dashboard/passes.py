"""Lists, makes and revokes the passes of a run, as `swarm-peer invites`, `invite` and `revoke` do.

To list and to make passes, the dashboard runs these commands in a separate process, because signing needs libraries
that the dashboard does not load. A revocation is a command to the coordinator, like all others.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from peers.dashboard.access import Denied
from peers.dashboard.control import Control
from peers.run.home import Home

ROLES = ("peer", "observe")
_MOST_DEVICES = 100_000
_MOST_PEERS = 200
"""Maximum number of listed devices per pass. Their total number is always shown."""
_LONGEST_S = 60.0
_LAST_WORDS = 400
_MOST_OUTPUT = 64 << 20


class Passes:
    def __init__(self, home: Home, control: Control) -> None:
        self._home = home.path
        self._control = control
        self._one_at_a_time = asyncio.Lock()

    async def listed(self) -> dict[str, Any]:
        """The passes of the run: {"passes": rows of `swarm-peer invites --json`}. Raises Denied."""
        rows = await self._command("invites")
        return {"passes": [{**row, "peers": row["peers"][:_MOST_PEERS]} for row in rows]}

    async def make(self, name: str, devices: object, expires: str, role: str) -> dict[str, Any]:
        """Make a new pass. Returns {"line", …}. Raises Denied; the text says what is wrong."""
        if type(devices) is not int or not 1 <= devices <= _MOST_DEVICES:
            raise Denied(400, f"devices must be a whole number from 1 to {_MOST_DEVICES}")
        if role not in ROLES:
            raise Denied(400, f"role must be {' or '.join(ROLES)}")
        words = (f"--name={name}", f"--devices={devices}", f"--expires={expires or '30d'}", f"--role={role}")
        made: dict[str, Any] = await self._command("invite", *words)
        return made

    async def revoke(self, serial: str, why: str) -> dict[str, Any]:
        """Revoke a pass, by a command to the coordinator. Raises Denied."""
        return await self._control.revoke(serial, why)

    async def _command(self, name: str, *words: str) -> Any:
        """Return what `swarm-peer NAME` prints. Raises Denied with the command's error message."""
        async with self._one_at_a_time:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "peers", name, *words, "--home", str(self._home), "--json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                async with asyncio.timeout(_LONGEST_S):
                    out, err = await process.communicate()
            except TimeoutError:
                raise Denied(504, f"`swarm-peer {name}` has not ended within {_LONGEST_S:g} s") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0 or len(out) > _MOST_OUTPUT:
            said = err.decode(errors="replace").strip().splitlines() or [f"it ended with code {process.returncode}"]
            raise Denied(409, _plain(said)[-_LAST_WORDS:])
        return json.loads(out)


def _plain(said: list[str]) -> str:
    """The error message of a command: its last line, or the text in the frame around a wrong option."""
    framed = [line.strip("│ ").strip() for line in said if line.startswith("│")]
    return " ".join(framed) if framed else said[-1].removeprefix("error: ")
