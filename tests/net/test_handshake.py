"""Every way a hello can be wrong is refused by name, on both sides; random bytes too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from authority import Authority
from hypothesis import given
from hypothesis import strategies as st

from swarm.manifest import PROTOCOL_VERSION
from swarm.net import handshake
from swarm.net.bulk import PROTOCOL
from swarm.net.door import STRANGER, Door
from swarm.net.handshake import Admission, Introduction, Refusal, Role
from swarm.net.host import Host
from swarm.net.proto import link_pb2, messages_pb2
from swarm.protocol.ids import Actor

RUN = "ab" * 32
AUTHORITY = Authority()
OTHER = Authority(2).coordinator.peer_id
DEADLINE_S = 20.0
Pair = Any

OF_STRANGERS = (Refusal.NO_PASS, Refusal.OTHER_VERSION)
HELLO = {
    Refusal.NO_PASS: {"certificate": b""},
    Refusal.PASS_VOID: {"certificate": "of another run"},
    Refusal.OTHER_RUN: {"run_hash": b"\x01" * 32},
    Refusal.OTHER_VERSION: {"protocol_version": PROTOCOL_VERSION + 1},
    Refusal.WRONG_INCARNATION: {"target_incarnation": 3},
    Refusal.STALE_INCARNATION: {"incarnation": 4},
    Refusal.UNKNOWN_ROLE: {"role": 9},
    Refusal.NOT_FOR_GUESTS: {"role": link_pb2.ROLE_GUEST},
    Refusal.WRONG_PEER: {"peer": "somebody"},
    Refusal.MALFORMED: {"channel": 77},
}


async def say_hello(host: Host, to: Host, **changes: object) -> link_pb2.HelloReply:
    peer, incarnation = changes.pop("peer", host.peer_id), changes.pop("incarnation", 5)
    fields = {
        "protocol_version": PROTOCOL_VERSION,
        "run_hash": bytes.fromhex(RUN),
        "target_incarnation": 4,
        "role": link_pb2.ROLE_PEER,
        "channel": link_pb2.CHANNEL_CONTROL,
        "certificate": AUTHORITY.certificate(RUN, host.peer_id),
    }
    if changes.get("certificate") == "of another run":
        changes["certificate"] = AUTHORITY.certificate("cd" * 32, host.peer_id)
    hello = link_pb2.Hello(**{**fields, **changes}, sender=messages_pb2.Actor(peer=peer, incarnation=incarnation))
    await host.connect(to.peer_id, await to.addresses())
    stream = await host.open_stream(to.peer_id, PROTOCOL)
    async with asyncio.timeout(DEADLINE_S):
        await stream.write_frame(hello.SerializeToString())
        raw, _ = await stream.read_frame(4096, 0)
    stream.abort()
    return link_pb2.HelloReply.FromString(raw)


async def test_each_bad_hello_is_refused_with_its_reason(pair: Pair) -> None:
    one, two = pair.hosts
    network = pair.two.network(two, incarnation=4)
    await network.start()
    assert (await say_hello(one, two)).refusal == link_pb2.ACCEPTED
    for refusal, changes in HELLO.items():
        reply = await say_hello(one, two, **changes)
        assert link_pb2.Refusal.Name(reply.refusal) == refusal.name
        assert reply.responder.incarnation == (0 if refusal in OF_STRANGERS else 4)
        peer, reason = await pair.two.next_of(pair.two.refused_peers)
        assert peer == one.peer_id and reason.startswith(refusal.value) and reply.reason in reason
        assert network.admission.refused[refusal] == 1
    assert reply.reason
    wrong = await say_hello(one, two, target_incarnation=3)
    assert wrong.reason == "you are looking for incarnation 3, I am 4"
    network.admission.closing = True
    assert (await say_hello(one, two)).refusal == link_pb2.CLOSING
    await network.close()


@given(st.binary(max_size=200) | st.builds(lambda raw: hello_bytes() + raw, st.binary(max_size=40)))
def test_any_bytes_get_a_verdict(raw: bytes) -> None:
    verdict = Admission(Actor("me", 1), Door(RUN, ("somebody",)), Role.PEER).judge(raw, "somebody")
    if not isinstance(verdict, Introduction):
        refusal, reason = verdict
        assert isinstance(refusal, Refusal) and reason


def hello_bytes() -> bytes:
    """A hello that is accepted as it is."""
    return link_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        run_hash=bytes.fromhex(RUN),
        sender=messages_pb2.Actor(peer="somebody", incarnation=1),
        role=link_pb2.ROLE_PEER,
        channel=link_pb2.CHANNEL_CONTROL,
    ).SerializeToString()


def test_it_is_known_with_which_pass_an_opener_came() -> None:
    authority, admission = Authority(), Admission(Actor("me", 1), Authority().door(RUN), Role.PEER)
    serial = bytes(range(16))
    peer = Authority(7).coordinator.peer_id
    hello = link_pb2.Hello.FromString(hello_bytes())
    hello.sender.peer, hello.certificate = peer, authority.certificate(RUN, peer, serial)
    verdict = admission.judge(hello.SerializeToString(), peer)
    assert isinstance(verdict, Introduction) and verdict.serial == serial
    hello = link_pb2.Hello.FromString(hello_bytes())
    hello.sender.peer, hello.role = peer, link_pb2.ROLE_GUEST
    hello.channel, hello.enrolment = link_pb2.CHANNEL_BULK, (ticket := authority.ticket(RUN)).enrol(peer)
    verdict = admission.judge(hello.SerializeToString(), peer)
    assert isinstance(verdict, Introduction) and verdict.serial == ticket.given.serial


def test_the_newest_incarnation_of_a_peer_shuts_out_the_older_ones() -> None:
    admission = Admission(Actor("me", 1), Door(RUN, ("somebody",)), Role.PEER)
    hello = link_pb2.Hello.FromString(hello_bytes())
    verdicts = []
    for incarnation in (2, 2, 3, 2):
        hello.sender.incarnation = incarnation
        verdicts.append(admission.judge(hello.SerializeToString(), "somebody"))
    assert [isinstance(v, Introduction) for v in verdicts] == [True, True, True, False]
    assert verdicts[-1] == (Refusal.STALE_INCARNATION, "you are incarnation 2; 3 has connected")


def test_strangers_without_end_do_not_shut_out_who_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_MAX_KNOWN_PEERS", 2)
    admission = Admission(Actor("me", 4), Door(RUN, ("old", "quiet", "new")), Role.PEER)

    def judge(peer: str, incarnation: int) -> object:
        hello = link_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            run_hash=bytes.fromhex(RUN),
            role=link_pb2.ROLE_PEER,
            channel=link_pb2.CHANNEL_CONTROL,
            sender=messages_pb2.Actor(peer=peer, incarnation=incarnation),
        )
        return admission.judge(hello.SerializeToString(), peer)

    for peer in ("old", "quiet", "old", "new"):
        assert isinstance(judge(peer, 5), Introduction)
    assert isinstance(judge("old", 6), Introduction)
    assert judge("old", 5) == (Refusal.STALE_INCARNATION, "you are incarnation 5; 6 has connected")
    assert isinstance(judge("quiet", 4), Introduction)  # forgotten, as the one not heard of for longest


def test_only_those_whom_the_manifest_names_coordinate() -> None:
    me = Actor("me", 4)

    def judged(admission: Admission, role: int, certificate: bytes = b"") -> object:
        peer = OTHER if certificate else "other"
        hello = link_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            run_hash=bytes.fromhex(RUN),
            role=role,
            channel=link_pb2.CHANNEL_CONTROL,
            sender=messages_pb2.Actor(peer=peer, incarnation=0),
            certificate=certificate,
        )
        return admission.judge(hello.SerializeToString(), peer)

    admission = Admission(me, Door(RUN, ("other",)), Role.PEER)
    for role in (link_pb2.ROLE_COORDINATOR, link_pb2.ROLE_PEER):
        assert isinstance(judged(admission, role), Introduction), "a coordinator shows no certificate"
    member = Admission(me, AUTHORITY.door(RUN), Role.PEER)
    refusal, reason = judged(member, link_pb2.ROLE_COORDINATOR, AUTHORITY.certificate(RUN, OTHER))  # type: ignore[misc]
    assert refusal is Refusal.NO_COORDINATOR and "is not a coordinator of this run" in reason
    assert judged(member, link_pb2.ROLE_COORDINATOR) == (Refusal.NO_PASS, STRANGER)
