"""Plans: the shape of a small run and its faults. They depend only on (scenario, seed).

The first fault of seed `n` is the `n`-th cell of the shuffled coverage table, so that consecutive seeds cover the whole
table. Up to two more faults are drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Literal, NamedTuple

from swarm.manifest import DivergenceSection, OptimizerSection
from swarm.protocol.messages import Means
from swarm.protocol.settings import Settings
from swarm.protocol.stage_needs import StageNeeds
from swarm.simulation.checks.orderly_leave import ENOUGH_TO_LEAVE_S
from swarm.simulation.faults.diverging import Diverging
from swarm.simulation.faults.false_means import CLAIMS
from swarm.simulation.faults.false_words import KINDS as KINDS_OF_PEERS
from swarm.simulation.faults.faults import CELLS, GROUP_CELLS, GROUP_KINDS, KINDS, Cell, SimFault
from swarm.simulation.faults.lie import (
    DISTURBANCES,
    INSIDERS,
    MEDDLING,
    NEWCOMERS,
    WRONG,
    About,
    Claim,
    Disturbance,
    Lie,
)
from swarm.simulation.kernel.network import Weather
from swarm.simulation.toy.organiser import Wish
from swarm.simulation.toy.toy_model import SHARED_BUCKETS, VOCABULARY, buckets_of

SCENARIOS = (
    *("mixed", "calm", "storm", "imported", "delta", "averaging", "auto", "tied", "group", "election", "joining"),
    *("moves", "audited", "seats", "controls", "unlike", "insiders", "passes", "alone", "diverging", "pausing"),
    *("memory", "meddling"),
    *(kind.replace(" ", "-") for kind in KINDS),
)
"""The scenarios. "As mixed" means: with the faults of `mixed`.

* `mixed`: one to three faults.
* `calm`: no faults.
* `storm`: four to eight faults in bad weather.
* `imported`: as mixed, in a run whose version 0 comes from the archive.
* `delta`: as mixed, in runs whose codec builds on earlier visits.
* `averaging`: as mixed, in runs that average compressed gradients.
* `auto`: as mixed, in runs whose codecs are chosen from step to step.
* `tied`: as mixed, in runs whose first and last stage share parameters; every second run also as `delta`.
* `group`: as mixed, in runs with three or sometimes five coordinators, and with faults of and between these.
* `election`: three or five coordinators whose messages to each other are late, and which die and restart after voting.
* `joining`: as mixed, in runs that peers join while others train, over links on which a state takes longer than a step;
  one quarter of the runs each also as `averaging`, `delta` and `tied`.
* `moves`: as mixed, in longer runs with more peers than planned, of different speeds. Some peers are killed, and others
  move to their stages.
* `audited`: as mixed, in runs in which every step, or every second one, is computed again by other peers.
* `seats`: as mixed, in runs with fewer machines than stages, whose processes add further peers. More machines may join.
* `controls`: as mixed, in runs whose organiser gives commands; every second run with several coordinators.
* `unlike`: as mixed, in runs whose gradients depend on the kind of machine that computes them.
* `insiders`: no faults, but one or two of the peers disturb the others (`lie.py`).
* `passes`: no faults, but one person with one or several devices disturbs the others or lies; the seed selects the kind
  of misbehaviour. In some stages, this person has more devices than all others together.
* `meddling`: as `passes`, but the person sends false words about others, itself or evaluations, or is late on purpose.
* `alone`: no faults, but all replicas of one stage report non-finite results of their stage, and other peers come to
  take their place.
* `diverging`: runs whose results are not finite from some version on, for good or until the rate is lower; every second
  run as mixed, half of the runs with several coordinators.
* `pausing`: as mixed, in longer runs whose peers pause and resume at random times, sometimes all peers of a stage; one
  quarter of the runs each also as `averaging` and `delta`.
* `memory`: as `moves`, but peers compute in different ways and so need different memory. Some have too little for some
  stages, or for all.

