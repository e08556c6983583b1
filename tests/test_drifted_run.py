"""A replica whose memory changes by itself is found, real cores and real compute: nothing of it is in the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from core_swarm import Hook, Swarm, killing, manifest, once, runs, stage_of

from swarm.events import CheckpointsDiffer, PeerJoined, StateDrifted, StepAborted, StepDecided
from swarm.manifest import RunManifest
from swarm.protocol.ids import Actor
from swarm.protocol.peer import io as peer_io

STEPS = 6
AT = 2


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


def of(replicas: int, codec: str = "int8") -> RunManifest:
    return manifest(codec, 2, STEPS, replicas=replicas)


def flips(swarm: Swarm, actor: Actor, kind: str, bit: int) -> None:
    """One bit of an actor's state is another one from now on."""
    engine = swarm.peers[actor].engine
    assert engine is not None
    tensor = next(t for n, t in engine.state.held().optimizer._live().items() if n.startswith(kind) and t.numel() > 100)
    tensor.view(torch.int32).view(-1)[17] ^= 1 << bit


def flipping(actor: Actor, when: type, kind: str = "param", bit: int = 22, step: int = AT) -> Hook:
    def strike(swarm: Swarm, who: Actor, action: object) -> bool:
        attempt = getattr(action, "attempt", None)
        pass_id = getattr(action, "pass_id", None) or getattr(attempt, "pass_id", None)
        hit = who == actor and isinstance(action, when) and pass_id is not None and pass_id.version == step
        if hit:
            flips(swarm, actor, kind, bit)
        return hit

    return once(strike)


def drifts(swarm: Swarm) -> list[StateDrifted]:
    return [event for event in swarm.events if isinstance(event, StateDrifted)]


KINDS = ("param", "exp_avg/", "exp_avg_sq")
WHEN = (peer_io.Begin, peer_io.Backward, peer_io.EncodePart, peer_io.Assemble, peer_io.Apply)


@pytest.mark.parametrize(
    ("when", "kind"),
    [
        pytest.param(when, kind, marks=() if when is peer_io.Apply or kind == "param" else pytest.mark.long)
        for when in WHEN
        for kind in KINDS
    ],
)
def test_a_flipped_bit_is_found_and_repaired_within_two_steps(run, when: type, kind: str) -> None:
    victim = Actor("peer2", 1)
    swarm = run(of(3), hook=flipping(victim, when, kind))
    (found,) = drifts(swarm)
    assert found.reload == [str(victim)] and len(found.believed) == 2
    assert found.step - AT in (0, 1)
    assert found.reason == "2 of 3 replicas hold the same state"
    assert swarm.digests() == swarm.plain(), "and all replicas agree"
    assert swarm.peers[victim].core.held_stage.version == STEPS
    assert victim in swarm.tables[0].roster + swarm.tables[1].roster, "it is back"


def test_of_two_the_one_longer_in_its_stage_is_believed(run) -> None:
    """Its memory may be the one that has changed; then the result is another, but the same on all replicas."""
    swarm = run(of(2), hook=flipping(Actor("peer2", 1), peer_io.Begin))
    (found,) = drifts(swarm)
    assert found.believed == ["peer0.1"] and found.reload == ["peer2.1"], "who came first is believed"
    assert found.reason.startswith("it is unknown which state is right: peer0.1")
    assert swarm.digests() == swarm.plain()


def test_who_was_not_believed_once_is_not_the_next_time(run) -> None:
    first, again = (
        flipping(Actor("peer2", 1), peer_io.Begin, step=1),
        flipping(Actor("peer2", 1), peer_io.Begin, step=4),
    )

    def both(swarm: Swarm, actor: Actor, action: object) -> None:
        first(swarm, actor, action)
        again(swarm, actor, action)

    swarm = run(of(2), hook=both)
    assert [found.reload for found in drifts(swarm)] == [["peer2.1"], ["peer2.1"]]
    assert swarm.digests() == swarm.plain()


def test_two_stages_at_once_while_a_peer_dies(run) -> None:
    hooks = (
        flipping(Actor("peer4", 1), peer_io.Backward),
        flipping(Actor("peer3", 1), peer_io.EncodePart),
        killing(AT, 0, peer_io.EncodePart, back=True),
    )

    def all_of_them(swarm: Swarm, actor: Actor, action: object) -> None:
        for hook in hooks:
            if actor in swarm.peers:
                hook(swarm, actor, action)

    swarm = run(of(3), hook=all_of_them)
    assert swarm.digests() == swarm.plain()


def test_a_run_without_a_flip_is_not_disturbed(run) -> None:
    swarm = run(of(2))
    assert not drifts(swarm) and not [e for e in swarm.events if isinstance(e, StepAborted | CheckpointsDiffer)]
    assert len([e for e in swarm.events if isinstance(e, StepDecided)]) == STEPS


def test_who_reloads_listens_meanwhile(run) -> None:
    victim = Actor("peer1", 1)
    swarm = run(of(3), hook=flipping(victim, peer_io.Begin))
    (found,) = drifts(swarm)
    assert stage_of(swarm, victim) == found.stage
    assert not [e for e in swarm.events if isinstance(e, PeerJoined) and e.actor == str(victim)][1:], (
        "it keeps its stage"
    )
