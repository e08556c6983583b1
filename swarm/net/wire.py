"""The messages of swarm/protocol on the wire: a protobuf header, then the payload as raw bytes.

The mapping is total both ways. It is read off the dataclasses of swarm/protocol/messages, whose fields carry the
same names as those of proto/swarm/v1/messages.proto; a message without a counterpart fails at import. Actors appear as
small numbers: every stream has a table of actors, which the headers themselves extend, so that the header of a data
frame stays a few dozen bytes.

Nothing from the network is trusted: lengths are checked before anything is allocated (`check_lengths`), and whatever a
header holds, `Decoder.decode` returns a message within the bounds below or raises `WireError`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Callable
from typing import Any, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

from swarm.buffer import Buffer
from swarm.net.proto import messages_pb2 as pb
from swarm.protocol import controls
from swarm.protocol import messages as m
from swarm.protocol.ids import (
    Actor,
    Attempt,
    FrameKey,
    Microbatch,
    PartKey,
    PassId,
    StageIndex,
    StepNumber,
    SumKey,
    Term,
)
from swarm.protocol.raft.raft import BATCH
from swarm.protocol.sketch import SKETCH_BYTES
from swarm.protocol.update import Update

MAX_STAGES = 1024
MAX_MICROBATCHES = 65_535
MAX_REPLICAS = 4096
MAX_WANT_KEYS = 16_384
MAX_TEXT = 1024
MAX_DIGEST = 128
MAX_PEER_ID = 128
MAX_CODEC = 64
"""Bytes of a codec's name."""
MAX_LINKS = 64
"""Links whose rates a peer tells."""
MAX_LABEL = 80
"""Characters of a text for people to see, of which there are many."""
MAX_LISTENERS = 4096
"""Peers that take up a stage while a pass is open."""
MAX_INTRODUCED = 16_384
MAX_HEADER = 1 << 20
"""Bytes of a header on the control channel: an Open of 64 stages and 16,384 microbatches."""
MAX_DATA_HEADER = 1 << 16
"""Bytes of a header on a data channel."""


class WireError(ValueError):
    """What arrived (or should be sent) is not a message within the bounds; the text says why."""


def check_lengths(header: int, payload: int, max_header: int, max_payload: int) -> None:
    """Judge the announced lengths of a frame, in bytes, before anything is allocated. Raises WireError."""
    if header > max_header:
        raise WireError(f"a header of {header} bytes is announced; at most {max_header} are taken")
    if payload > max_payload:
        raise WireError(f"a payload of {payload} bytes is announced; at most {max_payload} are taken")


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
            body: dict[str, Any] = {_BODY_NAME[type(message)]: _encode(message, self)}
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
        _check_actor(actor.peer, actor.incarnation)
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
            _check_actor(actor.peer, actor.incarnation)
            self._actors.append(Actor(actor.peer, actor.incarnation))
        body = proto.WhichOneof("body")
        if body is None:
            raise WireError("a message of unknown kind")
        message: m.Message = _decode(_BODY_TYPE[body], getattr(proto, body), self, payload)
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


# ---------------------------------------------------------------- the mapping, read off the dataclasses


@dataclasses.dataclass(frozen=True)
class _Converter:
    """Python value ↔ protobuf value of one field."""

    encode: Callable[[Any, Encoder], Any]
    decode: Callable[[Any, Decoder, Buffer], Any]


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str
    converter: _Converter
    optional: bool
    presence: bool
    """The protobuf field knows whether it was set."""


@dataclasses.dataclass(frozen=True)
class _Plan:
    proto: type[Proto]
    fields: tuple[_Field, ...]
    has_payload: bool


def _encode(value: Any, encoder: Encoder) -> Proto:
    cls = type(value)
    plan = _PLANS[cls]
    _check(value)
    fields = {}
    for field in plan.fields:
        item = getattr(value, field.name)
        if item is None and field.optional:
            continue
        fields[field.name] = field.converter.encode(item, encoder)
    return plan.proto(**fields)


def _decode(cls: type, proto: Any, decoder: Decoder, payload: Buffer) -> Any:
    plan = _PLANS[cls]
    fields: dict[str, Any] = {}
    for field in plan.fields:
        if field.presence and not proto.HasField(field.name):
            if not field.optional:
                raise WireError(f"{cls.__name__}.{field.name} is missing")
            fields[field.name] = None
            continue
        try:
            fields[field.name] = field.converter.decode(getattr(proto, field.name), decoder, payload)
        except WireError as error:
            raise WireError(f"{cls.__name__}.{field.name}: {error}") from None
    if plan.has_payload:
        fields["payload"] = payload
    value = cls(**fields)
    _check(value)
    return value


