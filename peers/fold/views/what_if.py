"""The effect if a peer left now: the planner's rates without the peer, and the work of the open step to be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peers.fold.members import Member
from peers.fold.pipeline import Stage
from peers.fold.state import RunState
from peers.fold.views.words import display_name

FORWARD_SHARE = 1 / 3
"""Fraction of the forward in the work on a microbatch, because a backward takes about twice as long."""


def what_if(state: RunState, actor: str, at: float | None = None) -> dict[str, Any] | None:
    """The effect of the death of `actor` at this instant, together with the other seats of its process. None: it is
    not in the swarm.

    `at`: the instant, in unix seconds. None: the instant of the step's last progress report.

    The rate of a stage (microbatches/s) is the sum of its peers' rates, and the rate of the swarm is that of its
    slowest stage. `after` is the rate without the peer. `microbatches_again` counts the microbatches that the seats
    had accumulated in the open step, which become void. `seconds_again` is the time that the survivors of these
    stages, working at the same time, need for these microbatches and for the forward passes of the microbatches in
    progress, which are moved. `step_later_s` is the delay of the open step's decision, due to that work and because
    fewer peers do the rest of the step. Neither includes the time until the death is noticed. Progress is reported
    once a heartbeat; since the report, all peers are assumed to have continued at their rates.
    """
    member = state.members.here.get(actor)
    if member is None:
        return None
    rates = state.pipeline.rates()
    before = _tokens_per_second(state, rates)
    together = seats_of(state, member)
    told_at = state.pipeline.open.progress_at if state.pipeline.open is not None else None
    since = max(0.0, at - told_at) if at is not None and told_at is not None else 0.0
    losses = [_Loss.of(state, index, together, since) for index in range(len(state.pipeline.stages))]
    hit = [loss for loss in losses if loss.seats]
    answer: dict[str, Any] = {
        "tokens_per_second_before": before,
        "together": [{"actor": m.actor, "name": display_name(m.actor), "stage": m.stage} for m in together[1:]],
        "microbatches_again": sum(loss.accumulated for loss in hit),
    }
    if not hit:
        where = "stands by" if member.stage is None else f"is loading stage {member.stage}"
        text = f"{display_name(actor)} {where}: if it left now, only a spare peer would be missing."
        return answer | {"after": before, "seconds_again": 0.0, "step_later_s": 0.0, "stage_lost": False, "text": text}
    emptied = [loss.stage for loss in hit if loss.others == 0]
    if emptied:
        backed = any(each.stage is None and each not in together for each in state.members.here.values())
        who = "a peer that stands by would load it" if backed else "a peer would have to join, or move there"
        stages = f"Stage {emptied[0]}" if len(emptied) == 1 else f"Stages {', '.join(map(str, emptied))}"
        text = f"{stages} would have no peer: training would stop, and {who}.{_with(together)}"
        return answer | {"after": 0.0, "seconds_again": None, "step_later_s": None, "stage_lost": True, "text": text}
    after, seconds, later = before, None, None
    if rates is not None and all(loss.rate is not None for loss in hit):
        left = {loss.stage: loss.rate or 0.0 for loss in hit}
        after = _tokens_per_second(state, [left.get(index, rate) for index, rate in enumerate(rates)])
        slowest = [loss.work / left[loss.stage] for loss in hit if left[loss.stage] > 0]
        if len(slowest) == len(hit):
            seconds, later = max(slowest), _later(state, rates, left, hit, _forward_share(member.seconds), since)
    text = _sentence(display_name(actor), hit, before, after, seconds, answer["microbatches_again"]) + _with(together)
    done = {"after": after, "seconds_again": seconds, "step_later_s": later}
    return answer | done | {"stage_lost": False, "text": text}


def _later(
    state: RunState, rates: list[float], left: dict[int, float], hit: list[_Loss], forward_share: float, since: float
) -> float | None:
    """Seconds by which the slowest stage ends later. None: the step's progress has not been reported."""
    stages = state.pipeline.stages
    if state.pipeline.open is None or not all(len(stage.told) == 3 for stage in stages) or min(rates) <= 0:
        return None
    again = {loss.stage: loss.work for loss in hit}
    as_it_is, without = [], []
    for index, (stage, rate) in enumerate(zip(stages, rates, strict=True)):
        accumulated, forwarded = _by_now(stage.told, rate, since)
        rest = stage.told[2] - accumulated - max(0.0, forwarded - accumulated) * forward_share
        as_it_is.append(rest / rate)
        without.append((rest + again.get(index, 0.0)) / left.get(index, rate))
    return max(without) - max(as_it_is)


