"""The mapping between the message dataclasses in swarm/protocol/messages and protobuf, derived from their fields.

The fields have the same names as in proto/swarm/v1/messages.proto. If a message or field is missing there, importing
this module fails.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Proto

from swarm.buffer import Buffer
from swarm.net.converters import (
    ACTOR,
    FLAG,
    FLOAT,
    Actors,
    Converter,
    Numbers,
    bit_set,
    bounded,
    bytes_up_to,
    enumeration,
    label,
    many,
    text,
)
from swarm.net.proto import messages_pb2 as pb
from swarm.net.wire_bounds import (
    MAX_CODEC,
    MAX_DIGEST,
    MAX_LINKS,
    MAX_LISTENERS,
    MAX_MICROBATCHES,
    MAX_PEER_ID,
    MAX_REPLICAS,
    MAX_STAGES,
    MAX_TEXT,
    MAX_WANT_KEYS,
    SIGNATURE_BYTES,
    WireError,
    check_value,
)
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


@dataclasses.dataclass(frozen=True)
class _Field:
    name: str
    converter: Converter
    optional: bool
    presence: bool
    """Whether protobuf distinguishes an unset value of this field from its default."""


@dataclasses.dataclass(frozen=True)
class _Plan:
    proto: type[Proto]
    fields: tuple[_Field, ...]
    has_payload: bool


def encode_value(value: Any, encoder: Numbers) -> Proto:
    cls = type(value)
    plan = _PLANS[cls]
    check_value(value)
    fields = {}
    for field in plan.fields:
        item = getattr(value, field.name)
        if item is None and field.optional:
            continue
        fields[field.name] = field.converter.encode(item, encoder)
    return plan.proto(**fields)


def decode_value(cls: type, proto: Any, decoder: Actors, payload: Buffer) -> Any:
    plan = _PLANS[cls]
    decoder.parts += 1
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
    check_value(value)
    return value


def _nested(cls: type) -> Converter:
    return Converter(encode_value, lambda proto, decoder, payload: decode_value(cls, proto, decoder, payload))


def _union(proto_class: type[Proto], members: dict[type, str]) -> Converter:
    """Converter for a protobuf message that contains exactly one of `members`."""
    types_by_name = {name: cls for cls, name in members.items()}

    def encode(value: Any, encoder: Numbers) -> Proto:
        return proto_class(**{members[type(value)]: encode_value(value, encoder)})

    def decode(proto: Any, decoder: Actors, payload: Buffer) -> Any:
        name = proto.WhichOneof(proto_class.DESCRIPTOR.oneofs[0].name)
        if name is None:
            raise WireError(f"the {proto_class.__name__} is of an unknown kind")
        return decode_value(types_by_name[name], getattr(proto, name), decoder, payload)

    return Converter(encode, decode)


_KEY = _union(pb.Key, {FrameKey: "frame", PartKey: "part", SumKey: "sum"})
_RELAYED = _union(
    pb.Relayed,
    {m.Want: "want", m.Frame: "frame", m.ReducePart: "reduce_part", m.ReducedPart: "reduced_part"},
)

_ENTRY = _union(
    pb.Entry,
    {m.TermEntry: "term", m.DecisionEntry: "decision", m.ArchivedEntry: "archived", m.CommandEntry: "command"},
)

_LARGE = bounded(0, 2**63 - 1)
_INTEGERS = {
    FieldDescriptor.TYPE_UINT32: bounded(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: _LARGE,
    FieldDescriptor.TYPE_FIXED64: _LARGE,
    FieldDescriptor.TYPE_SINT32: bounded(-1, 2**31 - 1),  # signed where −1 means none
    FieldDescriptor.TYPE_SINT64: bounded(-1, 2**63 - 1),
}
_NEW_TYPES: dict[Any, Converter] = {
    StageIndex: bounded(0, MAX_STAGES - 1),
    Microbatch: bounded(0, MAX_MICROBATCHES - 1),
    StepNumber: _LARGE,
    Term: _LARGE,
}

_SPECIAL: dict[tuple[type, str], Converter] = {
    (FrameKey, "boundary"): bounded(0, MAX_STAGES),
    (m.StageTable, "roster"): many(ACTOR, MAX_REPLICAS),
    (m.StageTable, "assignment"): many(bounded(0, MAX_REPLICAS - 1), MAX_MICROBATCHES),
    (m.StageTable, "carried"): many(bounded(-1, MAX_REPLICAS - 1), MAX_REPLICAS),
    (m.StageTable, "lines"): many(bounded(1, 2**32 - 1), MAX_REPLICAS),
    (m.StageOutcome, "digest"): text(MAX_DIGEST),
    (m.StageOutcome, "contributions"): many(_nested(m.Contribution), MAX_REPLICAS),
    (m.Contribution, "microbatches"): bit_set(),
    (m.Contribution, "carried"): bounded(-1, MAX_REPLICAS - 1),
    (m.Prepared, "digest"): text(MAX_DIGEST),
    (m.Prepared, "shared"): text(MAX_DIGEST),
    (m.Prepared, "sketch"): bytes_up_to(2 * SKETCH_BYTES),
    (m.Prepared, "outline"): bytes_up_to(SKETCH_BYTES),
    (m.Status, "checkpoint_digest"): text(MAX_DIGEST),
    (m.Status, "done"): bit_set(),
    (m.Status, "forwarded"): bit_set(),
    (m.ReducePart, "microbatches"): bit_set(),
    (m.Release, "microbatches"): many(_NEW_TYPES[Microbatch], MAX_MICROBATCHES),
    (m.Released, "microbatches"): many(_NEW_TYPES[Microbatch], MAX_MICROBATCHES),
    (m.Want, "keys"): many(_KEY, MAX_WANT_KEYS),
    (m.Want, "bases"): many(_LARGE, MAX_WANT_KEYS),
    (m.Pending, "keys"): many(_nested(FrameKey), MAX_WANT_KEYS),
    (m.Receipt, "fresh"): bit_set(),
    (m.Decision, "key_frames"): many(bit_set(), MAX_STAGES),
    (m.CodecPair, "forward"): text(MAX_CODEC),
    (m.CodecPair, "backward"): text(MAX_CODEC),
    (m.Status, "links"): many(_nested(m.LinkRate), MAX_LINKS),
    (m.Status, "awaited"): many(ACTOR, m.MAX_AWAITED),
    (m.Assign, "donors"): many(_nested(m.Donor), m.MAX_DONORS),
    (m.Open, "donors"): many(_nested(m.Donor), m.MAX_DONORS),
    (m.Status, "paused"): label(),
    (m.Join, "paused"): label(),
    (m.Open, "listeners"): many(_nested(m.Listener), MAX_LISTENERS),
    (m.TakeSeats, "seats"): bounded(0, m.MAX_SEATS),
    (m.Seating, "peers"): many(text(MAX_PEER_ID), m.MAX_SEATS),
    (m.Banned, "peers"): many(text(MAX_PEER_ID), m.MAX_BANNED),
    (m.Telemetry, "machine"): many(_nested(m.Trait), m.MAX_TRAITS),
    (m.Telemetry, "trouble"): text(m.MAX_TROUBLE),
    (m.Trait, "name"): label(),
    (m.Trait, "text"): label(),
    (m.Figure, "name"): label(),
    (m.Work, "seconds"): many(FLOAT, len(m.WORK_KINDS)),
    (m.Work, "spans"): many(_nested(m.Span), m.MAX_SPANS),
    (m.Work, "usage"): many(_nested(m.Figure), m.MAX_TRAITS),
    (m.Work, "links"): many(_nested(m.LinkUse), m.MAX_LINK_USES),
    (m.Span, "kind"): bounded(0, len(m.WORK_KINDS) - 1),
    (m.Span, "microbatch"): bounded(-1, MAX_MICROBATCHES - 1),
    (m.LinkUse, "sent"): many(_LARGE, len(m.LINK_KINDS)),
    (m.LogWant, "log"): text(MAX_DIGEST),
    (m.LogWant, "before"): text(MAX_DIGEST),
    (m.LogChunk, "log"): text(MAX_DIGEST),
    (m.LogChunk, "lines"): bytes_up_to(m.MAX_LOG_BYTES),
    (m.Padding, "kind"): bounded(0, len(m.PADDED_KINDS) - 1),
    (m.Padding, "filler"): bytes_up_to(m.MAX_FILLER),
    (m.Relay, "message"): _RELAYED,
    (m.Relay, "signature"): bytes_up_to(SIGNATURE_BYTES),
    (m.Append, "entries"): many(_ENTRY, BATCH),
}
"""Converters of fields whose bounds or form do not follow from their type.

