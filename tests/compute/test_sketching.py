"""Sketches add up exactly, tell lengths and angles, and cannot be foreseen."""

from __future__ import annotations

import math

import pytest
import torch

from swarm.compute.averaging import reduction_of
from swarm.compute.grid import NOT_FINITE
from swarm.compute.layout import Layout
from swarm.compute.sketching import WIDTH, Signs, _DeviceFold, _HostFold, sketch_of
from swarm.compute.sums import Accumulator
from swarm.manifest import SumSection
from swarm.protocol.ids import Attempt, PassId, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import Assembled, EncodePart, SumBucket
from swarm.protocol.sketch import NOTHING, SKETCH_BYTES, Sketch, added, dot, length, read, seal_of

CPU = torch.device("cpu")
ATTEMPT = Attempt(PassId(Term(1), StepNumber(3)), StageIndex(0), 0)


def numbers(count: int, seed: int = 0, most: int = 1 << 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most, (count,), generator=generator)


def one_sketch(values: torch.Tensor, seed: str = "a") -> Sketch:
    (found,) = sketch_of(lambda part: values[part], slice(0, len(values)), CPU, seed)
    return found


def by_definition(values: torch.Tensor, seed: str) -> Sketch:
    signs = Signs.of(seed)
    of_block, turns = signs.blocks(0, len(values) // WIDTH + 1)
    sums = [0] * 64
    for place, value in enumerate(values.tolist()):
        block, inside = divmod(place, WIDTH)
        turned = (inside + 64 * int(turns[block])) % WIDTH
        sums[place % 64] += value * int(of_block[block]) * int(signs.places[turned])
    return tuple(sums)


@pytest.mark.parametrize("count", [0, 1, 63, WIDTH, WIDTH + 100, 3 * WIDTH - 1])
def test_every_number_counts_once_with_its_sign(count: int) -> None:
    values = numbers(count)
    assert one_sketch(values) == by_definition(values, "a")


@pytest.mark.parametrize("count", [0, 1, WIDTH, 5 * WIDTH + 77])
def test_a_device_comes_to_the_same(count: int) -> None:
    """Whole numbers wrap around on both."""
    values = numbers(count, most=1 << 62)
    values[::1000] = NOT_FINITE
    folds = [kind(Signs.of("b"), CPU) for kind in (_HostFold, _DeviceFold)]
    for fold in folds:
        fold.add(values[: 2 * WIDTH], 0)
        fold.add(values[2 * WIDTH :], 2)
    assert folds[0].result() == folds[1].result()


def test_sketches_add_up_as_what_they_are_of_does() -> None:
    shares = [numbers(WIDTH + 9, seed, 1 << 60) for seed in range(7)]
    assert added(map(one_sketch, shares)) == one_sketch(torch.stack(shares).sum(0))


def test_it_tells_length_and_angle() -> None:
    one, two = numbers(200_000, 1), numbers(200_000, 2)
    for values in (one, two, one + two):
        assert length(one_sketch(values)) == pytest.approx(values.double().norm().item(), rel=0.4)
    sketches = one_sketch(one), one_sketch(-one)
    assert dot(*sketches) == -dot(sketches[0], sketches[0])
    cosine = dot(one_sketch(one), one_sketch(two)) / length(one_sketch(one)) / length(one_sketch(two))
    assert abs(cosine) < 0.5


def test_who_does_not_know_the_signs_can_hide_nothing() -> None:
    """What disappears with one seed's signs does not with another's."""
    hidden = numbers(4 * WIDTH, 5)
    column = torch.arange(len(hidden)) % 64
    places = by_definition_signs(len(hidden), "known")
    for one in range(64):
        mine = torch.where(column == one)[0]
        total = int((hidden[mine] * places[mine]).sum())
        hidden[mine[0]] -= total * int(places[mine[0]])
    assert one_sketch(hidden, "known") == NOTHING
    assert length(one_sketch(hidden, "drawn later")) > 0.5 * hidden.double().norm().item()


def by_definition_signs(count: int, seed: str) -> torch.Tensor:
    signs = Signs.of(seed)
    of_block, turns = signs.blocks(0, count // WIDTH)
    rows = [signs.places.roll(-64 * int(turn)) * int(sign) for sign, turn in zip(of_block, turns, strict=True)]
    return torch.cat(rows).long()


# ---------------------------------------------------------------- of a stage's sums


def replicas(sums: SumSection, *, tied: bool = False) -> tuple[list[Accumulator], Layout]:
    tensors = {"a": torch.empty(70, 33), "b": torch.empty(500)}
    layout = Layout.of(tensors, with_loss=True, shared=1 if tied else 0)
    shares = []
    for seed in range(3):
        share = Accumulator(layout, sums)
        generator = torch.Generator().manual_seed(seed)
        share.add([torch.randn(t.shape, generator=generator) for t in tensors.values()], loss=float(seed))
        shares.append(share)
    return shares, layout


def reduced(shares: list[Accumulator], sums: SumSection) -> list[Assembled]:
    found = []
    reductions = [reduction_of(share, sums) for share in shares]
    parts = [reduction.part(EncodePart(ATTEMPT, 0, False)) for reduction in reductions]
    for index, reduction in enumerate(reductions):
        others = tuple(part for at, part in enumerate(parts) if at != index)
        payload = reduction.sum(SumBucket(ATTEMPT, 0, others, index, False))
        reduction.store(ATTEMPT, 0, payload)
        found.append(reduction.sketched(reduction.assemble(ATTEMPT), outlined=True))
    return found


def of(done: Assembled) -> Sketch:
    found = read(done.sketch)
    assert found is not None
    return found


def test_those_of_the_replicas_come_to_that_of_the_sum() -> None:
    shares, _ = replicas(SumSection())
    done = reduced(shares, SumSection())
    assert {each.seal for each in done} == {seal_of([added(map(of, done))])}
    assert len({each.outline for each in done}) == 1 and len(done[0].outline) == SKETCH_BYTES
    assert len({each.sketch for each in done}) == 3


def test_one_that_is_told_otherwise_is_seen() -> None:
    done = reduced(replicas(SumSection())[0], SumSection())
    told = [of(each) for each in done]
    told[1] = (told[1][0] + 1, *told[1][1:])
    assert seal_of([added(told)]) != done[0].seal


def test_the_loss_is_no_part_of_it() -> None:
    shares, layout = replicas(SumSection())
    (done,) = reduced(shares[2:], SumSection())
    assert done.loss_sum == 2.0
    values = shares[2].numbers(slice(0, layout.length - 1))
    assert of(done) == one_sketch(values, f"sums {done.digest}")


def test_floats_are_sketched_too_but_do_not_add_up_exactly() -> None:
    done = reduced(replicas(SumSection(mode="fp32"))[0], SumSection(mode="fp32"))
    assert {each.seal for each in done} == {0}
    expected = added(map(of, done))
    assert math.isfinite(length(expected)) and length(expected) > 0


def test_what_is_not_finite_has_none() -> None:
    shares, layout = replicas(SumSection())
    shares[1].add([torch.full(shape, math.nan) for shape in layout.shapes], loss=0.0)
    done = reduced(shares, SumSection())
    assert not done[0].finite and not done[0].sketch and not done[0].seal and not done[0].outline


@pytest.mark.parametrize("tied", [False, True])
def test_what_two_stages_share_has_a_sketch_of_its_own(tied: bool) -> None:
    shares, layout = replicas(SumSection(), tied=tied)
    reduction = reduction_of(shares[0], SumSection())
    for bucket in range(2 if tied else 1):
        reduction.store(ATTEMPT, bucket, reduction.part(EncodePart(ATTEMPT, bucket, False)))
    done = reduction.sketched(reduction.assemble(ATTEMPT), outlined=False)
    assert (read(done.sketch, 1) is not None) == tied and not done.outline
    if tied:
        shared = shares[0].numbers(slice(0, layout.shared_length))
        assert read(done.sketch, 1) == one_sketch(shared, f"sums {done.shared}")
