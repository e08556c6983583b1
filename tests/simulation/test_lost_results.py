"""What is said once and lost does not hold up a run: whole runs in virtual time."""

import pytest

from swarm.protocol.ids import Actor
from swarm.protocol.messages import Message, Result
from swarm.protocol.peer.microbatches import Microbatches
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run


def seconds_with_a_lost_result() -> float:
    """Virtual seconds of a run without faults but one: the first result of its first evaluation does not arrive."""
    settings = small_settings(stages=2, microbatches=2, steps=2, replicas=1, evaluate_every=1)
    run = Run(Plan("calm", 0, settings, 0, (1.0, 1.0), ()))
    send = run.world.network.send
    lost: list[Message] = []

    def lose(sender: Process, to: Actor, message: Message) -> None:
        if isinstance(message, Result) and not lost:
            lost.append(message)
        else:
            send(sender, to, message)

    run.world.network.send = lose  # type: ignore[method-assign]
    run.finish()
    assert lost, "there is no evaluation"
    return run.world.now


def test_a_lost_result_is_told_again_with_the_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    told_again = seconds_with_a_lost_result()
    monkeypatch.setattr(Microbatches, "tell_results_again", lambda self: None)
    assert seconds_with_a_lost_result() > told_again + 2.0, "without it whoever lost it is taken for mute"
