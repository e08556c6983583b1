"""The tables [data] and [initial] of a manifest: hashes of the corpus and of imported parameters."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

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
    """Hash of the tokenizer; empty for images."""
    special_tokens: bool = False
    """Whether the names of special tokens within texts were encoded as these tokens, not as plain characters."""
    vocab_size: Count
    pixels: int = Field(default=0, ge=0)
    """Number of pixels of an image; in the token ids, its class follows them. 0 for text."""
    classes: int = Field(default=0, ge=0)
    dtype: Literal["uint16", "uint32"] = "uint16"
    train: tuple[Shard, ...]
    heldout: tuple[Shard, ...]
    unigram_entropy: float = Field(gt=0)
    """Cross-entropy of the held-out tokens under the unigram counts (add-one) of the training split, nats per token.

    For images: of their classes, nats per image.
    """
    bytes_per_token: float = Field(default=0.0, ge=0)
    """UTF-8 bytes per token of the held-out text, to convert nats per token to bits per byte. 0 for images."""

    @model_validator(mode="after")
    def _kind_fits(self) -> Self:
        text = self.kind == "text"
        if text != bool(self.tokenizer_sha256) or text != bool(self.bytes_per_token):
            raise ValueError(
                f"data.kind = {self.kind!r}: text needs data.tokenizer_sha256 and data.bytes_per_token, "
                "images have neither"
            )
        if text == bool(self.pixels) or text == bool(self.classes):
            raise ValueError(f"data.kind = {self.kind!r}: images need data.pixels and data.classes, text has neither")
        return self

    @model_serializer(mode="wrap")
    def _as_before(self, tree: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `special_tokens` out unless it is true: corpora without it keep their bytes, and runs their hash."""
        found: dict[str, Any] = tree(self)
        return {key: value for key, value in found.items() if key != "special_tokens" or value}


class InitialSection(Section):
    """The parameters of version 0: imported ones by hash (`swarm-peer import`), or initialised from run.seed."""

    sha256: MaybeSha256 = ""
    """Hash of all parameters (swarm/state/initial.py), independent of the cuts. Empty: initialised from run.seed."""
    digests: tuple[Sha256, ...] = ()
    """State digest of version 0 for each stage, so that a peer can check the loaded state. Empty without `sha256`."""
