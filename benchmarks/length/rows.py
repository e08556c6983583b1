"""The rows of the study: a model, how its boundaries are coded, and the controls they are held against."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from benchmarks.length.coding import Coding

DENSE = "dense, anchor"
IDS = "ids alone"
_ANCHORED = ("model.anchor=frozen",)


@dataclass(frozen=True, slots=True)
class Row:
    """`sets`: overrides of the run file. `codings`: of activations and of gradients."""

    sets: tuple[str, ...]
    codings: tuple[Coding, Coding]


def _subspace(width: int, forward: Coding, backward: Coding | None = None, *sets: str) -> Row:
    model = ("model.residual=subspace", f"model.subspace_dim={width}", "model.tail_layers=1")
    return Row((*model, *sets), (forward, backward or forward))


def _bottleneck(width: int, forward: Coding, backward: Coding | None = None, *sets: str) -> Row:
    model = (*_ANCHORED, "model.boundary=bottleneck", f"model.boundary_dim={width}")
    return Row((*model, *sets), (forward, backward or forward))


NONE, NOTHING, INT8, INT4 = Coding(), Coding("nothing"), Coding("uniform", 8), Coding("uniform", 4)


def rows() -> dict[str, Row]:
    """By name: the two controls first."""
    found = {
        DENSE: Row(_ANCHORED, (NONE, NONE)),
        IDS: _bottleneck(8, NOTHING),
        "dense, plain": Row((), (NONE, NONE)),
        "dense, anchor, int8": Row(_ANCHORED, (INT8, INT8)),
        "dense, anchor, int4": Row(_ANCHORED, (INT4, INT4)),
    }
    for width in (4, 8, 16, 24, 32, 48, 64, 96, 128):
        found[f"subspace {width}"] = _subspace(width, NONE)
        found[f"subspace {width}, int8"] = _subspace(width, INT8)
        found[f"bottleneck {width}"] = _bottleneck(width, NONE)
        found[f"bottleneck {width}, int8"] = _bottleneck(width, INT8)
        for step in (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0):
            back = Coding("entropy", step=1.0, peaky=True, dithered=True)
            for means, rotated in itertools.product((False, True), repeat=2):
                label = ", means" * means + ", rotated" * rotated
                forward = Coding("entropy", step=step, means=means, rotated=rotated)
                for kind, row in (("subspace", _subspace), ("bottleneck", _bottleneck)):
                    name = f"{kind} {width}, entropy {step:g}{label}"
                    found[f"{name}, int8 back"] = row(width, forward, INT8)
                    found[name] = row(width, forward, back)
                    for size in (0.5, 0.7, 1.4, 2.0, 2.8):
                        found[f"{name}, back {size:g}"] = row(width, forward, replace(back, step=size))
                        found[f"{name}, back {size:g} rounded"] = row(
                            width, forward, replace(back, step=size, dithered=False)
                        )
                    found[f"{name}, back 1 rounded"] = row(width, forward, replace(back, dithered=False))
    return found
