"""One member's part in a replicated record that survives the death or isolation of a minority.

A member leads under a *ballot*, a number that only increases. It needs the votes of a majority. Each member gives one
vote per ballot, durably, and only to a candidate whose log is not behind its own. The leader appends entries. An entry
of the leader's own ballot that a majority has on disk is committed, with all entries before it. Every later leader has
the vote of a member with this entry, so the later leader's log contains the entry too.

This is Raft: Ongaro and Ousterhout, "In Search of an Understandable Raft Algorithm", 2014, sections 5.2–5.4, with its
9.6 and Ongaro's dissertation 6.2 and 9.6: members ask before they vote, and a leader that hears no majority steps down.
Nothing is random: a member that comes earlier in the group waits for a shorter time before it stands for election.

A message about a member's log or ballot is sent only once all earlier changes are on disk.
"""

from __future__ import annotations

import enum
from collections import deque

from swarm.protocol.ids import Actor
from swarm.protocol.io import Send
from swarm.protocol.messages import Adjourn, Append, Appended, Canvass, Entry, Message, Offer, Vote
from swarm.protocol.raft.io import GroupAction, SendEntries, WriteGroup
from swarm.protocol.raft.log import RaftLog, Standing, Stored

GroupMessage = Canvass | Vote | Append | Appended | Adjourn

BATCH = 64
"""Largest number of entries in a message."""


class Part(enum.Enum):
    FOLLOWS = "follows"
    ASKS = "asks which members would vote for it"
    STANDS = "stands for election"
    LEADS = "leads"


