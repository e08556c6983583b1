"""The fold: bounded, total, the same in parts as in one go, and exactly kept in a snapshot."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from story import Story

from benchmarks.generated_log import Shape, generate
from peers.dashboard.metrics import metrics_text
from peers.fold import RunState, apply, apply_record, views
from peers.fold import faults as fold_faults
from peers.fold import members as fold_members
from peers.fold.apply import CORE, HANDLERS, IGNORED
from peers.fold.reading import Record
from peers.fold.state import FORMAT
from swarm import events as e

LOG = list(generate(Shape(peers=9, stages=3, hours=0.05, step_seconds=20, kills_per_hour=90, spans=True, seed=7)))
KINDS = sorted({cls.__name__ for cls in e.Event.__subclasses__()})


def folded(records: list[Record], state: RunState | None = None) -> RunState:
    state = state or RunState()
    for record in records:
        apply_record(state, record, record["at"], "coordinator")
    return state


def through_text(state: RunState) -> RunState:
    return RunState.from_lines(list(state.to_lines()))


def all_views(state: RunState) -> list[dict[str, Any] | None]:
    shown: list[dict[str, Any] | None] = [
        views.run_view(state),
        views.pipeline_view(state),
        views.peers_view(state, sort="-tokens"),
        views.links_view(state),
        views.faults_view(state),
        views.people_view(state),
        views.checkpoints_view(state),
        views.samples_view(state),
        views.status_view(state),
    ]
    for actor in [*list(state.members.here)[:3], *list(state.members.gone)[:3]]:
        shown += [views.peer_view(state, None, actor), views.what_if(state, actor)]
    return shown


def test_every_kind_of_event_is_handled_or_ignored_on_purpose():
    assert set(HANDLERS) | IGNORED == set(KINDS)
    assert not set(HANDLERS) & IGNORED
    assert set(HANDLERS) >= CORE


def test_the_generated_log_says_what_events_say():
    """Else the tests that stand on it would prove nothing."""
    assert len(LOG) > 100
    for record in LOG:
        event = e.from_record(record)
        assert event is not None
        assert set(e.to_record(event, record["at"])) >= set(record)
    assert folded(LOG).malformed == 0


def test_events_and_records_are_one():
    by_record, by_event = folded(LOG), RunState()
    for record in LOG:
        event = e.from_record(record)
        assert event is not None
        apply(by_event, event, record["at"], "coordinator")
    assert by_event == by_record


@settings(max_examples=20, deadline=None)
@given(st.integers(0, len(LOG)))
def test_a_snapshot_in_between_changes_nothing(cut: int):
    first = folded(LOG[:cut])
    again = through_text(first)
    assert again == first
    assert folded(LOG[cut:], again) == folded(LOG)
    json.dumps(all_views(again), allow_nan=False)


def test_the_lines_of_a_snapshot_are_short():
    """So that a state of ten thousand peers is read in little memory."""
    state = folded(LOG)
    assert len(state.members.here) > 2
    by_member = [line for line in state.to_lines() if line.startswith('[["members","here",')]
    assert len(by_member) == len(state.members.here)


WHOLE = list(folded(LOG[:50]).to_lines())


@pytest.mark.parametrize(
    "lines",
    [
        [json.dumps({"format": FORMAT + 1}), *WHOLE[1:]],
        WHOLE[:1],
        WHOLE[:-1],
        [*WHOLE, json.dumps([["run", "no_such_field"], 1])],
        [*WHOLE, json.dumps([["run"], None])],
        [*WHOLE, json.dumps([[], None])],
        [*WHOLE, "{}"],
        [*WHOLE, "torn"],
        [],
    ],
    ids=["format", "head alone", "a line short", "a field more", "no part", "no path", "no pair", "torn", "empty"],
)
def test_a_snapshot_of_another_release_is_refused(lines: list[str]):
    with pytest.raises(ValueError):
        RunState.from_lines(lines)


# ---------------------------------------------------------------- what nobody should say

ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["a.1", "b.2", "1:0", "1:3+1", "1:99999999999999999999", "train", "paused", 10**30, -1, "x" * 9000]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
HOSTILE = st.sampled_from(e.Event.__subclasses__()).flatmap(
    lambda cls: st.fixed_dictionaries(
        {"kind": st.just(cls.__name__)} | {name: ODD for name in cls.__dataclass_fields__}
    )
)
SOURCES = ["coordinator", "a.1", "coordinator/b.0"]
TRUE = st.sampled_from(LOG)
"""Hostile ones among true ones reach states that they alone do not."""


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            HOSTILE | TRUE,
            st.floats() | st.just(1_790_000_000.0),
            st.sampled_from(["coordinator", "a.1", "coordinator/b.0"]),
        ),
        max_size=30,
    )
)
def test_no_event_breaks_it(told: list[tuple[Record, float, str]]):
    state = RunState()
    for record, at, source in told:
        apply_record(state, record, at, source)
    all_views(state)
    assert list(through_text(state).to_lines()) == list(state.to_lines())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_true_event_with_one_odd_field_breaks_nothing(data: st.DataObject):
    state = RunState()
    for record in LOG[: data.draw(st.integers(0, 150))]:
        apply_record(state, record, record["at"], "coordinator")
    for _ in range(10):
        record = dict(data.draw(TRUE))
        record[data.draw(st.sampled_from(sorted(record)))] = data.draw(ODD)
        apply_record(state, record, 1_790_000_500.0, "coordinator")
    json.dumps(all_views(state), allow_nan=False)


def test_memory_has_an_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fold_members, "MOST_MEMBERS", 50)
    monkeypatch.setattr(fold_members, "MOST_GONE", 50)
    monkeypatch.setattr(fold_faults, "MOST_FAULTS", 20)

    def flood(rounds: int) -> int:
        state = RunState()
        started = e.ProcessStarted("coordinator", "c.0", "f" * 64, "0.1.0")
        apply(state, started, 0.0, "coordinator")
        apply(state, e.PassOpened("1:0", "train", [1], 4), 0.0, "coordinator")
        for number in range(rounds):
            actor = f"p{number}.1"
            apply(state, e.PeerSeen(actor), float(number), "coordinator")
            apply(state, e.PeerJoined(actor, 0, "x" * 9999), float(number), "coordinator")
            apply(state, e.PeerDescribed(actor, {f"key{n}": "y" * 999 for n in range(99)}), 1.0, "coordinator")
            links = [{"other": f"p{n}.1", "rate": 1.0, "sent": {"forward": 1, "made up": 1}} for n in range(32)]
            apply(state, e.PeerWorked(actor, 0, "1:0", {"forward": 1.0, "odd": 1.0}, [], {}, links), 1.0, "coordinator")
            apply(state, e.PeerFenced(actor, 0, "1:0", [1], [2], "silent" * 999), float(number), "coordinator")
            if number % 2:
                apply(state, e.PeerLost(actor, 0, "gone"), float(number), "coordinator")
            apply(state, e.Sampled(number, "a" * 99999, "b" * 99999), float(number), "coordinator")
            apply(state, e.ControlRefused("c" * 60, "v" * 9999, "b" * 9999, "r" * 9999), float(number), "coordinator")
            apply(state, e.Evaluated(number, 1.0, 1), float(number), "coordinator")
            apply(state, e.CheckpointArchived(number, ["d"]), float(number), "coordinator")
            apply(state, e.StepDecided(1, number, 1.0, 1.0, 1.0, 1, [], []), float(number), "coordinator")
        people = state.people.by_peer
        assert len(people) == rounds  # bounded by MOST_PEOPLE, which a test would take long to reach
        people.clear()
        return sum(map(len, state.to_lines()))

    assert flood(600) < 1.05 * flood(300)


def test_a_made_up_stage_does_not_take_memory_for_all_below_it():
    state = RunState()
    apply(state, e.TableChanged("1:0", 4000, 0, [], [], [], ""), 0.0, "coordinator")
    assert len(state.pipeline.stages) == 0 and state.malformed == 1


def test_a_paused_peer_is_shown_with_its_reason_until_it_goes_on() -> None:
    state = RunState()
    for at, event in enumerate((e.CoordinatorStarted(1, -1), e.PeerSeen("A.1"), e.PeerJoined("A.1", 0, "first"))):
        apply(state, event, float(at), "coordinator")
    apply(state, e.PeerPaused("A.1", 0, "83 °C (limit 80)"), 4.0, "coordinator")
    (row,) = views.peers_view(state)["peers"]
    assert (row["word"], row["why"], row["symbol"]) == ("paused", "83 °C (limit 80)", "⏸")
    apply(state, e.PeerResumed("A.1", 0, "83 °C (limit 80)"), 5.0, "coordinator")
    (row,) = views.peers_view(state)["peers"]
    assert (row["word"], row["why"]) == ("joining", "")


def test_a_peer_that_gets_no_state_is_shown_with_its_trouble_until_it_works() -> None:
    state = RunState()
    trouble = "the state of stage 0 at version 3 cannot be loaded: No space left on device"
    told = (
        e.CoordinatorStarted(1, -1),
        e.PeerSeen("A.1"),
        e.PeerJoined("A.1", 0, "fills it"),
        e.PeerTroubled("A.1", 0, trouble),
    )
    for at, event in enumerate(told):
        apply(state, event, float(at), "coordinator")
    (row,) = views.peers_view(state)["peers"]
    assert (row["word"], row["why"]) == ("joining", trouble)
    shown = views.peer_view(state, None, "A.1")
    assert shown is not None and shown["history"][-1]["text"] == f"reports: {trouble}"
    assert state.run.trouble == f"A.1 (stage 0) reports: {trouble}"
    state.members.here["A.1"].worked = True
    assert views.peers_view(state)["peers"][0]["why"] == ""


def test_the_status_of_a_paused_peer_says_why() -> None:
    state = RunState()
    told = (
        e.ProcessStarted("peer", "A.1", "run", "1", None),
        e.PeerJoined("A.1", 0, "holds version 0"),
        e.PeerPaused("A.1", 0, "83 °C (limit 80)"),
    )
    for at, event in enumerate(told):
        apply(state, event, float(at), "A.1")
    assert views.status_view(state)["doing"] == "paused: 83 °C (limit 80)"
    apply(state, e.PeerResumed("A.1", 0, "83 °C (limit 80)"), 5.0, "A.1")
    assert views.status_view(state)["doing"] == "training stage 0"


def test_a_step_that_a_rollback_repeats_begins_anew() -> None:
    story = Story().steps(0, 1).wait(900).tell(e.RolledBack(2, 1, "stage 1 has no state"))
    story.open(1, term=2).wait(4).decide(1)
    assert [step.seconds for step in story.state.work.steps] == [4.0, 4.0]


def test_the_goodput_leaves_out_the_first_step_in_every_window() -> None:
    """The time of the first step is not counted as possible, since the tokens of a step are unknown before it."""
    story = Story().steps(0, 1)
    assert story.state.work.possible == 800.0
    assert views.run_view(story.state)["goodput"] == pytest.approx({"60": 1.0, "3600": 1.0, "all": 1.0})


def goodput(story: Story, after: float = 0.0) -> dict[str, float | None]:
    found: dict[str, float | None] = views.run_view(story.state, now=story.at + after)["goodput"]
    return found


def progress(step: int, done: int) -> e.PassProgress:
    return e.PassProgress(f"1:{step}", [[done, done, 8]] * 2)


@pytest.mark.parametrize("reports", [True, False])
def test_the_goodput_falls_during_a_standstill(reports: bool) -> None:
    """200 tokens/s are possible, and each step trains 800 in 4 s."""
    story = Story().steps(0, 30).open(31).wait(1).tell(progress(31, 1))
    before, lines = goodput(story), list(story.state.to_lines())
    assert before["60"] == pytest.approx(1.0, rel=0.05)
    if reports:
        for _ in range(360):
            story.wait(10).tell(progress(31, 1))
        assert goodput(story)["60"] == pytest.approx(0.0, abs=0.01)
    else:
        found = [goodput(story, after)["60"] for after in (0, 20, 40, 3600)]
        assert found == [pytest.approx(share, abs=0.12) for share in (1.0, 2 / 3, 1 / 3, 0.0)]
        assert goodput(story, 3600)["3600"] < 0.1 and goodput(story, 3600)["all"] == pytest.approx(4 / 124, abs=0.01)
        assert list(story.state.to_lines()) == lines, "a question changes nothing"


def test_the_goodput_includes_what_is_done_of_a_long_step() -> None:
    story = Story().tell(e.TableChanged("1:0", 0, 0, ["a.1"], [1.0], [0.04], "opens"))  # 200 s for a step
    for step in range(3):
        story.open(step).wait(200).decide(step)
    story.open(3)
    for done in range(1, 8):
        story.wait(25).tell(progress(3, done))
        assert goodput(story)["60"] == pytest.approx(1.0, rel=0.1)
    story.wait(25).decide(3)
    assert goodput(story)["60"] == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("idle", ["paused", "stage 0 has no peer"])
def test_there_is_no_goodput_while_nothing_is_possible(idle: str) -> None:
    story = Story().steps(0, 9)
    if idle == "paused":
        story.tell(e.StateChanged("paused", "by Ann"))
    else:
        story.tell(e.PeerLost("a.1", 0, "broke"), e.TableChanged("1:9", 0, 1, [], [], [], "they left"))
    found = goodput(story, 120)
    assert found["60"] is None and found["3600"] == pytest.approx(1.0, rel=0.05)


def test_the_last_minute_of_a_finished_run_is_that_before_its_end() -> None:
    story = Story().steps(0, 9).tell(e.RunFinished(9, "all steps are decided, applied and archived"))
    assert goodput(story, 3600)["60"] == goodput(story)["60"] == pytest.approx(1.0, rel=0.05)


def test_in_a_finished_run_that_goes_on_a_lost_peer_is_lost_and_one_that_left_has_left() -> None:
    story = Story().steps(0, 0).tell(e.RunFinished(0, "all steps are decided, applied and archived")).wait(1)
    story.tell(e.PeerGone("a.1", "the run is over: its connection broke"), e.ProcessStopped("the run is finished"))
    story.wait(60).tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(2, 0))
    story.tell(e.PeerSeen("e.1"), e.PeerJoined("e.1", 0, "it came")).wait(9).tell(e.PeerLost("e.1", 0, "broke"))
    words = {row["actor"]: row["word"] for row in views.peers_view(story.state)["peers"]}
    assert words == {"a.1": "left", "b.1": "left", "c.1": "left", "d.1": "left", "e.1": "lost"}


def test_a_run_that_is_extended_forgets_the_links_of_processes_that_have_ended() -> None:
    """After the end of a run, the links stay as they were then, until the run goes on."""
    story = Story().steps(0, 0)
    for start in (1, 2, 3):
        for sender, receiver in (("a", "c"), ("c", "a")):
            link = {"other": f"{receiver}.{start}", "rate": 1e6, "sent": {"forward": 1000}}
            story.tell(e.PeerWorked(f"{sender}.{start}", 0, f"1:{start}", {"forward": 1.0}, [], links=[link]))
        story.tell(e.RunFinished(start, "all steps are decided")).tell(e.PeerLost(f"c.{start}", 1, "the run is over"))
        story.tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(1, start))
        for actor, stage in (("a", 0), ("c", 1)):
            story.tell(e.PeerSeen(f"{actor}.{start + 1}"), e.PeerJoined(f"{actor}.{start + 1}", stage, "it came"))
        assert views.links_view(story.state)["total"] == story.state.links.number == 2
        story.open(start + 1)
        assert views.links_view(story.state)["total"] == story.state.links.number == 0
    assert views.run_view(story.state)["bytes"]["sent"] == 6000, "the totals stay"


@pytest.mark.parametrize("back", [e.RolledBack(2, 3, "it diverged"), e.CoordinatorStarted(2, 2)])
def test_the_results_of_a_void_version_are_forgotten(back: e.Event) -> None:
    story = Story().steps(0, 5)
    for version in (3, 5):
        story.tell(e.Evaluated(version, float(version), 100), e.Sampled(version, "Once", " upon a time"))
    story.tell(back)
    assert views.run_view(story.state)["heldout"]["version"] == 3
    assert [sample["version"] for sample in views.samples_view(story.state)["samples"]] == [3]


def test_a_rollback_does_not_lower_the_counter_of_tokens() -> None:
    def counted() -> bool:
        text = metrics_text(views.run_view(story.state), views.pipeline_view(story.state), 0).decode()
        return f"swarm_peer_tokens_total {800.0 * decided}\n" in text

    story, decided = Story().steps(0, 5), 6
    assert counted()
    story.tell(e.RolledBack(2, 3, "it diverged"))
    assert counted()
    story.steps(3, 3)
    decided = 7
    assert counted()


@pytest.mark.parametrize("stopped", [True, False])
def test_nobody_gains_hours_while_the_coordinator_is_away(stopped: bool) -> None:
    story = Story().wait(3600)
    story.tell(e.ProcessStopped("Ctrl-C") if stopped else e.PassOpened("1:0", "train", [2, 1], 8)).wait(60 * 3600)
    story.tell(e.ProcessStarted("coordinator", "k.0", "f" * 64, "0.1.0"), e.CoordinatorStarted(2, -1)).wait(3600)
    story.tell(e.PeerSeen("a.1"), e.PeerJoined("a.1", 0, "came back")).wait(3600).open(0, term=2)
    hours = {person["peer"]: person["hours"] for person in views.people_view(story.state)["people"]}
    assert hours == {"a": 2.0, "b": 1.0, "c": 1.0, "d": 1.0}
