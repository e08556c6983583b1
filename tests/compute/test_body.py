import math
import struct

import numpy as np
import pytest
import torch
from frames import reseal
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm import codecs
from swarm.codecs.codec import HEADER_BYTES as CODEC_HEADER_BYTES
from swarm.compute.body import HEADER_BYTES, BodyFormat, BodyKind, FrameError
from swarm.protocol.ids import Direction, PassKind

TRAIN, GENERATE = PassKind.TRAIN, PassKind.GENERATE
IDS = np.arange(14).reshape(2, 7)
HIDDEN = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=["none", "bf16", "int8"])
def fmt(request, make_manifest):
    return BodyFormat(make_manifest(codec=request.param))


def bodies(fmt: BodyFormat) -> dict[tuple[int, Direction], bytes]:
    tokens = torch.from_numpy(IDS)
    return {
        (0, Direction.FORWARD): fmt.pack_tokens(TRAIN, IDS),
        (1, Direction.FORWARD): fmt.pack_forward(1, BodyKind.BATCH, tokens, HIDDEN),
        (1, Direction.BACKWARD): fmt.pack_backward(1, HIDDEN),
    }


def test_forward_bodies_carry_tokens_labels_and_activation(fmt):
    packed = bodies(fmt)
    first = fmt.unpack_forward(0, packed[0, Direction.FORWARD], TRAIN)
    assert first.hidden is None
    assert first.inputs.tolist() == IDS[:, :-1].tolist()
    assert first.labels.tolist() == IDS[:, 1:].tolist()
    second = fmt.unpack_forward(1, packed[1, Direction.FORWARD], PassKind.EVALUATE)
    assert torch.equal(second.tokens, first.tokens)
    torch.testing.assert_close(second.hidden, HIDDEN, atol=0.02, rtol=0.01)
    gradient = fmt.unpack_backward(1, packed[1, Direction.BACKWARD])
    torch.testing.assert_close(gradient, HIDDEN, atol=0.02, rtol=0.01)


def test_decoded_tensors_are_fresh_and_aligned(fmt):
    packed = bytearray(b"\0" * 3 + bodies(fmt)[1, Direction.FORWARD])
    body = fmt.unpack_forward(1, memoryview(packed)[3:], TRAIN)
    hidden, tokens = body.hidden.clone(), body.tokens.clone()
    packed[:] = bytes(len(packed))
    assert torch.equal(body.hidden, hidden)
    assert torch.equal(body.tokens, tokens)
    assert body.hidden.data_ptr() % 64 == 0


def test_prompts_have_one_row_and_any_length_up_to_the_context(fmt):
    for length in (1, 5, 8):
        body = fmt.unpack_forward(0, fmt.pack_tokens(GENERATE, np.arange(length)[None]), GENERATE)
        assert body.inputs.shape == (1, length)
        packed = fmt.pack_forward(1, body.kind, body.tokens, torch.zeros(1, length, 16))
        assert fmt.unpack_forward(1, packed, GENERATE).hidden.shape == (1, length, 16)
        assert len(packed) <= fmt.max_bytes(1, Direction.FORWARD)
    with pytest.raises(FrameError, match="prompt has 1 × 9"):
        fmt.pack_tokens(GENERATE, np.arange(9)[None])


def test_the_size_bound_is_what_a_batch_needs(fmt):
    for (boundary, direction), body in bodies(fmt).items():
        assert len(body) <= fmt.max_bytes(boundary, direction)


@pytest.mark.parametrize(("vocab_size", "width"), [(1 << 16, 2), ((1 << 16) + 1, 4)])
def test_token_ids_are_integers_of_the_least_width(make_manifest, vocab_size, width):
    fmt = BodyFormat(make_manifest(vocab_size=vocab_size))
    ids = np.full((2, 7), vocab_size - 1)
    body = fmt.pack_tokens(TRAIN, ids)
    assert len(body) == HEADER_BYTES + 14 * width
    assert fmt.unpack_forward(0, body, TRAIN).tokens.tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (np.full((2, 7), 50), "token id 50 is out of range: model.vocab_size = 50"),
        (np.full((2, 7), -1), "token id -1 is out of range"),
        (np.zeros((3, 7), int), "3 × 7 token ids, expected 2 × 7"),
        (np.zeros(7, int), "the token ids have the shape"),
    ],
)
def test_bad_token_ids_are_never_packed(fmt, ids, reason):
    with pytest.raises(FrameError, match=reason):
        fmt.pack_tokens(TRAIN, ids)


