"""An engine that works ahead, as on a GPU: it gives the device a microbatch before it has told of the one before.

Here the device is the CPU, which has done everything at once; what is later is what comes of it.
"""

import queue

import pytest
import torch

from swarm.codecs import CodecError, Reason
from swarm.compute.body import BodyFormat
from swarm.compute.device_clock import DeviceClock
from swarm.compute.engine import StageEngine
from swarm.protocol.ids import Attempt, PassId, PassKind
from swarm.protocol.peer.io import (
    Backward,
    BackwardDone,
    Begin,
    ComputeFailed,
    EncodePart,
    Forward,
    ForwardDone,
    PartEncoded,
)

STEP = PassId(0, 0)
WAIT_S = 20.0
COUNT = 3


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = DeviceClock.__init__

    def made(self: DeviceClock, device: torch.device) -> None:
        plain(self, device)
        self.asynchronous = True

    monkeypatch.setattr(DeviceClock, "__init__", made)


def posts_of(manifest, splits: bool) -> list[object]:
    """All that a first stage tells of a pass, and its first part."""
    told: queue.SimpleQueue = queue.SimpleQueue()
    engine = StageEngine(manifest, 0, post=told.put, splits=splits)
    form, width = BodyFormat(manifest), manifest.model.boundary_width
    rows, length = manifest.batch.sequences, manifest.batch.sequence_length
    tokens = torch.arange(rows * (length + 1)).view(rows, -1) % manifest.model.vocab_size
    found = []
    try:
        engine.initialise().result(WAIT_S)
        engine.submit(Begin(STEP, PassKind.TRAIN))
        for m in range(COUNT):
            engine.submit(Forward(STEP, PassKind.TRAIN, m, form.pack_tokens(PassKind.TRAIN, (tokens + m) % 50)))
        for _ in range(COUNT):
            found.append(told.get(timeout=WAIT_S))
        for m in range(COUNT):
            gradient = torch.randn(rows, length, width, generator=torch.Generator().manual_seed(10 + m))
            engine.submit(Backward(STEP, m, form.pack_backward(1, gradient)))
        for _ in range(COUNT):
            found.append(told.get(timeout=WAIT_S))
        engine.submit(EncodePart(Attempt(STEP, 0, 0), 0))
        found.append(told.get(timeout=WAIT_S))
    finally:
        engine.close()
    return found


def told_of(posts: list[object]) -> list[tuple[type, int, bytes]]:
    """But for the seconds."""
    return [(type(post), getattr(post, "microbatch", -1), bytes(post.payload or b"")) for post in posts]


def test_it_tells_the_same_in_the_same_order(make_manifest, ahead: None, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = posts_of(make_manifest(), splits=False)
    monkeypatch.undo()
    assert told_of(mine) == told_of(posts_of(make_manifest(), splits=False))
    assert [type(post) for post in mine] == [ForwardDone] * COUNT + [BackwardDone] * COUNT + [PartEncoded]


def test_each_microbatch_has_taken_time(make_manifest, ahead: None) -> None:
    posts = posts_of(make_manifest(), splits=False)
    assert all(post.seconds > 0 for post in posts if isinstance(post, ForwardDone | BackwardDone))


def test_what_fails_late_is_told_of_its_microbatch(make_manifest, ahead: None, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, seen = BodyFormat.begin_forward, []

    def failing(self: BodyFormat, *args, **kwargs):
        seen.append(packing := begin(self, *args, **kwargs))
        if len(seen) != 2:
            return packing

        def late() -> bytes:
            raise CodecError(Reason.NOT_FINITE, "some values are NaN or infinite")

        return late

    told: queue.SimpleQueue = queue.SimpleQueue()
    manifest = make_manifest()
    form, rows, length = BodyFormat(manifest), manifest.batch.sequences, manifest.batch.sequence_length
    tokens = torch.zeros(rows, length + 1, dtype=torch.int64)
    body = form.pack_tokens(PassKind.TRAIN, tokens)
    monkeypatch.setattr(BodyFormat, "begin_forward", failing)
    engine = StageEngine(manifest, 0, post=told.put)
    try:
        engine.initialise().result(WAIT_S)
        engine.submit(Begin(STEP, PassKind.TRAIN))
        for m in range(COUNT):
            engine.submit(Forward(STEP, PassKind.TRAIN, m, body))
        posts = [told.get(timeout=WAIT_S) for _ in range(COUNT)]
    finally:
        engine.close()
    assert [type(post) for post in posts] == [ForwardDone, ComputeFailed, ForwardDone]
    assert posts[1].microbatch == 1 and posts[1].nonfinite
