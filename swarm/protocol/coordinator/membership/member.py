"""Member: what the coordinator knows of one live actor. Fields that a list depends on change only through methods."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from swarm.protocol.ids import NEVER, Actor, PassId, StageIndex, Term
from swarm.protocol.messages import Decision, Join, Prepared, Seating, Status
from swarm.protocol.timeouts import Observed


class Listing(Protocol):
    """Lists of members by their properties. Each member reports its changes to them."""

    def moved(self, member: Member, before: int | None) -> None:
        """The member moved from the stage `before` to its current one."""

    def connected(self, member: Member) -> None:
        """Its connection broke, or is back."""

    def withheld_changed(self, member: Member) -> None:
        """The member begins to leave or to pause, or goes on."""

    def changed(self, stage: int | None) -> None:
        """Another property by which the members of a stage are counted has changed."""


@dataclass(slots=True)
class Member:
    """`stage` None: standing by, or not placed yet. `version` None: it has no usable state."""

    actor: Actor
    heard_at: float
    stage: StageIndex | None = None
    version: int | None = None
    preferred: StageIndex | None = None
    """The stage of which it has a checkpoint on disk."""
    interrupted: StageIndex | None = None
    """The stage whose state it was loading when it was lost, shortly before it came back."""
    capacity: float = 1.0
    """Its own estimate of its speed; comparable between members."""
    memory: int | None = None
    """Bytes of memory that it plans with, as it reports."""
    downlink: float | None = None
    """Bytes/s that it can receive, as it measured when it came."""
    offered_uplink: float | None = None
    """Bytes/s that it can send, as it measured when it came, or as its owner limits it."""
    seating: Seating | None = None
    """Its report about the process that it runs in."""
    speed: float | None = None
    """As `capacity`, but measured in a stage of this run (`StageCosts`)."""
    measurements: int = 0
    """Number of steps after which it was measured in its stage."""
    placed_at: float = 0.0
    """When it was given its stage, or came back with it."""
    has_counted: bool = False
    """True if a step was decided in which it had a part, since it came: it holds what its siblings hold."""
    shown: bool = False
    """True if its state was found to be what its siblings hold, since it loaded it (`Proofs`)."""
    has_worked: bool = False
    """True if the member has had a part in a pass in its stage."""
    standing_by: bool = False
    introduced: bool = False
    """True if it has reported what it holds (Join, Status). Before that it is not placed: it may hold a state."""
    recalled_at: float | None = None
    """When this record was taken over from an earlier leader's time; None once it has reported since."""
    lost_at: float | None = None
    """When its connection broke; None while connected."""
    assigned: tuple[int, int] | None = None
    """(stage, version) that it was told to load and has not reported yet."""
    prepared: Prepared | None = None
    """The newest Prepared of the open or last training pass, from a Prepared or a Status: either may be lost."""
    moving: bool = False
    """True if the member is told to leave its stage for `stage`. Otherwise the stage that it reports counts."""
    move_number: int = 0
    """Number of its last move, as in Assign."""
    waited_since: float | None = None
    """Since when the next pass waits for it to load the version."""
    given_up: bool = False
    """True if it did not load the version within a step budget. Until it has its assigned state, its place is free."""
    waits_in_vain: int = 0
    """How often that has happened since it last had a part in a decided step."""
    patience_until: float = 0.0
    """Until then no pass waits for it again, and its download of an older version is not interrupted."""
    listens_from: int | None = None
    """As a listener: the version that it was told to load, or held then. Sums are kept for it from that version on."""
    listens_since: PassId | None = None
    """The pass in which it was told to listen."""
    progress_at: float = 0.0
    """When its reports last showed progress: more bytes of a state or of sums, or another version."""
    enters_from: int = 0
    """The version from which on it may be in a roster although it lacks the last decision."""
    drifts: int = 0
    """How often its state differed from that of its siblings."""
    void_before: Term = NEVER
    """State that it was given under an older term is void, as after a rollback."""
    late: int = 0
    """How often it entered a roster that way and was too late, since it last had a part in a decided step."""
    benched: bool = False
    """True if it is left out of this step after earlier failures (`Probation`). Until then its place is free."""
    told: int = 0
    """How often it was told where to get a version: each time from another source."""
    told_at: float = -1.0
    leaving_since: float | None = None
    """When it reported that it is leaving. It gets no new work, and other peers are to take up its stage."""
    paused: str = ""
    """Why it computes nothing for now, as it reports; empty: it does. It gets no new work, and keeps its state."""
    paused_at: float = -math.inf
    """When that last changed."""
    absent: bool = False
    """True if the member has paused for so long that its place is free."""
    sequence: int = -1
    """Sequence number of its newest Join or Status."""
    status: Status | None = None
    gaps: Observed = field(default_factory=Observed)
    listing: Listing | None = field(default=None, repr=False)
    """The lists that it stands in. None once it is gone."""

    @property
    def seconds_per_microbatch(self) -> float | None:
        """The value that it reports, if it is plausible."""
        said = self.status.seconds_per_microbatch if self.status is not None else None
        return said if said is not None and 1e-6 <= said <= 1e6 else None

    @property
    def term(self) -> int:
        """The newest term that it reports to have heard of."""
        return self.status.term if self.status is not None else 0

    @property
    def uplink(self) -> float | None:
        """Bytes/s that it sends at most, if it reports a plausible value."""
        said = self.status.uplink if self.status is not None else None
        return said if said is not None and _is_rate(said) else None

    @property
    def links(self) -> dict[Actor, float]:
        """Bytes/s that it receives from each sender, as far as the reported values are plausible."""
        said = self.status.links if self.status is not None else ()
        return {link.sender: link.bytes_per_s for link in said if _is_rate(link.bytes_per_s)}

    def is_news(self, report: Join | Status) -> bool:
        """Return True if the report was sent after all reports received before."""
        if report.sequence <= self.sequence:
            return False
        self.sequence = report.sequence
        if self.recalled_at is not None:
            self.recalled_at, self.told_at = None, -1.0
        return True

    def join(self, join: Join) -> None:
        """It reports that it has no stage, which overrides this record. An order to load a stage that it has not
        received yet remains valid.
        """
        self._offers(join, join.uplink)
        self.preferred = join.stage
        if self.stage is not None and self.assigned is None:
            self.version = None
            self.shown = False
            self.told_at = -1.0

    def report(self, status: Status, stages: int, rolled_back: int = 0) -> bool:
        """Record what it reports. True if it holds another stage than recorded: it came back.

        `rolled_back`: the term of the last rollback. A state from before it belongs to a void history.
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
                self.shown = False
                self.standing_by = False
                came_back = True
            stands = status.stage == self.stage and status.state_term >= max(rolled_back, self.void_before)
            self.version = status.version if stands else None
            self.shown = self.shown and self.version is not None
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
        """The version that it reports to hold or load, if that is plausible. `rolled_back`: as in `report`."""
        said = self.status
        if said is None or said.stage != self.stage or said.state_term < max(rolled_back, self.void_before):
            return None
        at = said.version if said.loading is None else said.loading
        return at if at is not None and 0 <= at <= newest else None

    def listen(self, version: int, pass_id: PassId) -> None:
        """The member is told to listen from this version on."""
        self.listens_from, self.listens_since = version, pass_id
        self.progress_at = self.heard_at

    def has_heard(self, pass_id: PassId | None) -> bool:
        """Return True if the member reports that it was told of this pass, or a later one, as a listener."""
        heard = self.status.heard if self.status is not None else None
        return heard is not None and pass_id is not None and heard >= pass_id

    @property
    def has_heard_any(self) -> bool:
        """True if the member reports that it has listened."""
        return self.status is not None and self.status.heard is not None

    def came_late(self, version: int) -> None:
        """The member entered the roster of the pass over `version` too early: let it enter later next time."""
        self.late += 1
        self.enters_from = version + 2 ** min(self.late, 8)

    def _offers(self, report: Join | Status, uplink: float | None) -> None:
        """Record what its machine offers, as far as that is plausible. It has introduced itself."""
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
        """The member has loaded its assigned state: passes may wait for it again."""
        self.assigned = self.waited_since = None
        self._set_given_up(False)

    def is_waited_for(self, now: float, budget_s: float) -> bool:
        """True if the next pass waits for this member, which lacks the version: once for a step budget, then rarely.

        A member that was given up is waited for only until it is told again what to load.
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
        """Let it load without a pass that waits for it: each time for twice as long."""
        self.waited_since = None
        self._set_given_up(True)
        self.waits_in_vain += 1
        self.patience_until = now + budget_s * float(2 ** min(self.waits_in_vain, 8))

    def drifted(self, term: Term) -> None:
        """Its state differs from that of its siblings: it must load the state anew, under `term` or a later one."""
        self.drifts += 1
        self.void_before = term
        self.version = self.prepared = None
        self.shown = False
        self.listens_from = self.listens_since = None
        self.told_at = -1.0

    @property
    def standing(self) -> tuple[float, ...]:
        """Sort key for replicas that differ when it is unknown which is right: the lower one is believed."""
        return self.drifts, self.placed_at

    def worked(self) -> None:
        """The member had a part in a decided step: forget earlier failures."""
        self.has_state()
        self.waits_in_vain = self.late = self.enters_from = 0
        self.listens_from = self.listens_since = None
        self.patience_until = 0.0

    def place(self, stage: StageIndex, now: float) -> None:
        """Give `stage` to it; it had no stage before."""
        self._set_stage(stage)
        self.version = None
        self.shown = False
        self.standing_by = False
        self.placed_at, self.has_worked, self.measurements = now, False, 0
        self.listens_from = self.listens_since = None
        self.told_at = -1.0

    def move(self, stage: StageIndex, version: int, number: int, now: float) -> None:
        """Move it from its stage to `stage` at `version`. `number`: number of this move, as in Assign."""
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
        """The member reported that it is leaving."""
        self.leaving_since = now
        self._withhold()

    @property
    def is_withheld(self) -> bool:
        """True if the member gets no new work: it is leaving, or paused."""
        return self.leaving_since is not None or bool(self.paused)

    def pause(self, reason: str, now: float) -> None:
        """The member reports that it is paused; empty: that it goes on."""
        self.paused, self.paused_at, self.absent = reason, now, False
        self._withhold()

    def miss(self) -> None:
        """Its pause has taken so long that its place is free."""
        self.absent = True
        self._changed()

    def _withhold(self) -> None:
        if self.listing is not None:
            self.listing.withheld_changed(self)

    def bench(self, benched: bool) -> None:
        """Leave it out of this step, or let it in again."""
        if benched != self.benched:
            self.benched = benched
            self._changed()

    def yield_place(self) -> None:
        """Its place is free until it has its assigned state."""
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

    def is_current(self, version: int, decision: Decision | None) -> bool:
        """Return True if the member has `version`, or will have it once it has applied the last decision."""
        return self.version == version or self.can_apply(decision)

    def can_apply(self, decision: Decision | None) -> bool:
        """Return True if the member holds the reduced bytes of the last decided step, and needs only the decision."""
        if decision is None or self.prepared is None or self.stage is None:
            return False
        prepared, outcome = self.prepared, decision.outcomes[self.stage]
        return (
            self.version == decision.step
            and prepared.attempt.stage == self.stage
            and prepared.attempt.pass_id.step == decision.step
            and prepared.attempt.pass_id.term == decision.term  # equal bytes of an earlier attempt may be gone
            and prepared.attempt.number == outcome.number
            and prepared.digest == outcome.digest
        )


def _progress(status: Status) -> tuple[int, int | None, int | None]:
    return status.fetched, status.version, status.loading


def _is_rate(bytes_per_s: float) -> bool:
    return 1.0 <= bytes_per_s <= 1e12
