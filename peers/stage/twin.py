"""Two machines with one key: the process that was started later stays, and the older one leaves for good.

Without more ado two supervisors would start both again and again, each driving the other out. So the one that leaves
leaves a note in its home, and `join` does not start there until somebody has read it.
"""

from __future__ import annotations

from peers.run.home import Home, HomeError
from swarm.atomic import atomic_file, write_whole
from swarm.net.handshake import Refusal


def is_of_a_twin(refusal: str) -> bool:
    """Whether the coordinator refuses this process because a newer one has its key."""
    return refusal.startswith(Refusal.STALE_INCARNATION.value)


def leave_note(home: Home, refusal: str) -> None:
    """Raises OSError."""
    with atomic_file(home.superseded) as file:
        write_whole(file, f"{refusal}\n".encode())


def check_note(home: Home) -> None:
    """Raises HomeError while there is a note."""
    if home.superseded.exists():
        raise HomeError(
            f"{home.path}: another process with the same key joined after this one. If this home is a copy, delete "
            f"{home.identity} and {home.superseded}: it gets a key of its own. If the other one has ended for good, "
            f"delete {home.superseded} alone. Or join with another home: swarm-peer join --home OTHER"
        )
