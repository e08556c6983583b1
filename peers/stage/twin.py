"""Handles two machines with one key: the process that was started later stays, and the older one leaves for good.

Otherwise two supervisors would restart both processes again and again, each replacing the other. So the process that
leaves writes a note into its home, and `join` refuses to start there until the owner has removed the note.
"""

from __future__ import annotations

from peers.run.home import Home, HomeError
from swarm.net.handshake import Refusal


def is_of_a_twin(refusal: str) -> bool:
    """True if the coordinator refuses this process because a newer process has its key."""
    return refusal.startswith(Refusal.STALE_INCARNATION.value)


def check_note(home: Home) -> None:
    """Check whether a process with the same key has displaced this one. Raises HomeError while the note exists."""
    if home.superseded.exists():
        raise HomeError(
            f"{home.path}: another process with the same key joined after this one. If this home is a copy, delete "
            f"{home.identity}, {home.certificate} and {home.superseded}: it gets a new key. If the other process has "
            f"ended for good, delete {home.superseded} alone. Or join with another home: swarm-peer join --home OTHER"
        )
