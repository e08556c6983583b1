"""One contract, run over every codec in the registry: a new codec is tested by adding its row (and its error bound)."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from frames import reseal
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import codecs
from swarm.codecs import CodecError, Reason
from swarm.codecs.codec import HEADER_BYTES

SHAPES = [(4, 16, 64), (2, 3, 5), (1,), (64,), (65,), (130, 7), (), (0,), (2, 0, 3), (1, 2, 3, 4)]
EXTREMES = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 1e-30, 1e-8, 65504.0, 1e9, 3.3e38, -3.3e38, 127.5, 0.5]
LEVELS = {"int8": 127, "int6": 31, "int5": 15, "int4": 7}
PER_CHANNEL = ("int8-channel", "int6-channel", "int5-channel", "int4-channel")
CODED = ("huffman:int5-channel", "huffman:int4-channel", "huffman:log4-channel", "huffman:log4", "huffman:int8-channel")
SCALED = (*LEVELS, "int2", *PER_CHANNEL)


class Beside:
    """A codec for gradients beside the activation it is about: here that activation is the tensor itself."""

    def __init__(self, forward: str, backward: str) -> None:
        self._forward, self._codec = codecs.pair(forward, backward)

    def decode(self, *of: Any) -> torch.Tensor:
        return self._codec.decode(*of)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def encode(self, x: torch.Tensor) -> bytes:
        self._codec = self._codec.beside(self._forward.encode(x))
        return self._codec.encode(x)


ROWS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: codecs.get(name) for name in ("none", "bf16", *SCALED, "log4", "log4-channel")},
    "topk:0.1": lambda: codecs.get("topk:0.1"),
    "topk:0.01": lambda: codecs.get("topk:0.01"),
    "topk-independent:0.3": lambda: codecs.get("topk-independent:0.3"),
    "topk-shared": lambda: Beside("topk:0.1", "topk-shared"),
    "delta:4": lambda: codecs.get("delta:4"),
    **{name: lambda name=name: codecs.get(name) for name in CODED},
    **{name: lambda name=name: codecs.get(name) for name in ("entropy:1.4", "entropy-dithered:2")},
    "ef-mixed:topk:0.2": lambda: codecs.get("ef-mixed:topk:0.2"),
    "ef-mixed:bf16": lambda: codecs.get("ef-mixed:bf16"),
}
"""Each codec by name; those with a parameter by one or two values of it."""


def plain(name: str) -> str:
    """The codec whose values it carries."""
    return name.removeprefix("huffman:")


def worst_error(name: str, x: torch.Tensor) -> torch.Tensor:
    """Largest allowed |decoded − value| for each value of `x`, of the same shape."""
    size, name = x.double().abs(), plain(name)
    match name.partition(":")[0]:
        case "none":
            return torch.zeros_like(size)
        case "bf16" | "ef-mixed" if "topk" not in name:  # half an ulp, one ulp where the largest finite value saturates
            return size * 2.0**-8 + 1e-40
        case "delta":  # whole: fp16, which saturates
            return torch.where(size > 65504, size - 65504 + 1, size * 2.0**-11 + 2.0**-25)
        case "residual" if name.endswith("int4"):
            return per_block(x, lambda block: block.amax() * (0.51 / 7) ** 2) + size * 2.0**-22 + 1e-33
        case "residual":  # log4 loses no more than what it is given, or its lowest level where that is less
            return channel_peaks(size) * (0.51 / 7) * (1 + 1e-6) + 1e-30
        case "int8" | "int6" | "int5" | "int4":
            return per_block(x, lambda block: block.amax() / LEVELS[name] * 0.51)
        case "int8-channel" | "int6-channel" | "int5-channel" | "int4-channel":
            return channel_peaks(size) / LEVELS[name.removesuffix("-channel")] * 0.51 + 1e-33
        case "int2":  # the farther of absmax's half step and what Lloyd-Max's outer level leaves of the largest
            return per_block(x, lambda block: max(block.amax() * 0.51, block.amax() - 1.5 * root(block), root(block)))
        case "log4":  # the neighbouring level is at most as far away as zero, or the lowest level from zero
            rows = size.reshape(-1, x.shape[-1] if x.ndim else 1)
            floor = rows.amax(dim=1, keepdim=True) * 1.01 / 64
            return torch.maximum(rows, floor).reshape(size.shape) * (1 + 1e-6) + 1e-30
        case "log4-channel":
            return torch.maximum(size, channel_peaks(size) * 1.01 / 64) * (1 + 1e-6) + 1e-30
        case "entropy" | "entropy-dithered":
            relative = float(name.partition(":")[2])
            typical = 1.4826 * x.abs().reshape(-1).median().item() if "dithered" not in name else 0.0
            usual = typical if typical * relative >= 2.0**-100 else size.square().mean().sqrt().item()
            step = min(usual * relative * 1.01, 2.0**120)
            if step < 1.01 * 2.0**-100:  # all values become zero
                return size + 1e-33
            return (size - 123 * step).clamp(min=0.51 * step + 1e-33)
        case "topk" | "topk-independent" | "topk-shared" | "ef-mixed":  # what is dropped is no larger than what is kept
            rows = size.reshape(x.shape[0] if x.ndim > 1 else 1, -1)
            fraction = 0.1 if name in ("topk-shared", "ef-mixed:topk:0.2") else float(name.partition(":")[2])
            keep = max(1, round(fraction * rows.shape[1]))
            least = rows.sort(dim=1, descending=True).values[:, keep - 1 : keep]
            return torch.where(rows > least, rows * 2.0**-8 + 1e-40, least).reshape(size.shape)
    raise AssertionError(f"give codec {name} an error bound here")


def per_block(x: torch.Tensor, bound: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """`bound` of the magnitudes of each block of 64, for every value of the block."""
    blocks = x.double().abs().reshape(-1).split(64)
    return torch.cat([torch.full_like(block, float(bound(block)) + 1e-33) for block in blocks]).reshape(x.shape)


def channel_peaks(size: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of each channel (index of the last dimension), for every value of it."""
    table = size.reshape(-1, size.shape[-1] if size.ndim else 1)
    return table.amax(dim=0, keepdim=True).expand_as(table).reshape(size.shape)


