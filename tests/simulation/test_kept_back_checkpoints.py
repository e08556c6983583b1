"""Who reports no checkpoints, false ones, or gives them to nobody, cannot keep the archive from getting them."""

from __future__ import annotations

from typing import Any

import pytest

from swarm.protocol.coordinator.checkpoints import Checkpoints
from swarm.protocol.coordinator.membership.kept_back import KeptBack
from swarm.simulation.faults.lie import About, Lie
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run, run_seed

EVERY, STEPS = 5, 200


def archived(about: About, replicas: int) -> list[int]:
    """The archived versions of a run in which one peer of stage 0 misbehaves. No peer stands by. Raises Violation."""
    settings = small_settings(
        stages=2, microbatches=2 * replicas, steps=STEPS, replicas=replicas, checkpoint_every=EVERY
    )
    peers = 2 * replicas
    run = Run(Plan("keeping", 0, settings, 0, (1.0,) * peers, (), lies=(Lie(about), *(None,) * (peers - 1))))
    run.finish()
    return sorted(run.world.watch.stored)


@pytest.mark.parametrize("seed", range(9))
def test_the_only_peer_of_a_stage_cannot_keep_a_run_from_its_end(seed: int) -> None:
    outcome = run_seed("keeping", seed)
    assert outcome.ok and outcome.rollbacks <= 2, outcome.detail


@pytest.mark.parametrize("about", ["keeping", "unsaved", "copy"])
def test_one_of_three_replicas_delays_no_checkpoint(about: About) -> None:
    assert archived(about, 3) == list(range(EVERY, STEPS + 1, EVERY))


def test_the_coordinator_waits_only_once_for_who_reports_no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three intervals take less than a step budget here: if each version waited anew, few would be archived."""
    assert len(archived("unsaved", 2)) > STEPS / EVERY / 2
    monkeypatch.setattr(Checkpoints, "_has_time", lambda *_: True)
    assert len(archived("unsaved", 2)) < STEPS / EVERY / 4


def test_the_coordinator_waits_only_once_for_two_who_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(archived("copy", 2)) > STEPS / EVERY / 4

    class Forgetful(dict[int, float]):
        def setdefault(self, stage: int, since: Any = None) -> Any:
            return since

    begin = Checkpoints.__init__

    def forgetful(self: Checkpoints, *args: Any) -> None:
        begin(self, *args)
        self._split_since = Forgetful()

    monkeypatch.setattr(Checkpoints, "__init__", forgetful)
    assert len(archived("copy", 2)) < STEPS / EVERY / 4


def test_a_lone_peer_without_anybody_beside_it_is_waited_for() -> None:
    with pytest.raises(Violation, match="the run did not end"):
        archived("unsaved", 1)


def test_only_those_that_held_the_stage_are_suspected() -> None:
    kept_back = KeptBack()
    kept_back.add(0, {"one"})
    kept_back.add(0, {"one", "newcomer"})
    assert kept_back.has("one") and not kept_back.has("newcomer")
    kept_back.clear()
    assert not kept_back.has("one")
