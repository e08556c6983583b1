"""Builds a tokenizer.json from the metadata of a GGUF file: byte-level BPE with a known text splitter.

It builds only kinds of tokenizers that the metadata defines completely. For others, the error asks for the model's
tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from swarm.data.tokenizer import is_of_library
from swarm.state.error import StateError
from swarm.state.pretrained.gguf import GgufNumbers

_CONTROL, _USER_DEFINED = 3, 4
_ADVICE = "name the model's tokenizer.json with --tokenizer"


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_RARE = frozenset({*range(32), 0x7F, 0xC0, 0xC1, *range(0xF1, 0x100)} - {*b"\t\n\r"})
"""Control characters, and bytes that occur in no assigned character. SmolLM2 lacks some, and drops them from a text."""

_SPLITTERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"gpt-2": _gpt2, "smollm": _smollm}
"""The text splitters, by `tokenizer.ggml.pre`."""


def byte_level_bpe(metadata: Mapping[str, Any], path: Path) -> bytes:
    """A tokenizer.json from the metadata of the GGUF file `path`. Raises StateError naming --tokenizer."""
    kind, splitter = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or not isinstance(splitter, str) or splitter not in _SPLITTERS:
        raise StateError(
            path,
            f'its tokenizer (model "{kind!s:.40}", pre "{splitter!s:.40}") cannot be built from the file with certainty'
            f": {_ADVICE}",
        )
    tokens, merges = (_texts(metadata, f"tokenizer.ggml.{key}", path) for key in ("tokens", "merges"))
    kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    if not isinstance(kinds, list | GgufNumbers) or len(kinds) != len(tokens):
        raise StateError(path, f"tokenizer.ggml.token_type is not a list of {len(tokens)} numbers: {_ADVICE}")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise StateError(path, f"tokenizer.ggml.tokens contains some tokens twice: {_ADVICE}")
    absent = [byte for byte, letter in _letters().items() if letter not in vocabulary and byte not in _RARE]
    if absent:
        raise StateError(path, f"its tokenizer lacks byte {absent[0]:#04x}, so not all text has ids: {_ADVICE}")
    pairs = [tuple(merge.split(" ")) for merge in merges]
    try:
        inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))  # type: ignore[arg-type]
    except BaseException as error:
        if not is_of_library(error):
            raise
        raise StateError(path, f"its tokenizer cannot be built: {error}: {_ADVICE}") from None
    inner.pre_tokenizer = _SPLITTERS[splitter]()
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(_added(tokens, kinds, _CONTROL))
    inner.add_tokens(_added(tokens, kinds, _USER_DEFINED))
    if metadata.get("tokenizer.ggml.add_bos_token") is True:
        number = metadata.get("tokenizer.ggml.bos_token_id")
        if type(number) is not int or not 0 <= number < len(tokens):
            raise StateError(
                path, f"tokenizer.ggml.bos_token_id = {number!r:.40}, which is not one of its tokens: {_ADVICE}"
            )
        first = tokens[number]
        inner.post_processor = processors.TemplateProcessing(single=[first, "$A"], special_tokens=[(first, number)])
    return inner.to_str().encode("utf-8")


def _letters() -> dict[int, str]:
    """The character for each byte in byte-level BPE: the byte itself if printable, else the next one from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _added(tokens: list[str], kinds: Iterable[object], kind: int) -> list[AddedToken]:
    special = kind == _CONTROL
    return [AddedToken(t, special=special, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == kind]


def _texts(metadata: Mapping[str, Any], key: str, path: Path) -> list[str]:
    found = metadata.get(key)
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise StateError(path, f"{key} is not a list of texts: {_ADVICE}")
    return found
