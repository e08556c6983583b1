"""Faults as incidents with their cost, and what would happen if somebody left: by hand, and against a real loss."""

import json
from typing import Any

import pytest
from story import Story

from benchmarks.generated_log import Shape, generate
from peers.fold import RunState, apply, apply_record, views
from swarm import events as e


def cost(step: int, actors: list[str], microbatches: int, seconds: float, tokens: int, term: int = 1) -> e.FaultCosted:
    return e.FaultCosted(f"{term}:{step}", step, actors, microbatches, seconds, 4.0, tokens, "because")


@pytest.mark.parametrize("cost_first", [True, False])
def test_fenced_then_lost_is_one_incident_with_the_cost_of_its_step(cost_first: bool):
    story = Story().steps(0, 2).open(3).wait(1)
    story.tell(e.PeerFenced("b.1", 0, "1:3", [0, 1], [2], "silent")).wait(1).tell(e.PeerLost("b.1", 0, "broke"))
    story.wait(4)
    if cost_first:  # as the core tells it
        story.tell(cost(3, ["b.1"], 2, 2.5, 500)).decide(3)
    else:
        story.decide(3).tell(cost(3, ["b.1"], 2, 2.5, 500))
    story.wait(1).steps(4, 5)
    (fault,) = story.faults
    assert (fault["kind"], fault["actor"], fault["stage"], fault["step"]) == ("lost", "b.1", 0, 3)
    assert fault["reason"] == "silent; broke"
    assert (fault["microbatches"], fault["finished"], fault["seconds"], fault["tokens"]) == (2, 2, 2.5, 500)
    assert fault["costed"] and fault["recovered_at"] == 100 + 12 + 6
    assert story.lost == {"seconds": 2.5, "tokens": 500}


def test_lost_then_fenced_is_one_incident_too():
    story = Story().open(0).wait(1).tell(e.PeerLost("b.1", 0, "its connection broke"))
    story.tell(e.PeerFenced("b.1", 0, "1:0", [1], [2, 3], "its connection broke")).wait(1)
    (fault,) = story.faults
    assert (fault["kind"], fault["reason"], fault["microbatches"]) == ("lost", "its connection broke", 3)
    assert fault["recovered_at"] is None and not fault["costed"]


@pytest.mark.parametrize("first", ["lost", "expelled", "lost, and the step is decided"])
def test_expelled_and_lost_is_one_incident(first: str):
    story = Story().steps(0, 2).open(3).wait(1)
    lost, expelled = e.PeerLost("b.1", 0, "expelled"), e.PeerExpelled("b.1", 0, 3, "its numbers differ")
    if first == "lost, and the step is decided":
        story.tell(lost).wait(1).decide(3).tell(expelled)
    else:
        story.tell(*(lost, expelled) if first == "lost" else (expelled, lost))
    (fault,) = story.faults
    assert (fault["kind"], fault["actor"], fault["step"]) == ("lost", "b.1", 3)
    assert fault["reason"] == "its numbers differ; expelled"


@pytest.mark.parametrize("also_lost", [True, False])
def test_an_expulsion_that_the_next_leader_tells_again_is_one_incident(also_lost: bool):
    story = Story().steps(0, 2).open(3).wait(1).tell(e.PeerExpelled("b.1", 0, 3, "its numbers differ"))
    if also_lost:
        story.tell(e.PeerLost("b.1", 0, "expelled"))
    story.decide(3).wait(1).tell(e.PeerExpelled("b.1", 0, 4, "at step 3 its numbers differ"))
    (fault,) = story.faults
    assert fault["reason"] == ("its numbers differ; expelled" if also_lost else "its numbers differ")


def test_who_entered_a_step_late_and_died_in_it_belongs_to_it():
    story = Story().open(0).wait(1).tell(e.PeerLost("d.1", 1, "broke"), e.PeerFenced("d.1", 1, "1:0", [], [3], "broke"))
    story.tell(e.FrameRecovered("1:0/b1→m3", "a.1"), source="c.1")
    assert story.faults[0]["pass_id"] == "1:0" and story.faults[0]["recovered_at"] == story.at


