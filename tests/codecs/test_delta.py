"""Codec `delta`: the change is made and undone as written, errors of one visit are corrected in the next."""

import pytest
import torch

from swarm import codecs
from swarm.codecs import CodecError, Reason, UnknownCodec

INNER = {"delta:8": "int8", "delta:4": "int4", "delta:2": "int2"}


def sample(seed: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn((3, 5, 70), generator=torch.Generator().manual_seed(seed)) * scale


@pytest.fixture(params=INNER)
def delta(request: pytest.FixtureRequest) -> codecs.Delta:
    codec = codecs.get(request.param)
    assert isinstance(codec, codecs.Delta) and codec.name == request.param
    return codec


def test_a_change_is_what_the_quantiser_makes_of_it_added_to_the_base(delta: codecs.Delta) -> None:
    x, base = sample(1), sample(2).half()
    inner = codecs.get(INNER[delta.name])
    expected = (base + inner.decode(inner.encode(x - base), x.shape)).half().float()
    codec = delta.against(base)
    frame = codec.encode(x)
    assert torch.equal(codec.decode(frame, x.shape), expected)
    assert len(frame) == len(inner.encode(x)) < len(delta.encode(x))


@pytest.mark.parametrize("name", ["bf16", "log4", "int5", "int4-channel", "huffman:log4", "topk:0.2"])
def test_any_codec_without_state_can_carry_the_change(name: str) -> None:
    codec, inner = codecs.get(f"delta:{name}"), codecs.get(name)
    assert isinstance(codec, codecs.Delta)
    x, base = sample(1), sample(2).half()
    frame = codec.against(base).encode(x)
    expected = (base + inner.decode(inner.encode(x - base), x.shape)).half().float()
    assert torch.equal(codec.against(base).decode(frame, x.shape), expected)
    codec.check_change(frame, x.shape)


def test_a_change_beyond_fp16_saturates_also_where_it_is_bf16() -> None:
    codec = codecs.get("delta:bf16")
    assert isinstance(codec, codecs.Delta)
    change = codec.against(sample(2).half())
    crossed = change.decode(change.encode(sample(1).sign() * 1e38), (3, 5, 70))
    assert torch.equal(crossed, sample(1).sign() * 65504)


def test_the_reconstruction_crosses_whole_without_loss(delta: codecs.Delta) -> None:
    codec = delta.against(sample(2).half())
    crossed = codec.decode(codec.encode(sample(1)), (3, 5, 70))
    assert torch.equal(delta.decode(delta.encode(crossed), crossed.shape), crossed)


def test_errors_shrink_with_the_changes(delta: codecs.Delta) -> None:
    """An activation that stays where it is: each visit sends what is left, until fp16 holds no more."""
    x, crossed = sample(1), torch.zeros(3, 5, 70)
    errors = []
    for _ in range(6):
        codec = delta.against(crossed.half())
        crossed = codec.decode(codec.encode(x), x.shape)
        errors.append((crossed - x).norm().item() / x.norm().item())
    assert errors[-1] < 0.02 and errors[-1] < errors[0] / 4


def test_an_empty_change_changes_nothing(delta: codecs.Delta) -> None:
    base = sample(3).half()
    codec = delta.against(base)
    assert torch.equal(codec.decode(codec.encode(base.float()), base.shape), base.float())


def test_values_beyond_fp16_saturate(delta: codecs.Delta) -> None:
    x = torch.tensor([1e6, -1e6, 70_000.0, 1.0])
    assert delta.decode(delta.encode(x), (4,)).tolist() == [65504.0, -65504.0, 65504.0, 1.0]
    codec = delta.against(torch.tensor([65504.0, -65504.0, 0.0, 0.0], dtype=torch.float16))
    assert codec.decode(codec.encode(x), (4,)).abs().amax() <= 65504.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_encoded(delta: codecs.Delta, bad: float) -> None:
    x = sample(1)
    x[1, 2, 3] = bad
    with pytest.raises(CodecError) as caught:
        delta.against(sample(2).half()).encode(x)
    assert caught.value.reason is Reason.NOT_FINITE


def test_whole_and_change_are_told_apart(delta: codecs.Delta) -> None:
    x, base = sample(1), sample(2).half()
    codec = delta.against(base)
    for reader, frame in ((delta, codec.encode(x)), (codec, delta.encode(x))):
        with pytest.raises(CodecError) as caught:
            reader.decode(frame, x.shape)
        assert caught.value.reason is Reason.WRONG_CODEC


def test_a_base_of_another_shape_is_refused(delta: codecs.Delta) -> None:
    codec = delta.against(sample(2)[:, :, :1].half())
    with pytest.raises(CodecError, match=r"wrong shape: the change has shape \(3, 5, 70\), its base \(3, 5, 1\)"):
        codec.encode(sample(1))


def test_a_change_can_be_checked_without_its_base(delta: codecs.Delta) -> None:
    frame = delta.against(sample(2).half()).encode(sample(1))
    delta.check_change(frame, (3, 5, 70))
    for bad in (frame[:-1], frame[:40] + bytes([frame[40] ^ 1]) + frame[41:], delta.encode(sample(1))):
        with pytest.raises(CodecError):
            delta.check_change(bad, (3, 5, 70))


@pytest.mark.parametrize(
    ("forward", "backward", "words"),
    [
        (
            "delta:3",
            "int8",
            "codec 'delta:3': a change cannot have 3 bits per value; give 2, 4, 5, 6, 8 or a codec's name",
        ),
        ("ef21:topk:2", "int8", "codec.forward: codec 'topk:2': 2 of the values cannot be kept"),
        ("ef21:topk", "int8", "codec.forward: codec 'topk': write topk:0.1"),
        ("ef21", "int8", "codec.forward: codec 'ef21': write ef21:4"),
        ("ef21:ef:int4", "int8", "codec.forward: codec 'ef21:ef:int4': write ef21:4"),
        ("delta:int9", "int8", "unknown codec 'int9'"),
        (
            "delta:none",
            "int8",
            "changes coded with none would be larger than a whole activation, which has 16 bits per value",
        ),
        ("ef21:topk:0.95", "int8", "changes coded with topk:0.95 would be larger than a whole activation"),
        ("delta", "int8", "codec.forward: codec 'delta': write delta:4 for changes of 4 bits, or the name of a codec"),
        ("int8", "delta:4", "codec.backward = 'delta:4': gradients of earlier visits are not kept"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_fix(forward: str, backward: str, words: str) -> None:
    with pytest.raises(UnknownCodec) as caught:
        codecs.pair(forward, backward)
    assert words in str(caught.value)
