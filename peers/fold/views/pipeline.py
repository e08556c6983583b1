"""The view of the pipeline: stages as columns, the peers of each stage as cells, the slowest stage and the reason."""

from __future__ import annotations

from typing import Any

from peers.fold.facts import RunFacts
from peers.fold.members import Member
from peers.fold.pipeline import Stage
from peers.fold.state import RunState
from peers.fold.views.paging import page
from peers.fold.views.words import SYMBOLS, display_name, why_of, word_of, words_of


def pipeline_view(
    state: RunState, facts: RunFacts | None = None, *, offset: int = 0, limit: int = 200
) -> dict[str, Any]:
    """The pipeline. `offset` and `limit` select the cells of each stage, and the peers that stand by.

    A peer that is lost in the open step keeps a cell (`out`) in its stage until that step is decided.
    """
    pipeline, words = state.pipeline, words_of(state)
    slowest = slowest_stage(state)
    by_stage: dict[int, list[Member]] = {}
    standby: list[Member] = []
    for member in state.members.here.values():
        if member.stage is None:
            standby.append(member)
        else:
            by_stage.setdefault(member.stage, []).append(member)
    count = max(len(pipeline.stages), max(by_stage, default=-1) + 1, len(facts.layers) if facts is not None else 0)
    stages = []
    for index in range(count):
        stage = pipeline.stages[index] if index < len(pipeline.stages) else Stage()
        cells = _actors(stage, by_stage.get(index, []))
        told = stage.told or ([0, 0, pipeline.open.microbatches] if pipeline.open is not None else [])
        places = {actor: position for position, actor in enumerate(stage.roster)}
        total = sum(stage.weights)
        shown = [_cell(state, stage, actor, words, places.get(actor), total) for actor in page(cells, offset, limit)]
        stages.append(
            {
                "stage": index,
                "cost": facts.share_of_layers(index) if facts is not None else None,
                "rate": stage.rate,
                "total": len(cells),
                "codec_in": _codec(stage, index, facts),
                "slowest": index == slowest,
                "why": _why(state, slowest) if index == slowest else "",
                "accumulated": told[0] if told else None,
                "forwarded": told[1] if told else None,
                "microbatches": told[2] if told else None,
                "reduce": stage.reduce or None,
                "reason": stage.reason,
                "cells": shown,
            }
        )
    planned = pipeline.planned
    return {
        "stages": stages,
        "standby": [_cell(state, Stage(), member.actor, words, None, 0.0) for member in page(standby, offset, limit)],
        "standby_total": len(standby),
        "planned": None
        if planned is None or planned.actor not in state.members.here
        else {
            "actor": planned.actor,
            "name": display_name(planned.actor),
            "source": planned.source,
            "stage": planned.stage,
            "gain": planned.gain,
            "reason": planned.reason,
        },
    }


def slowest_stage(state: RunState) -> int | None:
    """The stage that limits the swarm, by the planner's rates."""
    rates = state.pipeline.rates()
    if rates and len(rates) > 1:
        return min(range(len(rates)), key=lambda index: rates[index])
    return state.pipeline.planned.slowest if state.pipeline.planned is not None else None


def _why(state: RunState, slowest: int | None) -> str:
    rates, planned = state.pipeline.rates(), state.pipeline.planned
    if rates and slowest is not None and len(rates) > 1:
        others = sorted(rate for index, rate in enumerate(rates) if index != slowest)
        words = f"{rates[slowest]:.3g} microbatches/s, the second slowest stage {others[0]:.3g}"
        return f"{words}; planner: {planned.reason}" if planned is not None and planned.reason else words
    return planned.reason if planned is not None else ""


def _actors(stage: Stage, members: list[Member]) -> list[str]:
    """The roster in its order, then members that were lost in the open step, then others that hold or load the
    stage.
    """
    listed = {*stage.roster, *stage.out}
    return stage.roster + stage.out + [member.actor for member in members if member.actor not in listed]


def _codec(stage: Stage, index: int, facts: RunFacts | None) -> dict[str, str] | None:
    if index == 0:
        return None
    fixed = facts.codec if facts is not None else None
    forward = stage.forward or (fixed[0] if fixed else "")
    backward = stage.backward or (fixed[1] if fixed else "")
    return {"forward": forward, "backward": backward} if forward or backward else None


def _cell(
    state: RunState, stage: Stage, actor: str, words: dict[str, str], position: int | None, total: float
) -> dict[str, Any]:
    """The cell of one peer. `position`: its position in the roster, whose weights have the sum `total`."""
    member = state.members.here.get(actor)
    gone = state.members.gone.get(actor)
    left = gone is not None and word_of(state, gone) == "left"
    word = words.get(actor) or ("left" if left else "gone")
    machine = member.machine if member is not None else state.members.machines.get(actor, {})
    weight = rate = share = done = still = None
    if position is not None:
        weight = stage.weights[position] if position < len(stage.weights) else None
        rate = stage.rates[position] if position < len(stage.rates) else None
        share = weight / total if weight is not None and total > 0 else None
        if position < len(stage.shares):
            accumulated, _, assigned = stage.shares[position]
            done, still = accumulated, max(0, assigned - accumulated)
    return {
        "actor": actor,
        "name": display_name(actor),
        "peer": member.peer if member is not None else display_name(actor),
        "symbol": SYMBOLS[word],
        "word": word,
        "why": why_of(member),
        "weight": weight,
        "rate": rate,
        "share": share,
        "done": done,
        "left": still,
        "seconds_per_microbatch": 1 / rate if rate else None,
        "out": actor in stage.out,
        "seat_of": process if isinstance(process := machine.get("process"), str) else None,
        "usage": dict(member.usage) if member is not None else {},
    }
