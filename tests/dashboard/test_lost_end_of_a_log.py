"""A leader dies before the end of its log has reached the others: what they have recorded fills the gap."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peers.dashboard.history.history import History
from peers.fold import RunState, apply_record, views
from swarm import events as e

LEADER, FOLLOWER = "k.0", "l.0"


class Group:
    """`k.0` leads, `l.0` follows it; each writes a log of its own."""

    def __init__(self) -> None:
        self.at = 100.0
        self.logs: dict[str, list[dict[str, object]]] = {LEADER: [], FOLLOWER: []}
        for actor in (LEADER, FOLLOWER):
            self.tell(actor, e.ProcessStarted("coordinator", actor, "f" * 64, "0.1.0"))
        self.tell(LEADER, e.LeadershipTaken(LEADER, 1, 2, 3), e.CoordinatorStarted(1, -1))
        self.tell(FOLLOWER, e.LeaderFollowed(LEADER, 1))

    def tell(self, actor: str, *events: e.Event) -> None:
        for event in events:
            self.at += 1.0
            self.logs[actor].append(e.to_record(event, self.at))

    def decide(self, step: int, leader: str, other: str, term: int = 1) -> None:
        loss = 9.0 - step
        self.tell(leader, e.PassOpened(f"{term}:{step}", "train", [1], 4))
        self.tell(other, e.DecisionRecorded(term, step, leader, 1.0, loss, 0.5, 800))
        self.tell(leader, e.StepDecided(term, step, 1.0, loss, 0.5, 800, [], []))

    def story(self) -> int:
        """Three steps of the first leader, then two of the second; returns how much of the first log is there."""
        for step in range(3):
            self.decide(step, LEADER, FOLLOWER)
        there = len(self.logs[LEADER]) - 1
        self.tell(FOLLOWER, e.LeadershipTaken(FOLLOWER, 2, 2, 3), e.CoordinatorStarted(2, 2))
        for step in (3, 4):
            self.decide(step, FOLLOWER, LEADER, term=2)
        del self.logs[LEADER][there + 1 :]  # it is dead
        return there


def folded(*logs: tuple[str, list[dict[str, object]]]) -> RunState:
    state, lines = RunState(), [(record["at"], source, record) for source, log in logs for record in log]
    for at, source, record in sorted(lines, key=lambda line: float(str(line[0]))):
        apply_record(state, record, at, f"coordinator/{source}")  # type: ignore[arg-type]
    return state


def losses(state: RunState) -> list[tuple[int, float | None]]:
    return [(step.step, step.loss) for step in state.work.steps]


WHOLE = [(step, 9.0 - step) for step in range(5)]


def test_the_gap_is_filled_when_another_one_leads() -> None:
    group = Group()
    there = group.story()
    state = folded((LEADER, group.logs[LEADER][:there]), (FOLLOWER, group.logs[FOLLOWER]))
    assert losses(state) == WHOLE and state.work.tokens == 5 * 800
    assert views.run_view(state)["step"] == 4 and state.malformed == 0


def test_what_the_leaders_own_log_tells_counts_once() -> None:
    group = Group()
    group.story()
    state = folded((LEADER, group.logs[LEADER]), (FOLLOWER, group.logs[FOLLOWER]))
    assert losses(state) == WHOLE and state.work.tokens == 5 * 800
    assert state.work.steps[2].opened_at is not None and state.people.undone == 0


@pytest.mark.parametrize("told", [True, False])
def test_the_end_of_the_log_may_come_late(told: bool) -> None:
    """When its machine is there again. `told`: the others have recorded it."""
    group = Group()
    there = group.story()
    late, follower = group.logs[LEADER][there:], group.logs[FOLLOWER]
    if not told:  # as a release before ours does
        follower = [record for record in follower if record["kind"] != "DecisionRecorded"]
    state = folded((LEADER, group.logs[LEADER][:there]), (FOLLOWER, follower))
    for record in late:
        apply_record(state, record, float(str(record["at"])), f"coordinator/{LEADER}")
    assert losses(state) == WHOLE and state.work.tokens == 5 * 800 and state.run.step == 4
    assert state.people.undone == 0


def test_a_decision_that_a_rollback_has_undone_does_not_come_back() -> None:
    group = Group()
    group.story()
    group.tell(FOLLOWER, e.RolledBack(2, 3, "stage 1 has no state"), e.CoordinatorStarted(3, 1))
    state = folded((LEADER, group.logs[LEADER][:-1]), (FOLLOWER, group.logs[FOLLOWER]))
    late = group.logs[LEADER][-1]
    apply_record(state, late, float(str(late["at"])), f"coordinator/{LEADER}")
    assert losses(state) == WHOLE[:2] and state.run.step == 1


def test_the_log_of_one_who_follows_tells_of_all_steps() -> None:
    group = Group()
    group.story()
    state = folded((FOLLOWER, group.logs[FOLLOWER]))
    assert losses(state) == WHOLE and state.run.step == 4


def test_the_curve_of_the_history_has_no_gap(tmp_path: Path) -> None:
    group = Group()
    there = group.story()
    home = tmp_path / "home"
    (home / "mirrors").mkdir(parents=True)
    for path, log in (
        (home / "events.jsonl", group.logs[FOLLOWER]),
        (home / "mirrors" / "k.jsonl", group.logs[LEADER]),
    ):
        whole = log if path.name == "events.jsonl" else log[:there]
        path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in whole))
    history = History([home], tmp_path / "history.sqlite")
    while history.follow():
        pass
    assert history.series("loss", *history.span, 1000)["last"] == [loss for _, loss in WHOLE]
    assert [step["step"] for step in history.timeline(0, 9)["steps"]] == [0, 1, 2, 3, 4]
    history.close()