def seats_of(state: RunState, member: Member) -> list[Member]:
    """`member` first, then the members that report the same process."""
    process = member.machine.get("process")
    if not isinstance(process, str) or not process:
        return [member]
    others = state.members.here.values()
    return [member, *(m for m in others if m is not member and m.machine.get("process") == process)]


@dataclass(frozen=True, slots=True)
class _Loss:
    """What one stage loses."""

    stage: int
    seats: int
    """Number of leaving seats."""
    others: int
    rate: float | None
    """Microbatches/s of the other members. None: not reported."""
    accumulated: int
    """Number of void microbatches."""
    work: float
    """The work that must be repeated, as a number of microbatches."""

    @classmethod
    def of(cls, state: RunState, index: int, leaving: list[Member], since: float) -> _Loss:
        stage, by_actor = state.pipeline.stages[index], {member.actor: member for member in leaving}
        seats = {place: by_actor[actor] for place, actor in enumerate(stage.roster) if actor in by_actor}
        again = [_again(stage, place, _forward_share(member.seconds), since) for place, member in seats.items()]
        known = len(stage.rates) == len(stage.roster)
        rate = sum(rate for place, rate in enumerate(stage.rates) if place not in seats) if known else None
        others = len(stage.roster) - len(seats)
        return cls(
            index, len(seats), others, rate, round(sum(done for done, _ in again)), sum(work for _, work in again)
        )


def _again(stage: Stage, position: int, forward_share: float, since: float) -> tuple[float, float]:
    """What one seat has done in the open step: the number of accumulated microbatches, and the work that must be
    repeated, as a number of microbatches.
    """
    if position >= len(stage.shares):
        return 0.0, 0.0
    rate = stage.rates[position] if position < len(stage.rates) else 0.0
    accumulated, forwarded = _by_now(stage.shares[position], rate, since)
    return accumulated, accumulated + max(0.0, forwarded - accumulated) * forward_share


def _by_now(told: list[int], rate: float, since: float) -> tuple[float, float]:
    """Expected numbers of accumulated and forwarded microbatches, `since` seconds after these counts were reported."""
    accumulated, forwarded, every = told
    return min(every, accumulated + rate * since), min(every, forwarded + rate * since)


def _forward_share(seconds: Mapping[str, float]) -> float:
    """Share of the forward in the work on a microbatch: as the peer reported for its last step, otherwise a third."""
    forward, backward = seconds.get("forward", 0.0), seconds.get("backward", 0.0)
    return forward / (forward + backward) if forward > 0 and backward > 0 else FORWARD_SHARE


def _tokens_per_second(state: RunState, rates: list[float] | None) -> float | None:
    per_step, microbatches = state.work.tokens_per_step, state.pipeline.microbatches
    if not rates or per_step is None or not microbatches:
        return None
    return min(rates) * per_step / microbatches


def _sentence(
    name: str, hit: list[_Loss], before: float | None, after: float | None, seconds: float | None, again: int
) -> str:
    others = sum(loss.others for loss in hit)
    stages = f"stage {hit[0].stage}" if len(hit) == 1 else f"stages {', '.join(str(loss.stage) for loss in hit)}"
    who = f"{others} other peer{'s' if others > 1 else ''} of {stages}"
    if before is None or after is None:
        return f"If {name} left now, the {who} would continue."
    slower = 1 - after / before if before > 0 else 0.0
    speed = "as fast as before" if slower < 0.005 else f"{100 * slower:.0f} % slower ({after:,.0f} tokens/s)"
    begun = f"{again} microbatches" if again else "what it has begun"
    work = f", after {seconds:.1f} s of work done again ({begun})" if seconds else ""
    return f"If {name} left now, the {who} would continue {speed}{work}."


def _with(together: list[Member]) -> str:
    if len(together) < 2:
        return ""
    places = [(m.actor, "standing by" if m.stage is None else f"stage {m.stage}") for m in together[1:]]
    each = [f"{display_name(actor)} ({place})" for actor, place in places]
    return f" Its process has other seats, which would leave with it: {', '.join(each)}."
