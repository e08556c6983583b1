"""Peers whose numbers look sound and are wrong: no such number is ever decided, and they are found.

That no decided step differs from that of one machine is what the simulator's watch checks in every run.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest
from run_events import events_in

from swarm.events import PeerExpelled, StepAudited
from swarm.simulation.faults.lie import LIES, About, Lie
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run
from swarm.simulation.toy.sim_coordinator import SimCoordinator
from swarm.simulation.toy.sim_peer import SimPeer


class LiarRun:
    """A run, every step of which is audited, and in which peers (by order of arrival) lie."""

    def __init__(
        self,
        lies: Mapping[int, Lie],
        stages: int,
        replicas: int,
        *,
        every: int = 1,
        steps: int = 2,
        seed: int = 0,
        speeds: tuple[float, ...] = (),
        coordinators: int = 1,
        tied: bool = False,
        choosing: bool = False,
    ) -> None:
        settings = small_settings(stages=stages, microbatches=6, steps=steps, replicas=replicas, ends_share=tied)
        settings = dataclasses.replace(settings, audit_every=every, audit_secret=b"secret", screened=every > 0)
        peers = stages * replicas
        by_peer = tuple(lies.get(i) for i in range(peers))
        speeds = speeds or (1.0,) * peers
        more = {"coordinators": coordinators, "choosing": choosing, "lies": by_peer}
        self.run = Run(Plan("liars", seed, settings, 0, speeds, (), **more))  # type: ignore[arg-type]
        self._events = events_in(self.run)

    def finish(self) -> None:
        """Raises Violation: if a lie is decided, and if an honest peer is told to go."""
        self.run.finish()
        assert all(agreed for _, agreed in self.audited), self.audited

    @property
    def expelled(self) -> set[str]:
        return {event.actor.split(".")[0] for _, event in self._events if isinstance(event, PeerExpelled)}

    @property
    def audited(self) -> list[tuple[int, bool]]:
        """Audited steps, and whether the results agreed."""
        return [(event.step, event.agreed) for _, event in self._events if isinstance(event, StepAudited)]

    @property
    def peers(self) -> list[SimPeer]:
        return [p for p in self.run.world.processes if isinstance(p, SimPeer)]

    @property
    def liars(self) -> set[str]:
        """Those that had somebody to lie to."""
        liars = [p for p in self.peers if p.lie and p.has_lied]
        return {p.actor.peer for p in liars if not (p.lie.about == "gradients" and p.stage == 0)}  # type: ignore[union-attr]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_without_liars_audited_steps_come_out_the_same(stages: int) -> None:
    honest = LiarRun({}, stages, 2, steps=3)
    honest.finish()
    assert not honest.expelled
    assert honest.audited == [(0, True), (1, True), (2, True)]


def test_unequal_machines_audit_each_other() -> None:
    honest = LiarRun({}, 2, 2, speeds=(1.0, 1.0, 4.0, 4.0))
    honest.finish()
    assert not honest.expelled and honest.audited == [(0, True), (1, True)]


def test_what_is_not_drawn_is_not_audited() -> None:
    """The first step is, since nobody is known."""
    honest = LiarRun({}, 2, 2, every=1000, steps=12)
    honest.finish()
    assert honest.audited == [(0, True)]


def test_without_audits_a_lie_is_decided() -> None:
    with pytest.raises(Violation, match="wrong bytes"):
        LiarRun({2: Lie("sums")}, 2, 3, every=0).finish()


@pytest.fixture
def some(about: About, pytestconfig: pytest.Config) -> Callable[[int], Sequence[int]]:
    """Of so many peers in three stages those that lie, one after the other: one in each stage, and other replicas for
    the next kind of lie. With --long all.
    """

    def chosen(peers: int) -> Sequence[int]:
        if pytestconfig.getoption("--long") or peers < 9:
            return range(peers)
        return [(LIES.index(about) + 4 * number) % peers for number in range(3)]

    return chosen


@pytest.mark.parametrize("about", LIES)
@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_one_of_three_replicas_lies(about: About, stages: int, some: Callable[[int], Sequence[int]]) -> None:
    for peer in some(stages * 3):
        lying = LiarRun({peer: Lie(about)}, stages, 3)
        lying.finish()
        assert lying.expelled == lying.liars, f"peer{peer + 1}"


@pytest.mark.parametrize("about", LIES)
def test_a_liar_in_every_stage(about: About) -> None:
    honest = LiarRun({}, 3, 3)
    honest.finish()
    peers = {p.stage: int(p.actor.peer.removeprefix("peer")) - 1 for p in honest.peers}  # the same with every lie
    lying = LiarRun(dict.fromkeys(peers.values(), Lie(about)), 3, 3)
    lying.finish()
    assert lying.expelled == lying.liars and len(lying.liars) >= 2


def test_who_lies_now_and_then_gets_nothing_decided() -> None:
    """It may not be found, if it does not lie while it is looked for: but what is decided is right."""
    found = 0
    for seed in range(30):
        rng = Random(seed)
        lie = Lie(rng.choice(LIES), how_often=rng.choice((0.1, 0.5, 0.9)))
        lying = LiarRun({rng.randrange(6): lie}, 2, 3, steps=1, seed=seed)  # in which everybody is left out once
        lying.finish()
        assert lying.expelled <= lying.liars, seed
        found += len(lying.expelled)
    assert found > 10


def test_of_two_that_differ_the_one_that_came_first_is_believed() -> None:
    """Nobody can tell which is right."""
    lying = LiarRun({3: Lie("sums")}, 2, 2)
    lying.finish()
    assert lying.expelled == lying.liars


@pytest.mark.parametrize("about", LIES)
@pytest.mark.parametrize("kind", ["tied", "choosing"])
def test_where_ends_share_parameters_and_where_codecs_are_chosen(
    kind: str, about: About, some: Callable[[int], Sequence[int]]
) -> None:
    for peer in some(9):
        lying = LiarRun({peer: Lie(about)}, 3, 3, **{kind: True})  # type: ignore[arg-type]
        lying.finish()
        assert lying.expelled == lying.liars, f"peer{peer + 1}"


@pytest.mark.parametrize("about", LIES)
def test_a_group_of_coordinators_expels_it_too(about: About) -> None:
    lying = LiarRun({1: Lie(about)}, 2, 3, coordinators=3)
    lying.finish()
    assert lying.expelled == lying.liars


@pytest.mark.parametrize("about", LIES)
def test_who_tells_the_truth_while_it_is_looked_for_gets_nothing_decided(about: About) -> None:
    """What all agree about when each is tried alone is what is decided."""
    lying = LiarRun({1: Lie(about, shy=True)}, 2, 3)
    lying.finish()
    assert not lying.expelled


@pytest.mark.parametrize("what", ["goes", "swallows", "fails"])
def test_who_spoils_the_attempt_in_which_it_is_alone_gets_nothing_decided(what: str) -> None:
    """In that step it has no part any more."""
    lying = LiarRun({1: Lie("sums")}, 2, 3)
    world, injector = lying.run.world, lying.run.injector
    on_phase, spoiled = world.on_phase, []

    def spoil_if_alone(phase: str, process: Process) -> None:
        on_phase(phase, process)
        if phase == "forward" and isinstance(process, SimPeer) and process.lie and process.alive:
            assert isinstance(world.coordinator, SimCoordinator) and process.stage is not None
            step = world.coordinator.directing.open_pass
            if step is None or step.pass_state.tables[process.stage].roster != (process.actor,):
                return
            spoiled.append(process.actor)
            if what == "goes":
                injector.kill(process, 0.05)
            elif what == "swallows":
                process.swallow("work", 1e9)
            else:
                process.fails_next = True

    world.on_phase = spoil_if_alone
    lying.finish()
    assert spoiled and len(lying.audited) == 2