All others: faults of one kind.
"""
_MIXED = (
    "mixed",
    "storm",
    "imported",
    "delta",
    "averaging",
    "auto",
    "tied",
    "group",
    "joining",
    "moves",
    "audited",
    "seats",
    "controls",
    "unlike",
    "diverging",
    "pausing",
    "memory",
)

_FREQUENT = ("forward", "backward", "weights", "reduce")
_BESIDE_GROUP = (
    *("crash", "restart", "last replica", "leave", "stall", "decision unsent", "decision half sent", "drop", "delay"),
    *("partition", "one-way partition", "coordinator cut off", "flap", "stranger"),
)
"""Additional faults in runs with several coordinators. Faults that have nothing to do with coordinators are left to the
other scenarios.
"""


class Pause(NamedTuple):
    """The peer with this number, in order of arrival, computes nothing for `seconds`, starting at `at`."""

    peer: int
    at: float
    seconds: float


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


def plan_of(scenario: str, seed: int) -> Plan:
    """The plan of a seed. Raises ValueError for an unknown scenario."""
    cells = _cells(scenario)
    if scenario == "insiders":
        return _insiders(seed)
    if scenario == "passes":
        return passes(seed)
    if scenario == "meddling":
        return passes(seed, scenario="meddling")
    if scenario == "alone":
        return _alone(seed)
    rng = Random(f"{scenario}/{seed}")
    first = cells[seed % len(cells)] if cells else None
    storm = scenario == "storm"
    joining = scenario == "joining"
    tied = scenario == "tied" or (joining and seed % 4 == 3)
    pausing = scenario == "pausing"
    delta = scenario == "delta" or (scenario == "tied" and seed % 2 == 1) or ((joining or pausing) and seed % 4 == 2)
    averaging = scenario == "averaging" or ((joining or pausing) and seed % 4 == 1)
    auto, election = scenario == "auto", scenario == "election"
    controls = scenario == "controls"
    group = scenario == "group" or election or (controls and seed % 2 == 1)
    moves = scenario in ("moves", "memory")
    unlike = scenario == "unlike"
    diverges = scenario == "diverging"
    group = group or (diverges and seed % 4 > 1)
    lasting = delta or averaging or auto or group or unlike  # residuals and bases of one step matter in the next
    longer = averaging or auto or group or controls or unlike or diverges
    middle = first is not None and first.role == "middle"
    stages = 3 if middle else rng.choice((1, 2, 2, 2, 3))
    if delta or auto or tied or moves or (first is not None and first.role == "last"):
        stages = max(stages, 2)
    replicas = rng.choice((1, 2, 2, 2, 3) if stages < 3 else (1, 2, 2))
    if lasting and not group:
        replicas = max(replicas, 2)
    evaluating = first is not None and first.phase == "evaluating"
    evaluate = evaluating or rng.random() < 0.15
    spares = 1 if first is not None and first.role == "standby" else rng.choice((0, 0, 1))
    if first is not None and first.kind == "last replica":
        spares = 1
    faults = [_fault(first, rng, late=lasting)] if first is not None else []
    if election:
        faults = _votes(rng)
    elif group:
        faults += _among_coordinators(rng)
    elif cells:
        more = rng.randrange(3, 8) if storm else rng.choice((0, 0, 1, 1, 2))
        faults += [_fault(rng.choice(cells), rng, late=lasting) for _ in range(more)]
    if delta and rng.random() < 0.5:
        faults = faults[:1] if rng.random() < 0.3 else []
        faults += _beside_each_other(rng, stages, replicas, SHARED_BUCKETS if tied else 0)
    elif tied and rng.random() < 0.5:
        faults.append(_at_one_end(rng, replicas))
    elif unlike and rng.random() < 0.7:  # a stage and therefore steps are lost: repeated steps have other results
        lost = [cell for cell in cells if cell.kind == "last replica"]
        faults = [*(_fault(rng.choice(lost), rng, late=True) for _ in range(2)), *faults]
    diverging = None
    if diverges:  # a stage's report about itself counts only if another stage confirms it
        stages = max(stages, 2)
        faults = faults if seed % 2 else []
        diverging = Diverging(rng.choice((1, 2, 3, 4, 5)), rng.choice((0.0, 0.3, 0.6)), rng.random() < 0.5)
    flips = first is not None and first.kind == "bit flip"
    if moves:
        spares = rng.choice((2, 3, 4))
        faults = faults[: rng.randrange(2)] + _some_of_a_stage(rng, replicas + spares // stages)
    faults = [fault for fault in faults if (fault.cell.kind == "bit flip") == flips]
    # only surviving replicas can notice it by comparison; of two, it is unknown which one was flipped (seed 21067)
    if flips:
        faults, replicas = faults[:2], max(replicas, 1 + min(len(faults), 2))
    settings = small_settings(
        stages=stages,
        microbatches=4 if moves else rng.choice((2, 3, 4)),
        steps=16 if moves else 10 if joining or pausing else 4 if longer else 3 if storm or delta else 2,
        replicas=replicas,
        evaluate_every=1 if evaluate else 0,
        sample_tokens=rng.choice((0, 2)) if evaluate else 0,
        checkpoint_every=rng.choice((1, 2)),
        slots=rng.choice((1, 2, 16)),
        imported=scenario == "imported",
        ends_share=tied,
        averages_compressed=averaging,
        leave_s=Random(f"time to leave/{seed}").choice((ENOUGH_TO_LEAVE_S, ENOUGH_TO_LEAVE_S, 0.3, 0.05)),
        max_replicas=0 if moves or (seed % 3 == 0 and not _stands_by(first)) else None,
    )
    if scenario == "audited":
        settings = replace(settings, audit_every=rng.choice((1, 2)), audit_secret=str(seed).encode(), screened=True)
    if delta or averaging:
        settings = replace(settings, screened=seed % 2 == 0)
    if diverging is not None:
        actions: tuple[Literal["stop", "go_back"], ...] = ("stop", "go_back", "go_back")
        action = rng.choice(actions)
        section = DivergenceSection(skips=rng.choice((1, 2, 3)), action=action, rate=0.5, times=rng.choice((1, 2)))
        settings = replace(settings, steps=rng.choice((diverging.version, 8)), divergence=section)
        if section.skips == 1:  # the run would wait for a non-finite result that only one stage finds in one step
            faults = [fault for fault in faults if fault.cell.kind != "not finite"]
    arrivals: tuple[float, ...] = ()
    if joining and seed % 3 == 1:  # steps long enough that a listener that has caught up finds work
        settings = replace(settings, microbatches=16, tokens_per_step=64 * 16, targets_per_step=64 * 16)
    if joining:
        spares += rng.choice((1, 2, 3))
        arrivals = tuple(0.1 + 1.1 * rng.random() for _ in range(spares))
        more, patience_s = rng.choice((1, 2)), rng.choice((0.05, 0.4))
        settings = replace(settings, replicas=replicas + more, max_replicas=replicas + more, start_timeout_s=patience_s)
    machines = stages * replicas
    wishes = _wishes(Random(f"wishes/{seed}"), settings.steps) if controls else ()
    spares += sum(wish.name == "expel" for wish in wishes)
    if scenario == "seats":
        stages, machines = rng.choice(((2, 1), (3, 1), (3, 2), (4, 2), (4, 3)))
        spares = rng.choice((0, 1, 3))
        arrivals = tuple(0.6 + 1.5 * rng.random() for _ in range(spares))
        settings = replace(
            settings, stages=stages, replicas=rng.choice((1, 1, 2)), max_replicas=0, steps=6, start_timeout_s=0.3
        )
    usual = (0.7, 1.0, 1.0, 4.0 if moves else 1.6)
    speeds = tuple(rng.choice(usual) for _ in range(machines + spares))
    weather = None
    if cells and not flips and rng.random() < (0.8 if storm else 0.4):
        weather = Weather(
            drop=0.0 if pausing else rng.choice((0.0, 0.02, 0.1)),  # in long runs, three heartbeats in a row are lost
            late_repeat=rng.choice((0.0, 0.1, 0.3)),
            overtaken=rng.choice((0.0, 0.05, 0.2)),
            late_s=rng.choice((0.05, 0.3, 2.0)),
        )
    blocks = rng.choice((1, 1, 2)) if delta else 0 if auto or unlike or scenario == "audited" else rng.choice((0, 0, 1))
    capacity = rng.choice((1000, 1000, 3))
    lines = Random(f"lines/{seed}")
    means = tuple(Means(uplink=lines.choice((1e6, 4e6, 1e7, None))) for _ in speeds) if lines.random() < 0.5 else ()
    if scenario == "memory":
        settings, means = _memory(Random(f"memory/{seed}"), settings, machines, len(speeds))
    first_round = rng.choice((0, 1)) if averaging else 0
    members = rng.choice((3, 3, 3, 5)) if group else 1
    return Plan(
        scenario,
        seed,
        settings,
        spares,
        speeds,
        tuple(faults),
        weather,
        blocks,
        capacity,
        auto,
        first_round,
        members,
        arrivals,
        piece_s=rng.choice((0.02, 0.05, 0.15)) if joining else 0.02,
        spoils=rng.choice((0.0, 0.3)) if joining else 0.0,
        means=means,
        grows=scenario == "seats",
        wishes=wishes,
        unlike=unlike,
        diverging=diverging,
        pauses=_pauses(Random(f"pauses/{seed}"), len(speeds)) if pausing else (),
    )


def _memory(rng: Random, settings: Settings, first: int, peers: int) -> tuple[Settings, tuple[Means, ...]]:
    """Memory needs of all kinds of peers, and the peers' memory. The `first` peers have room for any stage."""
    needs = {}
    for kind in KINDS_OF_PEERS:
        whole = tuple(rng.choice((100, 150, 200, 300)) for _ in range(settings.stages))
        needs[kind] = StageNeeds(whole, tuple(need - rng.choice((0, 40)) for need in whole))
    means = []
    for peer in range(peers):
        kind = rng.choice(KINDS_OF_PEERS)
        means.append(Means(memory=300 if peer < first else rng.choice((50, 110, 160, 210)), kind=kind))
    return replace(settings, stage_needs=needs), tuple(means)


