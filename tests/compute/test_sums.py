import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.compute.grid import NOT_FINITE, SumOverflow
from swarm.compute.layout import Layout
from swarm.compute.norm import squared_norm
from swarm.compute.sums import Accumulator
from swarm.compute.totals import combine, in_floats
from swarm.manifest import SumSection

GRADIENT = st.floats(-64.0, 64.0, width=32)


def layout(*shapes: tuple[int, ...], with_loss: bool = False) -> Layout:
    return Layout.of({f"t{i}": torch.empty(shape) for i, shape in enumerate(shapes)}, with_loss=with_loss)


def whole(share: Accumulator) -> torch.Tensor:
    return share.numbers(slice(0, share.layout.length))


def on_grid(value: float, bits: int) -> Fraction:
    """The multiple of 2^-bits nearest to `value`, ties to even."""
    return Fraction(round(Fraction(value) * 2**bits), 2**bits)


@given(
    rows=st.lists(st.lists(GRADIENT, min_size=3, max_size=3), min_size=1, max_size=12),
    bits=st.integers(8, 40),
    split=st.integers(0, 12),
    order=st.randoms(use_true_random=False),
)
@settings(deadline=None)
def test_sums_equal_exact_rational_arithmetic_in_any_order_and_split(rows, bits, split, order):
    sums = SumSection(grid_bits=bits)
    expected = [sum((on_grid(row[i], bits) for row in rows), Fraction(0)) for i in range(3)]
    order.shuffle(rows)
    shares = [Accumulator(layout((3,)), sums) for _ in range(2)]
    for index, row in enumerate(rows):
        shares[index < split].add([torch.tensor(row)])
    total = combine(whole(shares[0]), [whole(shares[1])], sums)
    assert [Fraction(value, 2**bits) for value in total.tolist()] == expected
    assert torch.equal(total, combine(whole(shares[1]), [whole(shares[0])], sums))
    assert [Fraction(value) for value in in_floats(total, sums).tolist()] == expected


def test_a_tensor_larger_than_the_block_is_rounded_throughout():
    gradient = torch.randn(3, 70_001, generator=torch.Generator().manual_seed(0))
    share = Accumulator(layout((3, 70_001)), SumSection(grid_bits=12))
    share.add([gradient])
    assert torch.equal(share.flat, (gradient.double() * 4096).round().flatten() / 4096)


def test_strided_gradients_are_added_in_logical_order():
    gradient = torch.arange(6.0).view(2, 3).T
    for mode in ("exact", "fp32"):
        share = Accumulator(layout((3, 2)), SumSection(mode=mode))
        share.add([gradient])
        assert share.flat.tolist() == [0, 3, 1, 4, 2, 5]


def test_the_loss_is_summed_last_and_left_out_of_the_norm():
    share = Accumulator(layout((2,), with_loss=True), SumSection(grid_bits=8))
    share.add([torch.tensor([3.0, 4.0])], 100.001)
    share.add([torch.zeros(2)], 1.0)
    assert share.flat.tolist() == [3.0, 4.0, 101.0]  # 100.001 lies nearest to 100 + 0/256
    assert squared_norm(share.flat, share.layout) == 25.0
    share.zero()
    assert not share.flat.any()


def test_a_gradient_beyond_the_grid_is_refused_by_name():
    share = Accumulator(layout((2,), (2, 2)), SumSection(grid_bits=30))
    with pytest.raises(SumOverflow, match=r"a gradient of t1 reaches 2\.1e\+06 in step 7"):
        share.add([torch.zeros(2), torch.full((2, 2), 2.1e6)], step=7)


