"""The members of the swarm, as the coordinator's core sees them, and the totals of former members."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peers.fold import reading
from peers.fold.packed import NOTHING, Packed
from peers.fold.reading import Malformed, Record

if TYPE_CHECKING:
    from peers.fold.state import RunState

MOST_MEMBERS = 20_000
MOST_GONE = 20_000
MOST_MACHINES = 1000
MOST_HISTORY = 16
"""Number of history entries that are kept for a member."""
MACHINE_KEYS = 16
USAGE_KEYS = 8


@dataclass(slots=True)
class Member:
    actor: str
    peer: str
    seen_at: float
    last_at: float
    """The time of the last event that mentions the member."""
    seconds_before: float = 0.0
    """Seconds as a member until `seen_at`: the coordinator forgets its members when it starts again."""
    stage: int | None = None
    joined_at: float | None = None
    """The time at which the member was given its stage, or told to stand by."""
    worked: bool = False
    """True if the member has worked in its stage since it joined."""
    fenced: str = ""
    """The pass in which the member was fenced."""
    leaving: str = ""
    """The reason why the member is about to leave."""
    paused: str = ""
    """The reason why the member computes nothing at present."""
    trouble: str = ""
    """The trouble that it reported last; empty: none since it was given its stage."""
    machine: dict[str, str | float] = field(default_factory=dict)
    usage: Packed = NOTHING
    seconds: Packed = NOTHING
    """Seconds of the member's last pass, by kind of work."""
    tokens: dict[str, float] = field(default_factory=dict)
    """Number of tokens in the microbatches that the member added, by stage."""
    sent: int = 0
    """Bytes sent."""
    faults: int = 0
    history: list[list[str | float]] = field(default_factory=list)
    """The last entries of the member's history: time, text."""

    def note(self, at: float, words: str) -> None:
        self.history.append([at, words])
        if len(self.history) > MOST_HISTORY:
            del self.history[1]  # keep the entry about its arrival


@dataclass(slots=True)
class Gone:
    """Totals of an actor that has left the swarm."""

    actor: str
    peer: str
    stage: int | None
    seen_at: float
    left_at: float
    seconds: float
    """Seconds as a member."""
    reason: str
    tokens: dict[str, float]
    sent: int
    faults: int


@dataclass(slots=True)
class Members:
    here: dict[str, Member] = field(default_factory=dict)
    gone: dict[str, Gone] = field(default_factory=dict)
    """Former members, oldest first."""
    machines: dict[str, dict[str, str | float]] = field(default_factory=dict)
    """For each of the most recent former members, the data of its machine."""
    overlooked: int = 0
    """Number of members that were not recorded, because there were too many."""

    def stage_of(self, actor: str) -> int | None:
        """The stage of an actor; for a former member, its last stage."""
        member = self.here.get(actor) or self.gone.get(actor)
        return member.stage if member is not None else None

    def standby(self) -> int:
        return sum(member.stage is None for member in self.here.values())


def seen(state: RunState, record: Record, at: float, source: str) -> None:
    _member(state, reading.name(record, "actor"), at)


def joined(state: RunState, record: Record, at: float, source: str) -> None:
    """Record that a peer holds a stage. A peer's own log reports this too, which counts only without a coordinator's
    log.
    """
    actor, reason = reading.name(record, "actor"), reading.text(record, "reason")
    stage = None if record.get("stage") is None else reading.stage(record)
    if source != state.run.voice and state.run.coordinated:
        return
    member = _member(state, actor, at)
    if member is None:
        return
    if member.joined_at is None or member.stage != stage:
        member.worked = False
    member.stage, member.joined_at, member.last_at, member.trouble = stage, at, at, ""
    where = "stands by" if stage is None else f"joined stage {stage}"
    member.note(at, f"{where}: {reason}")


def moved(state: RunState, record: Record, at: float, source: str) -> None:
    """Record an order to move. The move is done when the peer has joined its new stage."""
    actor, stage = reading.name(record, "actor"), reading.stage(record)
    reason = reading.text(record, "reason")
    member = state.members.here.get(actor)
    if member is not None:
        member.note(at, f"is told to move to stage {stage}: {reason}")


def leaving(state: RunState, record: Record, at: float, source: str) -> None:
    member = state.members.here.get(reading.name(record, "actor"))
    reason = reading.text(record, "reason")
    if member is not None:
        member.leaving = reason or "asked to"
        member.note(at, f"is leaving: {reason}")


