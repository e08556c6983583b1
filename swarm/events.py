"""Events: every fact worth knowing, as small frozen records in one append-only log per process.

The dashboard, the CLI, metrics, tests and a bug report are views of that log, live or replayed. A log is JSON lines:
`{"at": unix seconds, "kind": "PeerFenced", …fields}`. A torn last line (the process died while writing) is skipped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events. Fields are JSON values; actors, passes and keys are given as text."""

    @property
    def kind(self) -> str:
        return type(self).__name__


# ---------------------------------------------------------------- processes and membership


@dataclass(frozen=True, slots=True)
class ProcessStarted(Event):
    role: str
    actor: str
    run: str
    version: str
    max_rate: int | None = None
    """Bytes a second that it sends at most."""


@dataclass(frozen=True, slots=True)
class ProcessStopped(Event):
    reason: str


@dataclass(frozen=True, slots=True)
class MachineMeasured(Event):
    """What this machine tells that it can do. Seconds of one microbatch through one layer; bytes, bytes a second."""

    device: str
    capacity: float
    """Microbatches a second, forward and backward, through the whole model."""
    forward_s: float | None
    """None: the capacity was given, not measured."""
    backward_s: float | None
    memory: int
    uplink: float | None
    downlink: float | None
    kept: bool
    """The speed was measured in an earlier start."""


@dataclass(frozen=True, slots=True)
class RoundsOtherwise(Event):
    """This device does not compute an optimizer step as others do: the processor does it instead."""

    device: str


@dataclass(frozen=True, slots=True)
class CoordinatorStarted(Event):
    term: int
    decided: int
    """Last decided step found in the decision record, −1 for none."""


@dataclass(frozen=True, slots=True)
class PeerJoined(Event):
    actor: str
    stage: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PeerMoved(Event):
    """A peer is told to leave its stage for another one."""

    actor: str
    source: int
    stage: int
    gain: float
    """Microbatches that the swarm does more, as long as the arrangement is expected to last."""
    cost: float
    """Microbatches that it does less while the peer downloads its new stage."""
    reason: str


@dataclass(frozen=True, slots=True)
class ManyReplicas(Event):
    """A stage is planned to have so many replicas that one of them dies in many a reduce, which then begins anew."""

    planned: int
    advised: int
    reduce_s: float
    """What a reduce takes."""
    departures_per_hour: float
    """Of one peer."""


@dataclass(frozen=True, slots=True)
class SeatAsked(Event):
    """Nobody else can hold a stage: a peer's process is to have so many peers."""

    actor: str
    stage: int
    seats: int


@dataclass(frozen=True, slots=True)
class SeatTaken(Event):
    """This process takes one more peer on, since the coordinator asks. `home`: where it has its own log."""

    seat: int
    home: str
    reason: str


@dataclass(frozen=True, slots=True)
class SeatLeft(Event):
    """That peer has ended; this one goes on."""

    seat: int
    reason: str


@dataclass(frozen=True, slots=True)
class PeerLeaving(Event):
    actor: str
    stage: int | None
    reason: str
    leaves_in_s: float
    """At most: earlier, once nothing depends on it."""


@dataclass(frozen=True, slots=True)
class PeerLost(Event):
    actor: str
    stage: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class PeerSeen(Event):
    """A peer has spoken to this coordinator for the first time: it is a member from here on."""

    actor: str


@dataclass(frozen=True, slots=True)
class PeerGone(Event):
    """A member left because it was told to: the run is over, or it was sent home."""

    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class PeerDescribed(Event):
    """What a peer says of its machine, when it joins and when that changes."""

    actor: str
    machine: dict[str, str | float]
    """Flat: `device`, `processor`, `cores`, `threads`, `memory` (bytes), `gpu_memory` (bytes), `system`, `release`,
    `process` (random, the same for all peers of one process).

    Keys that the peer cannot read are missing. Texts come from the peer: at most 80 characters each.
    """


@dataclass(frozen=True, slots=True)
class PeerRefused(Event):
    peer: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class DuplicateIdentity(Event):
    """Two processes with one key take part: a home was copied."""

    older: str
    """It has to leave."""
    newer: str | None
    """None: the older one does not know it."""


