"""What if a peer left now: the planner's rates without it, and what of the open step would have to be done again."""

from __future__ import annotations

from typing import Any

from peers.fold.pipeline import Stage
from peers.fold.state import RunState
from peers.fold.views.words import display_name

FORWARD_SHARE = 1 / 3
"""Backward takes about twice as long."""


def what_if(state: RunState, actor: str) -> dict[str, Any] | None:
    """`actor` dies at this instant. None: it is not in the swarm.

    A stage does as many microbatches a second as its peers together, and the swarm as many as its slowest stage, so
    `after` is that of the others. `microbatches_again` is what the peer had accumulated in the open step: it is void.
    `seconds_again` is what the survivors of its stage need for these, and for the forward passes of those it had in
    hand, which are moved. That a death takes a while to be noticed is not in it.
    """
    member = state.members.here.get(actor)
    if member is None:
        return None
    before = _tokens_per_second(state, state.pipeline.rates())
    found = _seat(state, actor)
    if found is None or member.stage is None:
        where = "stands by" if member.stage is None else f"is loading stage {member.stage}"
        text = f"{display_name(actor)} {where}: nothing would change, but nobody could take over so soon."
        return _answer(before, before, 0.0, 0, False, text)
    index, stage, position = found
    others = [rate for place, rate in enumerate(stage.rates) if place != position]
    name = display_name(actor)
    again, work = _again(stage, position, _forward_share(member.seconds))
    if len(stage.roster) == 1:
        backed = state.members.standby() > 0
        who = "a peer that stands by would load it" if backed else "somebody would have to join, or move there"
        text = f"Stage {index} would have no peer: training would stop, and {who}."
        return _answer(before, 0.0, None, again, True, text)
    rates = state.pipeline.rates()
    after = before
    seconds: float | None = None
    if rates is not None and len(stage.rates) == len(stage.roster):
        rates[index] = sum(others)
        after = _tokens_per_second(state, rates)
        seconds = work / rates[index] if rates[index] > 0 else None
    return _answer(
        before, after, seconds, again, False, _sentence(name, index, len(others), before, after, seconds, again)
    )


def _seat(state: RunState, actor: str) -> tuple[int, Stage, int] | None:
    for index, stage in enumerate(state.pipeline.stages):
        if actor in stage.roster:
            return index, stage, stage.roster.index(actor)
    return None


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
    name: str, stage: int, others: int, before: float | None, after: float | None, seconds: float | None, again: int
) -> str:
    who = f"{others} other peer{'s' if others > 1 else ''} of stage {stage}"
    if before is None or after is None:
        return f"If {name} left now, the {who} would go on."
    slower = 1 - after / before if before > 0 else 0.0
    speed = "as fast as before" if slower < 0.005 else f"{100 * slower:.0f} % slower ({after:,.0f} tokens/s)"
    begun = f"{again} microbatches" if again else "what it has begun"
    work = f", after {seconds:.1f} s of work done again ({begun})" if seconds else ""
    return f"If {name} left now, the {who} would go on {speed}{work}."


def _answer(
    before: float | None, after: float | None, seconds: float | None, again: int, lost: bool, text: str
) -> dict[str, Any]:
    return {
        "tokens_per_second_before": before,
        "after": after,
        "seconds_again": seconds,
        "microbatches_again": again,
        "stage_lost": lost,
        "text": text,
    }
