"""The messages of swarm/protocol on the wire: a protobuf header, then the payload as raw bytes.

The mapping (`message_mapping`) is total both ways. Actors appear as small numbers: every stream has a table of actors,
which the headers themselves extend, so that the header of a data frame stays a few dozen bytes.

Whatever a header holds, `Decoder.decode` returns a message within the bounds of `wire_bounds` or raises `WireError`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from swarm.buffer import Buffer
from swarm.net.message_mapping import BODY_NAME, BODY_TYPE, decode_value, encode_value
from swarm.net.proto import messages_pb2 as pb
from swarm.net.wire_bounds import MAX_HEADER, MAX_INTRODUCED, WireError, check_actor
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor


class Encoder:
    """Encodes what one stream carries from `sender` to `receiver`, in the order it is sent."""

    def __init__(self, sender: Actor, receiver: Actor) -> None:
        self._ends = {receiver: 1, sender: 0}
        self._known = dict(self._ends)
        self._next = 2
        self._new: list[Actor] = []

    def encode(self, message: m.Message) -> tuple[bytes, memoryview]:
        """(header, payload) of a message; the payload is a view of the message's own bytes. Raises WireError."""
        restart = self._next > MAX_INTRODUCED // 2
        if restart:
            self._known, self._next = dict(self._ends), 2
        self._new = []
        try:
            body: dict[str, Any] = {BODY_NAME[type(message)]: encode_value(message, self)}
            header = pb.Header(**body, restart=restart)
            header.introduce.extend(pb.Actor(peer=a.peer, incarnation=a.incarnation) for a in self._new)
            raw = header.SerializeToString()
            if len(raw) > MAX_HEADER:
                raise WireError(f"a {type(message).__name__} of {len(raw)} header bytes; at most {MAX_HEADER} fit")
            payload = payload_of(message)
            return raw, memoryview(b"" if payload is None else payload).cast("B")
        except (WireError, ValueError, TypeError, KeyError, AttributeError) as error:
            for actor in self._new:  # the receiver never hears of them
                del self._known[actor]
            self._next -= len(self._new)
            if isinstance(error, WireError):
                raise
            raise WireError(f"{type(message).__name__} cannot be encoded: {error}") from error

    def number(self, actor: Actor) -> int:
        """The actor's number on this stream; a new one is introduced with the message being encoded."""
        known = self._known.get(actor)
        if known is not None:
            return known
        check_actor(actor.peer, actor.incarnation)
        if self._next >= MAX_INTRODUCED:
            raise WireError(f"a message names more than {MAX_INTRODUCED // 2} new actors")
        self._known[actor] = number = self._next
        self._next += 1
        self._new.append(actor)
        return number


class Decoder:
    """Decodes what one stream carries, in the order it arrives."""

    def __init__(self, sender: Actor, receiver: Actor) -> None:
        self._ends = [sender, receiver]
        self._actors = list(self._ends)

    def decode(self, header: Buffer, payload: Buffer) -> m.Message:
        """The message; `payload` becomes its own and must be empty for kinds without one. Raises WireError."""
        try:
            proto = pb.Header.FromString(bytes(header))
        except DecodeError as error:
            raise WireError(f"the header is not a protobuf Header: {error}") from None
        if proto.restart:
            self._actors = list(self._ends)
        if len(self._actors) + len(proto.introduce) > MAX_INTRODUCED:
            raise WireError(f"more than {MAX_INTRODUCED} actors are introduced")
        for actor in proto.introduce:
            check_actor(actor.peer, actor.incarnation)
            self._actors.append(Actor(actor.peer, actor.incarnation))
        body = proto.WhichOneof("body")
        if body is None:
            raise WireError("a message of unknown kind")
        message: m.Message = decode_value(BODY_TYPE[body], getattr(proto, body), self, payload)
        if payload_of(message) is None and len(payload):
            raise WireError(f"a {type(message).__name__} carries a payload of {len(payload)} bytes; it has none")
        return message

    def actor(self, number: int) -> Actor:
        if number >= len(self._actors):
            raise WireError(f"actor number {number} was never introduced; {len(self._actors)} are known")
        return self._actors[number]


def payload_of(message: m.Message) -> Any:
    """The raw bytes a message carries (that of the relayed message, for a Relay); None for kinds that carry none."""
    if isinstance(message, m.Relay):
        message = message.message
    return message.payload if isinstance(message, m.WithPayload) else None
