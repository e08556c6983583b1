"""Converts dataclasses of JSON values to JSON and back, without loss.

Fields may be str, int, float, bool, lists and mappings (by text) of these, `Packed`, dataclasses, and unions of one of
these with None. Plain JSON values are passed on unchanged, so a snapshot of ten thousand peers takes a fraction of a
second.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import orjson

from peers.fold.packed import Packed

T = TypeVar("T")
Step = Callable[[Any], Any]
DEPTH = 3
"""Number of levels at which `to_lines` splits a state: its parts, their fields, the entries of these."""


def dump(value: Any) -> Any:
    """A dataclass as a mapping of its fields, at any depth. It shares plain lists and mappings with the dataclass."""
    return _codec(type(value)).dump(value)


def load(kind: type[T], raw: Any) -> T:
    """The dataclass `kind` from which `dump` made `raw`. It reuses the objects in `raw`. Raises KeyError, TypeError or
    ValueError.
    """
    value: T = _codec(kind).load(raw)
    return value


def to_lines(value: Any) -> Iterator[str]:
    """A dataclass as JSON texts, each a small `[path, value]`, so that the whole is never in memory as text or JSON."""
    yield from _lines(type(value), value, [], DEPTH)


def from_lines(kind: type[T], lines: Iterable[str | bytes]) -> T:
    """The dataclass `kind` from the lines of `to_lines`. Raises KeyError, TypeError or ValueError."""
    tree: dict[str, Any] = {}
    for line in lines:
        path, raw = orjson.loads(line)
        within, at = tree, kind
        for name in path[:-1]:
            at = _inner(at, name)
            within = within.setdefault(name, {})
        within[sys.intern(path[-1])] = _codec(_inner(at, path[-1])).load(raw)
    built: T = _built(kind, tree, DEPTH)
    return built


def _lines(kind: Any, value: Any, path: list[str], depth: int) -> Iterator[str]:
    if depth and _is_dataclass(kind):
        items = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    elif depth and typing.get_origin(kind) is dict and value:
        items = value
    else:
        yield json.dumps([path, _codec(kind).dump(value)], separators=(",", ":"))
        return
    for name, item in items.items():
        yield from _lines(_inner(kind, name), item, [*path, name], depth - 1)


def _built(kind: Any, tree: Any, depth: int) -> Any:
    """Build the dataclasses of a tree whose leaves are already loaded. Its mappings are reused."""
    if depth and _is_dataclass(kind):
        names = {field.name for field in dataclasses.fields(kind)}
        if type(tree) is not dict or set(tree) != names:
            raise ValueError(f"the fields of {kind.__name__} are not those of this release")
        return kind(**{name: _built(_inner(kind, name), tree[name], depth - 1) for name in names})
    if depth > 1 and typing.get_origin(kind) is dict:
        return {name: _built(_inner(kind, name), item, depth - 1) for name, item in tree.items()}
    return tree


def _inner(kind: Any, name: str) -> Any:
    """The type of a dataclass's field, or of a mapping's values. Raises KeyError if the field does not exist."""
    if _is_dataclass(kind):
        return _hints(kind)[name]
    if typing.get_origin(kind) is dict:
        return typing.get_args(kind)[1]
    raise KeyError(name)


def _is_dataclass(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and isinstance(kind, type)


_hints = functools.cache(typing.get_type_hints)


@dataclasses.dataclass(frozen=True, slots=True)
class _Codec:
    dump: Step
    load: Step
    plain: bool
    """True if the value is already plain JSON."""


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
    if _is_dataclass(kind):
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
        assert len(arguments) == 2, kind  # a dataclass or None; a union of two dataclasses would be ambiguous
        each = deep[0]
        return _Codec(
            lambda v: None if v is None else each.dump(v), lambda raw: None if raw is None else each.load(raw), False
        )
    return _PLAIN


def _of_dataclass(kind: type) -> _Codec:
    hints = _hints(kind)
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
            raise ValueError(f"the fields of {kind.__name__} are not those of this release")
        made = dict(raw)
        for name in texts:  # parts and other states share most names
            made[name] = sys.intern(made[name])
        for name, codec in deep.items():
            made[name] = codec.load(made[name])
        return kind(**made)

    return _Codec(dumped, loaded, False)
