"""The report of a play: the cost of every step, the swarm's reaction to each fault, and whether all expectations
held.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field

from peers.chaos.director import Played
from peers.chaos.invariants import Finding, check
from peers.chaos.moment import COORDINATOR
from peers.chaos.scenario import BOOTSTRAP, Expectations, Expected, ExpectedEnd, Scenario
from peers.chaos.vitals import Growth
from swarm import events as e
from swarm.events.wording import amount

_ANSWERS = (
    e.CheckpointRefused,
    e.CheckpointsDiffer,
    e.CodecChosen,
    e.CoordinatorCopied,
    e.CoordinatorStarted,
    e.DuplicateIdentity,
    e.LeadershipLost,
    e.LeadershipTaken,
    e.MajorityMissing,
    e.MicrobatchesReleased,
    e.PeerExpelled,
    e.PeerFenced,
    e.PeerIdle,
    e.PeerJoined,
    e.PeerLeaving,
    e.PeerPaused,
    e.PeerResumed,
    e.PeerDelays,
    e.PeerLost,
    e.PeerMoved,
    e.PeerRefused,
    e.RolledBack,
    e.RunDiverged,
    e.OutOfMemory,
    e.RouteChanged,
    e.RecordOutdated,
    e.RunPaused,
    e.SeatAsked,
    e.ShareChanged,
    e.StageAmended,
    e.StageDoubted,
    e.StateCompared,
    e.StateDrifted,
    e.StepAborted,
    e.StepAudited,
    e.SumsMisreported,
    e.SwarmSplit,
)
"""The events that are a coordinator's reactions to a fault, and their fields with reasons."""
_ANSWERS_OF_PEERS = (
    e.CatchUpFailed,
    e.CheckpointRefused,
    e.ClockDiffers,
    e.CoordinatorAway,
    e.CoordinatorBack,
    e.LeaderFollowed,
    e.PieceRefused,
    e.RouteChanged,
    e.SeatTaken,
)
"""The events that are a peer's own reactions."""
_MOST_ANSWERS = 24


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a step. `seconds`: from the last decision to this one; `ratio`: compared with the usual step."""

    step: int
    seconds: float
    ratio: float | None
    replicas: list[int]
    faults: list[str]


@dataclass(frozen=True, slots=True)
class End:
    """A process that ended before the end of the scenario. `at_s`: seconds since the first step's opening."""

    host: str
    at_s: float
    code: int


@dataclass(frozen=True, slots=True)
class Answer:
    after_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Episode:
    """A fault, and the reactions until the next one."""

    fault: str
    what: str
    at_s: float
    """The time of the fault, in seconds since the first step's opening."""
    answers: list[Answer]
    more: int
    """Number of reactions that are not listed."""
    slowest: float | None
    """The slowest step decided in that time ÷ the usual one."""


@dataclass
class Report:
    scenario: str
    about: str
    rows: list[int]
    finished: bool
    seconds: float
    decided: int
    usual_step_s: float | None
    goodput: float | None
    """Committed tokens/s from the first fault on ÷ those of the usual step."""
    survivors: float | None
    """Average number of live peer processes from then on ÷ their number at that moment."""
    slowest: float | None
    """The slowest step from the first fault on ÷ the usual one."""
    longest_gap_s: float
    equal: bool | None
    """True if the result equals that of `reference`. None: this was not checked, or the check failed."""
    findings: list[Finding]
    growth: list[Growth]
    ends: list[End]
    steps: list[StepCost]
    episodes: list[Episode]
    failures: list[str] = field(default_factory=list)
    """The expectations that were not met. The list is empty if all were met."""

    @property
    def good(self) -> bool:
        return not self.failures

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"good": self.good})


def failed(scenario: Scenario, why: str) -> Report:
    """The report of a scenario that could not be played to its end."""
    return Report(
        scenario=scenario.name,
        about=scenario.about,
        rows=list(scenario.rows),
        finished=False,
        seconds=0.0,
        decided=0,
        usual_step_s=None,
        goodput=None,
        survivors=None,
        slowest=None,
        longest_gap_s=0.0,
        equal=None,
        findings=[],
        growth=[],
        ends=[],
        steps=[],
        episodes=[],
        failures=[f"it cannot be played: {why}"],
    )