def root(block: torch.Tensor) -> torch.Tensor:
    """Root mean square; a short block is filled up with zeros."""
    return (block.square().sum() / 64).sqrt()


def sample(shape: tuple[int, ...], seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def check_round_trip(name: str, x: torch.Tensor) -> None:
    codec = ROWS[name]()
    frame = codec.encode(x)
    assert len(frame) <= codec.max_bytes(x.shape), x
    y = codec.decode(frame, tuple(x.shape))
    assert y.shape == x.shape and y.dtype == torch.float32 and y.is_contiguous(), x
    assert torch.isfinite(y).all(), x
    if not x.numel():
        return
    assert ((y.double() - x.double()).abs() <= worst_error(name, x)).all(), x


def reason_of(call: Callable[[], object]) -> Reason | None:
    """Why `call` is refused; None if it is not."""
    try:
        call()
    except CodecError as error:
        return error.reason
    return None


RULES: list[Callable[..., None]] = []


def rule(check: Callable[..., None]) -> Callable[..., None]:
    """Add it to the contract, which is one test of each codec: hundreds would cost more to hand out than to run."""
    RULES.append(check)
    return check


@rule
def round_trip(name: str) -> None:
    for shape in SHAPES:
        check_round_trip(name, sample(shape))


@rule
def round_trip_at_every_magnitude(name: str) -> None:
    for scale in (1e-42, 1e-30, 1e-12, 1e-6, 1e3, 1e9, 1e20, 5e37):
        check_round_trip(name, sample((3, 100), scale=scale))


@rule
@given(values=st.lists(st.floats(-(2.0**127), 2.0**127, width=32) | st.sampled_from(EXTREMES), max_size=150))
@settings(max_examples=40, deadline=None)
def round_trip_of_any_finite_values(name: str, values: list[float]) -> None:
    # the bound of these holds for blocks and channels at most 2^29 times smaller than the largest
    if plain(name) in SCALED or name.startswith("residual"):
        top = max(map(abs, values), default=0.0)
        values = [v if abs(v) * 2.0**10 > top else 0.0 for v in values]
    check_round_trip(name, torch.tensor(values, dtype=torch.float32))


@rule
def bf16_source_and_target(name: str) -> None:
    codec = ROWS[name]()
    x = sample((3, 65)).to(torch.bfloat16)
    assert codec.decode(codec.encode(x), (3, 65)).dtype == torch.float32
    y = codec.decode(codec.encode(x), (3, 65), torch.bfloat16)
    assert y.dtype == torch.bfloat16
    if name in ("none", "bf16"):
        assert torch.equal(x, y)


@rule
def bf16_never_overflows(name: str) -> None:
    codec = ROWS[name]()
    x = torch.tensor([torch.finfo(torch.float32).max, 1.0])
    assert torch.isfinite(codec.decode(codec.encode(x), (2,), torch.bfloat16)).all()


@rule
def frames_do_not_depend_on_threads_or_strides(name: str) -> None:
    codec = ROWS[name]()
    x = sample((131, 1024), seed=3)
    threads = torch.get_num_threads()
    frames, tensors = set(), []
    try:
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            frames.add(codec.encode(x))
            tensors.append(codec.decode(codec.encode(x), x.shape))
    finally:
        torch.set_num_threads(threads)
    padded = torch.zeros(131, 1031)
    padded[:, 3:1027] = x
    frames.add(codec.encode(padded[:, 3:1027]))
    frames.add(codec.encode(x.t().contiguous().t()))
    frames.add(codec.encode(x.clone().requires_grad_()))
    assert len(frames) == 1
    assert all(torch.equal(tensors[0], other) for other in tensors)


@rule
def decode_from_any_alignment_gives_a_tensor_of_its_own(name: str) -> None:
    codec = ROWS[name]()
    x = sample((5, 77), seed=1)
    frame = codec.encode(x)
    for offset in (0, 1, 2, 3, 7, 63):
        held = bytearray(b"\xff" * offset + frame + b"\xff" * 5)
        y = codec.decode(memoryview(held)[offset : offset + len(frame)], (5, 77))
        held[:] = bytes(len(held))
        assert torch.equal(y, codec.decode(frame, (5, 77))), offset
        assert y.data_ptr() % 64 == 0, offset


@rule
def encoding_a_decoded_tensor_changes_nothing(name: str) -> None:
    codec = ROWS[name]()
    frame = codec.encode(sample((9, 64), seed=2))
    decoded = codec.decode(frame, (9, 64))
    again = codec.encode(decoded)
    if name.removeprefix("huffman:").startswith(
        "log4"
    ):  # the top level may have lost its last value, and with it the scale halves
        assert torch.equal(codec.decode(again, (9, 64)), decoded)
    elif name != "int2" and not name.startswith(
        ("residual", "entropy")
    ):  # rounding changes the root mean square, and the largest
        assert again == frame


@rule
def zeros_stay_zero(name: str) -> None:
    codec = ROWS[name]()
    assert not codec.decode(codec.encode(torch.zeros(3, 70)), (3, 70)).any()
    if "dithered" in name:  # a zero beside other values gets the error of its dither
        return
    x = torch.zeros(256)
    x[100] = 3.0
    assert codec.decode(codec.encode(x), (256,)).nonzero().tolist() == [[100]]


@rule
def non_finite_tensors_are_not_encoded(name: str) -> None:
    for bad, place in itertools.product((math.nan, math.inf, -math.inf), (0, 63, 64, 129)):
        x = sample((130,))
        x[place] = bad
        assert reason_of(lambda x=x: ROWS[name]().encode(x)) is Reason.NOT_FINITE, (bad, place)


@rule
def unsupported_tensors_are_not_encoded(name: str) -> None:
    for x in (
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(2, dtype=torch.float64),
        torch.zeros(1, 1, 1, 1, 1),
        torch.zeros(0, 1, 2**21),
        torch.zeros(0, 1, 1, 2**16),
    ):
        assert reason_of(lambda x=x: ROWS[name]().encode(x)) is Reason.UNSUPPORTED, (x.dtype, x.shape)


@rule
def every_truncation_and_extension_is_refused(name: str) -> None:
    codec = ROWS[name]()
    frame = codec.encode(sample((2, 33)))
    for size in range(len(frame)):
        with pytest.raises(CodecError) as caught:
            codec.decode(frame[:size], (2, 33))
        assert caught.value.reason is (Reason.TRUNCATED if size < HEADER_BYTES else Reason.BAD_CHECKSUM)
    with pytest.raises(CodecError) as caught:
        codec.decode(frame + b"\0", (2, 33))
    full = len(frame) == codec.max_bytes((2, 33))
    assert caught.value.reason is (Reason.OVERSIZED if full else Reason.BAD_CHECKSUM)


@rule
def every_flipped_bit_is_refused(name: str) -> None:
    codec = ROWS[name]()
    frame = codec.encode(sample((2, 33)))
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CodecError):
            codec.decode(damaged, (2, 33))


