"""What only the codecs `entropy` promise: few bits, no bias with dither, and no stream that unpacks without end."""

import struct
import zlib

import pytest
import torch
from frames import reseal

from swarm import codecs
from swarm.codecs import CodecError, Reason, UnknownCodec
from swarm.codecs.codec import HEADER_BYTES


def gaussian(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", [f"entropy{kind}:{step}" for kind in ("", "-dithered") for step in (0.7, 1.4, 2)])
def test_the_size_of_normal_values_is_about_their_entropy(name: str) -> None:
    codec, x = codecs.get(name), gaussian(8, 128, 32)
    usual = codec.usual_bytes(x.shape)
    assert 0.95 < len(codec.encode(x)) / usual < 1.06
    assert usual < codec.max_bytes(x.shape) / 2


def test_a_few_large_values_do_not_make_the_step_of_others_coarser() -> None:
    x = gaussian(1024, 32)
    x[0] = 1000.0
    codec = codecs.get("entropy:1")
    error = (codec.decode(codec.encode(x), x.shape) - x)[1:]
    assert error.abs().max() < 0.52


def test_dither_leaves_no_bias_in_values_far_smaller_than_a_step() -> None:
    small = torch.full((1024, 32), 0.05)
    small[::32] = gaussian(32, 32) * 5.6  # root mean square about one
    plain, dithered = codecs.get("entropy:4"), codecs.get("entropy-dithered:4")
    quiet = torch.ones(1024, dtype=torch.bool)
    quiet[::32] = False
    mean = dithered.decode(dithered.encode(small), small.shape)[quiet].mean().item()
    assert mean == pytest.approx(0.05, abs=0.02), "0.05 ± 1.15 ÷ √31,744 · 3"
    assert not torch.equal(plain.decode(plain.encode(small), small.shape), small)


def test_equal_tensors_have_equal_frames_and_others_have_another_dither() -> None:
    codec, x = codecs.get("entropy-dithered:1"), gaussian(64, 32)
    assert codec.encode(x) == codec.encode(x.clone())
    other = x.clone()
    other[0, 0] += 1e-3
    drawn = [codec.decode(codec.encode(each), x.shape) - each for each in (x, other)]
    assert not torch.allclose(drawn[0][1:], drawn[1][1:], atol=1e-3)


@pytest.mark.parametrize("values", [torch.zeros(7, 3), torch.full((3,), 1e-30), torch.tensor([0.0] * 90 + [5.0])])
def test_tensors_without_a_usual_size_arrive(values: torch.Tensor) -> None:
    codec = codecs.get("entropy:1")
    arrived = codec.decode(codec.encode(values), values.shape)
    torch.testing.assert_close(arrived, values, atol=values.abs().max().item() / 2 + 1e-33, rtol=0)


def _framed(name: str, x: torch.Tensor, payload: bytes) -> bytes:
    return reseal(codecs.get(name).encode(x)[:HEADER_BYTES] + payload)


def _deflated(pairs: bytes, strategy: int = zlib.Z_HUFFMAN_ONLY) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15, 9, strategy)
    return deflater.compress(pairs) + deflater.flush()


X = torch.ones(8, 8)
ALL = _deflated(bytes([7 * 16 + 7]) * 32)


NOBODY_PACKS = {
    "a stream without end": (struct.pack("<BfI", 1, 1.0, 0) + _deflated(bytes(4_000), zlib.Z_RLE), Reason.BAD_CODES),
    "a stream cut off": (struct.pack("<BfI", 1, 1.0, 0) + ALL[:-1], Reason.BAD_CODES),
    "bytes after the stream": (struct.pack("<BfI", 1, 1.0, 0) + ALL + b"\0", Reason.BAD_CODES),
    "too many large codes": (struct.pack("<BfI", 1, 1.0, 2**32 - 1) + ALL, Reason.BAD_CODES),
    "a large code without a place": (struct.pack("<BfI", 1, 1.0, 1) + b"\x63" + ALL, Reason.BAD_CODES),
    "a place without a large code": (struct.pack("<BfI", 1, 1.0, 0) + _deflated(bytes([255]) * 32), Reason.BAD_CODES),
    "too few codes": (struct.pack("<Bf", 0, 1.0) + bytes(63), Reason.BAD_CODES),
    "an unknown kind": (struct.pack("<Bf", 2, 1.0) + bytes(64), Reason.BAD_CODES),
    "a step that is no number": (struct.pack("<Bf", 0, float("nan")) + bytes(64), Reason.BAD_SCALE),
    "an infinite step": (struct.pack("<Bf", 0, float("inf")) + bytes(64), Reason.BAD_SCALE),
    "a negative step": (struct.pack("<Bf", 0, -1.0) + bytes(64), Reason.BAD_SCALE),
    "half a head": (struct.pack("<Bf", 0, 1.0)[:4], Reason.WRONG_LENGTH),
}


@pytest.mark.parametrize("kind", NOBODY_PACKS)
def test_payloads_that_nobody_packs_are_refused(kind: str) -> None:
    payload, reason = NOBODY_PACKS[kind]
    with pytest.raises(CodecError) as caught:
        codecs.get("entropy:1").decode(_framed("entropy:1", X, payload), X.shape)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("entropy", "write entropy:1 to round values"),
        ("entropy:", "write entropy:1 to round values"),
        ("entropy:x", "write entropy:1 to round values"),
        ("entropy:-1", "write entropy:1 to round values"),
        ("entropy:nan", "write entropy:1 to round values"),
        ("entropy:17", "a step of 17 is not from 0.05 to 16; write entropy:1"),
        ("entropy-dithered:0", "a step of 0 is not from 0.05 to 16; write entropy-dithered:1"),
        ("ef-mixed:entropy:1", "whose frames all have the same size"),
    ],
)
def test_a_wrong_step_is_named(name: str, reason: str) -> None:
    with pytest.raises(UnknownCodec) as caught:
        codecs.pair(name, "int8")
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ["entropy:1.4", "entropy-dithered:1"])
def test_no_number_that_some_machines_round_to_zero_decides_a_step(name: str) -> None:
    codec, denormal = codecs.get(name), 1.4e-45
    for values, is_zero in (([5.6e-32, denormal], True), ([1e-20, denormal, denormal], False)):
        x = torch.tensor(values)
        arrived = codec.decode(codec.encode(x), x.shape)
        assert (not arrived.any()) is is_zero, "the median is denormal, so the root mean square decides"
        assert abs(arrived[0].item() - values[0]) <= values[0]
