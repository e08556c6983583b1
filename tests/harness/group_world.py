"""Members of a group that maintain a record together. A random source determines what network and disks do.

Only the record is tested; no coordinator runs. Each committed entry is compared with all entries committed before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from swarm.protocol.ids import Actor, Term
from swarm.protocol.io import Send
from swarm.protocol.messages import Entry, TermEntry
from swarm.protocol.raft.io import SendEntries, WriteGroup
from swarm.protocol.raft.raft import Raft
from swarm.simulation.toy.member_disk import MemberDisk

BEAT_S = 1.0


@dataclass
class Member:
    core: Raft
    disk: MemberDisk
    writing: list[WriteGroup] = field(default_factory=list)


class GroupWorld:
    """The members and their world. `step()` does one random thing. Raises AssertionError if two histories are
    committed.
    """

    def __init__(self, seed: int, size: int = 3, loss: float = 0.1) -> None:
        self.random = random.Random(seed)
        self.actors = tuple(Actor(f"m{i}", 0) for i in range(size))
        self.disks = {actor: MemberDisk() for actor in self.actors}
        self.members: dict[Actor, Member] = {}
        self.now = 0.0
        self.messages: list[tuple[Actor, Actor, object]] = []
        self.from_disk: list[SendEntries] = []
        self.standing: list[Entry] = []
        """What was committed by any member at any time."""
        self.leaders: dict[int, Actor] = {}
        self.cut: set[tuple[Actor, Actor]] = set()
        self.loss = loss
        self.terms = 0
        self.hurry = self.random.choice((0.2, 0.5, 1.5))
        """Maximum number of heartbeats by which time advances at once."""
        self.mortality = self.random.choice((0.0, 0.15, 1.0))
        for actor in self.actors:
            self.start(actor)

    def start(self, actor: Actor) -> None:
        disk = self.disks[actor]
        self._stands(0, disk.entries[: disk.committed])  # perhaps written as it died, and never told
        core = Raft(actor, self.actors, BEAT_S, 0.2, self.disks[actor].stored(), self.now)
        self.members[actor] = Member(core, self.disks[actor])

    def crash(self, actor: Actor) -> None:
        """Crash a member. Of its unfinished writes, the first ones reach the disk."""
        member = self.members.pop(actor)
        for order in member.writing[: self.random.randrange(len(member.writing) + 1)]:
            member.disk.write(order)

    def do(self, actor: Actor, what: Callable[[Raft], None]) -> None:
        """Let something happen to a member. Its orders are carried out now or later."""
        member = self.members[actor]
        what(member.core)
        for order in member.core.take():
            match order:
                case WriteGroup():
                    member.writing.append(order)
                case Send(to, message):
                    self._send(actor, to, message)
                case SendEntries():
                    self.from_disk.append(order)
                    self._send(actor, order.to, member.disk.append(order))
        self._check(actor, member.core)

    def _send(self, sender: Actor, to: Actor, message: object) -> None:
        if (sender, to) in self.cut or self.random.random() < self.loss:
            return
        self.messages.append((sender, to, message))
        if self.random.random() < self.loss:
            self.messages.append((sender, to, message))

    def _check(self, actor: Actor, core: Raft) -> None:
        if core.leads:
            assert self.leaders.setdefault(core.ballot, actor) == actor, f"two lead under ballot {core.ballot}"
        fresh = core.take_settled()
        self._stands(core.settled - len(fresh), fresh)

    def _stands(self, start: int, entries: list[Entry]) -> None:
        for index, entry in enumerate(entries, start):
            if index < len(self.standing):
                assert self.standing[index] == entry, f"{entry} stands where {self.standing[index]} stood"
            else:
                assert index == len(self.standing), "an entry is left out"
                self.standing.append(entry)

    def propose(self, leader: Raft) -> None:
        self.terms += 1
        entry = TermEntry(leader.ballot, Term(self.terms))
        self.do(leader.me, lambda core: core.propose(entry))

    def step(self) -> None:
        rng = self.random
        actor = rng.choice(self.actors)
        member = self.members.get(actor)
        match rng.randrange(24):
            case 0 if member is not None and rng.random() < self.mortality:
                self.crash(actor)
            case 0 | 1 if member is None:
                self.start(actor)
            case 2 if len(self.actors) > 1 and rng.random() < 0.1:
                pair = tuple(rng.sample(self.actors, 2))
                self.cut ^= {pair}  # type: ignore[arg-type]
            case 2 if rng.random() < 0.1:  # some have not heard of anybody for long, and ask together
                self.now += 8 * BEAT_S
                for each in rng.sample(sorted(self.members), len(self.members) * 2 // 3):
                    self.do(each, lambda core: core.tick(self.now))
            case 3:
                for leader in [each.core for each in self.members.values() if each.core.leads and not each.writing]:
                    self.propose(leader)
            case 4 | 5:
                self.now += self.hurry * BEAT_S * rng.random()
                for each in list(self.members):
                    self.do(each, lambda core: core.tick(self.now))
            case 6 | 7 | 8 | 9 if member is not None and member.writing:
                self.write(actor, 1)
            case _ if self.messages:
                self.deliver(0 if rng.random() < 0.7 else rng.randrange(len(self.messages)))

    def calm(self) -> None:
        """Let all members be alive and hear each other for a long time."""
        self.cut.clear()
        self.loss = 0.0
        for actor in self.actors:
            if actor not in self.members:
                self.start(actor)
        end = self.now + 60 * BEAT_S
        while self.now < end:
            self.now += BEAT_S / 4
            for actor in self.actors:
                self.do(actor, lambda core: core.tick(self.now))
            self.settle()

    def settle(self) -> None:
        """Complete all writes and deliver all messages, in order. Dead members receive nothing."""
        while self.messages or any(member.writing for member in self.members.values()):
            for actor in self.members:
                self.write(actor)
            if self.messages:
                self.deliver(0)

    def write(self, actor: Actor, limit: int | None = None) -> None:
        """Let some of a member's writes, or all, reach its disk."""
        member = self.members[actor]
        for order in member.writing[:limit]:
            member.writing.remove(order)
            member.disk.write(order)
            self.do(actor, lambda core, number=order.number: core.written(number))  # type: ignore[misc]

    def deliver(self, place: int) -> None:
        sender, to, message = self.messages.pop(place)
        if to in self.members:
            self.do(to, lambda core: core.hear(sender, message, self.now))  # type: ignore[arg-type]