@dataclass(frozen=True, slots=True)
class StateFetched(Event):
    stage: int
    version: int
    source: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Gathered(Event):
    """A state or the sums of a step have come from other peers, who train meanwhile."""

    stage: int
    what: str
    nbytes: int
    resumed: int
    """Pieces that were here from before."""
    index_s: float
    """Until it was known what there is to fetch."""
    pieces_s: float
    by_donor: dict[str, int]
    """Bytes of it."""
    received: int
    """Bytes that came over the line for it: a state's pieces are packed on their way."""
    refetched: int
    """Pieces that came otherwise than they are."""


@dataclass(frozen=True, slots=True)
class PieceRefused(Event):
    """A donor is not asked again: what it sent is not what it should be."""

    donor: str
    reason: str


@dataclass(frozen=True, slots=True)
class SwarmSplit(Event):
    """The open step's peers fall into groups that cannot reach each other: the coordinator passes on what they have."""

    groups: list[list[str]]


@dataclass(frozen=True, slots=True)
class CatchUpForecast(Event):
    """A peer takes up a stage while others train: what listening to a step takes, against what a step takes."""

    actor: str
    stage: int
    nbytes: int
    """Of the sums of a step."""
    sums_s: float
    """Seconds in which they come, with all of its link."""
    step_s: float
    can: bool


@dataclass(frozen=True, slots=True)
class CatchUpFailed(Event):
    """The sums of a step are missed for good: the state that was to go on with them must be loaded anew."""

    stage: int | None
    step: int
    reason: str


# ---------------------------------------------------------------- a step


@dataclass(frozen=True, slots=True)
class PassOpened(Event):
    """A training pass, an evaluation, or the first pass of a text sample."""

    pass_id: str
    pass_kind: str
    """train, evaluate or generate."""
    replicas: list[int]
    microbatches: int = 0


@dataclass(frozen=True, slots=True)
class StateChanged(Event):
    """The coordinator's state in one word, and the core's own reason for it. Told when either changes.

    `starting` is the first that a coordinator tells in its life, or each time that it begins to lead a group: nobody is
    a member yet, and no table is told.
    """

    state: str
    """starting, waiting, training, evaluating, sampling, pausing, paused, finishing, finished or stopping."""
    reason: str


@dataclass(frozen=True, slots=True)
class TableChanged(Event):
    """Who serves a stage, told as a pass opens or is amended if it differs from what was told last of this stage."""

    pass_id: str
    stage: int
    number: int
    """Of the table (StageTable.number)."""
    roster: list[str]
    weights: list[float]
    """By roster member: its relative speed, by which microbatches are divided. Four significant digits."""
    rates: list[float]
    """By roster member: microbatches a second in this stage as the planner reckons. Three significant digits."""
    reason: str


@dataclass(frozen=True, slots=True)
class PassProgress(Event):
    """How far the open training pass is. Told once a heartbeat, if something has changed; in large swarms seldom."""

    pass_id: str
    stages: list[list[int]]
    """By stage: microbatches accumulated, forwarded, in all."""
    peers: list[list[list[int]]] = field(default_factory=list)
    """By stage and roster member: accumulated, forwarded, assigned. Empty in a swarm of more than 256 peers."""


@dataclass(frozen=True, slots=True)
class PeerWorked(Event):
    """What a peer did in one pass: one message a step and peer, as the peer itself measured it."""

    actor: str
    stage: int
    pass_id: str
    seconds: dict[str, float]
    """forward, backward, waiting, reducing, applying, recovering: they add up to the peer's step.

    `waiting` is for input; `recovering` is work done again after a fault.
    """
    spans: list[list[int | str]] = field(default_factory=list)
    """At most 64 of [kind, first microbatch (−1: none), start, length]: ms since this peer heard `Open`.

    Kinds as in `seconds`. Neighbours of one kind are merged. Empty on slow links and in large swarms.
    """
    usage: dict[str, float] = field(default_factory=dict)
    """cpu (cores in use), resident, gpu_memory (bytes), temperature (°C), power (W): what can be read."""
    links: list[dict[str, str | float | dict[str, int]]] = field(default_factory=list)
    """At most 32 of {other, rate (bytes/s), rtt_s, via, sent: {kind: bytes since the last report}}.

    Kinds: forward, backward, sums, state, control. Keys that are not known are missing. `rate` is that to the other, as
    the other measures it: a peer's own log has none.
    """


