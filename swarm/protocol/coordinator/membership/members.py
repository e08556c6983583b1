"""Who is in the swarm, as the coordinator sees it: one record per live actor, and the choices made from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from swarm.protocol.coordinator.membership.crews import Crews
from swarm.protocol.ids import NEVER, Actor, PassId, StageIndex, Term
from swarm.protocol.messages import Decision, Join, Prepared, Seating, Status
from swarm.protocol.timeouts import Observed

MOST_TERMS_MISSED = 1 << 20
"""A peer that makes a term up moves the next one no further than that."""


@dataclass(slots=True)
class Member:
    """`stage` None: standing by (or not placed yet). `version` None: has no usable state."""

    actor: Actor
    heard_at: float
    stage: StageIndex | None = None
    version: int | None = None
    preferred: StageIndex | None = None
    """Of which stage it has a checkpoint on disk."""
    interrupted: StageIndex | None = None
    """Of which stage it was loading a state when it was lost, shortly before it came back."""
    capacity: float = 1.0
    """How fast it thinks it is; comparable between members."""
    memory: int | None = None
    """Bytes it plans with, as it says."""
    downlink: float | None = None
    """Bytes a second that it can receive, as it measured when it came."""
    offered_uplink: float | None = None
    """Bytes a second that it can send, as it measured when it came, or as its owner limits it."""
    seating: Seating | None = None
    """What it says of the process it runs in."""
    speed: float | None = None
    """As `capacity`, but measured in a stage of this run (`Capacities`)."""
    measurements: int = 0
    """After how many steps it was measured in its stage."""
    placed_at: float = 0.0
    """When it was given its stage, or came back with it."""
    has_worked: bool = False
    """It has had a part in a pass in its stage."""
    standing_by: bool = False
    introduced: bool = False
    """It has said (Join, Status) what it holds: before that it is not placed. It may hold a state from before."""
    recalled_at: float | None = None
    """When all that is known of it was taken over from the time in which another coordinator led."""
    lost_at: float | None = None
    """When its connection broke; None while connected."""
    assigned: tuple[int, int] | None = None
    """(stage, version) it was told to take up and has not reported yet."""
    prepared: Prepared | None = None
    """Newest that it said of the open (or last) training pass, by Prepared or in a Status: either may be lost."""
    moving: bool = False
    """It is told to leave its stage for `stage`; otherwise what it says of its stage counts."""
    move_number: int = 0
    """As in Assign: of its last move."""
    waited_since: float | None = None
    """Since when the next pass is put off until it has taken up the version."""
    given_up: bool = False
    """It did not take up the version in a whole step budget. Until it has what it was assigned, its place is free."""
    waits_in_vain: int = 0
    """How often that has happened since it last had a part in a decided step."""
    patience_until: float = 0.0
    """Before that it is not waited for again, nor is its download of an older version broken off."""
    listens_from: int | None = None
    """As a listener: the version that it was told to load, or held then. From there on sums are kept for it."""
    listens_since: PassId | None = None
    """The pass in which it was told so."""
    progress_at: float = 0.0
    """When its reports last said that more of a state or of sums has come, or that it is at another version."""
    enters_from: int = 0
    """The version from which on it may be in a roster though it lacks the last decision."""
    drifts: int = 0
    """How often what it held was not what its siblings did."""
    void_before: Term = NEVER
    """What it was given under an older term is void since then, as after a rollback."""
    late: int = 0
    """How often it was in a roster so, and too late, since it last had a part in a decided step."""
    benched: bool = False
    """It is left out of this step, since it failed in earlier ones (`Probation`). Until then its place is free."""
    told: int = 0
    """How often it was told where to get a version: each time another source."""
    told_at: float = -1.0
    leaving_since: float | None = None
    """When it said that it is leaving: it gets nothing new, and what it holds is to be held by others."""
    sequence: int = -1
    """Of the newest Join or Status."""
    status: Status | None = None
    gaps: Observed = field(default_factory=Observed)
    crews: Crews | None = field(default=None, repr=False)
    """Those of whose stages it is one: they hear of what changes. None once it is gone."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Whatever is written here, the lists by stage are right: whoever asks for them goes through a few members."""
        crews = getattr(self, "crews", None)
        if crews is None or name not in _LISTED:
            object.__setattr__(self, name, value)
            return
        before = getattr(self, name)
        object.__setattr__(self, name, value)
        if name == "stage" and before != value:
            crews.moved(self, before)
        elif name == "lost_at" and (before is None) != (value is None):
            crews.connected(self)
        elif name == "leaving_since":
            crews.leaves(self)
        elif before != value:
            crews.changed(self.stage)

    @property
    def seconds_per_microbatch(self) -> float | None:
        """As it says, if that can be true."""
        said = self.status.seconds_per_microbatch if self.status is not None else None
        return said if said is not None and 1e-6 <= said <= 1e6 else None

    @property
    def term(self) -> int:
        """The newest that it has heard of, as it says."""
        return self.status.term if self.status is not None else 0

    @property
    def uplink(self) -> float | None:
        """Bytes a second that it sends at most, if it says so and that can be true."""
        said = self.status.uplink if self.status is not None else None
        return said if said is not None and _is_rate(said) else None

    @property
    def links(self) -> dict[Actor, float]:
        """Bytes a second that come in from others, as it says, if that can be true."""
        said = self.status.links if self.status is not None else ()
        return {link.sender: link.bytes_per_s for link in said if _is_rate(link.bytes_per_s)}

    def is_news(self, report: Join | Status) -> bool:
        """Whether it was sent after all that was heard of it before."""
        if report.sequence <= self.sequence:
            return False
        self.sequence = report.sequence
        if self.recalled_at is not None:
            self.recalled_at, self.told_at = None, -1.0
        return True

    def join(self, join: Join) -> None:
        """It has no stage, whatever was thought. What it was told to take up meanwhile stands."""
        self.introduced = True
        self._offers(join, join.uplink)
        self.preferred = join.stage
        if self.stage is not None and self.assigned is None:
            self.version = None
            self.told_at = -1.0

    def report(self, status: Status, stages: int, rolled_back: int = 0) -> bool:
        """Take down what it says of itself. True when it holds another stage than it was thought to: it came back.

        `rolled_back`: the term of the last rollback. A state from before it is of a history that does not stand.
        """
        came_back = False
        self.introduced = True
        before = self.status
        if before is None or _progress(before) != _progress(status):
            self.progress_at = self.heard_at
        if status.stage is not None:
            self.moving = self.moving and self.stage != status.stage
            if self.stage != status.stage and not self.moving and 0 <= status.stage < stages:
                self.stage = status.stage
                self.placed_at, self.has_worked, self.measurements = self.heard_at, False, 0
                self.assigned = None
                self.standing_by = False
                came_back = True
            stands = status.stage == self.stage and status.state_term >= max(rolled_back, self.void_before)
            self.version = status.version if stands else None
            if self.assigned is not None and (status.stage, self.version) == self.assigned:
                self.has_state()
        self.status = status
        self._offers(status, status.offered_uplink)
        if status.prepared is not None:
            self.prepared = status.prepared
        elif status.stage is None or status.version is None or status.fenced:
            self.prepared = None
        return came_back

    def at(self, rolled_back: int, newest: int) -> int | None:
        """The version that it holds or loads, as it says, if that can be true. `rolled_back`: as in `report`."""
        said = self.status
        if said is None or said.stage != self.stage or said.state_term < max(rolled_back, self.void_before):
            return None
        at = said.version if said.loading is None else said.loading
        return at if at is not None and 0 <= at <= newest else None

    def listen(self, version: int, pass_id: PassId) -> None:
        """It is told to listen from this version on."""
        self.listens_from, self.listens_since = version, pass_id
        self.progress_at = self.heard_at

    def has_heard(self, pass_id: PassId | None) -> bool:
        """Whether it says that it was told of this pass, or a later one, as a listener."""
        heard = self.status.heard if self.status is not None else None
        return heard is not None and pass_id is not None and heard >= pass_id

    @property
    def has_heard_any(self) -> bool:
        """Whether it says that it has listened."""
        return self.status is not None and self.status.heard is not None

    def came_late(self, version: int) -> None:
        """It was in the roster of the pass over `version` without having caught up in time: next time later."""
        self.late += 1
        self.enters_from = version + 2 ** min(self.late, 8)

    def _offers(self, report: Join | Status, uplink: float | None) -> None:
        """Take down what it says that its machine can do, if that can be true."""
        self.capacity = report.capacity if 0.0 < report.capacity < math.inf else 1.0
        self.memory = report.memory
        self.offered_uplink = uplink if uplink is not None and _is_rate(uplink) else None
        self.downlink = report.downlink if report.downlink is not None and _is_rate(report.downlink) else None
        seating = report.seating
        self.seating = seating if seating is not None and self.actor.peer in seating.peers else None

    def has_state(self) -> None:
        """What it was to take up is there: it can be waited for again."""
        self.assigned = self.waited_since = None
        self.given_up = False

    def is_waited_for(self, now: float, budget_s: float) -> bool:
        """Whether the next pass is put off for it, which lacks the version: once, for a step budget, and then seldom.

        Who was given up is waited for only until it is told again what to load.
        """
        if now < self.patience_until:
            return False
        if self.waited_since is None:
            self.waited_since = now
        if now - self.waited_since < budget_s:
            return True
        self.give_up(now, budget_s)
        return False

    def give_up(self, now: float, budget_s: float) -> None:
        """It may load without being waited for: each time for twice as long."""
        self.waited_since = None
        self.given_up = True
        self.waits_in_vain += 1
        self.patience_until = now + budget_s * float(2 ** min(self.waits_in_vain, 8))

    def drifted(self, term: Term) -> None:
        """What it holds is not what its siblings do: it is to load the state anew, under `term` or a later one."""
        self.drifts += 1
        self.void_before = term
        self.version = self.prepared = None
        self.listens_from = self.listens_since = None
        self.told_at = -1.0

    @property
    def standing(self) -> tuple[float, ...]:
        """Who is believed when replicas differ and nobody can tell who is right: the lower."""
        return self.drifts, self.placed_at

    def worked(self) -> None:
        """It had a part in a decided step: what went wrong before that is forgiven."""
        self.has_state()
        self.waits_in_vain = self.late = self.enters_from = 0
        self.listens_from = self.listens_since = None
        self.patience_until = 0.0

    def place(self, stage: StageIndex, now: float) -> None:
        """It is to take up `stage`, and has none so far."""
        self.stage, self.version = stage, None
        self.standing_by = False
        self.placed_at, self.has_worked, self.measurements = now, False, 0
        self.listens_from = self.listens_since = None
        self.told_at = -1.0

    def move(self, stage: StageIndex, version: int, number: int, now: float) -> None:
        """It is to leave its stage and take up `stage` at `version`. `number`: of this move, as in Assign."""
        self.place(stage, now)
        self.prepared = None
        self.assigned = (stage, version)
        self.moving, self.move_number = True, number

    def can_apply(self, decision: Decision | None) -> bool:
        """Whether it holds the reduced bytes of the last decided step and needs only to be told."""
        if decision is None or self.prepared is None or self.stage is None:
            return False
        prepared, outcome = self.prepared, decision.outcomes[self.stage]
        return (
            self.version == decision.step
            and prepared.attempt.stage == self.stage
            and prepared.attempt.pass_id.step == decision.step
            and prepared.attempt.pass_id.term == decision.term  # equal bytes of an earlier attempt may be gone since
            and prepared.attempt.number == outcome.number
            and prepared.digest == outcome.digest
        )


