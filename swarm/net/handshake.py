"""The handshake at the start of every stream: run, protocol version, sender, receiver, role and channel.

The opener sends a Hello with its certificate; the other side accepts it or refuses it with a reason. So different runs,
protocol versions or incarnations of a peer never mix, and both sides learn the reason. All strangers get the same
refusal, which says nothing about the run.
"""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from google.protobuf.message import DecodeError

from swarm.manifest import PROTOCOL_VERSION
from swarm.net.door import STRANGER, Door, ShutOut, Stranger, Void
from swarm.net.passes import Pass
from swarm.net.process_card import CardError, ProcessCard
from swarm.net.proto import link_pb2, messages_pb2
from swarm.net.stream import Stream
from swarm.net.wire_bounds import MAX_PEER_ID, MAX_STAGES, MAX_TEXT, WireError
from swarm.protocol.ids import Actor, StageIndex

HANDSHAKE_TIMEOUT_S = 10.0
_MAX_HELLO = 4096
"""Largest Hello or HelloReply, bytes. Each may contain a certificate or a card."""
_MAX_KNOWN_PEERS = 1 << 16


class Role(enum.Enum):
    PEER = "peer"
    COORDINATOR = "coordinator"
    GUEST = "guest"
    """The role of a new device with a pass. It may request the manifest and its certificate, nothing else."""
    OBSERVER = "observer"
    """The role of a device that only observes. It may request from a coordinator what the coordinator shows of the run.
    No actor accepts other messages from it.
    """


class Channel(enum.Enum):
    """What a stream carries. One stream per direction and channel, so that no kind of traffic blocks another."""

    CONTROL = "control"
    GRADIENT = "gradient"
    ACTIVATION = "activation"
    REDUCE = "reduce"
    BULK = "bulk"


class Refusal(enum.Enum):
    """The reason why a stream is not accepted."""

    MALFORMED = "malformed hello"
    OTHER_VERSION = "other protocol version"
    OTHER_RUN = "other run"
    WRONG_PEER = "wrong peer"
    WRONG_INCARNATION = "wrong incarnation"
    STALE_INCARNATION = "stale incarnation"
    UNKNOWN_ROLE = "unknown role"
    NOT_FOR_GUESTS = "not for guests"
    NO_COORDINATOR = "no coordinator of this run"
    NO_PASS = "no pass"
    PASS_VOID = "pass not valid"
    SHUT_OUT = "shut out"
    OTHER_ROLE = "not what your pass is for"
    CLOSING = "closing"
    ASK_AGAIN = "ask again"


class Refused(ConnectionError):
    """The other side does not accept our stream. `refusal` is the kind; the message is the reason that it has sent.

    `rival`: not verified; the sealed card of another process with our key that counts there. Empty: none was shown.
    """

    def __init__(self, refusal: Refusal, reason: str, responder: Actor | None, rival: bytes = b"") -> None:
        super().__init__(f"{refusal.value}: {reason}")
        self.refusal = refusal
        self.responder = responder
        self.rival = rival


@dataclass(frozen=True, slots=True)
class Introduction:
    """What the opener of a stream says about itself in a Hello. `target_incarnation` None: any incarnation may
    answer.
    """

    run_hash: str
    sender: Actor
    role: Role
    stage: StageIndex | None
    channel: Channel
    target_incarnation: int | None = None
    certificate: bytes = b""
    """The sealed certificate of the opener; of a coordinator, its sealed process card; empty for a guest."""
    enrolment: bytes = b""
    """The sealed enrolment of a guest without a certificate."""
    enrols: Pass | None = None
    """Filled in by the receiver: the verified pass of a guest that has sent an enrolment."""
    serial: bytes = b""
    """Filled in by the receiver: the serial of the opener's verified pass; empty for a coordinator."""
    restarted: bool = False
    """Filled in by the receiver: an older incarnation of the opener has connected before."""
    replaces: bool = False
    """Filled in by the receiver: the opener is a coordinator, and an older process of it has connected before."""