def test_each_kind_of_damage_has_its_reason(fmt):
    good = bodies(fmt)[1, Direction.FORWARD]

    def with_header(kind, width=2):
        return bytes([16 * kind + width]) + good[1:]

    cases = [
        (b"", "its header needs"),
        (good[:40], "truncated"),
        (good + b"\0", "oversized"),
        (good[:20], "token ids end at byte 29"),
        (with_header(9), "of unknown kind 9"),
        (with_header(3), "a forward frame of a train pass has a body of kind GRADIENT"),
        (with_header(2), "a forward frame of a train pass has a body of kind PROMPT"),
        (with_header(1, 4), "the token ids have 4 bytes"),
        (good[:1] + b"\xff" * 28 + good[29:], "token id 65535 is out of range"),
        (good[:-1] + bytes([good[-1] ^ 1]), "bad checksum"),
    ]
    for body, reason in cases:
        with pytest.raises(FrameError, match=reason):
            fmt.check(1, Direction.FORWARD, body, TRAIN)


def test_prompts_that_no_sender_writes_are_refused(fmt):
    good = fmt.pack_tokens(GENERATE, np.arange(5)[None])
    cases = [
        (good[:3], "header of a prompt needs 5"),
        (good[:1] + struct.pack("<I", 2**32 - 1) + good[5:], "prompt has 1 × 4294967295 token ids"),
        (good[:1] + struct.pack("<I", 0) + good[5:], "prompt has 1 × 0 token ids"),
        (good + b"\0", "1 bytes follow the token ids at boundary 0"),
    ]
    for body, reason in cases:
        with pytest.raises(FrameError, match=reason):
            fmt.check(0, Direction.FORWARD, body, GENERATE)


def test_a_gradient_beside_its_activation(make_manifest):
    fmt = BodyFormat(make_manifest(codec="topk:0.25", backward="topk-shared"))
    tokens = torch.from_numpy(IDS)
    crossed = fmt.pack_forward(1, BodyKind.BATCH, tokens, HIDDEN)
    other = fmt.pack_forward(1, BodyKind.BATCH, tokens, HIDDEN.flip(2))
    kept = fmt.unpack_forward(1, crossed, TRAIN).hidden != 0
    body = fmt.pack_backward(1, torch.ones(2, 6, 16), crossed)
    assert len(body) <= fmt.max_bytes(1, Direction.BACKWARD)
    assert torch.equal(fmt.unpack_backward(1, body, crossed), kept.float())
    fmt.check(1, Direction.BACKWARD, body, TRAIN, crossed)
    fmt.check(1, Direction.BACKWARD, body, TRAIN)
    for forward in (other, crossed[:40]):
        with pytest.raises(FrameError, match="codec topk-shared: wrong forward frame"):
            fmt.check(1, Direction.BACKWARD, body, TRAIN, forward)
    with pytest.raises(FrameError, match="bad checksum"):
        fmt.check(1, Direction.BACKWARD, body[:-1] + bytes([body[-1] ^ 1]), TRAIN)
    with pytest.raises(FrameError, match="needs the forward frame"):
        fmt.unpack_backward(1, body)


def test_a_frame_of_another_codec_is_refused(make_manifest):
    ours, theirs = BodyFormat(make_manifest(codec="none")), BodyFormat(make_manifest(codec="int8"))
    with pytest.raises(FrameError, match="codec int8: wrong codec"):
        theirs.check(1, Direction.BACKWARD, ours.pack_backward(1, HIDDEN), None)


def test_values_that_are_not_finite_are_refused(make_manifest):
    fmt = BodyFormat(make_manifest())
    body = fmt.pack_backward(1, HIDDEN)
    head = body[HEADER_BYTES : HEADER_BYTES + CODEC_HEADER_BYTES]
    forged = reseal(head + np.full(192, np.nan, "<f4").tobytes())
    with pytest.raises(FrameError, match="not finite"):
        fmt.check(1, Direction.BACKWARD, body[:HEADER_BYTES] + forged, None)


@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int4", "log4"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_crosses_only_where_it_may(make_manifest, codec, bad):
    usual = BodyFormat(make_manifest(codec=codec))
    allowing = usual.of_pass((), nonfinite=True)
    values = HIDDEN.clone()
    values[1, 2, 3] = bad
    for fmt in (usual, allowing.of_pass(())):
        with pytest.raises(codecs.CodecError, match="NaN or infinite"):
            fmt.pack_forward(1, BodyKind.BATCH, torch.from_numpy(IDS), values)
        with pytest.raises(codecs.CodecError, match="NaN or infinite"):
            fmt.pack_backward(1, values)
    bodies = {
        Direction.FORWARD: allowing.pack_forward(1, BodyKind.BATCH, torch.from_numpy(IDS), values),
        Direction.BACKWARD: allowing.pack_backward(1, values),
    }
    assert torch.isnan(allowing.unpack_forward(1, bodies[Direction.FORWARD], TRAIN).hidden).all()
    assert torch.isnan(allowing.unpack_backward(1, bodies[Direction.BACKWARD])).all()
    for direction, body in bodies.items():
        allowing.check(1, direction, body, TRAIN)
        with pytest.raises(FrameError, match="truncated"):
            usual.check(1, direction, body, TRAIN)
        with pytest.raises(FrameError, match="truncated"):
            allowing.check(1, direction, body + b"!", TRAIN)
    assert allowing.pack_backward(1, HIDDEN) == usual.pack_backward(1, HIDDEN), "what is finite crosses as ever"