def paused(state: RunState, record: Record, at: float, source: str) -> None:
    member = state.members.here.get(reading.name(record, "actor"))
    reason = reading.text(record, "reason")
    if member is not None:
        member.paused = reason or "asked to"
        member.note(at, f"is paused: {reason}")


def resumed(state: RunState, record: Record, at: float, source: str) -> None:
    member = state.members.here.get(reading.name(record, "actor"))
    if member is not None:
        member.paused = ""
        member.note(at, "goes on")


def troubled(state: RunState, record: Record, at: float, source: str) -> None:
    member = state.members.here.get(reading.name(record, "actor"))
    reason = reading.text(record, "reason")
    if member is not None:
        member.trouble = reason
        member.note(at, f"reports: {reason}")


def lost(state: RunState, record: Record, at: float, source: str) -> None:
    actor, reason = reading.name(record, "actor"), reading.text(record, "reason")
    if source == state.run.voice or not state.run.coordinated:
        end(state, actor, reason, at)


def gone(state: RunState, record: Record, at: float, source: str) -> None:
    lost(state, record, at, source)


def described(state: RunState, record: Record, at: float, source: str) -> None:
    if own_report(state, source):
        return
    member = state.members.here.get(reading.name(record, "actor"))
    machine = reading.flat(record.get("machine"), MACHINE_KEYS)
    if member is not None:
        member.machine = machine
        device = machine.get("device")
        state.people.of(member.peer).has_device(device if isinstance(device, str) else "")


def fenced(state: RunState, record: Record, at: float, source: str) -> None:
    member = state.members.here.get(reading.name(record, "actor"))
    pass_id, reason = reading.name(record, "pass_id"), reading.text(record, "reason")
    if member is not None:
        member.fenced = pass_id
        member.note(at, f"fenced in {pass_id}: {reason}")


def share_changed(state: RunState, record: Record, at: float, source: str) -> None:
    member = state.members.here.get(reading.name(record, "actor"))
    seconds, before = reading.number(record, "seconds"), reading.number(record, "before")
    microbatches = reading.count(record, "microbatches")
    if member is not None:
        member.note(
            at,
            f"needs {seconds:.3g} s per microbatch (was {before:.3g} s); its share is {microbatches} microbatches now",
        )


def own_report(state: RunState, source: str) -> bool:
    """True if the coordinator's log already contains what this peer's own log reports."""
    return state.run.coordinated and not source.startswith("coordinator")


def reset(state: RunState, at: float, reason: str) -> None:
    """A coordinator has started again. Forget the members, because all present peers introduce themselves again. `at`:
    the time until which they are known to have been here.
    """
    for actor in list(state.members.here):
        end(state, actor, reason, at)
    state.pipeline.forget()


def end(state: RunState, actor: str, reason: str, at: float) -> None:
    """End the membership of an actor; its totals stay."""
    members = state.members
    member = members.here.pop(actor, None)
    if member is None:
        return
    if not state.run.finished:  # when the run is over, keep the last state of the members
        state.links.forget(actor)
    person = state.people.of(member.peer)
    person.seconds += max(0.0, at - member.seen_at)
    person.last_at = max(person.last_at, at)
    members.gone.pop(actor, None)  # the newest comes last
    members.gone[actor] = Gone(
        actor,
        member.peer,
        member.stage,
        member.seen_at,
        at,
        member.seconds_before + max(0.0, at - member.seen_at),
        reason,
        member.tokens,
        member.sent,
        member.faults,
    )
    members.machines.pop(actor, None)
    members.machines[actor] = member.machine
    while len(members.machines) > MOST_MACHINES:
        del members.machines[next(iter(members.machines))]
    while len(members.gone) > MOST_GONE:
        del members.gone[next(iter(members.gone))]


def _member(state: RunState, actor: str, at: float) -> Member | None:
    """Return the member's record, creating it if needed; None if there are too many members."""
    members = state.members
    member = members.here.get(actor)
    if member is None:
        if not actor:
            raise Malformed("actor")
        if len(members.here) >= MOST_MEMBERS:
            members.overlooked += 1
            return None
        before = members.gone.get(actor)
        actor = sys.intern(actor)  # the string is shared by all parts, and with the states of other moments
        member = members.here[actor] = Member(actor, sys.intern(reading.peer_of(actor)), at, at)
        if before is not None:  # the same process, known from before the coordinator's restart
            member.tokens, member.sent, member.faults = dict(before.tokens), before.sent, before.faults
            member.machine, member.seconds_before = members.machines.pop(actor, {}), before.seconds
            del members.gone[actor]
        state.people.of(member.peer).last_at = at
    return member
