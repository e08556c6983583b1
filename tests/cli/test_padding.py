"""Padding: when a peer fills the pauses of its connections, in virtual time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from peers.stage.bursts import BACKWARD, FORWARD, SUMS, StepBursts, Way, expected
from peers.stage.padding import FIRST_WINDOW, MOST_BYTES, MOST_TIMES, REPEATED, ROOM, Padding
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
    SumKey,
    Term,
)
from swarm.protocol.messages import Frame, Message, Open, Prepared, ReducedPart, ReducePart, StageTable

ME, LEADER, BEFORE, NEXT, SIBLING = (Actor(name, 1) for name in ("me", "leader", "before", "next", "sibling"))
RTT_S = 0.1
BYTES = 60_000
"""Of a frame: three round trips on a connection that has rested."""


class Timer:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class VirtualLoop:
    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        return self.now

    def call_later(self, in_s: float, call: Callable[..., object], *arguments: Any) -> Timer:
        timer = Timer(partial(call, *arguments))
        heapq.heappush(self._due, (self.now + in_s, next(self._numbers), timer))
        return timer

    def until(self, at: float) -> None:
        while self._due and self._due[0][0] <= at:
            self.now, _, timer = heapq.heappop(self._due)
            if not timer.cancelled:
                timer.call()
        self.now = at


class Peer:
    """A peer in the middle of a pipeline, with a sibling, whose steps are all alike."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rtt_s: float = RTT_S, uplink: float | None = None) -> None:
        self.loop = VirtualLoop()
        self.padded: list[tuple[float, Actor, int, int]] = []
        self.pinged: list[Actor] = []
        self.begun: list[float] = []
        self.guess: float | None = None
        """The round-trip time to who was never pinged from here."""
        self.threshold: int | None = None
        self.data_at: dict[Actor, float] = {}
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "get_running_loop", lambda: self.loop)
            self.padding = Padding(
                lambda actor, kind, nbytes: self.padded.append((self.loop.now, actor, kind, nbytes)),
                self.ping,
                lambda actor: rtt_s if actor in self.pinged else self.guess,
                lambda: uplink,
                lambda _: self.threshold,
                lambda actor: actor == LEADER,
                self.begun.append,
            )
        self.step = -1

    def ping(self, actor: Actor) -> None:
        assert self.loop.now - self.data_at.get(actor, -1.0) > RTT_S, "behind data, a ping takes longer"
        self.pinged.append(actor)

    def open(self, kind: PassKind = PassKind.TRAIN, sender: Actor = LEADER, siblings: tuple[Actor, ...] = ()) -> None:
        self.step += kind is PassKind.TRAIN and sender == LEADER
        tables = tuple(StageTable(0, roster, (0,)) for roster in ((BEFORE,), (ME, *siblings), (NEXT,)))
        self.padding.heard(sender, Open(PassId(Term(1), StepNumber(self.step)), kind, tables, None))

    def send(self, to: Actor, nbytes: int = BYTES, microbatch: int = 0, term: int = 1) -> None:
        pass_id = PassId(Term(term), StepNumber(self.step))
        self.data_at[to] = self.loop.now
        message: Message
        if to == SIBLING:
            message = ReducePart(PartKey(Attempt(pass_id, StageIndex(1), 1), microbatch, ME), 1, bytes(nbytes))
        else:
            direction = Direction.FORWARD if to == NEXT else Direction.BACKWARD
            message = Frame(FrameKey(pass_id, 1, direction, Microbatch(microbatch)), bytes(nbytes))
        self.padding.sent(to, message)

    def prepare(self) -> None:
        attempt = Attempt(PassId(Term(1), StepNumber(self.step)), StageIndex(1), 1)
        self.padding.sent(LEADER, Prepared(attempt, "", 0.0, 0.0))

    def run_step(self) -> list[tuple[float, Actor, int, int]]:
        """A step of 4 s from here, ready after 3 s. Return its padding: seconds from the opening, actor, kind and
        bytes.
        """
        start = self.loop.now
        self.open(siblings=(SIBLING,))
        for after, to, count in ((0.1, NEXT, 1), (1.0, BEFORE, 1), (2.5, SIBLING, 2)):
            self.loop.until(start + after)
            for number in range(count):
                self.send(to, microbatch=number)
        self.loop.until(start + 3.0)
        self.prepare()
        self.loop.until(start + 4.0)
        return [(at - start, *what) for at, *what in self.padded if at >= start]  # type: ignore[misc]

    def settle(self, steps: int) -> None:
        """Run steps, and forget their padding."""
        for _ in range(steps):
            self.run_step()
        self.padded.clear()


