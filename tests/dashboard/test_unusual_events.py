"""The figures after rollbacks, restarts, changes of the leader, and in runs of one stage or without evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from story import Story

from peers.dashboard.history.history import History
from peers.fold import RunFacts, views
from swarm import events as e

FACTS = RunFacts("tiny", 100, 8, 800, (2, 2), ("int8", "int8"), 1_000)
"""Each of 8 microbatches crosses one boundary in both directions: 16,000 bytes of fp32 in each step."""


def run(story: Story) -> dict[str, Any]:
    return views.run_view(story.state, FACTS)


def peer(story: Story, actor: str) -> dict[str, Any]:
    return next(row for row in views.peers_view(story.state, FACTS)["peers"] if row["actor"] == actor)


def sends(story: Story, step: int) -> Story:
    """What the peers say that they sent in a step: a quarter of its bytes in fp32."""
    for actor, other, kind in (("a.1", "c.1", "forward"), ("c.1", "a.1", "backward")):
        link: dict[str, Any] = {"other": other, "sent": {kind: 2_000}}
        story.tell(e.PeerWorked(actor, 0, f"1:{step}", {"forward": 1.0}, [], {}, [link]))
    return story


def restarted(story: Story, decided: int) -> Story:
    """The coordinator dies, and starts again ten seconds later. All peers introduce themselves again."""
    story.wait(10).tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(2, decided))
    for actor, stage in (("a.1", 0), ("b.1", 0), ("c.1", 1)):
        story.tell(e.PeerSeen(actor), e.PeerJoined(actor, stage, "it came"))
    return story


def test_a_rollback_does_not_change_how_many_bytes_compression_saved() -> None:
    story = Story()
    for step in range(8):
        sends(story.steps(step, step), step)
    before = run(story)["bytes"]
    assert before["fp32"] == 8 * 16_000 and before["saved"] == pytest.approx(4.0)
    story.tell(e.RolledBack(2, 4, "it diverged"))
    assert run(story)["step"] == 3 and run(story)["bytes"] == before
    sends(story.steps(4, 4), 4)
    assert run(story)["bytes"]["saved"] == pytest.approx(4.0)


def test_steps_that_are_rolled_back_do_not_count_as_goodput() -> None:
    story = Story().steps(0, 9)
    before = run(story)["goodput"]
    story.tell(e.RolledBack(2, 5, "it diverged"))
    after = run(story)["goodput"]
    for over in ("60", "3600", "all"):
        assert after[over] == pytest.approx(before[over] / 2, rel=0.15), over


def test_a_restart_of_the_coordinator_shortens_nobodys_time() -> None:
    story = Story().steps(0, 2)
    restarted(story, 2).wait(8)
    assert peer(story, "a.1")["hours"] * 3600 == pytest.approx(0.0 + 12.0), "no event since the restart"
    story.open(3)
    (person,) = [each for each in views.people_view(story.state, FACTS)["people"] if each["peer"] == "a"]
    assert peer(story, "a.1")["hours"] == person["hours"] and person["hours"] * 3600 == pytest.approx(20.0)
    story.tell(e.PeerGone("a.1", "left: asked to")).wait(100).tell(e.PeerSeen("a.1")).wait(5).decide(3)
    assert peer(story, "a.1")["hours"] * 3600 == pytest.approx(25.0), "it was away, and came back"
    story.tell(e.PeerGone("a.1", "left: asked to"))
    assert peer(story, "a.1")["hours"] * 3600 == pytest.approx(25.0)
    assert peer(story, "a.1")["left_at"] is not None


def test_a_planned_move_ends_with_its_peer_and_with_the_coordinator() -> None:
    def planned(story: Story) -> Any:
        story.tell(e.PlannerLooked(0, [1.0, 2.0], "stage 0 is the slowest", "a.1", 0, 1, 0.5))
        return views.pipeline_view(story.state)["planned"]

    story = Story().steps(0, 2)
    assert planned(story)["actor"] == "a.1"
    restarted(story, 2)
    assert views.pipeline_view(story.state)["planned"] is None
    assert planned(story)["actor"] == "a.1"
    story.tell(e.PeerGone("a.1", "left: asked to"))
    assert views.pipeline_view(story.state)["planned"] is None


def test_without_a_leader_no_coordinator_of_a_group_leads() -> None:
    def leading(story: Story) -> list[str]:
        return [each["actor"] for each in run(story)["coordinators"] if each["leads"]]

    story = Story()
    assert leading(story) == ["k.0"], "it is alone"
    for number, actor in enumerate(("l.0", "m.0")):
        story.tell(e.ProcessStarted("coordinator", actor, "f" * 64, "0.1.0"), source=f"coordinator/{actor}")
        assert leading(story) == [], number
    story.tell(e.LeadershipTaken("l.0", 2, 2, 3), source="coordinator/l.0")
    assert leading(story) == ["l.0"]
    story.tell(e.LeadershipLost("l.0", 2, "it heard from no majority"), source="coordinator/l.0")
    assert leading(story) == []


def test_a_finished_run_that_another_coordinator_continues_is_not_finished() -> None:
    story = Story().steps(0, 2).tell(e.RunFinished(2, "all steps are decided, applied and archived"))
    assert run(story)["finished"] and run(story)["eta_s"] == 0.0
    story.wait(60).tell(e.LeadershipTaken("l.0", 3, 2, 3), source="coordinator/l.0")
    told = e.PassOpened("3:3", "train", [2, 1], 8)
    story.tell(told, source="coordinator/l.0")
    assert not run(story)["finished"] and run(story)["eta_s"] > 0.0


def test_times_of_two_coordinators_make_no_step_last_less_than_nothing() -> None:
    story = Story().steps(0, 2).open(3)
    story.at -= 50.0  # the clock of the next leader
    story.tell(e.LeadershipTaken("l.0", 3, 2, 3), source="coordinator/l.0")
    story.tell(e.StepDecided(3, 3, 1.0, 5.0, 1.0, 800, [], []), source="coordinator/l.0")
    assert story.state.work.steps[-1].seconds == 0.0 and run(story)["tokens_per_second"] is None


def test_a_peers_page_leaves_out_what_it_did_in_void_steps(tmp_path: Path) -> None:
    story: list[e.Event] = [e.ProcessStarted("coordinator", "k.0", "f" * 64, "1"), e.CoordinatorStarted(1, -1)]
    story += [e.PeerSeen("a.1"), e.PeerJoined("a.1", 0, "it came")]
    for step in range(4):
        story += [e.PassOpened(f"1:{step}", "train", [1], 8), e.PeerWorked("a.1", 0, f"1:{step}", {"forward": 1.0})]
        story += [e.StepDecided(1, step, 1.0, 5.0, 1.0, 800, [], [])]
    story += [e.RolledBack(2, 2, "it diverged")]
    lines = [json.dumps(e.to_record(event, 1000.0 + number)) for number, event in enumerate(story)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    history = History([tmp_path], tmp_path / "history.sqlite")
    while history.follow():
        pass
    assert [each["step"] for each in history.steps_of("a.1")] == [1, 0]
    history.close()


def test_a_run_of_one_stage_and_without_evaluations_has_all_its_views() -> None:
    facts = RunFacts("one", 10, 8, 800, (4,), None, 1_000)
    story = Story()
    story.tell(e.PeerGone("c.1", "left: asked to"))
    for step in range(3):
        story.tell(e.PassOpened(f"1:{step}", "train", [2], 8)).wait(4.0).decide(step)
    shown = views.run_view(story.state, facts)
    assert shown["heldout"] is None and shown["bytes"]["saved"] is None and shown["stages"] == 1
    (stage,) = views.pipeline_view(story.state, facts)["stages"]
    assert stage["codec_in"] is None and not stage["why"] and stage["cost"] == 1.0
    assert views.what_if(story.state, "a.1") is not None and views.people_view(story.state, facts)["people"]
