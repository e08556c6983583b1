"""The error for texts, tokenizers and prepared folders."""

from __future__ import annotations


class CorpusError(ValueError):
    """A text, tokenizer or shard cannot be used; the message names the file, the place in it and the fix."""
