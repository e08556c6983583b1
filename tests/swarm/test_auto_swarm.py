"""Codecs chosen as the run goes, in real processes behind slow links: a peer dies, and the coordinator."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import EVEN, Swarm

from peers.run.home import Home
from peers.run.replay import read_replay
from swarm.events import CodecChosen, CoordinatorStarted, PeerFenced, RolledBack, StepDecided
from swarm.protocol.messages import CodecPair

PEERS = ("p0", "p1", "p2", "p3")
SLOW = "--max-rate=0.5Mbit"
"""A frame of 512 tokens takes 300 ms in int8, many times as long as it takes to compute."""
LARGE = "batch.sequences=16"
START = CodecPair("int8", "int8")

Reference = Callable[[Swarm], tuple[str, ...]]


def crossed(swarm: Swarm) -> list[CodecPair]:
    """By step, as recorded."""
    replay = read_replay(Home(swarm.coordinator.home), swarm.manifest.hash)
    return [replay[step].codecs[0] for step in sorted(replay)]


def test_slow_links_change_the_codec_and_a_kill_changes_nothing(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("auto", LARGE, "run.steps=6", "timing.step_budget_s=120")
    swarm.coordinate()
    options = {name: (SLOW, EVEN) for name in PEERS}
    options["p1"] += ("--fault=kill@MicrobatchAccumulated,pass_id=1:3",)
    swarm.join_stages(PEERS, options)
    swarm.finish()
    assert swarm.peers["p1"].code == -signal.SIGKILL and swarm.coordinator.of(PeerFenced, pass_id="1:3")
    codecs = crossed(swarm)
    assert len(codecs) == 6 and codecs[0] == START
    assert codecs[-1].forward in ("int6", "int5", "int4")
    chosen = swarm.coordinator.of(CodecChosen)
    assert [(event.step, event.before) for event in chosen[:2]] == [(0, ""), (0, "")]
    rates = [re.match(r"the uplink of .+ carries ([\d.]+) MB/s", event.reason) for event in chosen[2:]]
    assert all(rate is not None and float(rate[1]) <= 0.125 for rate in rates), [event.reason for event in chosen]
    swarm.assert_replicas_identical()
    swarm.assert_command_says_equal()


def test_a_coordinator_that_comes_back_goes_on_with_its_choice(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("auto", LARGE, "run.steps=8", "timing.step_budget_s=120", "timing.recruit_after_s=30")
    swarm.coordinate("--fault=kill@StepDecided:4")
    swarm.join_stages(PEERS, {name: (SLOW,) for name in PEERS})
    assert swarm.coordinator.wait_end() == -signal.SIGKILL
    before = crossed(swarm)
    assert before[-1] != START
    swarm.coordinate()
    swarm.finish()
    started = swarm.coordinator.of(CoordinatorStarted)[-1]
    events = [event for _, event in swarm.coordinator.log]
    since = events[events.index(started) :]
    told = [event for event in since if isinstance(event, CodecChosen) and not event.before]
    assert {event.reason for event in told} == {f"continues with the codecs of step {started.decided + 1}"}
    codecs = crossed(swarm)
    assert codecs[: len(before)] == before and codecs[len(before)] == before[-1]
    assert len(codecs) == len(swarm.coordinator.of(StepDecided)) == 8 and not swarm.coordinator.of(RolledBack)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
