"""Snapshots: dataclasses of JSON values to JSON and back, exactly.

Fields may be str, int, float, bool, lists and mappings (by text) of these, `Packed`, dataclasses, and each of them or
None. What is plain JSON already is passed on as it is: of ten thousand peers a snapshot is made in a fraction of a
second.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from peers.fold.packed import Packed

T = TypeVar("T")
Step = Callable[[Any], Any]


def dump(value: Any) -> Any:
    """A dataclass as a mapping of its fields, however deep. Shares lists and mappings of plain values with it."""
    return _codec(type(value)).dump(value)


def load(kind: type[T], raw: Any) -> T:
    """The dataclass `kind` that `dump` made `raw` of; takes it over. Raises KeyError, TypeError or ValueError."""
    value: T = _codec(kind).load(raw)
    return value


def pieces(value: Any, depth: int = 3) -> Iterator[str]:
    """The JSON text of `dump(value)`, part by part, so that it is never in memory as a whole."""
    separator = "{"
    if depth and dataclasses.is_dataclass(value):
        items: Iterator[tuple[str, Any]] = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    elif depth and type(value) is dict:
        items = iter(value.items())
    else:
        yield json.dumps(dump(value) if dataclasses.is_dataclass(value) else _deep(value), separators=(",", ":"))
        return
    for name, item in items:
        yield f"{separator}{json.dumps(name)}:"
        yield from pieces(item, depth - 1)
        separator = ","
    yield "{}" if separator == "{" else "}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Codec:
    dump: Step
    load: Step
    plain: bool
    """JSON is what it is already."""


def _same(value: Any) -> Any:
    return value


_PLAIN = _Codec(_same, _same, True)
_CODECS: dict[Any, _Codec] = {}


def _codec(kind: Any) -> _Codec:
    found = _CODECS.get(kind)
    if found is None:
        found = _CODECS[kind] = _made(kind)
    return found


def _made(kind: Any) -> _Codec:
    if kind is Packed:
        return _Codec(dict, Packed, False)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _of_dataclass(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        each = _codec(arguments[0])
        if each.plain:
            return _PLAIN
        return _Codec(lambda v: [each.dump(x) for x in v], lambda raw: [each.load(x) for x in raw], False)
    if origin is dict:
        each = _codec(arguments[1])
        if each.plain:
            return _PLAIN
        return _Codec(
            lambda v: {key: each.dump(x) for key, x in v.items()},
            lambda raw: {sys.intern(key): each.load(x) for key, x in raw.items()},
            False,
        )
    if origin in (typing.Union, types.UnionType):
        deep = [c for argument in arguments if argument is not type(None) and not (c := _codec(argument)).plain]
        if not deep:
            return _PLAIN
        assert len(arguments) == 2, kind  # a dataclass or None; else it could not be told which one was written
        each = deep[0]
        return _Codec(
            lambda v: None if v is None else each.dump(v), lambda raw: None if raw is None else each.load(raw), False
        )
    return _PLAIN


def _of_dataclass(kind: type) -> _Codec:
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    deep = {name: codec for name in names if not (codec := _codec(hints[name])).plain}
    texts = [name for name in names if hints[name] is str]

    def dumped(value: Any) -> dict[str, Any]:
        made = {name: getattr(value, name) for name in names}
        for name, codec in deep.items():
            made[name] = codec.dump(made[name])
        return made

    def loaded(raw: Any) -> Any:
        if set(raw) != set(names):
            raise ValueError(f"{kind.__name__} has other fields")
        made = dict(raw)
        for name in texts:  # mostly names that several parts have, and the state of another moment too
            made[name] = sys.intern(made[name])
        for name, codec in deep.items():
            made[name] = codec.load(made[name])
        return kind(**made)

    return _Codec(dumped, loaded, False)


def _deep(value: Any) -> Any:
    """A list or mapping whose type is not at hand."""
    if type(value) is list:
        return [_deep(item) if type(item) in (list, dict) or dataclasses.is_dataclass(item) else item for item in value]
    if type(value) is dict:
        return {
            key: _deep(item) if type(item) in (list, dict) or dataclasses.is_dataclass(item) else item
            for key, item in value.items()
        }
    return dump(value) if dataclasses.is_dataclass(value) else value
