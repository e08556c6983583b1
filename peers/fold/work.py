"""The decided steps, which peers contributed to them and how fast, and what the peers did meanwhile."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peers.fold import reading
from peers.fold.links import add, told
from peers.fold.members import USAGE_KEYS, own_report
from peers.fold.packed import Packed
from peers.fold.reading import MOST_STAGES, Malformed, Record, a_count, a_number
from peers.fold.window import Window

if TYPE_CHECKING:
    from peers.fold.state import RunState

MOST_STEPS = 64
"""Number of steps that are kept in detail."""
MOST_MICROBATCHES = 65_536
KINDS = ("forward", "backward", "waiting", "reducing", "applying", "recovering")
"""What a peer may spend its time on in a step."""
IDLE = frozenset(("paused", "finished", "stopping"))
"""The states in which there is no work to do. They do not reduce the goodput."""


@dataclass(slots=True)
class Step:
    step: int
    pass_id: str
    opened_at: float | None
    """The time at which the first attempt began."""
    decided_at: float
    tokens: int
    loss: float | None
    gradient_norm: float | None
    rate: float
    seconds: float | None = None
    tokens_per_second: float | None = None
    ideal: float | None = None
    """Tokens/s that these peers could process, according to the planner's rates."""
    efficiency: float | None = None
    skipped: bool = False
    replicas: list[int] = field(default_factory=list)
    without: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Work:
    steps: list[Step] = field(default_factory=list)
    tokens: int = 0
    """Tokens of all decided steps that were not rolled back."""
    tokens_per_step: int | None = None
    decided: int = 0
    """Number of decided steps in these logs, including rolled-back ones."""
    done: float = 0.0
    """Tokens of the decided steps for which `possible` was counted, without rolled-back ones."""
    possible: float = 0.0
    """Tokens that the peers present at the time could have processed, by the planner's rates."""
    possible_since: float | None = None
    """The time up to which `possible` has been counted."""
    minute: Window = field(default_factory=lambda: Window(5.0, 12))
    hour: Window = field(default_factory=lambda: Window(60.0, 60))
    opening: str = ""
    """The training pass that was opened last."""
    opening_step: int = -1
    """Its step, until the step is decided; then -1, because after a rollback the same step begins anew."""
    opening_at: float = 0.0
    """The time when the first attempt of that step began."""
    recorded: list[Step] = field(default_factory=list)
    """Followers' reports about steps that the leader's log lacks. The leader may die before it reports them."""

    def opened(self, pass_id: str, step: int, at: float) -> None:
        if step != self.opening_step:
            self.opening_at = at
        self.opening, self.opening_step = pass_id, step

    def spend(self, state: RunState, at: float) -> None:
        """Account for the time until `at`, at the current rates."""
        since, possible = self.possible_since, self.unspent(state, at)
        if since is None:
            self.possible_since = at if ideal_rate(state) is not None else None
            return
        self.possible_since = at
        if not possible:
            return
        self.possible += possible
        self.minute.add(since, at, 0.0, possible)
        self.hour.add(since, at, 0.0, possible)

    def unspent(self, state: RunState, at: float) -> float:
        """Tokens that could have been processed until `at`, at the current rates, and are not in `possible` yet."""
        since, ideal = self.possible_since, ideal_rate(state)
        if since is None or ideal is None or at <= since or state.run.word in IDLE:
            return 0.0
        return ideal * (at - since)

    def fill(self, state: RunState, decided: int) -> None:
        """Accept the reports up to step `decided`, whichever coordinator sent them. No other reports about these steps
        will come.
        """
        for step in self.recorded:
            if state.run.step < step.step <= decided:
                self.put(step)
                state.run.step = step.step
        self.recorded = []

    def put(self, step: Step) -> None:
        """Insert a step in its place, unless the step is known already."""
        place = len(self.steps)
        while place and self.steps[place - 1].step >= step.step:
            place -= 1
            if self.steps[place].step == step.step:
                return
        self.steps.insert(place, step)
        del self.steps[:-MOST_STEPS]
        self.decided += 1
        self.tokens += step.tokens
        self.tokens_per_step = step.tokens

    def undo(self, version: int) -> int:
        """Forget the steps from `version` on; returns their tokens."""
        tokens = 0
        while self.steps and self.steps[-1].step >= version:
            step = self.steps.pop()
            tokens += step.tokens
            if step.opened_at is not None:
                self.minute.add(step.opened_at, step.decided_at, -float(step.tokens), 0.0)
                self.hour.add(step.opened_at, step.decided_at, -float(step.tokens), 0.0)
        return tokens


