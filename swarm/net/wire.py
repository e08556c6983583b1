"""The wire format of the messages in swarm/protocol: a protobuf header, then the payload as raw bytes.

`message_mapping` maps every message to its header and back. In headers, actors appear as small numbers: each stream has
a table of actors, and a header adds the actors that it uses for the first time. So the header of a data frame has only
a few dozen bytes.

For any header, `Decoder.decode` either returns a message within the bounds of `wire_bounds` or raises `WireError`.
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
    """Encodes the messages of one stream from `sender` to `receiver`, in the order in which they are sent."""

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
                raise WireError(f"the {type(message).__name__} has {len(raw)} header bytes; at most {MAX_HEADER} fit")
            payload = payload_of(message)
            return raw, memoryview(b"" if payload is None else payload).cast("B")
        except (WireError, ValueError, TypeError, KeyError, AttributeError) as error:
            for actor in self._new:  # the message is not sent, so the receiver does not learn these numbers
                del self._known[actor]
            self._next -= len(self._new)
            if isinstance(error, WireError):
                raise
            raise WireError(f"{type(message).__name__} cannot be encoded: {error}") from error

    def number(self, actor: Actor) -> int:
        """The actor's number on this stream. The message being encoded introduces a new actor to the receiver."""
        known = self._known.get(actor)
        if known is not None:
            return known
        check_actor(actor.peer, actor.incarnation)
        if self._next >= MAX_INTRODUCED:
            raise WireError(f"the message names more than {MAX_INTRODUCED // 2} new actors")
        self._known[actor] = number = self._next
        self._next += 1
        self._new.append(actor)
        return number


class Decoder:
    """Decodes the messages of one stream, in the order in which they arrive."""

    def __init__(self, sender: Actor, receiver: Actor) -> None:
        self.parts = 0
        """Number of nested values in the last message: 1 for the message itself, and one for each key, span, introduced
        actor and so on.
        """
        self._ends = [sender, receiver]
        self._actors = list(self._ends)

    def decode(self, header: Buffer, payload: Buffer) -> m.Message:
        """Decode one message. The message keeps `payload`, which must be empty if its kind has none.

        Raises WireError.
        """
        self.parts = 0
        try:
            proto = pb.Header.FromString(bytes(header))
        except DecodeError as error:
            raise WireError(f"the header is not a protobuf Header: {error}") from None
        if proto.restart:
            self._actors = list(self._ends)
        if len(self._actors) + len(proto.introduce) > MAX_INTRODUCED:
            raise WireError(f"the stream introduces more than {MAX_INTRODUCED} actors")
        self.parts = len(proto.introduce)
        for actor in proto.introduce:
            check_actor(actor.peer, actor.incarnation)
            self._actors.append(Actor(actor.peer, actor.incarnation))
        body = proto.WhichOneof("body")
        if body is None:
            raise WireError("the message is of an unknown kind")
        message: m.Message = decode_value(BODY_TYPE[body], getattr(proto, body), self, payload)
        if payload_of(message) is None and len(payload):
            raise WireError(f"the {type(message).__name__} has a payload of {len(payload)} bytes; it must have none")
        return message

    def actor(self, number: int) -> Actor:
        if number >= len(self._actors):
            raise WireError(f"actor number {number} is unknown; {len(self._actors)} actors were introduced")
        return self._actors[number]


def payload_of(message: m.Message) -> Any:
    """The payload of a message; for a Relay, that of the relayed message. None if the kind has no payload."""
    if isinstance(message, m.Relay):
        message = message.message
    return message.payload if isinstance(message, m.WithPayload) else None
