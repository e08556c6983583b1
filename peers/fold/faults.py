"""The incidents of a run, one entry for each: actor, time, reason, cost, and the time of recovery.

Several events report one incident: a peer is fenced, then lost; the step is decided without it; then its cost is
reported. If several incidents fall into one step, the step's cost is divided among them.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peers.fold import reading
from peers.fold.reading import MOST_ROSTER, Record

if TYPE_CHECKING:
    from peers.fold.state import RunState

MOST_FAULTS = 500
LEFT = "left"
"""The beginning of the reason that the log gives for the loss of a peer which had announced that it leaves."""
EXPELLED = "expelled"
"""The reason that the log gives for the loss of an expelled peer. Why it is expelled is told before or after."""
OVER = "the run is over"
"""The beginning of the reason that the log gives for a peer that left after the last step."""


@dataclass(slots=True)
class FaultRecord:
    id: int
    at: float
    kind: str
    """fenced, lost, slow, aborted, rolled back, expelled, dropped (an evaluation), waiting, diverged, out of memory,
    restart or failover.
    """
    actor: str
    """The actor of the incident. Empty if the incident concerns no single peer."""
    stage: int | None
    step: int
    pass_id: str
    reason: str
    microbatches: int = 0
    """Number of microbatches that must be computed again."""
    finished: int = 0
    """How many of these microbatches had been accumulated."""
    seconds: float = 0.0
    tokens: int = 0
    recovered_at: float | None = None
    """The time at which the first moved frame arrived, if a peer's log reports it; otherwise the time of the decision.
    """
    decided: bool = False
    """True if `recovered_at` is the time of the decision."""
    costed: bool = False


@dataclass(slots=True)
class Faults:
    items: list[FaultRecord] = field(default_factory=list)
    """The newest incidents, with consecutive ids."""
    number: int = 0
    """Number of all incidents so far."""
    seconds: float = 0.0
    tokens: int = 0
    """Tokens lost by all incidents so far."""
    pending: list[int] = field(default_factory=list)
    """Ids of incidents whose step is not decided yet."""
    unpaid: list[int] = field(default_factory=list)
    """Ids of the incidents in the step that was decided last. Their cost may be reported next."""
    waiting_since: float | None = None
    waiting_for: str = ""
    back: int = 0
    """Id of the open restart or failover. It ends with the next pass, when the run stops on purpose, or when the next
    restart or failover begins. 0: there is none.
    """
    led: str = ""
    """The coordinator that led before."""
    usual: list[float] = field(default_factory=list)
    """Tokens/s of the last steps."""

    def get(self, number: int) -> FaultRecord | None:
        index = number - self.items[0].id if self.items else -1
        return self.items[index] if 0 <= index < len(self.items) else None

    def add(self, state: RunState, fault: FaultRecord) -> FaultRecord:
        self.number += 1
        fault.id = self.number
        self.items.append(fault)
        del self.items[:-MOST_FAULTS]
        if fault.actor:
            member = state.members.here.get(fault.actor)
            if member is not None:
                member.faults += 1
            elif (left := state.members.gone.get(fault.actor)) is not None:
                left.faults += 1
            state.people.of(reading.peer_of(fault.actor)).faults += 1
        return fault

    def charge(self, fault: FaultRecord, seconds: float, tokens: int) -> None:
        fault.seconds += seconds
        fault.tokens += tokens
        self.seconds += seconds
        self.tokens += tokens
        fault.costed = True

    def open_of(self, actor: str) -> FaultRecord | None:
        """The incident of this actor in the undecided step."""
        for number in self.pending:
            fault = self.get(number)
            if fault is not None and fault.actor == actor:
                return fault
        return None

    # ------------------------------------------------------------ called by other parts

    def decided(self, state: RunState, step: int, at: float) -> None:
        for number in self.pending:
            fault = self.get(number)
            if fault is not None and fault.recovered_at is None:
                hung_on_it = bool(fault.pass_id or fault.costed or fault.kind in ("rolled back", "expelled"))
                fault.recovered_at, fault.decided = at if hung_on_it else fault.at, True
        disturbed = bool(self.pending)
        self.unpaid = [number for number in self.pending if (f := self.get(number)) is not None and not f.costed]
        self.pending = []
        last = state.work.steps[-1]
        if not disturbed and last.seconds:
            self.usual.append(last.tokens / last.seconds)
            del self.usual[:-8]

    def waits(self, state: RunState, reason: str, at: float) -> None:
        """Record that no step can start."""
        if self.waiting_since is None and state.run.step >= 0 and not state.run.finished:
            self.waiting_since = at
        self.waiting_for = reason

    def deliberate(self, at: float) -> None:
        """Record that the run waits on purpose: a pause was ordered, or the run is over. So no incident causes the
        wait.
        """
        self.waiting_since = None
        self._end_absence(at)

    def resumed(self, state: RunState, kind: str, at: float) -> None:
        """Record that a pass has opened."""
        since, self.waiting_since = self.waiting_since, None
        if self._end_absence(at):
            return
        if since is not None and at > since and not (state.run.told and self.pending):
            # otherwise a loss came before this wait; that loss began earlier, and its cost is reported with the step
            reason, step = self.waiting_for, state.run.step + 1
            fault = self.add(state, FaultRecord(0, since, "waiting", "", None, step, "", reason, recovered_at=at))
            self.charge(fault, at - since, self._tokens(at - since))

    def coordinator_back(self, state: RunState, actor: str, at: float, last_at: float, died: bool) -> None:
        """The leading or only coordinator has started again. `last_at`: the time of its last event before. `died`: True
        if it had not reported that it stops.
        """
        self.waiting_since = None
        self._end_absence(last_at)
        if died and state.run.step >= 0 and not state.run.finished:
            reason = f"the coordinator died, and was away for {max(0.0, at - last_at):.0f} s"
            self.back = self.add(state, FaultRecord(0, last_at, "restart", "", None, state.run.step + 1, "", reason)).id

    def leader_changed(self, state: RunState, actor: str, before: str | None, at: float) -> None:
        led, self.led = self.led, actor
        if not led or led == actor or state.run.finished:
            return
        old = state.run.coordinators.get(led)
        since = min(at, old.last_at) if old is not None else at
        self._end_absence(since)
        reason = f"coordinator {led} no longer leads: {actor} leads"
        self.back = self.add(state, FaultRecord(0, since, "failover", "", None, state.run.step + 1, "", reason)).id

    def _end_absence(self, at: float) -> bool:
        """End the open restart or failover, and charge it. False: there is none."""
        back, self.back = self.get(self.back), 0
        if back is None:
            return False
        back.recovered_at = max(back.at, at)
        self.charge(back, back.recovered_at - back.at, self._tokens(at - back.at))
        return True

    def _tokens(self, seconds: float) -> int:
        return int(statistics.median(self.usual) * max(0.0, seconds)) if self.usual else 0


def fenced(state: RunState, record: Record, at: float, source: str) -> None:
    actor, stage, pass_id = reading.name(record, "actor"), reading.stage(record), reading.name(record, "pass_id")
    finished = len(reading.listing(record, "finished", MOST_ROSTER))
    unfinished = len(reading.listing(record, "unfinished", MOST_ROSTER))
    reason, step = reading.text(record, "reason"), reading.step_of(pass_id)
    faults = state.faults
    fault = faults.open_of(actor)
    if fault is None:
        fault = faults.add(state, FaultRecord(0, at, "fenced", actor, stage, step, pass_id, reason))
        _pend(faults, fault)
    fault.pass_id = pass_id
    fault.microbatches += finished + unfinished
    fault.finished += finished


def lost(state: RunState, record: Record, at: float, source: str) -> None:
    """Record the loss of a peer. Call it before the actor is removed from the members."""
    actor, reason = reading.name(record, "actor"), reading.text(record, "reason")
    stage = None if record.get("stage") is None else reading.stage(record)
    if (source != state.run.voice and state.run.coordinated) or actor not in state.members.here:
        return
    faults, opened = state.faults, state.pipeline.open
    fault = faults.open_of(actor)
    if fault is not None:
        fault.kind = "lost"
        if reason not in fault.reason:
            fault.reason = f"{fault.reason}; {reason}"[: reading.MOST_TEXT]
        return
    if reason.startswith(LEFT):
        return
    training = opened is not None and opened.kind == "train"
    inside = stage is not None and stage < len(state.pipeline.stages) and actor in state.pipeline.stages[stage].roster
    pass_id = opened.pass_id if training and inside and opened is not None else ""
    fault = faults.add(state, FaultRecord(0, at, "lost", actor, stage, state.run.step + 1, pass_id, reason))
    if training or reason == EXPELLED or (stage is not None and state.run.step >= 0):
        _pend(faults, fault)  # the peer's fence, or its cost with the step, may be reported next
    else:
        fault.recovered_at = at


def expelled(state: RunState, record: Record, at: float, source: str) -> None:
    actor, stage, step = reading.name(record, "actor"), reading.stage(record), reading.count(record, "step")
    reason = reading.text(record, "reason")
    faults = state.faults
    those = (f for f in reversed(faults.items) if f.actor == actor)
    known = next((f for f in those if f.kind == EXPELLED or f.reason.endswith(EXPELLED)), None)
    if known is not None:  # its loss was told first, maybe before the step was decided, or another leader has told it
        if not any(reason.endswith(each) for each in known.reason.split("; ")):
            known.reason = f"{reason}; {known.reason}"[: reading.MOST_TEXT]
    elif faults.open_of(actor) is None:
        _pend(faults, faults.add(state, FaultRecord(0, at, EXPELLED, actor, stage, step, "", reason)))


def aborted(state: RunState, record: Record, at: float, source: str) -> None:
    """Record an aborted attempt. It is a separate incident unless a peer's incident explains it."""
    pass_id, reason = reading.name(record, "pass_id"), reading.text(record, "reason")
    step, faults = reading.step_of(pass_id), state.faults
    if "+" in pass_id:
        return  # an evaluation
    for number in faults.pending:
        fault = faults.get(number)
        if fault is not None and fault.pass_id == pass_id:
            return
    _pend(faults, faults.add(state, FaultRecord(0, at, "aborted", "", None, step, pass_id, reason)))


