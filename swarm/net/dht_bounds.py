"""Bounds on messages between DHT nodes, checked on the raw bytes before decoding.

hivemind decodes these messages with msgpack, and its hook for extension types recurses in C. A dictionary that is
nested two hundred deep, in a few hundred bytes, ends the process with SIGSEGV before any record is checked. This
affects stored values and answers. This DHT stores only signed records, each under one subkey. They need few types:
bytes, text, numbers and lists of these, a few levels deep.
"""

from __future__ import annotations

import struct

from hivemind.utils import MSGPackSerializer

MAX_BYTES = 64 << 10
MAX_DEPTH = 6
MAX_ITEMS = 256
_DICTIONARY, _TUPLE = 0x50, 0x40
"""Codes of hivemind's extension types, whose content is msgpack again."""
_LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
"""Type codes of bytes and text: the format of the length field that follows."""
_FIXED = {
    0xC0: 0,
    0xC2: 0,
    0xC3: 0,
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
}
"""Type codes of nil, booleans and numbers: how many bytes follow."""
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_EXTENSIONS = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_SHORT_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class OutOfBounds(ValueError):
    """A message of a DHT node is too large, nested too deeply, or contains a type that this DHT does not use."""


class BoundedSerializer(MSGPackSerializer):
    """hivemind's serializer, which checks the bounds before it decodes."""

    @classmethod
    def loads(cls, buf: bytes) -> object:
        """The decoded value. Raises OutOfBounds, and msgpack's errors for invalid bytes."""
        check(buf)
        return MSGPackSerializer.loads(buf)


def check(raw: bytes) -> None:
    """Raise OutOfBounds if the msgpack exceeds the bounds or is truncated. Time and memory are linear in its length."""
    if len(raw) > MAX_BYTES:
        raise OutOfBounds(f"the message has {len(raw)} bytes; at most {MAX_BYTES} are allowed")
    waiting = [(memoryview(raw), 1)]
    items = 0
    while waiting:
        view, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise OutOfBounds(f"the message is nested more than {MAX_DEPTH} levels deep")
        at = 0
        pending = [1]
        """For each list that is being read, outermost first: the number of its remaining items."""
        while pending:
            if pending[-1] == 0:
                pending.pop()
                continue
            pending[-1] -= 1
            items += 1
            if items > MAX_ITEMS or depth + len(pending) - 1 > MAX_DEPTH:
                raise OutOfBounds(f"the message has more than {MAX_ITEMS} items, or more than {MAX_DEPTH} levels")
            at, listed, inner = _item(view, at)
            if listed:
                pending.append(listed)
            if inner is not None:
                waiting.append((inner, depth + len(pending)))
        if at != len(view):
            raise OutOfBounds(f"{len(view) - at} bytes follow after the end of the message")


def _item(view: memoryview, at: int) -> tuple[int, int, memoryview | None]:
    """Parse the item at `at`: (offset after it, number of items if it is a list, nested msgpack or None)."""
    code = _take(view, at, 1)[0]
    at += 1
    if code < 0x80 or code >= 0xE0:
        return at, 0, None
    if 0x90 <= code < 0xA0:
        return at, code & 0x0F, None
    if 0xA0 <= code < 0xC0:
        return _past(view, at, code & 0x1F), 0, None
    if code in _FIXED:
        return _past(view, at, _FIXED[code]), 0, None
    if (form := _LENGTHS.get(code)) is not None:
        at, length = _number(view, at, form)
        return _past(view, at, length), 0, None
    if (form := _LISTS.get(code)) is not None:
        return (*_number(view, at, form), None)
    if (form := _EXTENSIONS.get(code)) is not None:
        at, length = _number(view, at, form)
    elif code in _SHORT_EXTENSIONS:
        length = _SHORT_EXTENSIONS[code]
    else:
        raise OutOfBounds(f"the message contains a value with type code {code:#04x}, which no record uses")
    kind = _take(view, at, 1)[0]
    if kind not in (_DICTIONARY, _TUPLE):
        raise OutOfBounds(f"the message contains a value of extension type {kind:#04x}, which no record uses")
    end = _past(view, at + 1, length)
    return end, 0, view[at + 1 : end]


def _number(view: memoryview, at: int, form: str) -> tuple[int, int]:
    width = struct.calcsize(form)
    return at + width, int(struct.unpack(form, _take(view, at, width))[0])


def _take(view: memoryview, at: int, nbytes: int) -> memoryview:
    if at + nbytes > len(view):
        raise OutOfBounds("the message is truncated")
    return view[at : at + nbytes]


def _past(view: memoryview, at: int, nbytes: int) -> int:
    _take(view, at, nbytes)
    return at + nbytes