def _insiders(seed: int) -> Plan:
    """Two peers disturb a run in which each stage has an honest peer, whatever stages the two get.

    Only one of them makes gradients non-finite: with one in each half of the replicas, such steps would be skipped.
    """
    rng = Random(f"insiders/{seed}")
    stages = rng.choice((2, 2, 3))
    settings = small_settings(
        stages=stages,
        microbatches=rng.choice((3, 4, 6)),
        steps=6,
        replicas=3,
        evaluate_every=rng.choice((1, 2)),
        sample_tokens=rng.choice((0, 2)),
        slots=rng.choice((1, 2, 16)),
    )
    about = DISTURBANCES[seed % len(DISTURBANCES)]
    those = rng.sample(range(3 * stages), 1 if about == "nan" else 2)
    how_often = rng.choice((1.0, 1.0, 0.5))
    lies = tuple(Lie(about, how_often) if peer in those else None for peer in range(3 * stages))
    speeds = tuple(rng.choice((0.7, 1.0, 1.0, 1.6)) for _ in lies)
    return Plan("insiders", seed, settings, 0, speeds, (), lies=lies)


def passes(seed: int, about: About | None = None, scenario: Literal["passes", "meddling"] = "passes") -> Plan:
    """One person disturbs a run, or lies, with all of the person's devices. All other peers belong to different people.

    Whatever stages these devices get, each stage has at least two other peers. A few peers come later. `about`: the
    kind of misbehaviour; None: it follows from the seed.
    """
    rng = Random(f"{scenario}/{seed}")
    kinds = INSIDERS if scenario == "passes" else MEDDLING
    about = about or kinds[seed % len(kinds)]
    stages = rng.choice((1, 1, 2))
    replicas, many = rng.choice(((3, 1), (4, 2), (5, 3)))
    settings = small_settings(
        stages=stages,
        microbatches=rng.choice((3, 5)),
        steps=6 if about in NEWCOMERS else rng.choice((2, 4)),
        replicas=replicas,
        max_replicas=replicas + 1,
        evaluate_every=1 if about in ("mute", "misjudging") else rng.choice((0, 0, 2)),
        sample_tokens=2 if about == "misjudging" else 0,
        checkpoint_every=rng.choice((1, 2)),
        slots=rng.choice((1, 2, 16)),
    )
    if about in WRONG or rng.random() < 0.3:
        settings = replace(settings, audit_every=rng.choice((1, 2)), audit_secret=str(seed).encode(), screened=True)
    peers, spares = stages * replicas, rng.choice((0, 1, 2)) if about not in NEWCOMERS else 2
    those = set(rng.sample(range(peers), many))
    lie = Lie(about, rng.choice((1.0, 1.0, 0.5)))
    lies = tuple(lie if peer in those else None for peer in range(peers + spares))
    people = tuple(0 if peer in those else 1 + peer for peer in range(peers + spares))
    arrivals = tuple(0.2 + 0.8 * rng.random() for _ in range(spares))
    speeds = tuple(rng.choice((0.7, 1.0, 1.0, 1.6)) for _ in lies)
    means: tuple[Means, ...] = ()
    if about in CLAIMS:
        settings, means = _memory(rng, settings, peers, len(speeds))
    return Plan(scenario, seed, settings, spares, speeds, (), lies=lies, people=people, arrivals=arrivals, means=means)


