"""When another peer may take the place of one that does not do its work."""

from __future__ import annotations

from swarm.protocol.coordinator.membership.idle import LEFT_OUT_BUDGETS, Idle

BUDGET_S = 10.0


def test_an_idle_peer_is_left_out_only_after_a_step_budget() -> None:
    idle = Idle()
    assert not idle.has("a") and idle.why("a") is None and not idle.leaves_out("a", 0.0)
    assert [idle.add("a", "hangs", BUDGET_S, now) for now in (100.0, 101.0, 109.9)] == [1, 2, 3]
    assert idle.has("a") and not idle.leaves_out("a", 200.0)
    idle.add("a", "still hangs", BUDGET_S, 110.0)
    assert idle.leaves_out("a", 110.0) and idle.why("a") == "still hangs"
    assert not idle.leaves_out("b", 110.0)


def test_an_idle_peer_may_come_back_after_a_while_or_when_the_step_is_decided() -> None:
    idle = Idle()
    for now in (0.0, BUDGET_S):
        idle.add("a", "hangs", BUDGET_S, now)
    assert idle.leaves_out("a", (LEFT_OUT_BUDGETS + 0.9) * BUDGET_S)
    assert not idle.leaves_out("a", (LEFT_OUT_BUDGETS + 1) * BUDGET_S)
    assert idle.has("a")
    idle.decided()
    assert not idle.has("a")


def test_a_peer_that_was_idle_is_relied_on_again_when_a_step_with_its_work_is_decided() -> None:
    idle = Idle()
    assert not idle.is_unproven("a")
    idle.add("a", "hangs", BUDGET_S, 0.0)
    assert idle.is_unproven("a")
    idle.decided()
    assert not idle.has("a") and idle.is_unproven("a") and not idle.is_unproven("b")
    idle.worked("a")
    assert not idle.is_unproven("a")
