"""Insiders among people with passes: one person's devices, however many, end nothing, and nobody honest is expelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import pytest
from run_events import events_in

from swarm.events import CheckpointRefused, Evaluated, PeerExpelled, PeerFenced, StateDrifted
from swarm.protocol.coordinator import listeners
from swarm.protocol.donors import Verdict, verdict
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Donor
from swarm.protocol.peer.io import Begin, LoadState
from swarm.simulation.faults.lie import INSIDERS, SAID, About, Lie
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.misbehaviour import passes
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run, run_seed
from swarm.simulation.runs.scenario import plan_of
from swarm.simulation.toy import sim_catch_up, sim_storage
from swarm.simulation.toy.sim_coordinator import SimCoordinator
from swarm.simulation.toy.sim_peer import SimPeer

MANY = ("peer1.1", "peer2.1", "peer3.1")


def events_of(about: About, people: tuple[int, ...], kinds: tuple[type, ...], outvoted: bool = False) -> list[Any]:
    """Of a run of five replicas of a stage; the first three misbehave, by order of arrival.

    `outvoted`: the honest are, so that the run need not end well.
    """
    settings = small_settings(stages=1, microbatches=5, steps=2, replicas=5)
    lies = (Lie(about),) * 3 + (None, None)
    run = Run(Plan("passes", 0, settings, 0, (1.0,) * 5, (), lies=lies, people=people))
    events = events_in(run)
    with suppress(Violation) if outvoted else nullcontext():
        run.finish()
    return [event for _, event in events if isinstance(event, kinds)]


@pytest.mark.parametrize("seed", range(len(INSIDERS)), ids=INSIDERS)
def test_whatever_one_person_does_the_answer_is_that_of_one_machine(seed: int) -> None:
    outcome = run_seed("passes", seed)
    assert outcome.ok, f"seed {seed}: {outcome.invariant}: {outcome.detail}"


@pytest.mark.parametrize(
    ("about", "seed"),
    [
        ("nan", 109),
        ("copy", 262),
        ("gift", 383),
        ("withholding", 448),
        ("copy", 6526),
        ("digest", 10101),
        ("checksum", 800249),
        ("sketch", 800232),
        ("enormous", 800366),
        ("a quarter more", 800884),
        ("enormous", 801198),
        ("nan", 810381),
        ("copy", 811302),
        ("constant", 811365),
    ],
)
def test_runs_that_ended_badly_before(about: About, seed: int) -> None:
    """False words about right bytes in audits, false copies that cannot be fetched, a false state, withheld parts; and
    a false checksum while a step is audited. Then: a person with a device in each stage has somebody honest accused; a
    liar that was alone in its stage is not left out of the audit; a lie between two audits, which may be decided; a
    second device that makes the other half of the replicas non-finite; false copies of a person that decided alone.
    """
    run = Run(passes(seed, about))
    run.finish()
    assert run.world.now < 120.0


def test_who_finds_at_the_end_that_its_state_is_false_is_not_sent_to_load_it_anew() -> None:
    Run(passes(108, "gift")).finish()


def test_who_fetches_its_state_for_ever_does_not_keep_the_run_from_its_last_evaluation() -> None:
    plan = passes(0, "hoarding")
    plan = replace(plan, settings=replace(plan.settings, evaluate_every=plan.settings.steps))
    run = Run(plan)
    events = events_in(run)
    run.finish()
    assert [event.version for _, event in events if isinstance(event, Evaluated)] == [plan.settings.steps]


def test_who_fetches_its_state_for_ever_does_not_keep_others_out_of_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It always reports progress. A fourth peer stands by, because a stage has three places."""
    monkeypatch.setattr(listeners, "PLACE_BUDGETS", 1)
    monkeypatch.setattr(listeners, "PLACE_ARRIVALS", 1)
    settings = small_settings(stages=1, microbatches=4, steps=80, replicas=3, checkpoint_every=80)
    lies = (None, None, Lie("hoarding", since=3), None)
    run = Run(Plan("passes", 0, settings, 1, (1.0,) * 4, (), lies=lies, people=(0, 1, 2, 3)))
    began, worked = SimPeer._begin, set[str]()

    def begins(self: SimPeer, action: Begin) -> None:
        worked.add(self.actor.peer)
        began(self, action)

    monkeypatch.setattr(SimPeer, "_begin", begins)
    run.finish()
    assert worked == {"peer1", "peer2", "peer3", "peer4"}


