"""What the coordinator's core makes of actors without a part, of peers that never load, and of what cannot be."""

from __future__ import annotations

import math

import pytest
from one_stage import FOUR, ONE, STAGE, STRANGER, THREE, TWO, Run, sent, settings

from swarm.events import CheckpointRefused, PeerJoined, PeerLost, PeerSeen, RunPaused, SwarmSplit
from swarm.protocol import messages as m
from swarm.protocol.coordinator.io import ArchiveStored, CollectCheckpoint, PassClosed, WriteRecord, WriteTerm
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, Attempt, Microbatch, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.io import Emit, LinkLost, Send
from swarm.simulation.runs.plan import small_settings


def paused(orders: list[object]) -> list[str]:
    return [o.event.reason for o in orders if isinstance(o, Emit) and isinstance(o.event, RunPaused)]


# ---------------------------------------------------------------- in a pass


@pytest.mark.parametrize("microbatch", [-1, 0, 2, 10**6])
@pytest.mark.parametrize("sender", [STRANGER, ONE])
def test_no_number_and_no_sender_breaks_a_step(sender: Actor, microbatch: int) -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    which = Microbatch(microbatch)
    for message in (
        m.Result(run.pass_id, which, 0.0),
        m.Released(run.pass_id, 0, (which,)),
        m.Prepared(Attempt(run.pass_id, StageIndex(microbatch), 0), "d", -1.0, 0.0),
    ):
        run.hear(sender, message)
    run.decide(ONE, TWO)
    assert run.core.history.version == 1


def test_results_do_not_complete_a_training_pass() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    for which in (0, 1):
        orders = run.hear(ONE, m.Result(run.pass_id, Microbatch(which), 0.0))
        orders += run.hear(TWO, m.Result(run.pass_id, Microbatch(which), 0.0))
        assert not [o for o in orders if isinstance(o, PassClosed)]
    assert run.pass_id.index == 0


def evaluating(sample_tokens: int = 0) -> Run:
    run = Run(settings(evaluate_every=1, sample_tokens=sample_tokens))
    run.load(ONE, TWO)
    run.decide(ONE, TWO)
    assert run.core.open_pass is not None and run.core.open_pass.pass_state.kind is PassKind.EVALUATE
    return run


def test_only_who_was_asked_gives_a_result() -> None:
    run = evaluating()
    for sender in (STRANGER, ONE, TWO):  # the first microbatch is one's, the second two's
        assert not [o for o in run.hear(sender, m.Result(run.pass_id, Microbatch(9), 1.0)) if isinstance(o, PassClosed)]
    run.hear(STRANGER, m.Result(run.pass_id, Microbatch(0), 100.0))
    run.hear(TWO, m.Result(run.pass_id, Microbatch(0), 100.0))
    run.hear(ONE, m.Result(run.pass_id, Microbatch(0), 1.0))
    (closed,) = [o for o in run.hear(TWO, m.Result(run.pass_id, Microbatch(1), 2.0)) if isinstance(o, PassClosed)]
    assert closed.loss_sum == 3.0


def test_a_result_that_is_no_number_is_asked_of_a_sibling() -> None:
    run = evaluating()
    run.hear(ONE, m.Result(run.pass_id, Microbatch(0), math.nan))
    run.hear(TWO, m.Result(run.pass_id, Microbatch(0), 1.0))
    (closed,) = [o for o in run.hear(TWO, m.Result(run.pass_id, Microbatch(1), 2.0)) if isinstance(o, PassClosed)]
    assert closed.loss_sum == 3.0


@pytest.mark.parametrize("token", [-1, 89])
def test_a_token_outside_the_vocabulary_is_asked_of_a_sibling(token: int) -> None:
    run = evaluating(sample_tokens=2)
    run.hear(ONE, m.Result(run.pass_id, Microbatch(0), 1.0))
    run.hear(TWO, m.Result(run.pass_id, Microbatch(1), 1.0))
    assert run.core.open_pass is not None and run.core.open_pass.pass_state.kind is PassKind.GENERATE
    orders = run.hear(ONE, m.Result(run.pass_id, Microbatch(0), 1.0, token))
    assert not [o for o in orders if isinstance(o, PassClosed | WriteTerm)]
    (closed,) = [o for o in run.hear(TWO, m.Result(run.pass_id, Microbatch(0), 1.0, 3)) if isinstance(o, PassClosed)]
    assert closed.token == 3


def test_strangers_cannot_halt_a_run() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    for actor in (STRANGER, Actor("stranger", 2), THREE):
        assert not sent(run.hear(actor, m.Failed(run.pass_id, Microbatch(0), "nonsense")), m.Halt)
    run.decide(ONE, TWO)