def evaluation_dropped(state: RunState, record: Record, at: float, source: str) -> None:
    """Record a dropped evaluation. It is over at once, because no step is repeated for it."""
    version, who = reading.count(record, "version"), reading.names(record, "who", MOST_ROSTER)
    actor = who[0] if len(who) == 1 else ""
    stage = state.members.stage_of(actor) if actor else None
    fault = FaultRecord(0, at, "dropped", actor, stage, version, "", reading.text(record, "reason"), recovered_at=at)
    state.faults.add(state, fault)


def diverged(state: RunState, record: Record, at: float, source: str) -> None:
    """Record a divergence. The rollback that follows reports the cost."""
    step, reason = reading.count(record, "step", least=-1), reading.text(record, "reason")
    if source != state.run.voice and state.run.coordinated:
        return  # a former leader reports it too
    state.faults.add(state, FaultRecord(0, at, "diverged", "", None, step, "", reason, recovered_at=at))


def out_of_memory(state: RunState, record: Record, at: float, source: str) -> None:
    """Record, from a peer's own log, that memory ran out: the peer repeats its work."""
    actor, what = reading.name(record, "actor"), reading.text(record, "what")
    state.faults.add(
        state, FaultRecord(0, at, "out of memory", actor, None, state.run.step + 1, "", what, recovered_at=at)
    )


