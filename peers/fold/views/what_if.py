"""What if a peer left now: the planner's rates without it, and what of the open step would have to be done again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peers.fold.members import Member
from peers.fold.pipeline import Stage
from peers.fold.state import RunState
from peers.fold.views.words import display_name

FORWARD_SHARE = 1 / 3
"""Backward takes about twice as long."""


def what_if(state: RunState, actor: str) -> dict[str, Any] | None:
    """`actor` dies at this instant, and with it the other seats of its process. None: it is not in the swarm.

    A stage does as many microbatches a second as its peers together, and the swarm as many as its slowest stage, so
    `after` is that of the others. `microbatches_again` is what the seats had accumulated in the open step: it is void.
    `seconds_again` is what the survivors of their stages, all at the same time, need for these, and for the forward
    passes of those they had in hand, which are moved. That a death takes a while to be noticed is not in it.
    """
    member = state.members.here.get(actor)
    if member is None:
        return None
    rates = state.pipeline.rates()
    before = _tokens_per_second(state, rates)
    together = seats_of(state, member)
    losses = [_Loss.of(state, index, together) for index in range(len(state.pipeline.stages))]
    hit = [loss for loss in losses if loss.seats]
    again = sum(loss.accumulated for loss in hit)
    answer: dict[str, Any] = {
        "tokens_per_second_before": before,
        "together": [{"actor": m.actor, "name": display_name(m.actor), "stage": m.stage} for m in together[1:]],
        "microbatches_again": again,
    }
    if not hit:
        where = "stands by" if member.stage is None else f"is loading stage {member.stage}"
        text = f"{display_name(actor)} {where}: nothing would change, but nobody could take over so soon."
        return answer | {"after": before, "seconds_again": 0.0, "stage_lost": False, "text": text}
    emptied = [loss.stage for loss in hit if loss.others == 0]
    if emptied:
        backed = any(each.stage is None and each not in together for each in state.members.here.values())
        who = "a peer that stands by would load it" if backed else "somebody would have to join, or move there"
        stages = f"Stage {emptied[0]}" if len(emptied) == 1 else f"Stages {', '.join(map(str, emptied))}"
        text = f"{stages} would have no peer: training would stop, and {who}.{_with(together)}"
        return answer | {"after": 0.0, "seconds_again": None, "stage_lost": True, "text": text}
    after, seconds = before, None
    if rates is not None and all(loss.rate is not None for loss in hit):
        left = {loss.stage: loss.rate or 0.0 for loss in hit}
        after = _tokens_per_second(state, [left.get(index, rate) for index, rate in enumerate(rates)])
        slowest = [loss.work / left[loss.stage] for loss in hit if left[loss.stage] > 0]
        seconds = max(slowest) if len(slowest) == len(hit) else None
    text = _sentence(display_name(actor), hit, before, after, seconds, again) + _with(together)
    return answer | {"after": after, "seconds_again": seconds, "stage_lost": False, "text": text}


def seats_of(state: RunState, member: Member) -> list[Member]:
    """`member` first, then those that say that they are of the same process."""
    process = member.machine.get("process")
    if not isinstance(process, str) or not process:
        return [member]
    others = state.members.here.values()
    return [member, *(m for m in others if m is not member and m.machine.get("process") == process)]


@dataclass(frozen=True, slots=True)
class _Loss:
    """What a stage would lose."""

    stage: int
    seats: int
    """Of those that leave."""
    others: int
    rate: float | None
    """Of the others, microbatches a second. None: not told."""
    accumulated: int
    """Microbatches that are void."""
    work: float
    """That is done again, in microbatches."""

    @classmethod
    def of(cls, state: RunState, index: int, leaving: list[Member]) -> _Loss:
        stage, by_actor = state.pipeline.stages[index], {member.actor: member for member in leaving}
        seats = {place: by_actor[actor] for place, actor in enumerate(stage.roster) if actor in by_actor}
        again = [_again(stage, place, _forward_share(member.seconds)) for place, member in seats.items()]
        known = len(stage.rates) == len(stage.roster)
        rate = sum(rate for place, rate in enumerate(stage.rates) if place not in seats) if known else None
        others = len(stage.roster) - len(seats)
        return cls(index, len(seats), others, rate, sum(done for done, _ in again), sum(work for _, work in again))


def _again(stage: Stage, position: int, forward_share: float) -> tuple[int, float]:
    """Of the open step: microbatches that it has accumulated, and the work that is done again, in microbatches."""
    if position >= len(stage.shares):
        return 0, 0.0
    accumulated, forwarded, _ = stage.shares[position]
    return accumulated, accumulated + max(0, forwarded - accumulated) * forward_share


def _forward_share(seconds: dict[str, float]) -> float:
    """Of the work on a microbatch: as the peer said of its last step, else a third."""
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
        return f"If {name} left now, the {who} would go on."
    slower = 1 - after / before if before > 0 else 0.0
    speed = "as fast as before" if slower < 0.005 else f"{100 * slower:.0f} % slower ({after:,.0f} tokens/s)"
    begun = f"{again} microbatches" if again else "what it has begun"
    work = f", after {seconds:.1f} s of work done again ({begun})" if seconds else ""
    return f"If {name} left now, the {who} would go on {speed}{work}."


def _with(together: list[Member]) -> str:
    if len(together) < 2:
        return ""
    places = [(m.actor, "standing by" if m.stage is None else f"stage {m.stage}") for m in together[1:]]
    each = [f"{display_name(actor)} ({place})" for actor, place in places]
    return f" Its process has other seats, which would leave with it: {', '.join(each)}."