def test_a_failure_counts_only_for_whose_the_microbatch_is() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    run.hear(ONE, m.Failed(run.pass_id, Microbatch(1), "it is two's"))
    orders = run.hear(TWO, m.Failed(run.pass_id, Microbatch(1), "out of memory"))
    assert not sent(orders, m.Halt) and WriteTerm(2) in orders, "the stage's last replica is gone: once more"


def test_a_norm_below_zero_is_not_prepared() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    attempt = Attempt(run.pass_id, STAGE, 0)
    orders = run.hear(ONE, m.Prepared(attempt, "d", -1.0, 1.0)) + run.hear(TWO, m.Prepared(attempt, "d", 1.0, 1.0))
    assert not [o for o in orders if isinstance(o, WriteRecord)]
    assert [o for o in run.hear(ONE, m.Prepared(attempt, "d", 1.0, 1.0)) if isinstance(o, WriteRecord)]


def test_an_evaluation_that_fails_twice_is_given_up_and_the_run_goes_on() -> None:
    run = evaluating()
    run.hear(ONE, m.Failed(run.pass_id, Microbatch(0), "out of memory"))
    orders = run.hear(TWO, m.Failed(run.pass_id, Microbatch(0), "out of memory"))
    assert WriteTerm(2) in orders and not sent(orders, m.Halt)


def test_a_stranger_blocks_no_pair() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    run.hear(STRANGER, m.Unreachable(run.pass_id, ONE))
    run.hear(ONE, m.Unreachable(run.pass_id, STRANGER))
    assert not run.core._cycle._failure_history.blocked(0)
    run.hear(ONE, m.Unreachable(run.pass_id, TWO))
    assert run.core._cycle._failure_history.blocked(0) == {frozenset((ONE, TWO))}
    run.core._cycle._failure_history.unreachable(ONE, THREE, 100)
    assert len(run.core._cycle._failure_history._blocked) == 1, "what is over is forgotten"


def told(orders: list[object]) -> list[object]:
    return [order.event for order in orders if isinstance(order, Emit)]


def test_who_has_left_cannot_fill_the_log_by_coming_back_again_and_again() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    first = told(run.hear(ONE, m.Leave(ONE, "left")))
    assert PeerLost(str(ONE), 0, "left: left") in first
    for _ in range(20):
        assert not told(run.report(ONE)) and not told(run.hear(ONE, m.Leave(ONE, "left")))
    again = Actor(ONE.peer, 2)
    assert PeerSeen(str(again)) in told(run.hear(again, m.Join(again))), "its next process is another life"


def test_who_reports_another_stage_each_time_is_believed_once_a_heartbeat() -> None:
    run = Run(small_settings(stages=2, microbatches=2, steps=2, replicas=1))
    came = []
    for number in range(40):
        status = m.Status(ONE, StageIndex(number % 2), 0, state_term=1, sequence=number)
        came += [event for event in told(run.hear(ONE, status)) if isinstance(event, PeerJoined)]
    assert len(came) == 1, "40 ms"
    run.now += run.core.settings.heartbeat_s
    for number in (41, 42):
        came += told(run.hear(ONE, m.Status(ONE, StageIndex(number % 2), 0, state_term=1, sequence=number)))
    assert len([event for event in came if isinstance(event, PeerJoined)]) == 2


def test_the_coordinator_passes_on_between_members_of_the_pass_alone() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    want = m.Want(())
    assert Send(TWO, m.Relay(ONE, TWO, want)) in run.hear(ONE, m.Relay(ONE, TWO, want))
    for sender, origin, destination in ((STRANGER, STRANGER, TWO), (ONE, ONE, STRANGER), (ONE, TWO, ONE)):
        assert not sent(run.hear(sender, m.Relay(origin, destination, want)), m.Relay)


def test_who_cannot_reach_each_other_at_all_is_named_once() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    apart = SwarmSplit([[str(ONE)], [str(TWO)]])
    assert Emit(apart) in run.hear(ONE, m.Unreachable(run.pass_id, TWO))
    assert Emit(apart) not in run.hear(TWO, m.Unreachable(run.pass_id, ONE))


@pytest.mark.parametrize("pace", [math.nan, math.inf, -1.0, 0.0, 1e-320])
def test_an_impossible_pace_weighs_nothing(pace: float) -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    for actor, seconds in ((ONE, pace), (TWO, 0.02)):
        run.sequence += 1
        run.hear(actor, m.Status(actor, STAGE, 0, seconds_per_microbatch=seconds, sequence=run.sequence))
    run.core._placement.rebalancing.decided(0.1, None)
    assert run.core._cycle._scheduler._weights.of((ONE, TWO), 0) == {ONE: 1.0, TWO: 1.0}