def test_several_incidents_of_a_step_divide_its_cost_and_lose_nothing_of_it():
    story = Story().open(0)
    for actor, stage in (("b.1", 0), ("c.1", 1)):
        story.tell(e.PeerFenced(actor, stage, "1:0", [0], [], "silent"))
    story.tell(cost(0, ["b.1", "c.1", "a.1"], 7, 3.0, 1000)).decide(0)
    assert [fault["kind"] for fault in story.faults] == ["fenced", "fenced", "slow"]
    assert sum(fault["tokens"] for fault in story.faults) == 1000 == story.lost["tokens"]
    assert sum(fault["microbatches"] for fault in story.faults) == 7
    assert sum(fault["seconds"] for fault in story.faults) == pytest.approx(3.0)


def test_of_several_slow_peers_each_has_its_own_reason():
    story = Story().open(0)
    reasons = ["it was slow; it released 1", "it was slow and released 2"]
    told = "a.1: it was slow; it released 1; b.1: it was slow and released 2"
    story.tell(e.FaultCosted("1:0", 0, ["a.1", "b.1", "c.1"], 0, 3.0, 4.0, 999, told, reasons)).decide(0)
    assert [fault["reason"] for fault in story.faults] == [*reasons, told]


def test_an_aborted_attempt_is_an_incident_of_its_own_only_if_nobody_is_to_blame():
    story = Story().open(0).tell(e.StepAborted("1:0", 2, "stage 1 gave up")).wait(1)
    story.open(0, term=2).tell(cost(0, [], 9, 5.0, 700, term=2)).decide(0)
    blamed = Story().open(0).tell(e.PeerFenced("b.1", 0, "1:0", [], [], "silent"), e.StepAborted("1:0", 2, "gave up"))
    blamed.open(0, term=2).tell(cost(0, ["b.1"], 9, 5.0, 700, term=2)).decide(0)
    assert [(f["kind"], f["seconds"], f["microbatches"]) for f in story.faults] == [("aborted", 5.0, 9)]
    assert [(f["kind"], f["seconds"], f["microbatches"]) for f in blamed.faults] == [("fenced", 5.0, 9)]


@pytest.mark.parametrize("lost", [True, False])
def test_a_fault_in_an_evaluation_has_its_cost_and_is_over_with_it(lost: bool):
    story = Story().steps(0, 3).tell(e.PassOpened("1:3+1", "evaluate", [2, 1], 4)).wait(1)
    if lost:
        story.tell(e.PeerLost("b.1", 0, "its connection broke"))
    story.tell(e.PeerFenced("b.1", 0, "1:3+1", [0], [1], "its connection broke")).wait(2)
    story.tell(e.Evaluated(4, 3.0, 100), e.FaultCosted("1:3+1", 3, ["b.1"], 1, 2.0, 1.0, 400, "b.1: it broke"))
    over = story.at
    (fault,) = story.faults
    assert (fault["kind"], fault["step"], fault["pass_id"]) == ("lost" if lost else "fenced", 3, "1:3+1")
    assert fault["word"] == ("lost in the evaluation" if lost else "taken out of the evaluation")
    assert (fault["seconds"], fault["tokens"], fault["recovered_at"]) == (2.0, 400, over)
    story.steps(4, 4)
    assert story.faults == [fault] and story.lost == {"seconds": 2.0, "tokens": 400}
    story.open(5).tell(e.PeerFenced("a.1", 0, "1:5", [], [], "silent")).tell(cost(5, ["a.1"], 0, 1.0, 200)).decide(5)
    assert [fault["seconds"] for fault in story.faults] == [2.0, 1.0]


