"""The coordinator that a peer obeys: among the coordinators that the manifest names, the leader of the highest term.

Each term belongs to one coordinator. A message of an older term is void whoever sends it: its sender has been replaced
and may not know this yet.
"""

from __future__ import annotations

from swarm.protocol.ids import Actor
from swarm.protocol.messages import (
    Amend,
    Assign,
    Decide,
    Dismiss,
    Disproved,
    Excuse,
    Fenced,
    Halt,
    LeaveSeat,
    Open,
    Prove,
    Release,
    TakeSeats,
)

Control = (
    Assign
    | Open
    | Amend
    | Release
    | Fenced
    | Decide
    | Dismiss
    | TakeSeats
    | LeaveSeat
    | Excuse
    | Halt
    | Prove
    | Disproved
)


class Leader:
    """`group`: all coordinators. `first`: the coordinator that counts as leader until one sends an order."""

    def __init__(self, first: Actor, group: tuple[Actor, ...]) -> None:
        self.actor = first
        self.term = -1
        """The highest term known; −1: none yet."""
        self.group = group or (first,)

    def includes(self, actor: Actor) -> bool:
        return actor in self.group

    def obeys(self, sender: Actor, message: Control) -> bool:
        """Return True if the peer must obey a control message. If the message has a higher term than any before, its
        sender becomes the leader.
        """
        if sender not in self.group:
            return False
        if len(self.group) == 1:
            return True
        term = term_of(message)
        if term < self.term or (term == self.term and sender != self.actor):
            return False
        self.actor, self.term = sender, term
        return True


def term_of(message: Control) -> int:
    match message:
        case Assign(term=term) | Decide(term=term) | Dismiss(term=term) | Halt(term=term):
            return term
        case TakeSeats(term=term) | LeaveSeat(term=term) | Excuse(term=term):
            return term
        case Prove(term=term) | Disproved(term=term):
            return term
        case Open(pass_id=pass_id) | Amend(pass_id=pass_id) | Release(pass_id=pass_id) | Fenced(pass_id=pass_id):
            return pass_id.term