@pytest.mark.parametrize("capacity", [math.nan, math.inf, -5.0, 0.0])
def test_an_impossible_capacity_is_a_usual_one(capacity: float) -> None:
    run = Run(settings())
    run.hear(STRANGER, m.Join(STRANGER, capacity=capacity, sequence=1))
    stranger = run.core.members.get(STRANGER)
    assert stranger is not None and stranger.capacity == 1.0


# ---------------------------------------------------------------- who lacks the version


def test_a_peer_that_never_loads_is_waited_for_once() -> None:
    run = Run(settings(steps=4, replicas=3), (ONE, TWO, THREE))
    run.load(ONE, TWO)
    assert run.core.phase is Phase.BETWEEN, "it is waited for"
    run.heartbeats(run.core.settings.step_budget_s + 0.5)
    assert run.core.phase is Phase.OPEN
    for _ in range(2):
        run.decide(ONE, TWO)
        assert run.core.phase is Phase.OPEN, "the next step begins at once"


def test_its_place_is_free_until_it_has_loaded() -> None:
    run = Run(settings(steps=4, replicas=3), (ONE, TWO, THREE))
    run.load(ONE, TWO)
    run.heartbeats(run.core.settings.step_budget_s + 0.5)
    run.hear(FOUR, m.Join(FOUR))
    four, three = run.core.members.get(FOUR), run.core.members.get(THREE)
    assert four is not None and four.stage == 0 and three is not None and three.given_up
    run.versions[THREE] = 0
    run.report(THREE)
    assert not three.given_up


def test_a_long_download_is_not_broken_off_by_every_new_version() -> None:
    run = Run(settings(steps=4, replicas=3), (ONE, TWO, THREE))
    run.load(ONE, TWO)
    run.heartbeats(run.core.settings.step_budget_s + 0.5)
    before = len(run.orders)
    for version in range(1, 4):
        run.decide(ONE, TWO)
        assert not sent(run.orders[before:], m.Assign, THREE), "it is told what to load when a pass opens"
        opened = sent(run.orders[before:], m.Open, THREE)[-1]
        assert isinstance(opened, m.Open) and opened.pass_id.version == version
        assert opened.listeners == (m.Listener(THREE, STAGE, 0, loads=True),), "it still loads version 0"
        run.loading[THREE] = 0
        run.heartbeats(run.core.settings.step_budget_s + 0.3)


def loads_when_another_step_is_decided() -> tuple[Run, m.Listener]:
    """THREE loads version 0, and version 1 is what the others go on with."""
    run = Run(settings(steps=9, replicas=3), (ONE, TWO, THREE))
    run.load(ONE, TWO)
    run.heartbeats(run.core.settings.step_budget_s + 0.5)
    run.loading[THREE] = 0
    run.decide(ONE, TWO)
    run.heartbeats(0.2)
    return run, m.Listener(THREE, STAGE, 0, loads=True)


def test_what_was_loaded_by_who_is_lost_is_kept_for_a_while_and_gone_on_with() -> None:
    run, loads = loads_when_another_step_is_decided()
    run.hear(THREE, m.Leave(THREE, "killed"))
    del run.versions[THREE]
    run.decide(ONE, TWO)
    for actor in (ONE, TWO):
        opened = sent(run.orders, m.Open, actor)[-1]
        assert isinstance(opened, m.Open) and opened.listeners == (loads,), "so they keep version 0 and the sums since"
    again = Actor("three", 2)
    run.versions[again] = None
    orders = run.hear(again, m.Join(again))
    assert [o.event.reason for o in orders if isinstance(o, Emit) and isinstance(o.event, PeerJoined)] == [
        "it has some of the state of stage 0 already"
    ]
    opened = sent(orders + run.heartbeats(0.5), m.Open, again)[-1]
    assert isinstance(opened, m.Open) and opened.listeners == (m.Listener(again, STAGE, 0, loads=True),)


def test_while_a_broken_connection_may_come_back_its_version_is_kept() -> None:
    run, loads = loads_when_another_step_is_decided()
    run.take(LinkLost(THREE))
    del run.versions[THREE]
    run.decide(ONE, TWO)
    opened = sent(run.orders, m.Open, ONE)[-1]
    assert isinstance(opened, m.Open) and opened.pass_id.version == 2 and opened.listeners == (loads,)


