"""A replica that computes wrong is found, real cores and real compute: what is decided equals the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from combinations import in_turn
from core_swarm import Hook, Swarm, manifest, runs
from torch import Tensor

from swarm.compute.reduction import Reduction
from swarm.compute.stage import Stage
from swarm.compute.sums import Accumulator
from swarm.events import PeerExpelled, StepAborted, StepAudited
from swarm.manifest import AuditSection, RunManifest
from swarm.protocol.ids import Actor

STEPS = 3
FIRST, LAST = Actor("peer0", 1), Actor("peer1", 1)
"""Of the peers of the first stage and of the last."""


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    yield from runs()


def audited(stages: int, tolerance: float = 0.0, every: int = 1, steps: int = STEPS) -> RunManifest:
    of = manifest("int8", stages, steps, replicas=3)
    return of.model_copy(update={"audit": AuditSection(every=every, tolerance=tolerance)})


def lying(monkeypatch: pytest.MonkeyPatch, liar: Actor, about: str, factor: float, since: int = 0) -> Hook:
    """A hook that makes `liar` multiply what it gives to others, from step `since` on."""
    at = {"liar": False}

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        pass_id = getattr(action, "pass_id", None)
        at["liar"] = actor == liar and (not since or (pass_id is not None and pass_id.step >= since))

    add, total, frame = Accumulator.add_one, Reduction.sum, Stage._frame

    def add_lie(self: Accumulator, index: int, gradient: Tensor, **named: object) -> None:
        add(self, index, gradient * factor if at["liar"] else gradient, **named)  # type: ignore[arg-type]

    def sum_lie(self: Reduction, action: object) -> memoryview:
        if not at["liar"]:
            return total(self, action)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patched:
            honest = self._accumulator.numbers
            patched.setattr(self._accumulator, "numbers", lambda where: (honest(where) * factor).to(torch.int64))
            return total(self, action)  # type: ignore[arg-type]

    def frame_lie(self: Stage, body: object, hidden: Tensor, *arguments: object) -> bytes:
        return frame(self, body, hidden * factor if at["liar"] else hidden, *arguments)  # type: ignore[arg-type]

    owner, name, lie = {
        "sums": (Accumulator, "add_one", add_lie),
        "totals": (Reduction, "sum", sum_lie),
        "activations": (Stage, "_frame", frame_lie),
    }[about]
    monkeypatch.setattr(owner, name, lie)
    return hook


LIARS = {"activations": FIRST, "sums": LAST, "totals": FIRST}
LIES = {"hundredfold": (100.0, 0.0), "negated": (-1.0, 0.0), "a quarter more": (1.25, 0.0), "tolerant": (100.0, 0.01)}
"""What it multiplies by, and the tolerance of the audit."""


@pytest.mark.parametrize(("lie", "about"), in_turn(LIES, LIARS))
def test_a_replica_that_multiplies_what_it_gives_is_expelled(
    run, monkeypatch: pytest.MonkeyPatch, lie: tuple[float, float], about: str
) -> None:
    (factor, tolerance), liar = lie, LIARS[about]
    with monkeypatch.context() as patched:
        swarm = run(audited(2, tolerance), hook=lying(patched, liar, about, factor))
    assert [event.actor for event in swarm.events if isinstance(event, PeerExpelled)] == [str(liar)]
    assert [event.agreed for event in swarm.events if isinstance(event, StepAudited)] == [True] * STEPS
    assert swarm.digests() == swarm.plain()


@pytest.mark.parametrize("tolerance", [0.0, 0.01])
def test_a_lie_in_a_step_that_is_not_drawn_is_found_by_the_screen_before_it_counts(
    run, monkeypatch: pytest.MonkeyPatch, tolerance: float
) -> None:
    """Only the first step is audited of itself; the lie begins later, and the screen knows nothing of the run yet."""
    with monkeypatch.context() as patched:
        hook = lying(patched, LAST, "sums", -300.0, since=2)
        swarm = run(audited(2, tolerance, every=10**6, steps=4), hook=hook)
    (expelled,) = (event for event in swarm.events if isinstance(event, PeerExpelled))
    assert (expelled.actor, expelled.step) == (str(LAST), 2)
    assert [event.step for event in swarm.events if isinstance(event, StepAudited)] == [0, 2]
    assert any("times as long as the usual maximum" in e.reason for e in swarm.events if isinstance(e, StepAborted))
    assert swarm.digests() == swarm.plain()


def test_where_steps_cannot_be_compared_its_sums_are_refused(run, monkeypatch: pytest.MonkeyPatch) -> None:
    of = manifest("delta:4", 2, 4, replicas=3).model_copy(update={"audit": AuditSection(every=300)})
    with monkeypatch.context() as patched:
        swarm = run(of, hook=lying(patched, LAST, "sums", -300.0, since=2))
    reasons = [event.reason for event in swarm.events if isinstance(event, StepAborted)]
    assert reasons and all(reason.startswith(f"refused, because the sums of {LAST} are") for reason in reasons)
    assert not [event for event in swarm.events if isinstance(event, PeerExpelled)]
