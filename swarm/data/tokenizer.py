"""The tokenizer: byte-level BPE, trained here or read from a `tokenizer.json`. The manifest contains its SHA-256.

A document is the tokens that begin a text, if the model has such tokens, then its text, then the end-of-text token.
Training is deterministic: the same texts in the same order give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from swarm.data import end_of_text
from swarm.data.corpus_error import CorpusError
from swarm.data.lfs_pointer import pointer_advice
from swarm.events.wording import amount

END_OF_TEXT = "<|endoftext|>"
"""The token between documents, in tokenizers trained here."""

_KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "<|im_end|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
_BYTES = 256
_MAX_BYTES = 1 << 28
_MAX_TOKENS = 1 << 24
"""Largest number of tokens of a tokenizer; the same limit as for model.vocab_size."""


class Tokenizer:
    """Converts text to token ids and back.

    `raw`: the tokenizer.json; `sha256`: its hash, hex; `end_of_text`: the id between documents; `ends`: all ids at
    which the model stops, `end_of_text` first; `begin`: the ids before a text, such as that of `<s>`, if the model was
    trained with them, otherwise empty; `special_tokens`: whether the name of a special token within a text, such as
    `<|im_start|>`, becomes this token.
    """

    def __init__(self, raw: bytes, origin: str = "tokenizer.json", special_tokens: bool = False) -> None:
        """Parse a tokenizer.json. Raises CorpusError naming `origin`."""
        try:
            inner = tokenizers.Tokenizer.from_str(raw.decode("utf-8"))
        except BaseException as error:
            if not is_of_library(error):
                raise
            raise CorpusError(f"{origin} is not a tokenizer.json: {pointer_advice(raw) or error}") from None
        inner.no_truncation()
        inner.no_padding()
        if getattr(inner.model, "dropout", None):  # the same text would have other tokens each time
            inner.model.dropout = None
        # Unless the user trusts the texts, the name of a special token within one must not be encoded as this token.
        inner.encode_special_tokens = not special_tokens
        self.special_tokens = special_tokens
        names = [each.content for each in inner.get_added_tokens_decoder().values() if each.special]
        self._specials = re.compile("|".join(re.escape(name) for name in names if len(name.strip()) > 1) or "(?!)")
        """Matches the names of special tokens."""
        for told in end_of_text.specials(raw, origin):
            _check_number(inner, told.token, told.number, origin)
        vocabulary = inner.get_vocab(with_added_tokens=True)
        tree = json.loads(raw)
        end = end_of_text.marked(tree)
        ends = [name for name in _KNOWN_ENDS if name in vocabulary]
        if end is None and not ends:
            raise CorpusError(
                f"{origin} has no known end-of-text token: put the model's config.json into the same folder, or name "
                "the token with --end-of-text"
            )
        if (highest := max(vocabulary.values())) >= _MAX_TOKENS:
            raise CorpusError(
                f"{origin} has token id {highest}; the largest one allowed is {_MAX_TOKENS - 1}: use another tokenizer"
            )
        self._inner = inner
        self._origin = origin
        self.raw = raw
        self.sha256 = hashlib.sha256(raw).hexdigest()
        self.vocab_size = highest + 1
        self.end_of_text = vocabulary[ends[0]] if end is None else end
        self.ends = (self.end_of_text, *end_of_text.also_marked(tree))
        self.begin = _beginning(inner)
        if self.begin and (first := max(self.begin)) > highest:
            raise CorpusError(f"{origin} begins texts with token {first}, but has tokens up to {highest}: correct it")
        self.guesses = () if end is not None or len(ends) < 2 else tuple(ends)
        """Tokens that may end a text, if it is not known which of them does. Otherwise empty."""
        model = tree["model"]
        named = model.get("unk_token")
        self.unknown: int | None = vocabulary.get(named) if isinstance(named, str) else _number(model.get("unk_id"))
        """The id of the unknown token, which replaces text without a token; None if there is none."""
        self._marks = {
            number: name
            for number in (*self.ends, *self.begin)
            if number != self.unknown and (name := inner.id_to_token(number)) is not None and len(name.strip()) > 1
        }
        """The tokens that end and begin texts, by id. A text must not contain them."""

    @classmethod
    def load(cls, path: Path, special_tokens: bool = False) -> Tokenizer:
        """Read a tokenizer.json. Raises OSError, CorpusError."""
        return cls(read_whole(path), str(path), special_tokens)

    @classmethod
    def of_model(cls, path: Path, end: str | None = None, special_tokens: bool = False) -> Tokenizer:
        """Read a model's tokenizer.json. The token that ends a text is `end`, or named by other files in its folder.

        Raises OSError; CorpusError, also if it is not known which of several tokens ends a text.
        """
        raw = read_whole(path)
        if end is not None:
            raw = end_of_text.mark(raw, end_of_text.named(end, raw, str(path)).number)
            return cls(raw, str(path), special_tokens)
        told = end_of_text.told_beside(path, raw)
        if told is not None and end_of_text.marked(json.loads(raw)) is None:
            raw = end_of_text.mark(raw, told.number, told.others)
        found = cls(raw, str(path), special_tokens)
        if found.guesses:
            raise CorpusError(
                f"{path} has {', '.join(found.guesses)}, and no file says which of them ends a text: put the model's "
                "config.json into the same folder, or name the token with --end-of-text"
            )
        return found

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Byte-level BPE with at most `vocab_size` tokens: 256 bytes, end of text, merges. Raises CorpusError."""
        if vocab_size <= _BYTES:
            raise CorpusError(
                f"vocab_size = {vocab_size}: too small; 256 bytes and an end-of-text token need at least {_BYTES + 1}"
            )
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(texts, trainer)
        return cls(inner.to_str().encode("utf-8"), "the trained tokenizer")

    @property
    def vocabulary_sha256(self) -> str:
        """Hash of all tokens with their ids, hex: equal for the same tokenizer from another file or of another release.

        A model that was trained with these tokens can read the ids, whatever else the file says: which token ends a
        text, how it is formatted, or settings for padding.
        """
        tokens = sorted(self._inner.get_vocab(with_added_tokens=True).items(), key=lambda item: item[::-1])
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()

    def prompt(self, text: str) -> list[int]:
        """Token ids of a text that a model continues. An empty one begins after the end of another text.

        Raises CorpusError.
        """
        return [*self.begin, *self.encode([text])[0]] or [self.end_of_text]

    @property
    def separators(self) -> tuple[int, ...]:
        """The ids before a document that follows another one. A token that ends and begins texts is not repeated."""
        return () if self.begin == (self.end_of_text,) else self.begin

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text. Without `special_tokens`, none of them is special. Raises CorpusError for a text that
        cannot be encoded.
        """
        encoded = self._encode(texts)
        if self.special_tokens:
            return encoded
        for at, ids in enumerate(encoded):
            if not self._marks.keys().isdisjoint(ids):
                encoded[at] = self._without_marks(texts[at])
        return encoded

    def special_in(self, text: str) -> str | None:
        """The first name of a special token in a text that `encode` takes for plain characters; None if none is."""
        found = None if self.special_tokens else self._specials.search(text)
        return None if found is None else found[0]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            return [found.ids for found in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]
        except BaseException as error:
            if not is_of_library(error):
                raise
            raise CorpusError(f"{self._origin} cannot encode the text: {error}") from None

    def _without_marks(self, text: str) -> list[int]:
        """The token ids of a text that has the name of an end-of-text token, such as `</s>`, in it.

        The vocabulary of a Unigram or word model contains this name like a word, so the model itself finds the token,
        and the document would end in its middle. The name is cut after its first character.
        """
        begin, parts = 0, []
        for found in re.finditer("|".join(map(re.escape, self._marks.values())), text):
            parts.append(text[begin : found.start() + 1])
            begin = found.start() + 1
        parts.append(text[begin:])
        return [number for ids in self._encode(parts) for number in ids if number not in self._marks]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, without end-of-text tokens; bytes that are not UTF-8 become U+FFFD."""
        return self._inner.decode(list(ids), skip_special_tokens=True)

    def decode_all(self, texts: Sequence[Sequence[int]]) -> list[str]:
        """The texts of several lists of token ids that `encode` has made."""
        return self._inner.decode_batch([list(ids) for ids in texts], skip_special_tokens=not self.special_tokens)


