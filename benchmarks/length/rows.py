"""The rows of the study, by name: a model, and how its boundaries are coded.

    NAME     = MODEL [", " CODING [", back " CODING]]
    MODEL    = "subspace WIDTH[+GROWTH]" | "bottleneck WIDTH" | "dense, anchor" | "dense, plain" | "ids alone"
    CODING   = "uncoded" | "intBITS" | "intBITS-channel" | "entropy STEP" {" " WORD}

The first coding is that of activations, the second that of gradients; without a second one both are the first. WORD is
one of the switches of `Coding`: `rotated`, `dithered`, `keyed`, `peaky`, `classes`; or `meansN`, where `means` is
`means64`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.length.coding import Coding

DENSE = "dense, anchor"
IDS = "ids alone"
_ANCHORED = ("model.anchor=frozen",)
_WORDS = ("rotated", "dithered", "keyed", "peaky", "classes")
_NARROW = re.compile(r"(?:bottleneck (\d+)|subspace (\d+)(?:\+(\d+))?)((?:, .*)?)")


@dataclass(frozen=True, slots=True)
class Row:
    """`sets`: overrides of the run file. `codings`: of activations and of gradients."""

    sets: tuple[str, ...]
    codings: tuple[Coding, Coding]


def row_named(name: str) -> Row:
    """Raises ValueError for a name that means nothing."""
    if name == IDS:
        return Row(_bottleneck("8"), (Coding("nothing"), Coding("nothing")))
    for plain, sets in ((DENSE, _ANCHORED), ("dense, plain", ())):
        if name == plain or name.startswith(f"{plain}, "):
            return Row(sets, _codings(name.removeprefix(plain)))
    if (found := _NARROW.fullmatch(name)) is None:
        raise ValueError(f"no row is named {name!r}")
    bottleneck, width, growth, codings = found.groups()
    model = _bottleneck(bottleneck) if bottleneck else _subspace(width, growth)
    return Row(model, _codings(codings))


def _subspace(width: str, growth: str | None) -> tuple[str, ...]:
    more = () if growth is None else (f"model.subspace_growth={growth}",)
    return ("model.residual=subspace", f"model.subspace_dim={width}", *more, "model.tail_layers=1")


def _bottleneck(width: str) -> tuple[str, ...]:
    return (*_ANCHORED, "model.boundary=bottleneck", f"model.boundary_dim={width}")


def _codings(told: str) -> tuple[Coding, Coding]:
    """`told`: empty, or a comma before each coding."""
    forward, _, back = (told.removeprefix(", ") or "uncoded").partition(", back ")
    return _coding(forward), _coding(back or forward)


def _coding(told: str) -> Coding:
    kind, *words = told.split(" ")
    if kind == "uncoded" and not words:
        return Coding()
    if (uniform := re.fullmatch(r"int(\d)(-channel)?", kind)) is not None and not words:
        return Coding("uniform", int(uniform[1]), channels=uniform[2] is not None)
    if kind == "entropy" and words:
        looks = [re.fullmatch(r"means(\d*)", word) for word in words[1:]]
        switches = [word for word, look in zip(words[1:], looks, strict=True) if look is None]
        if set(switches) <= set(_WORDS):
            means = max((int(look[1] or 64) for look in looks if look is not None), default=0)
            return Coding("entropy", step=float(words[0]), means=means, **dict.fromkeys(switches, True))
    raise ValueError(f"no coding is named {told!r}")
