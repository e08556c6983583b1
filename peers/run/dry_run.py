"""Dry run: what a run will need, before anyone joins. `swarm-peer coordinate --dry-run` prints it.

The result follows from the manifest, the counts of each stage and the size of a frame. `dry_run` takes the counts from
the model (on the meta device) and the size from the codecs. Memory is counted as in swarm/compute/memory_table.py,
with the graph of one microbatch; further graphs have their own budget.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tomli_w
from rich import box
from rich.console import Console
from rich.table import Table

from peers.report.whole_table import print_whole
from swarm.compute.memory_table import ON_CPU, Mode, StageCounts, StageMemory, packed, stage_memory
from swarm.events.wording import amount
from swarm.manifest import RunManifest
from swarm.protocol.codec_ladder import CodecLadders
from swarm.protocol.ids import Direction

LEAST_EFFICIENCY = 0.8


@dataclass(frozen=True, slots=True)
class StageNeed:
    """Bytes that a peer of one stage needs. Traffic is per peer and step, with the manifest's number of replicas."""

    parameters: int
    """The number of parameters, not bytes."""
    memory: StageMemory
    least: StageMemory
    """Memory of a peer that recomputes layer by layer, which it does if `memory` does not fit."""
    retention: int
    """Worst case: the frames of a whole step, kept by the only remaining replica, in the host's memory or on its disk.
    """
    sums: int
    """The sums of a step as a peer that catches up fetches them: packed, if they are exact."""
    reduce_sent: int
    """The most that a peer sends in the reduction of one step; it receives the same amount."""
    reduce_packed: int
    """As `reduce_sent`, but for exact sums at their usual packed size."""
    muon_flop: int = 0
    """Floating-point operations of Muon in a step; 0 with AdamW."""

    def within(self, room: int) -> StageMemory:
        """Memory used by a peer with `room` bytes on its device."""
        return self.memory if self.memory.device <= room else self.least

    @property
    def whole(self) -> int:
        """Total memory, including frames."""
        return self.memory.device + self.memory.host + self.retention


