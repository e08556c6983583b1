"""Converters between single fields of messages and protobuf fields. Each one checks the bounds of its field."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, Protocol

from swarm.buffer import Buffer
from swarm.net.wire_bounds import MAX_LABEL, MAX_MICROBATCHES, WireError
from swarm.protocol.ids import Actor


class Numbers(Protocol):
    """The part of an actor table that the sender of a stream needs: the number of an actor."""

    def number(self, actor: Actor) -> int: ...


class Actors(Protocol):
    """The part of a decoder that the converters need: its actor table, and the count of what it has decoded."""

    parts: int
    """Number of nested values decoded so far, which determines how long the message takes."""

    def actor(self, number: int) -> Actor: ...


@dataclasses.dataclass(frozen=True)
class Converter:
    """Converts one field between its Python value and its protobuf value."""

    encode: Callable[[Any, Numbers], Any]
    decode: Callable[[Any, Actors, Buffer], Any]


def bounded(low: int, high: int) -> Converter:
    def check(value: Any, _context: object, _payload: Buffer = b"") -> int:
        if not low <= value <= high:
            raise WireError(f"{value} is out of range: {low} to {high}")
        return int(value)

    return Converter(check, check)


def text(limit: int) -> Converter:
    def encode(value: str, _encoder: Numbers) -> str:
        return value if len(value.encode()) <= limit else value.encode()[:limit].decode(errors="ignore")

    def decode(value: str, _decoder: Actors, _payload: Buffer) -> str:
        if len(value.encode()) > limit:
            raise WireError(f"the text has {len(value.encode())} bytes; at most {limit} are allowed")
        return value

    return Converter(encode, decode)


def label() -> Converter:
    """A text of at most MAX_LABEL characters; a character has up to four bytes."""

    def encode(value: str, _encoder: Numbers) -> str:
        return value[:MAX_LABEL]

    def decode(value: str, _decoder: Actors, _payload: Buffer) -> str:
        if len(value) > MAX_LABEL:
            raise WireError(f"the text has {len(value)} characters; at most {MAX_LABEL} are allowed")
        return value

    return Converter(encode, decode)


def bytes_up_to(limit: int) -> Converter:
    def check(value: bytes, _context: object, _payload: Buffer = b"") -> bytes:
        if len(value) > limit:
            raise WireError(f"the field has {len(value)} bytes; at most {limit} are allowed")
        return value

    return Converter(check, check)


def bit_set() -> Converter:
    limit = (MAX_MICROBATCHES + 7) // 8

    def encode(value: int, _encoder: Numbers) -> bytes:
        if value < 0 or value.bit_length() > MAX_MICROBATCHES:
            raise WireError(f"the bit set covers more than {MAX_MICROBATCHES} microbatches")
        return value.to_bytes((value.bit_length() + 7) // 8, "little")

    def decode(value: bytes, _decoder: Actors, _payload: Buffer) -> int:
        if len(value) > limit or int.from_bytes(value, "little").bit_length() > MAX_MICROBATCHES:
            raise WireError(f"the bit set has {len(value)} bytes; at most {MAX_MICROBATCHES} bits are allowed")
        return int.from_bytes(value, "little")

    return Converter(encode, decode)


def enumeration(cls: type[enum.Enum], proto_enum: Any) -> Converter:
    numbers = {member: proto_enum.Value(member.name) for member in cls}
    members = {number: member for member, number in numbers.items()}

    def decode(value: int, _decoder: Actors, _payload: Buffer) -> enum.Enum:
        if value not in members:
            raise WireError(f"{value} is not a {cls.__name__}; known: {', '.join(x.name for x in cls)}")
        return members[value]

    return Converter(lambda value, _encoder: numbers[value], decode)


def many(inner: Converter, limit: int) -> Converter:
    def encode(values: tuple[Any, ...], encoder: Numbers) -> list[Any]:
        if len(values) > limit:
            raise WireError(f"the list has {len(values)} entries; at most {limit} are allowed")
        return [inner.encode(value, encoder) for value in values]

    def decode(values: Any, decoder: Actors, payload: Buffer) -> tuple[Any, ...]:
        if len(values) > limit:
            raise WireError(f"the list has {len(values)} entries; at most {limit} are allowed")
        return tuple(inner.decode(value, decoder, payload) for value in values)

    return Converter(encode, decode)


ACTOR = Converter(lambda actor, encoder: encoder.number(actor), lambda number, decoder, _payload: decoder.actor(number))
FLAG = Converter(lambda value, _encoder: bool(value), lambda value, _decoder, _payload: value)
FLOAT = Converter(lambda value, _encoder: float(value), lambda value, _decoder, _payload: value)
