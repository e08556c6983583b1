"""How microbatches are divided: the best shares, their order, and weights that do not waver."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.events import ShareChanged
from swarm.protocol.admissions import Device
from swarm.protocol.coordinator.membership.member import HIDDEN
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.stage_costs import REMEMBERED, SLOWEST, StageCosts
from swarm.protocol.coordinator.passes.assignment import shares, wire
from swarm.protocol.coordinator.passes.roster_weights import EVEN, FIRST, FIRST_STEPS, RECOVERY, STEADY, RosterWeights
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.io import Emit
from swarm.protocol.messages import Join, LinkRate, Status
from swarm.protocol.outbox import Outbox

A, B, C, D = (Actor(name, 1) for name in "abcd")


def makespan(counts: list[int], speeds: list[float]) -> float:
    return max(count / speed for count, speed in zip(counts, speeds, strict=True))


@given(st.lists(st.floats(0.05, 20.0), min_size=1, max_size=3), st.integers(0, 9))
def test_no_other_division_is_done_sooner(speeds: list[float], microbatches: int) -> None:
    counts = shares(speeds, microbatches)
    assert sum(counts) == microbatches
    others = itertools.product(range(microbatches + 1), repeat=len(speeds))
    best = min(makespan(list(other), speeds) for other in others if sum(other) == microbatches)
    assert makespan(counts, speeds) <= best * (1 + 1e-9)


def test_ten_to_one() -> None:
    assert shares([1.0, 0.1], 16) == [15, 1], "in proportion it would be 14.5 and 1.5: rounded up, 20 instead of 15"
    assert shares([1.0, 0.03], 16) == [16, 0]
    assert shares([1.0, 1.0, 1.0], 8) == [3, 3, 2]


def dealt(weights: dict[Actor, float], microbatches: int, **more: object) -> list[Actor]:
    table = wire([list(weights)], weights, microbatches, **more)[0]  # type: ignore[arg-type]
    return [table.assignee(m) for m in range(microbatches)]


def test_equals_take_turns_and_who_is_slow_begins_early() -> None:
    assert dealt({A: 1.0, B: 1.0}, 5) == [A, B, A, B, A]
    assert dealt({A: 1.0, B: 0.1}, 16) == [B] + [A] * 15
    assert dealt({A: 1.0, B: 0.25}, 10) == [B, A, A, A, A, B, A, A, A, A]


def test_who_is_tried_gets_one_and_a_stage_of_none_but_those_is_as_always() -> None:
    weights = {A: 1.0, B: 1.0, C: 1.0}
    assert Counter(dealt(weights, 8, probed=frozenset((B,)))) == {A: 4, C: 3, B: 1}
    assert Counter(dealt(weights, 9, probed=frozenset((A, B, C)))) == {A: 3, B: 3, C: 3}
    assert Counter(dealt(weights, 1, probed=frozenset((A,)))) == {B: 1}


@given(
    st.lists(st.floats(0.05, 20.0), min_size=2, max_size=4),
    st.lists(st.floats(0.05, 20.0), min_size=1, max_size=4),
    st.integers(1, 20),
    st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))),
)
def test_blocked_pairs_are_neighbours_only_where_there_is_no_choice(
    first: list[float], second: list[float], microbatches: int, pairs: set[tuple[int, int]]
) -> None:
    one = [Actor(f"x{n}", 1) for n in range(len(first))]
    two = [Actor(f"y{n}", 1) for n in range(len(second))]
    weights = dict(zip([*one, *two], [*first, *second], strict=True))
    blocked = frozenset(frozenset((one[i], two[j])) for i, j in pairs if i < len(one) and j < len(two))
    before, after = wire([one, two], weights, microbatches, blocked)
    for m in range(microbatches):
        if frozenset((before.assignee(m), after.assignee(m))) in blocked:
            assert all(frozenset((before.assignee(m), other)) in blocked for other in two)


# ---------------------------------------------------------------- learned speeds


class Crew:
    """One stage whose members say how many seconds a microbatch takes them."""

    def __init__(self, *actors: Actor, capacity: float = 1.0, frames: tuple[float, ...] = ()) -> None:
        self.members = Members()
        self.stage_costs = StageCosts(1, stage_frames=frames)
        self.weights = RosterWeights(self.stage_costs, self.members, Outbox(A))
        for actor in actors:
            member = self.members.add(actor, 0.0)
            member.join(Join(actor, None, capacity))
            member.place(StageIndex(0), 0.0)
            member.has_worked = True
            member.measurements = FIRST_STEPS

    def measured(self, **seconds: float) -> dict[Actor, float]:
        """The weights after everybody has said this, by name."""
        for name, took in seconds.items():
            member = self.members.get(Actor(name, 1))
            assert member is not None
            member.status = Status(member.actor, StageIndex(0), 0, seconds_per_microbatch=took)
        self.stage_costs.learn(self.members)
        return self.weights.of([member.actor for member in self.members], 0)


def test_speeds_are_relative_and_near_ones_are_equal() -> None:
    crew = Crew(A, B, C)
    assert crew.measured(a=0.1, b=0.1 * (EVEN - 0.01), c=0.1) == {A: 1.0, B: 1.0, C: 1.0}
    assert abs(crew.measured(c=1.0)[C] - 0.1) < 0.02


def test_who_sends_more_slowly_than_it_computes_counts_for_what_it_sends() -> None:
    crew = Crew(A, B, C, frames=(2e5,))
    assert crew.measured(a=0.1, b=0.1, c=0.1) == {A: 1.0, B: 1.0, C: 1.0}, "uplinks that nobody knows"
    for actor, uplink in ((A, 1e9), (B, 2.1e6), (C, 5e5)):
        member = crew.members.get(actor)
        assert member is not None
        member.offered_uplink = uplink
    assert crew.measured() == {A: 1.0, B: 1.0, C: 0.25}, "2.5 microbatches a second instead of 10"
    assert abs(crew.measured(c=1.0)[C] - 0.1) < 0.02, "it computes more slowly than that"


def test_an_uplink_is_no_slower_than_what_was_seen_to_come_of_it() -> None:
    crew = Crew(A, B, C, frames=(2e5,))
    for actor in (A, B, C):
        member = crew.members.get(actor)
        assert member is not None
        member.offered_uplink = 5e5
    assert crew.measured(a=0.1, b=0.1, c=0.1) == {A: 1.0, B: 1.0, C: 1.0}, "slow, but all are"

    def seen(receiver: Actor, **rates: float) -> None:
        member = crew.members.get(receiver)
        assert member is not None
        links = tuple(LinkRate(Actor(name, 1), rate) for name, rate in rates.items())
        member.status = Status(receiver, StageIndex(0), 0, seconds_per_microbatch=0.1, links=links)

    seen(C, a=4e5, b=1e8, c=1e12)
    assert set(crew.measured().values()) == {1.0}, "what one receiver says, or a peer of itself, is not enough"
    seen(A, b=1e7)
    weights = crew.measured()
    assert weights[A] == weights[C] == 1.0 and abs(weights[B] - 4.0) < 0.1, "10 microbatches a second instead of 2.5"


@pytest.mark.parametrize(
    ("passes", "weight"),
    [("pqrr", 1.0), ("pqqr", 1.0), ("pqrs", 4.0)],
    ids=["one person has both", "one is of its own owner", "two people"],
)
def test_two_devices_of_one_person_do_not_prove_a_fast_line(passes: str, weight: float) -> None:
    """They could have somebody with a slow line send so much that it holds up every step."""
    crew = Crew(A, B, C, D, frames=(2e5,))
    crew.members.people.learn(Device(serial, 9, name) for serial, name in zip(passes, "abcd", strict=True))
    for actor in (A, B, C, D):
        member = crew.members.get(actor)
        assert member is not None
        member.offered_uplink = 5e5
    crew.measured(a=0.1, b=0.1, c=0.1, d=0.1)
    for receiver in (C, D):
        member = crew.members.get(receiver)
        assert member is not None
        links = (LinkRate(B, 1e7), LinkRate(B, 2e7))
        member.status = Status(receiver, StageIndex(0), 0, seconds_per_microbatch=0.1, links=links)
    assert crew.measured()[B] == pytest.approx(weight, abs=0.1)


def test_first_measurements_are_believed_only_so_far() -> None:
    crew = Crew(A, B, C)
    member = crew.members.get(C)
    assert member is not None
    member.measurements = 0
    seen = [crew.measured(a=0.1, b=0.1, c=2.0)[C] for _ in range(FIRST_STEPS)]
    assert seen[0] == 1 / FIRST and abs(seen[-1] - 0.05) < 0.01


def test_who_comes_from_another_stage_is_believed_only_so_far() -> None:
    crew = Crew(A, B, C)
    crew.measured(a=0.1, b=0.1, c=0.001)
    member = crew.members.get(C)
    assert member is not None and member.speed is not None
    member.measurements = 0
    assert crew.weights.of([A, B, C], 0)[C] == FIRST


def test_who_claims_more_speed_than_its_work_has_shown_counts_for_three_times_as_much() -> None:
    crew = Crew(A, B, C)
    for actor in (A, B, C):
        member = crew.members.get(actor)
        assert member is not None
        for took_s in (0.15, 0.12, 0.3):
            member.taking.add(took_s)
    assert crew.measured(a=0.1, b=0.1, c=1e-6)[C] == pytest.approx(HIDDEN * 0.1 / 0.12)
    assert crew.measured(c=0.05)[C] == pytest.approx(2.0)


def test_a_speed_that_wavers_changes_no_table() -> None:
    crew = Crew(A, B)
    first = crew.measured(a=0.1, b=0.2)
    assert first[A] > 1.5 * first[B]
    assert crew.measured(a=0.1 * (1 + STEADY) / 2) == first
    assert crew.measured(b=0.1) != first


def test_a_newcomer_counts_as_it_says_but_not_for_more_than_the_usual() -> None:
    crew = Crew(A, B, C)
    crew.measured(a=0.1, b=0.1)
    newcomer = crew.members.get(C)
    assert newcomer is not None and newcomer.speed is None
    for capacity, weight in ((1e6, 1.0), (1.0, 1.0), (0.5, 0.5)):
        newcomer.capacity = capacity
        crew.weights = RosterWeights(crew.stage_costs, crew.members, Outbox(A))
        assert crew.weights.of([A, B, C], 0)[C] == weight


def test_who_is_too_slow_for_any_is_tried_again_later_and_seldom() -> None:
    crew = Crew(A, B)
    crew.measured(a=0.1, b=3.0)
    tried = []
    for step in range(60):
        weights = crew.measured()
        tables = wire([[A, B]], weights, 16)
        crew.weights.dealt(tables)
        if tables[0].assigned_to(B):
            tried.append(step)
    assert tried and 15 < tried[0] < 30, f"30 times as slow, recovering by {RECOVERY} a step: {tried}"
    assert all(later - sooner >= 15 for sooner, later in itertools.pairwise(tried))


def test_what_a_stage_costs_is_learned_from_all_who_ran_it() -> None:
    """A fast peer that has only run the cheap stage is known to be fast in the dear one."""
    members, stage_costs = Members(), StageCosts(2)
    for name, stage, seconds, capacity in (("a", 0, 0.1, 1.0), ("b", 0, 0.05, 2.0), ("c", 1, 0.4, 1.0)):
        member = members.add(Actor(name, 1), 0.0)
        member.join(Join(member.actor, None, capacity))
        member.place(StageIndex(stage), 0.0)
        member.has_worked = True
        member.status = Status(member.actor, StageIndex(stage), 0, seconds_per_microbatch=seconds)
    stage_costs.learn(members)
    assert [round(cost, 6) for cost in stage_costs.costs()] == [0.1, 0.4]
    lineup = stage_costs.lineup(members, 1, 9)
    fast = next(w for w in lineup.crews[0] if w.actor == B)
    assert round(lineup.rate(fast, 0), 6) == 20.0 and round(lineup.rate(fast, 1), 6) == 5.0
    newcomer = members.add(D, 0.0)
    newcomer.join(Join(D, None, 3.0))
    assert round(stage_costs.speed(newcomer) / lineup.costs[1], 6) == 7.5
    members.remove(C)
    stage_costs.learn(members)
    assert round(stage_costs.costs()[1], 6) == 0.4, "it has left, and what it measured stands"


def costs(passes: str, **seconds: float) -> float:
    """The cost of a stage whose peers report this, by name. `passes`: the pass of each of them."""
    members, stage_costs = Members(), StageCosts(1)
    members.people.learn(Device(serial, 9, name) for serial, name in zip(passes, seconds, strict=True))
    for name, each in seconds.items():
        member = members.add(Actor(name, 1), 0.0)
        member.place(StageIndex(0), 0.0)
        member.has_worked = True
        member.status = Status(member.actor, StageIndex(0), 0, seconds_per_microbatch=each)
    stage_costs.learn(members)
    return stage_costs.costs()[0]


@pytest.mark.parametrize("lie", [1e-6, 1e6])
def test_a_person_with_many_devices_does_not_set_the_cost_of_a_stage(lie: float) -> None:
    assert costs("pqrrr", a=0.03, b=0.03, c=lie, d=lie, e=lie) == 0.03
    assert costs("pqrrr", c=0.03, d=0.04, a=lie, b=0.05, e=0.04) == 0.04
    assert costs("prr", a=0.03, c=lie, d=lie) == 0.03, "of two people, the first one"


def test_an_expelled_peer_no_longer_counts_and_the_person_with_most_devices_is_forgotten_first() -> None:
    members, stage_costs = Members(), StageCosts(1)
    names = [f"d{n}" for n in range(REMEMBERED)]
    members.people.learn(Device("q" if name == "a" else "r", 99, name) for name in ("a", *names))

    def comes(name: str, seconds: float) -> None:
        member = members.add(Actor(name, 1), 0.0)
        member.place(StageIndex(0), 0.0)
        member.has_worked = True
        member.status = Status(member.actor, StageIndex(0), 0, seconds_per_microbatch=seconds)
        stage_costs.learn(members)

    comes("a", 0.03)
    for name in names:
        comes(name, 0.04)
    assert stage_costs.costs() == (0.03,)
    members.remove(A)
    stage_costs.learn(members, banned={"a"})
    assert stage_costs.costs() == (0.04,)


def test_who_claims_to_be_far_slower_than_its_work_has_shown_is_not_believed() -> None:
    crew = Crew(A)
    member = crew.members.get(A)
    assert member is not None
    for took_s in (0.15, 0.2):
        member.taking.add(took_s)
    crew.measured(a=1e6)
    assert crew.stage_costs.costs()[0] == pytest.approx(SLOWEST * 0.2)


@pytest.mark.parametrize("how", ["lineup", "newcomers_lineup"])
def test_what_a_peer_says_of_its_uplink_bounds_what_it_counts_for(how: str) -> None:
    members, stage_costs = Members(), StageCosts(1, stage_frames=(100.0,))
    for name, uplink in (("a", 50.0), ("b", None), ("c", math.nan)):
        member = members.add(Actor(name, 1), 0.0)
        member.join(Join(member.actor, None, 4.0, uplink=uplink))
        member.place(StageIndex(0), 0.0)
    lineup = getattr(stage_costs, how)(members, 1, 9)
    assert [lineup.rate(worker, 0) for worker in lineup.crews[0]] == [0.5, 4.0, 4.0]


def test_whose_share_changes_is_said_once_with_the_step_that_it_changes_in() -> None:
    out = Outbox(A)
    crew = Crew(A, B)
    crew.weights = RosterWeights(crew.stage_costs, crew.members, out)

    def step(**seconds: float) -> list[ShareChanged]:
        crew.weights.dealt(wire([[A, B]], crew.measured(**seconds), 16))
        return [action.event for action in out.take() if isinstance(action, Emit)]  # type: ignore[misc]

    assert step(a=0.1, b=0.1) == [] == step(b=0.11)
    assert step(a=0.3, b=0.3) == [] == step(a=0.1, b=0.1), "all take longer for a while: nobody's share is another one"
    crew.measured(b=0.2)  # before an evaluation, say
    (changed,) = step(b=0.4)
    assert (changed.actor, changed.stage, changed.before, changed.seconds) == (str(B), 0, 0.1, 0.4)
    assert 1 < changed.microbatches < 6
    assert step() == []


def test_neighbours_that_are_tried_get_different_microbatches() -> None:
    rosters, weights = [(A, B), (C, D)], dict.fromkeys((A, B, C, D), 1.0)
    first, second = wire(rosters, weights, 6, probed=frozenset((A, D)))
    assert [m for m in range(6) if first.assignee(m) == A] == [0]
    assert [m for m in range(6) if second.assignee(m) == D] == [1]
    first, second = wire([(A,), (C, D)], weights, 6, probed=frozenset((A, D)))
    assert [m for m in range(6) if second.assignee(m) == D] == [0], "A is alone, so there is no other neighbour"