LIES = (
    ({"codec_id": 250}, Reason.WRONG_CODEC),
    ({"version": 250}, Reason.WRONG_VERSION),
    ({"dtype": 9}, Reason.WRONG_DTYPE),
    ({"ndim": 3}, Reason.WRONG_SHAPE),
    ({"ndim": 0}, Reason.WRONG_SHAPE),
    ({"ndim": 15}, Reason.WRONG_SHAPE),
    ({"dims": 3 | 33 << 32}, Reason.WRONG_SHAPE),
    ({"dims": 2 | (2**32 - 1) << 32}, Reason.WRONG_SHAPE),
    ({"dims": 33 | 2 << 32}, Reason.WRONG_SHAPE),
)


@rule
def a_lying_header_is_refused_by_name(name: str) -> None:
    codec = ROWS[name]()
    frame = codec.encode(sample((2, 33)))
    for lies, reason in LIES:
        lying = reseal(frame, **lies)
        assert reason_of(lambda lying=lying: codec.decode(lying, (2, 33))) is reason, lies


@rule
def a_frame_of_another_shape_or_codec_is_refused(name: str) -> None:
    frame = ROWS[name]().encode(sample((2, 33)))
    for shape in [(33, 2), (66,), (2, 33, 1), (), (2**20, 2**20)]:
        with pytest.raises(CodecError) as caught:
            ROWS[name]().decode(frame, shape)
        assert caught.value.reason is Reason.WRONG_SHAPE
    for other in set(ROWS) - {name}:
        with pytest.raises(CodecError) as caught:
            ROWS[other]().decode(frame, (2, 33))
        if ROWS[other]().codec_id != ROWS[name]().codec_id:
            assert caught.value.reason is Reason.WRONG_CODEC


