"""The rows of the study: a model, how its boundaries are coded, and the controls they are held against."""

from __future__ import annotations

from dataclasses import dataclass

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


def _entropy(step: float, *, means: bool = False, rotated: bool = False, dithered: bool = False) -> Coding:
    return Coding("entropy", step=step, means=means, rotated=rotated, dithered=dithered)


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
        for step in (0.25, 0.5, 0.7, 1.0, 1.4, 2.0):
            for means, rotated, label in (
                (False, False, ""),
                (True, False, ", means"),
                (False, True, ", rotated"),
                (True, True, ", means, rotated"),
            ):
                coding = _entropy(step, means=means, rotated=rotated)
                found[f"subspace {width}, entropy {step:g}{label}"] = _subspace(width, coding)
                found[f"bottleneck {width}, entropy {step:g}{label}"] = _bottleneck(width, coding)
            forward = _entropy(step, means=True, rotated=True)
            for back in (0.5, 1.0, 2.0):
                dithered = _entropy(back, rotated=True, dithered=True)
                plain = _entropy(back, rotated=True)
                name = f"{width}, entropy {step:g}, means, rotated, back {back:g}"
                found[f"subspace {name}"] = _subspace(width, forward, plain)
                found[f"subspace {name}, dithered"] = _subspace(width, forward, dithered)
                found[f"bottleneck {name}"] = _bottleneck(width, forward, plain)
    return found