_LISTED = frozenset(
    (
        "stage",
        "lost_at",
        "given_up",
        "benched",
        "leaving_since",
        "capacity",
        "memory",
        "speed",
        "introduced",
        "offered_uplink",
        "seating",
    )
)
"""Fields of a member that it is listed or counted by."""


def _progress(status: Status) -> tuple[int, int | None, int | None]:
    return status.fetched, status.version, status.loading


def _is_rate(bytes_per_s: float) -> bool:
    return 1.0 <= bytes_per_s <= 1e12


class Members:
    """Live actors by identity. A newer incarnation of a peer replaces the older one for good."""

    def __init__(self) -> None:
        self.first_heard_at: float | None = None
        """When anybody was heard for the first time in this life of the coordinator."""
        self._members: dict[Actor, Member] = {}
        self._newest: dict[str, int] = {}
        self._crews = Crews()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        return len(self._members)

    def get(self, actor: Actor) -> Member | None:
        return self._members.get(actor)

    def seconds_per_microbatch(self, actor: Actor) -> float | None:
        """As an actor says; None: it is gone, or has not measured any."""
        member = self._members.get(actor)
        return member.seconds_per_microbatch if member is not None else None

    def standing(self, actor: Actor) -> tuple[float, ...]:
        """As a member's; who is gone comes last."""
        member = self._members.get(actor)
        return member.standing if member is not None else (math.inf,)

    def companions(self, member: Member) -> list[Member]:
        """Others that share a member's process, as it says: it binds nobody else."""
        peers = member.seating.peers if member.seating is not None else ()
        those = (Actor(peer, self._newest.get(peer, -1)) for peer in peers if peer != member.actor.peer)
        return [self._members[actor] for actor in those if actor in self._members]

    def is_stale(self, actor: Actor) -> bool:
        return actor.incarnation < self._newest.get(actor.peer, actor.incarnation)

    def older(self, actor: Actor) -> list[Actor]:
        """Live records of earlier incarnations of the same peer."""
        newest = self._newest.get(actor.peer)
        if newest is None or newest >= actor.incarnation:
            return []
        before = Actor(actor.peer, newest)
        return [before] if before in self._members else []

    def add(self, actor: Actor, now: float) -> Member:
        """Its older incarnations have been removed before."""
        self._newest[actor.peer] = actor.incarnation
        if self.first_heard_at is None:
            self.first_heard_at = now
        member = Member(actor, now, crews=self._crews)
        self._members[actor] = member
        self._crews.came(member)
        return member

    def remove(self, actor: Actor) -> None:
        if (member := self._members.pop(actor, None)) is not None:
            self._crews.left(member)
            member.crews = None

    def next_term(self, term: Term) -> Term:
        """The one to take after `term`: above all that peers have heard of too, who are deaf to what is older.

        They have heard of newer ones only if our record is an older copy of itself.
        """
        heard = max((member.term for member in self._members.values()), default=0)
        return Term(max(term, min(heard, term + MOST_TERMS_MISSED)) + 1)

    def are_beyond(self, term: Term) -> bool:
        """Whether most of those that have spoken are deaf to what is said under `term`."""
        spoken = [member for member in self._members.values() if member.status is not None]
        return 2 * sum(member.term > term for member in spoken) > len(spoken)

    @property
    def lost(self) -> list[Member]:
        """Whose connection broke and is not back, in the order in which they came."""
        return self._crews.lost

    @property
    def changes(self) -> int:
        """Grows with whatever changes in who is here, where, and how fast."""
        return self._crews.changes

    @property
    def unplaced(self) -> list[Member]:
        """Those without a stage, in the order in which they came."""
        return self._crews.unplaced

    def of_stage(self, stage: int) -> list[Member]:
        """In the order of their names."""
        return self._crews.of_stage(stage)

    def crew(self, stage: int) -> list[Member]:
        """Those of a stage that can be counted on. Not to be changed."""
        return self._crews.counted_on(stage)

    def leaving(self) -> list[Actor]:
        """Those who have said that they are leaving."""
        return self._crews.leaving

    def has_successor(self, stage: int) -> bool:
        """Whether somebody could take up a stage when all that hold it now leave: a standby, or one of several."""
        if self.crew(stage) or self._crews.largest > 1:
            return True
        return any(m.introduced and m.lost_at is None and m.leaving_since is None for m in self.unplaced)
