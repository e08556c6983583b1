"""Member: what the coordinator knows of one live actor. What it is listed by is changed by methods alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from swarm.protocol.ids import NEVER, Actor, PassId, StageIndex, Term
from swarm.protocol.messages import Decision, Join, Prepared, Seating, Status
from swarm.protocol.timeouts import Observed


class Listing(Protocol):
    """Lists of members by what is true of them: each member tells of its changes."""

    def moved(self, member: Member, before: int | None) -> None:
        """From the stage `before` to the one it has now."""

    def connected(self, member: Member) -> None:
        """Its connection broke, or is back."""

    def leaves(self, member: Member) -> None: ...

    def changed(self, stage: int | None) -> None:
        """Something else that the members of a stage are counted by."""


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
    listing: Listing | None = field(default=None, repr=False)
    """The lists that it stands in. None once it is gone."""

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
        before = self.status
        if before is None or _progress(before) != _progress(status):
            self.progress_at = self.heard_at
        if status.stage is not None:
            self.moving = self.moving and self.stage != status.stage
            if self.stage != status.stage and not self.moving and 0 <= status.stage < stages:
                self._set_stage(status.stage)
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
        """Take down what it says that its machine can do, if that can be true: it has introduced itself."""
        before = self._offered
        self.introduced = True
        self.capacity = report.capacity if 0.0 < report.capacity < math.inf else 1.0
        self.memory = report.memory
        self.offered_uplink = uplink if uplink is not None and _is_rate(uplink) else None
        self.downlink = report.downlink if report.downlink is not None and _is_rate(report.downlink) else None
        seating = report.seating
        self.seating = seating if seating is not None and self.actor.peer in seating.peers else None
        if self._offered != before:
            self._changed()

    @property
    def _offered(self) -> tuple[object, ...]:
        return self.introduced, self.capacity, self.memory, self.offered_uplink, self.seating

    def has_state(self) -> None:
        """What it was to take up is there: it can be waited for again."""
        self.assigned = self.waited_since = None
        self._set_given_up(False)

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
        self._set_given_up(True)
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
        self._set_stage(stage)
        self.version = None
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

    def disconnect(self, now: float) -> None:
        """Its connection broke."""
        self.lost_at = now
        if self.listing is not None:
            self.listing.connected(self)

    def reconnect(self) -> None:
        if self.lost_at is None:
            return
        self.lost_at = None
        if self.listing is not None:
            self.listing.connected(self)

    def leave(self, now: float) -> None:
        """It said that it is leaving."""
        self.leaving_since = now
        if self.listing is not None:
            self.listing.leaves(self)

    def bench(self, benched: bool) -> None:
        """Leave it out of this step, or not."""
        if benched != self.benched:
            self.benched = benched
            self._changed()

    def yield_place(self) -> None:
        """Its place is free until it has what it was assigned."""
        self._set_given_up(True)

    def measure(self, speed: float) -> None:
        """`speed`: as measured in a stage of this run."""
        if speed != self.speed:
            self.speed = speed
            self._changed()

    def _set_stage(self, stage: StageIndex) -> None:
        before, self.stage = self.stage, stage
        if before != stage and self.listing is not None:
            self.listing.moved(self, before)

    def _set_given_up(self, given_up: bool) -> None:
        if given_up != self.given_up:
            self.given_up = given_up
            self._changed()

    def _changed(self) -> None:
        if self.listing is not None:
            self.listing.changed(self.stage)

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


def _progress(status: Status) -> tuple[int, int | None, int | None]:
    return status.fetched, status.version, status.loading


def _is_rate(bytes_per_s: float) -> bool:
    return 1.0 <= bytes_per_s <= 1e12