def _bounded(low: int, high: int) -> _Converter:
    def check(value: Any, _context: object, _payload: Buffer = b"") -> int:
        if not low <= value <= high:
            raise WireError(f"{value} is out of range: {low} to {high}")
        return int(value)

    return _Converter(check, check)


def _text(limit: int) -> _Converter:
    def encode(value: str, _encoder: Encoder) -> str:
        return value if len(value.encode()) <= limit else value.encode()[:limit].decode(errors="ignore")

    def decode(value: str, _decoder: Decoder, _payload: Buffer) -> str:
        if len(value.encode()) > limit:
            raise WireError(f"a text of {len(value.encode())} bytes; at most {limit} are taken")
        return value

    return _Converter(encode, decode)


def _label() -> _Converter:
    """A text of so many characters, each of four bytes at most."""

    def encode(value: str, _encoder: Encoder) -> str:
        return value[:MAX_LABEL]

    def decode(value: str, _decoder: Decoder, _payload: Buffer) -> str:
        if len(value) > MAX_LABEL:
            raise WireError(f"a text of {len(value)} characters; at most {MAX_LABEL} are taken")
        return value

    return _Converter(encode, decode)


def _bytes(limit: int) -> _Converter:
    def check(value: bytes, _context: object, _payload: Buffer = b"") -> bytes:
        if len(value) > limit:
            raise WireError(f"{len(value)} bytes; at most {limit} are taken")
        return value

    return _Converter(check, check)


