"""Two machines with two devices each, of which one gets hot, then the other: the run goes on, waits, and ends right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conftest import MakeSwarm
from swarm_processes import Process, Swarm

from peers.demo.event_tail import EventTail
from peers.run.home import Home
from swarm.events import (
    MicrobatchAccumulated,
    PeerDescribed,
    PeerFenced,
    PeerJoined,
    PeerPaused,
    PeerResumed,
    StateChanged,
    StepAborted,
    StepApplied,
)

HOT, COOL = "83000\n", "60000\n"
REASON = "83 °C (limit 80)"
SETS = (
    "run.steps=12",
    "batch.microbatches=4",
    "timing.step_budget_s=600",
    "timing.recruit_after_s=60",
    "swarm.start_timeout_s=300",
)


def test_who_is_hot_pauses_and_keeps_its_state_current_and_the_run_waits_when_all_are(
    make_swarm: MakeSwarm, reference: Callable[[Swarm], tuple[str, ...]], tmp_path: Path
) -> None:
    swarm = make_swarm("int8", *SETS)
    swarm.coordinate()
    sensors: dict[str, Path] = {}
    for number, name in enumerate(("one", "two"), 1):
        sensors[name] = tmp_path / name
        sensors[name].write_text(COOL)
        options = ("--device=cpu,cpu", "--max-temp=80", f"--temp-file={sensors[name]}", "--pace=0.1,0.2")
        swarm.join(name, *options)
        swarm.coordinator.wait_for(PeerJoined, 2 * number)  # so that each has a seat in both stages
    one, two = swarm.peers["one"], swarm.peers["two"]

    one.wait_for(StepApplied)
    sensors["one"].write_text(HOT)
    one.wait_for(PeerPaused)
    seats = second(one)
    swarm.coordinator.wait(lambda: len(swarm.coordinator.of(PeerPaused)) == 2, "both seats of the hot machine")
    idle = idle_step(one)

    sensors["two"].write_text(HOT)
    swarm.coordinator.wait(lambda: bool(waits(swarm)), "that the run waits for paused peers")
    sensors["one"].write_text(COOL)
    swarm.finish()

    assert {e.reason for e in swarm.coordinator.of(PeerPaused)} == {REASON}
    assert {e.actor for e in swarm.coordinator.of(PeerResumed)} >= {one.actor}
    assert not swarm.coordinator.of(PeerFenced) and not swarm.coordinator.of(StepAborted)
    assert two.of(MicrobatchAccumulated, pass_id=idle), "the others did its work"
    assert {e.stage for e in seats if isinstance(e, PeerJoined)} | {e.stage for e in one.of(PeerJoined)} == {0, 1}
    described = {e.actor: e.machine["process"] for e in swarm.coordinator.of(PeerDescribed)}
    assert len(described) == 4 and len(set(described.values())) == 2, "the seats of a process are known to be together"
    swarm.assert_equal(reference(swarm))


def second(process: Process) -> list[object]:
    """What the peer on the second device has logged."""
    return [event for _, event in EventTail(Home(process.home / "seats" / "2").events).read()]


def waits(swarm: Swarm) -> list[StateChanged]:
    told = swarm.coordinator.of(StateChanged, state="waiting")
    return [event for event in told if f"paused: {REASON}" in event.reason]


def idle_step(process: Process) -> str:
    """The pass of the first step that a paused peer applies without having done any of it, once it has."""
    found: list[str] = []

    def there() -> bool:
        done = {event.pass_id for event in process.of(MicrobatchAccumulated)}
        steps = [f"1:{event.step}" for event in process.of(StepApplied)]
        found[:] = [step for step in steps if step not in done]
        return bool(found)

    process.wait(there, "a step that is applied without any work of its own")
    return found[0]