def ideal_rate(state: RunState) -> float | None:
    """Tokens/s if no peer ever waited, which is the rate of the slowest stage. None: the log does not contain it."""
    rates, per_step, microbatches = state.pipeline.rates(), state.work.tokens_per_step, state.pipeline.microbatches
    if not rates or per_step is None or not microbatches:
        return None
    return min(rates) * per_step / microbatches


def step_decided(state: RunState, record: Record, at: float, source: str) -> None:
    step, tokens = reading.count(record, "step"), reading.count(record, "tokens")
    loss, norm = reading.loss(record, "loss"), reading.loss(record, "gradient_norm")
    without = reading.names(record, "without", reading.MOST_ROSTER)[:64]
    scale = reading.loss(record, "scale")
    rate = reading.number(record, "rate") if "rate" in record else 1.0
    assignments = reading.listing(record, "assignments", MOST_STAGES) if "assignments" in record else []
    added = [_shares(each) for each in assignments]
    work, run = state.work, state.run
    if _led_before(state, record, source):
        if step <= run.step:  # the end of an older log was read late: later events stand
            work.put(Step(step, "", None, at, tokens, loss, norm, rate, skipped=scale == 0.0, without=without))
        return
    work.recorded = [each for each in work.recorded if each.step > step]
    if step <= run.step:
        back_to(state, step)
    work.tokens_per_step = tokens
    work.spend(state, at)
    if work.possible_since is None and ideal_rate(state) is not None:
        work.possible_since = at
    opened_at = work.opening_at if work.opening_step == step else None
    pass_id = work.opening if work.opening_step == step else ""
    work.opening_step = -1
    if opened_at is not None and work.possible > 0:  # nothing was counted as possible while the first step ran
        work.done += tokens
        work.minute.add(opened_at, at, float(tokens), 0.0)
        work.hour.add(opened_at, at, float(tokens), 0.0)
    work.decided += 1
    work.tokens += tokens
    work.steps.append(
        Step(
            step,
            pass_id,
            opened_at,
            at,
            tokens,
            loss,
            norm,
            rate,
            seconds=None if opened_at is None else max(0.0, at - opened_at),  # two coordinators may have told the times
            ideal=ideal_rate(state),
            skipped=scale == 0.0,
            replicas=list(state.pipeline.replicas),
            without=without,
        )
    )
    del work.steps[:-MOST_STEPS]
    run.step = step
    _credit(state, tokens, added)
    state.faults.decided(state, step, at)
    state.pipeline.decided()


def recorded(state: RunState, record: Record, at: float, source: str) -> None:
    """Record a decision that a follower reports. The leader's own log says more, if it is read too."""
    step, leader = reading.count(record, "step"), reading.name(record, "leader")
    tokens = reading.count(record, "tokens") if "tokens" in record else 0
    work, run = state.work, state.run
    if not tokens or step <= run.step or any(each.step == step for each in work.recorded):
        return  # an older log, or a known step
    loss, norm = (None if record.get(key) is None else reading.loss(record, key) for key in ("loss", "gradient_norm"))
    skipped = reading.loss(record, "scale") == 0.0
    told = Step(step, "", None, at, tokens, loss, norm, reading.number(record, "rate"), skipped=skipped)
    if leader in run.coordinators:
        work.recorded = [*work.recorded[-MOST_STEPS + 1 :], told]
    else:
        work.put(told)
        run.step = step