def report_of(played: Played) -> Report:
    first_fault = min((struck.at for struck in played.struck), default=None)
    decisions = [(seen.at, seen.event) for seen in played.coordinator if isinstance(seen.event, e.StepDecided)]
    measured = {s.event.step: s.event.replicas for s in played.coordinator if isinstance(s.event, e.StepMeasured)}
    usual = _usual(played, first_fault)
    steps, before = [], played.first_step_at
    for at, event in decisions:
        seconds = at - before
        names = [struck.fault.name for struck in played.struck if before < struck.at <= at]
        ratio = seconds / usual if usual else None
        steps.append(StepCost(event.step, seconds, ratio, measured.get(event.step, []), names))
        before = at
    struck = [s for (at, _), s in zip(decisions, steps, strict=True) if first_fault is not None and at >= first_fault]
    elapsed = decisions[-1][0] - first_fault if struck and first_fault is not None else 0.0
    gaps = [b - a for a, b in zip(_moments(played), _moments(played)[1:], strict=False)]
    report = Report(
        scenario=played.scenario.name,
        about=played.scenario.about,
        rows=list(played.scenario.rows),
        finished=played.finished,
        seconds=played.ended_at - played.first_step_at,
        decided=len(decisions),
        usual_step_s=usual,
        goodput=usual * (len(struck) - 0.5) / elapsed if usual and elapsed > 0 else None,
        survivors=_survivors(played, first_fault, decisions[-1][0]) if struck and first_fault is not None else None,
        slowest=max((step.ratio for step in struck if step.ratio is not None), default=None),
        longest_gap_s=max(gaps, default=0.0),
        equal=None if not played.verdict else bool(played.verdict["equal"]),
        findings=check(played),
        growth=played.vitals.growth(),
        ends=[End(end.host, end.at - played.first_step_at, end.code) for end in played.ends],
        steps=steps,
        episodes=_episodes(played, usual),
    )
    report.failures = _failures(played, report)
    return report


def _usual(played: Played, first_fault: float | None) -> float | None:
    """Seconds of a usual step: the median of the steps before any fault, without the first, for which no speeds were
    measured.
    """
    seconds, before = [], None
    for seen in played.coordinator:
        if isinstance(seen.event, e.StepDecided):
            if before is not None and (first_fault is None or seen.at < first_fault):
                seconds.append(seen.at - before)
            before = seen.at
    return statistics.median(seconds) if seconds else None


def _survivors(played: Played, begin: float, end: float) -> float | None:
    """Average number of live peer processes between two moments ÷ their number at the first."""
    lived, there = 0.0, 0
    for host in (name for name in played.machines if name not in (*played.scenario.coordinators, BOOTSTRAP)):
        starts = [s.at for s in played.machines[host].log if isinstance(s.event, e.ProcessStarted)]
        ends = sorted(ended.at for ended in played.ends if ended.host == host)
        for started in starts:
            ended = next((at for at in ends if at >= started), played.ended_at)
            lived += max(0.0, min(end, ended) - max(begin, started))
            there += started < begin <= ended
    return lived / (end - begin) / there if there and end > begin else None


def _moments(played: Played) -> list[float]:
    """The first opening, all decisions, and the end of a scenario that was cut short."""
    found = [played.first_step_at, *(s.at for s in played.coordinator if isinstance(s.event, e.StepDecided))]
    return found if played.finished else [*found, played.ended_at]


def _episodes(played: Played, usual: float | None) -> list[Episode]:
    found, said = [], _said(played)
    decided = [seen.at for seen in played.coordinator if isinstance(seen.event, e.StepDecided)]
    steps = list(zip([played.first_step_at, *decided], decided, strict=False))
    ends = [struck.at for struck in played.struck[1:]] + [float("inf")]
    for struck, end in zip(played.struck, ends, strict=False):  # without a fault there is no episode
        answers = [Answer(at - struck.at, _with_names(played, text)) for at, text in said if struck.at <= at < end]
        slowest = max((b - a for a, b in steps if struck.at <= b < end), default=None)
        found.append(
            Episode(
                fault=struck.fault.name,
                what=str(struck.fault),
                at_s=struck.at - played.first_step_at,
                answers=answers[:_MOST_ANSWERS],
                more=max(0, len(answers) - _MOST_ANSWERS),
                slowest=slowest / usual if slowest is not None and usual else None,
            )
        )
    return found


def _said(played: Played) -> list[tuple[float, str]]:
    """The actions and reasons of coordinators and peers, in order of time; a peer's text begins with its name."""
    said = [(seen.at, seen.event.describe()) for seen in played.coordinator if _is_answer(seen.event)]
    for name, machine in played.machines.items():
        if name not in played.scenario.coordinators:
            mine = [seen for seen in machine.log if isinstance(seen.event, _ANSWERS_OF_PEERS)]
            said += [(seen.at, f"{name}: {seen.event.describe()}") for seen in mine]
    return sorted(said)


