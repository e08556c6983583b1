"""The peers that are excluded from the run: expelled by command or by an audit, or their pass was revoked.

A peer that an audit has found gets no more work at once. It is told to stop once the record has its expulsion: if the
coordinator dies earlier, the next one does not know of it, and the peer may return.
"""

from __future__ import annotations

from swarm.events import PeerExpelled
from swarm.protocol.coordinator.audit.culprit_search import Accused
from swarm.protocol.coordinator.commands import AUDIT, MOST_WHY, Commands, shut_out, signed
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Command, Halt
from swarm.protocol.outbox import Outbox

SENT_AWAY = "it is sent away"
"""The reason for an expulsion by command begins with these words."""


class Exclusions:
    """The excluded peers, with the reasons. The caller removes the members that `by_command` and `by_audit` name."""

    def __init__(self, history: History, members: Members, commands: Commands, out: Outbox) -> None:
        self._history = history
        self._members = members
        self._commands = commands
        self._out = out
        self._reasons = {peer: shut_out(command) for peer, command in history.controls.banned.items()}
        self._unwritten: dict[str, tuple[Accused, int]] = {}
        """Peers that an audit has found, with the audited step, until their expulsion is in the record."""

    def reason(self, peer: str) -> str | None:
        """The reason why a peer is excluded. None: it is not."""
        return self._reasons.get(peer)

    def readmit(self, peer: str) -> None:
        """The peer may return, with another pass."""
        self._reasons.pop(peer, None)

    def halt(self, actor: Actor) -> None:
        """Tell an actor of an excluded peer to stop, unless the record does not have the exclusion yet."""
        if actor.peer in self._unwritten:
            return
        self._out.send(actor, Halt(self._reasons[actor.peer], self._history.term, expelled=True))

    def by_command(self, command: Command) -> list[Member]:
        """Exclude the peers that a command names. Return those that are present. Report those that an audit has found,
        and tell them to stop.
        """
        peers = self._history.controls.excluded_by(command)
        for accused, step in [self._unwritten.pop(peer) for peer in peers if peer in self._unwritten]:
            self._out.emit(PeerExpelled(str(accused.actor), accused.stage, step, accused.reason))
            self.halt(accused.actor)
        self._reasons.update(dict.fromkeys(peers, shut_out(command)))
        return [member for member in self._members if member.actor.peer in peers]

    def send_away(self, member: Member, command: Command) -> None:
        """Report that a command excludes this member, and tell it to stop."""
        if member.stage is not None:
            self._out.emit(expulsion(member.actor, member.stage, self._history.version, command))
        self.halt(member.actor)

    def by_audit(self, accused: Accused, step: int) -> list[Member]:
        """Exclude a peer that an audit of `step` found. Return its members: it may have been restarted since."""
        peer = accused.actor.peer
        self._reasons[peer] = f"expelled from the run: at step {step} {accused.reason}"
        self._unwritten[peer] = accused, step
        self._commands.order("expel", peer, AUDIT, f"at step {step} {accused.reason}"[:MOST_WHY])
        return [member for member in self._members if member.actor.peer == peer]


def expulsion(actor: Actor, stage: int, step: int, command: Command) -> PeerExpelled:
    """The report that a command of the record excludes an actor, which holds `stage`, before `step`."""
    reason = command.why if command.by == AUDIT else signed(SENT_AWAY, command)
    return PeerExpelled(str(actor), stage, step, reason)