def test_from_the_second_step_on_padding_goes_before_each_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    assert peer.run_step() == []
    assert set(peer.pinged) == {NEXT}, "only the next step's frames are expected"
    assert {actor for _, actor, *_ in peer.run_step()} == {NEXT}, "how far the others are was not known"
    assert set(peer.pinged) == {NEXT, BEFORE, SIBLING}
    found = peer.run_step()
    back, sums, ahead = ([(at, n) for at, _, kind, n in found if kind == which] for which in (BACKWARD, SUMS, FORWARD))
    assert back[0] == (pytest.approx(1.0 - 3 * RTT_S - 0.1), BYTES - FIRST_WINDOW), "in time"
    assert sums[0] == (pytest.approx(2.5 - 4 * RTT_S - 0.1), int(ROOM * 2 * BYTES) - FIRST_WINDOW)
    whole = [at for at, n in ahead if n == int(ROOM * BYTES) - FIRST_WINDOW]
    assert whole[-1] == pytest.approx(4.1 - 3 * RTT_S - 0.1), "before the step opens"
    assert back[-1][0] <= 1.0 and sums[-1][0] <= 2.5, "not after the data"
    repetition = (BYTES - FIRST_WINDOW) // REPEATED
    assert {n for _, n in back[1:]} == {repetition}
    assert {n for _, n in ahead} == {repetition, int(ROOM * BYTES) - FIRST_WINDOW}
    assert repetition <= (ROOM - 1) * BYTES, "a frame fits in beside a repetition"
    assert len(found) <= 8
    assert peer.begun == [RTT_S], "it says so once"


def test_padding_is_repeated_until_the_data_leaves_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    peer.settle(2)
    peer.open(siblings=(SIBLING,))
    start = peer.loop.now
    peer.loop.until(start + 60.0)
    times = [at for at, actor, *_ in peer.padded if actor == BEFORE]
    assert len(times) == MOST_TIMES
    assert all(0.2 < b - a < 0.3 for a, b in itertools.pairwise(times)), "more often than a timeout"


def test_data_ends_the_padding_and_a_busy_connection_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    peer.settle(2)
    start = peer.loop.now
    peer.open(siblings=(SIBLING,))
    for number in range(100):
        peer.loop.until(start + number / 10)
        peer.send(NEXT, microbatch=number)
        peer.send(BEFORE, microbatch=number)
    assert {actor for _, actor, *_ in peer.padded} == {SIBLING}


@pytest.mark.parametrize(
    ("rtt_s", "uplink"), [(0.02, None), (RTT_S, 100_000.0)], ids=["near", "a line that ten packets fill"]
)
def test_where_a_slow_start_costs_nothing_there_is_no_padding(
    monkeypatch: pytest.MonkeyPatch, rtt_s: float, uplink: float | None
) -> None:
    peer = Peer(monkeypatch, rtt_s, uplink)
    for _ in range(3):
        assert peer.run_step() == []
    assert peer.begun == []


def test_no_more_than_the_line_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch, uplink=500_000.0)
    for _ in range(3):
        found = peer.run_step()
    assert max(nbytes for *_, nbytes in found) == 50_000 - FIRST_WINDOW
    wide = Peer(monkeypatch)
    for _ in range(3):
        wide.open(siblings=(SIBLING,))
        wide.loop.until(wide.loop.now + 2.0)
        wide.send(SIBLING, 50_000_000)
        wide.prepare()
        wide.loop.until(wide.loop.now + 2.0)
    assert max(nbytes for *_, nbytes in wide.padded) == MOST_BYTES - FIRST_WINDOW


