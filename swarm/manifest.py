"""The manifest: the one description of a run that every peer, checkpoint and connection agrees on.

A run is a file. `RunFile` is what an organiser writes (RUN.toml); `RunFile.resolve` adds the hashes of the prepared
corpus and yields a `RunManifest`: frozen, complete, hashed (`RunManifest.hash`) and signed with the organiser's Ed25519
key (`SignedManifest`). Everything a step computes is a function of the manifest and the step number alone.

Unknown keys are errors that name the nearest known key.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

PROTOCOL_VERSION = 1
"""Peers of different protocol versions refuse each other by name in the handshake."""

MAX_MANIFEST_BYTES = 1 << 20

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
MaybeSha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]

_SUBSPACE = "U = the first k channels; F = uniform lanes of splitmix64; version 1"
"""How swarm/models/subspace.py makes U and F. Changes whenever they would come out otherwise."""

_BOUNDARY = "F = uniform lanes of splitmix64 from 0; retraction by Newton-Schulz on multiples of 2^-24; version 1"
"""What swarm/models/boundary.py does that no parameter tells. Changes whenever it would come out otherwise."""


_LLAMA_KEYS = (
    "heads",
    "kv_heads",
    "ffn_dim",
    "rope_theta",
    "norm_eps",
    "residual",
    "subspace_dim",
    "subspace_seed",
    "tail_layers",
    "boundary",
    "boundary_dim",
    "anchor",
    "receiver_hidden",
    "token_table_dim",
)
"""Keys of [model] that only a language model has."""


class ManifestError(ValueError):
    """A run file, manifest or signature that cannot be used; the message names the value and the fix."""


class Section(BaseModel):
    """Base of every manifest table: frozen, strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelSection(Section):
    """The model and where it is cut: a decoder language model in the Llama shape, or a residual image classifier."""

    kind: Literal["llama", "resnet"] = "llama"
    vocab_size: Positive = 4096
    """Different ids: tokens, or levels of a pixel."""
    dim: Positive = 192
    layers: Positive = 8
    heads: Positive = 6
    kv_heads: Positive = 2
    ffn_dim: Positive = 512
    context: Positive = 256
    rope_theta: float = Field(default=10_000.0, gt=0)
    norm_eps: float = Field(default=1e-5, gt=0)
    cuts: tuple[int, ...] = (2, 4, 6)
    """First layer of stages 1 … S−1; stage 0 also embeds, the last stage also holds the final norm and the head."""
    residual: Literal["dense", "subspace"] = "dense"
    subspace_dim: int = Field(default=0, ge=0)
    subspace_seed: int = Field(default=0, ge=0, lt=2**63)
    tail_layers: int = Field(default=0, ge=0)
    """Last layers that write to the whole residual: nothing of them crosses a boundary."""
    boundary: Literal["none", "bottleneck", "maxout", "projector"] = "none"
    """What narrows a dense residual at every cut (docs/boundaries.md)."""
    boundary_dim: int = Field(default=0, ge=0)
    anchor: Literal["auto", "frozen", "none"] = "auto"
    """The frozen anchor F[t] under the embedding; "auto": of a subspace, a bottleneck, a projector."""
    receiver_hidden: int = Field(default=0, ge=0)
    """Width of the MLP with which every stage but the first refines what it received; 0: none."""
    token_table_dim: int = Field(default=0, ge=0)
    """Rank of the trained token table that every stage but the first adds to what it received; 0: none."""
    classes: int = Field(default=0, ge=0)
    """Of an image classifier."""

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        if self.kind == "llama":
            if self.classes:
                raise ValueError(
                    f'model.classes = {self.classes} means nothing with model.kind = "llama": '
                    'set model.kind = "resnet", or leave the key out'
                )
            return self
        for key in self.idle_keys:
            default = type(self).model_fields[key].default
            if getattr(self, key) != default:
                raise ValueError(
                    f'model.{key} = {getattr(self, key)!r} means nothing with model.kind = "resnet": leave the key out'
                )
        if self.classes < 2 or self.vocab_size < 2:
            raise ValueError(
                f'model.classes = {self.classes} and model.vocab_size = {self.vocab_size}: model.kind = "resnet" needs '
                "two classes and two levels of a pixel at least"
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
            for key in ("subspace_dim", "subspace_seed", "tail_layers"):
                if getattr(self, key):
                    raise ValueError(
                        f'model.{key} = {getattr(self, key)} means nothing with model.residual = "dense": '
                        'set model.residual = "subspace", or leave the key out'
                    )
            return self
        if not 0 < self.subspace_dim < self.dim:
            raise ValueError(
                f"model.subspace_dim = {self.subspace_dim} must be from 1 to model.dim − 1 = {self.dim - 1}: "
                "so many coefficients of a token cross each boundary"
            )
        last = len(self.layer_range(self.stages - 1))
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
                    f'model.boundary_dim = {self.boundary_dim} means nothing with model.boundary = "none": '
                    'set model.boundary = "bottleneck", "maxout" or "projector", or leave the key out'
                )
            return self
        if self.residual != "dense":
            raise ValueError(
                f'model.boundary = "{self.boundary}" narrows a dense residual, and model.residual = "{self.residual}" '
                'is narrow already: set model.residual = "dense", or model.boundary = "none"'
            )
        if not self.cuts:
            raise ValueError(
                f'model.boundary = "{self.boundary}" has no boundary to stand at: give model.cuts at least one layer, '
                'or set model.boundary = "none"'
            )
        if not 0 < self.boundary_dim < self.dim:
            raise ValueError(
                f"model.boundary_dim = {self.boundary_dim} must be from 1 to model.dim − 1 = {self.dim - 1}: "
                "so many values of a token cross each boundary"
            )
        if self.boundary == "maxout" and self.dim % self.boundary_dim:
            raise ValueError(
                f"model.boundary_dim = {self.boundary_dim} does not divide model.dim = {self.dim}: "
                'model.boundary = "maxout" takes the largest of each group of model.dim ÷ model.boundary_dim channels'
            )
        return self

    @model_validator(mode="after")
    def _receivers_fit(self) -> Self:
        for key in ("receiver_hidden", "token_table_dim"):
            if getattr(self, key) and not self.cuts:
                raise ValueError(
                    f"model.{key} = {getattr(self, key)} needs a stage that receives something: "
                    "give model.cuts at least one layer, or leave the key out"
                )
        if self.token_table_dim > self.dim:
            raise ValueError(
                f"model.token_table_dim = {self.token_table_dim} is more than model.dim = {self.dim}: "
                "no table of that width has a higher rank; lower it"
            )
        if self.anchor == "none" and self.residual == "subspace":
            raise ValueError(
                'model.anchor = "none" leaves model.residual = "subspace" nothing outside its few coefficients: '
                'set model.anchor = "auto"'
            )
        if self.anchor == "frozen" and self.boundary == "maxout":
            raise ValueError(
                'model.anchor = "frozen" does not fit model.boundary = "maxout", whose sender takes maxima of the '
                'whole residual: set model.anchor = "auto", or another model.boundary'
            )
        return self

    @property
    def idle_keys(self) -> tuple[str, ...]:
        """Keys that mean nothing for this kind of model."""
        return _LLAMA_KEYS if self.kind == "resnet" else ()

    @property
    def stages(self) -> int:
        return len(self.cuts) + 1

    @property
    def residual_width(self) -> int:
        """Values of a token that run along the residual: its activation, or its coefficients in the subspace."""
        return self.subspace_dim if self.residual == "subspace" else self.dim

    @property
    def boundary_width(self) -> int:
        """Values of a token that cross a boundary: the residual's, or what its sender makes of them."""
        return self.residual_width if self.boundary == "none" else self.boundary_dim

    @property
    def anchored(self) -> bool:
        """Whether the embedding stands on a frozen anchor F[t], which every stage adds by itself."""
        return self._usually_anchored if self.anchor == "auto" else self.anchor == "frozen"

    @property
    def _usually_anchored(self) -> bool:
        return self.residual == "subspace" or self.boundary in ("bottleneck", "projector")

    @property
    def acts_at_cuts(self) -> tuple[str, ...]:
        """Keys that make a stage act on what it sends or has received: a plain Llama has no place for it."""
        found = () if self.boundary == "none" else (f'model.boundary = "{self.boundary}"',)
        numbers = {"receiver_hidden": self.receiver_hidden, "token_table_dim": self.token_table_dim}
        return (*found, *(f"model.{key} = {value}" for key, value in numbers.items() if value))

    @property
    def token_id_bytes(self) -> int:
        """Bytes of a token id on the wire."""
        return 2 if self.vocab_size <= 1 << 16 else 4

    @property
    def subspace_id(self) -> str:
        """SHA-256, hex, of all that fixes what crosses a boundary and is not trained. Empty for a plain dense model.

        In a subspace that fixes U and F: construction, seed, k, d, V. With a boundary: construction, kind, k, d, V.
        An anchor where there usually is none, or none where there usually is one, is named too.
        """
        what: tuple[object, ...]
        if self.residual == "subspace":
            what = (_SUBSPACE, self.subspace_seed, self.subspace_dim, self.dim, self.vocab_size)
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