def test_who_comes_back_too_late_begins_anew() -> None:
    run, _ = loads_when_another_step_is_decided()
    run.hear(THREE, m.Leave(THREE, "killed"))
    del run.versions[THREE]
    run.heartbeats(run.core.settings.step_budget_s / 2 + 0.3)
    assert run.core.open_pass is not None and not run.core.open_pass.pass_state.listeners
    again = Actor("three", 2)
    run.versions[again] = None
    run.hear(again, m.Join(again))
    opened = sent(run.heartbeats(0.5), m.Open, again)[-1]
    assert isinstance(opened, m.Open) and opened.listeners == (m.Listener(again, STAGE, 1, loads=True),)


def test_nor_by_the_last_version_while_its_time_lasts() -> None:
    run = Run(settings(steps=1, replicas=3), (ONE, TWO, THREE))
    run.load(ONE, TWO)
    run.heartbeats(run.core.settings.step_budget_s + 0.5)
    run.decide(ONE, TWO)
    assert not sent(run.heartbeats(3.0), m.Assign, THREE)
    (assign, *_) = sent(run.heartbeats(2 * run.core.settings.step_budget_s), m.Assign, THREE)
    assert isinstance(assign, m.Assign) and assign.version == 1


def test_all_holders_are_named_as_donors() -> None:
    """Before the first pass of a process of ours, when all are to begin together."""
    decision = m.Decision(Term(1), StepNumber(0), 0.01, 1.0, 128, 1.0, (m.StageOutcome(0, "d"),))
    run = Run(settings(steps=4, replicas=3), (ONE, TWO, THREE), decision)
    run.load(ONE, TWO)
    orders = run.heartbeats(run.core.settings.step_budget_s / 2)
    assigned = [a for a in sent(run.orders + orders, m.Assign, THREE) if isinstance(a, m.Assign)]
    assert assigned[-1].donors == (m.Donor(ONE, 0), m.Donor(TWO, 1)) and assigned[-1].archive is None


def test_who_comes_back_to_a_full_stage_is_not_waited_for() -> None:
    run = Run(settings(steps=4))
    run.load(ONE, TWO)
    run.decide(ONE, TWO)
    run.versions[STRANGER] = None
    run.report(STRANGER)
    run.decide(ONE, TWO)
    assert run.core.phase is Phase.OPEN and not sent(run.orders, m.Assign, STRANGER)


# ---------------------------------------------------------------- checkpoints


def collected(orders: list[object]) -> list[CollectCheckpoint]:
    return [o for o in orders if isinstance(o, CollectCheckpoint)]


def test_a_stranger_puts_nothing_into_the_archive() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    run.decide(ONE, TWO)
    run.versions[STRANGER], run.saved[STRANGER] = None, (1, "its own")
    assert not collected(run.heartbeats(1.0)) and not run.core._cycle.checkpoints._copies
    run.saved[ONE] = run.saved[TWO] = (1, "file")
    assert not collected(run.report(ONE)), "one of two says it"
    (order,) = collected(run.report(TWO))
    assert order == CollectCheckpoint(1, run.core.history.term, ((ONE, TWO),), ("file",))


def test_the_first_of_its_makers_alone_decides_nothing() -> None:
    run = Run(settings(replicas=3), (ONE, TWO, THREE))
    run.load(ONE, TWO, THREE)
    run.decide(ONE, TWO, THREE)
    run.saved[ONE] = (1, "its own")
    assert not collected(run.heartbeats(1.0))
    run.saved[TWO] = run.saved[THREE] = (1, "file")
    orders = run.heartbeats(0.2)
    assert [(order.holders, order.digests) for order in collected(orders)] == [(((TWO, THREE),), ("file",))]
    assert len([o for o in orders if isinstance(o, Emit) and isinstance(o.event, CheckpointRefused)]) == 1


def test_makers_that_do_not_save_are_waited_for_a_step_budget() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    run.decide(ONE, TWO)
    run.saved[ONE] = (1, "file")
    assert not collected(run.heartbeats(run.core.settings.step_budget_s - 0.5))
    assert collected(run.heartbeats(1.0))[0].holders == ((ONE,),)


def test_makers_that_have_gone_are_not_waited_for() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    run.decide(ONE, TWO)
    run.saved[ONE] = (1, "file")
    run.hear(TWO, m.Leave(TWO, "goodbye"))
    del run.versions[TWO]
    assert collected(run.report(ONE))[0].holders == ((ONE,),)


