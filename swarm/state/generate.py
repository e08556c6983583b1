"""Generate text with the whole trained model in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from swarm import codecs
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import AUTO, RunManifest
from swarm.state.error import StateError
from swarm.state.whole import Source, WholeModel, whole_parameters


def generate(
    source: Source,
    manifest: RunManifest,
    tokenizer: Tokenizer,
    prompt: str,
    tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    version: int | None = None,
) -> str:
    """Continue `prompt` by at most `tokens` tokens; stops at an end token.

    At the cuts, activations are encoded and decoded with the run's codec, because the model was trained with it. If the
    run chooses codecs automatically, they stay unchanged.

    `temperature` 0: take the most likely token; else draw it with `seed`, equally on all machines of one kind. An empty
    prompt starts a new text. The model sees the last `model.context` tokens. Raises StateError, CorpusError.
    """
    if tokens < 0 or not temperature >= 0.0:
        raise StateError("generate", f"tokens = {tokens} and temperature = {temperature} must not be negative")
    if not 0 <= seed < 1 << 63:
        raise StateError("generate", f"seed = {seed} must be from 0 to 2^63 − 1")
    if any("\ud800" <= letter <= "\udfff" for letter in prompt):
        raise StateError("generate", f"the prompt {prompt!r:.80} is not text in UTF-8: give it in that encoding")
    codec = None if manifest.codec.forward == AUTO else codecs.get(manifest.codec.forward)
    model = WholeModel(whole_parameters(source, manifest, version), manifest.model, codec)
    ids = tokenizer.prompt(prompt)
    if max(ids) >= manifest.model.vocab_size:
        raise StateError(
            "generate",
            f"the prompt has token {max(ids)}, but the model has {manifest.model.vocab_size} tokens: is it the right "
            "tokenizer?",
        )
    new = continue_ids(model, ids, tokens, manifest.model.context, tokenizer.vocab_size, temperature, seed)
    for token in new:
        if token in tokenizer.ends:
            break
        ids.append(token)
    return tokenizer.decode(ids)


@torch.inference_mode()
def continue_ids(
    model: Callable[[torch.Tensor], torch.Tensor],
    ids: list[int],
    tokens: int,
    context: int,
    vocab_size: int,
    temperature: float,
    seed: int,
) -> Iterator[int]:
    """Yield `tokens` new token ids after `ids`. Ids from `vocab_size` on, which are only padding, are never drawn."""
    generator = torch.Generator().manual_seed(seed)
    seen = list(ids)
    for _ in range(tokens):
        window = torch.tensor([seen[-context:]])  # (1, time)
        logits = model(window)[0, -1, :vocab_size].double()
        if temperature == 0.0:
            token = int(logits.argmax())
        else:
            weights = torch.softmax((logits - logits.max()) / temperature, dim=0)  # finite at any temperature
            token = int(torch.multinomial(weights, 1, generator=generator))
        seen.append(token)
        yield token