def test_a_sum_beyond_the_grid_is_refused_by_name():
    share = Accumulator(layout((2,)), SumSection(grid_bits=30))
    for sign in (1, -1, 1, -1):
        share.add([torch.tensor([2e6 * sign, 0.0])])
    with pytest.raises(SumOverflow, match="the sum of t0"):  # it is 0: the sum of the peaks has no order and decides
        share.add([torch.tensor([2e6, 0.0])])
    big = torch.tensor([5 << 50, 0])
    with pytest.raises(SumOverflow, match=r"the sum over replicas reaches 1.04858e\+07"):
        combine(big, [big], SumSection(grid_bits=30))
    assert combine(big, [big, -big], SumSection(grid_bits=30)).tolist() == [5 << 50, 0], "no partial sum decides"


def test_the_grid_is_used_up_to_its_end():
    """Gradients up to 2^(51 - bits), and sums below 2^(53 - bits), are exact."""
    largest, more = 2.0**21, float(np.nextafter(np.float32(2.0**21), np.float32(np.inf)))
    share = Accumulator(layout((1,)), SumSection(grid_bits=30))
    for gradient in (largest, largest, largest, largest - 1.0):
        share.add([torch.tensor([gradient])])
    assert share.flat.tolist() == [2.0**23 - 1.0]
    with pytest.raises(SumOverflow, match="the sum of t0"):
        share.add([torch.ones(1)])
    with pytest.raises(SumOverflow, match="a gradient of t0"):
        Accumulator(layout((1,)), SumSection(grid_bits=30)).add([torch.tensor([more])])


def test_a_loss_beyond_the_grid_is_refused_by_name():
    share = Accumulator(layout((1,), with_loss=True), SumSection(grid_bits=48))
    with pytest.raises(SumOverflow, match=r"the loss sum reaches 9"):
        share.add([torch.zeros(1)], 9.0)


@pytest.mark.parametrize("values", [(math.nan, 1.0), (math.inf, -math.inf), (math.inf, 2.0), (-math.nan, math.nan)])
def test_what_is_not_finite_shows_in_the_norm_with_equal_bytes_in_any_order(values):
    sums = SumSection()
    results = []
    for order in (values, values[::-1]):
        shares = [Accumulator(layout((2,)), sums) for _ in values]
        for share, value in zip(shares, order, strict=True):
            share.add([torch.tensor([value, 1.0])])
        results.append(combine(whole(shares[0]), [whole(shares[1])], sums))
    assert results[0].tolist() == results[1].tolist() == [NOT_FINITE] * 2, "all of the tensor"
    assert in_floats(results[0], sums).isnan().all()
    assert not math.isfinite(squared_norm(results[0], layout((2,))))


def test_many_parts_that_are_not_finite_do_not_add_up_to_a_number():
    lost = torch.tensor([NOT_FINITE, 1])
    assert combine(lost, [lost] * 9, SumSection()).tolist() == [NOT_FINITE, 10]


@pytest.mark.parametrize("count", [1, 2, 5, 16_384, 16_385, 100_003])
def test_the_norm_is_right_and_the_same_for_any_number_of_threads(count):
    flat = torch.randn(count, generator=torch.Generator().manual_seed(1)).double()
    before = torch.get_num_threads()
    try:
        found = set()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.add(squared_norm(flat, layout((count,))))
    finally:
        torch.set_num_threads(before)
    exact = sum(Fraction(value) ** 2 for value in flat.tolist())
    assert len(found) == 1
    assert found.pop() == pytest.approx(float(exact), rel=1e-13)


def test_the_norm_follows_its_definition():
    """The tree written out, with Python floats."""
    flat = torch.randn(40_000, generator=torch.Generator().manual_seed(2)).double()
    values = [value * value for value in flat.tolist()]
    lanes = values[:16_384]
    for start in (16_384, 32_768):
        for i, square in enumerate(values[start : start + 16_384]):
            lanes[i] += square
    while len(lanes) > 1:
        half = (len(lanes) + 1) // 2
        lanes = [low + high for low, high in zip(lanes, [*lanes[half:], 0.0], strict=False)][:half]
    assert squared_norm(flat, layout((40_000,))) == lanes[0]


