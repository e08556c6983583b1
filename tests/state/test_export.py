"""Exports: what others load computes what we trained."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
import safetensors.torch
import tokenizers
import torch
from tokenizers import processors

from swarm import atomic
from swarm.data.end_of_text import mark
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import CodecSection, ModelSection, RunManifest
from swarm.models.kinds import build_stage, parameter_shapes
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.export import export_hf, export_native
from swarm.state.layout import ShardMeta
from swarm.state.transfer import TransferHeader, iter_chunks
from swarm.state.whole import WholeModel, whole_parameters

States = dict[int, dict[str, torch.Tensor]]


def with_tokenizer(manifest: RunManifest, path: Path) -> RunManifest:
    """The run with a corpus of this tokenizer."""
    tokenizer = Tokenizer.load(path)
    changed = {"tokenizer_sha256": tokenizer.sha256, "vocab_size": tokenizer.vocab_size}
    return manifest.model_copy(update={"data": manifest.data.model_copy(update=changed)})


@pytest.mark.hf
@pytest.mark.parametrize("kind", ["", "subspace_", "means_", "anchored_", "tied_"])
def test_transformers_computes_the_same_logits(
    kind: str, request: pytest.FixtureRequest, tokenizer_path: Path, tmp_path: Path
) -> None:
    manifest: RunManifest = request.getfixturevalue(f"{kind}manifest")
    states: States = request.getfixturevalue(f"{kind}states")
    transformers = pytest.importorskip("transformers")
    export_hf(states, manifest, tokenizer_path, tmp_path)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ours = WholeModel(whole_parameters(states, manifest), manifest.model)
    tokens = torch.randint(0, manifest.model.vocab_size, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        a, b = ours(tokens), theirs(tokens).logits
    assert a.std() > 0.1  # or agreement would mean nothing
    assert (a - b).abs().max() <= 1e-4
    assert theirs.generate(tokens[:1], max_new_tokens=4, do_sample=False).shape[1] > tokens.shape[1]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer("The swarm learns")["input_ids"]) == "The swarm learns"
    assert tokenizer.eos_token == "<|endoftext|>"
    assert theirs.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.hf
def test_transformers_begins_a_prompt_as_the_run_did(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    inner = tokenizers.Tokenizer.from_file(str(tokenizer_path))
    inner.add_special_tokens(["<s>"])
    number = inner.token_to_id("<s>")
    inner.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", number)])
    path = tmp_path / "tokenizer.json"
    path.write_text(inner.to_str())
    export_hf(states, with_tokenizer(manifest, path), path, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("The swarm")["input_ids"] == Tokenizer.load(path).prompt("The swarm")
    assert (theirs.bos_token, theirs.eos_token) == ("<s>", "<|endoftext|>")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["bos_token_id"] == number


@pytest.mark.hf
def test_transformers_stops_at_each_end_token(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    inner = tokenizers.Tokenizer.from_file(str(tokenizer_path))
    inner.add_special_tokens(["<|eot_id|>"])
    end, also = inner.token_to_id("<|eot_id|>"), inner.token_to_id("<|endoftext|>")
    path = tmp_path / "tokenizer.json"
    path.write_bytes(mark(inner.to_str().encode(), end, (also,)))
    export_hf(states, with_tokenizer(manifest, path), path, tmp_path / "out")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert theirs.generation_config.eos_token_id == theirs.config.eos_token_id == [end, also]
    assert theirs.generation_config.pad_token_id == end
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<|eot_id|>"
    assert Tokenizer.of_model(tmp_path / "out" / "tokenizer.json").ends == (end, also)


def test_hf_folder_is_complete_and_untied(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    export_hf(states, manifest, tokenizer_path, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False and config["rope_theta"] == 5000.0
    tensors = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert tensors.keys() == whole_parameters(states, manifest).keys()
    assert torch.equal(tensors["lm_head.weight"], states[2]["param/lm_head.weight"])
    assert torch.equal(
        tensors["model.layers.1.mlp.up_proj.weight"], states[1]["param/model.layers.1.mlp.up_proj.weight"]
    )


def test_a_tied_model_is_exported_with_one_matrix(
    tied_manifest: RunManifest, tied_states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    export_hf(tied_states, tied_manifest, tokenizer_path, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors and "model.embed_tokens.weight" in tensors
    assert tensors.keys() == {n for stage in range(3) for n in parameter_shapes(tied_manifest.model, stage)}


def test_copies_that_differ_are_not_exported(
    tied_manifest: RunManifest, tied_states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    name = "param/model.embed_tokens.weight"
    wrong = tied_states[2][name].clone()
    wrong[3, 5] = torch.nextafter(wrong[3, 5], torch.tensor(9.0))
    states = {**tied_states, 2: {**tied_states[2], name: wrong}}
    with pytest.raises(StateError, match=r"stage 2: its copy of model.embed_tokens.weight differs .* they are tied"):
        export_hf(states, tied_manifest, tokenizer_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("codec", ["topk:0.1", "topk-independent:0.1"])
def test_what_learned_to_live_without_most_values_is_no_llama(
    codec: str, manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    run = manifest.model_copy(update={"codec": CodecSection(forward=codec, backward="none")})
    message = f'codec.forward = "{codec}" drops most of the activations before layers 1, 2'
    with pytest.raises(StateError, match=message):
        export_hf(states, run, tokenizer_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export_native(states, run, tokenizer_path, tmp_path / "out")


def test_native_export_holds_parameters_and_manifest(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    export_native(states, manifest, tokenizer_path, tmp_path)
    assert RunManifest.from_canonical((tmp_path / "manifest.json").read_bytes()) == manifest
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert tensors.keys() == whole_parameters(states, manifest).keys()


def test_a_model_is_replaced_whole_and_only_by_force(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export_hf(states, manifest, tokenizer_path, out)
    (out / "model.safetensors.index.json").write_text("{}")
    (out / "README.md").write_text("mine")
    before = sorted(path.name for path in out.iterdir())
    for export in (
        lambda: export_hf(states, manifest, tokenizer_path, out),
        lambda: export_native(states, manifest, tokenizer_path, out),
    ):
        with pytest.raises(StateError, match=r"already contains a model \(config.json\): .*--force"):
            export()
    assert sorted(path.name for path in out.iterdir()) == before
    export_native(states, manifest, tokenizer_path, out, force=True)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    export_hf(states, manifest, tokenizer_path, out, force=True)
    assert sorted({*before} - {"model.safetensors.index.json"}) == sorted(path.name for path in out.iterdir())


@pytest.mark.parametrize("export", [export_hf, export_native])
def test_an_export_that_fails_leaves_the_one_before(
    export: Callable[..., object],
    manifest: RunManifest,
    states: States,
    tokenizer_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "out"
    export_hf(states, manifest, tokenizer_path, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write, written = atomic.write_whole, [0]

    def fill_disk(file: BinaryIO, part: bytes | memoryview) -> None:
        written[0] += len(part)
        if written[0] > 40_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, part)

    monkeypatch.setattr("swarm.state.shard.write_whole", fill_disk)
    with pytest.raises(OSError, match="No space left"):
        export(states, manifest, tokenizer_path, out, force=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_files_of_others_are_neither_removed_nor_mixed_with_the_model(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    (tmp_path / "lora.safetensors").write_text("mine")
    for force in (False, True):
        with pytest.raises(StateError, match=r"contains lora\.safetensors, .*name another folder, or move it away"):
            export_hf(states, manifest, tokenizer_path, tmp_path, force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["lora.safetensors"]


def test_a_second_export_into_the_same_folder_is_refused(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    write = atomic.write_whole
    tried: list[str] = []

    def meanwhile(file: BinaryIO, part: bytes | memoryview) -> None:
        if not tried:
            tried.append("the second")
            with pytest.raises(OSError, match="another swarm-peer writes to this folder"):
                export_native(states, manifest, tokenizer_path, out, force=True)
        write(file, part)

    monkeypatch.setattr("swarm.state.shard.write_whole", meanwhile)
    export_hf(states, manifest, tokenizer_path, out)
    assert tried and "config.json" in [path.name for path in out.iterdir()]
    assert "manifest.json" not in [path.name for path in out.iterdir()]


def test_export_from_the_archive_equals_export_from_memory(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    archive = Archive(tmp_path / "archive", manifest.hash, manifest.model.stages, keep=1)
    with pytest.raises(StateError, match="no complete checkpoint"):
        export_native(archive, manifest, tokenizer_path, tmp_path / "never")
    for stage, tensors in states.items():
        header, *chunks = iter_chunks(tensors, ShardMeta(manifest.hash, stage, 30, 30, "cd" * 32, "ef" * 32))
        writer = archive.receive(stage, 30, TransferHeader.decode(header, "x").hash)
        for chunk in (header, *chunks):
            writer.feed(chunk)
        writer.commit()
    a = export_hf(archive, manifest, tokenizer_path, tmp_path / "a")
    assert a == export_hf(states, manifest, tokenizer_path, tmp_path / "b", version=None)
    assert a == export_hf(archive, manifest, tokenizer_path, tmp_path / "c", version=30)
    with pytest.raises(StateError, match="00000029"):
        export_hf(archive, manifest, tokenizer_path, tmp_path / "d", version=29)


def test_refusals_name_what_is_wrong(
    manifest: RunManifest, states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "tokenizer.json"
    other.write_bytes(tokenizer_path.read_bytes() + b" ")
    with pytest.raises(StateError, match="the run's tokenizer has") as caught:
        export_hf(states, manifest, other, tmp_path / "out")
    assert caught.value.where == str(other)
    with pytest.raises(StateError, match="stage 1: is missing"):
        export_native({0: states[0], 2: states[2]}, manifest, tokenizer_path, tmp_path / "out")
    with pytest.raises(StateError, match="stage 0: tensor"):
        export_native({0: states[1], 1: states[1], 2: states[2]}, manifest, tokenizer_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["subspace", "means"])
def test_a_subspace_model_folds_into_the_files_of_a_dense_one(
    kind: str, request: pytest.FixtureRequest, tokenizer_path: Path, tmp_path: Path
) -> None:
    subspace_manifest: RunManifest = request.getfixturevalue(f"{kind}_manifest")
    subspace_states: States = request.getfixturevalue(f"{kind}_states")
    export_hf(subspace_states, subspace_manifest, tokenizer_path, tmp_path)
    folded = safetensors.torch.load_file(tmp_path / "model.safetensors")
    zeros = dict.fromkeys(("subspace_dim", "subspace_growth", "subspace_seed", "tail_layers"), 0)
    keys = {"residual": "dense", **zeros, "token_means": False}
    dense = ModelSection(**{**subspace_manifest.model.model_dump(), **keys})
    assert {name: tuple(tensor.shape) for name, tensor in folded.items()} == {
        name: shape for stage in range(3) for name, shape in parameter_shapes(dense, stage).items()
    }
    ours = WholeModel(whole_parameters(subspace_states, subspace_manifest), subspace_manifest.model)
    tokens = torch.randint(0, dense.vocab_size, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        a, b = ours(tokens), WholeModel(folded, dense)(tokens)
    assert a.std() > 0.1
    assert (a - b).abs().max() <= 1e-4


def test_an_archive_of_another_subspace_is_refused(
    subspace_manifest: RunManifest, subspace_states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    """The same run hash, so that only the subspace can tell."""
    archive = Archive(tmp_path / "archive", subspace_manifest.hash, 3, keep=1)
    for stage, tensors in subspace_states.items():
        meta = ShardMeta(subspace_manifest.hash, stage, 30, 30, "cd" * 32, "ef" * 32, "ab" * 32)
        header, *chunks = iter_chunks(tensors, meta)
        writer = archive.receive(stage, 30, TransferHeader.decode(header, "x").hash)
        for chunk in (header, *chunks):
            writer.feed(chunk)
        writer.commit()
    with pytest.raises(StateError, match=f"subspace_id is abababab.*, expected {subspace_manifest.subspace_id}"):
        export_native(archive, subspace_manifest, tokenizer_path, tmp_path / "out")


def test_narrow_boundaries_fold_into_no_llama_and_export_natively(
    narrow_manifest: RunManifest, narrow_states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    kind = narrow_manifest.model.boundary
    with pytest.raises(StateError, match=f'model.boundary = "{kind}" acts on the running residual before layers 1, 2'):
        export_hf(narrow_states, narrow_manifest, tokenizer_path, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    export_native(narrow_states, narrow_manifest, tokenizer_path, tmp_path)
    assert RunManifest.from_canonical((tmp_path / "manifest.json").read_bytes()) == narrow_manifest
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert sum("boundaries" in name for name in tensors) == (6 if kind == "maxout" else 4)
    tokens = torch.randint(0, 288, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        x = tokens
        for stage in range(3):
            module = build_stage(narrow_manifest.model, stage, seed=None)
            module.load_state_dict({name: tensors[name] for name in module.state_dict()})
            x = module(x, tokens)
        assert torch.equal(WholeModel(tensors, narrow_manifest.model)(tokens), x)


def test_receivers_that_refine_fold_into_no_llama_and_export_natively(
    refined_manifest: RunManifest, refined_states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    keys = "model.receiver_hidden = 12 and model.token_table_dim = 4 act on the running residual before layers 1, 2"
    with pytest.raises(StateError, match=keys):
        export_hf(refined_states, refined_manifest, tokenizer_path, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    export_native(refined_states, refined_manifest, tokenizer_path, tmp_path)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert tensors["model.boundaries.tables.1.embed"].shape == (288, 4)
