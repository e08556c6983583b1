"""RunObserver: passes network messages to a run's core, and network failures to its event log."""

from __future__ import annotations

from peers.report.tally import Tally
from peers.runtime.core_loop import CoreLoop
from peers.runtime.outages import Outages
from swarm.events import EventLog, FloodNoticed, FrameRefused, MemberSlowed, MessagesDropped, PeerRefused, StreamBroken
from swarm.events.wording import worth_telling
from swarm.net.callers import Flood
from swarm.net.handshake import Channel
from swarm.net.observer import NetworkObserver
from swarm.protocol.ids import Actor
from swarm.protocol.io import LinkLost, LinkUp, Received
from swarm.protocol.messages import Banned, LogChunk, LogWant, Message


class RunObserver(NetworkObserver):
    """Passes on what the network of one process reports. A repeated refusal is logged less and less often (see Tally),
    and dropped messages once per outage (see Outages).

    Strangers are counted together, because each of them may use a thousand names.
    """

    def __init__(self, loop: CoreLoop, log: EventLog) -> None:  # type: ignore[type-arg]
        self._loop, self._log = loop, log
        self._refused_peers = Tally()
        self._refused_strangers = 0
        self._slowed = Tally()
        self._floods = Tally()
        self._outages = Outages(lambda actor, count, reason: log.append(MessagesDropped(str(actor), count, reason)))

    # ------------------------------------------------------------ for the process to override

    def notice(self, sender: Actor, message: Message) -> None:
        """Called with each message before the core gets it."""

    def mirror(self, sender: Actor, message: LogWant | LogChunk) -> None:
        """Called with other coordinators' messages about their event logs, which the core does not need."""

    def banned(self, sender: Actor, message: Banned) -> None:
        """Called with a coordinator's list of banned members, which the core does not need."""

    def ending(self) -> bool:
        """True once broken streams, refused peers and undelivered messages are no longer reported."""
        return False

    # ------------------------------------------------------------ from the network

    def message(self, sender: Actor, message: Message) -> None:
        if isinstance(message, LogWant | LogChunk):
            self.mirror(sender, message)
            return
        if isinstance(message, Banned):
            self.banned(sender, message)
            return
        self.notice(sender, message)
        self._loop.post(Received(sender, message))

    def link_lost(self, actor: Actor, reason: str) -> None:
        self._loop.post(LinkLost(actor))

    def link_up(self, actor: Actor) -> None:
        self._outages.up(actor)
        self._loop.post(LinkUp(actor))

    def frame_refused(self, sender: Actor, reason: str, count: int) -> None:
        if worth_telling(count):
            self._log.append(FrameRefused(str(sender), reason, count))

    def peer_refused(self, peer: str, reason: str) -> None:
        if not self.ending() and worth_telling(count := self._refused_peers.add(peer)):
            self._log.append(PeerRefused(peer, reason, count))

    def stranger_refused(self, peer: str, reason: str) -> None:
        self._refused_strangers += 1
        if not self.ending() and worth_telling(self._refused_strangers):
            self._log.append(PeerRefused(peer, reason, self._refused_strangers))

    def member_slowed(self, actor: Actor, wait_s: float) -> None:
        if worth_telling(count := self._slowed.add(actor.peer)):
            self._log.append(MemberSlowed(str(actor), wait_s, count))

    def flooded(self, flood: Flood, blocked_s: float, why_not: str) -> None:
        address = str(flood.block)
        if not self.ending() and worth_telling(count := self._floods.add(address)):
            self._log.append(FloodNoticed(address, flood.connections, flood.seconds, blocked_s, why_not, count))

    def stream_broken(self, actor: Actor, channel: Channel, reason: str) -> None:
        if not self.ending():
            self._log.append(StreamBroken(str(actor), channel.value, reason))

    def dropped(self, actor: Actor, count: int, reason: str) -> None:
        if not self.ending():
            self._outages.dropped(actor, count, reason)
