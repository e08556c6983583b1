"""[data] and [initial] of a manifest: corpus and imported parameters, by hash."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from swarm.manifest.section import Count, MaybeSha256, Section, Sha256


class Shard(Section):
    """One file of token ids (little-endian uint16 or uint32)."""

    file: str
    sha256: Sha256
    tokens: int = Field(gt=0, lt=1 << 53)


class DataSection(Section):
    """The prepared corpus, by hash. Written by `swarm-peer prepare`, read back by `RunFile.resolve`."""

    name: str = "wikipedia-leads"
    licence: str = ""
    kind: Literal["text", "images"] = "text"
    tokenizer_sha256: MaybeSha256 = ""
    """Empty for images."""
    vocab_size: Count
    pixels: int = Field(default=0, ge=0)
    """Pixels of an image; its class follows them in the row of ids. 0 for text."""
    classes: int = Field(default=0, ge=0)
    dtype: Literal["uint16", "uint32"] = "uint16"
    train: tuple[Shard, ...]
    heldout: tuple[Shard, ...]
    unigram_entropy: float = Field(gt=0)
    """Entropy of the held-out tokens under the training split's unigram counts (add-one), nats per token.

    For images: that of their classes, nats per image.
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
    """The source of version 0: imported parameters by hash (`swarm-peer import`), or run.seed alone."""

    sha256: MaybeSha256 = ""
    """Hash of all parameters by name (swarm/state/initial.py), whatever the cuts. Empty: initialised from run.seed."""
    digests: tuple[Sha256, ...] = ()
    """State digest of version 0 by stage, so that a peer that loads it can check it. Empty with an empty `sha256`."""