async def introduce(stream: Stream, me: Introduction, peer_id: str) -> Actor:
    """Send the Hello on a new stream to `peer_id`; returns the actor that has accepted it.

    Raises Refused, StreamClosed, TimeoutError; WireError for an answer that cannot be decoded.
    """
    hello = link_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        run_hash=bytes.fromhex(me.run_hash),
        sender=messages_pb2.Actor(peer=me.sender.peer, incarnation=me.sender.incarnation),
        target_incarnation=me.target_incarnation,
        role=cast(link_pb2.Role, link_pb2.Role.Value(f"ROLE_{me.role.name}")),
        stage=me.stage,
        channel=cast(link_pb2.Channel, link_pb2.Channel.Value(f"CHANNEL_{me.channel.name}")),
        certificate=me.certificate,
        enrolment=me.enrolment,
    )
    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
        await stream.write_frame(hello.SerializeToString())
        raw, _ = await stream.read_frame(_MAX_HELLO, 0)
    try:
        reply = link_pb2.HelloReply.FromString(raw)
    except DecodeError as error:
        raise WireError(f"the answer to our hello is not a HelloReply: {error}") from None
    responder = Actor(reply.responder.peer, reply.responder.incarnation)
    if reply.refusal != link_pb2.ACCEPTED:
        try:
            refusal = Refusal[link_pb2.Refusal.Name(reply.refusal)]
        except (ValueError, KeyError):
            refusal = Refusal.MALFORMED
        told = responder if reply.HasField("responder") else None
        raise Refused(refusal, reply.reason[:MAX_TEXT], told, reply.rival)
    if responder.peer != peer_id:
        raise Refused(Refusal.WRONG_PEER, f"{peer_id} answers as {responder.peer[:MAX_PEER_ID]}", responder)
    if me.target_incarnation is not None and responder.incarnation != me.target_incarnation:
        reason = f"expected incarnation {me.target_incarnation}, but incarnation {responder.incarnation} has answered"
        raise Refused(Refusal.WRONG_INCARNATION, reason, responder)
    return responder


