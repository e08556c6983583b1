"""What a fault cost: against the steps before it, whatever came between the first attempt and the decision."""

from __future__ import annotations

from swarm.protocol.coordinator.passes.fault_costs import FaultCosts
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, PassId, PassKind, StepNumber, Term
from swarm.protocol.messages import Open, StageTable, Status
from swarm.simulation.runs.plan import small_settings

ONE, TWO = Actor("one", 1), Actor("two", 1)
NOBODY: frozenset[Actor] = frozenset()
SETTINGS = small_settings(stages=1, microbatches=4, steps=20, replicas=2)
TOKENS = SETTINGS.tokens_per_step


def opened(step: int, now: float, term: int = 1) -> PassState:
    table = StageTable(0, (ONE, TWO), (0, 1, 0, 1))
    return PassState(
        Open(PassId(Term(term), StepNumber(step)), PassKind.TRAIN, (table,), None),
        weights={ONE: 1.0, TWO: 1.0},
        now=now,
    )


def usual_steps(costs: FaultCosts, *seconds: float) -> float:
    """So many undisturbed steps, one after the other; returns when the last is decided."""
    now = 0.0
    for step, took in enumerate(seconds):
        pass_state = opened(step, now)
        costs.opened(now)
        now += took
        assert costs.decided(pass_state, NOBODY, now) is None
    return now


def test_a_fence_costs_what_the_step_took_more_than_is_usual() -> None:
    costs = FaultCosts(SETTINGS)
    now = usual_steps(costs, 2.0, 9.0, 2.0, 2.2)
    pass_state = opened(4, now)
    costs.opened(now)
    pass_state.disturbers[TWO] = "its connection broke"
    pass_state.done_again = 2
    costed = costs.decided(pass_state, NOBODY, now + 3.1)
    assert costed is not None
    assert (costed.pass_id, costed.step, costed.actors, costed.microbatches) == ("1:4", 4, [str(TWO)], 2)
    assert abs(costed.usual_s - 2.1) < 1e-9 and abs(costed.seconds - 1.0) < 1e-9
    assert costed.tokens == round(TOKENS * costed.seconds / costed.usual_s)
    assert costed.reason == f"{TWO}: its connection broke"
    pass_state = opened(5, now + 3.1)
    costs.opened(now + 3.1)
    assert costs.decided(pass_state, NOBODY, now + 5.0) is None, "the next is undisturbed"
    assert costs.usual_s == 2.0, "and the disturbed one is not taken for usual"


def test_aborted_attempts_and_the_wait_between_them_count() -> None:
    costs = FaultCosts(SETTINGS)
    now = usual_steps(costs, 2.0, 2.0)
    first = opened(2, now)
    costs.opened(now)
    first.on_status(Status(ONE, None, 2, first.pass_id, (0,), done=0b0101), now + 1.0)
    first.disturbers[TWO] = "it is gone"
    costs.aborted(first, "stage 0 lost its last replica")
    costs.opened(now + 6.0)
    costed = costs.decided(opened(2, now + 6.0, term=2), NOBODY, now + 8.0)
    assert costed is not None and costed.pass_id == "2:2"
    assert costed.microbatches == 2 and abs(costed.seconds - 6.0) < 1e-9
    assert costed.actors == [str(TWO)] and "lost its last replica" in costed.reason


def test_steps_that_are_rolled_back_are_paid_for_again() -> None:
    costs = FaultCosts(SETTINGS)
    now = usual_steps(costs, 2.0, 2.0, 2.0)
    costs.lost(ONE, "its connection broke", now)
    costs.rolled_back(3, "rolled back to version 0")
    costs.opened(now + 5.0)
    costed = costs.decided(opened(0, now + 5.0, term=2), NOBODY, now + 7.0)
    assert costed is not None
    assert abs(costed.seconds - (5.0 + 3 * 2.0)) < 1e-9 and costed.microbatches == 3 * 4


def test_without_a_usual_step_nothing_is_made_up_and_a_slow_step_is_not_negative() -> None:
    costs = FaultCosts(SETTINGS)
    pass_state = opened(0, 0.0)
    costs.opened(0.0)
    pass_state.disturbers[ONE] = "slow"
    costed = costs.decided(pass_state, NOBODY, 9.0)
    assert costed is not None and (costed.seconds, costed.tokens, costed.usual_s) == (0.0, 0, 0.0)
    costs = FaultCosts(SETTINGS)
    now = usual_steps(costs, 4.0)
    costs.opened(now)
    costed = costs.decided(opened(1, now), frozenset((TWO,)), now + 1.0)
    assert costed is not None and costed.seconds == 0.0 and costed.actors == [str(TWO)]


