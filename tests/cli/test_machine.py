"""How a machine is divided among the peers of a process, and what they say of it."""

from __future__ import annotations

from contextlib import ExitStack

from peers.stage.machine import Budgets, Machine, Seat
from swarm.events import Event, SeatLeft
from swarm.protocol.messages import Means, Seating

BUDGETS = Budgets(memory=8000, frames=2000, graphs=None, changes=1000)


class House:
    """A machine on which peers come and go, and who was told that its part is another one."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.told: list[str] = []
        self.logged: list[tuple[str, Event]] = []
        self._leave: dict[str, ExitStack] = {}

    def come(self, peer: str, on_call: bool = False) -> Seat:
        stack = self._leave[peer] = ExitStack()
        sitting = self.machine.sit(
            peer,
            on_call=on_call,
            tell=lambda event: self.logged.append((peer, event)),
            changed=lambda: self.told.append(peer),
        )
        return stack.enter_context(sitting)

    def leave(self, peer: str) -> None:
        self._leave.pop(peer).close()


def test_a_machine_is_divided_equally_but_for_its_memory() -> None:
    house = House(Machine(BUDGETS, max_rate=4_000_000))
    one = house.come("one")
    assert (one.frames, one.changes, one.max_rate) == (2000, 1000, 4_000_000)
    alone = one.means(capacity=2.0, up=None, down=3e6)
    assert (alone.capacity, alone.memory, alone.uplink, alone.downlink) == (2.0, 8000, 4e6, 3e6)
    two = house.come("two")
    assert (one.frames, two.frames, one.changes, two.max_rate) == (1000, 1000, 500, 2_000_000)
    shared = two.means(capacity=2.0, up=None, down=3e6)
    assert (shared.capacity, shared.memory, shared.uplink, shared.downlink) == (1.0, 8000, 2e6, 3e6)
    house.leave("two")
    assert one.frames == 2000


def test_a_measured_uplink_is_divided_as_a_limit_is() -> None:
    house = House(Machine(BUDGETS))
    one = house.come("one")
    house.come("two")
    assert one.means(1.0, up=8e6, down=None).uplink == 4e6
    assert one.means(1.0, up=None, down=None).uplink is None


def test_graphs_have_what_all_states_and_frames_leave() -> None:
    house = House(Machine(BUDGETS))
    one = house.come("one")
    one.holds(3000)
    assert one.graphs == 3000, "of 8000: what 3000 of state and 2000 of frames leave"
    one.holds(7500)
    assert (one.frames, one.graphs) == (500, 0), "what a large state does not leave is on the disk, or computed again"
    one.holds(500)
    assert one.frames == 2000
    assert one.graphs == 4000, "no more than half of the memory"
    two = house.come("two", on_call=True)
    house.told.clear()
    two.holds(3500)
    assert house.told == ["one"], "who has changed something itself need not be told"
    assert (one.graphs, two.graphs) == (1000, 1000)
    assert House(Machine(Budgets(8000, 2000, 600, 0))).come("one").graphs == 600, "as its owner says"


def test_everybody_is_told_when_somebody_comes_or_goes() -> None:
    house = House(Machine(BUDGETS))
    house.come("one")
    house.come("two")
    house.come("three")
    assert house.told == ["one", "one", "two"]
    house.told.clear()
    house.leave("two")
    assert house.told == ["one", "three"]


def test_what_is_said_of_who_shares_the_process() -> None:
    fixed = House(Machine(BUDGETS))
    assert fixed.come("one").means(1.0, None, None).seating is None
    assert fixed.come("two").means(1.0, None, None).seating == Seating(("one", "two"))

    grows = House(Machine(BUDGETS, more=lambda seats, reason: None))
    one = grows.come("one")
    assert one.means(1.0, None, None).seating == Seating(("one",), grows=True)
    two = grows.come("two", on_call=True)
    assert one.means(1.0, None, None).seating == Seating(("one", "two"), grows=True)
    assert two.means(1.0, None, None).seating == Seating(("one", "two"), on_call=True)


def test_what_becomes_of_others_is_in_the_log_of_the_first() -> None:
    house = House(Machine(BUDGETS))
    house.come("one")
    house.come("two")
    house.machine.tell(SeatLeft(2, "it was tired"))
    assert house.logged == [("one", SeatLeft(2, "it was tired"))]


def test_devices_of_a_process_share_its_line_and_nothing_else() -> None:
    first = House(Machine(BUDGETS, max_rate=4_000_000))
    second = House(Machine(Budgets(memory=500, frames=100), max_rate=4_000_000, beside=first.machine))
    assert second.machine.uplink is first.machine.uplink and second.machine.process == first.machine.process
    assert second.machine.measuring is first.machine.measuring
    one, two = first.come("one"), second.come("two")
    assert first.told == ["one"], "its part of the line is half now"
    assert (one.max_rate, two.max_rate) == (2_000_000, 2_000_000)
    assert (one.frames, two.frames, two.memory_for_stage) == (2000, 100, 500)
    two.holds(400)
    assert one.memory_for_stage == 8000
    assert one.means(3.0, None, None) == Means(3.0, 8000, 2e6, None, None)
    assert two.means(5.0, None, None) == Means(5.0, 500, 2e6, None, None)
    second.leave("two")
    assert one.max_rate == 4_000_000


def test_a_limited_uplink_is_one_for_all() -> None:
    machine = Machine(max_rate=1_000_000)
    assert machine.uplink is not None and machine.uplink.rate == 1_000_000
    assert Machine().uplink is None


def test_a_card_of_its_own_holds_graphs_and_the_host_frames() -> None:
    house = House(Machine(Budgets(memory=8000, frames=2000, graphs=None, changes=1000, host=3000)))
    one = house.come("one")
    one.holds(7500, beside=500)
    assert (one.graphs, one.frames) == (500, 2000), "graphs have what is left of the card, frames do not lie there"
    one.holds(6000, beside=2500)
    assert (one.graphs, one.frames) == (2000, 500), "what a reduce has in hand lies in the host's memory too"
