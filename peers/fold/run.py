"""The processes that write logs, the run's state in words with the reason for it, and its progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peers.fold import members, reading
from peers.fold.faults import OVER
from peers.fold.links import life_begins
from peers.fold.reading import Record
from peers.fold.trouble import in_words
from peers.fold.work import back_to

if TYPE_CHECKING:
    from peers.fold.state import RunState

MOST_COORDINATORS = 64
MOST_CONTROLS = 200


@dataclass(slots=True)
class Coordinator:
    actor: str
    started_at: float
    last_at: float
    leads: bool = False
    stopped: str = ""
    """The reason that the process gave for its stop. Empty while it has not stopped."""


@dataclass(slots=True)
class Control:
    """A command of the organiser. `number` 0: it was refused, and `reason` says why."""

    at: float
    number: int
    command: str
    value: str
    by: str
    reason: str


@dataclass(slots=True)
class Run:
    run_hash: str | None = None
    role: str | None = None
    """The role of the process whose log comes first: coordinator or peer."""
    actor: str | None = None
    release: str | None = None
    source: str = ""
    """The source of the log that comes first. `doing` describes the process of this log."""
    doing: str = "nothing yet"
    """What the process of `source` does."""
    max_rate: int | None = None
    """The limit of the bytes/s that the process sends; None: no limit."""
    machine: str | None = None
    """The capacity of the process's machine, in words."""
    stopped: bool = False
    """True if the process reported that it stops, and has not started again."""
    voice: str = ""
    """The source of the leading coordinator's events. Its reports about members are used."""
    coordinated: bool = False
    """True if a coordinator's log is among the logs being read."""
    coordinators: dict[str, Coordinator] = field(default_factory=dict)
    leader: str | None = None
    """The leading coordinator, in a group of coordinators."""
    own_leader: str | None = None
    """The leader according to the process of `source`."""
    first_at: float | None = None
    last_at: float = 0.0
    """The times of the first and the last event: those of the coordinators, if their logs are read."""
    timed: bool = False
    """True if these times are from a coordinator's log."""
    word: str = ""
    """starting, waiting, training, …: as the core reports (StateChanged), or as derived from older logs."""
    reason: str = ""
    since: float | None = None
    told: bool = False
    """True if the core reports its state in this log."""
    step: int = -1
    """The last decided step."""
    steps: int | None = None
    """Number of steps that the organiser has set since the start; None: the manifest's number."""
    finished: bool = False
    finished_at: float | None = None
    term: int = 0
    controls: list[Control] = field(default_factory=list)
    trouble_at: float | None = None
    trouble: str = ""
    """The last event that needs attention, in words."""
    own_trouble_at: float | None = None
    own_trouble: str = ""
    """The last event in the log of `source` that needs attention, in words."""

    def says(self, word: str, reason: str, at: float) -> None:
        if (word, reason) != (self.word, self.reason):
            self.since = at if word != self.word or self.since is None else self.since
            self.word, self.reason = word, reason

    def seems(self, word: str, reason: str, at: float) -> None:
        """Set the state of the run. Used for a log whose core does not report the state."""
        if not self.told:
            self.says(word, reason, at)


def log_continued(state: RunState, record: Record, at: float, source: str) -> None:
    """Handle the first record of a log whose beginning was dropped. Only this record names the writer of the log."""
    run = state.run
    if not run.source:
        run.source, run.role, run.actor = source, reading.name(record, "role"), reading.name(record, "actor")
        run.run_hash, run.release = reading.name(record, "run"), reading.name(record, "version")


def process_started(state: RunState, record: Record, at: float, source: str) -> None:
    role, actor = reading.name(record, "role"), reading.name(record, "actor")
    run_hash, release = reading.name(record, "run"), reading.name(record, "version")
    max_rate = None if record.get("max_rate") is None else reading.count(record, "max_rate")
    run = state.run
    life_begins(state, source)
    if not run.source:
        run.source = source
    if run.run_hash is None:
        run.run_hash = run_hash
    if source == run.source:
        run.role, run.actor, run.release, run.max_rate = role, actor, release, max_rate
        run.run_hash, run.stopped, run.doing = run_hash, False, "starting"
    if role != "coordinator":
        return
    first = not run.coordinated
    run.coordinated = True
    before, heard_at = run.coordinators.get(actor), _heard_at(state, at)
    if before is not None or len(run.coordinators) < MOST_COORDINATORS:
        run.coordinators[actor] = Coordinator(actor, at, at)
    if not run.voice or run.voice == source:  # other coordinators of a group report their state once they lead
        died = before is not None and not before.stopped
        state.faults.coordinator_back(state, actor, at, before.last_at if before is not None else at, died)
        again = OVER if run.finished else "the coordinator has started again"
        _new_voice(state, source, at, again if not first else "", heard_at)
        run.seems("starting", "", at)
        run.finished, run.finished_at = False, None
    if source == run.source:
        run.own_leader = None


