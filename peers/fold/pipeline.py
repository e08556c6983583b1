"""The stages, their members and shares, the progress of the open pass, and the planner's results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peers.fold import reading
from peers.fold.reading import MOST_ROSTER, MOST_STAGES, Malformed, Record, a_count

if TYPE_CHECKING:
    from peers.fold.state import RunState

MOST_CODEC_NAME = 40
MOST_OUT = 256
"""Maximum number of members per stage that are shown as lost in one step."""


@dataclass(slots=True)
class Stage:
    number: int = -1
    """Number of the stage's table. −1: not reported yet."""
    roster: list[str] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    """Microbatches/s, by roster member."""
    reason: str = ""
    at: float = 0.0
    told: list[int] = field(default_factory=list)
    """The numbers of accumulated, forwarded and all microbatches of the open pass."""
    shares: list[list[int]] = field(default_factory=list)
    """The same for each roster member: accumulated, forwarded, assigned."""
    forward: str = ""
    """Codec of the frames from the previous stage, if codecs are chosen during the run."""
    backward: str = ""
    reduce: str = ""
    """The state of the stage's reduction, as far as the logs of its peers report it."""
    out: list[str] = field(default_factory=list)
    """Members that left the table in the open step: fenced, gone, or moved."""

    @property
    def rate(self) -> float | None:
        return sum(self.rates) if self.rates else None


@dataclass(slots=True)
class OpenPass:
    pass_id: str
    kind: str
    step: int
    opened_at: float
    replicas: list[int]
    microbatches: int
    fenced: list[str] = field(default_factory=list)
    progress_at: float | None = None


@dataclass(slots=True)
class Planned:
    at: float
    slowest: int
    rates: list[float]
    reason: str
    actor: str
    source: int
    stage: int
    gain: float


@dataclass(slots=True)
class Pipeline:
    stages: list[Stage] = field(default_factory=list)
    open: OpenPass | None = None
    replicas: list[int] = field(default_factory=list)
    """Number of replicas of each stage, in the pass that was opened last."""
    microbatches: int = 0
    """Number of microbatches of a training pass."""
    planned: Planned | None = None

    def stage(self, index: int) -> Stage:
        while len(self.stages) <= index:
            self.stages.append(Stage())
        return self.stages[index]

    def rates(self) -> list[float] | None:
        """Microbatches/s by stage. None: not all are reported."""
        found = [stage.rate for stage in self.stages]
        return [rate for rate in found if rate is not None] if found and None not in found else None

    def forget(self) -> None:
        """The coordinator has started again. Forget all tables, because it will report them again."""
        self.decided()
        self.planned = None
        for stage in self.stages:
            stage.roster, stage.weights, stage.rates = [], [], []

    def close(self) -> None:
        """Note that no pass is open."""
        self.open = None
        for stage in self.stages:
            stage.told, stage.shares, stage.reduce = [], [], ""

    def decided(self) -> None:
        """The step is over, decided or not: forget the members that fell out of it."""
        self.close()
        for stage in self.stages:
            stage.out = []


def pass_opened(state: RunState, record: Record, at: float, source: str) -> None:
    pass_id, kind = reading.name(record, "pass_id"), reading.name(record, "pass_kind")
    replicas = reading.counts(record, "replicas", MOST_STAGES)
    microbatches = reading.count(record, "microbatches") if "microbatches" in record else 0
    step = reading.step_of(pass_id)
    pipeline = state.pipeline
    again = kind == "train" and step == state.work.opening_step  # losses of the first attempt still count
    pipeline.close() if again else pipeline.decided()
    if replicas:
        pipeline.stage(len(replicas) - 1)
        del pipeline.stages[len(replicas) :]
    pipeline.replicas = replicas
    pipeline.open = OpenPass(pass_id, kind, step, at, replicas, microbatches)
    if kind == "train":
        pipeline.microbatches = microbatches or pipeline.microbatches
        state.work.opened(pass_id, step, at)
        state.links.keep(state.members.here)
        for stage in pipeline.stages:
            _takes_part(state, stage.roster)
        if all(stage.number < 0 for stage in pipeline.stages):  # an older log, which reports no tables
            _takes_part(state, [each.actor for each in state.members.here.values() if each.stage is not None])
    state.faults.resumed(state, kind, at)


