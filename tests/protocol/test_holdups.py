"""Who is said to hold up a pass, by what the replicas of a stage report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.holdups import Holdups
from swarm.protocol.coordinator.passes.late_reductions import LateReductions
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, PassId, PassKind, StepNumber, Term
from swarm.protocol.messages import Open, Prepared, StageTable, Status
from swarm.simulation.runs.plan import small_settings

PASS = PassId(Term(1), StepNumber(0))


class Stage:
    """A run of one stage, whose replicas have one microbatch each. They report for the first time after ten seconds."""

    def __init__(self, names: str) -> None:
        self.actors = {name: Actor(name, 1) for name in names}
        table = StageTable(0, tuple(self.actors.values()), tuple(range(len(names))))
        weights = dict.fromkeys(self.actors.values(), 1.0)
        self.record = PassState(Open(PASS, PassKind.TRAIN, (table,), None), weights=weights, now=0.0)
        self.members = Members()
        for actor in self.actors.values():
            self.members.add(actor, 0.0)
        settings = small_settings(stages=1, microbatches=len(names), steps=2, replicas=len(names))
        settings = replace(settings, heartbeat_s=1.0)
        self.holdups = Holdups(self.record, self.members, LateReductions(self.record, self.members, settings), settings)

    def report(self, *, busy: str = "", idle: str = "", **awaited: str) -> None:
        """`busy`: who has work in hand. `idle`: who has not done its work and reports that it has none in hand. Others:
        for whom they wait.
        """
        for number, (name, actor) in enumerate(self.actors.items()):
            done = 0 if name in busy + idle else 1 << number
            named = tuple(self.actors[each] for each in awaited.get(name, ""))
            status = Status(actor, None, 0, PASS, (0,), done=done, queued=int(name in busy), awaited=named)
            member = self.members.get(actor)
            assert member is not None
            member.status = status
            self.record.on_status(status, 10.0)

    def found(self, beats: int = 1) -> dict[str, float]:
        """The seconds after some heartbeats."""
        self.holdups.skip(10.0)
        for beat in range(beats):
            self.holdups.tick(11.0 + beat)
        return {actor.peer: seconds for actor, seconds in self.holdups.seconds.items()}


def test_who_still_computes_holds_up_its_stage_once_half_of_it_is_done() -> None:
    for busy, found in (("d", {"d": 2.0}), ("cd", {"c": 2.0, "d": 2.0}), ("bcd", {})):
        stage = Stage("abcd")
        stage.report(busy=busy)
        assert stage.found(beats=2) == found


def test_who_says_that_it_has_nothing_to_do_holds_up_its_stage_if_its_inputs_are_there() -> None:
    stage = Stage("abc")
    stage.report(idle="c")
    assert stage.found() == {}, "it has not got its tokens"
    stage.record._fed.add(2)  # type: ignore[arg-type]
    assert stage.found() == {"c": 1.0}


@pytest.mark.parametrize(
    ("names", "awaited", "found"),
    [
        ("abc", {"a": "bc", "b": "ac", "c": "ab"}, {}),
        ("abc", {"a": "c", "b": "c", "c": "ab"}, {"c": 1.0}),
        ("abc", {"a": "c", "b": "a", "c": "a"}, {"a": 1.0, "c": 2.0}),
        ("abcde", {"a": "e", "b": "e", "c": "ab", "d": "ab", "e": "ab"}, {"e": 2.0}),
        ("abcde", {"a": "de", "b": "de", "c": "de", "d": "abc", "e": "abc"}, {"d": 1.0, "e": 1.0}),
        ("abcde", {"a": "bcde", "b": "acde", "c": "abde", "d": "abce", "e": "a"}, {}),
        ("ab", {"a": "b", "b": "a"}, {}),
    ],
    ids=["all alike", "one is late", "late for one", "late for two", "two are late", "one liar", "of two"],
)
def test_whom_a_reduction_waits_for(names: str, awaited: dict[str, str], found: dict[str, float]) -> None:
    stage = Stage(names)
    stage.report(**awaited)
    assert stage.found() == found


@pytest.mark.parametrize(
    ("awaited", "prepared", "found"),
    [
        ({"a": "b", "b": "a"}, "", {"a": 4.0, "b": 8.0}),
        ({"b": "b"}, "a", {"b": 4.0}),
        ({"b": ""}, "a", {"b": 4.0}),
        ({"b": "a"}, "a", {"a": 4.0, "b": 8.0}),
        ({"a": "b", "b": "b"}, "", {"b": 4.0}),
        ({"a": "a", "b": "b"}, "", {}),
        ({}, "ab", {}),
    ],
    ids=["each waits", "its own sums", "says nothing", "two words", "one waits", "both compute", "none is left"],
)
def test_one_of_two_holds_up_a_reduction_that_stands_still(
    awaited: dict[str, str], prepared: str, found: dict[str, float]
) -> None:
    """The first three heartbeats do not count: on a slow line, a bucket may take as long."""
    stage = Stage("ab")
    stage.report(**awaited)
    for name in prepared:
        actor = stage.actors[name]
        stage.record.preparation.prepare(actor, 0, Prepared(stage.record.attempt(0), "", 1.0, 0.0))
    assert stage.found(beats=7) == found


@pytest.mark.parametrize(("beats", "found"), [(3, {}), (4, {"a": 1.0}), (6, {"a": 3.0})])
def test_who_reduces_alone_holds_up_the_run_if_its_sums_are_late(beats: int, found: dict[str, float]) -> None:
    stage = Stage("a")
    stage.report(a="a")
    assert stage.found(beats) == found


def test_a_suspended_coordinator_blames_nobody_for_its_pause() -> None:
    stage = Stage("abc")
    stage.report(busy="c")
    stage.holdups.skip(10.0)
    stage.holdups.tick(500.0)
    assert list(stage.holdups.seconds.values()) == [2.0]


def test_work_saves_the_time_that_siblings_would_need_for_it() -> None:
    stage = Stage("abc")
    stage.report(busy="c")
    assert stage.holdups.saved_s(stage.actors["c"], 0) == 10.0 / 2


def test_the_time_for_which_siblings_wait_for_a_slow_peer_is_not_what_its_work_saves() -> None:
    """They need a second for a microbatch, or two for its frames, and get their last inputs after ten seconds."""
    stage = Stage("abc")
    stage.report(busy="c")
    for name in "ab":
        member = stage.members.get(stage.actors[name])
        assert member is not None and member.status is not None
        member.status = replace(member.status, seconds_per_microbatch=1.0)
        member.offered_uplink = 50.0
    assert stage.holdups.saved_s(stage.actors["c"], 0) == 1.0 / 2
    stage.holdups._settings = replace(stage.holdups._settings, stage_frames=(100.0,))
    assert stage.holdups.saved_s(stage.actors["c"], 0) == 2.0 / 2


@pytest.mark.parametrize(
    ("beats", "heard_at", "found", "if_lost"),
    [(3, 0.0, {}, 3.0), (4, 0.0, {"c": 4.0}, 4.0), (6, 0.0, {"c": 4.0}, 6.0), (3, 12.5, {}, 0.0)],
    ids=["short", "long", "longer", "it is heard again"],
)
def test_a_silence_counts_from_its_beginning_if_it_is_long_or_does_not_end(
    beats: int, heard_at: float, found: dict[str, float], if_lost: float
) -> None:
    stage, c = Stage("abc"), Actor("c", 1)
    stage.report(idle="c")
    member = stage.members.get(c)
    assert member is not None
    member.heard_at = heard_at
    assert stage.found(beats) == found
    stage.holdups.lost(c)
    assert stage.holdups.seconds[c] == if_lost


def test_who_is_lost_cost_the_others_what_they_do_again() -> None:
    stage = Stage("abc")
    stage.report(busy="c")
    a, c = stage.actors["a"], stage.actors["c"]
    assert stage.holdups.again_s(a, 0, 12.0) == stage.holdups.saved_s(a, 0) > 0
    assert stage.holdups.again_s(c, 0, 12.0) == 0.0, "it has finished nothing"
    stage = Stage("abc")
    stage.report()
    a = stage.actors["a"]
    assert stage.holdups.again_s(a, 0, 12.0) == stage.holdups.saved_s(a, 0) + 2.0, "and the reduction had begun"
