"""A backward in two halves: the gradient for the stage before goes at once, the weights' gradients wait their turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.events import MicrobatchAccumulated, PeerFenced, ReduceStarted
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.io import Emit, Received, Send, Tick
from swarm.protocol.peer.compute_time import ComputeTime
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import BackwardDone, Forward, PeerInput, StateLoaded, Weights, WeightsDone
from swarm.simulation.runs.plan import small_settings

COORDINATOR, ME, TWIN, BEFORE = (Actor(name, 1) for name in ("coordinator", "me", "twin", "before"))
PASS = PassId(Term(1), StepNumber(0))
STAGE, COUNT = StageIndex(1), 2


class LastStage:
    """A core in the last of two stages, with one slot and two microbatches of its own. Its first one went backward."""

    def __init__(self) -> None:
        settings = replace(small_settings(stages=2, microbatches=COUNT, steps=2, replicas=2), slots=1)
        self.core = PeerCore(ME, COORDINATOR, settings)
        self.now = 0.0
        self.take(Received(COORDINATOR, m.Assign(Term(1), STAGE, 0)))
        self.take(StateLoaded(STAGE, 0, 1))
        tables = (m.StageTable(0, (BEFORE,), (0, 0)), m.StageTable(0, (ME, TWIN), (0, 0)))
        self.take(Received(COORDINATOR, m.Open(PASS, PassKind.TRAIN, tables, None)))
        forwards = self.receive(0)
        assert [type(each) for each in forwards if isinstance(each, Forward)] == [Forward]
        self.orders = self.take(BackwardDone(PASS, Microbatch(0), b"gradient", 0.2, weights_due=True))

    def take(self, event: PeerInput) -> list[Any]:
        self.now += 0.001
        return list(self.core.handle(event, self.now))

    def receive(self, microbatch: int) -> list[Any]:
        key = FrameKey(PASS, 1, Direction.FORWARD, Microbatch(microbatch))
        return self.take(Received(BEFORE, m.Frame(key, b"activation")))

    def amend(self, roster: tuple[Actor, ...], assignment: tuple[int, ...]) -> list[Any]:
        table = m.StageTable(1, roster, assignment)
        return self.take(Received(COORDINATOR, m.Amend(PASS, STAGE, table, "a test")))

    def status(self) -> m.Status:
        self.now += self.core.settings.heartbeat_s
        (status,) = (o.message for o in self.take(Tick()) if isinstance(o, Send) and isinstance(o.message, m.Status))
        return status


def wanted(orders: list[Any]) -> list[int]:
    """Microbatches whose inputs are asked for."""
    wants = [order.message for order in orders if isinstance(order, Send) and isinstance(order.message, m.Want)]
    return [key.microbatch for want in wants for key in want.keys if isinstance(key, FrameKey)]


def emitted(orders: list[Any], kind: type) -> list[Any]:
    return [order.event for order in orders if isinstance(order, Emit) and isinstance(order.event, kind)]


def test_the_gradient_leaves_before_the_weights_are_ordered() -> None:
    orders = LastStage().orders
    sent = [i for i, o in enumerate(orders) if isinstance(o, Send) and isinstance(o.message, m.Frame)]
    (ordered,) = [i for i, o in enumerate(orders) if isinstance(o, Weights)]
    assert orders[ordered] == Weights(PASS, Microbatch(0))
    assert len(sent) == 1 and orders[sent[0]].to == BEFORE and sent[0] < ordered


def test_a_microbatch_counts_and_frees_its_slot_when_its_weights_are_done() -> None:
    peer = LastStage()
    assert not emitted(peer.orders, MicrobatchAccumulated) and not wanted(peer.orders)
    status = peer.status()
    assert (status.done, status.forwarded, status.queued) == (0, 1, 1), "it is at work and gets on"
    orders = peer.take(WeightsDone(PASS, Microbatch(0), 0.1))
    assert emitted(orders, MicrobatchAccumulated) == [MicrobatchAccumulated(str(PASS), 0)] and wanted(orders) == [1]
    assert peer.status().done == 1
    assert not emitted(peer.take(WeightsDone(PASS, Microbatch(0), 0.1)), MicrobatchAccumulated), "once"


def test_the_reduce_begins_when_all_weights_are_done() -> None:
    peer = LastStage()
    peer.take(WeightsDone(PASS, Microbatch(0), 0.1))
    peer.receive(1)
    assert not emitted(peer.take(BackwardDone(PASS, Microbatch(1), b"", 0.2, weights_due=True)), ReduceStarted)
    assert peer.status().seconds_per_microbatch is None, "half of a backward says nothing of the whole"
    assert emitted(peer.take(WeightsDone(PASS, Microbatch(1), 0.1)), ReduceStarted)
    assert peer.status().seconds_per_microbatch == pytest.approx(0.3)


def test_weights_of_another_pass_count_for_nothing() -> None:
    peer = LastStage()
    peer.take(WeightsDone(replace(PASS, term=Term(2)), Microbatch(0)))
    assert peer.status().done == 0


def test_a_microbatch_with_weights_due_is_not_released() -> None:
    """The compute thread may be adding it to the sums at this very moment."""
    orders = LastStage().take(Received(COORDINATOR, m.Release(PASS, 0, (Microbatch(0), Microbatch(1)))))
    (answer,) = (o.message for o in orders if isinstance(o, Send) and isinstance(o.message, m.Released))
    assert answer.microbatches == (1,)


def test_who_loses_a_microbatch_with_weights_due_leaves_the_pass() -> None:
    peer = LastStage()
    orders = peer.amend((ME, TWIN), (1, 0))
    assert emitted(orders, PeerFenced) and peer.status().fenced
    orders = peer.take(WeightsDone(PASS, Microbatch(0)))
    assert not emitted(orders, MicrobatchAccumulated) and not emitted(orders, ReduceStarted)


def test_a_frame_that_is_asked_for_again_is_there_while_weights_are_due() -> None:
    key = FrameKey(PASS, 1, Direction.BACKWARD, Microbatch(0))
    orders = LastStage().take(Received(BEFORE, m.Want((key,), again=True)))
    assert [o.message.key for o in orders if isinstance(o, Send) and isinstance(o.message, m.Frame)] == [key]


def test_both_halves_count_as_one_backward() -> None:
    pace = ComputeTime()
    pace.new_pass(0)
    for number in range(2):
        pace.half_backward(Microbatch(number), 0.2)
    assert pace.seconds_per_microbatch is None, "half of it says nothing of the whole"
    for number in range(2):
        pace.other_half(Microbatch(number), 0.1)
    assert pace.seconds_per_microbatch == pytest.approx(0.3)
