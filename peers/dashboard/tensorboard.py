"""Writes TensorBoard event files, for people who already use TensorBoard. It needs no library, because the format is
small.

A file is a sequence of records `length u64 | masked CRC-32C of it u32 | data | masked CRC-32C of data u32`,
little-endian. The data are a protobuf `Event {1: wall_time double, 2: step varint, 3: file_version string, 5:
Summary, 7: SessionLog {1: status}}`, and `Summary {1: Value {1: tag string, 2: simple_value float}}`.
(tensorflow/core/util/event.proto, lib/io/record_writer.h) When TensorBoard reads a SessionLog with the status START, it
forgets the step of its event and all later ones.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NAME = "events.out.tfevents.0000000000.swarm-peer"
"""The name of a file. TensorBoard requires `tfevents` in the name, and reads files in the order of their names."""

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reversed
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # protobuf wire types
_START = 1  # SessionLog.SessionStatus
_MOST_RECORD = 1 << 20


class TensorBoard:
    """Appends scalars to one file. The complete records of an earlier process stay.

    `last` is the newest step of each tag, and `last_at` its time in unix seconds. Continue with larger steps, or go
    back first.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the file. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / NAME
        self.last: dict[str, int] = {}
        self.last_at: dict[str, float] = {}
        whole = 0
        if self.path.exists():
            for at, step, values, end in read_scalars(self.path):
                self._note(at, step, values)
                whole = end
            os.truncate(self.path, whole)
        self._file = self.path.open("ab")
        if not whole:
            try:
                self._append(_double(1, 0.0) + _text(3, "brain.Event:2"))
                self._file.flush()
            except OSError:
                with suppress(OSError):
                    self._file.close()
                raise

    def add(self, at: float, step: int, values: Mapping[str, float]) -> None:
        """Append values for one step. `values`: by tag, such as `loss`. Raises OSError."""
        summary = b"".join(_field(1, _text(1, tag) + _single(2, value)) for tag, value in values.items())
        self._append(_double(1, at) + _number(2, step) + _field(5, summary))
        self._note(at, step, values)

    def go_back(self, at: float, step: int) -> None:
        """Make TensorBoard forget all values of `step` and later steps. `at`: unix seconds. Raises OSError."""
        self._append(_double(1, at) + _number(2, step) + _field(7, _number(1, _START)))
        self._note(at, step, {})

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _note(self, at: float, step: int, values: Mapping[str, float]) -> None:
        if not values:  # the head of the file, or a step back
            self.last = {tag: min(newest, step - 1) for tag, newest in self.last.items()}
        self.last |= dict.fromkeys(values, step)
        self.last_at |= dict.fromkeys(values, at)

    def _append(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._file.write(length + _masked(length) + data + _masked(data))


def read_scalars(path: Path) -> Iterator[tuple[float, int, dict[str, float], int]]:
    """Read (time, step, values by tag, end of the record) of every record, up to the first incomplete or wrong one."""
    position = 0
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            (size,) = struct.unpack("<Q", head[:8])
            if head[8:] != _masked(head[:8]) or size > _MOST_RECORD:
                return
            data, check = file.read(size), file.read(4)
            if len(data) < size or check != _masked(data):
                return
            position += 16 + size
            fields = dict(_fields(data))
            values = {}
            for _, value in _fields(fields.get(5, b"")):
                inner = dict(_fields(value))
                values[inner[1].decode()] = inner[2]
            yield fields.get(1, 0.0), fields.get(2, 0), values, position


def _masked(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _table() -> list[int]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (_POLYNOMIAL if entry & 1 else 0)
        table.append(entry)
    return table


_TABLE = _table()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | _DOUBLE) + struct.pack("<d", value)


def _single(number: int, value: float) -> bytes:
    return _varint(number << 3 | _FLOAT) + struct.pack("<f", value)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:  # (number, value) in the order of the message
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
        elif wire == _BYTES:
            size, position = _read_varint(data, position)
            yield number, data[position : position + size]
            position += size
        else:
            form, size = ("<d", 8) if wire == _DOUBLE else ("<f", 4)
            yield number, struct.unpack_from(form, data, position)[0]
            position += size


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position