def _alone(seed: int) -> Plan:
    """All replicas of one stage report non-finite results of their stage. The run would stop if they were believed.

    Other peers stand by, come later, or hold a second stage in their process. The run ends with the same result as on
    one machine.
    """
    rng = Random(f"alone/{seed}")
    stages, replicas = rng.choice((2, 2, 3)), rng.choice((1, 1, 2))
    settings = small_settings(
        stages=stages,
        microbatches=rng.choice((2, 3, 4)),
        steps=rng.choice((3, 6)),
        replicas=replicas,
        checkpoint_every=rng.choice((1, 2, 100)),
        slots=rng.choice((1, 2, 16)),
        imported=rng.random() < 0.2,
    )
    settings = replace(settings, divergence=DivergenceSection(skips=1, action=rng.choice(("stop", "go_back"))))
    claim: Claim | Disturbance = ("spoilt", "nan")[seed % 2]
    how_often, stage = rng.choice((1.0, 1.0, 0.5)), rng.randrange(stages)
    peers = stages * replicas
    lies = (Lie(claim, how_often, stage=stage, since=rng.choice((0, 0, 1, 2))),) * peers
    grows = replicas == 1 and rng.random() < 0.3
    spares = 0 if grows else replicas
    late = rng.random() < 0.5
    arrivals = tuple(0.5 + 4.0 * rng.random() for _ in range(spares)) if late else ()
    speeds = tuple(rng.choice((0.7, 1.0, 1.0, 1.6)) for _ in range(peers + spares))
    return Plan("alone", seed, settings, spares, speeds, (), lies=lies, arrivals=arrivals, grows=grows)


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


