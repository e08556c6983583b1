"""How often the host waits for the device in a microbatch: the thread that launches, never.

The device is `meta`, which has no numbers: whoever asks it for one is seen. So this is the code of a GPU, not of a CPU.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from made_up_data import DATA
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.device_clock import DeviceClock, Mark
from swarm.compute.engine import StageEngine
from swarm.compute.precision import Precision
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.manifest import RunFile, RunManifest
from swarm.protocol.ids import Microbatch, PassId, PassKind, StepNumber, Term
from swarm.protocol.peer.io import Backward, BackwardDone, Begin, Forward, ForwardDone, Weights

STEP = PassId(Term(0), StepNumber(0))
MODEL = {"vocab_size": 512, "dim": 64, "layers": 6, "cuts": [2, 4], "heads": 2, "kv_heads": 1, "ffn_dim": 128}
WAIT_S = 20.0


def manifest(codec: str) -> RunManifest:
    batch = {"microbatches": 4, "sequences": 2, "sequence_length": 16}
    tables = {"model": {**MODEL, "context": 64}, "batch": batch, "codec": {"forward": codec, "backward": codec}}
    return RunFile.model_validate(tables).resolve(DATA)


class Watch(TorchDispatchMode):
    """Counts what a host waits for at once (`waits`), and copies to the host that it need not wait for (`copies`)."""

    WAITS = frozenset({"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique_dim"})

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: Counter[str] = Counter()
        self.copies = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if not any(each.is_meta for each in given):
            return func(*args, **kwargs)
        if name in self.WAITS:
            self.waits[name] += 1
        if name == "copy_" and not given[0].is_meta:
            self.copies += 1
            return given[0]
        if name == "_to_copy" and torch.device(kwargs.get("device") or "meta").type == "cpu":
            self.copies += 1
            return torch.ones(given[0].shape, dtype=kwargs.get("dtype") or given[0].dtype)  # small and added
        return func(*args, **kwargs)


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("codec", ["none", "bf16", "int8", "int4-channel"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_microbatch_is_given_to_the_device_without_waiting_for_it(
    index: int, codec: str, splits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # torch does not know it for `meta`
    run = manifest(codec)
    stage = Stage(run, index, StageOptions("meta", 1 << 40, Precision.FP32, splits=splits), initialised=False)
    form = BodyFormat(run)
    tokens, hidden = torch.zeros(form._batch_columns, dtype=torch.int64), torch.randn(form._batch_shape(1))
    body = (
        form.pack_forward(index, BodyKind.BATCH, tokens, hidden) if index else form.pack_tokens(PassKind.TRAIN, tokens)
    )
    with Watch() as watch:
        stage.begin()
        launched: list[Any] = [stage.launch_forward(Forward(STEP, PassKind.TRAIN, Microbatch(0), body))]
        if index < 2:
            gradient = form.pack_backward(index + 1, hidden)
            launched.append(stage.launch_backward(Backward(STEP, Microbatch(0), gradient)))
        if splits:
            launched.append(stage.launch_weights(Weights(STEP, Microbatch(0))))
        assert not watch.waits
        frames = (index < 2) + (index > 0)
        numbers = 1 + (index == 2)  # how large the gradients are and whether they fitted; on the last stage, the loss
        assert watch.copies == frames + numbers
        for finish in launched:
            finish()
        assert not watch.waits and watch.copies == frames + numbers, "all numbers are here already"


def test_what_is_counted_is_what_a_host_waits_for() -> None:
    with Watch() as watch:
        values = torch.zeros(3, device="meta")
        with pytest.raises(RuntimeError):
            values.sum().item()
        values.cpu()
    assert watch.waits == {"_local_scalar_dense": 1} and watch.copies == 1


class SlowDevice:
    """Finishes its tasks one by one, as the test says, and notes which threads wait for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[str] = []
        self._done = threading.Semaphore(0)
        made, wait = DeviceClock.__init__, DeviceClock.wait

        def init(clock: DeviceClock, device: torch.device) -> None:
            made(clock, device)
            clock.asynchronous = True

        def slow(clock: DeviceClock, mark: Mark) -> float:
            self.waiting.append(threading.current_thread().name)
            assert self._done.acquire(timeout=WAIT_S)
            return wait(clock, mark)

        monkeypatch.setattr(DeviceClock, "__init__", init)
        monkeypatch.setattr(DeviceClock, "wait", slow)

    def finish(self, count: int) -> None:
        self._done.release(count)


def test_the_thread_that_launches_does_not_wait_and_launches_what_comes_meanwhile(
    make_manifest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SlowDevice(monkeypatch)
    launched: queue.SimpleQueue[tuple[str, int, str]] = queue.SimpleQueue()
    for name in ("launch_forward", "launch_backward"):
        plain = getattr(Stage, name)

        def launch(stage: Stage, action: Any, copy: Any = None, plain: Any = plain, name: str = name) -> Any:
            launched.put((name, action.microbatch, threading.current_thread().name))
            return plain(stage, action, copy)

        monkeypatch.setattr(Stage, name, launch)
    told: queue.SimpleQueue[Any] = queue.SimpleQueue()
    run = make_manifest()
    form, width = BodyFormat(run), run.model.boundary_width(1)
    rows, length = run.batch.sequences, run.batch.sequence_length
    tokens = form.pack_tokens(PassKind.TRAIN, torch.zeros(rows, length + 1, dtype=torch.int64))
    gradient = form.pack_backward(1, torch.ones(rows, length, width))
    engine = StageEngine(run, 0, post=told.put)
    try:
        engine.state.initialise().result(WAIT_S)
        engine.submit(Begin(STEP, PassKind.TRAIN))
        engine.submit(Forward(STEP, PassKind.TRAIN, Microbatch(0), tokens))
        assert launched.get(timeout=WAIT_S)[:2] == ("launch_forward", 0)
        assert told.empty()
        engine.submit(Forward(STEP, PassKind.TRAIN, Microbatch(1), tokens))  # while the device computes the first one
        assert launched.get(timeout=WAIT_S)[:2] == ("launch_forward", 1)
        engine.submit(Forward(STEP, PassKind.TRAIN, Microbatch(2), tokens))
        device.finish(1)
        assert isinstance(told.get(timeout=WAIT_S), ForwardDone)
        assert launched.get(timeout=WAIT_S)[:2] == ("launch_forward", 2), "no more than two at once"
        device.finish(2)
        assert [told.get(timeout=WAIT_S).microbatch for _ in range(2)] == [1, 2]
        engine.submit(Backward(STEP, Microbatch(0), gradient))
        assert launched.get(timeout=WAIT_S)[:2] == ("launch_backward", 0)
        device.finish(1)
        done = told.get(timeout=WAIT_S)
        assert isinstance(done, BackwardDone) and done.microbatch == 0
    finally:
        device.finish(100)
        engine.close()
    assert device.waiting == ["landings-0_0"] * 4, "once for each forward and backward, in a thread of its own"
