"""What only codecs `huffman:…` promise: the same values in fewer bytes, and no stream that unpacks without end."""

import zlib

import pytest
import torch
from frames import reseal

from swarm import codecs
from swarm.codecs import CodecError, Reason
from swarm.codecs.codec import HEADER_BYTES

BITS_OF_GAUSSIAN = {
    "int6-channel": 5.6,
    "int5-channel": 4.6,
    "int4-channel": 3.5,
    "log4-channel": 3.8,
    "log4": 3.9,
}
"""Bits a value that 4,096 values which look Gaussian take at most, scales aside."""


def gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", BITS_OF_GAUSSIAN)
def test_values_are_those_of_the_codec_inside_in_fewer_bytes(name: str) -> None:
    x = gaussian(4, 64, 16)
    inner, short = codecs.get(name), codecs.get(f"huffman:{name}")
    frame = short.encode(x)
    assert torch.equal(short.decode(frame, x.shape), inner.decode(inner.encode(x), x.shape))
    head = len(inner.encode(x)) - HEADER_BYTES - x.numel() * inner.bits // 8
    assert 8 * (len(frame) - HEADER_BYTES - head) / x.numel() < BITS_OF_GAUSSIAN[name] < inner.bits


@pytest.mark.parametrize(("name", "levels"), [("int6-channel", 31), ("int5-channel", 15), ("int4-channel", 7)])
def test_where_nothing_is_won_a_frame_is_that_of_the_codec_inside(name: str, levels: int) -> None:
    x = torch.randint(-levels, levels + 1, (16, 16), generator=torch.Generator().manual_seed(5)).float()
    inner, short = codecs.get(name), codecs.get(f"huffman:{name}")
    assert short.encode(x)[HEADER_BYTES:] == inner.encode(x)[HEADER_BYTES:]
    assert short.encode(x) != inner.encode(x), "a frame of one is never taken for one of the other"
    assert torch.equal(short.decode(short.encode(x), x.shape), inner.decode(inner.encode(x), x.shape))


def deflated(codes: bytes, repetitions: bool = False) -> bytes:
    strategy = zlib.Z_DEFAULT_STRATEGY if repetitions else zlib.Z_HUFFMAN_ONLY
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15, 9, strategy)
    return deflater.compress(codes) + deflater.flush()


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (deflated(bytes(1 << 26), repetitions=True), "does not contain 4096 codes"),
        (deflated(bytes(4095)), "does not contain 4096 codes"),
        (deflated(bytes(4096)) + b"more", "does not contain 4096 codes"),
        (deflated(bytes(4096))[:-1], "does not contain 4096 codes"),
        (deflated(b"\x10" * 4096), "code 16 exceeds the 4 bits of int4-channel"),
        (b"\xff" * 600, "invalid"),
    ],
    ids=["a bomb", "too few", "something behind", "cut off", "a code too large", "no stream"],
)
def test_a_hostile_stream_is_refused_by_name(stream: bytes, what: str) -> None:
    codec = codecs.get("huffman:int4-channel")
    x = gaussian(4, 64, 16)
    head = codec.encode(x)[: HEADER_BYTES + 2 + 2 * 16]
    payload = head[HEADER_BYTES:] + stream[:1500]
    with pytest.raises(CodecError, match=what) as caught:
        codec.decode(reseal(head[:HEADER_BYTES] + payload), x.shape)
    assert caught.value.reason is Reason.BAD_CODES


@pytest.mark.parametrize("name", ["huffman:int4-channel", "entropy:1"])
def test_a_stream_of_repetitions_is_refused_before_it_is_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of some kilobytes that stands for millions of values would keep its receiver busy."""
    codec, x = codecs.get(name), torch.zeros(512, 511)
    frame = codec.encode(x)
    assert torch.equal(codec.decode(frame, x.shape), x), "one bit for each code is the least that anybody packs"
    count = x.numel() if name.startswith("huffman") else x.numel() // 2
    stream = deflated(bytes(count), repetitions=True)
    head = len(frame) - len(deflated(bytes(count)))
    monkeypatch.setattr(zlib, "decompressobj", None)
    with pytest.raises(CodecError, match=f"have less than one bit for each of {count}") as caught:
        codec.decode(reseal(frame[:head] + stream), x.shape)
    assert caught.value.reason is Reason.BAD_CODES


@pytest.mark.parametrize("inside", ["int8", "none", "delta:4", "huffman:log4", ""])
def test_codecs_without_a_level_for_each_value_are_refused_with_the_fix(inside: str) -> None:
    with pytest.raises(codecs.UnknownCodec, match="write huffman:int4-channel"):
        codecs.get(f"huffman:{inside}")