def _bit_set() -> _Converter:
    limit = (MAX_MICROBATCHES + 7) // 8

    def encode(value: int, _encoder: Encoder) -> bytes:
        if value < 0 or value.bit_length() > MAX_MICROBATCHES:
            raise WireError(f"a bit set over more than {MAX_MICROBATCHES} microbatches")
        return value.to_bytes((value.bit_length() + 7) // 8, "little")

    def decode(value: bytes, _decoder: Decoder, _payload: Buffer) -> int:
        if len(value) > limit or int.from_bytes(value, "little").bit_length() > MAX_MICROBATCHES:
            raise WireError(f"a bit set of {len(value)} bytes; at most {MAX_MICROBATCHES} bits are taken")
        return int.from_bytes(value, "little")

    return _Converter(encode, decode)


def _enumeration(cls: type[enum.Enum], proto_enum: Any) -> _Converter:
    numbers = {member: proto_enum.Value(member.name) for member in cls}
    members = {number: member for member, number in numbers.items()}

    def decode(value: int, _decoder: Decoder, _payload: Buffer) -> enum.Enum:
        if value not in members:
            raise WireError(f"{value} is no {cls.__name__}; known are {', '.join(x.name for x in cls)}")
        return members[value]

    return _Converter(lambda value, _encoder: numbers[value], decode)


def _nested(cls: type) -> _Converter:
    return _Converter(_encode, lambda proto, decoder, payload: _decode(cls, proto, decoder, payload))


def _many(inner: _Converter, limit: int) -> _Converter:
    def encode(values: tuple[Any, ...], encoder: Encoder) -> list[Any]:
        if len(values) > limit:
            raise WireError(f"{len(values)} entries; at most {limit} are taken")
        return [inner.encode(value, encoder) for value in values]

    def decode(values: Any, decoder: Decoder, payload: Buffer) -> tuple[Any, ...]:
        if len(values) > limit:
            raise WireError(f"{len(values)} entries; at most {limit} are taken")
        return tuple(inner.decode(value, decoder, payload) for value in values)

    return _Converter(encode, decode)


def _union(proto_class: type[Proto], members: dict[type, str]) -> _Converter:
    """A protobuf message that holds nothing but one of `members`."""
    types_by_name = {name: cls for cls, name in members.items()}

    def encode(value: Any, encoder: Encoder) -> Proto:
        return proto_class(**{members[type(value)]: _encode(value, encoder)})

    def decode(proto: Any, decoder: Decoder, payload: Buffer) -> Any:
        name = proto.WhichOneof(proto_class.DESCRIPTOR.oneofs[0].name)
        if name is None:
            raise WireError(f"a {proto_class.__name__} of unknown kind")
        return _decode(types_by_name[name], getattr(proto, name), decoder, payload)

    return _Converter(encode, decode)


_ACTOR = _Converter(
    lambda actor, encoder: encoder.number(actor), lambda number, decoder, _payload: decoder.actor(number)
)
_FLAG = _Converter(lambda value, _encoder: bool(value), lambda value, _decoder, _payload: value)
_FLOAT = _Converter(lambda value, _encoder: float(value), lambda value, _decoder, _payload: value)
_KEY = _union(pb.Key, {FrameKey: "frame", PartKey: "part", SumKey: "sum"})
_RELAYED = _union(
    pb.Relayed,
    {m.Want: "want", m.Frame: "frame", m.ReducePart: "reduce_part", m.ReducedPart: "reduced_part"},
)

_ENTRY = _union(
    pb.Entry,
    {m.TermEntry: "term", m.DecisionEntry: "decision", m.ArchivedEntry: "archived", m.CommandEntry: "command"},
)

_LARGE = _bounded(0, 2**63 - 1)
_INTEGERS = {
    FieldDescriptor.TYPE_UINT32: _bounded(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: _LARGE,
    FieldDescriptor.TYPE_FIXED64: _LARGE,
    FieldDescriptor.TYPE_SINT32: _bounded(-1, 2**31 - 1),  # signed where −1 means none
    FieldDescriptor.TYPE_SINT64: _bounded(-1, 2**63 - 1),
}
_NEW_TYPES: dict[Any, _Converter] = {
    StageIndex: _bounded(0, MAX_STAGES - 1),
    Microbatch: _bounded(0, MAX_MICROBATCHES - 1),
    StepNumber: _LARGE,
    Term: _LARGE,
}

_SPECIAL: dict[tuple[type, str], _Converter] = {
    (FrameKey, "boundary"): _bounded(0, MAX_STAGES),
    (m.StageTable, "roster"): _many(_ACTOR, MAX_REPLICAS),
    (m.StageTable, "assignment"): _many(_bounded(0, MAX_REPLICAS - 1), MAX_MICROBATCHES),
    (m.StageTable, "carried"): _many(_bounded(-1, MAX_REPLICAS - 1), MAX_REPLICAS),
    (m.StageTable, "lines"): _many(_bounded(1, 2**32 - 1), MAX_REPLICAS),
    (m.StageOutcome, "digest"): _text(MAX_DIGEST),
    (m.StageOutcome, "contributions"): _many(_nested(m.Contribution), MAX_REPLICAS),
    (m.Contribution, "microbatches"): _bit_set(),
    (m.Contribution, "carried"): _bounded(-1, MAX_REPLICAS - 1),
    (m.Prepared, "digest"): _text(MAX_DIGEST),
    (m.Prepared, "shared"): _text(MAX_DIGEST),
    (m.Prepared, "sketch"): _bytes(2 * SKETCH_BYTES),
    (m.Prepared, "outline"): _bytes(SKETCH_BYTES),
    (m.Status, "checkpoint_digest"): _text(MAX_DIGEST),
    (m.Status, "done"): _bit_set(),
    (m.Status, "forwarded"): _bit_set(),
    (m.ReducePart, "microbatches"): _bit_set(),
    (m.Release, "microbatches"): _many(_NEW_TYPES[Microbatch], MAX_MICROBATCHES),
    (m.Released, "microbatches"): _many(_NEW_TYPES[Microbatch], MAX_MICROBATCHES),
    (m.Want, "keys"): _many(_KEY, MAX_WANT_KEYS),
    (m.Want, "bases"): _many(_LARGE, MAX_WANT_KEYS),
    (m.Pending, "keys"): _many(_nested(FrameKey), MAX_WANT_KEYS),
    (m.Receipt, "fresh"): _bit_set(),
    (m.Decision, "key_frames"): _many(_bit_set(), MAX_STAGES),
    (m.CodecPair, "forward"): _text(MAX_CODEC),
    (m.CodecPair, "backward"): _text(MAX_CODEC),
    (m.Status, "links"): _many(_nested(m.LinkRate), MAX_LINKS),
    (m.Status, "awaited"): _many(_ACTOR, m.MAX_AWAITED),
    (m.Open, "listeners"): _many(_nested(m.Listener), MAX_LISTENERS),
    (m.TakeSeats, "seats"): _bounded(0, m.MAX_SEATS),
    (m.Seating, "peers"): _many(_text(MAX_PEER_ID), m.MAX_SEATS),
    (m.Banned, "peers"): _many(_text(MAX_PEER_ID), m.MAX_BANNED),
    (m.Telemetry, "machine"): _many(_nested(m.Trait), m.MAX_TRAITS),
    (m.Trait, "name"): _label(),
    (m.Trait, "text"): _label(),
    (m.Figure, "name"): _label(),
    (m.Work, "seconds"): _many(_FLOAT, len(m.WORK_KINDS)),
    (m.Work, "spans"): _many(_nested(m.Span), m.MAX_SPANS),
    (m.Work, "usage"): _many(_nested(m.Figure), m.MAX_TRAITS),
    (m.Work, "links"): _many(_nested(m.LinkUse), m.MAX_LINK_USES),
    (m.Span, "kind"): _bounded(0, len(m.WORK_KINDS) - 1),
    (m.Span, "microbatch"): _bounded(-1, MAX_MICROBATCHES - 1),
    (m.LinkUse, "sent"): _many(_LARGE, len(m.LINK_KINDS)),
    (m.LogWant, "log"): _text(MAX_DIGEST),
    (m.LogWant, "before"): _text(MAX_DIGEST),
    (m.LogChunk, "log"): _text(MAX_DIGEST),
    (m.LogChunk, "lines"): _bytes(m.MAX_LOG_BYTES),
    (m.Relay, "message"): _RELAYED,
    (m.Append, "entries"): _many(_ENTRY, BATCH),
}
"""Fields whose bound or form does not follow from their type. Other tuples have one entry a stage."""

_BODIES: tuple[type, ...] = get_args(m.Message)
_PARTS: tuple[type, ...] = (
    PassId,
    FrameKey,
    Attempt,
    PartKey,
    SumKey,
    m.StageTable,
    m.Listener,
    m.Contribution,
    m.StageOutcome,
    m.CodecPair,
    m.LinkRate,
    m.Trait,
    m.Span,
    m.Figure,
    m.LinkUse,
    m.Work,
    m.Seating,
    Update,
    m.Decision,
    m.Lineage,
    m.Receipt,
    m.TermEntry,
    m.DecisionEntry,
    m.ArchivedEntry,
    m.Command,
    m.CommandEntry,
    m.Offer,
)


def _converter(cls: type, name: str, hint: Any, proto: Any) -> _Converter:
    if (cls, name) in _SPECIAL:
        return _SPECIAL[cls, name]
    if hint in _NEW_TYPES:
        return _NEW_TYPES[hint]
    if get_origin(hint) is tuple:
        return _many(_converter(cls, "", get_args(hint)[0], proto), MAX_STAGES)
    if hint is Actor:
        return _ACTOR
    if hint is bool:
        return _FLAG
    if hint is float:
        return _FLOAT
    if hint is str:
        return _text(MAX_TEXT)
    if hint is int:
        return _INTEGERS[proto.type]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enumeration(hint, getattr(pb, hint.__name__))
    if hint in _BODIES or hint in _PARTS:
        return _nested(hint)
    raise TypeError(f"{cls.__name__}.{name}: no wire form for {hint}")


def _plan(cls: type) -> _Plan:
    proto_class = getattr(pb, cls.__name__)
    hints = get_type_hints(cls)
    fields = []
    for name, hint in hints.items():
        if name == "payload":
            continue
        optional = get_origin(hint) in (types.UnionType, typing.Union) and type(None) in get_args(hint)
        if optional:
            (hint,) = (x for x in get_args(hint) if x is not type(None))
        proto = proto_class.DESCRIPTOR.fields_by_name[name]
        fields.append(_Field(name, _converter(cls, name, hint, proto), optional, proto.has_presence))
    return _Plan(proto_class, tuple(fields), "payload" in hints)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


_BODY_NAME: dict[type, str] = {cls: _snake(cls.__name__) for cls in _BODIES}
_BODY_TYPE = {name: cls for cls, name in _BODY_NAME.items()}
_PLANS: dict[type, _Plan] = {cls: _plan(cls) for cls in (*_PARTS, *_BODIES)}


# ---------------------------------------------------------------- what types alone do not say


def _check(value: Any) -> None:
    """Raises WireError for values that no honest actor sends, whatever its state."""
    match value:
        case m.StageTable() if value.assignment and max(value.assignment) >= len(value.roster):
            raise WireError(f"an assignment to roster index {max(value.assignment)} of {len(value.roster)}")
        case m.StageTable() if len(value.carried) not in (0, len(value.roster)):
            raise WireError(f"{len(value.carried)} places in the step before for a roster of {len(value.roster)}")
        case m.StageTable() if len(value.lines) not in (0, len(value.roster)):
            raise WireError(f"{len(value.lines)} lines for a roster of {len(value.roster)}")
        case m.Want() if len(value.bases) not in (0, len(value.keys)):
            raise WireError(f"{len(value.bases)} bases for {len(value.keys)} keys")
        case m.Decision():
            numbers = (value.loss_sum, value.gradient_norm)
            if not math.isfinite(value.scale) or value.scale < 0:
                raise WireError(f"a scale of {value.scale}; it must be finite and not negative")
            if value.scale > 0 and not all(math.isfinite(x) for x in numbers):  # a SKIP may report what it skipped
                raise WireError(f"a decision to apply with loss sum and norm {numbers}")
            if not 0.0 < value.rate <= controls.MOST_RATE:
                raise WireError(f"a rate of {value.rate}; it must be above 0 and at most {controls.MOST_RATE:g}")
        case m.Command():
            try:
                controls.check(value)
            except ValueError as error:
                raise WireError(str(error)) from None
        case Update() if not value.sound:
            raise WireError(f"no step can be made with {value}")
        case m.Prepared() if value.finite and not (math.isfinite(value.squared_norm) and value.squared_norm >= 0):
            raise WireError(f"a finite gradient with squared norm {value.squared_norm}")
        case m.Prepared() if value.finite and not math.isfinite(value.loss_sum):
            raise WireError(f"a finite gradient with loss sum {value.loss_sum}")
        case m.Prepared() if len(value.sketch) % SKETCH_BYTES or len(value.outline) % SKETCH_BYTES:
            raise WireError(f"{len(value.sketch)} and {len(value.outline)} bytes of sketches: each has {SKETCH_BYTES}")
        case m.Join() | m.Status() if not (math.isfinite(value.capacity) and value.capacity >= 0):
            raise WireError(f"a capacity of {value.capacity}; it must be finite and not negative")
        case m.Join(uplink=up, downlink=down) | m.Status(offered_uplink=up, downlink=down) if not all(
            rate is None or _is_rate(rate) for rate in (up, down)
        ):
            raise WireError(f"an uplink of {up} and a downlink of {down} bytes a second")
        case m.Status() if value.seconds_per_microbatch is not None and not (
            math.isfinite(value.seconds_per_microbatch) and value.seconds_per_microbatch >= 0
        ):
            raise WireError(f"{value.seconds_per_microbatch} seconds per microbatch")
        case m.Status() if value.uplink is not None and not _is_rate(value.uplink):
            raise WireError(f"an uplink of {value.uplink} bytes a second")
        case m.Work() if len(value.seconds) != len(m.WORK_KINDS) or not all(map(_is_amount, value.seconds)):
            raise WireError(f"seconds of work {value.seconds}; there are {len(m.WORK_KINDS)}, finite and not negative")
        case m.Trait(number=number) if number is not None and not _is_amount(number):
            raise WireError(f"a machine with {value.name} {number}; it must be finite and not negative")
        case m.Figure() if not _is_amount(value.value):
            raise WireError(f"{value.name} of {value.value}; it must be finite and not negative")
        case m.LinkUse() if len(value.sent) not in (0, len(m.LINK_KINDS)):
            raise WireError(f"{len(value.sent)} kinds of bytes; there are {len(m.LINK_KINDS)}")
        case m.LinkUse(rate=rate, rtt_s=rtt) if not all(n is None or _is_amount(n) for n in (rate, rtt)):
            raise WireError(f"a link of {rate} bytes a second, {rtt} seconds there and back")
        case m.LinkRate() if not _is_rate(value.bytes_per_s):
            raise WireError(f"a link of {value.bytes_per_s} bytes a second")


def _is_amount(number: float) -> bool:
    return math.isfinite(number) and number >= 0


def _is_rate(bytes_per_s: float) -> bool:
    return math.isfinite(bytes_per_s) and bytes_per_s > 0


def _check_actor(peer: str, incarnation: int) -> None:
    if not (0 < len(peer) <= MAX_PEER_ID and peer.isascii() and peer.isalnum()):
        raise WireError(f"{peer[:MAX_PEER_ID]!r} is not a peer id")
    if not 0 <= incarnation < 2**63:
        raise WireError(f"{incarnation} is not an incarnation")