@rule
@given(raw=st.binary(max_size=200), header=st.booleans())
@settings(max_examples=60, deadline=None)
def random_bytes_never_break_decode(name: str, raw: bytes, header: bool) -> None:
    codec = ROWS[name]()
    if not header:
        with pytest.raises(CodecError):
            codec.decode(raw, (2, 16))
        return
    # A sender with a right header and checksum and any payload: finite values of the right shape, or a named refusal.
    frame = reseal(codec.encode(torch.ones(2, 16))[:HEADER_BYTES] + raw)
    try:
        y = codec.decode(frame, (2, 16))
    except CodecError:
        return
    assert y.shape == (2, 16) and torch.isfinite(y).all()
    codec.check(frame, (2, 16))


@rule
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def any_payload_of_the_right_length_decodes_to_finite_values_or_is_refused(name: str, data: st.DataObject) -> None:
    codec = ROWS[name]()
    frame = codec.encode(torch.ones(2, 16))
    size = len(frame) - HEADER_BYTES
    payload = data.draw(st.binary(min_size=size, max_size=size) | st.sampled_from([b"\xff" * size, b"\x7f" * size]))
    sealed = reseal(frame[:HEADER_BYTES] + payload)
    try:
        y = codec.decode(sealed, (2, 16))
    except CodecError as error:
        with pytest.raises(CodecError):  # what a receiver asks says the same, though it reads less
            codec.check(sealed, (2, 16))
        assert error.reason in (
            Reason.NOT_FINITE,
            Reason.BAD_SCALE,
            Reason.BAD_MASK,
            Reason.BAD_CODES,
            Reason.WRONG_FORWARD,
        )
    else:
        assert y.shape == (2, 16) and torch.isfinite(y).all()
        codec.check(sealed, (2, 16))


@pytest.mark.parametrize("name", ROWS)
def test_a_codec_keeps_every_rule(name: str) -> None:
    for check in RULES:
        check(name=name)


def test_every_codec_is_under_contract() -> None:
    same = {"ef21", "ef", "auto"}  # frames of delta, of the codec inside, of whichever is chosen
    assert {name.partition(":")[0] for name in codecs.NAMES} - same == {name.partition(":")[0] for name in ROWS}


def test_residual_is_refused_and_names_the_replacement() -> None:
    with pytest.raises(codecs.UnknownCodec, match=r"was removed.*Write .int8."):
        codecs.get("residual:int4+int4")


def test_unknown_codec_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'int9'.*'int8'.*none, bf16, int8, int6, int5, int4, int2, log4"):
        codecs.get("int9")