def test_an_order_that_is_repeated_begins_with_the_next_holder() -> None:
    run = Run(settings(steps=4))
    run.load(ONE, TWO)
    run.decide(ONE, TWO)
    run.saved[ONE] = run.saved[TWO] = (1, "file")
    orders = collected(run.heartbeats(25 * run.core.settings.heartbeat_s))
    assert [order.holders for order in orders[:3]] == [((ONE, TWO),), ((TWO, ONE),), ((ONE, TWO),)]
    run.decide(ONE, TWO)
    run.saved[ONE] = run.saved[TWO] = (2, "next")
    (later,) = collected(run.heartbeats(0.2))
    assert (later.version, later.holders[0]) == (2, ((ONE, TWO), (TWO, ONE))[len(orders) % 2])


def test_reports_of_other_stages_and_versions_are_not_taken() -> None:
    run = Run(settings())
    run.load(ONE, TWO)
    run.decide(ONE, TWO)
    for stage, version in ((-1, 1), (1, 1), (10**6, 1), (0, 0), (0, 2), (None, 1)):
        run.sequence += 1
        where = None if stage is None else StageIndex(stage)
        status = m.Status(ONE, where, 1, checkpoint_version=version, checkpoint_digest="file", sequence=run.sequence)
        assert not collected(run.hear(ONE, status))


def test_without_a_majority_nothing_is_fetched() -> None:
    run = Run(settings(replicas=3, steps=1), (ONE, TWO, THREE))
    run.load(ONE, TWO, THREE)
    run.decide(ONE, TWO, THREE)
    run.saved[ONE] = (1, "a")
    run.report(ONE)
    run.saved[TWO] = (1, "b")
    assert not collected(run.heartbeats(4.0)), "one against one"
    run.saved[THREE] = (1, "b")
    orders = run.heartbeats(3.0)
    assert collected(orders)[0] == CollectCheckpoint(1, run.core.history.term, ((TWO, THREE),), ("b",))
    refused = [o for o in orders if isinstance(o, Emit) and isinstance(o.event, CheckpointRefused)]
    assert len(refused) == 1, "said once"


def test_after_a_restart_those_are_believed_who_hold_the_version() -> None:
    decision = m.Decision(Term(1), StepNumber(0), 0.01, 1.0, 128, 1.0, (m.StageOutcome(0, "d"),))
    run = Run(settings(steps=1), (ONE, TWO), decision)
    for actor in (ONE, TWO):
        run.versions[actor] = 1
    run.versions[STRANGER], run.saved[STRANGER] = None, (1, "its own")
    run.saved[ONE] = (1, "file")
    assert not collected(run.heartbeats(1.0)), "two may say otherwise"
    assert collected(run.heartbeats(run.core.settings.step_budget_s))[0].holders == ((ONE,),), "two's disk is full"


def test_a_last_checkpoint_that_does_not_come_is_named_and_asked_for_again() -> None:
    run = Run(settings(steps=1))
    run.load(ONE, TWO)
    decision = run.decide(ONE, TWO)
    orders = run.heartbeats(1.0)
    assert not paused(orders) and not sent(orders, m.Decide)
    run.saved[ONE] = (1, "file")
    orders = run.heartbeats(run.core.settings.step_budget_s + 1.5)
    what = "checkpoint 1 of stage 0 is not archived: its replicas' copies differ, or some have not saved it"
    assert paused(orders) == [what, "checkpoint 1 is not archived: its copies could not be fetched or stored so far"]
    assert m.Decide(decision, Term(1)) in sent(orders, m.Decide, TWO) and not sent(orders, m.Decide, ONE)
    orders = run.take(ArchiveStored(1, run.core.history.term, ("x",))) + run.heartbeats(0.5)
    assert m.Decide(decision, Term(1), finished=True) in sent(orders, m.Decide, ONE)


def test_a_stage_that_nobody_has_saved_is_named() -> None:
    run = Run(settings(steps=1))
    run.load(ONE, TWO)
    run.decide(ONE, TWO)
    (reason,) = paused(run.heartbeats(run.core.settings.step_budget_s + 0.5))
    assert reason == "checkpoint 1 of stage 0 is not archived: none of its replicas has saved it"


def test_what_is_archived_or_long_past_is_forgotten() -> None:
    run = Run(settings(steps=9))
    run.load(ONE, TWO)
    for _ in range(6):
        run.decide(ONE, TWO)
        run.saved[ONE] = (run.core.history.version, "file")
        run.report(ONE)
    assert sorted(run.core._cycle.checkpoints._copies) == [4, 5, 6] == sorted(run.core._cycle.checkpoints._rosters)
    run.take(ArchiveStored(6, run.core.history.term, ("x",)))
    run.decide(ONE, TWO)
    run.report(ONE)
    assert not run.core._cycle.checkpoints._copies and list(run.core._cycle.checkpoints._rosters) == [7]
