"""The shape of a small run and its faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from swarm.manifest import DivergenceSection, OptimizerSection
from swarm.protocol.messages import Means
from swarm.protocol.settings import Settings
from swarm.protocol.stage_needs import StageNeeds
from swarm.simulation.checks.orderly_leave import ENOUGH_TO_LEAVE_S
from swarm.simulation.faults.diverging import Diverging
from swarm.simulation.faults.false_words import KINDS
from swarm.simulation.faults.faults import SimFault
from swarm.simulation.faults.lie import Lie
from swarm.simulation.kernel.network import Weather
from swarm.simulation.toy.organiser import Wish
from swarm.simulation.toy.toy_model import VOCABULARY


@dataclass(frozen=True, slots=True)
class Plan:
    scenario: str
    seed: int
    settings: Settings
    spares: int
    """Number of peers that arrive after the start and stand by."""
    speeds: tuple[float, ...]
    """Seconds of work per nominal second, for each peer in order of arrival."""
    faults: tuple[SimFault, ...]
    weather: Weather | None = None
    """Losses, late repeats and overtaking at any time, on all links."""
    blocks: int = 0
    """Number of step-blocks of an epoch, in a run whose codec builds on earlier visits. 0: it does not."""
    base_capacity: int = 0
    """Number of reconstructions of earlier visits that a peer keeps."""
    choosing: bool = False
    """True if codecs are chosen from step to step."""
    first_round: int = 0
    """Number of buckets that are reduced before the others can be computed."""
    coordinators: int = 1
    arrivals: tuple[float, ...] = ()
    """The times at which the spares arrive, in seconds. Empty: soon after the others."""
    piece_s: float = 0.02
    """Average seconds to download a sixth of a state while others train."""
    spoils: float = 0.0
    """Fraction of fetched sums that arrive wrong."""
    means: tuple[Means, ...] = ()
    """For each peer in order of arrival, the resources that it reports; empty: none."""
    grows: bool = False
    """True if processes add further peers when asked to."""
    lies: tuple[Lie | None, ...] = ()
    """For each peer in order of arrival, its misbehaviour. Peers beyond the end of the list behave."""
    people: tuple[int, ...] = ()
    """For each peer in order of arrival, the number of the pass that it joined with; empty: passes are unknown."""
    wishes: tuple[Wish, ...] = ()
    """The organiser's commands, one after the other."""
    unlike: bool = False
    """True if machines are of several kinds, whose gradients differ."""
    diverging: Diverging | None = None
    pauses: tuple[Pause, ...] = ()


class Pause(NamedTuple):
    """The peer with this number, in order of arrival, computes nothing for `seconds`, starting at `at`."""

    peer: int
    at: float
    seconds: float


def small_settings(
    *,
    stages: int,
    microbatches: int,
    steps: int,
    replicas: int,
    evaluate_every: int = 0,
    sample_tokens: int = 0,
    checkpoint_every: int = 1,
    slots: int = 16,
    imported: bool = False,
    ends_share: bool = False,
    averages_compressed: bool = False,
    max_replicas: int | None = None,
    leave_s: float = ENOUGH_TO_LEAVE_S,
) -> Settings:
    """Settings of a run whose steps take a few tenths of a virtual second.

    Peers beyond `replicas` stand by, unless `max_replicas` allows more.
    """
    return Settings(
        stages=stages,
        microbatches=microbatches,
        steps=steps,
        tokens_per_step=64 * microbatches,
        targets_per_step=64 * microbatches,
        optimizer=OptimizerSection(),
        replicas=replicas,
        max_replicas=replicas if max_replicas is None else max_replicas,
        evaluate_every=evaluate_every,
        evaluate_microbatches=2,
        sample_tokens=sample_tokens,
        vocabulary=VOCABULARY,
        checkpoint_every=checkpoint_every,
        step_budget_s=6.0,
        recruit_after_s=0.5,
        start_timeout_s=3.0,
        heartbeat_s=0.2,
        reconnect_grace_s=0.1,
        slots=slots,
        imported=imported,
        ends_share=ends_share,
        averages_compressed=averages_compressed,
        leave_s=leave_s,
        divergence=DivergenceSection(skips=1000),  # faults of single steps must not end the run
    )


def unlike_memory(rng: Random, settings: Settings, first: int, peers: int) -> tuple[Settings, tuple[Means, ...]]:
    """Memory needs of all kinds of peers, and the peers' memory. The `first` peers have room for any stage."""
    needs = {}
    for kind in KINDS:
        whole = tuple(rng.choice((100, 150, 200, 300)) for _ in range(settings.stages))
        needs[kind] = StageNeeds(whole, tuple(need - rng.choice((0, 40)) for need in whole))
    means = []
    for peer in range(peers):
        kind = rng.choice(KINDS)
        means.append(Means(memory=300 if peer < first else rng.choice((50, 110, 160, 210)), kind=kind))
    return replace(settings, stage_needs=needs), tuple(means)