@given(data=st.data())
@settings(deadline=None, max_examples=200)
def test_unpacking_is_total(make_manifest, data):
    fmt = BodyFormat(make_manifest(codec=data.draw(st.sampled_from(["none", "bf16", "int8"]))))
    (boundary, direction), good = data.draw(st.sampled_from(sorted(bodies(fmt).items(), key=str)))
    body = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            body[data.draw(st.integers(0, min(len(body), 80) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=8))
    try:
        fmt.check(boundary, direction, bytes(body), data.draw(st.sampled_from([None, *PassKind])))
    except FrameError as error:
        assert str(error)


@pytest.mark.parametrize("boundary", [-1, 2, 1 << 31])
@pytest.mark.parametrize("direction", Direction)
def test_a_boundary_that_the_run_does_not_have_is_refused(fmt, boundary, direction):
    with pytest.raises(FrameError, match=f"there is no boundary {boundary}: the run has 2 stages"):
        fmt.check(boundary, direction, bytes(fmt.pack_backward(1, HIDDEN)), None)


def test_what_is_not_bytes_is_refused(fmt):
    with pytest.raises(FrameError, match="type int"):
        fmt.check(1, Direction.FORWARD, 5, None)


def test_each_boundary_of_a_grown_subspace_has_its_own_width(make_manifest):
    plain = make_manifest(codec="none", residual="subspace", subspace_dim=3, tail_layers=1)
    model = plain.model.model_copy(update={"layers": 3, "cuts": (1, 2), "subspace_growth": 2})
    fmt = BodyFormat(plain.model_copy(update={"model": model}))
    for boundary, width, other in ((1, 3, 2), (2, 5, 1)):
        body = fmt.pack_forward(boundary, BodyKind.BATCH, torch.from_numpy(IDS), HIDDEN[..., :width])
        back = fmt.pack_backward(boundary, HIDDEN[..., :width])
        assert fmt.unpack_forward(boundary, body, TRAIN).hidden.shape == (2, 6, width)
        assert fmt.unpack_backward(boundary, back).shape == (2, 6, width)
        assert len(back) == fmt.max_bytes(boundary, Direction.BACKWARD)
        for direction, frame in ((Direction.FORWARD, body), (Direction.BACKWARD, back)):
            with pytest.raises(FrameError, match="wrong shape"):
                fmt.check(other, direction, frame, TRAIN)
    assert fmt.max_bytes(0, Direction.BACKWARD) == HEADER_BYTES, "no gradient crosses boundary 0"


@pytest.mark.parametrize(("codec", "forward", "backward"), [("none", 4 * 12 * 3, 4 * 12 * 3), ("int8", 40, 40)])
def test_a_subspace_boundary_carries_coefficients_and_integer_ids(make_manifest, codec, forward, backward):
    fmt = BodyFormat(make_manifest(codec=codec, residual="subspace", subspace_dim=3, tail_layers=1))
    coefficients = HIDDEN[..., :3]
    body = fmt.pack_forward(1, BodyKind.BATCH, torch.from_numpy(IDS), coefficients)
    assert len(body) == HEADER_BYTES + 2 * 14 + CODEC_HEADER_BYTES + forward
    back = fmt.pack_backward(1, coefficients)
    assert len(back) == HEADER_BYTES + CODEC_HEADER_BYTES + backward
    assert len(back) == fmt.max_bytes(1, Direction.BACKWARD)
    assert fmt.unpack_forward(1, body, TRAIN).hidden.shape == (2, 6, 3)
    with pytest.raises(FrameError, match="wrong shape"):
        fmt.check(1, Direction.FORWARD, fmt.pack_forward(1, BodyKind.BATCH, torch.from_numpy(IDS), HIDDEN), TRAIN)
    with pytest.raises(FrameError, match=r"token id 50 is out of range: model.vocab_size = 50"):
        fmt.check(1, Direction.FORWARD, body[:HEADER_BYTES] + b"\x32\x00" + body[HEADER_BYTES + 2 :], TRAIN)
