"""Plans of runs without faults, in which peers disturb the others or lie."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from swarm.manifest import DivergenceSection
from swarm.protocol.messages import Means
from swarm.simulation.faults.false_means import CLAIMS
from swarm.simulation.faults.lie import (
    DISTURBANCES,
    HINDERING,
    INSIDERS,
    KEEPING,
    MEDDLING,
    NEWCOMERS,
    WRONG,
    About,
    Claim,
    Disturbance,
    Lie,
)
from swarm.simulation.runs.plan import Plan, small_settings, unlike_memory


def insiders(seed: int) -> Plan:
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


def passes(seed: int, about: About | None = None, *, meddling: bool = False) -> Plan:
    """One person disturbs a run, or lies, with all of the person's devices. All other peers belong to different people.

    Whatever stages these devices get, each stage has at least two other peers. A few peers come later. `about`: the
    kind of misbehaviour; None: it follows from the seed, and is one of MEDDLING if `meddling`, else one of INSIDERS.
    """
    scenario, kinds = ("meddling", MEDDLING) if meddling else ("passes", INSIDERS)
    rng = Random(f"{scenario}/{seed}")
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
        settings, means = unlike_memory(rng, settings, peers, len(speeds))
    return Plan(scenario, seed, settings, spares, speeds, (), lies=lies, people=people, arrivals=arrivals, means=means)


def alone(seed: int) -> Plan:
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


def keeping(seed: int) -> Plan:
    """The only peer of a stage does its work, but reports no checkpoints, gives them and its state to nobody, or
    reports that it has lost its state.

    Another peer stands by, comes later, or holds a second stage in its process. The run ends with the same result as on
    one machine.
    """
    rng = Random(f"keeping/{seed}")
    stages = rng.choice((1, 2, 2, 3))
    settings = small_settings(
        stages=stages,
        microbatches=rng.choice((2, 3, 4)),
        steps=rng.choice((3, 6, 100)),
        replicas=1,
        checkpoint_every=rng.choice((1, 2, 10, 1000)),
        slots=rng.choice((1, 2, 16)),
        imported=rng.random() < 0.2,
    )
    lie = Lie(KEEPING[seed % len(KEEPING)], stage=rng.randrange(stages), since=rng.choice((0, 0, 1, 2)))
    grows = stages > 1 and rng.random() < 0.3
    spares = 0 if grows else 1
    arrivals = (0.5 + 4.0 * rng.random(),) * spares if rng.random() < 0.5 else ()
    speeds = tuple(rng.choice((0.7, 1.0, 1.0, 1.6)) for _ in range(stages + spares))
    return Plan("keeping", seed, settings, spares, speeds, (), lies=(lie,) * stages, arrivals=arrivals, grows=grows)


def hindering(seed: int) -> Plan:
    """One person hinders a run with all of the person's devices, by messages that cost the others time.

    All other peers belong to different people. Each stage has at least two of them, unless the person is only late.
    """
    rng = Random(f"hindering/{seed}")
    about = HINDERING[seed % len(HINDERING)]
    if about == "dawdling":
        return _dawdling(seed, rng)
    stages = rng.choice((1, 2, 2, 3))
    replicas, many = rng.choice(((3, 1), (3, 1), (4, 2)))
    if about == "lagging" and rng.random() < 0.5:
        replicas, many = 2, 1
    settings = small_settings(
        stages=stages,
        microbatches=rng.choice((3, 5)),
        steps=8 if about == "denying" else 16,
        replicas=replicas,
        max_replicas=replicas + 1,
        checkpoint_every=rng.choice((1, 2)),
        slots=rng.choice((1, 2, 16)),
    )
    if rng.random() < 0.5:
        settings = replace(settings, audit_every=rng.choice((1, 2, 4)), audit_secret=str(seed).encode(), screened=True)
    peers = stages * replicas
    those = set(rng.sample(range(peers), many))
    lie = Lie(about, rng.choice((1.0, 1.0, 0.5)), since=rng.choice((0, 0, 2)))
    lies = tuple(lie if peer in those else None for peer in range(peers))
    people = tuple(0 if peer in those else 1 + peer for peer in range(peers))
    speeds = tuple(rng.choice((0.7, 1.0, 1.0, 1.6)) for _ in lies)
    return Plan("hindering", seed, settings, 0, speeds, (), lies=lies, people=people)


def _dawdling(seed: int, rng: Random) -> Plan:
    """The only peer of a stage is late in each step. Another peer stands by. If it could not help, the run would take
    longer than any run may.
    """
    stages = rng.choice((1, 2, 2, 3))
    settings = small_settings(
        stages=stages,
        microbatches=rng.choice((2, 3, 4)),
        steps=64,
        replicas=1,
        checkpoint_every=rng.choice((1, 2)),
        slots=rng.choice((1, 2, 16)),
    )
    lie = Lie("dawdling", stage=rng.randrange(stages), since=rng.choice((0, 1, 3)))
    speeds = tuple(rng.choice((0.7, 1.0, 1.0, 1.6)) for _ in range(stages + 1))
    return Plan("hindering", seed, settings, 1, speeds, (), lies=(lie,) * stages, people=tuple(range(stages + 1)))