@lru_cache(maxsize=32)
def _cells(scenario: str) -> tuple[Cell, ...]:
    if scenario in ("calm", "insiders", "passes", "meddling", "alone"):
        return ()
    if scenario not in SCENARIOS:
        raise ValueError(f"unknown scenario {scenario!r}: choose one of {', '.join(SCENARIOS)}")
    cells = [cell for cell in CELLS if scenario in (*_MIXED, cell.kind.replace(" ", "-"))]
    if scenario in ("seats", "pausing"):  # a flipped bit goes unnoticed in a stage with a single working peer
        cells = [cell for cell in cells if cell.kind != "bit flip"]
    if scenario == "group":
        cells = [cell for cell in cells if cell.kind in _BESIDE_GROUP] + list(GROUP_CELLS)
    Random("the order of the table").shuffle(cells)
    return tuple(cells)


def _fault(cell: Cell, rng: Random, *, late: bool = False) -> SimFault:
    """`late`: True if the fault may occur in any step, not only in the first."""
    if cell.phase in _FREQUENT:
        occurrence = rng.randrange(24 if late else 6)
    else:
        occurrence = rng.randrange(3 if late else 2) if late or rng.random() < 0.3 else 0
    return SimFault(
        cell,
        occurrence=occurrence,
        delay=0.0 if rng.random() < 0.5 else 0.015 * rng.random(),
        seconds=_seconds(cell.kind, rng),
    )


def _wishes(rng: Random, steps: int) -> tuple[Wish, ...]:
    """Up to six commands, within two virtual seconds or more. If the run is paused, the last command resumes it."""
    names = ["pause", "rate", "rate", "checkpoint", "steps", "stop_after", "dismiss", rng.choice(("expel", "rate"))]
    at, wishes, paused = 0.0, [], False
    for name in rng.sample(names, rng.randrange(1, 6)):
        at += 0.7 * rng.random()
        value = ""
        if name == "rate":
            value = repr(rng.choice((0.5, 0.1, 2.0, 1.0, 0.3)))
        elif name in ("steps", "stop_after"):
            value = str(rng.randrange(1, steps + 4))
        wishes.append(Wish(at, name, value))
        paused = paused or name == "pause"
    if paused:
        wishes.append(Wish(at + 0.5 * rng.random(), "resume"))
    return tuple(wishes)