def test_a_link_that_loses_packets_gets_no_more_than_it_reaches_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    peer.threshold = 40_000
    for _ in range(3):
        found = peer.run_step()
    assert max(nbytes for *_, nbytes in found) == 40_000 - FIRST_WINDOW
    peer.threshold = FIRST_WINDOW
    peer.run_step()  # what was planned before is still sent
    assert peer.run_step() == []


def test_bursts_for_several_actors_share_the_uplink(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, uplink = Peer(monkeypatch, uplink=4_000_000.0), 4_000_000.0
    siblings = tuple(Actor(f"sibling {n}", 1) for n in range(8))
    for _ in range(3):
        peer.open(siblings=siblings)
        peer.loop.until(peer.loop.now + 2.0)
        for sibling in siblings:
            peer.send(sibling, 200_000)
        peer.prepare()
        peer.loop.until(peer.loop.now + 2.0)
    at_once = Counter[float]()
    for at, _, _, nbytes in peer.padded:
        at_once[at] += nbytes
    assert 0 < max(at_once.values()) <= uplink * RTT_S


def test_frames_of_other_passes_are_no_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of text send frames too."""
    plain, sampling = Peer(monkeypatch), Peer(monkeypatch)
    for peer in (plain, sampling):
        for _ in range(3):
            start = peer.loop.now
            peer.open()
            peer.loop.until(start + 0.2)
            if peer is sampling:
                peer.send(BEFORE, term=2)
            peer.loop.until(start + 1.0)
            peer.send(BEFORE)
            peer.prepare()
            peer.loop.until(start + 4.0)
    assert plain.padded == sampling.padded != []


def test_sums_for_others_keep_a_connection_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    peer.settle(3)
    start = peer.loop.now
    peer.open(siblings=(SIBLING,))
    for tenths in range(10):
        peer.loop.until(start + tenths / 10)
        attempt = Attempt(PassId(Term(1), StepNumber(peer.step)), StageIndex(1), 1)
        peer.padding.sent(BEFORE, ReducedPart(SumKey(attempt, 0), bytes(BYTES)))
    assert BEFORE not in {actor for _, actor, *_ in peer.padded}


def test_who_seemed_far_behind_data_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch, rtt_s=0.02)
    peer.guess = 0.4
    for _ in range(4):
        assert peer.run_step() == []
    assert peer.begun == [] and peer.pinged


def test_who_turns_out_to_be_near_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bursts are planned for an actor before it is known how far it is."""
    peer = Peer(monkeypatch, rtt_s=0.02)
    start = peer.loop.now
    for step in range(2):
        peer.open(siblings=(SIBLING,))
        for after, to in ((1.0, SIBLING), (2.0, BEFORE), (2.5, SIBLING)) if not step else ():
            peer.loop.until(start + after)
            peer.send(to)
            key = FrameKey(PassId(Term(1), StepNumber(peer.step)), 1, Direction.BACKWARD, Microbatch(0))
            peer.padding.sent(to, Frame(key, bytes(BYTES)))
        peer.pinged.clear()
        if not step:
            peer.prepare()
        peer.loop.until(start + 4.0 * (step + 1))
    assert peer.pinged and peer.padded == []


def test_a_step_that_was_given_up_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    for _ in range(3):
        peer.run_step()
    peer.open(siblings=(SIBLING,))
    peer.loop.until(peer.loop.now + 0.5)
    peer.padded.clear()
    found = peer.run_step()
    first = next(at for at, actor, *_ in found if actor == BEFORE)
    assert first == pytest.approx(1.0 - 3 * RTT_S - 0.1), "not earlier"


def test_a_step_with_fewer_frames_gets_no_padding_after_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    for count in (3, 3, 3, 2):
        start = peer.loop.now
        peer.padded.clear()
        peer.open()
        for number in range(count):
            peer.loop.until(start + 1.0 + 2.0 * number)
            peer.send(BEFORE, microbatch=number)
        peer.prepare()
        peer.loop.until(start + 8.0)
    assert peer.padded and not any(at - start > 3.0 for at, *_ in peer.padded)


def test_after_the_end_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    for _ in range(3):
        peer.run_step()
    peer.padding.close()
    peer.padded.clear()
    peer.open(siblings=(SIBLING,))
    peer.loop.until(peer.loop.now + 10.0)
    assert peer.padded == []


def test_who_left_the_run_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    peer.settle(2)
    peer.open()
    peer.loop.until(peer.loop.now + 4.0)
    assert SIBLING not in {actor for _, actor, *_ in peer.padded} and peer.padded


def test_who_leaves_between_two_steps_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    peer.run_step()
    peer.run_step()  # ends while padding for the next step's first frame is due
    peer.padded.clear()
    opened = Open(PassId(Term(1), StepNumber(2)), PassKind.TRAIN, (StageTable(0, (ME,), (0,)),), None)
    peer.padding.heard(LEADER, opened)
    peer.loop.until(peer.loop.now + 60.0)
    assert peer.padded == []


def test_an_opening_that_is_repeated_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    once, twice = Peer(monkeypatch), Peer(monkeypatch)
    for peer in (once, twice):
        peer.settle(2)
        start = peer.loop.now
        peer.open(siblings=(SIBLING,))
        peer.loop.until(start + 0.5)
        if peer is twice:
            peer.step -= 1
            peer.open(siblings=(SIBLING,))
        peer.loop.until(start + 1.0)
        peer.send(BEFORE)
        peer.loop.until(start + 4.0)
        peer.run_step()
    assert once.padded == twice.padded != []


def test_before_the_last_frame_of_a_step_too_if_it_follows_a_pause_and_never_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peer = Peer(monkeypatch)
    for _ in range(3):
        peer.padded.clear()
        start = peer.loop.now
        peer.open()
        for number in range(3):
            peer.loop.until(start + 1.0 + 2.0 * number)
            peer.send(BEFORE, microbatch=number)
        peer.prepare()
        peer.loop.until(start + 8.0)
    times = [at - start for at, *_ in peer.padded]
    assert any(0.6 < at < 1.0 for at in times), "the first"
    assert not any(1.0 < at < 4.6 for at in times), "the pipeline does not wait for those between"
    assert any(4.6 < at < 5.0 for at in times), "the last"
    assert not any(at > 5.0 for at in times)


def test_strangers_and_other_passes_plan_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(monkeypatch)
    peer.run_step()
    peer.run_step()
    peer.loop.until(peer.loop.now + 60.0)
    peer.padded.clear()
    peer.open(sender=BEFORE, siblings=(SIBLING,))
    peer.open(PassKind.EVALUATE, siblings=(SIBLING,))
    peer.loop.until(peer.loop.now + 60.0)
    assert peer.padded == []


def test_a_frame_that_ends_a_step_after_a_pause_is_a_burst_of_its_own() -> None:
    step = StepBursts()
    for number, rested in enumerate((True, True, False, True)):
        step.note(NEXT, FORWARD, BYTES + number, 1.0 + number, rested)
    assert [(burst.way, burst.after_s, burst.nbytes) for burst in expected([step])] == [
        (Way(NEXT, FORWARD, last=False), 1.0, BYTES),
        (Way(NEXT, FORWARD, last=True), 4.0, BYTES + 3),
    ]
    dense = StepBursts()
    for number in range(4):
        dense.note(NEXT, FORWARD, BYTES, 0.5 + number, rested=number == 0)
    assert [(burst.way.last, burst.after_s) for burst in expected([step, dense])] == [(False, 0.5)]
    assert expected([dense, step])[0].after_s == 0.5, "as early as in any of the last steps"
    assert expected([]) == []