def read_whole(path: Path) -> bytes:
    """The content of a tokenizer.json. Raises OSError; CorpusError for a file that is too large to be one."""
    with path.open("rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise CorpusError(f"{path} is larger than {amount(_MAX_BYTES)}: it is no tokenizer.json; name the right file")
    return raw


def _number(value: object) -> int | None:
    return value if type(value) is int else None


def _check_number(inner: tokenizers.Tokenizer, token: str, number: int, origin: str) -> None:
    """Refuse an added token to which the library gives another id than the file does. Raises CorpusError.

    The library numbers added tokens anew if their ids overlap with those of the vocabulary, or leave a gap. Then a text
    would end with a token of another meaning.
    """
    if token and (given := inner.token_to_id(token)) != number:
        raise CorpusError(
            f"{origin} gives the added token {token!r} the id {number}, but the tokenizers library gives it "
            f"{given}: correct the ids under added_tokens, which must follow those of the vocabulary without a gap"
        )


def _beginning(inner: tokenizers.Tokenizer) -> tuple[int, ...]:
    """The ids that the post-processor puts before a text. So the model was trained, and programs that use it do so."""
    found = inner.encode("a", add_special_tokens=True)
    first = next((at for at, sequence in enumerate(found.sequence_ids) if sequence is not None), 0)
    return tuple(found.ids[:first])


def is_of_library(error: BaseException) -> bool:
    """Whether the tokenizers library may have raised this error: a bare Exception, or a PanicException."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
