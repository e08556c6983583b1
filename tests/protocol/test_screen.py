"""Whose contributions are doubted: those unlike their siblings', and unlike what is usual; not honest ones."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from swarm.protocol.coordinator.audit.audits import DECIDE, Audits
from swarm.protocol.coordinator.audit.screen import KNOWN, LASTING, Screen
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.answer import Answer, OwnSums
from swarm.protocol.coordinator.passes.assignment import wire
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, PassId, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.messages import Open, Prepared
from swarm.protocol.sketch import PROJECTIONS, Sketch, added, seal_of, written
from swarm.simulation.runs.plan import small_settings

ACTORS = [Actor(f"peer{place}", 1) for place in range(6)]
WEIGHTS = dict.fromkeys(ACTORS, 1.0)


def step(draw: Random, counts: tuple[int, ...], growth: float = 1.0) -> tuple[OwnSums, ...]:
    """Honest contributions: gradients with something in common."""
    common = [draw.gauss(0, 1e6 * growth) for _ in range(PROJECTIONS)]
    found = []
    for actor, count in zip(ACTORS, counts, strict=False):
        sums = [0.0] * PROJECTIONS
        for _ in range(count):
            sums = [s + c + draw.gauss(0, 1e6 * growth) for s, c in zip(sums, common, strict=True)]
        found.append(OwnSums(actor, count, tuple(map(int, sums))))
    return tuple(found)


def lying(sums: tuple[OwnSums, ...], place: int, factor: float) -> tuple[OwnSums, ...]:
    told = tuple(int(number * factor) for number in sums[place].sketch)
    return tuple(dataclasses.replace(each, sketch=told) if at == place else each for at, each in enumerate(sums))


def usual(draw: Random, counts: tuple[int, ...] = (4, 4, 4)) -> Screen:
    screen = Screen()
    for _ in range(60):
        screen.decided([step(draw, counts)])
    return screen


def test_honest_peers_are_not_doubted() -> None:
    doubted = 0
    for seed in range(5):
        draw = Random(seed)
        screen = Screen()
        for number in range(150):
            counts = tuple(draw.choice((3, 4, 5)) for _ in range(3))
            sums = [step(draw, counts, 0.99**number), step(draw, counts, draw.uniform(0.8, 1.2))]
            doubted += bool(screen.doubts(sums))
            screen.decided(sums)
    assert doubted <= 1  # of 750 steps


@pytest.mark.parametrize(("factor", "what"), [(-300.0, "long"), (1e6, "long"), (-1.0, "elsewhere"), (0.001, "short")])
def test_who_is_unlike_its_siblings_is_doubted(factor: float, what: str) -> None:
    for seed in range(6):
        draw = Random(seed)
        screen = usual(draw)
        doubts = screen.doubts([lying(step(draw, (4, 4, 4)), 1, factor)])
        assert (ACTORS[1], what) in [(doubt.actor, doubt.what) for doubt in doubts]
        if what != "short":  # beside one that is far too short others look too long
            assert doubts[0].actor == ACTORS[1]


def test_before_anything_is_known_only_what_is_far_too_long_is_doubted() -> None:
    draw = Random(1)
    sums = step(draw, (4, 4, 4))
    assert [d.actor for d in Screen().doubts([lying(sums, 2, -300.0)])] == [ACTORS[2]]
    assert not Screen().doubts([lying(sums, 2, -1.0)])


def test_all_of_a_stage_that_grow_at_once_are_doubted() -> None:
    """As when the one before sends far too much: nobody looks unlike a sibling."""
    draw = Random(2)
    screen = usual(draw)
    assert {d.actor for d in screen.doubts([step(draw, (4, 4, 4), 100.0)])} == set(ACTORS[:3])


def test_a_stage_of_one_is_compared_with_its_own_past() -> None:
    draw = Random(3)
    screen = usual(draw, (4,))
    assert not screen.doubts([step(draw, (4,))])
    assert screen.doubts([lying(step(draw, (4,)), 0, 1000.0)])


def test_what_is_decided_becomes_usual() -> None:
    draw = Random(4)
    screen = usual(draw)
    for _ in range(80):
        screen.decided([step(draw, (4, 4, 4), 100.0)])
    assert not screen.doubts([step(draw, (4, 4, 4), 100.0)])


def test_nothing_but_zeros_is_doubted_once_that_is_not_usual() -> None:
    draw = Random(5)
    sums = lying(step(draw, (4, 4, 4)), 0, 0.0)
    assert not Screen().doubts([sums])
    assert ACTORS[0] in {d.actor for d in usual(draw).doubts([sums])}
    assert not usual(draw).doubts([tuple(dataclasses.replace(each, sketch=(0,) * PROJECTIONS) for each in sums)])


# ---------------------------------------------------------------- what peers say must come to the whole


def prepared(told: list[Sketch], whole: list[Sketch]) -> PassState:
    """One stage of so many replicas, which said that of their own sums, and that the sum has this sketch."""
    roster = ACTORS[: len(told)]
    tables = wire([roster], dict.fromkeys(roster, 1.0), 6)
    state = PassState(
        Open(PassId(Term(1), StepNumber(0)), PassKind.TRAIN, tables, None),
        weights=dict.fromkeys(roster, 1.0),
        now=0.0,
    )
    seal = seal_of([added(whole)])
    for actor, sketch in zip(roster, told, strict=True):
        attempt = state.attempt(StageIndex(0))
        said = Prepared(attempt, "digest", 1.0, 1.0, sketch=written(sketch) if sketch else b"", seal=seal)
        state.preparation.prepare(actor, 0, said)
    return state


def test_sketches_that_add_up_are_believed() -> None:
    own = [each.sketch for each in step(Random(6), (2, 2, 2))]
    state = prepared(own, own)
    assert state.preparation.answers(frozenset())[0].adds_up
    assert [each.sketch for each in state.preparation.own_sums(frozenset())[0]] == own


@pytest.mark.parametrize("told", ["otherwise", "nothing"])
def test_one_that_does_not_come_to_the_whole_is_not(told: str) -> None:
    own = [each.sketch for each in step(Random(7), (2, 2, 2))]
    said = [own[0], (own[1][0] + 1, *own[1][1:]) if told == "otherwise" else (), own[2]]
    assert not prepared(said, own).preparation.answers(frozenset())[0].adds_up


def test_what_is_not_known_of_who_was_lost_proves_nothing() -> None:
    own = [each.sketch for each in step(Random(8), (2, 2, 2))]
    state = prepared(own, own)
    del state.preparation.reports[0][ACTORS[1]]
    assert state.preparation.answers(frozenset((ACTORS[1],)))[0].adds_up


def test_unequal_sums_are_alike_if_they_are_near_each_other() -> None:
    """Equal lengths are not enough: of the same numbers in another order, or with other signs."""
    (own,) = step(Random(9), (4,))
    one = Answer("one", 1.0, written(own.sketch))
    near = Answer("two", 1.001, written([int(number * 1.001) for number in own.sketch]))
    flipped = Answer("two", 1.0, written([-number for number in own.sketch]))
    moved = Answer("two", 1.0, written([*own.sketch[1:], own.sketch[0]]))
    assert one.is_like(near, 0.01) and not one.is_like(near, 0.0)
    farther = Answer("two", 1.0, written([int(number * 1.04) for number in own.sketch]))
    assert one.is_like(farther, 0.01) and not one.is_like(farther, 0.007)
    assert not one.is_like(flipped, 0.01) and not one.is_like(moved, 0.01)
    assert not one.is_like(Answer("two", 1.0), 0.01)
    assert not one.is_like(dataclasses.replace(one, adds_up=False), 0.01)
    told, rounded, lied = (dataclasses.replace(near, loss_sum=loss) for loss in (100.0, 100.5, 110.0))
    assert told.is_like(dataclasses.replace(rounded, digest="one"), 0.01), "unlike machines round differently"
    assert not told.is_like(dataclasses.replace(lied, digest="one"), 0.01)


# ---------------------------------------------------------------- where steps cannot be compared


def screened(sums: tuple[OwnSums, ...], audits: Audits, number: int) -> PassState:
    roster = [each.actor for each in sums]
    (roster,) = audits.rosters(number, [roster], WEIGHTS)
    state = prepared([each.sketch for each in sums if each.actor in roster], [each.sketch for each in sums])
    return state


def test_where_steps_cannot_be_compared_it_is_done_again_without_who_is_doubted_but_once() -> None:
    settings = dataclasses.replace(small_settings(stages=1, microbatches=6, steps=9, replicas=3), screened=True)
    audits, draw = Audits(settings, Members()), Random(10)
    decision = None
    sums = step(draw, (2, 2, 2))
    assert audits.judge(screened(sums, audits, 0), decision, frozenset()) == DECIDE  # type: ignore[arg-type]
    sums = lying(step(draw, (2, 2, 2)), 1, -300.0)
    ruling = audits.judge(screened(sums, audits, 1), decision, frozenset())  # type: ignore[arg-type]
    assert ruling.refused == (ACTORS[1],) and "peer1" in ruling.again and not ruling.expelled
    (roster,) = audits.rosters(1, [list(ACTORS[:3])], WEIGHTS)
    assert roster == [ACTORS[0], ACTORS[2]]
    again = lying(step(draw, (3, 3)), 1, -300.0)  # others find the same: then the data is like that
    assert audits.judge(screened(again, audits, 1), decision, frozenset()) == DECIDE  # type: ignore[arg-type]
    assert audits.rosters(2, [list(ACTORS[:3])], WEIGHTS) == [list(ACTORS[:3])]


def test_a_changed_sign_that_no_single_step_shows_is_seen_in_many() -> None:
    """Of gradients that have little in common."""
    draw, screen, seen = Random(12), Screen(), None

    def contributions(flipped: bool) -> tuple[OwnSums, ...]:
        common = [draw.gauss(0, 3e5) for _ in range(PROJECTIONS)]
        found = []
        for actor in ACTORS[:3]:
            sign = -1 if flipped and actor == ACTORS[2] else 1
            sums = tuple(int(sign * (2 * c + draw.gauss(0, 1.4e6))) for c in common)
            found.append(OwnSums(actor, 2, sums))
        return tuple(found)

    for _ in range(LASTING * 2):
        assert not screen.doubts([contributions(False)])
        screen.decided([contributions(False)])
    for number in range(LASTING * 2):
        doubts = screen.doubts([contributions(True)])
        if doubts:
            seen = number
            break
        screen.decided([contributions(True)])
    assert seen is not None and seen > 5
    assert {doubt.actor for doubt in doubts} == {ACTORS[2]} and "on average" in doubts[0].reason
    screen.believe({ACTORS[2].peer})
    assert not screen.doubts([contributions(True)])


def test_it_takes_some_steps_until_it_is_known_what_is_usual() -> None:
    draw, screen = Random(11), Screen()
    for _ in range(KNOWN // 3 - 1):
        screen.decided([step(draw, (4, 4, 4))])
    flipped = lying(step(draw, (4, 4, 4)), 0, -1.0)
    assert not screen.doubts([flipped])
    screen.decided([step(draw, (4, 4, 4))])
    assert screen.doubts([flipped])
