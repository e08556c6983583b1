"""What was sent for the sums is of use under a new table that only moves what others have: nobody sends it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from swarm.events import ReduceStarted
from swarm.protocol import messages as m
from swarm.protocol.ids import (
    Actor,
    Attempt,
    Direction,
    FrameKey,
    Microbatch,
    PartKey,
    PassId,
    PassKind,
    StageIndex,
    StepNumber,
    Term,
)
from swarm.protocol.io import Emit, Received, Send, Tick
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import (
    BackwardDone,
    BucketSummed,
    CancelReduce,
    EncodePart,
    PartEncoded,
    StateLoaded,
    SumBucket,
)
from swarm.simulation.runs.plan import small_settings

COORDINATOR, ME, SLOW, FAST = (Actor(name, 1) for name in ("coordinator", "me", "slow", "fast"))
PASS = PassId(Term(1), StepNumber(0))
STAGE = StageIndex(0)
ROSTER = (ME, SLOW, FAST)
SETTINGS = small_settings(stages=1, microbatches=6, steps=2, replicas=3)
BEFORE = m.StageTable(0, ROSTER, (0, 1, 2, 0, 1, 2))
"""Bucket 0 is mine to sum, 1 that of the slow one, 2 that of the fast one."""
MOVED = m.StageTable(1, ROSTER, (0, 1, 2, 0, 2, 2))
"""The slow one has given up the fifth, and the fast one has it."""
MINE = 0b001001


class Peer:
    """One of three replicas of the only stage, in its first step."""

    def __init__(self, settings: Any = SETTINGS) -> None:
        self.core = PeerCore(ME, COORDINATOR, settings)
        self.now = 0.0
        self.take(Tick())
        self.hear(COORDINATOR, m.Assign(Term(1), STAGE, 0))
        self.take(StateLoaded(STAGE, 0, 3))
        self.hear(COORDINATOR, m.Open(PASS, PassKind.TRAIN, (BEFORE,), None))

    def take(self, event: Any) -> list[Any]:
        self.now += 0.001
        return list(self.core.handle(event, self.now))

    def hear(self, sender: Actor, message: m.Message) -> list[Any]:
        return self.take(Received(sender, message))

    def seal(self) -> list[Any]:
        """All that is assigned to this peer is in its sums."""
        orders: list[Any] = []
        for microbatch in (0, 3):
            tokens = FrameKey(PASS, 0, Direction.FORWARD, Microbatch(microbatch))
            self.hear(COORDINATOR, m.Frame(tokens, b"tokens"))
            orders += self.take(BackwardDone(PASS, Microbatch(microbatch), None))
        return orders

    def amend(self, table: m.StageTable) -> list[Any]:
        return self.hear(COORDINATOR, m.Amend(PASS, STAGE, table, "told so"))

    def part_of(self, contributor: Actor, table: m.StageTable, number: int) -> list[Any]:
        key = PartKey(Attempt(PASS, STAGE, number), 0, contributor)
        return self.hear(contributor, m.ReducePart(key, table.set_of(contributor), contributor.peer))


def parts(orders: list[Any]) -> list[tuple[Actor, int, int]]:
    """To whom, of which table, which bucket."""
    sent = [(a.to, a.message) for a in orders if isinstance(a, Send) and isinstance(a.message, m.ReducePart)]
    return [(to, part.key.attempt.number, part.key.bucket) for to, part in sent]


def encoded(peer: Peer, number: int, bucket: int) -> list[Any]:
    return peer.take(PartEncoded(Attempt(PASS, STAGE, number), bucket, f"bucket {bucket}"))


def of(orders: list[Any], kind: type) -> list[Any]:
    return [a for a in orders if isinstance(a, kind)]


def test_nothing_is_made_or_sent_again_when_others_change_work() -> None:
    peer = Peer()
    assert [a.bucket for a in of(peer.seal(), EncodePart)] == [1, 2]
    assert parts(encoded(peer, 0, 1)) == [(SLOW, 0, 1)]
    orders = peer.amend(MOVED)
    assert not of(orders, CancelReduce) and not of(orders, EncodePart) and not parts(orders)
    (told,) = [a.event for a in of(orders, Emit) if isinstance(a.event, ReduceStarted)]
    assert told == ReduceStarted(str(Attempt(PASS, STAGE, 1)), [0, 3]), "the log tells what a sum holds"
    assert parts(encoded(peer, 0, 2)) == [(FAST, 1, 2)], "what was still being made is of use too"
    wanted = peer.hear(SLOW, m.Want((PartKey(Attempt(PASS, STAGE, 1), 1, ME),)))
    assert parts(wanted) == [(SLOW, 1, 1)], "if it is lost, it is asked for in the new name"


def test_who_sums_keeps_what_is_still_right_and_waits_for_what_is_not() -> None:
    peer = Peer()
    peer.seal()
    assert not peer.part_of(FAST, BEFORE, 0), "of two microbatches; it has three then"
    peer.amend(MOVED)
    assert not of(peer.part_of(SLOW, MOVED, 1), SumBucket), "that of the fast one is void"
    (order,) = of(peer.part_of(FAST, MOVED, 1), SumBucket)
    assert order.attempt.number == 1 and order.parts == ("slow", "fast")


def test_a_part_of_an_older_table_counts_if_it_is_of_the_same_microbatches() -> None:
    peer = Peer()
    peer.amend(MOVED)
    peer.seal()
    peer.part_of(FAST, MOVED, 1)
    assert not of(peer.part_of(SLOW, BEFORE, 0), SumBucket), "it has given one of them up"
    assert of(peer.part_of(SLOW, MOVED, 1), SumBucket), "and what the others have sent was not dropped for it"
    swapped = replace(MOVED, number=2, assignment=(0, 1, 2, 0, 2, 1))
    third = Peer()
    third.amend(MOVED)
    third.amend(swapped)
    third.seal()
    third.part_of(FAST, swapped, 2)
    assert of(third.part_of(SLOW, swapped, 1), SumBucket), "sent by one that had not heard of the last table"


def test_who_has_to_do_more_keeps_what_the_others_have_sent_it() -> None:
    peer = Peer()
    peer.seal()
    peer.part_of(SLOW, BEFORE, 0)
    mine = m.StageTable(1, ROSTER, (0, 1, 2, 0, 1, 0))
    assert of(peer.amend(mine), CancelReduce), "what it has sent itself is void"
    tokens = FrameKey(PASS, 0, Direction.FORWARD, Microbatch(5))
    peer.hear(COORDINATOR, m.Frame(tokens, b"tokens"))
    assert [a.bucket for a in of(peer.take(BackwardDone(PASS, Microbatch(5), None)), EncodePart)] == [1, 2]
    (order,) = of(peer.part_of(FAST, mine, 1), SumBucket)
    assert order.parts == ("slow", "fast"), "the slow one, whose part is what it was, need not send it again"


def test_what_others_are_to_sum_now_is_sent_anew() -> None:
    peer = Peer()
    peer.seal()
    encoded(peer, 0, 1)
    gone = m.StageTable(1, (ME, FAST), (0, 1, 1, 0, 1, 1))
    orders = peer.amend(gone)
    assert of(orders, CancelReduce) and [a.bucket for a in of(orders, EncodePart)] == [1]
    slower = Peer()
    slower.seal()
    assert of(slower.amend(replace(MOVED, lines=(1, 9, 9))), CancelReduce)


def test_a_sum_that_was_made_is_void() -> None:
    """It cannot happen that somebody has released what is in a sum; should it, all is done again."""
    peer = Peer()
    peer.seal()
    peer.part_of(SLOW, BEFORE, 0)
    peer.part_of(FAST, BEFORE, 0)
    peer.take(BucketSummed(Attempt(PASS, STAGE, 0), 0, "sum"))
    assert of(peer.amend(MOVED), CancelReduce)


def test_parts_with_residuals_are_made_anew() -> None:
    peer = Peer(replace(SETTINGS, averages_compressed=True))
    peer.seal()
    orders = peer.amend(MOVED)
    assert of(orders, CancelReduce) and len(of(orders, EncodePart)) == 2
    assert not of(peer.part_of(SLOW, MOVED, 0), SumBucket)


def test_an_older_part_counts_for_nobody_who_left() -> None:
    peer = Peer()
    peer.amend(m.StageTable(1, (ME, FAST), (0, 1, 1, 0, 1, 1)))
    peer.seal()
    assert not peer.part_of(SLOW, BEFORE, 0)
    assert of(peer.part_of(FAST, m.StageTable(1, (ME, FAST), (0, 1, 1, 0, 1, 1)), 1), SumBucket)


def test_all_is_sent_again_if_the_table_is_new_by_its_number_alone() -> None:
    """Then the reduce stood still, and is to be tried once more."""
    peer = Peer()
    peer.seal()
    encoded(peer, 0, 1)
    orders = peer.amend(replace(BEFORE, number=1))
    assert of(orders, CancelReduce) and [a.bucket for a in of(orders, EncodePart)] == [1, 2]


def test_what_goes_on_is_not_asked_for_as_late_as_what_was_asked_for_in_vain() -> None:
    peer, asked = Peer(replace(SETTINGS, step_budget_s=60.0)), []

    def wait(seconds: float) -> None:
        for _ in range(round(10 * seconds)):
            peer.now += 0.099
            asked.extend(peer.now for order in of(peer.take(Tick()), Send) if isinstance(order.message, m.Want))

    peer.seal()
    wait(12.0)
    assert asked, "nothing has come"
    asked.clear()
    peer.amend(MOVED)
    wait(4.0)
    assert asked