def process_stopped(state: RunState, record: Record, at: float, source: str) -> None:
    reason = reading.text(record, "reason")
    run = state.run
    if source == run.source:
        run.stopped, run.doing = True, f"stopped: {reason}"
    coordinator = _speaker(state, source)
    if coordinator is not None:
        coordinator.stopped, coordinator.leads = reason or "stopped", False
        if source == run.voice and not run.finished:
            run.says("stopping", reason, at)


def coordinator_started(state: RunState, record: Record, at: float, source: str) -> None:
    run = state.run
    run.term, decided = reading.count(record, "term"), reading.count(record, "decided", least=-1)
    run.coordinated = True
    if run.voice != source:
        run.voice = source
    if decided < run.step:
        back_to(state, decided + 1)
    state.work.fill(state, decided)
    run.step = max(run.step, decided)
    state.pipeline.close()
    if source == run.source:
        run.doing = "waiting for peers"
    run.seems("waiting", "for peers", at)


def state_changed(state: RunState, record: Record, at: float, source: str) -> None:
    word, reason = reading.name(record, "state"), reading.text(record, "reason")
    run = state.run
    if word == "starting":
        _new_voice(state, source, at, "the coordinator has started again", _heard_at(state, at))
    elif source != run.voice and run.voice and source.startswith("coordinator"):
        return  # it does not know yet that it was replaced
    state.work.spend(state, at)
    run.told = True
    run.says(word, reason, at)
    if source == run.source:
        run.doing = f"{word}: {reason}" if reason else word
    if word in ("paused", "finished"):
        state.faults.deliberate(at)


def leadership_taken(state: RunState, record: Record, at: float, source: str) -> None:
    actor = reading.name(record, "actor")
    run = state.run
    before = run.leader
    run.leader = actor
    if source == run.source:
        run.own_leader = actor
    for each in run.coordinators.values():
        each.leads = each.actor == actor
    _new_voice(state, source, at, "another coordinator leads now", _heard_at(state, at))
    state.faults.leader_changed(state, actor, before, at)


def leadership_lost(state: RunState, record: Record, at: float, source: str) -> None:
    actor, reason = reading.name(record, "actor"), reading.text(record, "reason")
    run = state.run
    if actor in run.coordinators:
        run.coordinators[actor].leads = False
    if run.leader == actor:
        run.leader = None
        state.pipeline.close()
        run.says("waiting", f"no coordinator leads: {reason}", at)
    if source == run.source:
        run.own_leader, run.doing = None, "waiting for another coordinator to lead"


def leader_followed(state: RunState, record: Record, at: float, source: str) -> None:
    leader = reading.name(record, "leader")
    run = state.run
    if run.leader is None and leader not in run.coordinators:
        run.leader = leader  # the leader's own log is not among these
    for each in run.coordinators.values():
        each.leads = each.actor == run.leader
    if source == run.source:
        run.own_leader = leader
        if run.role == "coordinator":
            run.doing = "standing by: another coordinator leads"


def majority_missing(state: RunState, record: Record, at: float, source: str) -> None:
    reason = reading.text(record, "reason")
    run = state.run
    if source == run.source:
        run.own_leader, run.doing = None, f"nothing can be decided: {reason}"
    if run.leader is None:
        run.says("waiting", f"nothing can be decided: {reason}", at)


def decision_recorded(state: RunState, record: Record, at: float, source: str) -> None:
    step, leader = reading.count(record, "step"), reading.name(record, "leader")
    run = state.run
    if leader not in run.coordinators:  # otherwise the leader's own log says more, and reports a later rollback
        run.step = max(run.step, step)
    if source == run.source:
        run.own_leader = leader or None


def pass_told(state: RunState, record: Record, at: float, source: str) -> None:
    """Record what the process does, in the words of `swarm-peer status`. Set the state too, unless the core reports
    it.
    """
    kind, pass_id = reading.name(record, "pass_kind"), reading.name(record, "pass_id")
    run = state.run
    if source == run.source:
        run.doing = f"{_VERBS.get(kind, kind)}, pass {pass_id}"
    word = {"train": "training", "evaluate": "evaluating", "generate": "sampling"}.get(kind)
    if word == "training":
        run.finished, run.finished_at = False, None  # another coordinator may continue a run that was extended
    if word is not None:
        run.seems(word, "", at)


