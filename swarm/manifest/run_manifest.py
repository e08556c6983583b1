"""The manifest of a run: its complete description, with a canonical form and a hash."""

from __future__ import annotations

import hashlib
import json
from typing import Self

from pydantic import ValidationError, model_validator

from swarm.manifest.data import DataSection, InitialSection
from swarm.manifest.model import ModelSection
from swarm.manifest.section import ManifestError, explain
from swarm.manifest.tables import Tables

PROTOCOL_VERSION = 17
"""Peers with different protocol versions refuse each other in the handshake, with a message that names both."""

MAX_MANIFEST_BYTES = 1 << 20


class RunManifest(Tables):
    """The resolved, hashed description of a run. Two runs with different manifests can never mix."""

    protocol_version: int = PROTOCOL_VERSION
    subspace_id: str = ""
    """`ModelSection.subspace_id` as computed by the organiser's release."""
    data: DataSection
    initial: InitialSection = InitialSection()

    @model_validator(mode="after")
    def _same_subspace(self) -> Self:
        if self.subspace_id != self.model.subspace_id:
            raise ValueError(
                f"subspace_id = {self.subspace_id[:16] or 'none'}, but this release computes "
                f"{self.model.subspace_id[:16] or 'none'} from the model's keys: the two sides of a boundary would "
                "interpret coefficients differently; install the release that the organiser uses"
            )
        return self

    @model_validator(mode="after")
    def _initial_fits(self) -> Self:
        initial = self.initial
        check_importable(self.model, initial.sha256)
        if len(initial.digests) != (self.model.stages if initial.sha256 else 0):
            raise ValueError(
                f"initial.digests names {len(initial.digests)} states for {self.model.stages} stages and "
                f"initial.sha256 = {initial.sha256[:16] or 'none'}: give one digest for each stage, or leave out both"
            )
        return self

    @model_validator(mode="after")
    def _data_fits(self) -> Self:
        wanted = "images" if self.model.kind == "resnet" else "text"
        if self.data.kind != wanted:
            raise ValueError(
                f'model.kind = "{self.model.kind}" trains on {wanted}, but the corpus {self.data.name} contains '
                f"{self.data.kind}: prepare another corpus (`swarm-peer prepare`), or set model.kind"
            )
        if self.data.pixels and self.data.pixels != self.batch.sequence_length:
            raise ValueError(
                f"the images of {self.data.name} have {self.data.pixels} pixels: "
                f"set batch.sequence_length = {self.data.pixels}, not {self.batch.sequence_length}"
            )
        if self.data.classes > self.model.classes:
            raise ValueError(
                f"the images of {self.data.name} have {self.data.classes} classes but model.classes = "
                f"{self.model.classes}; set model.classes = {self.data.classes}"
            )
        if self.data.vocab_size > self.model.vocab_size:
            what = "tokenizer has" if wanted == "text" else f"images of {self.data.name}, levels and classes, take"
            raise ValueError(
                f"the {what} {self.data.vocab_size} ids but model.vocab_size = {self.model.vocab_size}; "
                f"set model.vocab_size = {self.data.vocab_size}"
            )
        need = self.batch.ids_per_microbatch
        have = sum(shard.tokens for shard in self.data.train)
        if have < need:
            raise ValueError(
                f"the training split has {have} tokens; one microbatch needs {need}: prepare more text, or lower "
                "batch.sequences"
            )
        if self.batch.order == "steps" and self.step_blocks < 1:
            raise ValueError(
                f'batch.order = "steps": the training split has {self.windows} samples, one step takes '
                f"{self.batch.microbatches * self.batch.sequences}; lower batch.microbatches or batch.sequences"
            )
        return self

    @property
    def windows(self) -> int:
        """Number of samples in the training split."""
        return self.samples(sum(shard.tokens for shard in self.data.train))

    def samples(self, tokens: int) -> int:
        """Number of samples in a split of this number of tokens."""
        return (tokens + self.sample_stride - self.batch.sequence_length - 1) // self.sample_stride

    @property
    def sample_stride(self) -> int:
        """Tokens from the start of one sample to the next. In text, the last label is the next sample's first token."""
        return self.batch.sequence_length + (self.data.kind == "images")

    @property
    def step_blocks(self) -> int:
        """Number of steps in one epoch with batch.order = "steps"."""
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
                f"the run uses protocol version {manifest.protocol_version}, this program {PROTOCOL_VERSION}: "
                "install the release that the organiser uses"
            )
        return manifest


def check_importable(model: ModelSection, sha256: str) -> None:
    if sha256 and model.kind != "llama":
        raise ValueError(
            f"initial.sha256 = {sha256[:16]}… names imported parameters, which belong to a language model, but "
            f'model.kind = "{model.kind}": clear initial.sha256'
        )
    beyond = [*model.acts_at_cuts]
    if model.token_means:
        beyond.append("model.token_means = true")
    if model.residual != "dense":
        beyond.append(f'model.residual = "{model.residual}"')
    elif model.anchored and not beyond:
        beyond.append(f'model.anchor = "{model.anchor}"')
    if sha256 and beyond:
        raise ValueError(
            f"initial.sha256 = {sha256[:16]}… names imported parameters, which belong to a plain dense model, but "
            f"{' and '.join(beyond)}: leave this out, or clear initial.sha256"
        )