def test_a_step_that_is_audited_is_no_fault_and_not_usual() -> None:
    costs = FaultCosts(SETTINGS)
    now = usual_steps(costs, 2.0)
    costs.opened(now)
    costs.audited(opened(1, now))
    assert costs.decided(opened(1, now + 2.0), NOBODY, now + 4.0) is None
    assert costs.usual_s == 2.0


def evaluation(now: float, term: int = 1) -> PassState:
    table = StageTable(0, (ONE, TWO), (0, 1))
    pass_id = PassId(Term(term), StepNumber(3), 1)
    weights = {ONE: 1.0, TWO: 1.0}
    return PassState(Open(pass_id, PassKind.EVALUATE, (table,), None), weights=weights, now=now)


def evaluations(*seconds: float) -> FaultCosts:
    """A step takes 4 s; so many undisturbed evaluations have been."""
    costs = FaultCosts(SETTINGS, lambda: 4.0)
    for took in seconds:
        costs.opened(0.0)
        assert costs.decided(evaluation(0.0), NOBODY, took) is None
    return costs


def test_an_evaluation_costs_what_it_took_more_than_others_in_tokens_of_steps() -> None:
    costs = evaluations(1.0, 1.0, 1.2)
    costs.opened(0.0)
    pass_state = evaluation(0.0)
    pass_state.disturbers[TWO] = "its connection broke"
    pass_state.done_again = 1
    costed = costs.decided(pass_state, NOBODY, 3.0)
    assert costed is not None and (costed.pass_id, costed.step, costed.actors) == ("1:3+1", 3, [str(TWO)])
    assert (costed.usual_s, costed.seconds, costed.microbatches) == (1.0, 2.0, 1)
    assert costed.tokens == TOKENS // 2


def test_an_evaluation_that_is_given_up_has_cost_its_time() -> None:
    costs = evaluations(1.0)
    costs.opened(0.0)
    costs.aborted(evaluation(0.0), "stage 0 lost its last replica")
    costs.opened(2.0)
    last = evaluation(2.0, term=2)
    costs.aborted(last, "stage 0 lost its last replica")
    costed = costs.given_up(last, 4.0)
    assert costed is not None and (costed.pass_id, costed.seconds) == ("2:3+1", 3.0)


def test_what_an_evaluation_before_a_rollback_has_cost_is_told_with_the_step() -> None:
    steps, costs = FaultCosts(SETTINGS), evaluations(1.0)
    now = usual_steps(steps, 2.0, 2.0)
    costs.opened(now)
    pass_state = evaluation(now)
    pass_state.disturbers[TWO] = "its connection broke"
    costs.aborted(pass_state, "stage 0 lost its last replica")
    steps.rolled_back(1, "rolled back to version 1")
    steps.take_over(costs)
    steps.opened(now + 5.0)
    costed = steps.decided(opened(1, now + 5.0, term=2), NOBODY, now + 7.0)
    assert costed is not None and costed.actors == [str(TWO)] and "its connection broke" in costed.reason
    assert abs(costed.seconds - (5.0 + 2.0)) < 1e-9
    costs.opened(50.0)
    assert costs.decided(evaluation(50.0), NOBODY, 51.0) is None, "the next one is undisturbed"
    costs.opened(60.0)
    steps.take_over(costs)
    steps.opened(70.0)
    assert steps.decided(opened(2, 70.0), NOBODY, 72.0) is None, "nothing had gone wrong"


def test_without_a_usual_step_an_evaluation_costs_no_tokens() -> None:
    costs = FaultCosts(SETTINGS, lambda: 0.0)
    costs.opened(0.0)
    pass_state = evaluation(0.0)
    pass_state.disturbers[TWO] = "slow"
    costed = costs.decided(pass_state, NOBODY, 9.0)
    assert costed is not None and (costed.seconds, costed.tokens) == (0.0, 0)


def test_who_is_lost_before_the_first_step_costs_nothing() -> None:
    costs = FaultCosts(SETTINGS)
    costs.lost(ONE, "its connection broke", 0.0)
    costs.opened(5.0)
    assert costs.decided(opened(0, 5.0), NOBODY, 7.0) is None
    assert costs.usual_s == 2.0
