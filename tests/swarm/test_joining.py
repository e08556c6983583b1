"""Peers that come while the others train: they make nobody wait, and the run ends as one machine's would."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

from conftest import MakeSwarm
from swarm_processes import Process, Swarm

from swarm.events import (
    CatchUpForecast,
    Gathered,
    MicrobatchAccumulated,
    PeerJoined,
    PeerTroubled,
    ProcessStarted,
    StateFetched,
    StepApplied,
    StepDecided,
)

PEERS = ("p0", "p1", "p2", "p3")
SETS = ("swarm.replicas=3", "swarm.max_replicas=7", "swarm.start_timeout_s=12", "model.dim=64", "model.heads=4")
SLOW = "--max-rate=6Mbit"
"""Such that a stage's state takes longer than a step."""
PACE = "--pace=0.08,0.16"
"""A step of two replicas takes a second: the time that a state needs costs few of them."""


def running(make_swarm: MakeSwarm, steps: int, *sets: str, rate: str = SLOW) -> Swarm:
    swarm = make_swarm("int8", *SETS, f"run.steps={steps}", *sets)
    swarm.coordinate()
    begin(swarm, rate)
    return swarm


def begin(swarm: Swarm, rate: str = SLOW) -> None:
    """Two stages of two replicas, which have decided two steps; all of them have had a part in one."""
    swarm.join_stages(PEERS, dict.fromkeys(PEERS, (rate, PACE)))
    swarm.coordinator.wait_for(StepDecided, step=1)
    for name in PEERS:
        swarm.peers[name].wait_for(MicrobatchAccumulated)


def decided_while(swarm: Swarm, began: float, ended: float) -> int:
    return sum(isinstance(event, StepDecided) and began < at < ended for at, event in swarm.coordinator.log)


def state_of(peer: Process) -> tuple[float, Gathered]:
    """When its download of a version was done, and what it was."""
    return next((at, event) for at, event in peer.log if isinstance(event, Gathered) and event.what.startswith("state"))


def test_a_peer_that_joins_makes_nobody_wait(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = running(make_swarm, 14, rate="--max-rate=20Mbit")
    p4 = swarm.join("p4", "--fault=stop@CatchUpForecast", PACE, capacity=None)
    p4.wait_stopped()
    newest = swarm.coordinator.of(StepDecided)[-1].step
    swarm.coordinator.wait_for(StepDecided, step=newest + 2)  # while it takes up a version
    p4.resume()
    p4.wait_for(MicrobatchAccumulated)
    swarm.finish()
    (forecast,) = p4.of(CatchUpForecast)
    (told,) = swarm.coordinator.of(CatchUpForecast)
    assert forecast.actor == told.actor == p4.actor and forecast.nbytes == told.nbytes
    assert forecast.can, "nothing limits what it receives"
    at, state = state_of(p4)
    assert p4.of(StateFetched)[0].source == "2 replicas" and state.refetched == 0
    assert decided_while(swarm, p4.at(CatchUpForecast), at) >= 2, "it took longer than a step"
    assert [e for e in p4.of(Gathered) if e.what.startswith("sums")], "what was decided meanwhile"
    first = p4.of(StateFetched)[0].version
    applied = [e.step for e in p4.of(StepApplied)]
    assert applied == list(range(first, swarm.manifest.run.steps)), "every step since the version loaded, in order"
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_a_donor_that_dies_leaves_the_rest_to_the_other(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = running(make_swarm, 10)
    p4 = swarm.join("p4", SLOW, PACE)
    p4.wait(lambda: came(p4) > 0, "piece of a state")
    joined = swarm.coordinator.of(PeerJoined, actor=p4.actor)[0]
    assert joined.stage is not None
    victim = swarm.peers[PEERS[joined.stage + 2]]
    victim.kill()
    died_at = time.time()  # on a busy machine, its end is noticed later
    victim.wait_end()
    p4.wait_for(StateFetched)  # with one donor left it may never catch up: its sums take as long as a step
    swarm.finish([name for name in (*PEERS, "p4") if swarm.peers[name] is not victim])
    at, state = state_of(p4)
    assert at - state.pieces_s < died_at < at, "it died during the download"
    assert state.by_donor.get(victim.actor, 0) < state.nbytes
    fetched = p4.of(StateFetched)[0]
    assert state.what == f"state {fetched.version}", "nothing was begun anew"
    assert fetched.source == "2 replicas", "both were asked"
    swarm.assert_equal(reference(swarm))


def test_who_is_killed_while_it_loads_goes_on_with_what_has_come(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]
) -> None:
    swarm = running(make_swarm, 20, rate="--max-rate=3Mbit")
    p4 = swarm.join("p4", "--max-rate=3Mbit", PACE)
    p4.wait(lambda: came(p4) > 1000, "half a megabyte of a state")
    p4.kill()
    p4.wait_end()
    begun = {path.name for path in (p4.home / "incoming").glob("state-*")}
    killed_at = time.time()
    swarm.coordinator.wait_for(StepDecided, count=len(swarm.coordinator.of(StepDecided)) + 1)
    swarm.join("p4", "--max-rate=3Mbit", PACE)
    p4.wait_for(StateFetched)
    swarm.finish()
    at, state = state_of(p4)
    # on a busy machine the donors may have a later version only: nothing of that has come yet
    assert state.resumed > 0 or f"state-{state.stage}-{state.what.split()[-1]}" not in begun
    assert begun and decided_while(swarm, killed_at, at) >= 1
    assert next(e.step for e in p4.of(StepApplied)) == p4.of(StateFetched)[0].version
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))