All other tuples have one entry per stage.
"""

_BODIES: tuple[type, ...] = get_args(m.Message)
_PARTS: tuple[type, ...] = (
    PassId,
    FrameKey,
    Attempt,
    PartKey,
    SumKey,
    m.StageTable,
    m.Listener,
    m.Donor,
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


def _converter(cls: type, name: str, hint: Any, proto: Any) -> Converter:
    if (cls, name) in _SPECIAL:
        return _SPECIAL[cls, name]
    if hint in _NEW_TYPES:
        return _NEW_TYPES[hint]
    if get_origin(hint) is tuple:
        return many(_converter(cls, "", get_args(hint)[0], proto), MAX_STAGES)
    if hint is Actor:
        return ACTOR
    if hint is bool:
        return FLAG
    if hint is float:
        return FLOAT
    if hint is str:
        return text(MAX_TEXT)
    if hint is int:
        return _INTEGERS[proto.type]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return enumeration(hint, getattr(pb, hint.__name__))
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


BODY_NAME: dict[type, str] = {cls: _snake(cls.__name__) for cls in _BODIES}
BODY_TYPE = {name: cls for cls, name in BODY_NAME.items()}
_PLANS: dict[type, _Plan] = {cls: _plan(cls) for cls in (*_PARTS, *_BODIES)}
