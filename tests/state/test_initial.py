"""Imported parameters on disk: one hash whatever the files and cuts, and nothing that does not have it is used."""

from pathlib import Path

import pytest
import torch

from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage, parameter_shapes
from swarm.state.error import StateError
from swarm.state.initial import InitialParameters, LazyTensor, write_initial

MODEL = ModelSection(vocab_size=32, dim=16, layers=3, heads=2, kv_heads=1, ffn_dim=24, context=16, cuts=(1, 2))


@pytest.fixture
def tensors() -> dict[str, LazyTensor]:
    values = {name: p.detach() for s in range(3) for name, p in build_stage(MODEL, s, seed=3).named_parameters()}
    return {name: LazyTensor(tuple(value.shape), lambda value=value: value) for name, value in values.items()}


def test_they_come_back_by_stage_whatever_the_files_and_cuts(tensors: dict[str, LazyTensor], tmp_path: Path) -> None:
    whole = write_initial(tmp_path / "one", tensors)
    assert write_initial(tmp_path / "many", tensors, shard_bytes=3000) == whole
    assert len(list((tmp_path / "one").iterdir())) == 1 and len(list((tmp_path / "many").iterdir())) > 3
    for folder in ("one", "many"):
        for cuts in ((1, 2), (2,), ()):
            model = MODEL.model_copy(update={"cuts": cuts})
            found = InitialParameters(tmp_path / folder, model, whole)
            for stage in range(model.stages):
                mine = found.of_stage(model, stage)
                assert {name: tuple(t.shape) for name, t in mine.items()} == parameter_shapes(model, stage)
                assert all(torch.equal(t, tensors[name].load()) for name, t in mine.items())


def test_a_second_import_leaves_nothing_of_the_first(tensors: dict[str, LazyTensor], tmp_path: Path) -> None:
    write_initial(tmp_path, tensors, shard_bytes=3000)
    whole = write_initial(tmp_path, tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["parameters-00000.safetensors"]
    InitialParameters(tmp_path, MODEL, whole)


def test_one_bit_or_another_model_is_refused(tensors: dict[str, LazyTensor], tmp_path: Path) -> None:
    whole = write_initial(tmp_path, tensors)
    with pytest.raises(StateError, match=r"initial.sha256 is 00000000"):
        InitialParameters(tmp_path, MODEL, "0" * 64)
    with pytest.raises(StateError, match=r"model.layers.3.* is missing, but the \[model\]"):
        InitialParameters(tmp_path, MODEL.model_copy(update={"layers": 4}), whole)
    with pytest.raises(StateError, match=r"model.layers.2.* is not part of"):
        InitialParameters(tmp_path, MODEL.model_copy(update={"layers": 2, "cuts": (1,)}), whole)
    with pytest.raises(StateError, match=r"lm_head.weight is \[32, 16\], but \[model\] needs \[40, 16\]"):
        InitialParameters(tmp_path, MODEL.model_copy(update={"vocab_size": 40}), whole)
    (path,) = tmp_path.iterdir()
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StateError, match="the parameters hash to"):
        InitialParameters(tmp_path, MODEL, whole)
    path.write_bytes(raw[:-4])
    with pytest.raises(StateError, match="import the model again"):
        InitialParameters(tmp_path, MODEL, whole)
    path.unlink()
    with pytest.raises(StateError, match="`swarm-peer import`"):
        InitialParameters(tmp_path, MODEL, whole)


def test_names_and_shapes_are_part_of_the_hash(tensors: dict[str, LazyTensor], tmp_path: Path) -> None:
    whole = write_initial(tmp_path / "a", tensors)
    q, o = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.o_proj.weight"
    swapped = {**tensors, q: tensors[o], o: tensors[q]}
    assert write_initial(tmp_path / "b", swapped) != whole
    turned = LazyTensor((24, 16), lambda: tensors["model.layers.0.mlp.down_proj.weight"].load().view(24, 16))
    assert write_initial(tmp_path / "c", {**tensors, "model.layers.0.mlp.down_proj.weight": turned}) != whole


def test_values_that_are_not_finite_are_named(tensors: dict[str, LazyTensor], tmp_path: Path) -> None:
    tensors["model.norm.weight"] = LazyTensor((16,), lambda: torch.full((16,), float("nan")))
    with pytest.raises(StateError, match=r"model.norm.weight: contains NaN"):
        write_initial(tmp_path, tensors)
