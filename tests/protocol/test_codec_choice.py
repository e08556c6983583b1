"""The coordinator's choice of codecs from step to step: when it is made, and what it takes from whom."""

from __future__ import annotations

import itertools
import math

import pytest

from swarm.events import CodecChosen
from swarm.protocol.codec_ladder import CodecLadders, Rung
from swarm.protocol.coordinator.codec_choice.choice import DWELL, CodecChoice
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor, StageIndex, StepNumber, Term
from swarm.protocol.io import Emit
from swarm.protocol.messages import CodecPair, Decision, LinkRate, StageTable, Status
from swarm.protocol.outbox import Outbox

ONE, TWO = Actor("one", 1), Actor("two", 1)
TABLES = (StageTable(0, (ONE,), (0, 0)), StageTable(0, (TWO,), (0, 0)))
GENTLE, EVEN, HARD = CodecPair("a", "A"), CodecPair("b", "B"), CodecPair("c", "C")
LADDERS = CodecLadders.of(
    [Rung("a", 4000), Rung("b", 2000), Rung("c", 1000)], [Rung("A", 4000), Rung("B", 2000), Rung("C", 1000)], EVEN
)
SECONDS = 0.01
FAST, FAIR, SLOW = 1e9, 3e5, 1e5
"""Bytes a second; with FAIR a frame of EVEN takes two thirds of a microbatch's time: it stays as it is."""


class Choice:
    """A choice over two stages of one peer each, and what it has told."""

    def __init__(self, last: Decision | None = None) -> None:
        self.members = Members()
        self.out = Outbox(Actor("coordinator", 0))
        self.choice = CodecChoice(LADDERS, 2, last, self.members, self.out)
        self.told: list[CodecChosen] = []
        self.say(FAIR)

    def say(self, *rates: float, seconds: float = SECONDS, links: tuple[LinkRate, ...] = ()) -> None:
        """What the peers say of their uplinks; of one rate both say it."""
        for actor, stage, rate in zip((ONE, TWO), (0, 1), (*rates, *rates)[:2], strict=True):
            member = self.members.get(actor) or self.members.add(actor, 0.0)
            status = Status(actor, StageIndex(stage), 0, seconds_per_microbatch=seconds, uplink=rate, links=links)
            member.report(status, 2)

    def step(self, number: int, step_s: float = 0.0) -> CodecPair:
        (pair,) = self.choice.choose(TABLES, number, step_s)
        self.told += [a.event for a in self.out.take() if isinstance(a, Emit) and isinstance(a.event, CodecChosen)]
        return pair


def decision(*codecs: CodecPair) -> Decision:
    return Decision(Term(1), StepNumber(6), 1.0, 1.0, 1, 1.0, (), codecs=codecs)


def test_it_starts_with_the_default_and_says_so() -> None:
    choice = Choice()
    choice.say(SLOW)
    assert choice.choice.current == (EVEN,) and choice.step(0) == EVEN
    assert [(e.step, e.boundary, e.direction, e.codec, e.before) for e in choice.told] == [
        (0, 1, "forward", "b", ""),
        (0, 1, "backward", "B", ""),
    ]
    assert "until the links are measured" in choice.told[0].reason


def test_harder_at_once_gentler_after_a_while() -> None:
    choice = Choice()
    choice.step(0)
    choice.say(FAST)
    assert [choice.step(n) for n in range(1, DWELL + 1)] == [EVEN] * (DWELL - 1) + [GENTLE]
    choice.say(SLOW)
    assert choice.step(DWELL + 1) == HARD
    assert [e.step for e in choice.told] == [0, 0, DWELL, DWELL, DWELL + 1, DWELL + 1]


def test_who_says_that_it_is_slow_does_not_fill_the_lines_of_the_others() -> None:
    choice = Choice()
    choice.step(0)
    choice.say(FAIR, seconds=1e6)
    assert {choice.step(n, step_s=2 * SECONDS) for n in range(1, 4 * DWELL)} == {EVEN}, "the step shows how slow it is"
    assert choice.step(4 * DWELL) == GENTLE, "nobody knows how long a step takes"


def test_what_had_to_be_taken_back_is_not_tried_again_so_soon() -> None:
    choice = Choice()
    choice.step(0)
    changes = []
    for number in range(1, 100):
        before = choice.choice.current
        choice.say(FAST if choice.choice.current == (EVEN,) else SLOW if before == (GENTLE,) else FAST)
        if choice.step(number) == GENTLE and before != (GENTLE,):
            changes.append(number)
    gaps = [b - a for a, b in itertools.pairwise(changes)]
    assert len(changes) >= 3 and gaps == sorted(gaps) and gaps[-1] >= 4 * DWELL


def test_a_change_that_hardly_matters_changes_nothing() -> None:
    choice = Choice()
    choice.step(0)
    for number in range(1, 30):
        choice.say(FAIR * (0.95 if number % 2 else 1.05))
        assert choice.step(number) == EVEN
    assert len(choice.told) == 2


def test_a_restarted_coordinator_goes_on_with_the_last_choice() -> None:
    choice = Choice(decision(HARD))
    choice.say(FAST)
    assert choice.choice.current == (HARD,), "for an evaluation before the next step, too"
    assert choice.step(7) == HARD
    assert all(e.reason == "continues with the codecs of step 7" for e in choice.told)
    assert choice.step(7 + DWELL) == EVEN and choice.step(7 + 2 * DWELL) == GENTLE, "a rung at a time"


@pytest.mark.parametrize("codecs", [(CodecPair("x", "B"),), (EVEN, EVEN), ()])
def test_a_record_with_other_codecs_is_not_gone_on_with(codecs: tuple[CodecPair, ...]) -> None:
    assert Choice(decision(*codecs)).choice.current == (EVEN,)


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf, 0.0, -1.0, 5e-324, 1e-300, 1e300])
def test_what_cannot_be_true_is_not_believed(rate: float) -> None:
    choice = Choice()
    choice.step(0)
    choice.say(rate, links=(LinkRate(ONE, rate), LinkRate(TWO, rate)))
    assert choice.step(1) == EVEN and choice.step(50) == EVEN
    choice.say(FAIR, seconds=rate)
    assert choice.step(51) == EVEN


def test_links_of_actors_that_have_no_part_are_not_counted() -> None:
    choice = Choice()
    choice.step(0)
    choice.say(FAIR, links=(LinkRate(Actor("stranger", 1), 1.0),))
    assert choice.step(1) == EVEN


def test_after_a_rollback_it_goes_on_and_tells_again() -> None:
    choice = Choice()
    choice.step(5)
    choice.say(SLOW)
    assert choice.step(6) == HARD
    assert choice.step(2) == HARD
    assert [e.step for e in choice.told[-2:]] == [2, 2]


def test_a_run_that_names_its_codecs_has_no_choice() -> None:
    members, out = Members(), Outbox(Actor("coordinator", 0))
    choice = CodecChoice(None, 2, None, members, out)
    assert choice.choose(TABLES, 0) == choice.choose(TABLES, 1) == () and not out.take()


def test_a_run_of_one_stage_has_nothing_to_choose() -> None:
    choice = Choice()
    alone = CodecChoice(LADDERS, 1, None, choice.members, choice.out)
    assert alone.choose(TABLES[:1], 0) == ()