class BatchSection(Section):
    """One optimizer step: `microbatches` × `sequences` × `sequence_length` tokens."""

    microbatches: Positive = Field(default=16, le=65_535)
    sequences: Positive = 4
    sequence_length: Positive = 128
    order: Literal["samples", "steps"] = "samples"
    """What each epoch shuffles. "steps": a step's microbatches keep their samples for good, as codec `delta` needs."""

    @property
    def tokens_per_microbatch(self) -> int:
        return self.sequences * self.sequence_length

    @property
    def tokens_per_step(self) -> int:
        return self.microbatches * self.tokens_per_microbatch


class OptimizerSection(Section):
    """AdamW with linear warm-up and cosine decay to `min_ratio`; one clip by the global norm."""

    learning_rate: float = Field(default=1e-3, gt=0)
    warmup_steps: int = Field(default=10, ge=0)
    min_ratio: Fraction = 0.1
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)


class CodecSection(Section):
    """What crosses a boundary: `forward` activations, `backward` their gradients (names: docs/codecs.md)."""

    forward: str = "int8"
    backward: str = "int8"

    @property
    def remembers(self) -> Literal["", "samples", "places"]:
        """What activations build on: their samples' last visit, or that of their place in the step before."""
        family = self.forward.partition(":")[0]
        return "samples" if family == "delta" else "places" if family in ("ef21", "ef", "ef-mixed") else ""

    @property
    def mutual(self) -> bool:
        """Whether both ends remember, or the sender alone."""
        return self.forward.partition(":")[0] in ("delta", "ef21")


