"""When another peer may take the place of one that does not do its work."""

from __future__ import annotations

from swarm.protocol.coordinator.membership.idle import LEFT_OUT_BUDGETS, PROVEN_AFTER, REMEMBERED, Idle

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


def test_a_stage_relies_on_an_idle_peer_again_when_it_has_done_its_work_in_some_steps() -> None:
    idle = Idle()
    assert not idle.is_unproven("a")
    for needed in (PROVEN_AFTER, 2 * PROVEN_AFTER, 4 * PROVEN_AFTER):
        idle.add("a", "hangs", BUDGET_S, 0.0)
        assert idle.is_unproven("a")
        idle.decided()
        assert not idle.has("a") and not idle.is_unproven("b")
        for _ in range(needed):
            assert idle.is_unproven("a")
            idle.worked("a")
        assert not idle.is_unproven("a")


def test_only_so_many_peers_are_remembered() -> None:
    idle = Idle()
    for number in range(REMEMBERED + 1):
        idle.add(str(number), "hangs", BUDGET_S, 0.0)
        idle.decided()
    assert not idle.is_unproven("0") and idle.is_unproven("1")