class Admission:
    """Decides which Hellos one actor accepts, and remembers the newest incarnation of each peer."""

    def __init__(self, me: Actor, door: Door, role: Role) -> None:
        self.door = door
        self._me = me
        self._role = role
        self._newest: dict[str, int] = {}
        self._cards: dict[str, tuple[ProcessCard, bytes]] = {}
        """For each coordinator: the newest card that it has shown, also sealed."""
        self.closing = False
        self.is_at_work: Callable[[str], bool | None] = lambda coordinator: False
        """Whether the known process of a coordinator is at work, so that no newer process may take its place. None: it
        is being asked.
        """
        self.on_stale: Callable[[Actor, Actor], None] = lambda older, newest: None
        """Called with (sender, newest actor) when a Hello comes from an older incarnation than the newest known one."""
        self.refused: Counter[Refusal] = Counter()

    async def receive(self, stream: Stream, remote_peer: str) -> Introduction | tuple[Refusal, str]:
        """Read the Hello of `remote_peer` and answer it. Returns the introduction, or the refusal with its reason.

        Raises StreamClosed and TimeoutError if no Hello comes; WireError if its framing is invalid.
        """
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            raw, _ = await stream.read_frame(_MAX_HELLO, 0)
            verdict = self.judge(raw, remote_peer)
            reply = link_pb2.HelloReply(protocol_version=PROTOCOL_VERSION)
            if isinstance(verdict, Introduction) or verdict[0] not in OF_STRANGERS:
                reply.responder.CopyFrom(messages_pb2.Actor(peer=self._me.peer, incarnation=self._me.incarnation))
                reply.role = cast(link_pb2.Role, link_pb2.Role.Value(f"ROLE_{self._role.name}"))
            if not isinstance(verdict, Introduction):
                refusal, reply.reason = verdict
                if refusal is Refusal.STALE_INCARNATION and remote_peer in self._cards:
                    reply.rival = self._cards[remote_peer][1]
                reply.refusal = cast(link_pb2.Refusal, link_pb2.Refusal.Value(refusal.name))
                self.refused[refusal] += 1
            await stream.write_frame(reply.SerializeToString())
        return verdict

    def judge(self, raw: bytes, remote_peer: str) -> Introduction | tuple[Refusal, str]:
        """The introduction in a serialized Hello if it is accepted, else the refusal with its reason."""
        try:
            hello = link_pb2.Hello.FromString(raw)
        except DecodeError:
            return Refusal.NO_PASS, STRANGER
        if hello.protocol_version != PROTOCOL_VERSION:
            theirs = hello.protocol_version
            return Refusal.OTHER_VERSION, f"you speak protocol version {theirs}, I speak {PROTOCOL_VERSION}"
        try:
            shown = self.door.check(remote_peer, hello.certificate, hello.enrolment)
        except Stranger:
            return Refusal.NO_PASS, STRANGER
        except ShutOut as error:
            return Refusal.SHUT_OUT, str(error)
        except Void as error:
            return Refusal.PASS_VOID, str(error)
        sender = Actor(hello.sender.peer[:MAX_PEER_ID], hello.sender.incarnation)
        if self.closing:
            return Refusal.CLOSING, "this process is about to end"
        try:
            role = Role[link_pb2.Role.Name(hello.role).removeprefix("ROLE_")]
        except (ValueError, KeyError):
            return Refusal.UNKNOWN_ROLE, f"role {hello.role} is unknown"
        try:
            channel = Channel[link_pb2.Channel.Name(hello.channel).removeprefix("CHANNEL_")]
        except (ValueError, KeyError):
            return Refusal.MALFORMED, f"channel {hello.channel} is unknown"
        if sender.peer != remote_peer:
            return Refusal.WRONG_PEER, f"you say you are {sender.peer!r}, libp2p says {remote_peer}"
        if role is Role.COORDINATOR and sender.peer not in self.door.coordinators:
            return Refusal.NO_COORDINATOR, f"{sender.peer} is not a coordinator of this run"
        run_hash = hello.run_hash.hex()
        if role is Role.GUEST and channel is not Channel.BULK:
            return Refusal.NOT_FOR_GUESTS, f"a guest may request the manifest, but not open the {channel.value} channel"
        enrols = shown if isinstance(shown, Pass) else None
        if role is not Role.GUEST and enrols is not None:
            return Refusal.NOT_FOR_GUESTS, "request your certificate first, as a guest"
        observes = shown is not None and shown.observes
        if observes and role not in (Role.GUEST, Role.OBSERVER):
            return Refusal.OTHER_ROLE, "your pass lets you observe this run, not take part in it"
        if role is Role.OBSERVER and not observes:
            return Refusal.OTHER_ROLE, "your pass is not for observing: ask the organiser for one with --role observe"
        if role is Role.OBSERVER and (self._role is not Role.COORDINATOR or channel is not Channel.BULK):
            return Refusal.OTHER_ROLE, "an observer may send requests only to a coordinator"
        if run_hash != self.door.run_hash:
            return Refusal.OTHER_RUN, f"your run is {run_hash[:16]}…, mine is {self.door.run_hash[:16]}…"
        stage = StageIndex(hello.stage) if hello.HasField("stage") else None
        if (stage is not None and stage >= MAX_STAGES) or sender.incarnation >= 2**63:
            return Refusal.MALFORMED, f"stage {stage} or incarnation {sender.incarnation} is out of range"
        target = hello.target_incarnation if hello.HasField("target_incarnation") else None
        if target is not None and target != self._me.incarnation:
            reason = f"you are looking for incarnation {target}, I am {self._me.incarnation}"
            return Refusal.WRONG_INCARNATION, reason
        restarted = replaces = False
        if role is Role.COORDINATOR and hello.certificate:
            try:
                card = ProcessCard.open(hello.certificate, sender.peer, run_hash)
            except CardError as error:
                return Refusal.MALFORMED, str(error)
            known = self._cards.get(sender.peer, (card, b""))[0]
            replaces = card.newer_than(known)
            if known.newer_than(card):
                return Refusal.STALE_INCARNATION, f"another process with your key was started later{_at(known)}"
            at_work = replaces and self.is_at_work(sender.peer)
            if at_work is None:
                return Refusal.ASK_AGAIN, f"another process with your key may be at work{_at(known)}"
            if at_work:
                return Refusal.STALE_INCARNATION, f"another process with your key is at work{_at(known)}"
            self._cards[sender.peer] = card, hello.certificate
        if role not in (Role.GUEST, Role.OBSERVER):
            newest = self._newest.get(sender.peer, -1)
            if sender.incarnation < newest:
                self.on_stale(sender, Actor(sender.peer, newest))
                return Refusal.STALE_INCARNATION, f"you are incarnation {sender.incarnation}; {newest} has connected"
            restarted = -1 < newest < sender.incarnation
            self._newest.pop(sender.peer, None)
            if len(self._newest) >= _MAX_KNOWN_PEERS:
                del self._newest[next(iter(self._newest))]  # the peer whose last Hello is the oldest
            self._newest[sender.peer] = sender.incarnation
        serial = b"" if shown is None else shown.serial
        return Introduction(
            run_hash,
            sender,
            role,
            stage,
            channel,
            target,
            enrols=enrols,
            serial=serial,
            restarted=restarted,
            replaces=replaces,
        )


def _at(card: ProcessCard) -> str:
    return f" ({', '.join(card.addresses)})" if card.addresses else ""


OF_STRANGERS = (Refusal.NO_PASS, Refusal.OTHER_VERSION)
"""Refusals that do not name the refusing actor."""