def test_the_scenario_draws_every_way_and_people_with_more_devices_than_the_others() -> None:
    plans = [plan_of("passes", seed) for seed in range(3 * len(INSIDERS))]
    assert {lie.about for plan in plans for lie in plan.lies if lie is not None} == set(INSIDERS)
    assert {plan.people.count(0) for plan in plans} == {1, 2, 3}
    for plan in plans:
        assert {who for who, lie in zip(plan.people, plan.lies, strict=True) if lie is not None} == {0}


def test_a_false_checksum_of_three_devices_of_one_person_is_not_believed() -> None:
    (first, *others) = events_of("checksum", (0, 0, 0, 1, 2), (StateDrifted,))
    assert sorted(first.reload) == list(MANY) and all(set(event.reload) <= set(MANY) for event in others)
    (found, *_) = events_of("checksum", (0, 1, 2, 3, 4), (StateDrifted,), outvoted=True)
    assert sorted(found.reload) == ["peer4.1", "peer5.1"], "three people are believed"
    (found, *_) = events_of("checksum", (0,) * 5, (StateDrifted,), outvoted=True)
    assert sorted(found.reload) == ["peer4.1", "peer5.1"], "where all came with one pass, devices count"


def test_a_newcomer_takes_up_what_two_people_give_and_not_what_three_devices_of_one_do() -> None:
    def deceived(people: tuple[int, ...]) -> bool:
        """Whether the sixth, which comes when the others train, takes up a false state."""
        settings = small_settings(stages=1, microbatches=5, steps=8, replicas=5, max_replicas=6)
        lies = (Lie("gift"),) * 3 + (None,) * 3
        plan = Plan("passes", 0, settings, 1, (1.0,) * 6, (), lies=lies, people=people, arrivals=(0.5,))
        run = Run(plan)
        found: list[bool] = []
        loaded = SimPeer.loaded

        def note(peer: SimPeer, order: LoadState, state: int | None) -> None:
            if order.donors and state is not None:
                found.append(state != run.world.watch.ideal.states[order.version][order.stage])
            loaded(peer, order, state)

        with pytest.MonkeyPatch.context() as patch, suppress(Violation):
            patch.setattr(SimPeer, "loaded", note)
            run.finish()
        assert found, "it came late, and fetched its state"
        return found[0]

    assert not deceived((0, 0, 0, 1, 2, 3))
    assert deceived((0, 1, 2, 3, 4, 5)), "three people are believed"
    assert deceived((0,) * 6), "where all came with one pass, devices count"


def test_a_false_digest_or_copy_of_three_devices_of_one_person_is_not_believed() -> None:
    fenced = {event.actor for event in events_of("digest", (0, 0, 0, 1, 2), (PeerFenced,))}
    assert fenced and fenced <= set(MANY)
    fenced = {event.actor for event in events_of("digest", (0, 1, 2, 3, 4), (PeerFenced,), outvoted=True)}
    assert not fenced <= set(MANY), "three people are believed"
    refused = events_of("copy", (0, 0, 0, 1, 2), (CheckpointRefused,))
    assert {event.path.split()[0] for event in refused} <= set(MANY) and refused


def test_devices_that_compute_the_same_wrong_sums_are_expelled_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = passes(2, "sums")
    plan = replace(plan, lies=tuple(lie and replace(lie, how_often=1.0) for lie in plan.lies))
    expelled: set[str] = set()
    check = SimCoordinator._check_expelled

    def noted(self: SimCoordinator, event: PeerExpelled) -> None:
        expelled.add(event.actor.split(".")[0])
        check(self, event)

    monkeypatch.setattr(SimCoordinator, "_check_expelled", noted)
    Run(plan).finish()
    assert expelled == {f"peer{place + 1}" for place, lie in enumerate(plan.lies) if lie is not None}


