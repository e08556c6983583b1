"""Who is asked to have one more peer in its process, which stages that one is never given, and when it goes again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from swarm.events import PeerJoined, PeerLeaving, SeatAsked
from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import TermWritten, WriteTerm
from swarm.protocol.coordinator.membership.stage_costs import StageCosts
from swarm.protocol.coordinator.placement.seats import IN_VAIN_BUDGETS
from swarm.protocol.ids import Actor, StageIndex, Term
from swarm.protocol.io import Emit, LeaveRequested, LinkLost, Received, Send, Tick
from swarm.protocol.messages import Means, Seating
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import MeansChanged, OpenSeats
from swarm.protocol.stage_needs import ComputeKind, StageNeeds, needs_of
from swarm.simulation.runs.plan import small_settings

COORDINATOR = Actor("coord", 0)
SETTINGS = replace(
    small_settings(stages=3, microbatches=4, steps=9, replicas=1),
    start_timeout_s=0.1,
    stage_needs={ComputeKind.HOST_FP32: StageNeeds((100, 200, 300))},
)
BEAT = SETTINGS.heartbeat_s


def actor(name: str) -> Actor:
    return Actor(name, 1)


class Run:
    """A coordinator that hears what it is told, with a clock that goes on by a beat with `wait`."""

    def __init__(self, settings: Any = SETTINGS) -> None:
        self.core = CoordinatorCore(COORDINATOR, settings, 0, None, None)
        self.now = 0.0
        self.sequence = 0
        self.take(Tick())
        self.take(TermWritten(1))

    def take(self, event: Any) -> list[Any]:
        return list(self.core.handle(event, self.now))

    def join(
        self, name: str, *others: str, memory: int | None = None, capacity: float = 1.0, **fields: Any
    ) -> list[Any]:
        """`others`: who shares its process, the first one first, if it is not that itself."""
        self.sequence += 1
        peers = (*others, name)
        seating = Seating(peers, grows=not others, on_call=bool(others))
        seating = fields.pop("seating", seating)
        message = m.Join(actor(name), None, capacity, self.sequence, memory, seating=seating, **fields)
        return self.take(Received(actor(name), message))

    def hold(self, name: str, stage: int, *peers: str, memory: int | None = None, **fields: Any) -> list[Any]:
        """It says that it holds its stage at version 0. `peers`: who is in its process."""
        self.sequence += 1
        peers = peers or (name,)
        seating = Seating(peers, grows=peers[0] == name, on_call=peers[0] != name)
        known = {"version": 0, "sequence": self.sequence, "memory": memory, "seating": seating} | fields
        return self.take(Received(actor(name), m.Status(actor(name), StageIndex(stage), **known)))

    def wait(self, seconds: float, *speaking: Any, **fields: Any) -> list[Any]:
        """`speaking`: (name, stage, *peers) of those who go on saying what they hold; `fields` by name of what more."""
        orders: list[Any] = []
        for _ in range(round(seconds / BEAT)):
            self.now += BEAT
            for name, stage, *peers in speaking:
                orders += self.hold(name, stage, *peers, **fields.get(name, {}))
            orders += self.take(Tick())
        return orders

    def stage_of(self, name: str) -> int | None:
        member = self.core.members.get(actor(name))
        assert member is not None
        return member.stage


def asked(orders: list[Any]) -> list[tuple[Actor, int]]:
    return [(a.to, a.message.seats) for a in orders if isinstance(a, Send) and isinstance(a.message, m.TakeSeats)]


def released(orders: list[Any]) -> list[Actor]:
    return [a.to for a in orders if isinstance(a, Send) and isinstance(a.message, m.LeaveSeat)]


def emitted(orders: list[Any], kind: type) -> list[Any]:
    return [a.event for a in orders if isinstance(a, Emit) and isinstance(a.event, kind)]


def two_of_three(settings: Any = SETTINGS, **fields: Any) -> Run:
    """Two peers hold stages 0 and 1; stage 2 has nobody."""
    run = Run(settings)
    for stage, name in enumerate(("a", "b")):
        run.join(name, **fields.get(name, {}))
        run.hold(name, stage, **fields.get(name, {}))
    return run


def speaking() -> list[tuple[str, int]]:
    return [("a", 0), ("b", 1)]


def test_alone_on_its_machine_a_peer_may_compute_its_layers_again() -> None:
    settings = replace(SETTINGS, stages=1, stage_needs={ComputeKind.HOST_FP32: StageNeeds((200,), by_layer=(100,))})
    for memory, stage in ((99, None), (100, 0)):
        run = Run(settings)
        run.join("a", memory=memory)
        assert run.stage_of("a") == stage
    needs = {ComputeKind.HOST_FP32: StageNeeds((200, 200), by_layer=(100, 100))}
    costs = StageCosts(2, needs)
    beside = Run(replace(settings, stages=2, stage_needs=needs))
    beside.join("a", memory=399)
    other = beside.core.members.get(actor("a"))
    assert costs.has_room(other, (), 1) and not costs.has_room(other, (other,), 1), "two seats need whole graphs"
    other.memory = 400
    assert costs.has_room(other, (other,), 1)


def test_who_needs_more_for_a_stage_than_another_is_given_no_stage_with_the_same_memory() -> None:
    """What counts is what it says about itself, also after a restart of the coordinator: in a Status as in a Join."""
    whole = {ComputeKind.HOST_FP32: 100, ComputeKind.CARD_BF16: 80, ComputeKind.CARD_FP16: 120}
    needs = {kind: StageNeeds((need,), by_layer=(need // 2,)) for kind, need in whole.items()}
    settings = replace(SETTINGS, stages=1, stage_needs=needs)
    for kind, need in whole.items():
        for memory in (need // 2 - 1, need // 2):
            run = Run(settings)
            run.join("a", memory=memory, kind=kind)
            assert run.stage_of("a") == (0 if memory == need // 2 else None), kind
    run.hold("b", 0, memory=59, kind=ComputeKind.CARD_FP16)
    told = run.core.members.get(actor("b"))
    assert told.kind is ComputeKind.CARD_FP16
    assert not run.core._placement.rebalancing.may_hold(told, 0)


def test_peers_of_one_process_are_counted_by_how_each_of_them_computes() -> None:
    needs = {ComputeKind.HOST_FP32: StageNeeds((100, 100)), ComputeKind.CARD_BF16: StageNeeds((60, 60))}
    run = Run(replace(SETTINGS, stages=2, stage_needs=needs))
    run.join("a", memory=120, kind=ComputeKind.CARD_BF16)
    run.join("b", "a", memory=120, kind=ComputeKind.CARD_BF16)
    assert {run.stage_of("a"), run.stage_of("b")} == {0, 1}
    run = Run(replace(SETTINGS, stages=2, stage_needs=needs))
    run.join("a", memory=120)
    run.join("b", "a", memory=120)
    assert (run.stage_of("a"), run.stage_of("b")) == (0, None)


def test_why_a_peer_stands_by_names_the_need_of_its_own_kind() -> None:
    needs = {ComputeKind.HOST_FP32: StageNeeds((10**9,)), ComputeKind.CARD_FP16: StageNeeds((3 * 10**9,))}
    run = Run(replace(SETTINGS, stages=1, stage_needs=needs))
    (told,) = emitted(run.join("a", memory=2 * 10**9, kind=ComputeKind.CARD_FP16), PeerJoined)
    assert "needs 3 GB on a graphics card in fp16" in told.reason


def test_a_kind_that_is_not_known_needs_the_most_of_all() -> None:
    needs = {
        ComputeKind.HOST_FP32: StageNeeds((100, 50), by_layer=(10, 20)),
        ComputeKind.CARD_BF16: StageNeeds((80, 60)),
    }
    assert needs_of(needs, ComputeKind.CARD_FP16) == StageNeeds((100, 60), by_layer=(80, 60))
    assert needs_of(needs, ComputeKind.CARD_BF16) is needs[ComputeKind.CARD_BF16]
    assert needs_of({}, ComputeKind.CARD_BF16) is None


def test_who_holds_the_stage_beside_the_empty_one_is_asked_when_nobody_has_come() -> None:
    run = two_of_three()
    assert not asked(run.wait(SETTINGS.recruit_after_s - BEAT, *speaking())), "somebody may still come"
    orders = run.wait(3 * BEAT, *speaking())
    assert emitted(orders, SeatAsked) == [SeatAsked("b.1", 2, 2)]
    assert set(asked(orders)) == {(actor("b"), 2)}
    assert len(asked(run.wait(8 * BEAT, *speaking()))) >= 3, "again and again: any message may be lost"


def test_who_comes_is_given_the_empty_stage_and_nobody_is_asked_any_more() -> None:
    run = two_of_three()
    run.wait(3 * SETTINGS.recruit_after_s, *speaking())
    run.join("b2", "b")
    assert run.stage_of("b2") == 2
    orders = run.wait(SETTINGS.step_budget_s, ("a", 0), ("b", 1, "b", "b2"), ("b2", 2, "b", "b2"))
    assert not asked(orders)


def test_a_peer_that_did_what_it_was_asked_is_asked_again_when_the_additional_peer_has_gone() -> None:
    core = CoordinatorCore(COORDINATOR, SETTINGS, 0, None, None)
    seats, members = core._seats, core.members
    for name, stage in speaking():
        member = members.add(actor(name), 0.0)
        member.place(StageIndex(stage), 0.0)
        member.version = 0
        member.seating = Seating((name,), grows=name == "b")
    seats.lacking(2, 1.0)
    assert asked(core._out.take()) == [(actor("b"), 2)]
    member.seating = Seating(("b", "b2"), grows=True)
    added = members.add(actor("b2"), 2.0)
    added.place(StageIndex(2), 2.0)
    added.seating = Seating(("b", "b2"), on_call=True)
    assert seats.release(3.0) is None
    members.remove(actor("b2"))
    member.seating = Seating(("b",), grows=True)
    seats.lacking(2, 3.0 + SETTINGS.step_budget_s)
    assert asked(core._out.take()) == [(actor("b"), 2)]


def test_nobody_is_asked_who_takes_no_one_on() -> None:
    run = Run()
    for stage, name in enumerate(("a", "b")):
        run.join(name, seating=None)
        run.hold(name, stage, seating=None)
    assert not asked(run.wait(12.0, *speaking(), a={"seating": None}, b={"seating": None}))


def test_a_stage_goes_where_memory_is_left_for_it() -> None:
    """Stages need 100, 200 and 300 bytes: a needs 400 to hold the first and the last, b 500 for the last two."""
    for a, b, taker in ((400, 499, "a"), (399, 500, "b"), (399, 499, None)):
        run = two_of_three(a={"memory": a}, b={"memory": b})
        orders = run.wait(4.0, *speaking(), a={"memory": a}, b={"memory": b})
        assert {to for to, _ in asked(orders)} == ({actor(taker)} if taker else set()), (a, b)


def test_the_less_loaded_is_asked_before_who_is_beside_the_stage() -> None:
    run = two_of_three(a={"capacity": 4.0})
    orders = run.wait(2.0, *speaking(), a={"capacity": 4.0})
    assert asked(orders)[0][0] == actor("a"), "four times as fast, though it is farther away"


def test_who_does_not_do_what_it_was_asked_is_not_asked_for_a_while() -> None:
    run = two_of_three()
    orders = run.wait(SETTINGS.step_budget_s + 2.0, *speaking())
    assert [event.actor for event in emitted(orders, SeatAsked)] == ["b.1", "a.1"]
    run.wait(SETTINGS.step_budget_s, *speaking())
    again = run.wait((IN_VAIN_BUDGETS + 1) * SETTINGS.step_budget_s, *speaking())
    assert {event.actor for event in emitted(again, SeatAsked)} == {"a.1", "b.1"}


def test_who_leaves_and_returns_all_the_time_does_not_delay_the_request() -> None:
    run = two_of_three()
    orders: list[Any] = []
    for incarnation in range(2, 12):
        leaver = Actor("b", incarnation)
        for message in (
            m.Status(leaver, StageIndex(1), 0, sequence=1, seating=Seating(("b",), grows=True)),
            m.Leave(leaver, "back soon"),
        ):
            orders += run.take(Received(leaver, message)) + run.wait(SETTINGS.recruit_after_s / 4, ("a", 0))
    assert emitted(orders, SeatAsked)


def test_who_restarts_each_time_that_it_is_asked_keeps_no_stage_empty() -> None:
    run = two_of_three()
    orders = run.wait(2.0, *speaking())
    assert [event.actor for event in emitted(orders, SeatAsked)] == ["b.1"]
    for incarnation in (2, 3):
        again, run.sequence = Actor("b", incarnation), run.sequence + 1
        status = m.Status(again, StageIndex(1), 0, sequence=run.sequence, seating=Seating(("b",), grows=True))
        orders += run.take(Received(again, status)) + run.wait(2 * BEAT, ("a", 0))
    assert [event.actor for event in emitted(orders, SeatAsked)] == ["b.1", "a.1"]


def test_two_of_a_process_never_get_the_same_stage() -> None:
    run = Run(replace(SETTINGS, max_replicas=2))
    for stage, name in enumerate(("a", "b", "c")):
        run.join(name)
        run.hold(name, stage)
    run.join("c2", "c")
    run.hold("c", 2, "c", "c2")
    assert run.stage_of("c2") in (0, 1)
    run = Run(replace(SETTINGS, max_replicas=2))
    for stage, name in enumerate(("a", "b", "c")):
        run.join(name)
        run.hold(name, stage)
    run.join("d", "a", "b", "c", seating=Seating(("a", "b", "c", "d")))
    assert run.stage_of("d") is None, "each stage has another one of its process"


def test_what_the_others_of_a_process_hold_is_taken_from_its_memory() -> None:
    run = Run(replace(SETTINGS, max_replicas=2))
    run.join("a", memory=400)
    run.hold("a", 0, memory=400)
    run.join("a2", "a", memory=400)
    assert run.stage_of("a2") == 1, "stage 2 needs 300, of which 300 are left"
    run.hold("a2", 1, "a", "a2", memory=400)
    run.join("a3", "a", "a2", memory=400, seating=Seating(("a", "a2", "a3")))
    assert run.stage_of("a3") is None, "of 400 the others hold 300"


def test_a_seat_is_given_up_when_its_stage_has_its_replicas_without_it() -> None:
    core = CoordinatorCore(COORDINATOR, replace(SETTINGS, max_replicas=2), 0, None, None)
    seats, members = core._seats, core.members
    for name, stage, peers in (("a", 0, ("a",)), ("b", 1, ("b", "b2")), ("b2", 2, ("b", "b2"))):
        member = members.add(actor(name), 0.0)
        member.place(StageIndex(stage), 0.0)
        member.version = 0
        member.seating = Seating(peers, grows=peers[0] == name, on_call=peers[0] != name)
    assert seats.release(1.0) is None and not core._out.take(), "nobody else holds stage 2"
    newcomer = members.add(actor("c"), 1.0)
    newcomer.place(StageIndex(2), 0.0)
    assert seats.release(2.0) is None and not core._out.take(), "c does not hold the version yet"
    newcomer.version = 0
    assert seats.release(3.0) == (member, "stage 2 has its 1 replicas without it")
    assert released(core._out.take()) == [actor("b2")]
    assert seats.release(3.0 + BEAT) is None and not core._out.take()
    assert seats.release(3.1 + 2 * BEAT) is None
    assert released(core._out.take()) == [actor("b2")], "told again, said once"
    member.status = m.Status(actor("b2"), StageIndex(2), 0, leaving=True)
    assert seats.release(9.0) is None and not core._out.take()


def test_who_was_told_to_leave_its_seat_is_told_so_until_it_says_that_it_does() -> None:
    """The message is lost, and then the one that came in its place dies: it counts as leaving, and does not know."""
    run = two_of_three(replace(SETTINGS, max_replicas=2))
    run.wait(2.0, *speaking())
    run.join("b2", "b", capacity=0.5)
    run.join("c")
    assert released(run.hold("b", 1, "b", "b2") + run.hold("b2", 2, "b", "b2") + run.hold("c", 2)) == [actor("b2")]
    run.take(LinkLost(actor("c")))
    run.now += SETTINGS.reconnect_grace_s + 0.01
    for order in run.take(Tick()):
        if isinstance(order, WriteTerm):
            run.take(TermWritten(order.term))
    orders = run.wait(9 * BEAT, ("a", 0), ("b", 1, "b", "b2"), ("b2", 2, "b", "b2"))
    assert released(orders).count(actor("b2")) >= 3
    orders = run.wait(9 * BEAT, ("a", 0), ("b", 1, "b", "b2"), ("b2", 2, "b", "b2"), b2={"leaving": True})
    assert not released(orders)


def test_a_seat_that_does_not_go_keeps_no_other_from_going() -> None:
    core = CoordinatorCore(COORDINATOR, replace(SETTINGS, max_replicas=2), 0, None, None)
    seats, members = core._seats, core.members
    for name, stage, peers in (("liar", 0, ("liar",)), ("a", 0, ("a",)), ("b2", 2, ("b", "b2")), ("c", 2, ("c",))):
        member = members.add(actor(name), 0.0)
        member.place(StageIndex(stage), 0.0)
        member.version = 0
        member.seating = Seating(peers, grows=False, on_call=name in ("liar", "b2"))
    told = []
    for look in range(9):
        seats.release(look * BEAT)
        told += released(core._out.take())
    assert {actor("liar"), actor("b2")} == set(told) and told.count(actor("b2")) > 2


def test_no_machine_is_asked_while_one_of_its_seats_is_leaving() -> None:
    """How many peers it has is about to change, and an order names how many it is to have."""
    core = CoordinatorCore(COORDINATOR, SETTINGS, 0, None, None)
    for name, stage, peers in (("a", 0, ("a", "a2")), ("a2", 1, ("a", "a2"))):
        member = core.members.add(actor(name), 0.0)
        member.place(StageIndex(stage), 0.0)
        member.version = 0
        member.seating = Seating(peers, grows=name == "a", on_call=name == "a2")
    assert core._seats.may_come(2, 1.0)
    member.leave(1.0)
    assert not core._seats.may_come(2, 1.0)


def test_who_is_told_to_leave_its_seat_has_no_part_in_the_next_pass() -> None:
    run = two_of_three(replace(SETTINGS, max_replicas=2))
    run.wait(2.0, *speaking())
    run.join("b2", "b", capacity=0.5)
    run.join("c")
    assert (run.stage_of("b2"), run.stage_of("c")) == (2, 2)
    orders = run.hold("b", 1, "b", "b2") + run.hold("c", 2)
    assert released(orders) == [actor("b2")]
    assert emitted(orders, PeerLeaving)[0].reason == "stage 2 has its 1 replicas without it"
    opened = [a.message for a in orders if isinstance(a, Send) and isinstance(a.message, m.Open)]
    assert opened and all(o.tables[2].roster in ((actor("c"),), ()) for o in opened)


def test_the_last_replica_stays_while_somebody_may_take_a_seat_for_its_stage() -> None:
    core = CoordinatorCore(COORDINATOR, SETTINGS, 0, None, None)
    assert not core._seats.may_come(2, 1.0)
    member = core.members.add(actor("a"), 0.0)
    member.place(StageIndex(0), 0.0)
    member.version = 0
    assert not core._seats.may_come(2, 1.0)
    member.seating = Seating(("a",), grows=True)
    assert core._seats.may_come(2, 1.0) and not core._seats.may_come(0, 1.0)


# ---------------------------------------------------------------- the peer


def peer(seating: Seating | None) -> PeerCore:
    core = PeerCore(actor("a"), COORDINATOR, SETTINGS)
    core.offers(Means(seating=seating))
    core.handle(Tick(), 0.0)
    return core


def told(core: PeerCore, message: m.Message, sender: Actor = COORDINATOR) -> list[Any]:
    return list(core.handle(Received(sender, message), 1.0))


def test_a_peer_has_its_process_take_others_on_if_that_does() -> None:
    take = m.TakeSeats(Term(1), 2, "stage 2 has no peer")
    (order,) = [a for a in told(peer(Seating(("a",), grows=True)), take) if isinstance(a, OpenSeats)]
    assert (order.seats, order.reason) == (2, "stage 2 has no peer")
    for seating in (None, Seating(("a",)), Seating(("a", "b"), grows=True)):
        assert not [a for a in told(peer(seating), take) if isinstance(a, OpenSeats)], seating
    stranger = told(peer(Seating(("a",), grows=True)), take, actor("x"))
    assert not [a for a in stranger if isinstance(a, OpenSeats)]


def test_who_was_taken_on_leaves_when_told_and_others_do_not() -> None:
    leave = m.LeaveSeat(Term(1), "stage 2 has its 1 replicas without it")
    core = peer(Seating(("b", "a"), on_call=True))
    told(core, leave)
    assert core.leaving
    for seating in (None, Seating(("a",), grows=True), Seating(("b", "a"))):
        core = peer(seating)
        told(core, leave)
        assert not core.leaving, seating


def test_told_twice_to_leave_its_seat_it_still_leaves_in_good_order() -> None:
    core = peer(Seating(("b", "a"), on_call=True))
    core.held_stage.stage, core.held_stage.version = StageIndex(0), 0
    leave = m.LeaveSeat(Term(1), "enough")
    told(core, leave)
    assert not [a for a in told(core, leave) if type(a).__name__ == "Stop"], (
        "asked twice by its owner it would go at once"
    )
    assert [a for a in core.handle(LeaveRequested("left"), 1.1) if type(a).__name__ == "Stop"]


def test_a_change_of_means_is_told_at_once() -> None:
    core = peer(Seating(("a",), grows=True))
    (send,) = [a for a in core.handle(MeansChanged(Means(0.5, seating=Seating(("a", "b"), grows=True))), 0.01)]
    assert (send.message.capacity, send.message.seating.peers) == (0.5, ("a", "b"))
