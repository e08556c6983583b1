"""Choosing codecs: what every choice must be like, whatever the links carry."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.protocol.codec_ladder import CodecLadders, Rung, Slot
from swarm.protocol.coordinator.codec_choice.choose import LIMIT, ROOM, choose
from swarm.protocol.coordinator.codec_choice.link_load import LinkLoad, Measured, burdens, pace
from swarm.protocol.ids import Actor, Direction
from swarm.protocol.messages import CodecPair, StageTable

LADDERS = CodecLadders.of(
    [Rung(name, size) for name, size in zip("abcdef", (4096, 2048, 1056, 800, 672, 544), strict=True)],
    [Rung(name, size) for name, size in zip("ABCDE", (4000, 2000, 1008, 752, 504), strict=True)],
    CodecPair("c", "C"),
)
COUNT = 12
RATES = st.one_of(st.none(), st.floats(3e4, 1e6), st.floats(1e5, 4e5), st.sampled_from((1.0, 1e4, 1e9, 1e12)))
SECONDS = st.one_of(st.floats(0.005, 0.02), st.sampled_from((1e-6, 1e6)))
"""Mostly such that some of the ladder fits."""


def tables(replicas: list[int]) -> tuple[StageTable, ...]:
    return tuple(
        StageTable(0, tuple(Actor(f"s{stage}p{n}", 1) for n in range(r)), tuple(m % r for m in range(COUNT)))
        for stage, r in enumerate(replicas)
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[LinkLoad], float, tuple[CodecPair, ...]]:
    those = tables(draw(st.lists(st.integers(1, 3), min_size=2, max_size=4)))
    actors = [actor for table in those for actor in table.roster]
    known = {}
    for actor in actors:
        links = {other: rate for other in actors if (rate := draw(RATES)) is not None}
        known[actor] = Measured(draw(SECONDS), draw(RATES), links)
    seconds = pace(those, known)
    assert seconds is not None
    pairs = st.builds(CodecPair, st.sampled_from("abcdef"), st.sampled_from("ABCDE"))
    return burdens(those, known), seconds, tuple(draw(pairs) for _ in those[1:])


def place(pairs: tuple[CodecPair, ...], slot: Slot) -> int:
    boundary, direction = slot
    pair = pairs[boundary - 1]
    found = LADDERS.place(direction, pair.forward if direction is Direction.FORWARD else pair.backward)
    assert found is not None
    return found


def load(burden: LinkLoad, pairs: tuple[CodecPair, ...], seconds: float, gentler: Slot | None = None) -> float:
    """Time of sending ÷ time of computing; `gentler`: one slot is a rung gentler than in `pairs`."""
    sent = 0.0
    for slot, frames in burden.frames.items():
        sent += frames * LADDERS.rungs(slot[1])[place(pairs, slot) - (slot == gentler)].nbytes
    assert burden.rate is not None
    return sent / (burden.rate * seconds)


def slots(pairs: tuple[CodecPair, ...]) -> list[Slot]:
    return list(itertools.product(range(1, len(pairs) + 1), Direction))


@given(situations(), st.booleans())
def test_nothing_is_too_slow_that_a_harder_codec_could_ease(situation, relax: bool) -> None:
    carried, seconds, before = situation
    after, _ = choose(LADDERS, carried, seconds, before, relax=relax)
    for burden in carried:
        if burden.rate is not None and load(burden, after, seconds) > LIMIT * (1 + 1e-9):
            assert all(place(after, slot) == len(LADDERS.rungs(slot[1])) - 1 for slot in burden.frames)


@given(situations())
def test_only_as_hard_as_it_must_be(situation) -> None:
    """A slot is hardened only if something it is part of was too slow."""
    carried, seconds, before = situation
    after, _ = choose(LADDERS, carried, seconds, before, relax=False)
    for slot in slots(before):
        assert place(after, slot) >= place(before, slot), "nothing becomes gentler unasked"
        if place(after, slot) > place(before, slot):
            of = [burden for burden in carried if slot in burden.frames and burden.rate is not None]
            assert any(load(burden, before, seconds) > LIMIT for burden in of)


@given(situations())
def test_as_gentle_as_there_is_room_and_not_gentler(situation) -> None:
    carried, seconds, before = situation
    after, changes = choose(LADDERS, carried, seconds, before, relax=True)
    if any(change.harder for change in changes):
        assert all(change.harder for change in changes)
        return
    if any(b.rate is not None and load(b, before, seconds) > LIMIT for b in carried):
        return  # as hard as it can be, and still too slow
    start = (LADDERS.start,) * len(before)
    for slot in slots(before):
        of = [burden for burden in carried if slot in burden.frames]
        if place(after, slot) < place(before, slot):
            assert place(after, slot) == place(before, slot) - 1, "step by step"
            assert all(b.rate is None or load(b, after, seconds) <= ROOM * (1 + 1e-9) for b in of)
            assert place(after, slot) >= place(start, slot) or all(b.rate is not None for b in of)
        elif place(after, slot) > 0:
            held = [
                place(after, slot) <= place(start, slot) if b.rate is None else load(b, after, seconds, slot) > ROOM
                for b in of
            ]
            assert any(held), "it could be gentler"


@pytest.mark.parametrize(("share", "chosen"), [(0.59, "b"), (0.61, "c"), (0.79, "c"), (0.81, "c")])
def test_a_gentler_codec_needs_room_to_spare(share: float, chosen: str) -> None:
    """`share`: of the slowest stage's time, what a frame of the gentler codec takes to send."""
    those = tables([1, 1])
    known = {table.roster[0]: Measured(0.01, 2048 / (0.01 * share)) for table in those}
    (pair,), _ = choose(LADDERS, burdens(those, known), 0.01, (LADDERS.start,), relax=True)
    assert pair.forward == chosen