def table_changed(state: RunState, record: Record, at: float, source: str) -> None:
    index, number = reading.stage(record), reading.count(record, "number", least=-1)
    roster = reading.names(record, "roster", MOST_ROSTER)
    weights = reading.numbers(record, "weights", MOST_ROSTER)
    rates = reading.numbers(record, "rates", MOST_ROSTER)
    reason = reading.text(record, "reason")
    if index > len(state.pipeline.stages) + 64:  # stages come in order; a false number must not use up the memory
        raise Malformed("stage")
    state.work.spend(state, at)
    stage = state.pipeline.stage(index)
    if state.work.opening_step > state.run.step:  # otherwise the table belongs to a step that is about to open
        kept = set(roster)
        stage.out = [*dict.fromkeys(actor for actor in (*stage.out, *stage.roster) if actor not in kept)]
        del stage.out[:-MOST_OUT]
    stage.number, stage.roster, stage.weights, stage.rates = number, roster, weights, rates
    stage.reason, stage.at, stage.shares = reason, at, []
    if state.pipeline.open is not None:
        _takes_part(state, roster)


def pass_progress(state: RunState, record: Record, at: float, source: str) -> None:
    pass_id = reading.name(record, "pass_id")
    stages = reading.listing(record, "stages", MOST_STAGES)
    peers = reading.listing(record, "peers", MOST_STAGES) if "peers" in record else []
    told = [_triple(each) for each in stages]
    shares = [_triples(each) for each in peers]
    pipeline = state.pipeline
    if pipeline.open is None or pipeline.open.pass_id != pass_id:
        return
    pipeline.open.progress_at = at
    for index, stage in enumerate(pipeline.stages):
        stage.told = told[index] if index < len(told) else []
        stage.shares = shares[index] if index < len(shares) else []


def stage_amended(state: RunState, record: Record, at: float, source: str) -> None:
    index, number = reading.stage(record), reading.count(record, "number")
    if index < len(state.pipeline.stages):
        state.pipeline.stages[index].number = max(number, state.pipeline.stages[index].number)


def peer_fenced(state: RunState, record: Record, at: float, source: str) -> None:
    actor, pass_id = reading.name(record, "actor"), reading.name(record, "pass_id")
    opened = state.pipeline.open
    if opened is not None and opened.pass_id == pass_id and len(opened.fenced) < 1024 and actor not in opened.fenced:
        opened.fenced.append(actor)


def codec_chosen(state: RunState, record: Record, at: float, source: str) -> None:
    boundary, codec = reading.stage(record, "boundary"), reading.text(record, "codec", MOST_CODEC_NAME)
    direction = reading.name(record, "direction")
    if boundary > len(state.pipeline.stages) + 64:
        raise Malformed("boundary")
    stage = state.pipeline.stage(boundary)
    if direction == "forward":
        stage.forward = codec
    elif direction == "backward":
        stage.backward = codec


def planner_looked(state: RunState, record: Record, at: float, source: str) -> None:
    state.pipeline.planned = Planned(
        at,
        reading.stage(record, "slowest"),
        reading.numbers(record, "rates", MOST_STAGES),
        reading.text(record, "reason"),
        reading.name(record, "actor") if record.get("actor") else "",
        reading.count(record, "source", least=-1) if "source" in record else -1,
        reading.count(record, "stage", least=-1) if "stage" in record else -1,
        reading.number(record, "gain") if "gain" in record else 0.0,
    )


def reduce_told(state: RunState, record: Record, at: float, source: str) -> None:
    """Record, from a peer's own log, the state of its stage's reduction. `attempt` has the form `pass/s2n0`."""
    attempt = reading.name(record, "attempt")
    pass_id, _, rest = attempt.partition("/s")
    digits = rest.partition("n")[0]
    opened = state.pipeline.open
    if opened is None or opened.pass_id != pass_id or not (digits.isascii() and digits.isdecimal()):
        return
    if len(digits) < 5 and int(digits) < len(state.pipeline.stages):
        state.pipeline.stages[int(digits)].reduce = _REDUCE[str(record["kind"])]


_REDUCE = {"ReduceStarted": "reducing", "ReduceCancelled": "begins anew", "StagePrepared": "prepared"}


def _takes_part(state: RunState, actors: list[str]) -> None:
    for actor in actors:
        if (member := state.members.here.get(actor)) is not None:
            member.worked = True


def _triple(value: Any) -> list[int]:
    if type(value) is not list or len(value) != 3:
        raise Malformed("progress")
    return [a_count(each) for each in value]


def _triples(value: Any) -> list[list[int]]:
    if type(value) is not list or len(value) > MOST_ROSTER:
        raise Malformed("progress")
    return [_triple(each) for each in value]