def test_fp32_sums_add_in_the_order_given():
    own, a, b = (torch.tensor([x], dtype=torch.float32) for x in (1.0, 1e8, -1e8))
    sums = SumSection(mode="fp32")
    assert combine(own, [a, b], sums).item() == 0.0
    assert combine(a, [b, own], sums).item() == 1.0


KINDS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 1, 70_001])
def test_an_accelerators_way_leaves_the_sums_that_a_cpus_leaves(kind, size, monkeypatch):
    """The peaks grow, so that each tensor becomes int64 on the way."""
    generator = torch.Generator().manual_seed(3)
    sums, shape = SumSection(grid_bits=24), layout((size,), (3, 5), (2,))
    here, there = Accumulator(shape, sums), as_accelerator(Accumulator(shape, sums))
    for power in (0, 3, 5, 8):
        gradients = [(torch.randn(each, generator=generator) * 2.0**power).to(kind) for each in shape.shapes]
        gradients[2][0] = math.nan if power == 5 else 1.0
        here.add(gradients, step=0)
        there.add(gradients, step=0)
        assert torch.equal(whole(here), whole(there))
        assert here._bounds == there._bounds
    assert [part.dtype for part in here._sums][1:2] == [part.dtype for part in there._sums][1:2] == [torch.int64]
    assert whole(here)[-2:].tolist() == [NOT_FINITE] * 2


def test_gradients_that_an_accelerator_could_not_add_are_given_once_more_and_no_others():
    sums, shape = SumSection(grid_bits=24), layout((3,), (2,))
    share = as_accelerator(Accumulator(shape, sums))
    first, second = torch.tensor([100.0, 1.0, -3.0]), torch.tensor([1.0, 2.0])
    for _ in range(2):
        share.add_one(1, second)
        share.add_one(0, first)
        missing = share.settle(step=0)
        assert missing in ((), (0,))
        for index in missing:
            share.add_one(index, (first, second)[index])
        assert share.settle(step=0) == ()
    assert share.flat.tolist() == [200.0, 2.0, -6.0, 2.0, 4.0]


def test_the_next_microbatch_may_be_given_before_the_last_one_is_asked_for():
    sums, shape = SumSection(grid_bits=24), layout((2,))
    share = as_accelerator(Accumulator(shape, sums))
    pending = []
    for value in (100.0, 60.0, 70.0, 1.0):  # below 128 sums fit into int32
        share.add_one(0, torch.tensor([value, -1.0]))
        pending.append(share.end(step=0))
    again = [value for value, each in zip((100.0, 60.0, 70.0, 1.0), pending, strict=True) if each.result()]
    assert again == [60.0, 70.0]
    for value in again:
        share.add_one(0, torch.tensor([value, -1.0]))
        assert share.settle(step=0) == ()
    assert share.flat.tolist() == [231.0, -4.0]


@pytest.mark.parametrize("values", [[3e6], [2e6] * 5])
def test_an_accelerator_refuses_what_a_cpu_refuses(values):
    found = []
    for share in (Accumulator(layout((1,)), SumSection()), as_accelerator(Accumulator(layout((1,)), SumSection()))):
        with pytest.raises(SumOverflow) as refused:
            for step, value in enumerate(values):
                share.add([torch.tensor([value])], step=step)
        found.append(str(refused.value))
    assert found[0] == found[1]


def test_a_tensor_is_small_again_after_a_pass_of_small_gradients():
    share = Accumulator(layout((2,)), SumSection(grid_bits=24))
    for values, wanted in (([200.0], torch.int64), ([], torch.int64), ([1.0], torch.int32)):
        for value in values:
            share.add([torch.tensor([value, 1.0])])
        share.zero()
        assert share._sums[0].dtype == wanted
    assert not share.flat.any()


def as_accelerator(share: Accumulator) -> Accumulator:
    """One that adds as on an accelerator, though its tensors lie in memory."""
    share._here = False
    return share