@dataclass(frozen=True, slots=True)
class PlannerLooked(Event):
    """What the planner of moves finds, told when its reason changes."""

    slowest: int
    """The stage that limits the swarm."""
    rates: list[float]
    """By stage, microbatches a second."""
    reason: str
    actor: str = ""
    """Who is to move; empty: nobody."""
    source: int = -1
    stage: int = -1
    gain: float = 0.0
    """Microbatches within the planner's horizon."""


@dataclass(frozen=True, slots=True)
class FaultCosted(Event):
    """A step or an evaluation in which something went wrong is over: what that cost.

    Of an evaluation (`pass_id` with a `+`) `step` is the last that was decided, and `usual_s` what evaluations take.
    """

    pass_id: str
    step: int
    actors: list[str]
    """Who was lost, fenced or too slow in it."""
    microbatches: int
    """Done again, over all stages."""
    seconds: float
    """That the step, with its aborted attempts, took more than is usual; not negative."""
    usual_s: float
    """Median of the undisturbed steps before, at most eight; 0 if there was none."""
    tokens: int
    """That the swarm would have trained in those seconds."""
    reason: str


@dataclass(frozen=True, slots=True)
class MicrobatchForwarded(Event):
    pass_id: str
    microbatch: int


@dataclass(frozen=True, slots=True)
class MicrobatchAccumulated(Event):
    pass_id: str
    microbatch: int


@dataclass(frozen=True, slots=True)
class ReduceStarted(Event):
    """Or goes on under the name of a new table, with what it has made so far, where that is still of use."""

    attempt: str
    microbatches: list[int]


@dataclass(frozen=True, slots=True)
class ReduceCancelled(Event):
    attempt: str
    reason: str


@dataclass(frozen=True, slots=True)
class StagePrepared(Event):
    attempt: str
    digest: str


@dataclass(frozen=True, slots=True)
class StepDecided(Event):
    term: int
    step: int
    scale: float
    loss: float
    gradient_norm: float
    tokens: int
    outcomes: list[str]
    without: list[str]
    """Actors that died after the others were prepared: decided without them."""
    key_frames: list[str] = field(default_factory=list)
    """By boundary 1, 2, …, hex: bit m is set when microbatch m crossed as a key frame. Empty where the codec has none.
    """
    leader: str = ""
    """Who decided it, in a run with a group of coordinators."""
    assignments: list[list[int]] = field(default_factory=list)
    """By stage and microbatch, who added it: an index into the roster last told of that stage (TableChanged)."""
    rate: float = 1.0
    """What the organiser multiplied the learning rate's schedule by."""


@dataclass(frozen=True, slots=True)
class CodecChosen(Event):
    """What crosses `boundary` in `direction` from `step` on, in a run that leaves this to be chosen."""

    step: int
    boundary: int
    direction: str
    codec: str
    before: str
    """Empty: chosen for the first time in this life of the coordinator."""
    reason: str


@dataclass(frozen=True, slots=True)
class StepApplied(Event):
    step: int
    digest: str
    """The digest chain after this step."""


# ---------------------------------------------------------------- when something goes wrong


@dataclass(frozen=True, slots=True)
class PeerFenced(Event):
    actor: str
    stage: int
    pass_id: str
    finished: list[int]
    """Microbatches it had accumulated: their work is void and done again."""
    unfinished: list[int]
    reason: str


@dataclass(frozen=True, slots=True)
class StageAmended(Event):
    pass_id: str
    stage: int
    number: int
    moved: list[int]
    reason: str
    entrant: str | None = None


@dataclass(frozen=True, slots=True)
class ShareChanged(Event):
    """A microbatch takes a replica twice as long as when that was last told, or half, and its share has changed too."""

    actor: str
    stage: int
    before: float
    """Seconds."""
    seconds: float
    microbatches: int
    """Its share of the step that opens."""


@dataclass(frozen=True, slots=True)
class MicrobatchesReleased(Event):
    pass_id: str
    actor: str
    microbatches: list[int]


@dataclass(frozen=True, slots=True)
class FrameRecovered(Event):
    """The first frame that arrives here for a microbatch that was moved or asked for again."""

    key: str
    source: str


@dataclass(frozen=True, slots=True)
class RouteChanged(Event):
    other: str
    via: str
    reason: str