@dataclass(frozen=True, slots=True)
class BoundaryNeed:
    """Bytes that cross a boundary in one step, for all replicas together."""

    boundary: int
    forward: int
    backward: int
    links: int
    """The number of links over which the bytes are spread if all replicas are equally fast: each replica then sends to
    one of the next stage. Otherwise, they may be spread over all pairs.
    """
    forward_by_link: int
    """The most that one of these links carries."""
    backward_by_link: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A codec that may be used, in a run that chooses codecs as it goes."""

    direction: str
    codec: str
    step_bytes: int
    """Bytes per step, for all replicas together."""
    at_first: bool
    """True if the codec is used until the links are measured."""


@dataclass(frozen=True, slots=True)
class DryRun:
    manifest: RunManifest
    efficiency: float
    """M ÷ (M + S − 1): with one replica per stage, if links and reduction take no extra time."""
    efficiency_with_replicas: float
    """M ÷ (M + R·(S − 1)): filling the pipeline takes as long as before, but a step is R times shorter."""
    stages: tuple[StageNeed, ...]
    boundaries: tuple[BoundaryNeed, ...]
    warnings: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    """Codecs with the least loss first. `boundaries` and `retention` then hold the bytes of the first."""


def needs_of(manifest: RunManifest, mode: Mode, room: int) -> tuple[StageNeed, ...]:
    """The needs for peers with `room` bytes on their devices. `least` is counted only if some stage does not fit."""
    from swarm.compute.graph import count_stages

    needs = dry_run(manifest, mode, count_stages(manifest, mode, by_layer=False)).stages
    return needs if all(need.memory.device <= room for need in needs) else dry_run(manifest, mode).stages


def dry_run(manifest: RunManifest, mode: Mode = ON_CPU, counts: Sequence[StageCounts] | None = None) -> DryRun:
    """Count parameters, graphs and frames, then `estimate`. Imports torch. Raises ManifestError for an unknown codec.

    `mode`: how the peers compute. `counts`: the counts of each stage, if they are known already.
    """
    from swarm import codecs
    from swarm.codecs import ladder
    from swarm.compute.averaging import sent_bytes
    from swarm.compute.body import HEADER_BYTES
    from swarm.compute.graph import count_stages
    from swarm.compute.ladders import ladders
    from swarm.compute.layout import Layout
    from swarm.manifest import ManifestError

    batch = manifest.batch
    shapes = [(batch.sequences, batch.sequence_length, width) for width in manifest.model.boundary_widths]
    try:
        forward, backward = ladder.names(manifest)
        pair = codecs.pair(forward[0], backward[0])
        chosen_from = ladders(manifest)
        layouts = [Layout.of_stage(manifest.model, stage) for stage in range(manifest.model.stages)]
        sums = [sent_bytes(layout, manifest.sums) for layout in layouts]
    except codecs.UnknownCodec as error:
        raise ManifestError(str(error)) from None
    ahead, back = pair
    frames = [(HEADER_BYTES + ahead.usual_bytes(s), HEADER_BYTES + back.usual_bytes(s)) for s in shapes]
    counts = count_stages(manifest, mode) if counts is None else counts
    plan = estimate(manifest, counts, frames=frames, sums=sums, mode=mode)
    return plan if chosen_from is None else dataclasses.replace(plan, choices=_choices(manifest, chosen_from))


def _choices(manifest: RunManifest, ladders: CodecLadders) -> tuple[Choice, ...]:
    count, start = manifest.batch.microbatches, ladders.start
    return tuple(
        Choice(direction.value, rung.codec, count * rung.nbytes, rung.codec == start.of(direction))
        for direction in Direction
        for rung in ladders.rungs(direction)
    )


def estimate(
    manifest: RunManifest,
    counts: Sequence[StageCounts],
    *,
    frames: Sequence[tuple[int, int]],
    sums: Sequence[int] | None = None,
    mode: Mode = ON_CPU,
) -> DryRun:
    """`counts`: by stage. `frames`: for each boundary, bytes of a forward frame without its token ids, and of a
    backward frame.

    `sums`: bytes of each stage's sums as transferred; None: as many as in memory.
    """
    count, stages, replicas = manifest.batch.microbatches, manifest.model.stages, manifest.swarm.replicas
    assert len(counts) == stages
    ids = manifest.model.token_id_bytes * manifest.batch.ids_per_microbatch
    crossing = [(count * (ids + forward), count * backward) for forward, backward in frames]
    sum_bytes = 8 if manifest.sums.mode == "exact" else 4
    sent = sums or [sum_bytes * each.parameters for each in counts]
    needs = tuple(
        StageNeed(
            parameters=each.parameters,
            memory=stage_memory(manifest, each, mode, sent[stage]),
            least=stage_memory(manifest, each.by_layer(), mode, sent[stage]),
            retention=(crossing[stage][0] if stage < stages - 1 else 0) + (crossing[stage - 1][1] if stage > 0 else 0),
            sums=packed(manifest, sent[stage]),
            reduce_sent=(most := _reduce_sent(sent[stage], sum_bytes * _shared(manifest, stage), replicas)),
            reduce_packed=packed(manifest, most),
            muon_flop=each.muon_flop,
        )
        for stage, each in enumerate(counts)
    )
    links = min(replicas, count)
    most = -(-count // links)  # microbatches that cross the busiest link
    boundaries = tuple(
        BoundaryNeed(boundary, forward, backward, links, most * forward // count, most * backward // count)
        for boundary, (forward, backward) in enumerate(crossing, 1)
    )
    efficiency = count / (count + stages - 1)
    with_replicas = count / (count + replicas * (stages - 1))
    return DryRun(manifest, efficiency, with_replicas, needs, boundaries, _warnings(manifest, with_replicas))


def _shared(manifest: RunManifest, stage: int) -> int:
    """The number of parameters of a stage that another stage shares."""
    model = manifest.model
    return model.vocab_size * model.dim if model.shares_embedding and stage in (0, model.stages - 1) else 0


def _reduce_sent(sums: int, shared: int, replicas: int) -> int:
    """The most bytes that a replica sends in a reduction. `shared`: the part of `sums` that is reduced among the peers
    of two stages.
    """
    return (2 * (replicas - 1) * (sums - shared) + (2 * replicas - 1) * shared) // replicas


def to_json(plan: DryRun) -> dict[str, Any]:
    """The output of `--json`."""
    return {
        "hash": plan.manifest.hash,
        "manifest": plan.manifest.model_dump(mode="json"),
        "efficiency": plan.efficiency,
        "efficiency_with_replicas": plan.efficiency_with_replicas,
        "stages": [_as_json(need) for need in plan.stages],
        "boundaries": [dataclasses.asdict(need) for need in plan.boundaries],
        "choices": [dataclasses.asdict(choice) for choice in plan.choices],
        "warnings": list(plan.warnings),
    }


def _as_json(need: StageNeed) -> dict[str, int]:
    memory = {**dataclasses.asdict(need.memory), "device": need.memory.device, "host": need.memory.host}
    return {**memory, **dataclasses.asdict(need), "memory": need.whole}


def show(plan: DryRun, console: Console) -> None:
    """Print the resolved manifest and the plan for people."""
    manifest = plan.manifest

    def say(line: str, style: str = "") -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    say(tomli_w.dumps(json.loads(manifest.canonical())))
    say(f"run {manifest.hash}", "bold")
    replicas = manifest.swarm.replicas
    say(
        f"efficiency {plan.efficiency:.2f} with one peer a stage, {plan.efficiency_with_replicas:.2f} with {replicas}; "
        f"{manifest.batch.tokens_per_step:,} tokens in a step"
    )
    memory = table("stage", "parameters", "weights", "AdamW", "sums", "in hand", "frames", "memory", "sums sent")
    for stage, need in enumerate(plan.stages):
        each = need.memory
        sums = each.accumulator + each.reduced + each.residuals + each.grids + each.host_grids
        sizes = (each.weights + each.copies, each.moments, sums, each.working, need.retention, need.whole)
        memory.add_row(str(stage), f"{need.parameters:,}", *map(amount, sizes), amount(need.reduce_sent))
    print_whole(memory, console)
    say("memory of one peer; in hand: a microbatch in its backward, or what a reduce sends and receives")
    say("frames: of a step, if one replica is left; sums sent: at most, in a step")
    links = table("stages", "forward", "backward", "forward, by link", "backward, by link")
    for link in plan.boundaries:
        crossing = (link.forward, link.backward, link.forward_by_link, link.backward_by_link)
        links.add_row(f"{link.boundary - 1} → {link.boundary}", *map(amount, crossing))
    if plan.boundaries:
        print_whole(links, console)
        at_most = " at most" if plan.choices else ""
        say(f"bytes in a step{at_most}, with codecs {manifest.codec.forward} and {manifest.codec.backward}")
        if replicas > 1:
            say(f"by link: with {replicas} equally fast peers in each stage")
    for direction in ("forward", "backward") if plan.boundaries and plan.choices else ():
        rungs = [choice for choice in plan.choices if choice.direction == direction]
        named = (f"{c.codec} {amount(c.step_bytes)}{' (at first)' if c.at_first else ''}" for c in rungs)
        say(f"{direction}, as the links allow: {', '.join(named)}")
    for warning in plan.warnings:
        say(f"warning: {warning}", "yellow")


def table(*names: str) -> Table:
    """A table with columns of these names and no rows."""
    empty = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        empty.add_column(name, justify="right", no_wrap=True)
    return empty


def _warnings(manifest: RunManifest, efficiency: float) -> tuple[str, ...]:
    """`efficiency`: that with the planned replicas."""
    if efficiency >= LEAST_EFFICIENCY:
        return ()
    stages, replicas = manifest.model.stages, manifest.swarm.replicas
    wanted = 4 * replicas * (stages - 1)  # M ÷ (M + R·(S − 1)) ≥ 4/5
    of_each = f" of {replicas} peers" if replicas > 1 else ""
    return (
        f"efficiency {efficiency:.2f} is below {LEAST_EFFICIENCY}: {manifest.batch.microbatches} microbatches keep "
        f"{stages} stages{of_each} waiting; set batch.microbatches = {wanted} or more",
    )