class SumSection(Section):
    """How gradients are added. `exact`: each microbatch's gradient is rounded to multiples of 2^-grid_bits in fp64."""

    mode: Literal["exact", "fp32"] = "exact"
    grid_bits: int = Field(default=30, ge=8, le=48)


class Shard(Section):
    """One file of token ids (little-endian uint16 or uint32)."""

    file: str
    sha256: Sha256
    tokens: Positive


class DataSection(Section):
    """The prepared corpus, by hash. Written by `swarm-peer prepare`, read back by `RunFile.resolve`."""

    name: str = "wikipedia-leads"
    licence: str = ""
    kind: Literal["text", "images"] = "text"
    tokenizer_sha256: MaybeSha256 = ""
    """Empty for images."""
    vocab_size: Positive
    pixels: int = Field(default=0, ge=0)
    """Of an image; its class follows them in the row of ids. 0 for text."""
    classes: int = Field(default=0, ge=0)
    dtype: Literal["uint16", "uint32"] = "uint16"
    train: tuple[Shard, ...]
    heldout: tuple[Shard, ...]
    unigram_entropy: float = Field(gt=0)
    """Entropy of the held-out tokens under the training split's unigram counts (add-one), nats per token.

    Of images: that of their classes, nats per image.
    """
    bytes_per_token: float = Field(default=0.0, ge=0)
    """UTF-8 bytes of held-out text per held-out token: turns nats per token into bits per byte. 0 for images."""

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        text = self.kind == "text"
        if text != bool(self.tokenizer_sha256) or text != bool(self.bytes_per_token):
            raise ValueError(f"data.kind = {self.kind!r}: text has a tokenizer and bytes in a token, images have none")
        if text == bool(self.pixels) or text == bool(self.classes):
            raise ValueError(f"data.kind = {self.kind!r}: images have pixels and classes, text has none")
        return self


class InitialSection(Section):
    """Where version 0 comes from: imported parameters by hash (`swarm-peer import`), or nothing but run.seed."""

    sha256: MaybeSha256 = ""
    """Of all parameters by name (swarm/state/initial.py), whatever the cuts. Empty: initialised from run.seed."""
    digests: tuple[Sha256, ...] = ()
    """State digest of version 0 by stage, so that whoever takes one up can check it. Empty with an empty `sha256`."""


