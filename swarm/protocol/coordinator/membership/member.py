"""The coordinator's record of one live actor.

Lists (`Listing`) depend on some of the fields. These fields change only through methods, which inform the lists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from swarm.protocol.ids import NEVER, Actor, Attempt, PassId, StageIndex, Term
from swarm.protocol.messages import Decision, Join, Prepared, Seating, Status
from swarm.protocol.stage_needs import ComputeKind
from swarm.protocol.timeouts import Observed

SHOWN = 2.0
"""A peer may take this multiple of the longest time that it has needed for a microbatch. Several microbatches may be
reported together.
"""
HIDDEN = 3.0
"""A peer counts as computing for at least the inverse of this, as a share of the time that its work takes it."""


class Listing(Protocol):
    """Keeps lists of members by their properties. Each member reports its changes to it."""

    def moved(self, member: Member, before: int | None) -> None:
        """The member moved from the stage `before` to its current one."""

    def connected(self, member: Member) -> None:
        """The member's connection broke or was restored."""

    def withheld_changed(self, member: Member) -> None:
        """The member begins or stops leaving or pausing."""

    def changed(self, stage: int | None) -> None:
        """Another property changed on which the number of available members of `stage` depends."""


@dataclass(slots=True)
class Member:
    """One live actor. If `stage` is None, it stands by or has no place yet. If `version` is None, it has no usable
    state.
    """

    actor: Actor
    heard_at: float
    stage: StageIndex | None = None
    version: int | None = None
    preferred: StageIndex | None = None
    """The stage of its newest checkpoint on disk."""
    interrupted: StageIndex | None = None
    """The stage whose state the actor was loading when it was lost. Set if it came back shortly afterwards."""
    capacity: float = 1.0
    """The member's own estimate of its speed, in microbatches per second through the whole model."""
    memory: int | None = None
    """Bytes of memory that it may use, as it reports."""
    kind: ComputeKind = ComputeKind.HOST_FP32
    """How it computes, as it reports."""
    downlink: float | None = None
    """Bytes/s that it can receive, as measured when it joined."""
    offered_uplink: float | None = None
    """Bytes/s that it can send, as measured when it joined, or as its owner limits it."""
    seating: Seating | None = None
    """What it reports about the process in which it runs."""
    speed: float | None = None
    """The same quantity as `capacity`, but measured in a stage of this run (`StageCosts`)."""
    measurements: int = 0
    """Number of steps after which it was measured in its stage."""
    came_back_at: float = -math.inf
    """The time when it last reported a stage that this record did not name."""
    roamed: int = 0
    """How often it reported another stage than before without having been told to move."""
    placed_at: float = 0.0
    """The time when it received its stage, or came back with it."""
    has_counted: bool = False
    """True if it took part in a decided step since it joined. This shows that it holds the same state as its siblings.
    """
    computed: int = -1
    """The version after the last decided step in which it took part; −1: none, or the run has gone back since."""
    shown: bool = False
    """True if its state was proven equal to that of its siblings since it was loaded (`Proofs`)."""
    has_worked: bool = False
    """True if it took part in a pass in its stage."""
    standing_by: bool = False
    introduced: bool = False
    """True if it has reported its state (Join or Status). Until then it gets no stage, because it may already hold one.
    """
    recalled_at: float | None = None
    """The time when this record was made from a report to an earlier leader. None once the member has reported again,
    or if it never was.
    """
    lost_at: float | None = None
    """The time when its connection broke; None while connected."""
    assigned: tuple[int, int] | None = None
    """(stage, version) that the member was told to load. None once it has reported that it loads or holds them."""
    prepared: Prepared | None = None
    """The newest Prepared of the open or last training pass. It comes from a Prepared or a Status message, because
    either message may be lost.
    """
    moving: bool = False
    """True if it was told to move to `stage` and has not arrived. Otherwise the stage that it reports counts."""
    move_number: int = 0
    """The number of its last move, as in `Assign.move`."""
    waited_since: float | None = None
    """The time since which the next pass has been waiting for this member to load the version."""
    given_up: bool = False
    """True if it did not load the version within a step budget. Its place is free until it has its assigned state."""
    waits_in_vain: int = 0
    """How often a pass has waited for it without success since it last took part in a decided step."""
    patience_until: float = 0.0
    """The time until which no pass waits for the member again, and its download of an older version is not
    interrupted.
    """
    listens_from: int | None = None
    """If it listens: the version that it was told to load, or that it held at that time. Donors keep sums for it from
    this version on.
    """
    listens_since: PassId | None = None
    """If it listens: the pass in which it was told to listen."""
    progress_at: float = 0.0
    """The time when its reports last showed progress: more bytes of a state or of sums, or a new version."""
    enters_from: int = 0
    """The version from which on it may be in a roster although it lacks the last decision."""
    drifts: int = 0
    """How often its state differed from that of its siblings."""
    void_before: Term = NEVER
    """Its state is void if it received it under an older term than this, as after a rollback."""
    late: int = 0
    """How often it entered a roster without the last decision and was too late, since it last took part in a decided
    step.
    """
    benched: bool = False
    """True if it gets no work in this step because of earlier failures (`Probation`). Meanwhile another peer may take
    its place.
    """
    on_probation: bool = False
    """True if it is benched because of its strikes. If an audit needs it, it is taken off the bench."""
    idle: bool = False
    """True if it was alone in its stage and did nothing (`Idle`): another peer may take a place beside it."""
    told: int = 0
    """How often it was told where to fetch a version. It is told another source each time."""
    told_at: float = -1.0
    leaving_since: float | None = None
    """The time when it reported that it is leaving. It gets no new work, and other peers take up its stage."""
    paused: str = ""
    """The reason why it is paused, as it reports. Empty: it is not paused. A paused member gets no new work and keeps
    its state.
    """
    paused_at: float = -math.inf
    """The time when `paused` last changed."""
    absent: bool = False
    """True if it has paused for so long that another peer may take its place."""
    sequence: int = -1
    """Sequence number of its newest Join or Status."""
    status: Status | None = None
    gaps: Observed = field(default_factory=Observed)
    reducing: Observed = field(default_factory=Observed)
    """For each reduction in which it had a part in its present stage: the seconds until it was prepared, from the time
    when the stage had accumulated everything.
    """
    finishing: Observed = field(default_factory=Observed)
    """Seconds per finished microbatch in its stage, between two reports of progress while it had work."""
    taking: Observed = field(default_factory=Observed)
    """Seconds per microbatch of each step in which it had work in its present stage, from the opening until its last
    progress. They include the time for which it waited for others.
    """
    listing: Listing | None = field(default=None, repr=False)
    """The lists that contain the member. None once the member is gone."""

    @property
    def seconds_per_microbatch(self) -> float | None:
        """The seconds per microbatch that it reports. None if it has reported none, or an implausible value."""
        said = self.status.seconds_per_microbatch if self.status is not None else None
        return said if said is not None and 1e-6 <= said <= 1e6 else None

    @property
    def shown_seconds_per_microbatch(self) -> float | None:
        """The same, but not more than what its progress has shown: otherwise a peer could claim to be so slow that
        others wait for it for ever. None if it has reported no progress in its stage.
        """
        said, longest = self.seconds_per_microbatch, self.finishing.quantile(1.0)
        return None if said is None or longest is None else min(said, SHOWN * longest)

    @property
    def least_seconds_per_microbatch(self) -> float | None:
        """A lower bound of its seconds per microbatch, from the step of the last ones in which it was fastest.
        Otherwise a peer could claim to be so fast that it gets nearly all the work of its stage. None if it has had no
        work in its stage.
        """
        best = self.taking.quantile(0.0)
        return None if best is None else best / HIDDEN

    @property
    def term(self) -> int:
        """The newest term that the member knows, as it reports."""
        return self.status.term if self.status is not None else 0

    @property
    def uplink(self) -> float | None:
        """The member's upload limit in bytes/s, if it reports a plausible value."""
        said = self.status.uplink if self.status is not None else None
        return said if said is not None and _is_rate(said) else None

    @property
    def links(self) -> dict[Actor, float]:
        """Bytes/s that the member receives from each sender. Implausible values are left out."""
        said = self.status.links if self.status is not None else ()
        return {link.sender: link.bytes_per_s for link in said if _is_rate(link.bytes_per_s)}

    def is_news(self, report: Join | Status) -> bool:
        """Return True if the report was sent after all reports received so far."""
        if report.sequence <= self.sequence:
            return False
        self.sequence = report.sequence
        if self.recalled_at is not None:
            self.recalled_at, self.told_at = None, -1.0
        return True

    def join(self, join: Join) -> None:
        """Record that the member reports to have no stage, whatever this record says.

        If it was told to load a stage and has not received this order yet, the order remains valid.
        """
        self._offers(join, join.uplink)
        self.preferred = join.stage
        if self.stage is not None and self.assigned is None:
            self.version = None
            self.shown = False
            self.told_at = -1.0

    def report(self, status: Status, stages: int, rolled_back: int = 0, heartbeat_s: float = 0.0) -> bool:
        """Record a status. Return True if the member came back with a stage that differs from the recorded one. This
        counts once per heartbeat: it may pause the run, and the event log contains it.

        `rolled_back`: the term of the last rollback. A state from before it belongs to a void history.
        """
        came_back = False
        before = self.status
        if before is None or _progress(before) != _progress(status):
            self.progress_at = self.heard_at
        if status.stage is not None:
            self.moving = self.moving and self.stage != status.stage
            is_other = self.stage != status.stage and not self.moving and 0 <= status.stage < stages
            if is_other and self.heard_at - self.came_back_at >= heartbeat_s:
                self.came_back_at = self.heard_at
                self.roamed += before is not None and before.stage == self.stage is not None
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
            self.prepares(status.prepared)
        elif status.stage is None or status.version is None or status.fenced:
            self.prepared = None
        return came_back

    def prepares(self, prepared: Prepared) -> None:
        """Record that the member has the reduced bytes of an attempt. A late message about an older attempt is ignored:
        otherwise the member would seem to lack the bytes of the last decision, and might be moved with the only copy.
        """
        if self.prepared is None or _order(prepared.attempt) >= _order(self.prepared.attempt):
            self.prepared = prepared

    def at(self, rolled_back: int, newest: int) -> int | None:
        """Return the version that the member reports to hold or load, if plausible. `rolled_back`: as in `report`."""
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
        """Return True if the member reports that it listens to this pass or a later one."""
        heard = self.status.heard if self.status is not None else None
        return heard is not None and pass_id is not None and heard >= pass_id

    @property
    def has_heard_any(self) -> bool:
        """True if the member reports that it has listened to any pass."""
        return self.status is not None and self.status.heard is not None

    def came_late(self, version: int) -> None:
        """The member entered the roster of the pass over `version` too early. Delay its next entry."""
        self.late += 1
        self.enters_from = version + 2 ** min(self.late, 8)

    def _offers(self, report: Join | Status, uplink: float | None) -> None:
        """Record the resources that the report offers, if they are plausible. After this, the member has introduced
        itself.
        """
        before = self._offered
        self.introduced = True
        self.capacity = report.capacity if 0.0 < report.capacity < math.inf else 1.0
        self.memory, self.kind = report.memory, report.kind
        self.offered_uplink = uplink if uplink is not None and _is_rate(uplink) else None
        self.downlink = report.downlink if report.downlink is not None and _is_rate(report.downlink) else None
        seating = report.seating
        self.seating = seating if seating is not None and self.actor.peer in seating.peers else None
        if self._offered != before:
            self._changed()

    @property
    def _offered(self) -> tuple[object, ...]:
        return self.introduced, self.capacity, self.memory, self.kind, self.offered_uplink, self.seating

    def has_state(self) -> None:
        """The member has loaded the state that it was told to load. Passes may wait for it again."""
        self.assigned = self.waited_since = None
        self._set_given_up(False)

    def is_waited_for(self, now: float, budget_s: float) -> bool:
        """Return True if the next pass waits for this member, which lacks the version.

        A pass waits for one step budget. If the member does not load the version in that time, `give_up` sets a period
        without waiting, which doubles each time.
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
        """Let the member load for a period in which no pass waits for it. This period doubles each time."""
        self.waited_since = None
        self._set_given_up(True)
        self.waits_in_vain += 1
        self.patience_until = now + budget_s * float(2 ** min(self.waits_in_vain, 8))

    def drifted(self, term: Term) -> None:
        """The member's state differs from that of its siblings. It must load the state again, under `term` or a later
        one.
        """
        self.drifts += 1
        self.void_before = term
        self.version = self.prepared = None
        self.shown = False
        self.listens_from = self.listens_since = None
        self.told_at = -1.0

    @property
    def standing(self) -> tuple[float, ...]:
        """Sort key for replicas whose states differ, if it is unknown which state is right. The replica with the lowest
        key is believed.
        """
        return self.drifts, self.placed_at

    def worked(self, version: int) -> None:
        """The member took part in a decided step, which results in this version. Forget earlier failures."""
        self.computed = version
        self.has_state()
        self.waits_in_vain = self.late = self.enters_from = 0
        self.listens_from = self.listens_since = None
        self.patience_until = 0.0

    def place(self, stage: StageIndex, now: float) -> None:
        """Give `stage` to the member, which had no stage before."""
        self._set_stage(stage)
        self.version = None
        self.shown = False
        self.standing_by = False
        self.placed_at, self.has_worked, self.measurements = now, False, 0
        self.listens_from = self.listens_since = None
        self.told_at = -1.0

    def move(self, stage: StageIndex, version: int, number: int, now: float) -> None:
        """Move the member from its stage to `stage` at `version`. `number`: as in `Assign.move`."""
        self.place(stage, now)
        self.prepared = None
        self.assigned = (stage, version)
        self.moving, self.move_number = True, number

    def disconnect(self, now: float) -> None:
        """The member's connection broke."""
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
    def is_on_call(self) -> bool:
        """True if its process added it because a stage had no peer. It leaves when the stage does not need it."""
        return self.seating is not None and self.seating.on_call

    @property
    def is_withheld(self) -> bool:
        """True if the member gets no new work, because it is leaving or paused."""
        return self.leaving_since is not None or bool(self.paused)

    @property
    def yields(self) -> bool:
        """True if another peer may take a place beside the member, because it was paused for long or is idle."""
        return self.absent or self.idle

    @property
    def takes_part(self) -> bool:
        """True if the member has worked in its stage and nothing keeps it from working there in the next steps.

        If the last step was decided without it, it still fetches the sums of that step.
        """
        kept_away = self.benched or self.is_withheld or self.given_up
        return self.has_worked and self.lost_at is None and not kept_away

    def pause(self, reason: str, now: float) -> None:
        """The member reports that it is paused, with the reason, or that it continues (empty)."""
        self.paused, self.paused_at, self.absent = reason, now, False
        self._withhold()

    def miss(self) -> None:
        """The member has been paused for so long that another peer may take its place."""
        self.absent = True
        self._changed()

    def _withhold(self) -> None:
        if self.listing is not None:
            self.listing.withheld_changed(self)

    def bench(self, benched: bool, on_probation: bool = False) -> None:
        """Leave the member out of this step, or let it take part again. `on_probation`: as the field."""
        self.on_probation = benched and on_probation
        if benched != self.benched:
            self.benched = benched
            self._changed()

    def note_idle(self, idle: bool) -> None:
        if idle != self.idle:
            self.idle = idle
            self._changed()

    def yield_place(self) -> None:
        """Let another peer take the member's place until the member has loaded its state."""
        self._set_given_up(True)

    def measure(self, speed: float) -> None:
        """Record a speed that was measured in a stage of this run."""
        if speed != self.speed:
            self.speed = speed
            self._changed()

    def _set_stage(self, stage: StageIndex) -> None:
        before, self.stage = self.stage, stage
        if before != stage:
            self.finishing, self.reducing, self.taking = Observed(), Observed(), Observed()
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
        """Return True if the member holds the reduced bytes of the last decided step, and lacks only the decision."""
        if decision is None or self.prepared is None or self.stage is None:
            return False
        prepared, outcome = self.prepared, decision.outcomes[self.stage]
        return (
            self.version == decision.step
            and prepared.attempt.stage == self.stage
            and prepared.attempt.pass_id.step == decision.step
            # equal bytes of an earlier attempt may be discarded by now
            and prepared.attempt.pass_id.term == decision.term
            and prepared.attempt.number == outcome.number
            and prepared.digest == outcome.digest
        )


def _order(attempt: Attempt) -> tuple[PassId, int, int]:
    return attempt.pass_id, attempt.number, attempt.partner


def _progress(status: Status) -> tuple[int, int | None, int | None]:
    return status.fetched, status.version, status.loading


def _is_rate(bytes_per_s: float) -> bool:
    return 1.0 <= bytes_per_s <= 1e12
