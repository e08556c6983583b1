"""The command line with which peers join, in the form for each operating system."""

from __future__ import annotations

from typing import Any

from peers.dashboard.access import Denied
from peers.run.home import Home


def join_lines(home: Home) -> dict[str, Any]:
    """The command lines with which peers join. Raises Denied if the coordinator has not left an invite in its home."""
    try:
        invite = home.join_token.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        raise Denied(
            404, "there is no invite in this home: only the home of a coordinator has one, after its first start"
        ) from None
    line = f"swarm-peer join {invite}"
    return {"line": line, "lines": {"linux": line, "macos": line, "windows": f"wsl {line}"}}
