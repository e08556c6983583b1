"""A stage that stops reading: its senders wait, and their memory does not grow beyond what they keep anyway."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest
from conftest import MakeSwarm
from swarm_processes import Process, Swarm

from swarm.events import MicrobatchAccumulated, MicrobatchForwarded, PeerFenced, StepDecided

PAUSE_S = 2.0
FRAME_BYTES = 4 * 8 * 128 * 256
"""An activation, uncompressed: sequences × tokens × dim."""


@pytest.mark.parametrize("codec", ["none", pytest.param("int8", marks=pytest.mark.long)])
def test_stage_that_stops_reading(
    codec: str, make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = make_swarm(
        codec,
        *("run.steps=2", "model.dim=256", "model.layers=2", "model.cuts=[1]", "model.context=128"),
        *("batch.sequences=8", "batch.sequence_length=128", "batch.microbatches=12", "timing.step_budget_s=600"),
    )
    swarm.coordinate()
    stops = {name: ("--fault=stop@MicrobatchAccumulated,pass_id=1:1",) for name in ("p1", "p3")}
    swarm.join_stages(("p0", "p1", "p2", "p3"), stops)
    senders = [swarm.peers["p0"], swarm.peers["p2"]]
    receivers = [swarm.peers["p1"], swarm.peers["p3"]]
    for receiver in receivers:
        receiver.wait_for(MicrobatchAccumulated, pass_id="1:1")
    before = [resident(sender) for sender in senders]
    most = list(before)
    end = time.monotonic() + PAUSE_S
    while time.monotonic() < end:
        most = [max(old, resident(sender)) for old, sender in zip(most, senders, strict=True)]
        time.sleep(0.05)
    for receiver in receivers:
        receiver.resume()
    swarm.finish()
    for sender, start, peak in zip(senders, before, most, strict=True):
        mine = len(sender.of(MicrobatchForwarded, pass_id="1:1"))
        # frame, its input and its graph, for each microbatch at most once; nothing for what waits to be sent
        assert peak - start < mine * 16 * FRAME_BYTES, f"{sender.name} grew by {(peak - start) >> 20} MiB"
    assert not swarm.coordinator.of(PeerFenced) and len(swarm.coordinator.of(StepDecided)) == 2
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def resident(process: Process) -> int:
    """Bytes of physical memory."""
    return int(psutil.Process(process.pid).memory_info().rss)
