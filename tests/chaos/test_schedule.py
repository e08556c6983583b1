"""When faults strike, from events and times alone."""

from __future__ import annotations

import tomllib

from peers.chaos.fault import read_fault
from peers.chaos.schedule import Schedule
from peers.chaos.table import Table
from swarm.events import MicrobatchForwarded, PassOpened, PeerLost, StepDecided

OPENED = PassOpened("1:0", "train", [1])
ACTORS = {"p0": frozenset({"Qm0/1", "Qm0/2"})}


def schedule(text: str) -> Schedule:
    faults = [read_fault(table, n) for n, table in enumerate(Table(tomllib.loads(text), "").tables("fault"), 1)]
    faults += [fault.undone() for fault in faults if fault.for_s is not None]
    return Schedule(faults, lambda host: ACTORS.get(host, frozenset()))


def names(played: Schedule, now: float) -> list[str]:
    return [fault.name for fault in played.due(now)]


def decided(step: int) -> StepDecided:
    return StepDecided(1, step, 1.0, 1.0, 1.0, 1, [], [])


def test_a_time_counts_from_the_first_step() -> None:
    played = schedule('[[fault]]\ndo = "kill"\nwho = "p0"\nat = "3s"')
    assert names(played, 1000.0) == []
    played.see("coordinator", OPENED, 100.0)
    assert names(played, 102.9) == []
    assert names(played, 103.0) == ["kill 1"]
    assert names(played, 104.0) == [], "once"
    assert played.waiting == []


def test_after_a_step_and_a_pause() -> None:
    played = schedule('[[fault]]\ndo = "kill"\nwho = "p0"\nafter_step = 3\nat = "2s"')
    for step in range(3):
        played.see("coordinator", decided(step), 10.0 + step)
    assert names(played, 13.9) == []
    assert names(played, 14.0) == ["kill 1"]


def test_a_step_that_was_passed_by_meanwhile_counts_as_reached() -> None:
    played = schedule(
        """[[fault]]
        name = "dead"
        do = "kill"
        who = "p0"
        at = "1s"
        [[fault]]
        name = "later"
        do = "stop"
        who = "p1"
        after = "dead"
        after_step = 3"""
    )
    played.see("coordinator", OPENED, 0.0)
    (dead,) = played.due(1.0)
    for step in range(5):
        played.see("coordinator", decided(step), 1.1)
    played.struck(dead, 1.5)
    assert names(played, 2.0) == []
    played.see("coordinator", decided(5), 2.5)
    assert names(played, 2.5) == ["later"]


def test_the_third_event_of_one_host_with_a_field() -> None:
    played = schedule(
        """[[fault]]
        do = "stop"
        who = "p0"
        event = "MicrobatchForwarded"
        of = "p0"
        where = { pass_id = "1:*" }
        count = 3"""
    )
    played.see("p1", MicrobatchForwarded("1:0", 0), 1.0)
    played.see("p0", MicrobatchForwarded("2:0", 0), 1.0)
    for n in range(2):
        played.see("p0", MicrobatchForwarded("1:0", n), 1.0)
    assert names(played, 5.0) == []
    played.see("p0", MicrobatchForwarded("1:1", 0), 6.0)
    assert names(played, 6.0) == ["stop 1"]


def test_a_hosts_name_stands_for_its_actors() -> None:
    played = schedule('[[fault]]\ndo = "heal"\nevent = "PeerLost"\nwhere = { actor = "p0" }')
    played.see("coordinator", PeerLost("Qm1/1", 0, ""), 1.0)
    assert names(played, 1.0) == []
    played.see("coordinator", PeerLost("Qm0/2", 0, ""), 2.0)
    assert names(played, 2.0) == ["heal 1"]


def test_what_comes_after_a_fault_counts_from_it() -> None:
    played = schedule(
        """[[fault]]
        name = "cut"
        do = "cut"
        who = "p0"
        at = "1s"
        for = "2s"
        [[fault]]
        name = "later"
        do = "kill"
        who = "p0"
        after = "cut, over"
        after_step = 1"""
    )
    played.see("coordinator", OPENED, 0.0)
    (cut,) = played.due(1.0)
    played.struck(cut, 1.5)
    played.see("coordinator", decided(0), 2.0)
    assert names(played, 3.4) == []
    (healed,) = played.due(3.5)
    assert (healed.name, healed.kind) == ("cut, over", "heal")
    played.struck(healed, 3.5)
    assert names(played, 9.0) == [], "the step was decided before"
    played.see("coordinator", decided(0), 10.0)
    assert names(played, 10.0) == ["later"]


def test_what_is_taken_back_names_the_fault_it_takes_back() -> None:
    played = schedule('[[fault]]\nname = "dark"\ndo = "power_off"\nwho = "stage:0"\nat = "1s"\nfor = "2s"')
    played.see("coordinator", OPENED, 0.0)
    (dark,) = played.due(1.0)
    played.struck(dark, 1.0)
    (back,) = played.due(3.0)
    assert (back.kind, back.takes_back, back.undoes) == ("restart", "dark", False)