def test_a_fault_in_an_evaluation_that_leads_to_a_rollback_is_charged_with_the_step():
    story = Story().steps(0, 3).tell(e.PassOpened("1:3+1", "evaluate", [2, 1], 4)).wait(1)
    story.tell(e.PeerLost("c.1", 1, "broke"), e.PeerFenced("c.1", 1, "1:3+1", [], [0], "broke"))
    story.tell(e.StepAborted("1:3+1", 2, "gave up"), e.RolledBack(2, 2, "stage 1 has no state")).wait(3)
    story.open(2, term=2).wait(4).tell(cost(2, ["c.1"], 8, 7.0, 900, term=2)).decide(2)
    assert [fault["kind"] for fault in story.faults] == ["lost", "rolled back"]
    assert story.faults[0]["seconds"] == 7.0 and story.faults[0]["costed"]


def test_an_evaluation_that_is_given_up_is_told():
    story = Story().steps(0, 3).tell(e.PassOpened("1:3+1", "evaluate", [2, 1], 4)).wait(1)
    story.tell(e.StepAborted("1:3+1", 2, "gave up"), e.FaultCosted("1:3+1", 3, [], 2, 5.0, 1.0, 900, "gave up"))
    (fault,) = story.faults
    assert (fault["word"], fault["seconds"], fault["step"]) == ("evaluation begun anew", 5.0, 3)


def test_who_says_goodbye_is_no_fault_and_who_stands_by_costs_nothing():
    story = Story().steps(0, 1).tell(e.PeerLost("d.1", None, "its connection broke"))
    story.tell(e.PeerLost("b.1", 0, "left: asked to by its owner")).steps(2, 3)
    (fault,) = story.faults
    assert (fault["actor"], fault["seconds"], fault["recovered_at"]) == ("d.1", 0.0, fault["at"])


def test_waiting_costs_the_time_in_which_nothing_could_start():
    story = Story().steps(0, 3).tell(e.RunPaused("stage 1 has no peer")).wait(10).tell(e.RunPaused("stage 1 has 0"))
    story.wait(5).steps(4, 4)
    (fault,) = story.faults
    assert (fault["kind"], fault["seconds"], fault["tokens"]) == ("waiting", 15.0, 3000)
    assert fault["reason"] == "stage 1 has 0"


def test_a_pause_of_the_organiser_is_no_fault():
    story = Story().steps(0, 3).tell(e.RunPaused("paused by Ann"), e.StateChanged("paused", "by Ann: moving"))
    story.wait(100).steps(4, 4)
    assert story.faults == []


def test_what_a_loss_between_steps_costs_is_not_counted_twice():
    """The core counts its cost from the loss on: the wait is in it."""
    story = Story().tell(e.StateChanged("training", "")).steps(0, 3).tell(e.PeerLost("c.1", 1, "its connection broke"))
    story.tell(e.RunPaused("stage 1 has no peer")).wait(20).open(4).wait(4)
    story.tell(cost(4, ["c.1"], 0, 20.0, 4000)).decide(4)
    (fault,) = story.faults
    assert (fault["kind"], fault["actor"], fault["seconds"]) == ("lost", "c.1", 20.0)
    assert fault["recovered_at"] == story.at and story.lost == {"seconds": 20.0, "tokens": 4000}


def test_a_coordinator_that_died_cost_the_time_until_the_next_step():
    story = Story().steps(0, 3).wait(30)
    story.tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(2, 3)).wait(6)
    story.tell(e.PeerSeen("a.1"), e.PeerJoined("a.1", 0, "came back")).open(4, term=2)
    (fault,) = story.faults
    assert (fault["kind"], fault["seconds"], fault["tokens"]) == ("restart", 36.0, 7200)
    assert "away for 30 s" in fault["reason"]
    stopped = Story().steps(0, 3).tell(e.ProcessStopped("Ctrl-C")).wait(30)
    stopped.tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(2, 3)).open(4, term=2)
    assert stopped.faults == []


def restarted(story: Story) -> Story:
    return story.tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(2, 3))


