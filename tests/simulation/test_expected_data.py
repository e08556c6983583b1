"""What honest peers send each other is of use to its receiver. A repetition is not, nor is data of another pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.protocol.io import Received
from swarm.protocol.messages import Frame, WithPayload
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run
from swarm.simulation.runs.scenario import plan_of
from swarm.simulation.toy.sim_peer import SimPeer


def of_another_pass(message: WithPayload) -> WithPayload:
    if isinstance(message, Frame):
        pass_id = message.key.pass_id
        return replace(message, key=replace(message.key, pass_id=replace(pass_id, index=pass_id.index + 1)))
    attempt = message.key.attempt
    later = replace(attempt, pass_id=replace(attempt.pass_id, index=attempt.pass_id.index + 1))
    return replace(message, key=replace(message.key, attempt=later))  # type: ignore[arg-type]


def useless(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """The numbers of data messages of peers that are of no use when they arrive, and of all."""
    counts, feed = [0, 0], SimPeer.feed

    def on_feed(self: SimPeer, item: Any) -> None:
        if isinstance(item, Received) and isinstance(item.message, WithPayload) and item.sender.peer != "coord":
            pass_run, message = self.core.pass_run, item.message
            counts[0] += pass_run is None or not pass_run.expects(item.sender, message)
            counts[1] += 1
            if pass_run is not None:
                assert not pass_run.expects(item.sender, of_another_pass(message))
            feed(self, item)
            assert self.core.pass_run is None or not self.core.pass_run.expects(item.sender, message)
        else:
            feed(self, item)

    with monkeypatch.context() as patch:
        patch.setattr(SimPeer, "feed", on_feed)
        Run(plan).finish()
    return counts[0], counts[1]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("stages", "replicas"), [(2, 3), (3, 2)])
def test_without_faults_everything_is_of_use(
    stages: int, replicas: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small_settings(stages=stages, microbatches=8, steps=5, replicas=replicas, ends_share=tied)
    plan = Plan("calm", 0, settings, 0, (1.0,) * stages * replicas, ())
    of_no_use, everything = useless(plan, monkeypatch)
    assert everything > 100 and of_no_use <= everything / 100


@pytest.mark.parametrize("scenario", ["mixed", "delta", "averaging", "tied"])
def test_with_faults_most_is(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [useless(replace(plan_of(scenario, seed), weather=None), monkeypatch) for seed in range(10)]
    assert sum(few for few, _ in found) < 0.2 * sum(of for _, of in found)
