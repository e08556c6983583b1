"""What only the TopK codecs promise: exactly K of each sample, the first of equals, gradients at the same places."""

import math
import struct

import pytest
import torch
from frames import reseal

from swarm import codecs
from swarm.codecs import CodecError, Reason, UnknownCodec
from swarm.codecs.codec import HEADER_BYTES

SHAPE = (3, 10, 16)


def sample(seed: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def forged(frame: bytes, payload: bytes) -> bytes:
    return reseal(frame[:HEADER_BYTES] + payload)


@pytest.mark.parametrize("fraction", [1e-6, 0.01, 0.1, 0.5, 1.0])
def test_each_sample_keeps_its_own_largest(fraction: float) -> None:
    codec = codecs.get(f"topk:{fraction}")
    x = sample(0)
    x[1] *= 1e-3
    y = codec.decode(codec.encode(x), SHAPE)
    keep = max(1, round(fraction * 160))
    for before, after in zip(x, y, strict=True):
        wanted = set(before.abs().flatten().topk(keep).indices.tolist())
        assert set(after.flatten().nonzero().flatten().tolist()) == wanted


def test_of_equal_magnitudes_the_first_are_kept() -> None:
    codec = codecs.get("topk:0.5")
    x = torch.tensor([[1.0, -1.0, 2.0, 1.0, -1.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    frame = codec.encode(x)
    assert codec.decode(frame, (2, 6)).tolist() == [[1, -1, 2, 0, 0, 0], [0] * 6]
    mask, _ = codec.positions(frame, (2, 6))
    assert mask.int().tolist() == [[1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("fraction", "width", "position_bytes"),
    [(0.1, 1000, 125), (0.01, 1000, 20), (0.1, 100_000, 12_500), (0.01, 100_000, 4_000), (0.001, 65_536, 132)],
)
def test_positions_are_a_bitmap_or_indices_whichever_is_smaller(
    fraction: float, width: int, position_bytes: int
) -> None:
    codec = codecs.get(f"topk:{fraction}")
    x = sample(1, (2, width))
    frame = codec.encode(x)
    assert len(frame) == codec.max_bytes((2, width))
    assert len(frame) == HEADER_BYTES + 2 * (position_bytes + 2 * round(fraction * width))
    assert codec.decode(frame, (2, width)).count_nonzero() == 2 * round(fraction * width)


@pytest.mark.parametrize("fraction", [0.1, 0.01])
def test_gradients_carry_values_alone_at_the_places_of_the_activation(fraction: float) -> None:
    forward, backward = codecs.pair(f"topk:{fraction}", "topk-shared")
    frame = forward.encode(sample(2))
    gradient = sample(3)
    beside = backward.beside(memoryview(frame))
    encoded = beside.encode(gradient)
    assert len(encoded) == HEADER_BYTES + 4 + 3 * 2 * round(fraction * 160) == backward.max_bytes(SHAPE)
    mask = forward.decode(frame, SHAPE) != 0
    assert torch.equal(beside.decode(encoded, SHAPE), (gradient * mask).bfloat16().float())


def test_a_gradient_is_never_put_at_the_places_of_another_frame() -> None:
    forward, backward = codecs.pair("topk:0.1", "topk-shared")
    encoded = backward.beside(forward.encode(sample(2))).encode(sample(3))
    others = [
        forward.encode(sample(4)),
        codecs.get("topk:0.2").encode(sample(2)),
        codecs.get("int8").encode(sample(2)),
        forward.encode(sample(2, (3, 160))),
        b"",
    ]
    for other in others:
        with pytest.raises(CodecError) as caught:
            backward.beside(other).decode(encoded, SHAPE)
        assert caught.value.reason is Reason.WRONG_FORWARD
    for use in (lambda: backward.decode(encoded, SHAPE), lambda: backward.encode(sample(3))):
        with pytest.raises(CodecError, match="needs the forward frame") as caught:
            use()
        assert caught.value.reason is Reason.WRONG_FORWARD


def test_without_the_forward_frame_a_gradient_is_checked_by_itself() -> None:
    forward, backward = codecs.pair("topk:0.1", "topk-shared")
    encoded = backward.beside(forward.encode(sample(2))).encode(sample(3))
    backward.check(encoded, SHAPE)
    damaged = {
        Reason.BAD_CHECKSUM: encoded[:-1] + b"\0",
        Reason.WRONG_LENGTH: forged(encoded, encoded[HEADER_BYTES:-2]),
        Reason.NOT_FINITE: forged(encoded, encoded[HEADER_BYTES:-2] + b"\x80\x7f"),
    }
    for reason, frame in damaged.items():
        with pytest.raises(CodecError) as caught:
            backward.check(frame, SHAPE)
        assert caught.value.reason is reason


def test_positions_that_no_sender_writes_are_refused() -> None:
    bitmap, indices = codecs.get("topk:0.1"), codecs.get("topk:0.02")
    x = sample(5, (2, 100))
    frame = bitmap.encode(x)
    full = bytearray(frame[HEADER_BYTES:])
    full[3] ^= 1  # one more, or one less
    padded = bytearray(frame[HEADER_BYTES:])
    padded[12] |= 0x80
    for payload in (full, padded):
        with pytest.raises(CodecError) as caught:
            bitmap.decode(forged(frame, bytes(payload)), (2, 100))
        assert caught.value.reason is Reason.BAD_MASK
    frame = indices.encode(x)
    for pairs in ((5, 5, 1, 2), (6, 5, 1, 2), (1, 100, 1, 2)):
        payload = struct.pack("<4H", *pairs) + frame[HEADER_BYTES + 8 :]
        with pytest.raises(CodecError) as caught:
            indices.decode(forged(frame, payload), (2, 100))
        assert caught.value.reason is Reason.BAD_MASK


@pytest.mark.parametrize(
    ("forward", "backward", "message"),
    [
        ("topk", "int8", "codec.forward: codec 'topk': write topk:0.1 to keep a tenth"),
        ("topk:", "int8", "write topk:0.1"),
        ("topk:x", "int8", "write topk:0.1"),
        ("topk:0", "int8", "0 of the values cannot be kept; give a fraction from 1e-06 to 1"),
        ("topk:1.5", "int8", "1.5 of the values cannot be kept"),
        ("topk:nan", "int8", "nan of the values cannot be kept"),
        ("topk-shared", "int8", "is only for gradients"),
        ("int8", "topk-shared", 'set codec.forward = "topk:0.1"'),
        ("topk-independent:0.1", "topk-shared", 'set codec.forward = "topk:0.1"'),
        ("none", "topk:0.1", '"topk-shared", or, to study this effect, "topk-independent:0.1"'),
        ("none", "int9", "codec.backward: unknown codec 'int9': did you mean 'int8'"),
    ],
)
def test_pairs_that_make_no_sense_are_refused_with_the_fix(forward: str, backward: str, message: str) -> None:
    with pytest.raises(UnknownCodec) as caught:
        codecs.pair(forward, backward)
    assert message in str(caught.value)


def test_pairs_for_study_are_allowed() -> None:
    for forward, backward in (("none", "topk-independent:0.1"), ("topk:0.1", "int8"), ("topk:0.1", "none")):
        assert [codec.name for codec in codecs.pair(forward, backward)] == [forward, backward]
    assert math.isclose(codecs.get("topk:0.10").fraction, 0.1)
