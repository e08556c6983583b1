"""Who keeps its activations or gradients from its neighbours, or says that it has nothing to do, cannot stop a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from swarm.events import EvaluationDropped, PeerExpelled, PeerFenced, StepDecided
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.standstill import Standstill
from swarm.protocol.coordinator.placement.bench import Bench
from swarm.protocol.ids import Actor
from swarm.protocol.messages import (
    Frame,
    Join,
    Message,
    Pending,
    Prepared,
    ReducePart,
    Relay,
    Released,
    Status,
    Want,
    WithPayload,
)
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.runs.plan import Plan, small_settings
from swarm.simulation.runs.runner import Run

STEPS, SINCE_S = 40, 0.4
BUDGET_S = small_settings(stages=1, microbatches=1, steps=1, replicas=1).step_budget_s
Says = Callable[["Insider", Any, Actor, Message], Message | None]
"""What is sent instead of a message; None: nothing."""


class Insider:
    """A run in which one peer, `who`, replaces what it sends. `fenced`: (step, peer) of everybody who left a pass."""

    def __init__(
        self,
        who: str,
        says: Says,
        stages: int,
        replicas: int,
        spares: int = 0,
        steps: int = STEPS,
        evaluate_every: int = 0,
    ) -> None:
        settings = small_settings(
            stages=stages,
            microbatches=2 * replicas,
            steps=steps,
            replicas=replicas,
            checkpoint_every=1000,
            evaluate_every=evaluate_every,
        )
        peers = stages * replicas + spares
        self.run = Run(Plan("calm", 0, settings, spares, (1.0,) * peers, ()))
        self.who, self.says, self.kept = who, says, 0
        self.fenced: list[tuple[int, str]] = []
        self.decided_at: list[float] = [0.0]
        self.dropped = 0
        """Number of dropped evaluations."""
        world = self.world = self.run.world
        world.watch.leaving.disturbed = True
        self._send, self._emitted = world.network.send, world.watch.emitted
        world.network.send, world.watch.emitted = self._on_send, self._on_emitted  # type: ignore[method-assign]

    def finish(self) -> float:
        """The virtual seconds of the slowest step. Raises Violation."""
        self.run.finish()
        assert self.kept, "the insider has done what it is here for"
        return max(later - earlier for earlier, later in pairwise(self.decided_at))

    def _on_send(self, source: Any, to: Actor, message: Any) -> None:
        said: Message | None = message
        if source.actor.peer == self.who and self.world.now >= SINCE_S:
            said = self.says(self, source, to, message)
            source.disturbed_at = self.world.now
            self.kept += said is not message
        if said is not None:
            self._send(source, to, said)

    def _on_emitted(self, event: Any) -> None:
        assert not isinstance(event, PeerExpelled)
        if isinstance(event, PeerFenced):
            step = event.pass_id.partition(":")[2].partition("+")[0]
            self.fenced.append((int(step), event.actor.partition(".")[0]))
        self.dropped += isinstance(event, EvaluationDropped)
        if isinstance(event, StepDecided):
            self.decided_at.append(self.world.now)
        self._emitted(event)


def keeps_frames(insider: Insider, source: Any, to: Actor, message: Message) -> Message | None:
    """It does its work, and answers that it has not done it yet."""
    inner = message.message if isinstance(message, Relay) else message
    if not isinstance(inner, Frame):
        return message
    return Pending((inner.key,)) if isinstance(message, Frame) else None


def has_nothing_to_do(insider: Insider, source: Any, to: Actor, message: Message) -> Message | None:
    """It reports that it waits for others, in the last stage after its forwards."""
    if isinstance(message, Status):
        last = source.stage == insider.run.plan.settings.stages - 1
        everything = (1 << insider.run.plan.settings.microbatches) - 1
        return replace(message, done=0, forwarded=everything if last else 0, queued=0, prepared=None)
    return None if isinstance(message, WithPayload | Relay | Prepared | Want | Released) else message


def claims_to_be_slow(insider: Insider, source: Any, to: Actor, message: Message) -> Message | None:
    """It does nothing, and reports that it is very slow."""
    if isinstance(message, Status):
        return replace(message, done=0, forwarded=0, queued=3, prepared=None, seconds_per_microbatch=1e5)
    return None if isinstance(message, WithPayload | Relay | Prepared | Want | Released) else message


def keeps_its_parts(insider: Insider, source: Any, to: Actor, message: Message) -> Message | None:
    """It does its work, but sends its siblings no parts of the sums."""
    inner = message.message if isinstance(message, Relay) else message
    return None if isinstance(inner, ReducePart) else message


def knows_no_pass(insider: Insider, source: Any, to: Actor, message: Message) -> Message | None:
    """It reports that no pass has been opened."""
    if isinstance(message, Status):
        return replace(message, pass_id=None, done=0, forwarded=0, queued=0, prepared=None)
    return message if isinstance(message, Join) else None


def reports_no_sums(insider: Insider, source: Any, to: Actor, message: Message) -> Message | None:
    """It does all its work, but does not report its sums."""
    if isinstance(message, Status):
        return replace(message, prepared=None, awaited=())
    return None if isinstance(message, Prepared) else message


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("who", ["peer1", "peer2"])
@pytest.mark.parametrize("says", [keeps_frames, has_nothing_to_do, knows_no_pass])
def test_a_replica_cannot_stop_the_run(says: Says, who: str, replicas: int) -> None:
    insider = Insider(who, says, stages=2, replicas=replicas)
    assert insider.finish() < 1.5 * BUDGET_S
    by_step = sorted({step for step, peer in insider.fenced if peer == who})
    gaps = [later - earlier for earlier, later in pairwise(by_step)]
    assert by_step and all(gap >= 2**times for times, gap in enumerate(gaps)), "it comes back ever more seldom"


@pytest.mark.parametrize("who", ["peer1", "peer2", "peer3"])
@pytest.mark.parametrize("says", [keeps_frames, has_nothing_to_do, knows_no_pass, reports_no_sums])
def test_a_peer_without_siblings_cannot_stop_the_run_while_another_stands_by(says: Says, who: str) -> None:
    insider = Insider(who, says, stages=3, replicas=1, spares=1, steps=8)
    assert insider.finish() < 40 * BUDGET_S


def test_the_neighbours_of_who_keeps_its_frames_are_not_removed_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    insider = Insider("peer1", keeps_frames, stages=2, replicas=3)
    insider.finish()
    innocent = [step for step, peer in insider.fenced if peer != "peer1"]
    assert len(innocent) <= 3, "they are believed once two of them, or one who was at fault less often, lack its frames"
    monkeypatch.setattr(PassState, "lacks", lambda *_: None)
    with pytest.raises(Violation):
        Insider("peer1", keeps_frames, stages=2, replicas=3).finish()


def test_who_lacks_the_frames_of_others_falsely_is_the_one_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    insider = Insider("peer1", has_nothing_to_do, stages=2, replicas=3)
    insider.finish()
    assert {peer for _, peer in insider.fenced} == {"peer1"}
    monkeypatch.setattr(Standstill, "why_waiting", lambda *_: "")
    with pytest.raises(Violation):
        Insider("peer1", has_nothing_to_do, stages=2, replicas=3).finish()


def test_nobody_waits_for_who_claims_to_be_slow_and_has_not_shown_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Insider("peer1", claims_to_be_slow, stages=2, replicas=3).finish() < BUDGET_S / 2
    monkeypatch.setattr(Member, "shown_seconds_per_microbatch", Member.seconds_per_microbatch)
    assert Insider("peer1", claims_to_be_slow, stages=2, replicas=3).finish() > 5 * BUDGET_S


def test_of_two_replicas_that_accuse_each_other_one_works_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unknown which of the two is at fault. If both worked, each step would wait for the missing sums."""
    insider = Insider("peer1", keeps_its_parts, stages=2, replicas=2)
    insider.finish()
    assert len(insider.fenced) < STEPS / 4
    monkeypatch.setattr(Bench, "_least_struck", lambda *_: set())
    insider = Insider("peer1", keeps_its_parts, stages=2, replicas=2)
    insider.finish()
    assert len(insider.fenced) > STEPS / 2


def keeps_frames_of_evaluations(insider: Insider, source: Any, to: Actor, message: Message) -> Message | None:
    """It does its work in training, and keeps its frames back in forward-only passes."""
    inner = message.message if isinstance(message, Relay) else message
    trains = not isinstance(inner, Frame) or inner.key.pass_id.index == 0
    return message if trains else keeps_frames(insider, source, to, message)


@pytest.mark.parametrize("replicas", [2, 3])
def test_who_keeps_its_frames_in_evaluations_prevents_few_of_them(replicas: int) -> None:
    insider = Insider("peer2", keeps_frames_of_evaluations, 2, replicas, evaluate_every=1)
    insider.finish()
    assert insider.dropped <= STEPS / 5, f"{insider.dropped} of {STEPS}"