class Raft:
    """One member's part in the replicated log.

    `beat_s`: interval of the leader's messages. After `patience_s` seconds without a message, the leader counts as
    gone.
    """

    def __init__(
        self, me: Actor, group: tuple[Actor, ...], beat_s: float, grace_s: float, stored: Stored, now: float
    ) -> None:
        self.me = me
        self.group = group
        self.part = Part.FOLLOWS
        self.ballot = stored.ballot
        self.leader: Actor | None = None
        """The leader of `ballot` from which this member receives messages. It is the member itself while it leads."""
        self.log = RaftLog(stored)
        self.committed = stored.committed
        self.settled = stored.committed
        """Entries up to this index are committed, and their commit is on this member's disk."""
        self.standing = stored.standing
        """The state after the committed entries."""
        self.why_not = ""
        """Text: why this member lost its leadership."""
        self.offer: Offer | None = None
        """A checkpoint that all members should copy. The leader's driver sets it."""
        self.held: Offer | None = None
        """The leader's offer, once this member has copied it. A follower's driver sets it."""
        self.holders: set[Actor] = set()
        """Members that hold the leader's offer."""
        self.peers = 0
        """The number of people from whose peers this member receives messages. The driver sets it."""
        self.offered: Offer | None = None
        """While this member follows: the checkpoint that its leader offers."""
        self.beat_s = beat_s
        self.patience_s = 6 * beat_s
        self._grace_s = grace_s
        self._place = group.index(me)
        self._others = tuple(member for member in group if member != me)
        self._vote = stored.vote
        self._yes: set[Actor] = set()
        self._heard_at = dict.fromkeys(group, now)
        """The time when each member was last heard."""
        self._led_at = now
        """The time when the leader was last heard."""
        self._stand_at = now + self._turn_s()
        self._beat_at = now
        self._audiences: dict[Actor, tuple[float, int]] = {}
        """While this member leads: from how many people each other member last reported to receive messages, and when
        it did so.
        """
        self._matched: dict[Actor, int] = {}
        self._next: dict[Actor, int] = {}
        self._durable = self.log.last
        """While this member leads: the index up to which its own disk has the log."""
        self._out: list[GroupAction] = []
        self._number = 0
        self._written = 0
        self._write_from: int | None = None
        self._changed = False
        self._under_way: deque[tuple[int, int, int]] = deque()
        """Writes that are not on disk yet, as (number, last index, committed)."""
        self._held_back: deque[tuple[int, Send]] = deque()
        """Messages that wait for a write to disk, each with the number of that write."""
        self._fresh: list[Entry] = []

    # ------------------------------------------------------------ for the driver

    @property
    def leads(self) -> bool:
        return self.part is Part.LEADS

    @property
    def majority(self) -> int:
        return len(self.group) // 2 + 1

    def reached(self, now: float) -> int:
        """Number of members that were heard recently, this one included."""
        return 1 + sum(now - self._heard_at[member] < self.patience_s for member in self._others)

    def most_heard(self, now: float) -> int:
        """While this member leads: the largest number of people from whom another member receives messages.

        A member that has been silent for `patience_s` does not count: people may have left since its last report.
        """
        return max((people for at, people in self._audiences.values() if now - at < self.patience_s), default=0)

    def prospect(self) -> Standing:
        """The state after all entries of this log. A new leader starts from it.

        These entries are committed together with the leader's first own entry.
        """
        standing = self.standing
        for entry in self.log.entries(self.committed + 1):
            standing = standing.after(entry)
        return standing

    def propose(self, entry: Entry) -> None:
        """Append the leader's next entry. Once it is committed, `take_settled` returns it; this may never happen."""
        assert self.leads and entry.ballot == self.ballot
        self._append((entry,))
        for member in self._others:
            self._send_log(member)

    def take(self) -> list[GroupAction]:
        """The actions since the last call: writes first, then messages."""
        if self._changed:
            self._changed = False
            self._number += 1
            first = self.log.last + 1 if self._write_from is None else self._write_from
            self._write_from = None
            self._under_way.append((self._number, self.log.last, self.committed))
            write = WriteGroup(self._number, self.ballot, self._vote, first, self.log.entries(first), self.committed)
            self._out.insert(0, write)
        self._release()
        out, self._out = self._out, []
        return out

    def take_settled(self) -> list[Entry]:
        """Entries whose commit has reached this member's disk, each once, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def resign(self, now: float, reason: str) -> None:
        """Let another member lead, and stand for election again only after a while."""
        self._follow(None, now, reason)
        self._stand_at = now + 4 * self.patience_s

    def next_wakeup(self) -> float:
        return self._beat_at if self.leads else self._stand_at

    # ------------------------------------------------------------ inputs

    def hear(self, sender: Actor, message: GroupMessage, now: float) -> None:
        if sender not in self._heard_at or sender == self.me:
            return
        self._heard_at[sender] = now
        match message:
            case Canvass():
                self._on_canvass(sender, message, now)
            case Vote():
                self._on_vote(sender, message, now)
            case Append():
                self._on_append(sender, message, now)
            case Appended():
                self._on_appended(sender, message, now)
            case Adjourn():
                pass  # handled by the driver

    def written(self, number: int) -> None:
        """The write with this number and all earlier ones are on disk."""
        self._written = max(self._written, number)
        while self._under_way and self._under_way[0][0] <= number:
            _, last, committed = self._under_way.popleft()
            self._durable = max(self._durable, last) if self.leads else last
            self._settle(committed)
        if self.part is Part.STANDS and not self._under_way:
            self._count_votes()
        if self.leads:
            self._commit()

    def lost(self, other: Actor, now: float) -> None:
        """The connection to another member broke. If that member led, it is probably gone, so this member waits for a
        shorter time.
        """
        if other == self.leader and self.part is Part.FOLLOWS:
            self._led_at = now - self.patience_s
            self._stand_at = min(self._stand_at, now + self._grace_s + self._place * self.beat_s / 2)

    def tick(self, now: float) -> None:
        if self.leads:
            if self.reached(now) < self.majority:
                self._follow(None, now, f"heard from {self.reached(now) - 1} of {len(self._others)} other members")
            elif now >= self._beat_at:
                self._beat_at = now + self.beat_s
                for member in self._others:
                    self._send_log(member)
        elif now >= self._stand_at:
            self._ask(now)

    # ------------------------------------------------------------ elections

    def _turn_s(self) -> float:
        """Seconds without a leader until this member asks for votes. The first member of the group waits for the
        shortest time.
        """
        return self.patience_s + self._place * 2 * self.beat_s

    def _ask(self, now: float) -> None:
        """Ask which members would vote for this one. The ballot increases only if a majority would."""
        self.part = Part.ASKS
        self.leader = None
        self._yes = {self.me}
        self._stand_at = now + (2 + 2 * self._place) * self.beat_s
        for member in self._others:
            self._say(member, Canvass(self.ballot + 1, self.log.last, self.log.last_ballot, binding=False))
        self._count_votes()

    def _stand(self) -> None:
        self.part = Part.STANDS
        self.ballot += 1
        self._vote = self.me.peer
        self._yes = {self.me}
        self._changed = True
        for member in self._others:
            self._say(member, Canvass(self.ballot, self.log.last, self.log.last_ballot, binding=True))

    def _on_canvass(self, sender: Actor, canvass: Canvass, now: float) -> None:
        behind = (canvass.last_ballot, canvass.last_index) < (self.log.last_ballot, self.log.last)
        if not canvass.binding:
            happy = self.leads or (self.leader is not None and now - self._led_at < self.patience_s)
            granted = canvass.ballot > self.ballot and not behind and not happy
            self._say(sender, Vote(canvass.ballot if granted else self.ballot, granted, binding=False))
            return
        if canvass.ballot > self.ballot:
            self._newer(canvass.ballot, now, f"{sender} stands for election under ballot {canvass.ballot}")
        granted = canvass.ballot == self.ballot and not behind and self._may_vote_for(sender)
        if granted:
            self._vote = sender.peer
            self._changed = True
            self._stand_at = now + self._turn_s()
        self._say(sender, Vote(self.ballot, granted, binding=True))

    def _may_vote_for(self, sender: Actor) -> bool:
        return self._vote in ("", sender.peer)

    def _on_vote(self, sender: Actor, vote: Vote, now: float) -> None:
        asked = Part.STANDS if vote.binding else Part.ASKS
        if vote.granted and self.part is asked and vote.ballot == self.ballot + (not vote.binding):
            self._yes.add(sender)
            self._count_votes()
        elif not vote.granted and vote.ballot > self.ballot:
            self._newer(vote.ballot, now, f"{sender} knows ballot {vote.ballot}")

    def _count_votes(self) -> None:
        """Count the votes. A candidate's own vote counts only once it is on disk, like any other vote."""
        if len(self._yes) < self.majority:
            return
        if self.part is Part.ASKS:
            self._stand()
        elif self.part is Part.STANDS and not self._under_way and not self._changed:
            self._lead()

    def _lead(self) -> None:
        self.part = Part.LEADS
        self.leader = self.me
        self.why_not = ""
        self.offer = self.offered = None
        self.holders = set()
        self._audiences = {}
        self._durable = self.log.last
        self._matched = dict.fromkeys(self._others, 0)
        self._next = dict.fromkeys(self._others, self.log.last + 1)
        self._beat_at = 0.0

    def _newer(self, ballot: int, now: float, reason: str) -> None:
        self.ballot = ballot
        self._vote = ""
        self._changed = True
        self._follow(None, now, reason)

    def _follow(self, leader: Actor | None, now: float, reason: str = "") -> None:
        if self.leads:
            self.why_not = reason
            self._stand_at = now + self._turn_s()
        self.part = Part.FOLLOWS
        self.leader = leader
        self.offer = None

    # ------------------------------------------------------------ the log

    def _append(self, entries: tuple[Entry, ...]) -> None:
        first = self.log.last + 1
        self.log.extend(entries)
        self._write_from = first if self._write_from is None else min(first, self._write_from)
        self._changed = True

    def _send_log(self, member: Actor) -> None:
        """Send a member the entries that it lacks, as far as known. The message is also the leader's heartbeat."""
        first = self._next[member]
        if first <= self.log.base and first <= self.log.last:
            self._out.append(SendEntries(member, self.ballot, first, self.committed, self.offer))
            return
        entries = self.log.entries(first, first + BATCH - 1)
        before = first - 1
        append = Append(self.ballot, before, self.log.ballot_at(before), entries, self.committed, self.offer)
        self._out.append(Send(member, append))

    def _on_append(self, sender: Actor, append: Append, now: float) -> None:
        if append.ballot < self.ballot:
            self._say(sender, Appended(self.ballot, 0, refused=True))
            return
        if append.ballot > self.ballot:
            self._newer(append.ballot, now, f"{sender} leads under ballot {append.ballot}")
        self._follow(sender, now)
        self._led_at = now
        self._stand_at = now + self._turn_s()
        if append.before < self.committed:  # committed entries are equal in all logs
            skipped = min(self.committed - append.before, len(append.entries))
            entries, before = append.entries[skipped:], append.before + skipped
        else:
            entries, before = append.entries, append.before
            if not self.log.agrees(before, append.before_ballot):
                self._say(sender, Appended(self.ballot, min(self.log.last, before - 1), refused=True))
                return
        for offset, entry in enumerate(entries):
            index = before + 1 + offset
            if index <= self.log.last and self.log.ballot_at(index) == entry.ballot:
                continue
            if index <= self.log.last:
                self.log.cut(index)
                self._write_from = index if self._write_from is None else min(index, self._write_from)
            self._append(entries[offset:])
            break
        matched = before + len(entries)
        self._advance(min(append.committed, matched))
        self.offered = append.offer if self.settled >= append.committed else None
        held = self.held
        version, term = (-1, 0) if held is None else (held.version, held.term)
        self._say(sender, Appended(self.ballot, matched, held=version, held_in=term, peers=self.peers))

    def _on_appended(self, sender: Actor, reply: Appended, now: float) -> None:
        if reply.ballot > self.ballot:
            self._newer(reply.ballot, now, f"{sender} knows ballot {reply.ballot}")
        if not self.leads or reply.ballot != self.ballot or reply.matched > self.log.last:
            return
        self._audiences[sender] = (now, reply.peers)
        if self.offer is not None and (reply.held, reply.held_in) == (self.offer.version, self.offer.term):
            self.holders.add(sender)
        if reply.refused:
            if reply.matched + 1 < self._next[sender]:
                self._next[sender] = reply.matched + 1
                self._send_log(sender)
            return
        news = reply.matched > self._matched[sender]
        self._matched[sender] = max(self._matched[sender], reply.matched)
        behind = self._next[sender] <= self.log.last
        self._next[sender] = self._matched[sender] + 1
        self._commit()
        if news and behind and self._next[sender] <= self.log.last:
            self._send_log(sender)

    def _commit(self) -> None:
        """Commit an entry of this ballot that a majority has on disk, with all entries before it.

        An entry of an older ballot is never committed by itself, because a later leader may still lack it.
        """
        places = sorted((self._durable, *self._matched.values()), reverse=True)
        common = min(places[self.majority - 1], self.log.last)
        if common > self.committed and self.log.ballot_at(common) == self.ballot:
            self._advance(common)

    def _advance(self, index: int) -> None:
        if index <= self.committed:
            return
        for entry in self.log.entries(self.committed + 1, index):
            self.standing = self.standing.after(entry)
        self.committed = index
        self._changed = True

    def _settle(self, committed: int) -> None:
        if committed > self.settled:
            self._fresh += self.log.entries(self.settled + 1, committed)
            self.settled = committed
        self.log.release(min(self.settled, self._durable))

    # ------------------------------------------------------------ saying

    def _say(self, to: Actor, message: Message) -> None:
        """Send a message once all earlier changes are on this member's disk."""
        number = self._number + self._changed
        self._held_back.append((number, Send(to, message)))

    def _release(self) -> None:
        while self._held_back and self._held_back[0][0] <= self._written:
            self._out.append(self._held_back.popleft()[1])
