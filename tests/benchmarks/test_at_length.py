"""The study of compression at length: its codings are the product's, decode to what they say, and a row is trained."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.length.coding import Coder, Coding, Crossing
from benchmarks.length.rows import row_named
from swarm import codecs


@pytest.mark.parametrize("channels", (False, True))
@pytest.mark.parametrize("bits", (8, 4))
def test_uniform_values_are_those_of_the_codec(bits: int, channels: bool) -> None:
    codec = codecs.get(f"int{bits}{'-channel' if channels else ''}")
    x = torch.randn(3, 41, 24, generator=torch.Generator().manual_seed(bits))
    coder = Coder(Coding("uniform", bits, channels=channels), 24, 100, torch.device("cpu"))
    arrived = coder.cross(x, torch.zeros(3, 41, dtype=torch.int64), learns=True)
    assert torch.equal(arrived, codec.decode(codec.encode(x), x.shape))


@pytest.mark.parametrize("rotated", (False, True))
@pytest.mark.parametrize("means", (0, 64))
def test_entropy_coded_values_are_near_and_cost_less_once_they_are_known(means: int, rotated: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 5, (4, 32), generator=draw)
    centres, mixing = torch.randn(5, 6, generator=draw), torch.randn(6, 6, generator=draw)
    coder = Coder(Coding("entropy", step=0.2, means=means, rotated=rotated), 6, 5, torch.device("cpu"))
    costs = []
    for turn in range(60):
        x = centres[ids] + 0.3 * torch.randn(4, 32, 6, generator=draw) @ mixing
        arrived = coder.cross(x, ids, learns=True)
        coder.update_means()
        # each turned coefficient is at most half a step off, and a rotation keeps lengths
        assert (arrived - x).norm(dim=-1).max() <= 0.51 * 0.2 * x.std() * 6**0.5 * 2  # a median is below that
        if turn % 20 == 19:
            costs.append(coder.token_bits((4, 32)))
            coder.turn()
    assert costs[-1] < costs[0]
    if means:  # the centres need not be told any more
        assert coder.mean.sub(centres).abs().max() < 0.5


def test_a_coder_that_does_not_learn_stays_as_it_is() -> None:
    coder = Coder(Coding("entropy", means=64, rotated=True), 4, 3, torch.device("cpu"))
    before = {name: buffer.clone() for name, buffer in coder.named_buffers()}
    coder.cross(torch.randn(2, 5, 4), torch.ones(2, 5, dtype=torch.int64), learns=False)
    assert all(torch.equal(buffer, before[name]) for name, buffer in coder.named_buffers())


def test_gradients_cross_in_their_own_coding() -> None:
    there = Coder(Coding(), 4, 3, torch.device("cpu"))
    back = Coder(Coding("nothing"), 4, 3, torch.device("cpu"))
    x = torch.randn(2, 5, 4, requires_grad=True)
    ids = torch.zeros(2, 5, dtype=torch.int64)
    Crossing.apply(x, ids, there, back, True).sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_keyed_rounding_is_right_on_average_and_nearer_than_dithering() -> None:
    x, ids = torch.full((64, 128, 2), 0.25), torch.zeros(64, 128, dtype=torch.int64)
    torch.manual_seed(1)
    errors = {}
    for how in ("keyed", "dithered"):
        coder = Coder(row_named(f"subspace 2, entropy 1 {how}").codings[0], 2, 1, torch.device("cpu"))
        errors[how] = coder.cross(x, ids, learns=True) - x  # the step is 1.48 · ¼
    assert all(error.mean().abs() < 0.01 for error in errors.values())
    assert errors["keyed"].square().mean() < 0.6 * errors["dithered"].square().mean()


def test_classes_make_tokens_of_different_sizes_cheaper_and_change_no_value() -> None:
    draw = torch.Generator().manual_seed(1)
    plain, apart = (
        Coder(row_named(f"subspace 16, entropy 0.5{word}").codings[0], 16, 1, torch.device("cpu"))
        for word in ("", " classes")
    )
    ids = torch.zeros(8, 64, dtype=torch.int64)
    for _ in range(40):
        x = torch.randn(8, 64, 16, generator=draw) * torch.randn(8, 64, 1, generator=draw).exp()
        assert torch.equal(plain.cross(x, ids, learns=True), apart.cross(x, ids, learns=True))
    assert apart.token_bits((8, 64)) < 0.95 * plain.token_bits((8, 64))


@pytest.mark.parametrize(
    "name", ("subspace", "subspace 8, entropy", "subspace 8, entropy 1 mean4", "ids", "bottleneck 8;", "bottleneck 8+2")
)
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"no (row|coding) is named"):
        row_named(name)


def test_a_row_and_its_controls_are_trained_once(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the river {i * 7919 % 1000} runs under bridge {i % 13}\n\n" for i in range(6000)))
    data = tmp_path / "data"
    prepare = ["prepare", "--input", str(text), "--vocab-size", "300", "--heldout", "0.1", "--out", str(data)]
    subprocess.run([sys.executable, "-m", "peers", *prepare], check=True, stdout=subprocess.DEVNULL)
    small = ("model.vocab_size=300", "model.dim=32", "model.heads=2", "model.kv_heads=1", "model.ffn_dim=48")
    sets = [f"--set={setting}" for setting in (*small, "model.context=32", "batch.sequence_length=32")]
    command = [sys.executable, "-m", "benchmarks.at_length", "--data", str(data), "--cache", str(tmp_path / "cache")]
    row = "subspace 6+2, entropy 1 means4 rotated classes, back entropy 1 means keyed"
    options = ["--rows", row, "--tokens", "7680", "--screen", "1024", "--rates", "1e-3,1e-2", "--heldout", "2", *sets]
    run = subprocess.run([*command, *options, "--warmup", "2"], check=True, capture_output=True, text=True)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert [each["row"] for each in rows] == ["dense, anchor", "ids alone", row]
    assert rows[0]["kept"] == [1.0] * 4 and rows[1]["kept"] == [0.0] * 4
    assert rows[2]["loss"] < 5.0 and 1 < rows[2]["bytes_forward"] < 16
    again = subprocess.run([*command, *options, "--warmup", "2"], check=True, capture_output=True, text=True)
    assert [line for line in again.stdout.splitlines() if line.startswith("{")] == [json.dumps(each) for each in rows]
    assert "steps in" not in again.stdout
