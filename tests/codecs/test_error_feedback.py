"""Error feedback: what one frame loses is in the next one's, and no receiver needs to know."""

import pytest
import torch

from swarm import codecs
from swarm.codecs import UnknownCodec


def sample(seed: int) -> torch.Tensor:
    return torch.randn((3, 4, 50), generator=torch.Generator().manual_seed(seed))


def visited(codec: codecs.Remembering, base: torch.Tensor | None, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(what crosses, what it leaves)."""
    sender = codec if base is None else codec.against(base)
    crossed = codec.decode(sender.encode(x), x.shape)  # a receiver without the residual
    return crossed, codec.left(base, x, crossed)


@pytest.mark.parametrize("name", ["ef:topk:0.1", "ef:int2", "ef-mixed:topk:0.1", "ef-mixed:int2"])
def test_nothing_is_lost_for_good(name: str) -> None:
    codec = codecs.get(name)
    assert isinstance(codec, codecs.Remembering)
    base, x, crossed = None, sample(0), []
    for _ in range(40):
        seen, base = visited(codec, base, x)
        crossed.append(seen)
    once = (crossed[0] - x).norm() / x.norm()
    mean = (torch.stack(crossed).mean(0) - x).norm() / x.norm()
    assert mean < once / 4, "the mean of many frames nears what was sent, one frame does not"


def test_the_residual_is_what_was_not_sent() -> None:
    codec = codecs.get("ef:topk:0.1")
    assert isinstance(codec, codecs.Remembering)
    crossed, left = visited(codec, None, sample(1))
    torch.testing.assert_close(left.float(), sample(1) - crossed, atol=2e-3, rtol=0)
    again, after = visited(codec, left, sample(2))
    torch.testing.assert_close(after.float(), sample(2) + left.float() - again, atol=2e-3, rtol=0)
    inner = codecs.get("topk:0.1")
    assert torch.equal(inner.decode(codec.against(left).encode(sample(2)), (3, 4, 50)), again)


def test_values_and_residual_are_added_in_full_width() -> None:
    codec, inner = codecs.get("ef-mixed:bf16"), codecs.get("bf16")
    assert isinstance(codec, codecs.Remembering)
    x, left = sample(1), sample(2).half() * 1e-3
    crossed = codec.against(left).decode(codec.against(left).encode(x), x.shape)
    parts = [inner.decode(inner.encode(part.float()), x.shape) for part in (x, left)]
    assert torch.equal(crossed, parts[0] + parts[1])


@pytest.mark.parametrize("name", ["ef:topk:0.1", "ef:int4", "ef-mixed:topk:0.1", "ef-mixed:log4"])
def test_activations_may_be_strided(name: str) -> None:
    codec = codecs.get(name)
    assert isinstance(codec, codecs.Remembering)
    x = torch.randn((3, 50, 4), generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    crossed, left = visited(codec, None, x)
    again, _ = visited(codec, left, x)
    plain, _ = visited(codec, visited(codec, None, x.contiguous())[1], x.contiguous())
    assert torch.equal(again, plain) and crossed.shape == x.shape


def test_a_shared_mask_finds_the_positions_of_such_a_frame() -> None:
    forward, backward = codecs.pair("ef:topk:0.1", "topk-shared")
    assert isinstance(forward, codecs.Remembering)
    frame = forward.against(sample(3).half()).encode(sample(1))
    beside = backward.beside(frame)
    kept = beside.decode(beside.encode(sample(2)), (3, 4, 50)) != 0
    assert torch.equal(kept, forward.decode(frame, (3, 4, 50)) != 0)


@pytest.mark.parametrize(
    ("forward", "backward", "words"),
    [
        ("ef", "int8", "write ef:topk:0.1"),
        ("ef:delta:4", "int8", "codec for activations without memory of earlier frames"),
        ("ef:int9", "int8", "unknown codec 'int9'"),
        ("ef-mixed:huffman:log4", "int8", "frames all have the same size"),
        ("ef-mixed", "int8", "write ef-mixed:topk:0.1"),
        ("int8", "ef:int4", "codec.backward = 'ef:int4'"),
        ("ef-mixed:topk:0.1", "topk-shared", "takes its positions from activations in topk"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_fix(forward: str, backward: str, words: str) -> None:
    with pytest.raises(UnknownCodec, match=words):
        codecs.pair(forward, backward)