def _pauses(rng: Random, peers: int) -> tuple[Pause, ...]:
    """Several pauses of each peer. In one third of the runs, also a pause of all peers at nearly the same time."""
    found = [
        Pause(peer, 0.1 + 5.0 * rng.random(), rng.choice((0.05, 0.3, 1.0, 3.0)))
        for peer in range(peers)
        for _ in range(rng.randrange(1, 4))
    ]
    if rng.random() < 0.3:
        at = 0.1 + 3.0 * rng.random()
        found += [Pause(peer, at + 0.2 * rng.random(), rng.choice((0.3, 1.0))) for peer in range(peers)]
    return tuple(found)


def _stands_by(first: Cell | None) -> bool:
    """Return True if the run's first fault needs a standby."""
    return first is not None and (first.role == "standby" or first.kind == "last replica")


def _some_of_a_stage(rng: Random, peers: int) -> list[SimFault]:
    """So many replicas of one stage die that others must move there, once newcomers have shown how long they take."""
    role, at = rng.choice(("first", "last")), rng.randrange(12, 40)
    return [SimFault(Cell("crash", "forward", role), at + n, 0.02 * n, seconds=0.0) for n in range(max(1, peers - 1))]


def _beside_each_other(rng: Random, stages: int, replicas: int, shared: int) -> list[SimFault]:
    """In a later step, a sender dies, and soon afterwards a receiver. The receiver's own frames may already have been
    used.
    """
    step = rng.choice((1, 2))
    first, last = (buckets_of(stage, shared) * replicas for stage in (0, stages - 1))  # moments of a step that reduces
    return [
        SimFault(Cell("crash", "reduce", "first"), step * first + rng.randrange(first), delay=0.0, seconds=0.0),
        SimFault(Cell("crash", "reduce", "last"), step * last + rng.randrange(last), 0.2 * rng.random(), seconds=0.0),
    ]


def _among_coordinators(rng: Random) -> list[SimFault]:
    """Leaders die or are cut off repeatedly, often while others stand for election or have just voted."""
    faults = [
        SimFault(
            Cell(rng.choice(GROUP_KINDS), rng.choice(("forward", "reduce", "deciding", "decided")), "leader"),
            occurrence=rng.randrange(12),
            delay=0.0 if rng.random() < 0.5 else 0.3 * rng.random(),
            seconds=rng.choice((0.1, 1.0, 2.0)),
        )
        for _ in range(rng.randrange(1, 4))
    ]
    if rng.random() < 0.5:
        faults.append(
            SimFault(Cell("members late", "joining", "follower"), rng.randrange(3), 0.0, rng.choice((2.0, 9.0)))
        )
        for _ in range(rng.randrange(1, 4)):
            voter = Cell("member restart", "voted", "follower")
            faults.append(SimFault(voter, rng.randrange(6), 0.002 * rng.random(), seconds=rng.choice((0.001, 0.05))))
    return faults


def _votes(rng: Random) -> list[SimFault]:
    """Two members stand for election in one ballot, because each asks before it hears of the other. Then every vote
    counts. A voter dies.
    """
    late = [SimFault(Cell("members late", "joining", role), 0, 0.0, seconds=6.0) for role in ("leader", "follower")]
    voters = [
        SimFault(
            Cell("member restart", "voted", rng.choice(("leader", "follower", "follower"))),
            occurrence=rng.randrange(3),
            delay=rng.choice((0.0, 0.002, 0.02)),
            seconds=rng.choice((0.001, 0.02)),
        )
        for _ in range(rng.randrange(2, 6))
    ]
    again = [
        SimFault(
            Cell("member restart", rng.choice(("forward", "deciding")), "leader"), rng.randrange(6), 0.0, seconds=2.0
        )
        for _ in range(rng.randrange(3))
    ]
    return late + voters + again


def _at_one_end(rng: Random, replicas: int) -> SimFault:
    """A peer of the first or last stage dies after it has prepared, perhaps together with the other end, and perhaps
    unnoticed.
    """
    cell = Cell("crash", "prepared", rng.choice(("first", "last")))
    return SimFault(cell, rng.randrange(2 * replicas), 0.005 * rng.random(), seconds=0.0)


def _seconds(kind: str, rng: Random) -> float:
    if kind in ("restart", "decision unsent", "decision half sent", "member restart"):
        return rng.choice((0.001, 0.05, 0.3))
    if kind == "flap":
        return rng.choice((0.01, 0.05, 0.2))
    if kind in ("crash", "leave", "exception"):
        return 0.0
    return rng.choice((0.05, 0.3, 1.0, 4.0))
