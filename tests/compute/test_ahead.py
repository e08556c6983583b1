"""An engine that works ahead, as on a GPU: it gives the device a microbatch before it has told of the one before.

Here the device is the CPU, which has done everything at once; what is later is what comes of it.
"""

import queue
import threading

import pytest
import torch

from swarm.codecs import CodecError, Reason
from swarm.compute import body
from swarm.compute.arrivals import Arrivals
from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.device_clock import DeviceClock
from swarm.compute.engine import StageEngine
from swarm.compute.grid import SumOverflow
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.compute.sums import Added
from swarm.protocol.ids import Attempt, PassId, PassKind
from swarm.protocol.peer.io import (
    Backward,
    BackwardDone,
    Begin,
    ComputeFailed,
    Discard,
    EncodePart,
    Forward,
    ForwardDone,
    PartEncoded,
    Weights,
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
    engine = StageEngine(manifest, 0, StageOptions(splits=splits), post=told.put)
    form, width = BodyFormat(manifest), manifest.model.boundary_width(1)
    rows, length = manifest.batch.sequences, manifest.batch.sequence_length
    tokens = torch.arange(rows * (length + 1)).view(rows, -1) % manifest.model.vocab_size
    found = []
    try:
        engine.state.initialise().result(WAIT_S)
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


def test_bodies_are_copied_and_joined_in_threads_of_their_own(make_manifest, ahead: None, monkeypatch) -> None:
    copied, joined = watched(monkeypatch, Arrivals, "_copied"), watched(monkeypatch, BodyFormat, "_pack")
    posts_of(make_manifest(), splits=False)
    own = BodyFormat(make_manifest())  # the test's own bodies are packed in its thread
    own.pack_tokens(PassKind.TRAIN, torch.zeros(own._batch_columns, dtype=torch.int64))
    assert [name[: len("arrivals-0")] for name in copied] == ["arrivals-0"] * 2 * COUNT
    assert sum(name.startswith("departures-0") for name in joined) == COUNT
    assert {name for name in joined if not name.startswith("departures-0")} == {threading.current_thread().name}


def watched(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """In which threads it is called."""
    plain, threads = getattr(owner, name), []

    def watching(*args):
        threads.append(threading.current_thread().name)
        return plain(*args)

    monkeypatch.setattr(owner, name, watching)
    return threads


def test_a_body_that_cannot_be_copied_is_read_where_it_lies(make_manifest, ahead: None, monkeypatch) -> None:
    mine = posts_of(make_manifest(), splits=False)

    def failing(self: Arrivals, payload: bytes) -> memoryview:
        raise RuntimeError("no pinned memory is left")

    monkeypatch.setattr(Arrivals, "_copied", failing)
    assert told_of(mine) == told_of(posts_of(make_manifest(), splits=False))


def test_copies_of_what_is_not_computed_are_given_up(monkeypatch) -> None:
    arrivals = Arrivals(torch.device("cpu"), "arrivals")
    other = PassId(0, 1)
    orders = [Forward(STEP, PassKind.TRAIN, m, bytes([m])) for m in range(3)]
    try:
        for order in (*orders, Forward(other, PassKind.TRAIN, 0, b"other"), Backward(STEP, 1, b"gradient")):
            arrivals.expect(order)
        arrivals.discard(Discard(STEP, 1))
        assert arrivals.of(orders[1]) is None and arrivals.of(Weights(STEP, 1)) is None
        assert bytes(arrivals.of(orders[2])) == b"\2"
        assert arrivals.of(orders[2]) is None, "a body is read once"
        assert bytes(arrivals.of(Backward(STEP, 1, b"gradient"))) == b"gradient"
        arrivals.begin(other)
        assert arrivals.of(orders[0]) is None
        assert bytes(arrivals.of(Forward(other, PassKind.TRAIN, 0, b"other"))) == b"other"
        monkeypatch.setattr("swarm.compute.arrivals.MOST", 2)
        for order in orders:
            arrivals.expect(order)
        assert [arrivals.of(order) is not None for order in orders] == [True, True, False]
    finally:
        arrivals.close()


def test_a_large_body_is_what_its_parts_are_one_after_another() -> None:
    parts = (b"a", b"", bytearray(range(256)) * 5000, memoryview(b"the end"))
    assert bytes(body._joined(parts)) == b"".join(parts)


def test_what_is_computed_is_told_though_the_engine_closes(make_manifest, ahead: None, monkeypatch) -> None:
    """And a join that waits for ever does not keep it from closing."""
    told: queue.SimpleQueue = queue.SimpleQueue()
    begun, goes_on, pack = threading.Event(), threading.Event(), BodyFormat._pack
    manifest = make_manifest()
    form = BodyFormat(manifest)
    tokens = form.pack_tokens(PassKind.TRAIN, torch.zeros(form._batch_columns, dtype=torch.int64))

    def waiting(*args):
        begun.set()
        assert goes_on.wait(WAIT_S)
        return pack(*args)

    monkeypatch.setattr(BodyFormat, "_pack", waiting)
    engine = StageEngine(manifest, 0, post=told.put)
    try:
        engine.state.initialise().result(WAIT_S)
        engine.submit(Begin(STEP, PassKind.TRAIN))
        for m in range(2):
            engine.submit(Forward(STEP, PassKind.TRAIN, m, tokens))
        engine._thread.call(lambda: None).result(WAIT_S)  # the second one is computed too
        assert begun.wait(WAIT_S)
    finally:
        engine.close()
    assert told.empty()
    goes_on.set()
    assert [told.get(timeout=WAIT_S).microbatch for _ in range(2)] == [0, 1]


def test_a_gradient_that_cannot_be_sent_is_told_before_a_sum_that_is_too_large(
    make_manifest, ahead: None, monkeypatch
) -> None:
    """As on a CPU: the pass is repeated with what is not finite, while a sum that is too large ends the run."""
    manifest = make_manifest()
    stage = Stage(manifest, 1, StageOptions(), initialised=True)
    form, shape = BodyFormat(manifest), BodyFormat(manifest)._batch_shape(1)
    tokens = torch.zeros(form._batch_columns, dtype=torch.int64)
    action = Forward(STEP, PassKind.TRAIN, 0, form.pack_forward(1, BodyKind.BATCH, tokens, torch.randn(shape)))

    def refusing(self, step=None):
        raise SumOverflow("a sum that is too large")

    monkeypatch.setattr(Added, "result", refusing)
    with pytest.raises(SumOverflow):
        stage.launch_forward(action)()()
    stage.begin()

    def unsendable(self, *args):
        def late() -> bytes:
            raise CodecError(Reason.NOT_FINITE, "some values are NaN or infinite")

        return late

    monkeypatch.setattr(BodyFormat, "begin_backward", unsendable)
    with pytest.raises(CodecError):
        stage.launch_forward(action)()()


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
    packed = form.pack_tokens(PassKind.TRAIN, tokens)
    monkeypatch.setattr(BodyFormat, "begin_forward", failing)
    engine = StageEngine(manifest, 0, post=told.put)
    try:
        engine.state.initialise().result(WAIT_S)
        engine.submit(Begin(STEP, PassKind.TRAIN))
        for m in range(COUNT):
            engine.submit(Forward(STEP, PassKind.TRAIN, m, packed))
        posts = [told.get(timeout=WAIT_S) for _ in range(COUNT)]
    finally:
        engine.close()
    assert [type(post) for post in posts] == [ForwardDone, ComputeFailed, ForwardDone]
    assert posts[1].microbatch == 1 and posts[1].nonfinite
