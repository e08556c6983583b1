"""The network between processes: delays, losses, repeats, reordering, partitions, and the transport's notifications.

Two processes are connected when one first sends to the other; both are told LinkUp. Over a healthy link, messages
arrive in order. The network behaves like a real transport: everyone connected to a killed process notices its death
(LinkLost after a few milliseconds), but nobody notices a stalled process; a partition may be noticed later, or never.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor, Key
from swarm.protocol.io import LinkLost, Received
from swarm.protocol.messages import Message, Relay, WithPayload
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import Undelivered
from swarm.simulation.kernel.timeline import Process, Timeline


@dataclass(slots=True)
class SimLink:
    """One direction of the link between two processes."""

    delay: float
    last_at: float = 0.0
    blocked_until: float = 0.0
    holds: bool = True
    """While the link is blocked: True if messages are retransmitted afterwards, False if they are lost."""


@dataclass(slots=True)
class Burst:
    """Bad weather on all links of a process for a while."""

    pid: int
    until: float
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Seconds by which a message may be overtaken."""
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Weather:
    """Disturbances of any message at any time, with or without faults. All values except `late_s` are fractions of all
    messages.
    """

    drop: float = 0.0
    late_repeat: float = 0.0
    """Fraction of the messages that arrive twice, the second time up to `late_s` later."""
    overtaken: float = 0.0
    """Fraction of the messages that arrive up to `late_s` late, so that later ones overtake them."""
    late_s: float = 2.0