def _is_answer(event: e.Event) -> bool:
    return isinstance(event, _ANSWERS) or (isinstance(event, e.StepDecided) and bool(event.without))


def _with_names(played: Played, text: str) -> str:
    """Replace actor names by the names of their hosts."""
    for name, machine in played.machines.items():
        for actor in machine.lives:
            text = text.replace(actor, name)
    return text


# ---------------------------------------------------------------- what had to hold


def _failures(played: Played, report: Report) -> list[str]:
    expect = played.scenario.expect
    found = [f"{finding.invariant}: {text}" for finding in report.findings for text in finding.broken]
    found += played.accidents
    found += [f"fault {fault.name!r} never struck: {fault.when} did not happen" for fault in played.waiting]
    found += [f"fault {each.fault.name!r} struck no host: {each.nobody}" for each in played.struck if each.nobody]
    if expect.finish and not report.finished:
        found.append(f"the run was not finished: {report.decided} steps were decided")
    if expect.equal and report.equal is not True:
        verdict = played.verdict.get("verdict", "there is nothing to compare")
        found.append(f"the digests differ from those of the reference: {verdict}")
    if expect.equal and report.finished and played.manifest is not None:
        version = played.verdict.get("version")
        if version != played.manifest.run.steps:
            found.append(f"version {version} was compared, not the last version, {played.manifest.run.steps}")
    for name, value, bound, over in (
        ("the longest gap between decisions, s", report.longest_gap_s, expect.gap_s, True),
        ("the slowest step ÷ the usual one", report.slowest, expect.slowest_step, True),
        ("goodput", report.goodput, expect.goodput, False),
    ):
        if bound is None:
            continue
        if value is None:
            found.append(f"{name} could not be measured: there was no step before the first fault")
        elif (value > bound) if over else (value < bound):
            found.append(f"{name}: {value:.3g}, expected {'at most' if over else 'at least'} {bound:g}")
    found += [text for growth in report.growth for text in _grown(growth, expect)]
    found += [text for expected in expect.events if (text := _missed(played, expected)) is not None]
    return found + [text for end in expect.ends if (text := _not_ended(played, end)) is not None]


def _grown(growth: Growth, expect: Expectations) -> list[str]:
    found = []
    if expect.memory_growth is not None and growth.resident_bytes > expect.memory_growth:
        found.append(f"{growth.host} has {amount(growth.resident_bytes)} more memory after {growth.seconds:.0f} s")
    if expect.descriptor_growth is not None:
        for what, count in (("descriptors", growth.descriptors), ("threads", growth.threads), ("tasks", growth.tasks)):
            if count > expect.descriptor_growth:
                found.append(f"{growth.host} has {count} more {what} after {growth.seconds:.0f} s")
    return found


def _not_ended(played: Played, expected: ExpectedEnd) -> str | None:
    """The reason why a process did not end as it should. None if it did."""
    begin = next((s.at for s in played.struck if s.fault.name == expected.after), None)
    if begin is None:
        return None  # reported already: the fault never struck
    ends = [end for end in played.ends if end.host == expected.who and end.at >= begin]
    what = f"the end of {expected.who} with code {expected.code} within {expected.within_s:g} s of {expected.after}"
    if not ends:
        return f"{what}: it did not end"
    if ends[0].at - begin > expected.within_s or ends[0].code != expected.code:
        return f"{what}: it ended with code {ends[0].code} after {ends[0].at - begin:.2f} s"
    return None


def _missed(played: Played, expected: Expected) -> str | None:
    """The reason why the log does not show an event as expected. None if it does."""
    begin = 0.0
    if expected.after is not None:
        struck = [s.at for s in played.struck if s.fault.name == expected.after]
        if not struck:
            return None  # reported already: the fault never struck
        begin = struck[0]
    end = float("inf") if expected.within_s is None else begin + expected.within_s
    of = expected.sight.of
    log = played.coordinator if of == COORDINATOR else played.machines[of].log
    times = [seen.at - begin for seen in log if seen.at >= begin and expected.sight.matches(seen.event, played.actors)]
    inside = [at for at in times if at <= end - begin]
    after = "" if expected.after is None else f" after {expected.after}"
    if expected.never:
        return (
            None if not inside else f"{expected.sight} was seen{after}, at {inside[0]:.2f} s, but should never happen"
        )
    if len(inside) >= expected.count:
        return None
    late = f"; the first came after {times[0]:.2f} s" if times and not inside else ""
    within = "" if expected.within_s is None else f" within {expected.within_s:g} s"
    return f"{expected.sight}{after}{within}: seen {len(inside)} times, expected {expected.count}{late}"