def rolled_back(state: RunState, record: Record, at: float, source: str) -> None:
    """Record a rollback. Call it before the steps are forgotten, because their time and tokens are lost."""
    version, reason = reading.count(record, "version"), reading.text(record, "reason")
    if version > state.run.step:
        return
    undone = [step for step in state.work.steps if step.step >= version]
    tokens = sum(step.tokens for step in undone)
    tokens += max(0, state.run.step + 1 - version - len(undone)) * (state.work.tokens_per_step or 0)
    fault = state.faults.add(state, FaultRecord(0, at, "rolled back", "", None, version, "", reason))
    state.faults.charge(fault, sum(step.seconds or 0.0 for step in undone), tokens)
    _pend(state.faults, fault)


def costed(state: RunState, record: Record, at: float, source: str) -> None:
    step, actors = reading.count(record, "step"), reading.names(record, "actors", MOST_ROSTER)
    pass_id, reason = reading.name(record, "pass_id"), reading.text(record, "reason")
    reasons = reading.texts(record, "reasons", MOST_ROSTER) if "reasons" in record else []
    microbatches, tokens = reading.count(record, "microbatches"), reading.count(record, "tokens")
    seconds = max(0.0, reading.number(record, "seconds"))
    faults = state.faults
    numbers = {*faults.unpaid, *faults.pending}  # the cost is reported shortly before or after the decision
    found = [fault for number in sorted(numbers) if (fault := faults.get(number)) is not None]
    found = [fault for fault in found if fault.kind != "rolled back" and not fault.costed]
    if "+" in pass_id:  # the cost of an evaluation, which is then over; other open incidents belong to the next step
        found = [fault for fault in found if fault.actor in actors]
        for fault in found:
            fault.step, fault.recovered_at, fault.decided = step, at, True
        faults.pending = [number for number in faults.pending if number not in {fault.id for fault in found}]
    else:
        found = [fault for fault in found if fault.step == step or "+" in fault.pass_id]
        found = [fault for fault in found if fault.pass_id or fault.actor in actors] or found
    known = {fault.actor for fault in found}
    for position, actor in enumerate(actors[:64]):
        if actor not in known and (actor in state.members.here or actor in state.members.gone):
            stage = state.members.stage_of(actor)
            why = reasons[position] if position < len(reasons) else reason
            slow = FaultRecord(0, at, "slow", actor, stage, step, pass_id, why, recovered_at=at, decided=True)
            found.append(faults.add(state, slow))
    if not found:
        found = [faults.add(state, FaultRecord(0, at, "aborted", "", None, step, pass_id, reason, recovered_at=at))]
    if len(found) == 1:
        found[0].microbatches = microbatches
    else:
        found[0].microbatches += max(0, microbatches - sum(fault.microbatches for fault in found))
    each, rest = divmod(tokens, len(found))
    for position, fault in enumerate(found):
        faults.charge(fault, seconds / len(found), each + (position < rest))
    faults.unpaid = []


def frame_recovered(state: RunState, record: Record, at: float, source: str) -> None:
    """Record, from a peer's own log, that the first moved frame of this pass has arrived."""
    pass_id = reading.name(record, "key").partition("/")[0]
    for fault in state.faults.items[-16:]:
        if fault.pass_id != pass_id or at < fault.at:
            continue
        if fault.recovered_at is None or (fault.decided and at < fault.recovered_at):
            fault.recovered_at, fault.decided = at, False


def _pend(faults: Faults, fault: FaultRecord) -> None:
    faults.pending.append(fault.id)
    del faults.pending[:-MOST_FAULTS]
