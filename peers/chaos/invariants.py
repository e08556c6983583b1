"""The invariants of the protocol, checked on the event logs of all processes together."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from peers.chaos.director import Played
from peers.chaos.machine import Seen
from swarm.events import (
    CoordinatorStarted,
    PassOpened,
    PeerJoined,
    ProcessStarted,
    ReduceStarted,
    RolledBack,
    StepAborted,
    StepApplied,
    StepDecided,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `broken`: the violations; empty: none. `checked`: number of cases."""

    invariant: str
    checked: int
    broken: tuple[str, ...]


def check(played: Played) -> list[Finding]:
    """Make all checks. A killed process is not blamed for the events that it could not write."""
    return [exactly_once(played), decided_once(played), replicas_agree(played), attempts_end(played)]


def exactly_once(played: Played) -> Finding:
    """The sum of every decided step holds each microbatch once, in every stage."""
    assert played.manifest is not None
    wanted = list(range(played.manifest.batch.microbatches))
    shares: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for name, machine in played.machines.items():
        for seen in machine.log:
            if isinstance(seen.event, ReduceStarted):
                shares[seen.event.attempt.partition("+")[0]][name] = sorted(seen.event.microbatches)
    broken, checked = [], 0
    for decided in _of(played.coordinator, StepDecided):
        for stage, outcome in enumerate(decided.outcomes):
            checked += 1
            attempt = f"{decided.term}:{decided.step}/s{stage}n{outcome.partition(':')[0].partition('+')[0]}"
            found = sorted(m for share in shares[attempt].values() for m in share)
            lacking = [m for m in wanted if m not in found]
            if sorted(found + _of_before(shares, attempt, lacking)) != wanted:
                broken.append(f"{attempt} added up {found}")
    return Finding("exactly once: every decided sum contains every microbatch exactly once", checked, tuple(broken))


def _of_before(shares: dict[str, dict[str, list[int]]], attempt: str, lacking: list[int]) -> list[int]:
    """Microbatches that killed peers sent under an earlier table of the same pass, before they received the current
    one.

    Such a part stays valid if the new table does not change it. So it counts even if no live peer logs it.
    """
    of_pass, _, number = attempt.rpartition("n")
    found: list[int] = []
    heard = set(shares[attempt])
    for earlier in range(int(number) - 1, -1, -1):
        for name, share in shares.get(f"{of_pass}n{earlier}", {}).items():
            if name not in heard and set(share) <= set(lacking) - set(found):
                found += share
            heard.add(name)
    return found


def decided_once(played: Played) -> Finding:
    """A decided step is decided again only after a logged rollback."""
    standing: set[int] = set()
    broken, checked = [], 0
    for seen in played.coordinator:
        if isinstance(seen.event, RolledBack):
            version = seen.event.version
            standing = {step for step in standing if step < version}
        elif isinstance(seen.event, StepDecided):
            checked += 1
            if seen.event.step in standing:
                broken.append(f"step {seen.event.step + 1} was decided twice")
            standing.add(seen.event.step)
    return Finding("atomic: a decided step is run again only after a rollback", checked, tuple(broken))


def replicas_agree(played: Played) -> Finding:
    """All replicas that applied a step of a stage, under one decision, have the same digest."""
    decided: dict[int, list[float]] = defaultdict(list)
    for seen in played.coordinator:
        if isinstance(seen.event, StepDecided):
            decided[seen.event.step].append(seen.at)
    applied: dict[tuple[int, int, int], set[str]] = defaultdict(set)
    for machine in played.machines.values():
        stage: int | None = None
        for seen in machine.log:
            match seen.event:
                case ProcessStarted():
                    stage = None
                case PeerJoined():
                    stage = seen.event.stage
                case StepApplied(step, digest) if stage is not None:
                    applied[stage, step, bisect_right(decided[step], seen.at)].add(digest)
    broken = tuple(
        f"stage {stage}, step {step + 1}: {len(digests)} digests"
        for (stage, step, _), digests in sorted(applied.items())
        if len(digests) > 1
    )
    return Finding("replicas agree: one digest for each stage and step", len(applied), broken)


def attempts_end(played: Played) -> Finding:
    """Every opened training pass ends with a decision, with a logged abort, or with the end of its coordinator."""
    open_pass: str | None = None
    broken, checked = [], 0
    for seen in played.coordinator:
        match seen.event:
            case PassOpened() if seen.event.pass_kind == "train":
                checked += 1
                if open_pass is not None:
                    broken.append(f"{open_pass} was left for {seen.event.pass_id}")
                open_pass = seen.event.pass_id
            case StepDecided():
                open_pass = None
            case StepAborted() if seen.event.pass_id == open_pass:
                open_pass = None
            case CoordinatorStarted():
                open_pass = None
    if open_pass is not None and played.finished:
        broken.append(f"{open_pass} was open when the run was finished")
    return Finding("every attempt ends in a decision, or in an abort that is logged", checked, tuple(broken))


def _of(log: Iterable[Seen], kind: type[StepDecided]) -> list[StepDecided]:
    return [seen.event for seen in log if isinstance(seen.event, kind)]
