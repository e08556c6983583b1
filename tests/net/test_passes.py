"""Passes, enrolments, certificates and the door: what is genuine gets in, whatever is mangled does not."""

from __future__ import annotations

import time

import pytest
from authority import HOUR_S, Authority
from hypothesis import given
from hypothesis import strategies as st

from swarm.manifest import PROTOCOL_VERSION
from swarm.net.door import STRANGER, Door, ShutOut, Stranger, Void
from swarm.net.handshake import Admission, Introduction, Refusal, Role
from swarm.net.passes import MAX_BYTES, Certificate, Pass, PassError, Ticket, check_name, open_enrolment
from swarm.net.proto import link_pb2, messages_pb2
from swarm.protocol.ids import Actor

RUN, OTHER_RUN = "ab" * 32, "cd" * 32
OURS, THEIRS = Authority(1), Authority(2)
ME, SOMEBODY = Authority(3).coordinator.peer_id, Authority(4).coordinator.peer_id
CERTIFICATE = OURS.certificate(RUN, ME)
TICKET = OURS.ticket(RUN, devices=3)


def certified(raw: bytes, door: Door, peer: str = ME) -> None:
    shown = door.check(peer, raw, b"")
    assert shown == (Certificate.open(raw) if raw else None)


def test_a_certificate_lets_its_device_in_and_nobody_else() -> None:
    door = OURS.door(RUN)
    certified(CERTIFICATE, door)
    certified(CERTIFICATE, door)  # it is remembered
    certified(b"", door, OURS.coordinator.peer_id)
    for peer, raw in (
        (SOMEBODY, CERTIFICATE),
        (ME, b""),
        (ME, THEIRS.certificate(RUN, ME)),
        (ME, TICKET.sealed),
        (ME, TICKET.enrol(ME)),
        (ME, CERTIFICATE + bytes(MAX_BYTES)),
    ):
        with pytest.raises(Stranger):
            door.check(peer, raw, b"")


def test_what_was_genuine_once_is_told_why_it_is_not_good() -> None:
    now = time.time()
    door = Door(RUN, (OURS.coordinator.peer_id,), OURS.public_key, clock=lambda: now)
    certified(CERTIFICATE, door)
    with pytest.raises(Void, match="for another run"):
        door.check(ME, OURS.certificate(OTHER_RUN, ME), b"")
    with pytest.raises(Void, match="for another run"):
        door.check(ME, b"", OURS.ticket(OTHER_RUN).enrol(ME))
    door.banned = {ME: "expelled by Ann"}
    with pytest.raises(ShutOut, match="expelled by Ann"):
        certified(CERTIFICATE, door)
    door.banned, door.revoked = {}, {TICKET.given.serial: "taken back by Ann"}
    certified(CERTIFICATE, door)
    with pytest.raises(ShutOut, match="taken back by Ann"):
        door.check(ME, b"", TICKET.enrol(ME))
    now += HOUR_S + 1
    door.revoked = {}
    for shown in ((CERTIFICATE, b""), (b"", TICKET.enrol(ME))):
        with pytest.raises(Void, match="has expired"):
            door.check(ME, *shown)


def test_an_enrolment_is_taken_by_coordinators_from_the_device_that_it_names() -> None:
    door = OURS.door(RUN)
    shown = door.check(ME, b"", TICKET.enrol(ME))
    assert shown == TICKET.given and shown.devices == 3
    for peer, raw in ((SOMEBODY, TICKET.enrol(ME)), (ME, THEIRS.ticket(RUN).enrol(ME)), (ME, CERTIFICATE), (ME, b"")):
        with pytest.raises(Stranger):
            door.check(peer, b"", raw)
    with pytest.raises(Stranger):
        Door(RUN, (OURS.coordinator.peer_id,)).check(ME, b"", TICKET.enrol(ME))
    with pytest.raises(PassError, match="for another device"):
        open_enrolment(TICKET.enrol(ME), SOMEBODY, OURS.public_key)


def hello(**fields: object) -> bytes:
    return link_pb2.Hello(
        **{
            "protocol_version": PROTOCOL_VERSION,
            "run_hash": bytes.fromhex(RUN),
            "sender": messages_pb2.Actor(peer=ME, incarnation=1),
            "role": link_pb2.ROLE_PEER,
            "channel": link_pb2.CHANNEL_CONTROL,
            **fields,
        }
    ).SerializeToString()


GENUINE = {"certificate": CERTIFICATE, "enrolment": TICKET.enrol(ME)}


@given(
    st.sampled_from(sorted(GENUINE)),
    st.integers(0, 2000),
    st.integers(1, 255),
    st.sampled_from(["flip", "cut", "insert"]),
)
def test_a_mangled_credential_gets_the_refusal_of_strangers(kind: str, where: int, mask: int, how: str) -> None:
    raw = bytearray(GENUINE[kind])
    where %= len(raw)
    if how == "flip":
        raw[where] ^= mask
    elif how == "cut":
        del raw[where:]
    else:
        raw.insert(where, mask)
    admission = Admission(Actor("me", 1), OURS.door(RUN), Role.COORDINATOR)
    verdict = admission.judge(hello(role=link_pb2.ROLE_GUEST, channel=link_pb2.CHANNEL_BULK, **{kind: bytes(raw)}), ME)
    assert verdict == (Refusal.NO_PASS, STRANGER), "and no other: what is signed is not taken in another form"


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_random_credentials_get_the_refusal_of_strangers(certificate: bytes, enrolment: bytes) -> None:
    admission = Admission(Actor("me", 1), OURS.door(RUN), Role.COORDINATOR)
    assert admission.judge(hello(certificate=certificate, enrolment=enrolment), ME) == (Refusal.NO_PASS, STRANGER)


