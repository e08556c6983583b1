"""Grids of blocks: the same sums in any order, few bits, and nothing that a stranger sends is believed."""

import math

import numpy as np
import pytest
import torch
from made_up_data import DATA

from swarm.compute import rice
from swarm.compute.averaging import buckets_of, largest_bucket, reduction_of
from swarm.compute.block_grid import MOST, WIDTH, BlockGrid
from swarm.compute.body import FrameError
from swarm.compute.grid import NOT_FINITE
from swarm.compute.layout import Layout
from swarm.compute.reduction import BUCKET_ELEMENTS
from swarm.compute.sums import Accumulator
from swarm.manifest import RunFile, RunManifest
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import EncodePart, SumBucket

COUNT, MICROBATCHES = BUCKET_ELEMENTS + 100, 16
LAYOUT = Layout.of({"w": torch.empty(3, 50), "v": torch.empty(COUNT - 150)}, with_loss=True)
SIZES = 10.0 ** torch.arange(COUNT).div(1000).floor().remainder(4)
"""Of a microbatch's gradient, by place."""


def run(averaging: str = "dither:1") -> RunManifest:
    model = {"vocab_size": 512, "dim": 32, "layers": 2, "heads": 2, "kv_heads": 1, "ffn_dim": 64, "context": 32}
    batch = {"microbatches": MICROBATCHES, "sequences": 1, "sequence_length": 32}
    tables = {"model": {**model, "cuts": [1]}, "batch": batch, "sums": {"averaging": averaging}}
    return RunFile.model_validate(tables).resolve(DATA)


def split(flat: torch.Tensor) -> list[torch.Tensor]:
    return [flat[:150].view(3, 50), flat[150:]]


