"""Placement: the cards that serve a stage, those that stand by, and what people must know of them before a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from peers.run.cards import MINE
from peers.run.fleet import Kind
from swarm.events.wording import amount
from swarm.manifest import RunManifest


@dataclass(frozen=True, slots=True)
class Placement:
    """The cards of one kind that serve one stage."""

    stage: int
    card: str
    count: int
    forward_s: float
    backward_s: float
    """Seconds per microbatch, including a recomputed forward if its graph does not fit."""
    needs: int
    """Bytes needed on the card."""
    has: int
    lacks: int
    """Bytes that are missing on the card; 0: it fits."""
    graphs: int
    """The number of graphs that fit at once."""
    again: bool
    """True if it recomputes layer by layer, because a whole graph does not fit."""
    offload_host: int | None = None
    """Bytes of the host's memory with which the stage fits if the peer joins with --offload. None: it fits without, or
    not at all.
    """

    @classmethod
    def of(cls, kind: Kind, stage: int, stages: int, count: int) -> Placement:
        """`count` cards of a kind in a stage."""
        times, offloaded = kind.taken(stage, stages), kind.with_offload(stage)
        return cls(
            stage,
            kind.name,
            count,
            times.forward_s,
            times.backward_s,
            needs=kind.taken_up(stage).device,
            has=kind.memory,
            lacks=kind.lacks(stage),
            graphs=kind.graphs(stage),
            again=kind.recomputes_layers(stage),
            offload_host=None if offloaded is None else offloaded.host,
        )

    @property
    def fits(self) -> bool:
        """Whether the cards can hold the stage, if need be with --offload."""
        return not self.lacks or self.offload_host is not None


@dataclass(frozen=True, slots=True)
class Standby:
    """The cards of one kind that get no stage."""

    card: str
    count: int
    lacks: int
    """Bytes that are missing on the card for the stage that it is closest to fit; 0: the stages that it fits, perhaps
    with --offload, are full.
    """


def cards(placements: Iterable[Placement]) -> Counter[int]:
    """The number of cards by stage."""
    counts: Counter[int] = Counter()
    for each in placements:
        counts[each.stage] += each.count
    return counts


def unfit(placements: Iterable[Placement]) -> list[Placement]:
    """For each stage that no card can hold, the cards that are there in its place. Empty: the run can begin."""
    by_stage = [list(each) for _, each in groupby(placements, key=lambda each: each.stage)]
    return [crew[0] for crew in by_stage if not any(each.fits for each in crew)]


def lacking(each: Placement) -> str:
    """What is missing for a stage that no card can hold."""
    also = "" if each.card == MINE else ", and --offload does not suffice"
    return (
        f"no card can hold stage {each.stage}: it needs {amount(each.needs)} on {each.card}, which has "
        f"{amount(each.has)} to plan with{also}"
    )


def warnings(placements: Sequence[Placement], standbys: Iterable[Standby], manifest: RunManifest) -> Iterator[str]:
    """What people must know of the cards, in sentences without a full stop."""
    for each in unfit(placements):
        yield f"{lacking(each)}. The run cannot begin; the times are those of cards with enough memory"
    for each in placements:
        if each.offload_host is not None:
            yield (
                f"{each.count} × {each.card} can hold stage {each.stage} only with --offload, which takes "
                f"{amount(each.offload_host)} of the host's memory"
            )
    by_stage, swarm, microbatches = cards(placements), manifest.swarm, manifest.batch.microbatches
    for stage, count in by_stage.items():
        if count > microbatches:
            yield f"{count - microbatches} of {count} cards of stage {stage} get none of {microbatches} microbatches"
    least = min(by_stage.values())
    if least < swarm.replicas:
        yield (
            f"swarm.replicas = {swarm.replicas}, but a stage gets {least}: the run begins {swarm.start_timeout_s:g} s "
            f"(swarm.start_timeout_s) later than with swarm.replicas = {least}"
        )
    for standby in standbys:
        why = f"lack {amount(standby.lacks)} for any stage" if standby.lacks else "fit only stages with enough cards"
        yield f"{standby.count} × {standby.card} {why}: stand by"