def test_a_coordinator_that_dies_again_and_again_costs_the_whole_time() -> None:
    story = Story().steps(0, 3)
    for _ in range(6):
        restarted(story.wait(600)).wait(10)
        story.tell(e.PeerSeen("a.1"))
    story.open(4, term=2)
    assert [fault["kind"] for fault in story.faults] == ["restart"] * 6
    assert [fault["seconds"] for fault in story.faults] == [610.0] * 6
    assert all(fault["recovered_at"] == fault["at"] + 610 and fault["costed"] for fault in story.faults)
    assert story.lost == {"seconds": 3660.0, "tokens": 732_000}


def test_a_leader_that_dies_before_its_first_step_costs_its_time_too() -> None:
    state = RunState()

    def tell(at: float, actor: str, *events: e.Event) -> None:
        for event in events:
            apply(state, event, at, f"coordinator/{actor}")

    for actor in ("k.0", "l.0", "m.0"):
        tell(0.0, actor, e.ProcessStarted("coordinator", actor, "f" * 64, "0.1.0"))
    tell(1.0, "k.0", e.LeadershipTaken("k.0", 1, 2, 3), e.CoordinatorStarted(1, -1))
    tell(2.0, "k.0", e.PassOpened("1:0", "train", [1], 4))
    tell(6.0, "k.0", e.StepDecided(1, 0, 1.0, 5.0, 1.0, 800, [], []))
    tell(20.0, "l.0", e.LeadershipTaken("l.0", 2, 2, 3), e.CoordinatorStarted(2, 0))
    tell(40.0, "m.0", e.LeadershipTaken("m.0", 3, 2, 3), e.CoordinatorStarted(3, 0))
    tell(44.0, "m.0", e.PassOpened("3:1", "train", [1], 4))
    found = [(row["kind"], row["at"], row["seconds"]) for row in views.faults_view(state)["faults"]]
    assert found == [("failover", 20.0, 24.0), ("failover", 6.0, 14.0)]


@pytest.mark.parametrize("how", ["paused", "stopped", "finished"])
def test_a_coordinators_death_does_not_cost_the_time_of_a_later_pause(how: str) -> None:
    story = restarted(Story().steps(0, 3).wait(30)).wait(5)
    if how == "paused":
        story.tell(e.StateChanged("paused", "by Ann: moving"))
    elif how == "stopped":
        story.tell(e.ProcessStopped("Ctrl-C"))
    else:
        story.tell(e.RunFinished(3, "the organiser ended it"))
    story.wait(1000)
    if how == "stopped":
        restarted(story)
    if how != "finished":
        story.open(4, term=2)
    (fault,) = story.faults
    assert (fault["kind"], fault["seconds"], fault["recovered_at"]) == ("restart", 35.0, fault["at"] + 35)


def test_a_run_that_diverges_and_a_peer_without_memory_are_faults():
    story = Story().steps(0, 4).tell(e.RunDiverged(3, "3 steps in a row were skipped", 2, 0.5))
    story.tell(e.OutOfMemory("one.1", "Forward at microbatch 2: none", 6, 3, False))
    rows = views.faults_view(story.state)["faults"][:2]
    assert [(row["kind"], row["actor"], row["reason"]) for row in rows] == [
        ("out of memory", "one.1", "Forward at microbatch 2: none"),
        ("diverged", None, "3 steps in a row were skipped"),
    ]
    assert all(row["recovered_at"] is not None and row["word"] != row["kind"] for row in rows)


def test_a_rollback_costs_the_steps_that_are_undone():
    story = Story().steps(0, 4).tell(e.RolledBack(2, 2, "stage 1 has no state"))
    (fault,) = story.faults
    assert (fault["kind"], fault["seconds"], fault["tokens"], fault["step"]) == ("rolled back", 12.0, 2400, 2)
    assert views.run_view(story.state)["step"] == 1 and views.run_view(story.state)["tokens"] == 1600


