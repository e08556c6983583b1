"""What all tables of a manifest share: frozen, strict about keys, and errors that a person can act on."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(gt=0, lt=1 << 31)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
MaybeSha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class ManifestError(ValueError):
    """A run file, manifest or signature that cannot be used; the message names the value and the fix."""


class Section(BaseModel):
    """Base of every manifest table: frozen, strict about keys, numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


def explain(error: Exception) -> str:
    """A validation error in one line a person can act on."""
    if not isinstance(error, ValidationError):
        return str(error)
    parts = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        given = item.get("input")
        shown = f" (got {given!r})" if isinstance(given, str | int | float | bool | list | tuple) else ""
        parts.append(f"{place}: {message}{shown}" if place else message)
    return "; ".join(parts)