class TimingSection(Section):
    """One budget; every deadline is derived from it and from measured quantiles (swarm/protocol/deadlines.py)."""

    step_budget_s: float = Field(default=60.0, gt=0)
    recruit_after_s: float = Field(default=10.0, ge=0)


class CheckpointSection(Section):
    every: Positive = 10
    keep: Positive = 3


class EvaluationSection(Section):
    every: int = Field(default=10, ge=0, description="0: never")
    microbatches: Positive = Field(default=4, le=65_535)
    sample_tokens: int = Field(default=24, ge=0, le=4096)
    prompt: str = "The "


class SwarmSection(Section):
    """How many peers a stage wants before step 0 opens; more stand by."""

    replicas: Positive = 2
    start_timeout_s: float = Field(
        default=600.0, gt=0, description="then start with what is there, if every stage is held"
    )


class RunSection(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "swarm"
    seed: int = Field(default=1337, ge=0, lt=2**63)
    steps: Positive = 30


class _Tables(Section):
    """Tables shared by RUN.toml and the manifest."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    batch: BatchSection = BatchSection()
    optimizer: OptimizerSection = OptimizerSection()
    codec: CodecSection = CodecSection()
    sums: SumSection = SumSection()
    timing: TimingSection = TimingSection()
    checkpoint: CheckpointSection = CheckpointSection()
    evaluation: EvaluationSection = EvaluationSection()
    swarm: SwarmSection = SwarmSection()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch.sequence_length > self.model.context:
            raise ValueError(
                f"batch.sequence_length = {self.batch.sequence_length} exceeds model.context = {self.model.context}"
            )
        if self.model.kind == "resnet":
            if math.isqrt(self.batch.sequence_length) ** 2 != self.batch.sequence_length:
                raise ValueError(
                    f"batch.sequence_length = {self.batch.sequence_length} is no square: "
                    'model.kind = "resnet" takes square images, such as 64 for 8 × 8 pixels'
                )
            if self.evaluation.every and self.evaluation.sample_tokens:
                raise ValueError(
                    f"evaluation.sample_tokens = {self.evaluation.sample_tokens}: "
                    'model.kind = "resnet" generates nothing; set it to 0'
                )
        if self.codec.remembers == "samples" and self.batch.order != "steps":
            raise ValueError(
                f'codec.forward = "{self.codec.forward}" sends the change since a sample was last visited, so samples '
                f'must come together again: batch.order = "{self.batch.order}", set batch.order = "steps"'
            )
        largest_loss = self.batch.tokens_per_step * math.log(self.model.vocab_size + 1)
        if self.sums.mode == "exact" and 4 * largest_loss > 2.0 ** (53 - self.sums.grid_bits):
            fits = int(53 - math.log2(4 * largest_loss))
            raise ValueError(
                f"sums.grid_bits = {self.sums.grid_bits} leaves no room for the loss of {self.batch.tokens_per_step} "
                f"tokens; at most {fits} bits fit"
            )
        return self

    @property
    def targets_per_microbatch(self) -> int:
        """What the loss of a microbatch is summed over: its tokens, or its images."""
        return self.batch.sequences if self.model.kind == "resnet" else self.batch.tokens_per_microbatch

    @property
    def targets_per_step(self) -> int:
        return self.batch.microbatches * self.targets_per_microbatch


class RunManifest(_Tables):
    """The resolved, hashed description of a run. Two runs with different manifests can never mix."""

    protocol_version: int = PROTOCOL_VERSION
    subspace_id: str = ""
    """`ModelSection.subspace_id`, as the organiser's release makes it."""
    data: DataSection
    initial: InitialSection = InitialSection()

    @model_validator(mode="after")
    def _same_subspace(self) -> Self:
        if self.subspace_id != self.model.subspace_id:
            raise ValueError(
                f"subspace_id = {self.subspace_id[:16] or 'none'}, but this release makes "
                f"{self.model.subspace_id[:16] or 'none'} of the model's keys: coefficients would mean something else "
                "on the two sides of a boundary; install the release the organiser names"
            )
        return self

    @model_validator(mode="after")
    def _initial_fits(self) -> Self:
        initial = self.initial
        _check_importable(self.model, initial.sha256)
        if len(initial.digests) != (self.model.stages if initial.sha256 else 0):
            raise ValueError(
                f"initial.digests names {len(initial.digests)} states for {self.model.stages} stages and "
                f"initial.sha256 = {initial.sha256[:16] or 'none'}: it takes one digest for each stage, or neither"
            )
        return self

    @model_validator(mode="after")
    def _data_fits(self) -> Self:
        wanted = "images" if self.model.kind == "resnet" else "text"
        if self.data.kind != wanted:
            raise ValueError(
                f'model.kind = "{self.model.kind}" trains on {wanted}, but the corpus {self.data.name} holds '
                f"{self.data.kind}: prepare another (`swarm-peer prepare`), or set model.kind"
            )
        if self.data.pixels and self.data.pixels != self.batch.sequence_length:
            raise ValueError(
                f"the images of {self.data.name} have {self.data.pixels} pixels: "
                f"set batch.sequence_length = {self.data.pixels}, not {self.batch.sequence_length}"
            )
        if self.data.classes > self.model.classes:
            raise ValueError(
                f"the images of {self.data.name} are of {self.data.classes} classes but model.classes = "
                f"{self.model.classes}; set model.classes = {self.data.classes}"
            )
        if self.data.vocab_size > self.model.vocab_size:
            raise ValueError(
                f"the tokenizer has {self.data.vocab_size} tokens but model.vocab_size = {self.model.vocab_size}; "
                f"set model.vocab_size = {self.data.vocab_size}"
            )
        need = self.batch.tokens_per_microbatch + self.batch.sequences
        have = sum(shard.tokens for shard in self.data.train)
        if have < need:
            raise ValueError(f"the training split has {have} tokens; one microbatch needs {need}")
        if self.batch.order == "steps" and self.step_blocks < 1:
            raise ValueError(
                f'batch.order = "steps": the training split has {self.windows} samples, one step takes '
                f"{self.batch.microbatches * self.batch.sequences}; lower batch.microbatches or batch.sequences"
            )
        return self

    @property
    def windows(self) -> int:
        """Samples of the training split."""
        return self.samples(sum(shard.tokens for shard in self.data.train))

    def samples(self, tokens: int) -> int:
        """How many samples a split of so many tokens holds."""
        return (tokens + self.sample_stride - self.batch.sequence_length - 1) // self.sample_stride

    @property
    def sample_stride(self) -> int:
        """Tokens from one sample to the next: the last label of a text is the first token of the next."""
        return self.batch.sequence_length + (self.data.kind == "images")

    @property
    def step_blocks(self) -> int:
        """Steps of one epoch with batch.order = "steps"."""
        return self.windows // (self.batch.microbatches * self.batch.sequences)

    def canonical(self) -> bytes:
        """The bytes that are hashed, signed and sent: JSON, keys sorted, no spaces."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()

    @property
    def hash(self) -> str:
        """SHA-256 of `canonical()`, hex: the run hash."""
        return hashlib.sha256(self.canonical()).hexdigest()

    @classmethod
    def from_canonical(cls, raw: bytes) -> Self:
        """Parse bytes from the network. Raises ManifestError."""
        if len(raw) > MAX_MANIFEST_BYTES:
            raise ManifestError(f"manifest of {len(raw)} bytes is larger than the limit of {MAX_MANIFEST_BYTES}")
        try:
            manifest = cls.model_validate(json.loads(raw))
        except (ValidationError, ValueError, RecursionError) as error:
            raise ManifestError(f"manifest cannot be read: {explain(error)}") from None
        if manifest.protocol_version != PROTOCOL_VERSION:
            raise ManifestError(
                f"the run speaks protocol version {manifest.protocol_version}, this program {PROTOCOL_VERSION}: "
                "install the release the organiser names"
            )
        return manifest


class RunFile(_Tables):
    """RUN.toml as an organiser writes it. Directories are local and not part of the hash."""

    class Data(Section):
        directory: str = "data"

    class Initial(Section):
        sha256: MaybeSha256 = ""
        directory: str = "parameters"

    data: Data = Data()
    initial: Initial = Initial()

    @model_validator(mode="after")
    def _initial_fits(self) -> Self:
        _check_importable(self.model, self.initial.sha256)
        return self

    def resolve(self, corpus: DataSection, digests: tuple[str, ...] = ()) -> RunManifest:
        """The manifest of this run over a prepared corpus. Raises ManifestError.

        `digests`: of version 0 by stage, when `initial` names imported parameters.
        """
        tables = {name: getattr(self, name) for name in _Tables.model_fields}
        try:
            initial = InitialSection(sha256=self.initial.sha256, digests=digests)
            return RunManifest(**tables, subspace_id=self.model.subspace_id, data=corpus, initial=initial)
        except ValidationError as error:
            raise ManifestError(explain(error)) from None


class SignedManifest(Section):
    """A manifest with the organiser's signature over its canonical bytes."""

    manifest: bytes
    public_key: bytes
    signature: bytes

    @classmethod
    def sign(cls, manifest: RunManifest, key: Ed25519PrivateKey) -> Self:
        raw = manifest.canonical()
        return cls(manifest=raw, public_key=key.public_key().public_bytes_raw(), signature=key.sign(_SIGNED + raw))

    def verify(self, run_hash: str | None = None, fingerprint: str | None = None) -> RunManifest:
        """Check signature, organiser (`fingerprint`) and `run_hash`, then parse. Raises ManifestError."""
        actual = hashlib.sha256(self.manifest).hexdigest()
        if run_hash is not None and actual != run_hash:
            raise ManifestError(f"manifest hashes to {actual[:16]}…, the invite names run {run_hash[:16]}…")
        if fingerprint is not None and fingerprint != key_fingerprint(self.public_key):
            raise ManifestError(
                f"manifest is signed by {key_fingerprint(self.public_key)}, the invite names organiser {fingerprint}"
            )
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(self.signature, _SIGNED + self.manifest)
        except (InvalidSignature, ValueError):
            raise ManifestError(
                f"manifest {actual[:16]}… has a bad signature for key {key_fingerprint(self.public_key)}"
            ) from None
        return RunManifest.from_canonical(self.manifest)


def key_fingerprint(public_key: bytes) -> str:
    """What people compare: 16 hex digits of SHA-256 over the raw Ed25519 public key, in groups of four."""
    digest = hashlib.sha256(public_key).hexdigest()[:16]
    return "-".join(digest[i : i + 4] for i in range(0, 16, 4))


def load_run_file(path: Path, overrides: Iterable[str] = ()) -> RunFile:
    """Read RUN.toml and apply `a.b=c` overrides (values in TOML syntax, or bare strings). Raises ManifestError."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"no run file {path}: make one with `swarm-peer init {path}`") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} is not valid TOML: {error}") from None
    for override in overrides:
        _override(tree, override)
    _reject_unknown_keys(tree, RunFile, str(path))
    try:
        return RunFile.model_validate(tree)
    except ValidationError as error:
        raise ManifestError(f"{path}: {explain(error)}") from None


def _check_importable(model: ModelSection, sha256: str) -> None:
    if sha256 and model.kind != "llama":
        raise ValueError(
            f"initial.sha256 = {sha256[:16]}… names imported parameters, which are those of a language model, but "
            f'model.kind = "{model.kind}": clear initial.sha256'
        )
    beyond = [*model.acts_at_cuts]
    if model.residual != "dense":
        beyond.append(f'model.residual = "{model.residual}"')
    elif model.anchored and not beyond:
        beyond.append(f'model.anchor = "{model.anchor}"')
    if sha256 and beyond:
        raise ValueError(
            f"initial.sha256 = {sha256[:16]}… names imported parameters, which are those of a plain dense model, but "
            f"{' and '.join(beyond)}: leave that out, or clear initial.sha256"
        )


_SIGNED = b"swarm-peer manifest v1\n"


def _override(tree: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    keys = name.strip().split(".")
    if not separator or len(keys) != 2 or not all(keys):
        raise ManifestError(f"--set {override!r}: expected table.key=value, such as --set run.steps=100")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    table = tree.setdefault(keys[0], {})
    if not isinstance(table, dict):
        raise ManifestError(f"--set {override!r}: {keys[0]} is not a table")
    table[keys[1]] = value


def _reject_unknown_keys(tree: Mapping[str, Any], model: type[BaseModel], where: str, prefix: str = "") -> None:
    for key, value in tree.items():
        field = model.model_fields.get(key)
        if field is None:
            near = difflib.get_close_matches(key, model.model_fields, n=1, cutoff=0.0)
            raise ManifestError(f"{where}: unknown key {prefix}{key}; the nearest known key is {prefix}{near[0]}")
        inner = field.annotation
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, BaseModel):
            _reject_unknown_keys(value, inner, where, f"{prefix}{key}.")


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