def test_a_failover_costs_the_time_without_a_leader():
    state = RunState()

    def tell(at: float, actor: str, *events: e.Event) -> None:
        for event in events:
            apply(state, event, at, f"coordinator/{actor}")

    for actor in ("k.0", "l.0"):
        tell(0.0, actor, e.ProcessStarted("coordinator", actor, "f" * 64, "0.1.0"))
    tell(1.0, "k.0", e.LeadershipTaken("k.0", 1, 2, 3), e.CoordinatorStarted(1, -1))
    for step in range(3):
        tell(2.0 + 4 * step, "k.0", e.PassOpened(f"1:{step}", "train", [1], 4))
        tell(6.0 + 4 * step, "k.0", e.StepDecided(1, step, 1.0, 5.0, 1.0, 800, [], []))
    tell(20.0, "l.0", e.LeadershipTaken("l.0", 2, 2, 3), e.CoordinatorStarted(2, 2))
    tell(24.0, "l.0", e.PassOpened("2:3", "train", [1], 4))
    fault = views.faults_view(state)["faults"][0]
    assert (fault["kind"], fault["at"], fault["seconds"], fault["recovered_at"]) == ("failover", 14.0, 10.0, 24.0)
    assert views.run_view(state)["leader"] == "l.0"


# ---------------------------------------------------------------- what if


def open_step() -> Story:
    """Rates 3 + 1 and 2 microbatches a second; 100 tokens in each of 8 microbatches."""
    story = Story().steps(0, 0).open(1)
    return story.tell(e.PassProgress("1:1", [[4, 5, 8], [2, 2, 8]], [[[3, 4, 6], [1, 1, 2]], [[2, 2, 8]]]))


def test_the_others_of_its_stage_do_its_work_at_their_speed():
    answer = views.what_if(open_step().state, "a.1")
    assert answer is not None
    assert (answer["tokens_per_second_before"], answer["after"]) == (200.0, 100.0)
    assert (answer["microbatches_again"], answer["stage_lost"]) == (3, False)
    assert answer["seconds_again"] == pytest.approx(3 + 1 / 3)  # three whole ones, and the forward pass of one
    assert answer["step_later_s"] == pytest.approx(7 - 3)  # b does 7 microbatches' work; stage 1 takes 3 s anyhow
    assert "50 % slower" in answer["text"] and "3.3 s of work done again (3 microbatches)" in answer["text"]


def test_since_it_was_told_all_have_gone_on_at_their_rates():
    story = open_step()
    told_at = story.state.pipeline.open.progress_at
    answer = views.what_if(story.state, "a.1", told_at + 0.5)
    assert answer is not None and answer["microbatches_again"] == 4, "4.5, to the even one"
    assert answer["seconds_again"] == pytest.approx(4.5 + 1 / 3)
    late = views.what_if(story.state, "a.1", told_at + 60)
    assert late is not None and late["microbatches_again"] == 6, "no more than its share"


def test_how_long_a_forward_pass_takes_is_as_it_said():
    story = open_step().tell(e.PeerWorked("a.1", 0, "1:0", {"forward": 2.0, "backward": 2.0}))
    answer = views.what_if(story.state, "a.1")
    assert answer is not None and answer["seconds_again"] == 3.5


def test_who_does_not_limit_the_swarm_can_go():
    answer = views.what_if(open_step().state, "b.1")
    assert answer is not None and answer["after"] == 200.0 and "as fast as before" in answer["text"]
    assert answer["seconds_again"] == pytest.approx(1 / 3)
    assert answer["step_later_s"] == 0.0, "the other stage takes longer all the same"


def test_the_last_of_a_stage_stops_the_swarm():
    story = open_step()
    answer = views.what_if(story.state, "c.1")
    assert answer is not None and answer["stage_lost"] and answer["after"] == 0.0
    assert "a peer that stands by would load it" in answer["text"]
    story.tell(e.PeerLost("d.1", None, "gone"))
    answer = views.what_if(story.state, "c.1")
    assert answer is not None and "a peer would have to join" in answer["text"]


