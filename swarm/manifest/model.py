"""The table [model] of a manifest: the model, and its cuts into stages."""

from __future__ import annotations

import hashlib
import itertools
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from swarm.manifest.section import Positive, Section, within

_SUBSPACE = "U = the first k channels; F = uniform lanes of splitmix64; version 1"
"""Names the algorithm with which swarm/models/subspace.py makes U and F. Change this text whenever their values
change.
"""

_BOUNDARY = "F = uniform lanes of splitmix64 from 0; retraction by Newton-Schulz on multiples of 2^-24; version 1"
"""Names the algorithm of swarm/models/boundary.py. Change this text whenever its results change for the same
parameters.
"""


TOKEN_MEANS_GRID_BITS = 16
"""The sums for token means are multiples of 2^-TOKEN_MEANS_GRID_BITS (swarm/models/token_means.py)."""

CHANNELS_OF_NORM = 8
"""Number of channels in one norm of a classifier; all channels if there are fewer than two such groups."""

_LLAMA_KEYS = (
    "heads",
    "kv_heads",
    "ffn_dim",
    "rope_theta",
    "norm_eps",
    "residual",
    "subspace_dim",
    "subspace_growth",
    "subspace_seed",
    "tail_layers",
    "tie_embeddings",
    "boundary",
    "boundary_dim",
    "anchor",
    "receiver_hidden",
    "token_table_dim",
    "token_means",
)
"""Keys of [model] that only a language model has."""


