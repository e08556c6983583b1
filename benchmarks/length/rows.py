"""The rows of the study, by name: a model, and how its boundaries are coded.

    NAME     = MODEL [", " CODING [", back " CODING]]
    MODEL    = "subspace WIDTH" | "bottleneck WIDTH" | "dense, anchor" | "dense, plain" | "ids alone"
    CODING   = "uncoded" | "intBITS" | "intBITS-channel" | "entropy STEP" {" " WORD}

The first coding is that of activations, the second that of gradients; without a second one both are the first. WORD is
one of the switches of `Coding`: `means`, `rotated`, `dithered`, `keyed`, `peaky`, `classes`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.length.coding import Coding

DENSE = "dense, anchor"
IDS = "ids alone"
_ANCHORED = ("model.anchor=frozen",)
_WORDS = ("means", "rotated", "dithered", "keyed", "peaky", "classes")
_NARROW = re.compile(r"(subspace|bottleneck) (\d+)((?:, .*)?)")


@dataclass(frozen=True, slots=True)
class Row:
    """`sets`: overrides of the run file. `codings`: of activations and of gradients."""

    sets: tuple[str, ...]
    codings: tuple[Coding, Coding]


def row_named(name: str) -> Row:
    """Raises ValueError for a name that means nothing."""
    if name == IDS:
        return Row(_narrow("bottleneck", 8), (Coding("nothing"), Coding("nothing")))
    for model, sets in ((DENSE, _ANCHORED), ("dense, plain", ())):
        if name == model or name.startswith(f"{model}, "):
            return Row(sets, _codings(name.removeprefix(model)))
    if (found := _NARROW.fullmatch(name)) is None:
        raise ValueError(f"no row is named {name!r}")
    return Row(_narrow(found[1], int(found[2])), _codings(found[3]))


def _narrow(kind: str, width: int) -> tuple[str, ...]:
    if kind == "subspace":
        return ("model.residual=subspace", f"model.subspace_dim={width}", "model.tail_layers=1")
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
    if kind == "entropy" and words and set(words[1:]) <= set(_WORDS):
        return Coding("entropy", step=float(words[0]), **dict.fromkeys(words[1:], True))
    raise ValueError(f"no coding is named {told!r}")
