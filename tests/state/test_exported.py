"""A native export needs neither run nor archive; what is not one is refused by the file's name."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from swarm.data.tokenizer import Tokenizer
from swarm.manifest import RunManifest
from swarm.state.error import StateError
from swarm.state.export import export_native
from swarm.state.exported import open_native
from swarm.state.generate import generate
from tests.state.test_generate import States


@pytest.fixture
def exported(narrow_manifest: RunManifest, narrow_states: States, tokenizer_path: Path, tmp_path: Path) -> Path:
    export_native(narrow_states, narrow_manifest, tokenizer_path, tmp_path / "out")
    return tmp_path / "out"


def test_an_export_says_what_its_archive_says(
    exported: Path, narrow_manifest: RunManifest, narrow_states: States, tokenizer_path: Path
) -> None:
    model = open_native(exported)
    assert model.manifest == narrow_manifest
    text = generate(model.parameters, model.manifest, Tokenizer.load(model.tokenizer), "The ", 8)
    assert text == generate(narrow_states, narrow_manifest, Tokenizer.load(tokenizer_path), "The ", 8)


def test_a_tied_model_comes_back_with_both_its_copies(
    tied_manifest: RunManifest, tied_states: States, tokenizer_path: Path, tmp_path: Path
) -> None:
    export_native(tied_states, tied_manifest, tokenizer_path, tmp_path / "out")
    model = open_native(tmp_path / "out")
    name = "model.embed_tokens.weight"
    assert torch.equal(model.parameters[0][name], model.parameters[tied_manifest.model.stages - 1][name])


def _changed(change: Callable[[dict[str, torch.Tensor], dict[str, str]], None]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors"
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = dict(file.metadata())
        tensors = safetensors.torch.load_file(path)
        change(tensors, metadata)
        safetensors.torch.save_file(tensors, path, metadata)

    return spoil


def _narrowed(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][1:].contiguous()


def _halved(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].half()


def _made_a_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "no manifest.json here: name a folder that"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors: is missing"),
        (_made_a_folder, "model.safetensors: cannot be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no tensors"), "not a safetensors file"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"{}"), "not a usable export"),
        (
            lambda folder: (folder / "tokenizer.json").write_text("{}"),
            "not a usable export: .*the manifest expects.*; or export the",
        ),
        (_changed(lambda tensors, metadata: metadata.update(run_hash="ab" * 32)), "run_hash is abab"),
        (_changed(lambda tensors, metadata: tensors.pop("model.norm.weight")), "tensor model.norm.weight is missing"),
        (_changed(_narrowed), r"tensor model.norm.weight has shape \[31\], expected \[32\]"),
        (_changed(_halved), "tensor model.norm.weight is F16, expected F32"),
    ],
    ids=[
        "none",
        "no model",
        "folder",
        "no tensors",
        "manifest",
        "tokenizer",
        "other run",
        "fewer",
        "narrower",
        "halves",
    ],
)
def test_what_is_no_export_is_refused(exported: Path, spoil: Callable[[Path], object], message: str) -> None:
    spoil(exported)
    with pytest.raises(StateError, match=message):
        open_native(exported)