def paused(state: RunState, record: Record, at: float, source: str) -> None:
    reason = reading.text(record, "reason")
    run = state.run
    if source == run.source:
        run.doing = f"no step can start: {reason}"
    run.seems("waiting", reason, at)
    state.faults.waits(state, reason, at)


def run_finished(state: RunState, record: Record, at: float, source: str) -> None:
    step, reason = reading.count(record, "step", least=-1), reading.text(record, "reason")
    run = state.run
    state.work.spend(state, at)
    run.finished, run.finished_at = True, at
    run.seems("finished", reason, at)
    state.pipeline.decided()
    state.faults.deliberate(at)
    if source == run.source:
        run.doing = f"finished after step {step + 1}: {reason}"


def rolled_back(state: RunState, record: Record, at: float, source: str) -> None:
    version, reason = reading.count(record, "version"), reading.text(record, "reason")
    term = reading.count(record, "term")
    state.pipeline.decided()
    if source == state.run.source:
        state.run.doing = f"rolled back to version {version}, term {term}: {reason}"


def step_aborted(state: RunState, record: Record, at: float, source: str) -> None:
    reading.name(record, "pass_id")
    state.pipeline.close()


def joined_own(state: RunState, record: Record, at: float, source: str) -> None:
    """Record, from a peer's own log, that it has joined a stage."""
    run = state.run
    if source != run.source or run.role != "peer":
        return
    stage = None if record.get("stage") is None else reading.stage(record)
    run.doing = "standing by" if stage is None else f"training stage {stage}"
    if not run.coordinated:
        run.seems("waiting" if stage is None else "training", run.doing, at)


def paused_own(state: RunState, record: Record, at: float, source: str) -> None:
    """Record, from a peer's own log, that it has paused."""
    run = state.run
    if source == run.source and run.role == "peer":
        run.doing = f"paused: {reading.text(record, 'reason')}"


def machine_measured(state: RunState, record: Record, at: float, source: str) -> None:
    device = reading.name(record, "device")
    run = state.run
    person = next((m for m in state.members.here.values() if m.actor == source), None)
    if person is not None:
        state.people.of(person.peer).has_device(device)
    if source == run.source:
        run.machine = in_words(record)


def control_given(state: RunState, record: Record, at: float, source: str) -> None:
    number, command = reading.count(record, "number"), reading.name(record, "command")
    value, by = reading.text(record, "value", 80), reading.text(record, "by", 80)
    why = reading.text(record, "why")
    if command == "admit":
        return  # an admission is nobody's wish, and there are as many as devices
    run = state.run
    known = {each.number for each in run.controls if each.number}
    if number in known:
        return  # several coordinators of a group report it
    run.controls.append(Control(at, number, command, value, by, why))
    del run.controls[:-MOST_CONTROLS]
    if command == "steps" and value.isascii() and value.isdecimal() and len(value) < 18:
        run.steps = int(value)
    if command == "stop_after" and value.isascii() and value.isdecimal() and len(value) < 18:
        run.steps = int(value)


def control_refused(state: RunState, record: Record, at: float, source: str) -> None:
    command, value = reading.name(record, "command"), reading.text(record, "value", 80)
    by, reason = reading.text(record, "by", 80), reading.text(record, "reason")
    state.run.controls.append(Control(at, 0, command, value, by, reason))
    del state.run.controls[:-MOST_CONTROLS]


def heard(state: RunState, source: str, at: float) -> None:
    """Record that a coordinator is alive. Called with every event of its log."""
    coordinator = _speaker(state, source)
    if coordinator is not None:
        coordinator.last_at = at


def _new_voice(state: RunState, source: str, at: float, reason: str, heard_at: float) -> None:
    """`heard_at`: the time of the former voice's last event. Nobody knows whether its members stayed longer."""
    run = state.run
    run.voice = source
    state.work.spend(state, at)
    state.pipeline.close()
    members.reset(state, heard_at, reason or "the coordinator has started")


def _heard_at(state: RunState, at: float) -> float:
    """The time of the last event of the voice until now, at most `at`."""
    voice = _speaker(state, state.run.voice)
    return at if voice is None else min(at, voice.last_at)


def _speaker(state: RunState, source: str) -> Coordinator | None:
    """The coordinator that writes the log `source`: `coordinator` alone, or followed by a slash and its actor."""
    kind, _, actor = source.partition("/")
    if kind != "coordinator":
        return None
    coordinators = state.run.coordinators
    if actor:
        return coordinators.get(actor)
    return next(iter(coordinators.values())) if len(coordinators) == 1 else None


_VERBS = {"train": "training", "evaluate": "evaluating", "generate": "generating"}