@pytest.mark.parametrize(("share", "chosen"), [(0.79, "c"), (0.81, "d")])
def test_a_harder_codec_is_chosen_above_the_limit(share: float, chosen: str) -> None:
    those = tables([1, 1])
    known = {table.roster[0]: Measured(0.01, 1056 / (0.01 * share)) for table in those}
    (pair,), _ = choose(LADDERS, burdens(those, known), 0.01, (LADDERS.start,), relax=True)
    assert pair.forward == chosen


@given(situations())
def test_links_that_stay_as_they_are_change_nothing_for_long(situation) -> None:
    carried, seconds, before = situation
    chosen, _ = choose(LADDERS, carried, seconds, before, relax=True)
    for _ in LADDERS.forward:
        chosen, changes = choose(LADDERS, carried, seconds, chosen, relax=True)
        assert not any(change.harder for change in changes), "what was chosen keeps up, or nothing does"
    assert not changes


@given(situations(), st.booleans())
def test_the_changes_tell_the_difference_and_why(situation, relax: bool) -> None:
    carried, seconds, before = situation
    after, changes = choose(LADDERS, carried, seconds, before, relax=relax)
    told = {change.slot: (change.before, change.after) for change in changes}
    for slot in slots(before):
        names = [LADDERS.rungs(slot[1])[place(pairs, slot)].codec for pairs in (before, after)]
        assert told.get(slot, (names[0], names[0])) == tuple(names) and (slot in told) == (names[0] != names[1])
    for change in changes:
        assert "MB/s" in change.reason or "not measured" in change.reason
        assert "nan" not in change.reason and "inf" not in change.reason


def test_what_a_peer_in_the_middle_sends() -> None:
    those = tables([1, 2, 1])
    middle = those[1].roster[0]
    known = {actor: Measured(0.1, 1e6) for table in those for actor in table.roster}
    found = {burden.name: burden for burden in burdens(those, known)}
    burden = found[f"the uplink of {middle}"]
    assert burden.frames == {(2, Direction.FORWARD): 0.5, (1, Direction.BACKWARD): 0.5}
    assert burden.rate == 1e6
    assert found[f"the uplink of {those[0].roster[0]}"].frames == {(1, Direction.FORWARD): 1.0}
    assert pace(those, known) == 0.1, "the two in the middle share the work"


def test_without_a_limit_an_uplink_is_as_fast_as_its_second_fastest_link() -> None:
    those = tables([1, 3])
    sender, (one, other, third) = those[0].roster[0], those[1].roster
    known = {
        sender: Measured(0.1),
        one: Measured(0.1, None, {sender: 1e5}),
        other: Measured(0.1, None, {sender: 3e5}),
        third: Measured(0.1, None, {sender: 1e12}),
    }
    found = {burden.name: burden for burden in burdens(those, known)}
    assert found[f"the uplink of {sender}"].rate == 3e5
    assert found[f"the link from {sender} to {one}"].rate == 1e5
    assert found[f"the link from {sender} to {one}"].frames == {(1, Direction.FORWARD): 4 / COUNT}
    assert found[f"the uplink of {one}"].rate is None
    known[sender] = Measured(0.1, 2e5)
    found = {burden.name: burden for burden in burdens(those, known)}
    assert found[f"the uplink of {sender}"].rate == 2e5
    assert f"the link from {sender} to {one}" not in found, "frames that share a limit come in slowly"
    known[sender] = Measured(0.1, 8e5)
    found = {burden.name: burden for burden in burdens(those, known)}
    assert found[f"the uplink of {sender}"].rate == 6e5, "but not all of them that slowly"


@pytest.mark.parametrize(
    ("fast", "rate"),
    [("", 2e5), ("s1p0", 2e5), ("s1p0 s1p1", 2e5), ("s0p1", 2e5), ("s1p0 s0p1", 1e12), ("s2p0 s1p0", 2e5)],
    ids=["honest", "one", "one person", "a sibling", "two people", "one that gets nothing"],
)
def test_one_person_does_not_make_an_uplink_seem_fast(fast: str, rate: float) -> None:
    those = tables([2, 4, 1])
    known = {a: Measured(links={those[0].roster[0]: 2e5}) for table in those for a in table.roster}
    known |= {Actor(name, 1): Measured(links={those[0].roster[0]: 1e12}) for name in fast.split()}
    found = burdens(those, known, lambda actor: "p" if actor.peer in ("s1p0", "s1p1") else actor.peer)
    assert next(each.rate for each in found if each.name == f"the uplink of {those[0].roster[0]}") == rate


