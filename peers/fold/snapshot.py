"""Snapshots: dataclasses of JSON values to JSON and back, exactly.

Fields may be str, int, float, bool, lists and mappings (by text) of these, dataclasses, and each of them or None.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def dump(value: Any) -> Any:
    """A dataclass as a mapping of its fields, however deep. Shares nothing with it that changes."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [item if type(item) in _PLAIN else dump(item) for item in value]
    if kind is dict:
        return {key: item if type(item) in _PLAIN else dump(item) for key, item in value.items()}
    return {field: dump(getattr(value, field)) for field in _names(kind)}


def load(kind: type[T], raw: Any) -> T:
    """The dataclass `kind` that `dump` made `raw` of. Raises KeyError, TypeError or ValueError when it did not."""
    value: T = _loader(kind)(raw)
    return value


_PLAIN = frozenset((str, int, float, bool, type(None)))


_NAMES: dict[type, tuple[str, ...]] = {}
_LOADERS: dict[Any, Callable[[Any], Any]] = {}


def _names(kind: Any) -> tuple[str, ...]:
    found = _NAMES.get(kind)
    if found is None:
        found = _NAMES[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return found


def _loader(kind: Any) -> Callable[[Any], Any]:
    found = _LOADERS.get(kind)
    if found is None:
        found = _LOADERS[kind] = _make_loader(kind)
    return found


def _make_loader(kind: Any) -> Callable[[Any], Any]:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        each = _loader(arguments[0])
        return list if each is _same else lambda raw: [each(item) for item in raw]
    if origin is dict:
        each = _loader(arguments[1])
        return dict if each is _same else lambda raw: {key: each(item) for key, item in raw.items()}
    if origin in (typing.Union, types.UnionType):
        loaders = [_loader(argument) for argument in arguments if argument is not type(None)]
        deep = [loader for loader in loaders if loader is not _same]
        if not deep:
            return _same
        assert len(loaders) == 1, kind  # else it could not be told which one was written
        return lambda raw: None if raw is None else deep[0](raw)
    return _same


def _dataclass(kind: type) -> Callable[[Any], Any]:
    loaders: list[tuple[str, Callable[[Any], Any]]] = []

    def build(raw: Any) -> Any:
        if not loaders:  # hints are looked up late: a class may hold others of itself
            hints = typing.get_type_hints(kind)
            loaders.extend((name, _loader(hints[name])) for name in _names(kind))
        return kind(**{name: each(raw[name]) for name, each in loaders})

    return build


def _same(value: Any) -> Any:
    return value
