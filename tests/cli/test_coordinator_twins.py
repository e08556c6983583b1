"""A coordinator tells of two machines with one key, though the newer one has not joined when the older is refused."""

from __future__ import annotations

import pytest

from peers.coordinator import twins
from peers.coordinator.twins import Twins
from swarm.manifest import PROTOCOL_VERSION
from swarm.net.door import Door
from swarm.net.handshake import Admission, Introduction, Role
from swarm.net.proto import link_pb2, messages_pb2
from swarm.protocol.ids import Actor

RUN = "ab" * 32


def hello(actor: Actor) -> bytes:
    return link_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        run_hash=bytes.fromhex(RUN),
        role=link_pb2.ROLE_PEER,
        channel=link_pb2.CHANNEL_CONTROL,
        sender=messages_pb2.Actor(peer=actor.peer, incarnation=actor.incarnation),
    ).SerializeToString()


def test_the_first_refusal_tells_of_a_twin_and_the_next_ones_do_not() -> None:
    told: list[tuple[Actor, Actor]] = []
    admission = Admission(Actor("me", 0), Door(RUN, ("p",)), Role.COORDINATOR)
    admission.on_stale = Twins(lambda older, newest: told.append((older, newest))).refused
    older, newer = Actor("p", 5), Actor("p", 6)
    assert isinstance(admission.judge(hello(older), "p"), Introduction)
    assert isinstance(admission.judge(hello(newer), "p"), Introduction)
    assert not told
    for _ in range(3):  # nothing but hellos: nobody has joined yet
        assert not isinstance(admission.judge(hello(older), "p"), Introduction)
    assert told == [(older, newer)]


def test_strangers_with_ever_new_keys_cost_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twins, "_MOST", 2)
    told: list[Actor] = []
    noticed = Twins(lambda older, newest: told.append(older))
    for peer in ("a", "b", "c", "c", "a"):
        noticed.refused(Actor(peer, 1), Actor(peer, 2))
    assert [actor.peer for actor in told] == ["a", "b", "c", "a"], "the oldest is forgotten"
