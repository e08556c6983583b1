"""Two processes of one coordinator: which one counts, and what the other one is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from authority import Authority

from swarm.manifest import PROTOCOL_VERSION
from swarm.net.door import Door
from swarm.net.handshake import Admission, Introduction, Refusal, Role
from swarm.net.identity import Identity
from swarm.net.incumbents import ANSWER_S, Incumbents
from swarm.net.process_card import MAX_ADDRESSES, CardError, ProcessCard
from swarm.net.proto import link_pb2, messages_pb2
from swarm.protocol.ids import Actor

RUN = "ab" * 32
WHERE = ("/ip4/203.0.113.7/tcp/4001",)


@pytest.fixture
def coordinator(tmp_path: Path) -> Identity:
    return Identity.load(tmp_path / "identity.key")


def card(number: int, addresses: tuple[str, ...] = WHERE) -> ProcessCard:
    return ProcessCard.of(RUN, number, addresses)


def judged(admission: Admission, coordinator: Identity, shown: bytes) -> Introduction | tuple[Refusal, str]:
    hello = link_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        run_hash=bytes.fromhex(RUN),
        sender=messages_pb2.Actor(peer=coordinator.peer_id, incarnation=0),
        role=link_pb2.ROLE_COORDINATOR,
        channel=link_pb2.CHANNEL_CONTROL,
        certificate=shown,
    )
    return admission.judge(hello.SerializeToString(), coordinator.peer_id)


def test_a_card_keeps_what_it_says_and_of_two_exactly_one_is_newer(coordinator: Identity) -> None:
    addresses = tuple(f"/ip4/203.0.113.{n}/tcp/4001/p2p/{coordinator.peer_id}" for n in range(6))
    made = card(5, addresses)
    assert ProcessCard.open(made.sealed(coordinator), coordinator.peer_id, RUN) == made
    assert made.addresses == tuple(f"/ip4/203.0.113.{n}/tcp/4001" for n in range(MAX_ADDRESSES))
    assert card(6).newer_than(made) and not made.newer_than(card(6)) and not made.newer_than(made)
    same = card(5, addresses)
    assert same.newer_than(made) is not made.newer_than(same), "started in the same second"


def test_of_a_home_and_its_copy_the_later_start_is_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy may have ended when the original starts again, with the same number as the copy had. Members that know the
    copy's card must follow the original.
    """
    now = 1_800_000_000.0
    monkeypatch.setattr("swarm.net.process_card.time.time", lambda: now)
    for _ in range(20):  # else chance would decide
        copy = card(6)
        now += 0.5
        original = card(6)
        assert original.newer_than(copy) and not copy.newer_than(original)


def test_only_the_coordinators_own_card_of_this_run_counts(coordinator: Identity, tmp_path: Path) -> None:
    me, sealed = coordinator.peer_id, card(5).sealed(coordinator)
    other = Identity.load(tmp_path / "other.key")
    for raw, says in (
        (card(5).sealed(other), "not signed by"),
        (sealed[:-1] + bytes([sealed[-1] ^ 1]), "not signed by"),
        (ProcessCard.of("cd" * 32, 5, WHERE).sealed(coordinator), "another run"),
        (ProcessCard(RUN, 2**63, b"12345678", WHERE).sealed(coordinator), "out of range"),
        (ProcessCard(RUN, 5, b"1234567", WHERE).sealed(coordinator), "out of range"),
        (ProcessCard(RUN, 5, b"12345678", ("\x1b[2J",)).sealed(coordinator), "not a multiaddress"),
        (ProcessCard(RUN, 5, b"12345678", WHERE * (MAX_ADDRESSES + 1)).sealed(coordinator), "at most 4"),
        (b"\xff" * 9, "cannot be decoded"),
        (b"\0" * 1025, "at most 1024"),
    ):
        with pytest.raises(CardError, match=says):
            ProcessCard.open(raw, me, RUN)


def test_the_newer_process_counts_and_the_older_one_is_told_where_it_is(coordinator: Identity) -> None:
    admission = Admission(Actor("me", 1), Door(RUN, (coordinator.peer_id,)), Role.PEER)
    older, newer = card(5).sealed(coordinator), card(6).sealed(coordinator)
    first, again, second = (judged(admission, coordinator, shown) for shown in (older, older, newer))
    assert [isinstance(v, Introduction) and v.replaces for v in (first, again, second)] == [False, False, True]
    assert all(isinstance(verdict, Introduction) for verdict in (first, again, second))
    refused = judged(admission, coordinator, older)
    assert refused == (
        Refusal.STALE_INCARNATION,
        "another process with your key was started later (/ip4/203.0.113.7/tcp/4001)",
    )
    assert judged(admission, coordinator, b"junk")[0] is Refusal.MALFORMED  # type: ignore[index]


def test_a_process_that_is_at_work_keeps_its_place(coordinator: Identity) -> None:
    admission = Admission(Actor("me", 1), Door(RUN, (coordinator.peer_id,)), Role.PEER)
    known, newer = card(5).sealed(coordinator), card(6).sealed(coordinator)
    admission.is_at_work = lambda peer: peer == coordinator.peer_id
    assert isinstance(judged(admission, coordinator, known), Introduction)
    refused = judged(admission, coordinator, newer)
    assert not isinstance(refused, Introduction) and refused[1].startswith("another process with your key is at work")
    assert isinstance(judged(admission, coordinator, known), Introduction), "the known one is not the older one"
    admission.is_at_work = lambda peer: None
    assert judged(admission, coordinator, newer)[0] is Refusal.ASK_AGAIN  # type: ignore[index]
    admission.is_at_work = lambda peer: False
    assert isinstance(judged(admission, coordinator, newer), Introduction)
    assert not isinstance(judged(admission, coordinator, known), Introduction)


def test_a_process_keeps_its_place_while_it_answers() -> None:
    now, heard, pinged = 100.0, {"c": 99.0}, []
    incumbents = Incumbents(heard.get, pinged.append, lambda: now)
    assert incumbents.at_work("c") is None and pinged == ["c"], "an earlier message is no answer"
    now += ANSWER_S - 0.1
    assert incumbents.at_work("c") is None and pinged == ["c"], "it still has time"
    heard["c"] = 101.0
    now += 1.0
    assert incumbents.at_work("c") is True and pinged == ["c", "c"], "it has answered, and is asked again"
    now += ANSWER_S
    assert incumbents.at_work("c") is False, "no sign since"
    heard["c"] = now + 1
    now += 3600
    assert incumbents.at_work("c") is None, "another process asks, and what was heard is old"
    del heard["c"]
    assert incumbents.at_work("c") is False, "its connection is closed"


def test_a_peers_certificate_is_no_card() -> None:
    """A device cannot claim to be a coordinator, whatever it shows."""
    authority = Authority()
    admission = Admission(Actor("me", 1), authority.door(RUN), Role.PEER)
    device = Authority(7).coordinator
    assert judged(admission, device, card(5).sealed(device))[0] is Refusal.NO_PASS  # type: ignore[index]
