"""Unequal machines are used fully, and those that swallow work get little of it: whole runs in virtual time."""

import dataclasses
from collections import Counter

import pytest

from swarm.events import PeerFenced
from swarm.protocol.coordinator.passes.roster_weights import RosterWeights
from swarm.protocol.ids import Actor, PassId
from swarm.protocol.messages import StageTable
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run
from swarm.simulation.toy.sim_peer import SimPeer


class Calm(Run):
    """A run of two stages with two replicas each, without faults; notes when steps are decided and who was fenced."""

    def __init__(self, speeds: tuple[float, ...], microbatches: int, steps: int) -> None:
        settings = small_settings(stages=2, microbatches=microbatches, steps=steps, replicas=2, checkpoint_every=1000)
        settings = dataclasses.replace(settings, step_budget_s=60.0, heartbeat_s=1.0)
        super().__init__(Plan("calm", 0, settings, 0, speeds, ()))
        self.decided_at: list[float] = []
        self.fenced: list[PeerFenced] = []
        self.swallowed_from = 0
        """The first step that is hit."""
        watch = self.world.watch
        decided, emitted = watch.decided, watch.emitted

        def on_decided(decision: object) -> None:
            self.decided_at.append(self.world.now)
            decided(decision)  # type: ignore[arg-type]

        def on_emitted(event: object) -> None:
            if isinstance(event, PeerFenced):
                self.fenced.append(event)
            emitted(event)

        watch.decided, watch.emitted = on_decided, on_emitted  # type: ignore[method-assign]

    def swallow(self, what: str, seconds: float) -> None:
        """One of four peers accepts and never answers."""
        self.swallowed_from = len(self.decided_at)
        self.hole.swallow(what, self.world.now + seconds)

    @property
    def hole(self) -> SimPeer:
        return self.peer(Actor("peer2", 1))

    def peer(self, actor: Actor) -> SimPeer:
        found = self.world.by_actor[actor]
        assert isinstance(found, SimPeer)
        return found


@pytest.mark.parametrize("microbatches", [16, 32])
@pytest.mark.parametrize("slowness", [4.0, 10.0, 30.0])
def test_a_slower_peer_costs_a_tenth_at_most_against_who_knows_all_speeds(
    slowness: float, microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the sixth step on, and within 60 s; and it is never fenced for being slow."""
    speeds = (1.0, 1.0, slowness, 1.0)
    run = Calm(speeds, microbatches, steps=15)
    run.finish()
    assert not run.fenced
    oracle = Calm(speeds, microbatches, steps=15)
    monkeypatch.setattr(
        RosterWeights, "of", lambda self, roster, stage: {actor: 1 / oracle.peer(actor).speed for actor in roster}
    )
    oracle.finish()
    mine, best = (of.decided_at[-1] - of.decided_at[4] for of in (run, oracle))
    print(f"{slowness:g} times slower, {microbatches} microbatches: {mine / best:.3f} of the oracle's time")
    assert mine <= 1.1 * best
    assert run.decided_at[4] < 60.0


@pytest.mark.parametrize("what", ["work", "frames"])
def test_a_black_hole_is_given_less_than_a_twentieth(what: str) -> None:
    """It accepts and never answers, from the second step to the end."""
    run = Calm((1.0, 1.0, 1.0, 1.0), 8, steps=50)
    tables: dict[tuple[PassId, int, int], StageTable] = {}
    table = run.world.watch.tables.sends

    def note(pass_id: PassId, stage: int, of: StageTable) -> None:
        tables[pass_id, stage, of.number] = of
        table(pass_id, stage, of)

    run.world.watch.tables.sends = note  # type: ignore[assignment, method-assign]

    run.world.at(0.65, None, (lambda seconds: run.swallow(what, seconds), 1e9))
    run.finish()
    hole = run.hole
    attempts: Counter[Actor] = Counter()
    given: dict[tuple[PassId, int, int], Actor] = {}
    for (pass_id, stage, _), of in sorted(tables.items(), key=lambda item: item[0]):
        if pass_id.step < run.swallowed_from:
            continue
        for m in range(len(of.assignment)):
            if given.get((pass_id, stage, m)) != of.assignee(m):
                given[pass_id, stage, m] = of.assignee(m)
                attempts[of.assignee(m)] += 1
    share = attempts[hole.actor] / attempts.total()
    at_its_stage = attempts[hole.actor] / sum(n for a, n in attempts.items() if run.peer(a).stage == hole.stage)
    print(f"{what}: {share:.1%} of all attempts, {at_its_stage:.1%} of its stage's; {len(run.fenced)} fences")
    assert {event.actor for event in run.fenced} == {str(hole.actor)}
    assert 2 <= len(run.fenced) <= 8
    assert share < 0.05 and at_its_stage < 0.05


def test_who_takes_nothing_of_what_is_there_is_not_given_the_time_that_it_needs_to_compute() -> None:
    """All that it has left to do is there, and none of it in its hands: only a line is waited for, 60 s / 8."""
    run = Calm((200.0,) * 4, 8, steps=4)
    run.world.watch.leaving.disturbed = True  # what is done again is no sign of a disorderly leave
    run.world.at(40.0, None, (lambda seconds: run.swallow("frames", seconds), 1e9))
    run.finish()
    first = run.fenced[0]
    assert first.actor == str(run.hole.actor) and first.reason.startswith("it has received no activation")
    assert first.reason.endswith("(deadline 7.5 s)")


def test_who_swallowed_for_a_while_is_forgiven() -> None:
    run = Calm((1.0, 1.0, 1.0, 1.0), 8, steps=80)
    run.world.at(0.65, None, (lambda seconds: run.swallow("work", seconds), 8.0))
    run.finish()
    hole = run.hole
    assert run.fenced
    assert run.world.coordinator is not None
    failure_history = run.world.coordinator.core._cycle._failure_history
    assert failure_history.probation.strikes(hole.actor.peer) == 0
    assert hole.version == 80
