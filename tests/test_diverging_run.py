"""Runs whose parameters become no numbers: real cores, real compute. They stop, or go back and equal the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from core_swarm import Swarm, manifest, runs

from swarm.compute.optimizer import StageOptimizer
from swarm.events import RolledBack, RunDiverged, StepAborted, StepDecided
from swarm.manifest import DivergenceSection, RunManifest
from swarm.protocol import io
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Halt

STEPS = 6
AT = 4
"""The version that is spoilt."""


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


def diverging(steps: int = STEPS, **divergence: object) -> RunManifest:
    of = manifest("int8", steps=steps, every=2)
    return of.model_copy(update={"divergence": DivergenceSection.model_validate(divergence)})


def spoil(monkeypatch: pytest.MonkeyPatch, kind: str, value: float, above: float) -> None:
    """Every stage's version `AT` holds this value, whoever makes it, if it was made at a rate above this."""
    apply = StageOptimizer.apply

    def spoiling(self: StageOptimizer, reduced, scale, update, **known) -> None:
        apply(self, reduced, scale, update, **known)
        if self.version == AT and update.learning_rate > above:
            next(tensor for name, tensor in self._live().items() if name.startswith(kind)).view(-1)[0] = value

    monkeypatch.setattr(StageOptimizer, "apply", spoiling)


@pytest.mark.parametrize(("kind", "value"), [("param", float("nan")), ("param", 3e38), ("exp_avg_sq", float("inf"))])
def test_it_goes_back_to_the_last_good_checkpoint_with_a_lower_rate(
    run, monkeypatch: pytest.MonkeyPatch, kind: str, value: float
) -> None:
    """A moment that is infinite gives finite gradients, and a parameter that is huge is finite: both are found."""
    spoil(monkeypatch, kind, value, above=0.002)
    swarm = run(diverging(skips=2, action="go_back", rate=0.25))
    (told,) = [event for event in swarm.events if isinstance(event, RunDiverged)]
    assert (told.version, told.rate) == (AT - 2, 0.25), "the checkpoint of the spoilt version is not taken for good"
    assert [event.version for event in swarm.events if isinstance(event, RolledBack)] == [AT - 2]
    assert [(each.name, each.by) for each in swarm.commands] == [("go_back", "coordinator")]
    assert [swarm.decisions[step].rate for step in range(STEPS)] == [1.0, 1.0, 0.25, 0.25, 0.25, 0.25]
    assert not any(decision.skip for decision in swarm.decisions.values())
    assert swarm.digests() == swarm.reference()


@pytest.mark.parametrize("divergence", [{}, {"action": "go_back", "rate": 0.9, "times": 2}])
def test_it_stops_where_the_last_good_checkpoint_is(run, monkeypatch: pytest.MonkeyPatch, divergence: dict) -> None:
    spoil(monkeypatch, "param", float("nan"), above=0.0)
    halts: list[str] = []

    def heard(swarm: Swarm, actor: Actor, action: object) -> None:
        if isinstance(action, io.Send) and isinstance(action.message, Halt):
            halts.append(action.message.reason)

    swarm = run(diverging(**divergence), hook=heard)
    assert sorted(swarm.decisions) == list(range(AT - 2))
    assert f"not finite after step {AT - 1}" in halts[0] and f"good checkpoint is version {AT - 2}," in halts[0]
    assert "swarm-peer control rate" in halts[0] and ("2 times" in halts[0]) == bool(divergence)
    told = [event.rate is None for event in swarm.events if isinstance(event, RunDiverged)]
    assert told == [False] * divergence.get("times", 0) + [True]
    attempts = [event for event in swarm.events if isinstance(event, StepAborted)]
    assert len(attempts) == len(told), "one more with other replicas, since nobody is believed at once"


def test_the_last_version_is_looked_at_too(run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step comes after it: who saves its checkpoint finds out."""
    spoil(monkeypatch, "param", float("inf"), above=0.002)
    swarm = run(diverging(AT, action="go_back", rate=0.25))
    assert [event.version for event in swarm.events if isinstance(event, RunDiverged)] == [AT - 2]
    assert sorted(swarm.decisions) == list(range(AT)) and swarm.digests() == swarm.reference()
    decided = [event.step for event in swarm.events if isinstance(event, StepDecided)]
    assert decided == [0, 1, 2, 3, 2, 3]
