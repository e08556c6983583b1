"""Generation: deterministic, in the model's own words only."""

import json

import pytest
import tokenizers
import torch
from tokenizers import processors

from swarm import codecs
from swarm.data.end_of_text import mark
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import CodecSection, ModelSection, RunManifest
from swarm.models.kinds import build_stage
from swarm.state.error import StateError
from swarm.state.generate import continue_ids, generate
from swarm.state.whole import WholeModel, whole_parameters

States = dict[int, dict[str, torch.Tensor]]


@pytest.fixture
def tokenizer(tokenizer_path) -> Tokenizer:
    return Tokenizer.load(tokenizer_path)


def test_the_same_seed_gives_the_same_text(manifest: RunManifest, states: States, tokenizer: Tokenizer) -> None:
    def text(temperature: float, seed: int) -> str:
        return generate(states, manifest, tokenizer, "The ", 24, temperature, seed)

    assert text(0.0, 1) == text(0.0, 2)
    assert text(1.0, 1) == text(1.0, 1)
    assert len({text(1.0, seed) for seed in range(4)}) > 1
    assert text(1.0, 1).startswith("The ") and len(text(1.0, 1)) > len("The ")
    assert generate(states, manifest, tokenizer, "The ", 0) == "The "


def test_any_prompt_is_taken(manifest: RunManifest, states: States, tokenizer: Tokenizer) -> None:
    assert isinstance(generate(states, manifest, tokenizer, "", 4), str)
    long = "swarm " * 400  # far beyond the context
    assert generate(states, manifest, tokenizer, long, 3).startswith(long)
    for bad in ({"tokens": -1}, {"tokens": 1, "temperature": -0.5}, {"tokens": 1, "temperature": float("nan")}):
        with pytest.raises(StateError, match="must not be negative"):
            generate(states, manifest, tokenizer, "The ", **bad)
    with pytest.raises(StateError, match=r"prompt '\\udcff' is not text in UTF-8"):
        generate(states, manifest, tokenizer, "\udcff", 4)
    with pytest.raises(StateError, match=r"seed = 18446744073709551616 must be"):
        generate(states, manifest, tokenizer, "The ", 4, seed=2**64)


def test_a_prompt_begins_as_the_texts_of_the_model_do(
    manifest: RunManifest, states: States, tokenizer: Tokenizer
) -> None:
    inner = tokenizers.Tokenizer.from_str(tokenizer.raw.decode())
    begin = (inner.get_vocab_size() - 1,)  # any token will do
    name = inner.id_to_token(begin[0])
    inner.post_processor = processors.TemplateProcessing(single=[name, "$A"], special_tokens=[(name, begin[0])])
    beginning = Tokenizer(inner.to_str().encode())
    assert beginning.begin == begin
    model = WholeModel(whole_parameters(states, manifest), manifest.model, codecs.get(manifest.codec.forward))
    ids = [*begin, *tokenizer.encode(["The "])[0]]
    new = continue_ids(model, ids, 6, manifest.model.context, tokenizer.vocab_size, 0.0, 0)
    assert generate(states, manifest, beginning, "The ", 6) == tokenizer.decode([*ids, *new])


def test_it_stops_at_each_end_token(manifest: RunManifest, states: States, tokenizer: Tokenizer) -> None:
    model = WholeModel(whole_parameters(states, manifest), manifest.model, codecs.get(manifest.codec.forward))
    ids = tokenizer.prompt("The ")
    first, *_ = continue_ids(model, ids, 1, manifest.model.context, tokenizer.vocab_size, 0.0, 0)
    assert first != tokenizer.end_of_text
    tree = json.loads(tokenizer.raw)
    (end,) = tree["added_tokens"]
    name = next(token for token, number in tree["model"]["vocab"].items() if number == first)
    also = {**end, "id": first, "content": name, "special": False}
    raw = json.dumps({**tree, "added_tokens": [end, also]}).encode()
    assert generate(states, manifest, Tokenizer(raw), "The ", 6) != "The "
    assert generate(states, manifest, Tokenizer(mark(raw, end["id"], (first,))), "The ", 6) == "The "


def test_next_to_no_temperature_takes_the_likeliest(
    manifest: RunManifest, states: States, tokenizer: Tokenizer
) -> None:
    texts = {generate(states, manifest, tokenizer, "The ", 8, temperature) for temperature in (0.0, 1e-310, 5e-324)}
    assert len(texts) == 1


def test_a_model_that_learned_to_count_goes_on_counting() -> None:
    model = ModelSection(vocab_size=16, dim=32, layers=2, heads=2, kv_heads=1, ffn_dim=64, context=24, cuts=())
    module = build_stage(model, 0, seed=1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    starts = torch.arange(10)[:, None]
    tokens = (starts + torch.arange(13)) % 10
    for _ in range(60):
        optimizer.zero_grad()
        module.loss_sum(module(tokens[:, :-1]), tokens[:, 1:]).div(120).backward()
        optimizer.step()
    assert list(continue_ids(module, [3, 4, 5], 30, model.context, 10, 0.0, 0)) == [i % 10 for i in range(6, 36)]
    drawn = list(continue_ids(module, [3, 4, 5], 200, model.context, 10, 50.0, 0))
    assert set(drawn) == set(range(10))  # hot, but never an id that no text has


def test_a_subspace_model_generates(
    subspace_manifest: RunManifest, subspace_states: States, tokenizer: Tokenizer
) -> None:
    text = generate(subspace_states, subspace_manifest, tokenizer, "The ", 16)
    assert text.startswith("The ") and len(text) > len("The ")


def test_a_model_with_narrow_boundaries_generates(
    narrow_manifest: RunManifest, narrow_states: States, tokenizer: Tokenizer
) -> None:
    text = generate(narrow_states, narrow_manifest, tokenizer, "The ", 16)
    assert text.startswith("The ") and len(text) > len("The ")
    dull = {stage: {n: t * ("boundaries" not in n) for n, t in table.items()} for stage, table in narrow_states.items()}
    assert generate(dull, narrow_manifest, tokenizer, "The ", 16) != text, "the boundaries had no say"


def test_a_model_whose_receivers_refine_generates(
    refined_manifest: RunManifest, refined_states: States, tokenizer: Tokenizer
) -> None:
    text = generate(refined_states, refined_manifest, tokenizer, "The ", 16)

    def dull(name: str) -> bool:
        return "tables" in name or "refinements" in name

    without = {s: {n: t * (not dull(n)) for n, t in table.items()} for s, table in refined_states.items()}
    assert generate(without, refined_manifest, tokenizer, "The ", 16) != text, "the receivers had no say"


@pytest.mark.parametrize("codec", ["none", "topk:0.05"])
def test_activations_go_through_the_codec_of_the_run(
    manifest: RunManifest, states: States, tokenizer: Tokenizer, codec: str
) -> None:
    run = manifest.model_copy(update={"codec": CodecSection(forward=codec, backward="none")})
    model = run.model
    ids = tokenizer.encode(["The "])[0]
    with torch.inference_mode():
        tokens = torch.tensor([ids])
        x = tokens
        for stage in range(model.stages):
            module = build_stage(model, stage, seed=None)
            module.load_state_dict(whole_parameters(states, run), strict=False)
            x = module(x, tokens)
            if not module.last:
                x = codecs.get(codec).decode(codecs.get(codec).encode(x), x.shape)
    likeliest = int(x[0, -1, : tokenizer.vocab_size].argmax())
    assert generate(states, run, tokenizer, "The ", 1) == tokenizer.decode([*ids, likeliest])
