"""A pretrained Llama from a file or folder: its shape, its tensors under our names, its tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from swarm.data.end_of_text import EndOfText, mark, specials
from swarm.data.tokenizer import Tokenizer, read_whole
from swarm.manifest import ModelSection, explain
from swarm.models.kinds import parameter_shapes
from swarm.state.error import StateError
from swarm.state.initial import LazyTensor

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class PretrainedModel:
    section: ModelSection
    """The shape of the model, without cuts."""
    tensors: dict[str, LazyTensor]
    """All tensors of `section`, by name."""
    tokenizer: bytes
    """The content of tokenizer.json."""
    vocabulary: str
    """`Tokenizer.vocabulary_sha256` of it."""
    notes: tuple[str, ...] = ()
    """Remarks for the user about how the model was read."""

    @property
    def tied(self) -> bool:
        """Whether embedding and head are one matrix."""
        return self.section.tie_embeddings

    def untied(self) -> PretrainedModel:
        """The same model with a separate head, which is a copy of the embedding."""
        section = self.section.model_copy(update={"tie_embeddings": False})
        return replace(self, section=section, tensors={**self.tensors, HEAD: self.tensors[EMBEDDING]})


_OLDER_TOKENIZERS = ("tokenizer.model", "vocab.json", "spiece.model", "tiktoken.model")
"""Files of older tokenizers, from which transformers makes a tokenizer.json."""
NO_PICKLE = (
    "pickled weights can run code and are never opened: save the model again with transformers' "
    "`model.save_pretrained(folder, safe_serialization=True)`, or take its safetensors or GGUF files"
)


def assemble(
    where: Path,
    shape: dict[str, object],
    layers: int,
    tensors: dict[str, LazyTensor],
    tied: bool,
    tokenizer: bytes,
    end: EndOfText | None,
) -> PretrainedModel:
    """Check that `tensors`, of `layers` layers, are those of a Llama of `shape` (keys of ModelSection); make the model.

    The numbers in a file's head are not trusted until the tensors confirm them. `end`: the end-of-text token according
    to the model's files. If the head differs from the embedding, both are kept even if the configuration says that they
    are tied, because the head was trained.
    """
    notes = []
    if tied and HEAD in tensors and not _same(tensors[HEAD], tensors.get(EMBEDDING)):
        tied = False
        notes.append(
            "the configuration says that embedding and head are tied, but the file has a different head: both were "
            "imported"
        )
    if end is not None:
        notes.append(f"a text ends with {end.token!r} (token {end.number}), as {end.told_by} says")
        if end.others:
            others = [each for each in specials(tokenizer, str(where)) if each.number in end.others]
            told = ", ".join(f"{each.token!r} (token {each.number})" for each in others)
            notes.append(f"`generate` stops at other end tokens too: {told}")
        tokenizer = mark(tokenizer, end.number, end.others)
    try:
        section = ModelSection(**{"cuts": (), "tie_embeddings": tied, **shape})  # type: ignore[arg-type]
    except ValueError as error:
        raise StateError(where, f"is not a Llama that this program supports: {explain(error)}") from None
    if tensors and not layers:
        raise StateError(
            where,
            f"its tensors have other names, such as {min(tensors)}; expected are names such as model.layers.0.mlp.…: "
            "save the model again as LlamaForCausalLM of transformers",
        )
    if section.layers != layers:
        raise StateError(where, f"says that it has {section.layers} layers, but has tensors of {layers} layers")
    if EMBEDDING in tensors and (shape_of := tensors[EMBEDDING].shape) != (section.vocab_size, section.dim):
        raise StateError(where, f"tensor {EMBEDDING} is {list(shape_of)}, expected {[section.vocab_size, section.dim]}")
    if tied:  # some files contain the shared matrix twice
        tensors = {name: tensor for name, tensor in tensors.items() if name != HEAD}
    wanted = parameter_shapes(section, 0)
    for name in sorted(wanted.keys() | tensors.keys()):
        if name not in tensors:
            fix = "; if the model has one matrix for both, set tie_word_embeddings = true in config.json"
            raise StateError(where, f"tensor {name} is missing{fix if name == HEAD else ''}")
        if name not in wanted:
            raise StateError(
                where, f"tensor {name} is not supported: this program's Llama has no biases and no additional tensors"
            )
        if tensors[name].shape != wanted[name]:
            raise StateError(where, f"tensor {name} is {list(tensors[name].shape)}, expected {list(wanted[name])}")
    built = Tokenizer(tokenizer, f"the tokenizer of {where}")
    if built.guesses:
        raise StateError(
            where,
            f"its tokenizer has {', '.join(built.guesses)}, but no eos_token_id says which of them ends a text: "
            "name it with --end-of-text",
        )
    known = built.vocab_size
    if known > section.vocab_size:
        raise StateError(
            where,
            f"its tokenizer has {known} tokens, but its embedding {section.vocab_size}: name the right --tokenizer",
        )
    return PretrainedModel(section, tensors, tokenizer, built.vocabulary_sha256, tuple(notes))


def _same(head: LazyTensor, embedding: LazyTensor | None) -> bool:
    return embedding is not None and head.shape == embedding.shape and torch.equal(head.load(), embedding.load())


def read_tokenizer(path: Path) -> bytes:
    """The content of a tokenizer.json. Raises StateError if the file does not exist, CorpusError if it is too large."""
    try:
        return read_whole(path)
    except FileNotFoundError:
        older = next((name for name in _OLDER_TOKENIZERS if (path.parent / name).exists()), None)
        make = (
            f"; the folder has only {older}: transformers' `AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder)` makes a tokenizer.json from it"
        )
        raise StateError(
            path, f"there is no such file: name the model's tokenizer.json with --tokenizer{make if older else ''}"
        ) from None


def count_layers(names: list[str]) -> int:
    """Number of different layers in tensor names; at most the number of names, whatever numbers they contain."""
    return len({name.split(".")[2] for name in names if name.startswith("model.layers.")})