def test_if_one_person_alone_has_measured_an_uplink_its_word_counts() -> None:
    those = tables([1, 2])
    known = {actor: Measured(links={those[0].roster[0]: 2e5}) for actor in those[1].roster}
    found = burdens(those, known, lambda _: "p")
    assert [each.rate for each in found if each.name == f"the uplink of {those[0].roster[0]}"] == [2e5]


def test_the_slowest_link_of_a_boundary_decides() -> None:
    those = tables([1, 2])
    sender, (one, other) = those[0].roster[0], those[1].roster
    known = {actor: Measured(0.01) for actor in (sender, one, other)}
    known[one] = Measured(0.01, 1e9, {sender: 1e9})
    known[other] = Measured(0.01, 1e9, {sender: 4e4})
    start = (LADDERS.start,)
    known[Actor("sibling", 1)] = Measured(links={sender: 1e9})
    those = (StageTable(0, (sender, Actor("sibling", 1)), (0,) * COUNT), those[1])
    (pair,), changes = choose(LADDERS, burdens(those, known), 0.01, start, relax=True)
    assert pair == CodecPair("f", "C")
    assert f"the link from {sender} to {other} carries 0.04 MB/s: 6.8 ms" in changes[0].reason
    assert "before: 13.2 ms" in changes[0].reason and "the slowest stage computes for 10 ms" in changes[0].reason


def test_a_slow_uplink_hardens_what_it_sends_and_nothing_else() -> None:
    those = tables([1, 1, 1, 1])
    known = {table.roster[0]: Measured(0.01, 1e9) for table in those}
    slow = those[1].roster[0]
    known[slow] = Measured(0.01, 1.2e5)
    after, changes = choose(LADDERS, burdens(those, known), 0.01, (LADDERS.start,) * 3, relax=False)
    assert {change.slot for change in changes} == {(2, Direction.FORWARD), (1, Direction.BACKWARD)}
    assert after[2] == LADDERS.start


def test_nothing_is_hardened_or_relaxed_for_peers_that_are_not_measured() -> None:
    those = tables([2, 2])
    known = {actor: Measured(0.01) for table in those for actor in table.roster}
    start = (LADDERS.start,)
    assert choose(LADDERS, burdens(those, known), 0.01, start, relax=True) == (start, ())
    harder = (CodecPair("f", "E"),)
    for _ in LADDERS.forward:
        harder, _ = choose(LADDERS, burdens(those, known), 0.01, harder, relax=True)
    assert harder == start


def test_no_stage_is_the_slowest_while_another_is_not_measured() -> None:
    those = tables([1, 1])
    assert pace(those, {those[0].roster[0]: Measured(0.1)}) is None


@pytest.mark.parametrize("said", [1e-6, 1e6, None])
def test_one_person_of_three_does_not_say_how_slow_a_stage_is(said: float | None) -> None:
    those = tables([3, 1])
    one, other, liar = those[0].roster
    known = {one: Measured(0.1), other: Measured(0.11), those[1].roster[0]: Measured(0.01)}
    share = max(those[0].assignment.count(n) for n in range(3)) / len(those[0].assignment)
    found = pace(those, known | {liar: Measured(said)})
    assert found is not None and 0.1 / 3 * 0.9 <= found <= 0.11 * share
    everybody = {one: "a", other: "a", liar: "a"}
    found = pace(those, known | {liar: Measured(1e6)}, lambda actor: everybody.get(actor, "b"))
    assert found is not None and found > 1e5, "devices of one person have one vote"


def test_a_ladder_leaves_out_what_saves_nothing() -> None:
    made = CodecLadders.of(
        [Rung("a", 100), Rung("b", 100), Rung("c", 90), Rung("d", 95), Rung("e", 80)],
        [Rung("A", 50), Rung("B", 60), Rung("C", 40)],
        CodecPair("b", "B"),
    )
    assert [rung.codec for rung in made.forward] == ["b", "c", "e"]
    assert [rung.codec for rung in made.backward] == ["B", "C"], "the start stays"


@pytest.mark.parametrize("rate", [1.0, 1e12])
def test_the_worst_that_a_peer_can_say_ends_on_the_ladder(rate: float) -> None:
    those = tables([2, 2])
    known = {actor: Measured(1e-6, rate) for table in those for actor in table.roster}
    (pair,), _ = choose(LADDERS, burdens(those, known), 1e-11, (LADDERS.start,), relax=True)
    assert pair in (CodecPair("f", "E"), CodecPair("b", "B"))