@pytest.mark.parametrize("by", ["people", "devices"])
def test_nobody_takes_up_a_false_state_and_who_does_loads_anew_and_stays(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deceived: list[str] = []
    check, begin = SimPeer._is_deceived, SimPeer._begin

    def noted(self: SimPeer, stage: int) -> bool:
        found = check(self, stage)
        if found:
            deceived.append(self.actor.peer)
        return found

    def of_devices(answers: Mapping[Actor, int], donors: Sequence[Donor]) -> Verdict:
        return verdict(answers, [Donor(donor.actor, number) for number, donor in enumerate(donors)])

    def begins(self: SimPeer, action: Begin) -> None:
        assert not self.deceived, f"{self.label} works with a false state"
        begin(self, action)

    monkeypatch.setattr(SimPeer, "_is_deceived", noted)
    monkeypatch.setattr(SimPeer, "_begin", begins)
    if by == "devices":
        monkeypatch.setattr(sim_catch_up, "verdict", of_devices)
        monkeypatch.setattr(sim_storage, "verdict", of_devices)
    for seed in range(40):
        Run(passes(seed, "gift")).finish()
    assert bool(deceived) is (by == "devices")


def test_it_is_noticed_when_somebody_honest_is_expelled() -> None:
    run = Run(plan_of("passes", len(INSIDERS) - len(SAID)))
    run.finish()
    coordinator = run.world.coordinator
    assert isinstance(coordinator, SimCoordinator)
    honest = next(p for p in run.world.processes if isinstance(p, SimPeer) and p.lie is None)
    liar = next(p for p in run.world.processes if isinstance(p, SimPeer) and p.lie is not None)
    coordinator._check_expelled(PeerExpelled(str(liar.actor), 0, 1, "its numbers differ"))
    coordinator._check_expelled(PeerExpelled(str(honest.actor), 0, 1, "it is sent away by organiser"))
    with pytest.raises(Violation, match="honest stay"):
        coordinator._check_expelled(PeerExpelled(str(honest.actor), 0, 1, "its numbers differ"))


def rosters_of(run: Run) -> dict[int, list[list[int]]]:
    """By step, for each stage, with which passes the replicas came that decided it."""
    found: dict[int, list[list[int]]] = {}
    for (pass_id, stage), table in run.world.watch.tables.newest.items():
        if pass_id.index == 0:
            people = [run.plan.people[int(actor.peer.removeprefix("peer")) - 1] for actor in table.roster]
            found.setdefault(pass_id.step, [[] for _ in range(run.plan.settings.stages)])[stage] = sorted(people)
    return found


def test_somebody_who_comes_later_takes_the_place_of_a_second_device_of_one_person() -> None:
    settings = small_settings(stages=1, microbatches=4, steps=16, replicas=2)
    for people in ((0, 0, 1), (0, 0, 0)):
        run = Run(Plan("passes", 0, settings, 1, (1.0,) * 3, (), people=people, arrivals=(0.4,)))
        run.finish()
        rosters = rosters_of(run)
        assert rosters[0] == [[0, 0]], "nobody else is there"
        assert rosters[15] == [[0, 1] if 1 in people else [0, 0]]
        alone = [step for step, roster in rosters.items() if len(roster[0]) < 2]
        assert len(alone) <= 1, "who makes room has a part in the steps in which the other one loads"


@pytest.mark.parametrize("people", [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_each_stage_gets_devices_of_several_people(people: tuple[int, ...], seed: int) -> None:
    settings = small_settings(stages=2, microbatches=4, steps=2, replicas=2)
    run = Run(Plan("passes", seed, settings, 0, (1.0,) * 4, (), people=people))
    run.finish()
    assert set(map(str, rosters_of(run).values())) == {"[[0, 1], [0, 1]]"}


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(12122, id="caught by its absence alone"),
        pytest.param(12746, id="two devices of one person in one stage"),
        pytest.param(12914, id="two devices in two stages"),
    ],
)
def test_devices_that_lie_in_the_sums_get_nothing_decided_and_nobody_else_expelled(seed: int) -> None:
    found = run_seed("passes", seed)
    assert found.ok, found.detail
