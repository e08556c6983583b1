"""Who falls out of the open step stays in its stage's column until that step is decided."""

from __future__ import annotations

from typing import Any

from story import Story

from peers.fold import views
from swarm import events as e


def column(story: Story, stage: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = views.pipeline_view(story.state)["stages"][stage]
    return found


def cells(story: Story, stage: int = 0) -> list[tuple[str, str, str, bool]]:
    return [(cell["actor"], cell["symbol"], cell["word"], cell["out"]) for cell in column(story, stage)["cells"]]


def amended(story: Story, pass_id: str = "1:3", roster: tuple[str, ...] = ("a.1",)) -> None:
    ones = [1.0] * len(roster)
    story.tell(e.TableChanged(pass_id, 0, 1, list(roster), ones, ones, "b.1 is fenced: silent"))


def killed(story: Story, pass_id: str = "1:3") -> Story:
    story.tell(e.PeerFenced("b.1", 0, pass_id, [0], [1], "silent"))
    amended(story, pass_id)
    return story.tell(e.PeerLost("b.1", 0, "its connection broke"))


def test_a_killed_peer_is_shown_as_gone_until_the_step_is_decided() -> None:
    story = killed(Story().steps(0, 2).open(3))
    assert cells(story) == [("a.1", "●", "working", False), ("b.1", "✕", "gone", True)]
    assert column(story)["total"] == 2 and column(story)["cells"][1]["left"] is None
    story.tell(e.PassProgress("1:3", [[1, 1, 8], [1, 1, 8]], [[[1, 1, 8]], [[1, 1, 8]]]))
    assert [cell["done"] for cell in column(story)["cells"]] == [1, None], "shares are by the new table"
    story.decide(3)
    assert cells(story) == [("a.1", "●", "working", False)]
    story.open(4)
    assert len(cells(story)) == 1


def test_a_fenced_peer_that_is_still_there_is_shown_as_fenced() -> None:
    story = Story().steps(0, 2).open(3).tell(e.PeerFenced("b.1", 0, "1:3", [0], [1], "silent"))
    amended(story)
    story.tell(e.PeerJoined("b.1", None, "it stands by"))  # no stage of its own is needed to be shown
    assert ("b.1", "✕", "fenced", True) in cells(story)
    story.decide(3)
    assert [cell[0] for cell in cells(story)] == ["a.1"]


def test_another_attempt_of_the_step_still_shows_who_the_first_has_lost() -> None:
    story = killed(Story().steps(0, 2).open(3)).tell(e.StepAborted("1:3", 2, "gave up"))
    assert ("b.1", "✕", "gone", True) in cells(story)
    amended(story, "2:3")  # told before the second attempt opens
    story.open(3, term=2)
    assert ("b.1", "✕", "gone", True) in cells(story)
    story.decide(3).open(4, term=2)
    assert [cell[0] for cell in cells(story)] == ["a.1"]


def test_the_last_of_a_stage_that_was_fenced_is_shown_in_the_attempt_without_it() -> None:
    story = Story().steps(0, 2).open(3).tell(e.PeerFenced("c.1", 1, "1:3", [], [], "silent"))
    story.tell(e.PeerLost("c.1", 1, "broke"), e.StepAborted("1:3", 2, "stage 1 lost its last replica"))
    story.tell(e.PeerJoined("d.1", 1, "fills in"), e.TableChanged("2:3", 1, 0, ["d.1"], [1.0], [2.0], "opens"))
    story.open(3, term=2)
    assert [(cell[0], cell[2]) for cell in cells(story, 1)] == [("d.1", "working"), ("c.1", "gone")]


def test_who_comes_back_into_the_table_is_not_out_of_it() -> None:
    story = killed(Story().steps(0, 2).open(3)).tell(e.PeerSeen("b.1"), e.PeerJoined("b.1", 0, "is back"))
    amended(story, roster=("a.1", "b.1"))
    assert [(cell[0], cell[3]) for cell in cells(story)] == [("a.1", False), ("b.1", False)]


def test_who_said_goodbye_in_the_middle_is_no_fault() -> None:
    story = Story().steps(0, 2).open(3)
    amended(story)
    story.tell(e.PeerLost("b.1", 0, "left: asked to"))
    assert ("b.1", "○", "left", True) in cells(story)


def test_who_left_between_two_steps_is_not_of_the_next() -> None:
    story = Story().steps(0, 2).tell(e.PeerLost("b.1", 0, "broke"))
    amended(story)  # told as step 3 opens
    story.open(3)
    assert [cell[0] for cell in cells(story)] == ["a.1"]


def test_a_coordinator_that_starts_again_knows_nothing_of_the_step_before() -> None:
    story = killed(Story().steps(0, 2).open(3))
    story.tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(2, 2))
    assert cells(story) == []