@dataclass(frozen=True, slots=True)
class StepAborted(Event):
    pass_id: str
    term: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepAudited(Event):
    """A step was computed again by other peers, and came out the same, or each time otherwise."""

    step: int
    agreed: bool


@dataclass(frozen=True, slots=True)
class PeerExpelled(Event):
    """Its numbers are not those of its siblings, or the organiser says so: it has no part in the run any more."""

    actor: str
    stage: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class StateDrifted(Event):
    """Replicas of a stage did not hold the same state when they computed a step: it is done again."""

    step: int
    stage: int
    believed: list[str]
    reload: list[str]
    """They load the state of the others."""
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointsDiffer(Event):
    """Replicas have saved unlike states of one version."""

    version: int
    stage: int
    copies: dict[str, list[str]]
    """{digest: whose}"""


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    term: int
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunDiverged(Event):
    """Steps are skipped one after the other, or parameters are not finite: the history goes back, or the run ends."""

    step: int
    """The last that is decided."""
    reason: str
    version: int
    """The newest checkpoint that has proved its worth: the history goes back to it. 0: to the beginning."""
    rate: float | None
    """What the learning rate's schedule is multiplied by from there on. None: the run stops."""


@dataclass(frozen=True, slots=True)
class OutOfMemory(Event):
    """A peer had no memory for something. It does it again with less; the second time it leaves."""

    actor: str
    what: str
    before: int
    """Graphs that it kept between forward and backward."""
    now: int
    leaves: bool


@dataclass(frozen=True, slots=True)
class RecordOutdated(Event):
    """Peers have heard of terms that the decision record does not know: it is an older copy of itself."""

    term: int
    """The record's."""
    next_term: int
    """The one that is taken now, above theirs."""


@dataclass(frozen=True, slots=True)
class RunPaused(Event):
    reason: str


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class ControlGiven(Event):
    """The organiser's command is in the decision record, and takes effect."""

    number: int
    """Counts the commands of the run from 1."""
    command: str
    value: str
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class ControlRefused(Event):
    """A command that cannot be carried out."""

    command: str
    value: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class FrameRefused(Event):
    sender: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class StreamBroken(Event):
    other: str
    channel: str
    reason: str


@dataclass(frozen=True, slots=True)
class MessagesDropped(Event):
    """Messages that were never delivered, because `other` could not be reached. What matters is asked for again."""

    other: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClockDiffers(Event):
    """This machine's clock is not that of the nodes by which it entered; towards them it uses theirs."""

    ahead_s: float
    """How far theirs is ahead."""


@dataclass(frozen=True, slots=True)
class CoordinatorAway(Event):
    """A peer cannot reach the coordinator. It keeps its state, dials on, and leaves when its patience is over."""

    seconds: float
    leaves_in_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class CoordinatorBack(Event):
    seconds: float
    """How long it was away."""


# ---------------------------------------------------------------- a group of coordinators


@dataclass(frozen=True, slots=True)
class LeadershipTaken(Event):
    """This coordinator leads its group."""

    actor: str
    ballot: int
    reached: int
    """Members it has heard of lately, itself included."""
    members: int


@dataclass(frozen=True, slots=True)
class LeadershipLost(Event):
    """This coordinator leads no more: what it had not decided it will not decide."""

    actor: str
    ballot: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeaderFollowed(Event):
    """Another coordinator leads, or, in a peer's log, speaks for the group now."""

    leader: str
    ballot: int
    """In a peer's log, the term."""


@dataclass(frozen=True, slots=True)
class MajorityMissing(Event):
    """Nobody can decide anything here: too few coordinators of the group can be reached."""

    reached: int
    needed: int
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionRecorded(Event):
    """A coordinator that does not lead has a decision on its disk.

    What it says of the step stands in StepDecided too, but the log of a leader that dies may be lost with its end.
    """

    term: int
    step: int
    leader: str
    scale: float = 1.0
    loss: float | None = None
    gradient_norm: float | None = None
    tokens: int = 0
    rate: float = 1.0


# ---------------------------------------------------------------- results


@dataclass(frozen=True, slots=True)
class CheckpointWritten(Event):
    stage: int
    version: int
    digest: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class StepHeldUp(Event):
    """A peer did not apply a step before its copy of the version before was written: a slow disk."""

    stage: int
    version: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointArchived(Event):
    version: int
    digests: list[str]