class SimNetwork:
    """All links. Sending never fails; a message may be lost."""

    def __init__(self, world: Timeline) -> None:
        self._world = world
        self.weather: Weather | None = None
        self.far: dict[str, float] = {}
        """By peer id, the average additional delay of all messages to and from it, in seconds."""
        self.payload_s: dict[str, float] = {}
        """By peer id, the seconds that its uplink needs for one payload; 0 for other peers."""
        self._free_at: dict[int, float] = {}
        """For each process, the time when its uplink will have sent all waiting payloads."""
        self._waiting: set[tuple[int, Actor, Key]] = set()
        """Payloads that wait for an uplink or are being sent."""
        self._links: dict[tuple[int, int], SimLink] = {}
        self._neighbours: dict[int, set[int]] = {}
        self._bursts: list[Burst] = []
        self._told: set[tuple[int, Actor]] = set()

    def send(self, source: Process, to: Actor, message: Message) -> None:
        """Send a message as a real peer's network does: a payload that is still waiting is not queued twice."""
        data = message.message if isinstance(message, Relay) else message
        seconds = self.payload_s.get(source.actor.peer, 0.0)
        if not seconds or not isinstance(data, WithPayload):
            self.carry(source, to, message)
            return
        waits = source.pid, to, data.key
        if waits in self._waiting:
            return
        self._waiting.add(waits)
        at = self._free_at[source.pid] = max(self._world.now, self._free_at.get(source.pid, 0.0)) + seconds
        self._world.at(at, None, (self._leave, (waits, source, message)))

    def _leave(self, sending: tuple[tuple[int, Actor, Key], Process, Message]) -> None:
        waits, source, message = sending
        self._waiting.discard(waits)
        if source.alive:
            self.carry(source, waits[1], message)

    def carry(self, source: Process, to: Actor, message: Message) -> None:
        """The message leaves the sender."""
        world = self._world
        target = world.by_actor.get(to)
        if target is None or not target.alive:
            self._refused(source, to, target)
            return
        link = self._links.get((source.pid, target.pid)) or self._connect(source, target)
        rng = world.random
        now = world.now
        if link.blocked_until > now:
            if not link.holds:
                if world.trace is not None:
                    world.note(f"    (partition) lost: {type(message).__name__} {source.name} → {target.name}")
                self._hand_back(source, to, message)
                return
            start = link.blocked_until
        else:
            start = now
        arrival = start + link.delay * (0.75 + 0.5 * rng.random())
        repeats = 1
        ordered = True
        if self.weather is not None:
            fate = rng.random()
            if fate < self.weather.drop:
                if world.trace is not None:
                    world.note(f"    (weather) lost: {type(message).__name__} {source.name} → {target.name}")
                return
            fate -= self.weather.drop
            if fate < self.weather.late_repeat:
                late = arrival + self.weather.late_s * rng.random()
                world.at(late, target, (self._arrive, (source, target, Received(source.actor, message))))
            elif fate < self.weather.late_repeat + self.weather.overtaken:
                arrival += self.weather.late_s * rng.random()
                ordered = False
        if self._bursts:
            self._bursts = [burst for burst in self._bursts if burst.until > now]
            for burst in self._bursts:
                if burst.pid != source.pid and burst.pid != target.pid:
                    continue
                if burst.drop and rng.random() < burst.drop:
                    if world.trace is not None:
                        world.note(f"    (burst) lost: {type(message).__name__} {source.name} → {target.name}")
                    return
                if burst.duplicate and rng.random() < burst.duplicate:
                    repeats += 1
                if burst.reorder:
                    arrival += burst.reorder * rng.random()
                    ordered = False
                arrival += burst.delay
        if ordered:
            arrival = max(arrival, link.last_at)
            link.last_at = arrival
        received = Received(source.actor, message)
        world.at(arrival, target, (self._arrive, (source, target, received)))
        for _ in range(repeats - 1):
            world.at(arrival + 0.2 * rng.random(), target, (self._arrive, (source, target, received)))

    def _hand_back(self, source: Process, to: Actor, message: Message) -> None:
        """Return a message that was never sent to its sender, as a transport does if there has never been a
        connection.
        """
        if isinstance(source.core, PeerCore) and isinstance(message, WithPayload):
            later = self._world.now + source.core.settings.reconnect_grace_s
            self._world.at(later, source, Undelivered(to, (message,)))

    def _arrive(self, delivery: tuple[Process, Process, Received]) -> None:
        source, target, received = delivery
        if not source.alive and source.loses_last_words and self._world.random.random() < 0.5:
            return
        target.feed(received)

    def connected(self, process: Process) -> list[Process]:
        """Living processes that have exchanged messages with `process`."""
        processes = self._world.processes
        return [processes[pid] for pid in sorted(self._neighbours.get(process.pid, ())) if processes[pid].alive]

    def cut(self, a: Process, b: Process) -> bool:
        """Return True if messages between the two are blocked now, in either direction."""
        now = self._world.now
        pairs = self._links.get((a.pid, b.pid)), self._links.get((b.pid, a.pid))
        return any(link is not None and link.blocked_until > now for link in pairs)

    def partition(self, a: Process, b: Process, heal: float, *, one_way: bool, noticed_after: float | None) -> None:
        """Cut a → b (and b → a unless `one_way`) until `heal`. `noticed_after` None: no notification, the TCP
        connection survives.
        """
        world = self._world
        both = (a, b), (b, a)
        for source, target in both:
            link = self._links.get((source.pid, target.pid)) or self._connect(source, target)
            if one_way and source is b:
                continue
            link.blocked_until = max(link.blocked_until, heal)
            link.holds = noticed_after is None
        if noticed_after is not None and world.now + noticed_after < heal:
            world.at(world.now + noticed_after, None, (self._notice, (a, b, heal)))

    def flap(self, a: Process, b: Process, seconds: float) -> None:
        """The connection breaks and is restored. Messages in between are lost."""
        self.partition(a, b, self._world.now + seconds, one_way=False, noticed_after=0.0)

    def burst(self, burst: Burst) -> None:
        self._bursts.append(burst)

    def process_died(self, process: Process) -> None:
        world = self._world
        for other in self.connected(process):
            blocked = self._links[other.pid, process.pid].blocked_until
            delay = 0.002 + 0.03 * world.random.random()
            if blocked > world.now:
                delay += blocked - world.now
            self._told.add((other.pid, process.actor))
            world.at(world.now + delay, None, (self._tell_dead, (other, process)))

    def _tell_dead(self, pair: tuple[Process, Process]) -> None:
        """Report the death, unless the process has restarted under the same name, as coordinators do: then the
        connection is new.
        """
        process, dead = pair
        if self._world.by_actor[dead.actor] is dead:
            process.accept(LinkLost(dead.actor))

    def introduce(self, process: Process, delay: float) -> None:
        """`process` connects to all living processes again, as peers find a restarted coordinator."""
        for other in self._world.alive():
            if other is not process:
                later = delay * (0.5 + self._world.random.random())
                self._world.at(self._world.now + later, None, (self._dial, (process, other)))

    def _dial(self, pair: tuple[Process, Process]) -> None:
        a, b = pair
        if a.alive and b.alive and (a.pid, b.pid) not in self._links:
            self._told.discard((b.pid, a.actor))
            self._connect(a, b)

    def _notice(self, cut: tuple[Process, Process, float]) -> None:
        a, b, heal = cut
        world = self._world
        for process, other in ((a, b), (b, a)):
            if not process.alive or not other.alive:
                continue
            if world.trace is not None:
                world.note(f"    (link) {process.name} loses {other.name}")
            process.accept(LinkLost(other.actor))
            world.at(heal + 0.01 + 0.1 * world.random.random(), None, (self._healed, (process, other)))

    def _healed(self, pair: tuple[Process, Process]) -> None:
        process, other = pair
        if process.alive and other.alive:
            self._world.tell_up(process, other.actor, 0.0)

    def _connect(self, a: Process, b: Process) -> SimLink:
        world = self._world
        first: SimLink | None = None
        for source, target in ((a, b), (b, a)):
            link = SimLink(delay=0.001 + 0.012 * world.random.random())
            link.delay += self.far.get(source.actor.peer, 0.0) + self.far.get(target.actor.peer, 0.0)
            first = first or link
            self._links[source.pid, target.pid] = link
            self._neighbours.setdefault(source.pid, set()).add(target.pid)
            world.tell_up(source, target.actor, link.delay)
        assert first is not None
        return first

    def _refused(self, source: Process, to: Actor, target: Process | None) -> None:
        """Connecting to a dead process fails. The sender is told once."""
        if (source.pid, to) in self._told:
            return
        if target is not None:
            link = self._links.get((source.pid, target.pid))
            if link is not None and link.blocked_until > self._world.now:
                return
        self._told.add((source.pid, to))
        self._world.tell_lost(source, to, 0.005)