def step_measured(state: RunState, record: Record, at: float, source: str) -> None:
    step = reading.count(record, "step")
    seconds, speed = reading.number(record, "seconds"), reading.number(record, "tokens_per_second")
    efficiency = reading.number(record, "efficiency")
    replicas = reading.counts(record, "replicas", MOST_STAGES)
    last = state.work.steps[-1] if state.work.steps else None
    if last is not None and last.step == step:
        last.seconds, last.tokens_per_second, last.efficiency = seconds, speed, efficiency
        last.replicas = replicas


def step_applied(state: RunState, record: Record, at: float, source: str) -> None:
    """Record an applied step from a peer's own log. Without a coordinator's log, it shows the progress of the run."""
    step = reading.count(record, "step")
    if not state.run.coordinated:
        state.run.step = step


def peer_worked(state: RunState, record: Record, at: float, source: str) -> None:
    if own_report(state, source):
        return
    actor = reading.name(record, "actor")
    told_seconds = record.get("seconds")
    if type(told_seconds) is not dict:
        raise Malformed("seconds")
    seconds = Packed({kind: a_number(told_seconds[kind]) for kind in KINDS if kind in told_seconds})
    links = record.get("links") or []
    usage = record.get("usage") or {}
    if type(links) is not list or len(links) > 64 or type(usage) is not dict or len(usage) > USAGE_KEYS:
        raise Malformed("links or usage")
    usage = {sys.intern(str(key)[:40]): a_number(value) for key, value in usage.items()}
    member = state.members.here.get(actor)
    if member is None:
        return
    member.last_at, member.seconds = at, seconds
    if usage:
        member.usage = Packed(usage)
    if links and (sent := told(state, actor, links)):
        member.sent += sum(sent.values())
        totals = state.people.of(member.peer).sent
        add(totals, sent)


def rolled_back(state: RunState, record: Record, at: float, source: str) -> None:
    back_to(state, reading.count(record, "version"))


def back_to(state: RunState, version: int) -> None:
    """The run went back: the steps from `version` on are void. Their tokens still count for the peers that trained
    them.
    """
    run, work = state.run, state.work
    state.results.back_to(version)
    if version > run.step:
        return
    known = len(work.steps)
    undone = work.undo(version)
    beyond = max(0, run.step + 1 - version - (known - len(work.steps)))
    undone += beyond * (work.tokens_per_step or 0)
    work.tokens = max(0, work.tokens - undone)
    work.done = max(0.0, work.done - undone)
    state.people.undone += undone
    run.step = version - 1


def _led_before(state: RunState, record: Record, source: str) -> bool:
    """True if the record comes from a former leader whose term is over."""
    run = state.run
    term = reading.count(record, "term") if "term" in record else run.term
    return source.startswith("coordinator") and source != run.voice != "" and term < run.term


def _shares(assignment: object) -> dict[int, int]:
    """The number of microbatches that each roster member added."""
    if type(assignment) is not list or len(assignment) > MOST_MICROBATCHES:
        raise Malformed("assignments")
    counted: dict[int, int] = {}
    for index in assignment:
        if type(index) is not int:
            raise Malformed("assignments")
        counted[index] = counted.get(index, 0) + 1
    for index in counted:
        a_count(index, least=-1)
    return counted


def _credit(state: RunState, tokens: int, added: list[dict[int, int]]) -> None:
    """Credit each member with the tokens of the microbatches that it added, by stage."""
    for index, shares in enumerate(added[: len(state.pipeline.stages)]):
        roster, total = state.pipeline.stages[index].roster, sum(shares.values())
        if not total or not roster:
            continue
        state.people.assigned = True
        stage, each = str(index), tokens / total
        for position, microbatches in shares.items():
            if not 0 <= position < len(roster):
                continue
            actor = roster[position]
            member = state.members.here.get(actor)
            gained = microbatches * each
            if member is not None:
                member.tokens[stage] = member.tokens.get(stage, 0.0) + gained
                member.last_at = max(member.last_at, state.run.last_at)
            elif (left := state.members.gone.get(actor)) is not None:
                left.tokens[stage] = left.tokens.get(stage, 0.0) + gained
            person = state.people.of(reading.peer_of(actor))
            person.tokens[stage] = person.tokens.get(stage, 0.0) + gained
