"""Losses: what narrow boundaries, codecs and averaging cost a model, as measured; and how many tokens make up for it.

All figures are from the tables of docs/compression.md and docs/averaging.md. A gap is the held-out loss of a run
against that of its control, in per cent. The control has the same modules, no codec and exact sums. The figures are
those of small models (d = 256 and less) and short runs with AdamW, mostly of one seed: differences below 0.3 % are
noise. For Muon, the gaps of narrow boundaries are scaled by what one row lost. A way that was not measured has no
figure here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from peers.run.coding import ENTROPY, name_of
from swarm.manifest import CodecSection, ModelSection, RunManifest


@dataclass(frozen=True, slots=True)
class Loss:
    """What a way of training costs a model."""

    gap: float
    """Per cent of held-out loss, against the control."""
    kept: float | None = None
    """What the boundaries are worth: 1 is the control, 0 a last stage that sees token ids alone; None: not measured."""

    def with_muon(self) -> Loss:
        """The same for a narrow boundary if Muon trains the model."""
        kept = None if self.kept is None else max(0.0, 1.0 - _MUON_LOST * (1.0 - self.kept))
        return Loss(_MUON_GAP * self.gap, kept)

    @property
    def tokens(self) -> float:
        """How many times the control's tokens this row needs for the control's loss, by `EQUAL_LOSS`. At least 1."""
        gaps = [gap for gap, _ in EQUAL_LOSS]
        at = min(max(bisect_left(gaps, self.gap), 1), len(gaps) - 1)
        (low, least), (high, most) = EQUAL_LOSS[at - 1], EQUAL_LOSS[at]
        return max(1.0, least + (most - least) * (self.gap - low) / (high - low))


@dataclass(frozen=True, slots=True)
class _Boundary:
    """A row of docs/compression.md, and its share `kept` from the section "At length"."""

    kind: str
    """"dense", "subspace", or the kind of boundary module."""
    dim: int
    width: int
    """Values per token that cross a boundary, of `dim`."""
    codec: str
    """The name of its coding (coding.py)."""
    gap: float
    kept: float | None = None

    @property
    def share(self) -> float:
        return self.width / self.dim

    def is_of(self, model: ModelSection) -> bool:
        """Whether it may stand for a model. What was measured at a greater width than 256 is not of a smaller model."""
        return self.dim <= max(256, model.dim)


_BOUNDARIES = (
    _Boundary("dense", 256, 256, "none", 0.0, 1.0),
    _Boundary("dense", 256, 256, "bf16", -0.1),
    _Boundary("dense", 256, 256, "int8", -0.1),
    _Boundary("dense", 256, 256, "int6", 0.0),
    _Boundary("dense", 256, 256, "int5", 0.3),
    _Boundary("dense", 256, 256, "int4", 0.8),
    _Boundary("dense", 256, 256, "int2", 14.3),
    _Boundary("subspace", 256, 32, "none", 0.3, 0.962),
    _Boundary("subspace", 256, 32, "int8", 0.5, 0.895),
    _Boundary("subspace", 256, 32, ENTROPY, 0.9, 0.87),
    _Boundary("subspace", 256, 16, "int8", 1.0),
    _Boundary("subspace", 256, 16, "int4", 1.8),
    _Boundary("subspace", 256, 8, "int8", 1.8, 0.698),
    _Boundary("subspace", 1024, 18, "int8", 1.7),
    _Boundary("bottleneck", 256, 32, "int8", 0.7, 0.636),
    _Boundary("bottleneck", 256, 16, "int8", 1.4),
    _Boundary("projector", 256, 32, "int8", 0.6),
    _Boundary("projector", 256, 16, "int8", 1.8),
    _Boundary("maxout", 256, 32, "int8", 2.3),
    _Boundary("maxout", 256, 16, "int8", 6.1),
)
"""docs/compression.md: 409,600 tokens, four stages of one layer. Kept: a million tokens, the best rate of each. So is
the gap of `ENTROPY`, which loses more at the usual rate; with `int8`, the two kinds of gaps are alike.
"""

_AVERAGING = {
    "none": 0.0,
    "dither:1": 0.8,
    "int8": 0.6,
    "int4": 0.5,
    "int2": 2.3,
    "powersgd:4": 6.5,
}
"""docs/averaging.md; int8: docs/compression.md, the row with averaging against the one without."""

_MUON_GAP, _MUON_LOST = 2.0, 1.3
"""With Muon, the gap of a narrow boundary is so many times as large, and what it does not keep (docs/optimizers.md)."""

EQUAL_LOSS = (
    (0.0, 1.0),
    (0.3, 1.04),
    (0.5, 1.06),
    (0.8, 1.12),
    (1.0, 1.14),
    (1.4, 1.21),
    (1.8, 1.26),
    (2.0, 1.28),
    (2.3, 1.3),
    (3.8, 1.42),
    (4.6, 1.58),
    (6.1, 1.79),
    (7.5, 1.98),
    (10.6, 2.67),
    (14.3, 3.61),
)
"""(gap, tokens for equal loss): two columns of docs/compression.md. Straight lines connect and continue them."""


def percent(gap: float) -> str:
    """A gap in words."""
    return f"{gap:+.1f} %" if round(gap, 1) else "0.0 %"


def loss_of(run: RunManifest, replicas: int) -> Loss | None:
    """What a run loses, with the most replicas that a stage has. None: it was not measured."""
    model, sums = run.model, run.sums
    boundary = _of_boundaries(model, run.codec)
    if boundary is not None and run.optimizer.kind == "muon" and model.narrow:
        boundary = boundary.with_muon()
    averaging = 0.0 if replicas == 1 else _AVERAGING.get(sums.averaging)
    if boundary is None or averaging is None:
        return None
    return Loss(boundary.gap + averaging, boundary.kept)


def subspaces(model: ModelSection) -> list[int]:
    """The widths of a subspace that were measured, in a model of this width; the widest first."""
    rows = [row for row in _BOUNDARIES if row.kind == "subspace" and row.is_of(model)]
    return sorted({math.ceil(model.dim * row.share) for row in rows} & set(range(1, model.dim)), reverse=True)


def _of_boundaries(model: ModelSection, codec: CodecSection) -> Loss | None:
    """That of the widest measured boundary which is no wider than the model's, as a share of its width."""
    if model.stages == 1:
        return Loss(0.0, 1.0)
    name = name_of(codec, model)
    if model.kind != "llama" or name is None or model.receiver_hidden or model.token_table_dim:
        return None
    kind = "subspace" if model.residual == "subspace" else "dense" if model.boundary == "none" else model.boundary
    rows = [row for row in _BOUNDARIES if (row.kind, row.codec) == (kind, name) and row.is_of(model)]
    rows = [row for row in rows if row.share <= min(model.boundary_widths) / model.dim]
    best = max(rows, key=lambda row: row.share, default=None)
    return None if best is None else Loss(best.gap, best.kept)
