"""A pass waits for a peer that loads its state, but for each device only so long, however often it restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swarm.protocol import messages as m
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import TermWritten
from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.io import Received, Send, Tick
from swarm.simulation.runs.plan import small_settings

COORDINATOR, HOLDER = Actor("coord", 0), Actor("holder", 1)
SETTINGS = replace(small_settings(stages=1, microbatches=4, steps=9, replicas=1), start_timeout_s=0.1, max_replicas=2)


def seconds_until_open(lives_s: float) -> float:
    """How long the first pass of a coordinator waits, if a peer gets a stage, loads nothing, and is a new process after
    so many seconds each time. At most ten step budgets.
    """
    core, now, sequence, incarnation, born = CoordinatorCore(COORDINATOR, SETTINGS, 0, None, None), 0.0, 0, 0, -1e9
    core.handle(Tick(), now)
    orders: list[Any] = list(core.handle(TermWritten(1), now))
    while not any(isinstance(a, Send) and isinstance(a.message, m.Open) for a in orders):
        now, sequence, orders = now + SETTINGS.heartbeat_s, sequence + 1, []
        if now >= 10 * SETTINGS.step_budget_s:
            break
        if now - born >= lives_s:
            incarnation, born = incarnation + 1, now
        loader = Actor("loader", incarnation)
        orders += core.handle(Received(loader, m.Join(loader, sequence=sequence)), now)
        if now > 5 * SETTINGS.heartbeat_s:  # it comes later, so that both get the stage
            orders += core.handle(Received(HOLDER, m.Status(HOLDER, StageIndex(0), 0, sequence=sequence)), now)
        orders += core.handle(Tick(), now)
    return now


@pytest.mark.parametrize("share", [2.0, 0.8, 0.3])
def test_a_peer_that_restarts_while_it_is_waited_for_delays_the_first_pass_no_longer_than_another(share: float) -> None:
    assert seconds_until_open(share * SETTINGS.step_budget_s) <= 1.5 * SETTINGS.step_budget_s