def test_who_has_an_enrolment_only_is_a_guest_and_who_is_certified_a_peer() -> None:
    admission = Admission(Actor("me", 1), OURS.door(RUN), Role.COORDINATOR)
    enrolment = TICKET.enrol(ME)
    refusal, _ = admission.judge(hello(enrolment=enrolment), ME)  # type: ignore[misc]
    assert refusal is Refusal.NOT_FOR_GUESTS
    guest = admission.judge(hello(enrolment=enrolment, role=link_pb2.ROLE_GUEST, channel=link_pb2.CHANNEL_BULK), ME)
    assert isinstance(guest, Introduction) and guest.enrols == TICKET.given
    peer = admission.judge(hello(certificate=CERTIFICATE), ME)
    assert isinstance(peer, Introduction) and peer.enrols is None


OBSERVES = OURS.certificate(RUN, ME, observes=True)


@pytest.mark.parametrize("channel", [link_pb2.CHANNEL_CONTROL, link_pb2.CHANNEL_BULK, link_pb2.CHANNEL_GRADIENT])
@pytest.mark.parametrize("role", [link_pb2.ROLE_PEER, link_pb2.ROLE_COORDINATOR, link_pb2.ROLE_OBSERVER])
@pytest.mark.parametrize("at", [Role.PEER, Role.COORDINATOR])
def test_an_observer_may_ask_a_coordinator_and_nothing_else(at: Role, role: int, channel: int) -> None:
    admission = Admission(Actor("me", 1), OURS.door(RUN), at)
    verdict = admission.judge(hello(certificate=OBSERVES, role=role, channel=channel), ME)
    if at is Role.COORDINATOR and role == link_pb2.ROLE_OBSERVER and channel == link_pb2.CHANNEL_BULK:
        assert isinstance(verdict, Introduction) and verdict.role is Role.OBSERVER
    else:
        assert not isinstance(verdict, Introduction)
        assert verdict[0] in (Refusal.OTHER_ROLE, Refusal.NO_COORDINATOR)


def test_the_certificate_of_a_peer_does_not_observe() -> None:
    admission = Admission(Actor("me", 1), OURS.door(RUN), Role.COORDINATOR)
    as_observer = {"role": link_pb2.ROLE_OBSERVER, "channel": link_pb2.CHANNEL_BULK}
    refusal, why = admission.judge(hello(certificate=CERTIFICATE, **as_observer), ME)  # type: ignore[misc]
    assert refusal is Refusal.OTHER_ROLE and "--role observe" in why
    refusal, _ = admission.judge(hello(enrolment=TICKET.enrol(ME), **as_observer), ME)  # type: ignore[misc]
    assert refusal is Refusal.NOT_FOR_GUESTS


def test_an_older_copy_of_an_observer_is_no_twin_of_a_peer() -> None:
    """Observers have no incarnations: several commands of one home may ask at once."""
    admission = Admission(Actor("me", 1), OURS.door(RUN), Role.COORDINATOR)
    shown = {"certificate": OBSERVES, "role": link_pb2.ROLE_OBSERVER, "channel": link_pb2.CHANNEL_BULK}
    for incarnation in (7, 0):
        sender = messages_pb2.Actor(peer=ME, incarnation=incarnation)
        assert isinstance(admission.judge(hello(sender=sender, **shown), ME), Introduction)


@pytest.mark.parametrize("name", ["", "-a", "a b", "é", "x" * 33, "a/b"])
def test_names_that_no_pass_has(name: str) -> None:
    with pytest.raises(PassError, match="cannot name a pass"):
        check_name(name)


def test_bounds_of_passes_hold_when_they_are_made_and_read() -> None:
    for devices in (0, 100_001):
        with pytest.raises(PassError, match="devices"):
            OURS.ticket(RUN, devices=devices)
    with pytest.raises(PassError, match="is not a valid expiry time"):
        OURS.ticket(RUN, lasts_s=2**50)
    assert Pass.verified(TICKET.sealed, OURS.public_key) == Pass.read(TICKET.sealed)
    with pytest.raises(PassError, match="is not signed by"):
        Pass.verified(TICKET.sealed, THEIRS.public_key)
    with pytest.raises(PassError, match="does not match the pass"):
        Ticket(TICKET.sealed, bytes(32)).check()
    with pytest.raises(PassError, match="is not signed by its issuer"):
        Certificate.open(TICKET.sealed[:0] + CERTIFICATE[:-1] + bytes([CERTIFICATE[-1] ^ 1]))