def gradient(microbatch: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(microbatch)
    return split(SIZES * torch.randn(COUNT, generator=generator))


def turned(manifest: RunManifest, version: int = 3) -> BlockGrid:
    """After steps whose sums were as large as those of `gradient`."""
    grid = BlockGrid.of(manifest, 0, LAYOUT, "cpu")
    assert grid is not None
    bias = 1 - manifest.optimizer.beta2**version
    mean = SIZES * math.sqrt(MICROBATCHES) / manifest.targets_per_step
    grid.follow(split(mean.square() * bias), version)
    return grid


def summed(grid: BlockGrid, manifest: RunManifest, microbatches: range) -> Accumulator:
    sums = Accumulator(LAYOUT, manifest.sums, grid=grid)
    for m in microbatches:
        sums.add(gradient(m), 2.0, step=grid.step, microbatch=m)
    return sums


def test_sums_do_not_depend_on_who_adds_what_and_take_few_bits() -> None:
    manifest = run()
    grid = turned(manifest)
    alone = reduction_of(summed(grid, manifest, range(MICROBATCHES)), manifest.sums, grid)
    at = Attempt(PassId(Term(1), StepNumber(3)), StageIndex(0), 0)
    for bucket in range(2):
        alone.store(at, bucket, alone.sum(SumBucket(at, bucket, ())))
    expected = alone.assemble(at)
    buckets, largest = buckets_of(LAYOUT, manifest.sums), largest_bucket(manifest.sums)
    for dealt in (
        (range(8), range(8, 16)),
        (range(1, MICROBATCHES, 2), range(0, MICROBATCHES, 2)),
        (range(3), range(3, 16)),
    ):
        pair = [reduction_of(summed(grid, manifest, each), manifest.sums, grid) for each in dealt]
        sizes = []
        for bucket in range(2):
            part = pair[1].part(EncodePart(at, bucket))
            total = pair[0].sum(SumBucket(at, bucket, (bytearray(part),), place=0))
            for payload in (part, total):
                buckets.check(bucket, payload)
                assert len(payload) <= largest
                sizes.append(len(payload))
            for each in pair:
                each.store(at, bucket, bytes(total))
        assert [each.assemble(at) for each in pair] == [expected] * 2
        assert 8 * sum(sizes) / 2 / COUNT < 4, "bits a number, mean of both directions"
    assert expected.loss_sum == 2.0 * MICROBATCHES


def test_dithers_leave_no_bias_and_cancel_within_a_step_and_from_step_to_step() -> None:
    manifest = run()
    found, wanted = torch.zeros(COUNT, dtype=torch.float64), torch.zeros(COUNT, dtype=torch.float64)
    same = gradient(0)
    for version in range(3, 11):  # one gradient over and over: only the dithers differ
        sums = Accumulator(LAYOUT, manifest.sums, grid=turned(manifest, version))
        for m in range(MICROBATCHES):
            sums.add(same, 0.0, step=version, microbatch=m)
        found += sums.numbers(slice(0, COUNT)) * 2.0**-30
        wanted += MICROBATCHES * torch.cat([part.reshape(-1) for part in same])
    error = (found - wanted) / 8 / SIZES
    error = error[SIZES.roll(64) == SIZES][64:]  # of blocks whose numbers are of one size
    assert error.mean().abs() < 0.01
    assert error.std() < 0.2, "16 errors of 0.29 steps, independent, would come to 1.2, and over √8 to 0.41"


def test_zero_stays_zero_and_before_the_first_step_the_grid_is_the_usual_one() -> None:
    manifest = run()
    grid, zero = turned(manifest), [torch.zeros_like(each) for each in gradient(0)]
    sums = Accumulator(LAYOUT, manifest.sums, grid=grid)
    for m in range(MICROBATCHES):
        sums.add(zero, 0.0, step=grid.step, microbatch=m)
    assert not sums.numbers(slice(0, LAYOUT.length)).any()
    first = BlockGrid.of(manifest, 0, LAYOUT, "cpu")
    plain = Accumulator(LAYOUT, run("none").sums)
    plain.add(gradient(0), 1.0)
    usual = Accumulator(LAYOUT, manifest.sums, grid=first)
    usual.add(gradient(0), 1.0, step=0, microbatch=0)
    whole = slice(0, LAYOUT.length)
    assert torch.equal(usual.numbers(whole), plain.numbers(whole))


def test_a_gradient_of_another_step_is_refused() -> None:
    manifest = run()
    sums = Accumulator(LAYOUT, manifest.sums, grid=turned(manifest))
    with pytest.raises(ValueError, match="microbatch 1 of step 4 does not fit the grid of step 3"):
        sums.add(gradient(1), 0.0, step=4, microbatch=1)


def test_the_grid_says_the_same_bits_whatever_the_machine() -> None:
    """Known numbers: another one means that replicas of two kinds would part."""
    grid = turned(run())
    values = (SIZES[150 : 150 + WIDTH] * 0.75).clone()
    rounded = grid.round_(1, 0, values, 5)
    assert int(((rounded.long() >> 20) * torch.arange(1, WIDTH + 1)).sum()) == KNOWN


KNOWN = 31164165919744


def test_what_others_send_beyond_the_grid_is_not_finite() -> None:
    grid = turned(run())
    where = slice(0, 4)
    found = grid.raised(torch.tensor([1, -3, 1 << 52, NOT_FINITE]), where, total=True)
    assert found[2:].tolist() == [NOT_FINITE] * 2 and (found[:2] % 2 == 0).all()
    assert MOST < 53


@pytest.mark.parametrize("size", [0, 1, 63, 64, 1000])
@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 1e6, 1e12])
def test_rice_gives_back_what_it_got(size: int, spread: float) -> None:
    numbers = np.rint(np.random.default_rng(1).normal(size=size) * spread).astype(np.int64)
    payload = rice.pack(numbers, 30)
    rice.check(payload, size, 30)
    assert len(payload) <= rice.largest(size)
    found = np.empty_like(numbers)
    rice.unpack(payload, size, 30, found)
    assert np.array_equal(found, numbers)


def test_a_bucket_that_is_none_is_refused() -> None:
    manifest = run()
    grid = turned(manifest)
    at = Attempt(PassId(Term(1), StepNumber(3)), StageIndex(0), 0)
    buckets = buckets_of(LAYOUT, manifest.sums)
    good = bytes(reduction_of(summed(grid, manifest, range(2)), manifest.sums, grid).part(EncodePart(at, 1)))
    buckets.check(1, good)
    loss, body = good[:8], good[8:]
    wrong = {
        "of type int": 7,
        "expected at least 8": b"",
        "has a loss of": (1 << 60).to_bytes(8, "little") + body,
        "of kind 9": loss + b"\x09" + body[1:],
        "expected at least 3": loss + body[:2],
        "low bits per number": loss + body[:1] + b"\x29" + body[2:],
        "for their widths": good + bytes(1000),
        "numbers, expected": good[:-1] + b"\x00",
    }
    for reason, payload in wrong.items():
        with pytest.raises(FrameError, match=reason):
            buckets.check(1, payload)
