"""The base class of all manifest tables, and error messages that tell people what to change."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)

PEER_ID = r"^12D3KooW[1-9A-HJ-NP-Za-km-z]{44}$"
RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_SHA256, _MAYBE_SHA256 = r"^[0-9a-f]{64}$", r"^([0-9a-f]{64})?$"
_FORMS = {
    PEER_ID: "write a peer id, as `swarm-peer id` prints it",
    RUN_NAME: "write up to 64 letters, digits, dots, - and _, and begin with a letter or digit",
    _SHA256: "write 64 hexadecimal digits",
    _MAYBE_SHA256: "write 64 hexadecimal digits, or leave it empty",
}
_KINDS = {
    "tuple_type": "write a list, such as [2, 4]",
    "model_type": "this is a table: write its keys, each with a value",
    "string_type": "this is a text: write it in quotes",
    "string_unicode": "it is not UTF-8: write it in RUN.toml, and save the file with the encoding UTF-8",
}
_VALUE_SHOWN = 120
_SCALARS = (int, float, datetime.date, datetime.time)
_SHOWN = (*_SCALARS, str, list, tuple)
"""Types whose values errors repeat. Tables are left out: they can be long, and their errors name the keys in them."""

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(gt=0, lt=1 << 31)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Sha256 = Annotated[str, Field(pattern=_SHA256)]
MaybeSha256 = Annotated[str, Field(pattern=_MAYBE_SHA256)]


def within(least: float, most: float) -> AfterValidator:
    """For `Annotated[float, within(…)]`: a number from `least` to `most`, both included. The error names both."""

    def checked(value: float) -> float:
        if not least <= value <= most:
            raise ValueError(f"Input should be a number from {least:g} to {most:g}")
        return value

    return AfterValidator(checked)


def either(what: str) -> WrapValidator:
    """For a field of several types: one error that says what may be written, in place of pydantic's one for each type,
    which name keys that do not exist.
    """

    def checked(value: object, validate: ValidatorFunctionWrapHandler) -> object:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError(f"Input should be {what}") from None

    return WrapValidator(checked)


class ManifestError(ValueError):
    """A run file, manifest or signature is invalid; the message names the value and the fix."""


class Section(BaseModel):
    """Base of every manifest table: frozen, without unknown keys, with finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, bool) and _has_numbers(cls.model_fields[info.field_name or ""].annotation):
                raise ValueError(f"{str(each).lower()} is not a number")
        return value


def _has_numbers(kind: object) -> bool:
    """Whether a field of this type holds numbers, alone, in a list or instead of something else."""
    return kind in (int, float) or any(map(_has_numbers, get_args(kind)))


def explain(error: Exception) -> str:
    """A validation error as one line, which tells people what to change."""
    if not isinstance(error, ValidationError):
        return str(error)
    parts = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        given = item.get("input")
        got = f" (got {shown(_written(given))})" if isinstance(given, _SHOWN) or item["type"] == "string_type" else ""
        parts.append(f"{place}: {_message(item)}{got}" if place else _message(item))
    return "; ".join(parts)


def _message(item: Any) -> str:
    """What is wrong, or what to write, for one of pydantic's `ErrorDetails`."""
    kind, given, message = item["type"], item.get("input"), str(item["msg"])
    if kind == "string_type" and isinstance(given, _SCALARS):  # TOML has read a name such as 2024-01-01 as a date
        text = f'"{shown(_written(given))}"'
        return f"this is a text: put it in quotes, {text}, and in a shell put '' around them, '{text}'"
    form = _FORMS.get(item.get("ctx", {}).get("pattern", ""))
    return form or _KINDS.get(kind) or message.removeprefix("Value error, ")


def _written(value: object) -> str:
    """A value for a message. Dates and times, which only TOML makes, as TOML writes them."""
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else repr(value)


def shown(text: str) -> str:
    """The beginning of a text of any length, for a message."""
    return text if len(text) <= _VALUE_SHOWN else f"{text[:_VALUE_SHOWN]}…"