@dataclass(frozen=True, slots=True)
class CheckpointRefused(Event):
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Evaluated(Event):
    version: int
    loss: float
    """Nats per target."""
    targets: int
    """Tokens, or images, that were predicted."""


@dataclass(frozen=True, slots=True)
class EvaluationDropped(Event):
    """An evaluation, or the sample after it, is not waited for any longer: the training goes on."""

    version: int
    reason: str
    who: list[str]
    """Who had something to do in it at the end, and finished nothing."""


@dataclass(frozen=True, slots=True)
class Sampled(Event):
    version: int
    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class StepMeasured(Event):
    """The figures of a finished step, for people and metrics."""

    step: int
    seconds: float
    tokens_per_second: float
    efficiency: float
    replicas: list[int]


@dataclass(frozen=True, slots=True)
class TrafficMeasured(Event):
    sent: dict[str, int]
    """Bytes by channel since the process started."""
    received: dict[str, int]
    links: dict[str, int] = field(default_factory=dict)
    """Bytes a second that came in from other actors when large frames did, the median of the last ones."""


@dataclass(frozen=True, slots=True)
class ResourcesMeasured(Event):
    """What a peer has cost its machine so far; logged when its state is loaded and after each applied step."""

    version: int
    cpu_seconds: float
    """User and system time of this process."""
    daemon_cpu_seconds: float
    """The same of its libp2p daemon."""
    resident_bytes: int
    peak_resident_bytes: int
    peak_retained_bytes: int
    """Most encoded frames kept for one pass, memory and disk together."""
    tasks: int = 0
    """Of its event loop."""


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    seconds: float


def _kinds() -> dict[str, type[Event]]:
    found: dict[str, type[Event]] = {}
    for cls in Event.__subclasses__():
        found[cls.__name__] = cls
    return found


def to_record(event: Event, at: float) -> dict[str, Any]:
    return {"at": at, "kind": event.kind, **dataclasses.asdict(event)}


def from_record(record: dict[str, Any]) -> Event | None:
    """The event of a log record, None for kinds and fields of another release."""
    cls = _kinds().get(str(record.get("kind")))
    if cls is None:
        return None
    names = {f.name for f in dataclasses.fields(cls)}
    try:
        return cls(**{k: v for k, v in record.items() if k in names})
    except TypeError:
        return None


Listener = Callable[[Event, float], None]


class EventLog:
    """Append-only JSON lines, flushed per event; listeners see each event as it is written."""

    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._file: IO[bytes] | None = None
        self.listeners: list[Listener] = []
        self._failed: list[Listener] = []
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            mend_torn_tail(path)
            self._file = path.open("ab", buffering=0)

    def append(self, event: Event) -> None:
        """Raises OSError naming the log when it cannot be written; it then ends with the event before.

        A listener that fails does not end what the log is of: its first failure is told on stderr.
        """
        at = self._clock()
        if self._file is not None:
            self._write(json.dumps(to_record(event, at), separators=(",", ":")).encode() + b"\n")
        for listener in self.listeners:
            try:
                listener(event, at)
            except Exception:
                self._tell(listener)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _tell(self, listener: Listener) -> None:
        """Called while its exception is handled."""
        if listener in self._failed:
            return
        self._failed.append(listener)
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed, or broken as well
            traceback.print_exc()

    def _write(self, line: bytes) -> None:
        """One write call, as a rule: another reader sees whole lines, save after a crash."""
        assert self._file is not None
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            self._file.truncate(os.fstat(self._file.fileno()).st_size - written)
            raise OSError(error.errno, f"{error.strerror}: the event log cannot be written", self._file.name) from error


def read_log(path: Path) -> Iterator[tuple[float, Event]]:
    """All events of a log, oldest first; records of other releases and a torn last line are skipped."""
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and (event := from_record(record)) is not None:
                yield float(record.get("at", 0.0)), event


def mend_torn_tail(path: Path) -> None:
    """Cut an unfinished last line, so that the next record starts on its own line."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        position = size
        while position > 0:
            start = max(0, position - 65_536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                if start + newline + 1 < size:
                    file.truncate(start + newline + 1)
                return
            position = start
        file.truncate(0)