def seated(*actors: str) -> Story:
    """These are peers of one process."""
    story = open_step()
    return story.tell(*(e.PeerDescribed(actor, {"device": "cpu", "process": "cafe"}) for actor in actors))


def test_seats_of_one_process_leave_together():
    answer = views.what_if(seated("b.1", "c.1").state, "b.1")
    assert answer is not None and answer["stage_lost"] and answer["after"] == 0.0
    assert [(seat["actor"], seat["stage"]) for seat in answer["together"]] == [("c.1", 1)]
    assert answer["microbatches_again"] == 3, "one of b, two of c"
    assert "Stage 1 would have no peer" in answer["text"] and "other seats" in answer["text"]
    alone = views.what_if(seated("a.1", "d.1").state, "b.1")
    assert alone is not None and alone["together"] == [] and not alone["stage_lost"]


def test_seats_in_one_stage_leave_what_the_others_can_do():
    story = seated("b.1", "d.1").tell(e.PeerJoined("d.1", 0, "asked"))
    story.tell(e.TableChanged("1:1", 0, 1, ["a.1", "b.1", "d.1"], [3.0, 1.0, 1.0], [1.5, 1.0, 0.5], "d.1 came"))
    story.tell(e.PassProgress("1:1", [[4, 5, 8], [2, 2, 8]], [[[1, 1, 4], [1, 1, 2], [2, 2, 2]], [[2, 2, 8]]]))
    answer = views.what_if(story.state, "b.1")
    assert answer is not None and answer["after"] == 150.0 and answer["microbatches_again"] == 3
    assert answer["seconds_again"] == pytest.approx(3 / 1.5)
    assert "the 1 other peer of stage 0" in answer["text"]


def test_a_standby_of_the_same_process_takes_over_nothing():
    answer = views.what_if(seated("c.1", "d.1").state, "c.1")
    assert answer is not None and "a peer would have to join" in answer["text"]


def test_the_pipeline_links_seats_of_one_process_and_takes_no_odd_ones():
    story = seated("b.1", "c.1").tell(e.PeerDescribed("a.1", {"process": 7.0}))
    stages = views.pipeline_view(story.state)["stages"]
    linked = {cell["actor"]: cell["seat_of"] for stage in stages for cell in stage["cells"]}
    assert linked == {"a.1": None, "b.1": "cafe", "c.1": "cafe"}
    story.tell(e.PeerLost("b.1", 0, "broke"))
    cells = views.pipeline_view(story.state)["stages"][0]["cells"]
    assert [cell["seat_of"] for cell in cells] == [None, "cafe"], "also of who is gone"


def test_who_stands_by_and_who_is_not_there():
    story = open_step()
    answer = views.what_if(story.state, "d.1")
    assert answer is not None and answer["after"] == answer["tokens_per_second_before"] == 200.0
    assert views.what_if(story.state, "nobody.1") is None
    json.dumps(views.peer_view(story.state, None, "d"))


def test_what_is_said_of_a_peer_comes_true_when_it_is_killed():
    """In generated logs the rates after a kill are those of the others: the ideal is what was foreseen."""
    checked = 0
    state = RunState()
    foreseen: dict[str, Any] | None = None
    for record in generate(Shape(peers=8, stages=2, hours=0.2, step_seconds=10, kills_per_hour=120, seed=5)):
        if record["kind"] == "PeerLost":
            foreseen = views.what_if(state, record["actor"])
        apply_record(state, record, record["at"], "coordinator")
        if record["kind"] == "TableChanged" and record["number"] == 1 and foreseen is not None:
            assert views.run_view(state)["ideal_tokens_per_second"] == pytest.approx(foreseen["after"], rel=0.01)
            checked += 1
            foreseen = None
    assert checked > 5
