"""Scenarios: the plan of each seed. It depends only on (scenario, seed).

The first fault of seed `n` is the `n`-th cell of the shuffled coverage table, so that consecutive seeds cover the whole
table. Up to two more faults are drawn at random.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Literal

from swarm.manifest import DivergenceSection
from swarm.protocol.messages import Means
from swarm.simulation.checks.orderly_leave import ENOUGH_TO_LEAVE_S
from swarm.simulation.faults.diverging import Diverging
from swarm.simulation.faults.faults import CELLS, GROUP_CELLS, KINDS, Cell
from swarm.simulation.kernel.network import Weather
from swarm.simulation.runs.fault_draw import FaultDraw
from swarm.simulation.runs.misbehaviour import alone, hindering, insiders, keeping, passes
from swarm.simulation.runs.plan import Pause, Plan, small_settings, unlike_memory
from swarm.simulation.toy.organiser import Wish
from swarm.simulation.toy.toy_model import SHARED_BUCKETS

SCENARIOS = (
    *("mixed", "calm", "storm", "imported", "delta", "averaging", "auto", "tied", "group", "election", "joining"),
    *("moves", "audited", "seats", "controls", "unlike", "insiders", "passes", "alone", "diverging", "pausing"),
    *("memory", "meddling", "keeping", "hindering"),
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
* `hindering`: as `passes`, but the person sends reports that cost the others time.
* `alone`: no faults, but all replicas of one stage report non-finite results of their stage, and other peers come to
  take their place.
* `keeping`: no faults, but the only peer of a stage reports no checkpoints, gives them and its state to nobody, or
  reports that it has lost its state, and another peer stands by.
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

_BESIDE_GROUP = (
    *("crash", "restart", "last replica", "leave", "stall", "decision unsent", "decision half sent", "drop", "delay"),
    *("partition", "one-way partition", "coordinator cut off", "flap", "stranger"),
)
"""Additional faults in runs with several coordinators. Faults that have nothing to do with coordinators are left to the
other scenarios.
"""


def plan_of(scenario: str, seed: int) -> Plan:
    """The plan of a seed. Raises ValueError for an unknown scenario."""
    cells = _cells(scenario)
    if scenario == "insiders":
        return insiders(seed)
    if scenario in ("passes", "meddling"):
        return passes(seed, meddling=scenario == "meddling")
    if scenario == "alone":
        return alone(seed)
    if scenario == "keeping":
        return keeping(seed)
    if scenario == "hindering":
        return hindering(seed)
    rng = Random(f"{scenario}/{seed}")
    draw = FaultDraw(rng)
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
    faults = [draw.of_cell(first, late=lasting)] if first is not None else []
    if election:
        faults = draw.votes()
    elif group:
        faults += draw.among_coordinators()
    elif cells:
        more = rng.randrange(3, 8) if storm else rng.choice((0, 0, 1, 1, 2))
        faults += [draw.of_cell(rng.choice(cells), late=lasting) for _ in range(more)]
    if delta and rng.random() < 0.5:
        faults = faults[:1] if rng.random() < 0.3 else []
        faults += draw.beside_each_other(stages, replicas, SHARED_BUCKETS if tied else 0)
    elif tied and rng.random() < 0.5:
        faults.append(draw.at_one_end(replicas))
    elif unlike and rng.random() < 0.7:  # a stage and therefore steps are lost: repeated steps have other results
        lost = [cell for cell in cells if cell.kind == "last replica"]
        faults = [*(draw.of_cell(rng.choice(lost), late=True) for _ in range(2)), *faults]
    diverging = None
    if diverges:  # a stage's report about itself counts only if another stage confirms it
        stages = max(stages, 2)
        faults = faults if seed % 2 else []
        diverging = Diverging(rng.choice((1, 2, 3, 4, 5)), rng.choice((0.0, 0.3, 0.6)), rng.random() < 0.5)
    flips = first is not None and first.kind == "bit flip"
    if moves:
        spares = rng.choice((2, 3, 4))
        faults = faults[: rng.randrange(2)] + draw.some_of_a_stage(replicas + spares // stages)
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
        settings, means = unlike_memory(Random(f"memory/{seed}"), settings, machines, len(speeds))
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


@lru_cache(maxsize=32)
def _cells(scenario: str) -> tuple[Cell, ...]:
    if scenario in ("calm", "insiders", "passes", "meddling", "alone", "keeping", "hindering"):
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


def _stands_by(first: Cell | None) -> bool:
    """Return True if the run's first fault needs a standby."""
    return first is not None and (first.role == "standby" or first.kind == "last replica")


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