class ModelSection(Section):
    """The model and its cuts: a decoder language model in the Llama shape, or a residual image classifier."""

    kind: Literal["llama", "resnet"] = "llama"
    vocab_size: Positive = Field(default=4096, le=1 << 24)
    """Number of different ids: tokens of a vocabulary, or levels of a pixel."""
    dim: Positive = Field(default=192, le=1 << 17)
    layers: Positive = Field(default=8, le=1 << 12)
    heads: Positive = Field(default=6, le=1 << 12)
    kv_heads: Positive = Field(default=2, le=1 << 12)
    ffn_dim: Positive = Field(default=512, le=1 << 20)
    context: Positive = Field(default=256, le=1 << 20)
    rope_theta: Annotated[float, within(1, 1e12)] = 10_000.0
    norm_eps: Annotated[float, within(1e-20, 1)] = 1e-5
    """With a much smaller one, the gradient of a token whose activations are all 0 is NaN in fp32."""
    cuts: tuple[int, ...] = (2, 4, 6)
    """First layer of stages 1 … S−1; stage 0 also embeds, the last stage also holds the final norm and the head."""
    tie_embeddings: bool = False
    """Whether embedding and head are one matrix. The first and the last stage each have a copy, kept equal."""
    residual: Literal["dense", "subspace"] = "dense"
    subspace_dim: int = Field(default=0, ge=0)
    """Coefficients per token in the embedding and after the first layer."""
    subspace_growth: int = Field(default=0, ge=0)
    """Further coefficients per token after each later layer."""
    subspace_seed: int = Field(default=0, ge=0, lt=2**63)
    tail_layers: int = Field(default=0, ge=0)
    """Number of last layers that write to the whole residual, because none of their outputs crosses a boundary."""
    boundary: Literal["none", "bottleneck", "maxout", "projector"] = "none"
    """The module that narrows a dense residual at every cut (docs/boundaries.md)."""
    boundary_dim: int = Field(default=0, ge=0)
    anchor: Literal["auto", "frozen", "none"] = "auto"
    """The frozen anchor F[t] that is added to the embedding; "auto": for a subspace, a bottleneck or a projector."""
    receiver_hidden: int = Field(default=0, ge=0, le=1 << 20)
    """Width of the MLP with which every stage but the first refines its input; 0: none."""
    token_table_dim: int = Field(default=0, ge=0)
    """Rank of the trained token table that every stage but the first adds to its input; 0: none."""
    token_means: bool = False
    """Whether both ends of a boundary keep a mean for each token, so that only the difference is sent."""
    classes: int = Field(default=0, ge=0, le=1 << 16)
    """Number of classes of an image classifier."""

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if self.kind != "resnet" and self.classes:
            raise ValueError(
                f'model.classes = {self.classes} has no effect with model.kind = "{self.kind}": '
                'set model.kind = "resnet", or leave the key out'
            )
        for key in self.idle_keys:
            default = type(self).model_fields[key].default
            if getattr(self, key) != default:
                raise ValueError(
                    f'model.{key} = {getattr(self, key)!r} has no effect with model.kind = "{self.kind}": '
                    "leave the key out"
                )
        if self.kind != "resnet":
            return self
        if self.classes < 2 or self.vocab_size < 2:
            raise ValueError(
                f'model.classes = {self.classes} and model.vocab_size = {self.vocab_size}: model.kind = "resnet" needs '
                "at least two classes and two levels of a pixel"
            )
        if self.dim % self.norm_groups:
            raise ValueError(
                f'model.dim = {self.dim}: the norms of model.kind = "resnet" have groups of {CHANNELS_OF_NORM} '
                f"channels; set a multiple of {CHANNELS_OF_NORM}, such as {self.dim + -self.dim % CHANNELS_OF_NORM}"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind == "llama":
            self._check_heads()
        bounds = (0, *self.cuts, self.layers)
        if any(a >= b for a, b in itertools.pairwise(bounds)):
            raise ValueError(
                f"model.cuts = {list(self.cuts)} must grow strictly from 1 to model.layers − 1 = {self.layers - 1}; "
                "each stage needs at least one layer (`swarm-peer init` proposes cuts)"
            )
        return self

    def _check_heads(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"model.dim = {self.dim} is not a multiple of model.heads = {self.heads}")
        if (self.dim // self.heads) % 2:
            raise ValueError(f"model.dim / model.heads = {self.dim // self.heads} must be even (rotary embedding)")
        if self.heads % self.kv_heads:
            raise ValueError(f"model.heads = {self.heads} is not a multiple of model.kv_heads = {self.kv_heads}")

    @model_validator(mode="after")
    def _subspace_fits(self) -> Self:
        if self.residual == "dense":
            for key in ("subspace_dim", "subspace_growth", "subspace_seed", "tail_layers"):
                if getattr(self, key):
                    raise ValueError(
                        f'model.{key} = {getattr(self, key)} has no effect with model.residual = "dense": '
                        'set model.residual = "subspace", or leave the key out'
                    )
            return self
        if not 0 < self.subspace_dim < self.dim:
            raise ValueError(
                f"model.subspace_dim = {self.subspace_dim} must be from 1 to model.dim − 1 = {self.dim - 1}: "
                "this many coefficients of a token cross each boundary"
            )
        last = len(self.layer_range(self.stages - 1))
        widest = self.residual_width(max(0, self.layers - 1 - min(self.tail_layers, last)))
        if widest >= self.dim:
            raise ValueError(
                f"model.subspace_growth = {self.subspace_growth} lets the {self.subspace_dim} coefficients of "
                f"model.subspace_dim grow to {widest} after {self.layers - min(self.tail_layers, last)} layers, but "
                f"model.dim = {self.dim} must be larger: lower model.subspace_growth or model.subspace_dim"
            )
        if self.tail_layers > last:
            raise ValueError(
                f"model.tail_layers = {self.tail_layers} must lie in the last stage, which has {last} of the "
                f"{self.layers} layers: lower it, or move the last of model.cuts = {list(self.cuts)}"
            )
        return self

    @model_validator(mode="after")
    def _boundary_fits(self) -> Self:
        if self.boundary == "none":
            if self.boundary_dim:
                raise ValueError(
                    f'model.boundary_dim = {self.boundary_dim} has no effect with model.boundary = "none": '
                    'set model.boundary = "bottleneck", "maxout" or "projector", or leave the key out'
                )
            return self
        if self.residual != "dense":
            raise ValueError(
                f'model.boundary = "{self.boundary}" narrows a dense residual, but model.residual = "{self.residual}" '
                'is already narrow: set model.residual = "dense", or model.boundary = "none"'
            )
        if not self.cuts:
            raise ValueError(
                f'model.boundary = "{self.boundary}" has no effect without a cut: give model.cuts at least one layer, '
                'or set model.boundary = "none"'
            )
        if not 0 < self.boundary_dim < self.dim:
            raise ValueError(
                f"model.boundary_dim = {self.boundary_dim} must be from 1 to model.dim − 1 = {self.dim - 1}: "
                "this many values of a token cross each boundary"
            )
        if self.boundary == "maxout" and self.dim % self.boundary_dim:
            raise ValueError(
                f"model.boundary_dim = {self.boundary_dim} does not divide model.dim = {self.dim}: "
                'model.boundary = "maxout" takes the largest of each group of model.dim ÷ model.boundary_dim channels'
            )
        return self

    @model_validator(mode="after")
    def _receivers_fit(self) -> Self:
        for key in ("receiver_hidden", "token_table_dim", "token_means"):
            if getattr(self, key) and not self.cuts:
                raise ValueError(
                    f"model.{key} = {_written(getattr(self, key))} has no effect in a model of one stage: no stage "
                    f"receives activations. Give model.cuts at least one layer, or remove model.{key}"
                )
        if self.token_table_dim > self.dim:
            raise ValueError(
                f"model.token_table_dim = {self.token_table_dim} is more than model.dim = {self.dim}: "
                "no table of that width has a higher rank; lower it"
            )
        if self.anchor == "none" and self.residual == "subspace":
            raise ValueError(
                'with model.anchor = "none", model.residual = "subspace" has no component outside its coefficients: '
                'set model.anchor = "auto"'
            )
        if self.anchor == "frozen" and self.boundary == "maxout":
            raise ValueError(
                'model.anchor = "frozen" does not fit model.boundary = "maxout", whose sender takes maxima of the '
                'whole residual: set model.anchor = "auto", or another model.boundary'
            )
        return self

    @model_validator(mode="after")
    def _tie_fits(self) -> Self:
        if not self.tie_embeddings or self.kind != "llama":
            return self
        key = "residual" if self.residual != "dense" else "anchor" if self.anchor == "frozen" else "boundary"
        if self.anchored:
            raise ValueError(
                f'model.tie_embeddings = true does not fit model.{key} = "{getattr(self, key)}", which adds a frozen '
                "anchor to the embedding but not to the head: set model.tie_embeddings = false, or leave "
                f"model.{key} out"
            )
        return self

    @property
    def idle_keys(self) -> tuple[str, ...]:
        """Keys that have no effect for this kind of model."""
        return () if self.kind == "llama" else _LLAMA_KEYS

    @property
    def norm_groups(self) -> int:
        """For a classifier: the number of channel groups in each of its norms."""
        return max(1, self.dim // CHANNELS_OF_NORM)

    @property
    def stages(self) -> int:
        return len(self.cuts) + 1

    @property
    def shares_embedding(self) -> bool:
        """Whether the first and the last stage both have a copy of the embedding, the last one as its head."""
        return self.tie_embeddings and self.stages > 1

    def residual_width(self, layer: int) -> int:
        """Values per token in the residual after `layer` (in the tail: before it): those of the activation, or its
        coefficients in the subspace.
        """
        return self.subspace_dim + self.subspace_growth * layer if self.residual == "subspace" else self.dim

    def boundary_width(self, boundary: int) -> int:
        """Values per token that cross the boundary before stage `boundary` (1 … S−1): those of the residual, or of the
        boundary module.
        """
        return self.residual_width(self.cuts[boundary - 1] - 1) if self.boundary == "none" else self.boundary_dim

    @property
    def boundary_widths(self) -> tuple[int, ...]:
        """Those of all boundaries, which never decrease; empty for a model of one stage."""
        return tuple(self.boundary_width(boundary) for boundary in range(1, self.stages))

    @property
    def widest_boundary(self) -> int:
        """Values per token that cross the widest boundary."""
        return max(self.boundary_widths, default=self.residual_width(0))

    @property
    def narrow(self) -> bool:
        """Whether fewer values of a token cross the boundaries than its activation has."""
        return self.residual == "subspace" or self.boundary != "none"

    @property
    def anchored(self) -> bool:
        """Whether a frozen anchor F[t] is added to the embedding; every stage computes and adds it locally."""
        return self._usually_anchored if self.anchor == "auto" else self.anchor == "frozen"

    @property
    def _usually_anchored(self) -> bool:
        return self.residual == "subspace" or self.boundary in ("bottleneck", "projector")

    @property
    def acts_at_cuts(self) -> tuple[str, ...]:
        """Settings that make a stage change its output or input at a cut, unlike a plain Llama."""
        found = () if self.boundary == "none" else (f'model.boundary = "{self.boundary}"',)
        numbers = {"receiver_hidden": self.receiver_hidden, "token_table_dim": self.token_table_dim}
        return (*found, *(f"model.{key} = {value}" for key, value in numbers.items() if value))

    @property
    def token_id_bytes(self) -> int:
        """Bytes of a token id on the wire."""
        return 2 if self.vocab_size <= 1 << 16 else 4

    @property
    def subspace_id(self) -> str:
        """SHA-256, hex, of the untrained quantities that determine the frames at a boundary. Empty for a plain dense
        model.

        For a subspace these are U and F: construction, seed, k, d, V, and k's growth. For a boundary module:
        construction, kind, k, d, V. An anchor that differs from the default is included too.
        """
        what: tuple[object, ...]
        if self.residual == "subspace":
            what = (_SUBSPACE, self.subspace_seed, self.subspace_dim, self.dim, self.vocab_size)
            if self.subspace_growth:
                what = (*what, f"growth {self.subspace_growth}")
        elif self.boundary != "none" or self.anchored:
            what = (_BOUNDARY, self.boundary, self.boundary_dim, self.dim, self.vocab_size)
        else:
            return ""
        if self.anchored != self._usually_anchored:
            what = (*what, f"anchor {self.anchor}")
        return hashlib.sha256("\0".join(map(str, what)).encode()).hexdigest()

    def layer_range(self, stage: int) -> range:
        """Layers of `stage`, a half-open range."""
        bounds = (0, *self.cuts, self.layers)
        return range(bounds[stage], bounds[stage + 1])


def _written(value: int) -> str:
    """A number or a truth value as a run file writes it."""
    return str(value).lower()