def test_the_organiser_reads_why_a_newcomer_gets_no_state(make_swarm: MakeSwarm) -> None:
    """The disk of every donor refuses the copy. Only the newcomer's own log told of it."""
    swarm = running(make_swarm, 400, rate="--max-rate=20Mbit")
    for name in PEERS:
        lent = swarm.peers[name].home / "lent"
        shutil.rmtree(lent)
        lent.write_text("no folder any more, so that nothing can be written into it")
    newcomer = swarm.join("p4", PACE)
    newcomer.wait_for(ProcessStarted)

    def told_why() -> bool:
        told = [event.reason for event in swarm.coordinator.of(PeerTroubled, actor=newcomer.actor)]
        return any("no donor keeps a copy for others" in each and "Not a directory" in each for each in told)

    # at first, the donors may have left the requested version behind before they tried to copy it
    swarm.coordinator.wait(told_why, "the reason why the newcomer gets no state")
    assert newcomer.code is None and all(swarm.peers[name].code is None for name in PEERS)


def came(peer: Process) -> int:
    """Bytes of a state that lie on its disk."""
    files = (peer.home / "incoming").glob("state-*")
    return sum(file.stat().st_blocks for file in files)


def test_many_join_at_once(make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]]) -> None:
    swarm = make_swarm("int8", *SETS, "run.steps=14", "swarm.replicas=2")
    swarm.coordinate()
    names = [f"n{number}" for number in range(4)]
    for name in names:  # four processes take longer to start than a few steps
        swarm.join(name, SLOW, PACE, "--fault=stop@ProcessStarted")
    for name in names:
        swarm.peers[name].wait_stopped()
    begin(swarm)
    for name in names:
        swarm.peers[name].resume()
    for name in names:
        swarm.peers[name].wait_for(StateFetched)
    swarm.finish()
    load: dict[str, int] = {}
    for name in names:
        for donor, nbytes in state_of(swarm.peers[name])[1].by_donor.items():
            load[donor] = load.get(donor, 0) + nbytes
    of_incumbents = [load.get(swarm.peers[name].actor, 0) for name in PEERS]  # who came sooner may lend too
    assert all(of_incumbents) and max(load.values()) <= 2 * sum(of_incumbents) / len(of_incumbents)
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
