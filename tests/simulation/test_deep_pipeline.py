"""A deep pipeline in virtual time: what takes long because the way is long is not taken for lost."""

import dataclasses
from collections import Counter

import pytest

from swarm.protocol.ids import Actor
from swarm.protocol.messages import Message, Pending, Relay, Unreachable, Want
from swarm.protocol.peer.frame_wants import FrameWants
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

STAGES, REPLICAS, SPEED = 8, 2, 30.0


def sent_in_a_calm_run() -> Counter[str]:
    """What was said in a run without faults, whose microbatches are longer under way than the deadline of a frame."""
    settings = small_settings(stages=STAGES, microbatches=16, steps=2, replicas=REPLICAS, checkpoint_every=1000)
    settings = dataclasses.replace(settings, step_budget_s=60.0, heartbeat_s=1.0)
    run = Run(Plan("calm", 0, settings, 0, (SPEED,) * STAGES * REPLICAS, ()))
    said: Counter[str] = Counter()
    send = run.world.network.send

    def count(sender: Process, to: Actor, message: Message) -> None:
        said["wants again"] += isinstance(message, Want) and message.again
        said[type(message).__name__] += 1
        send(sender, to, message)

    run.world.network.send = count  # type: ignore[method-assign]
    run.finish()
    return said


def test_nobody_is_taken_for_unreachable_and_nothing_goes_through_a_sibling() -> None:
    said = sent_in_a_calm_run()
    assert said["wants again"] > 20, "the run is not one in which frames are overdue"
    assert said[Pending.__name__] > 20
    assert not said[Relay.__name__] and not said[Unreachable.__name__]


def test_without_an_answer_both_would_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameWants, "on_pending", lambda *_: None)
    assert sent_in_a_calm_run()[Relay.__name__] > 20
