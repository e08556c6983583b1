"""status: a home's log, folded."""

import json
import time
from pathlib import Path

import pytest

from peers import cli
from peers.fold import RunState, apply
from peers.fold.views import status_view
from peers.run.home import Home
from swarm import events as e

LOG = [
    e.ProcessStarted("coordinator", "abc.1", "f" * 64, "0.1.0"),
    e.CoordinatorStarted(1, -1),
    e.PassOpened("1:0", "train", [2, 2]),
    e.PeerFenced("abc.1", 0, "1:0", [1], [2], "silent"),
    e.StepDecided(1, 0, 0.5, 8.25, 1.5, 8192, [], []),
    e.StepMeasured(0, 2.0, 4096.0, 0.75, [1, 2]),
    e.Evaluated(1, 7.5, 100),
    e.CheckpointArchived(1, ["a", "b"]),
    e.PassOpened("1:1", "train", [1, 2]),
]


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    code = caught.value.code
    assert isinstance(code, int)
    return code


def write(home: Path, *events: e.Event) -> None:
    log = e.EventLog(Home(home).events, clock=lambda: 100.0)
    for event in events:
        log.append(event)
    log.close()


def test_a_running_coordinator(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, *LOG)
    with Home.open(tmp_path):
        assert exit_code("status", "--home", str(tmp_path), "--json") == 0
        status = json.loads(capsys.readouterr().out)
        assert exit_code("status", "--home", str(tmp_path)) == 0
        words = capsys.readouterr().out
    assert status["running"] and status["doing"] == "training, pass 1:1"
    assert (status["state"], status["reason"]) == ("training", "")
    assert (status["step"], status["loss"], status["replicas"], status["archived"]) == (0, 8.25, [1, 2], 1)
    assert "silent" in status["trouble"]["text"]
    for part in ("training, pass 1:1", "coordinator abc.1", "8.2500", "1·2", "is fenced: silent", "version 1 complete"):
        assert part in words


def test_a_process_that_died_is_told_from_one_that_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "dead", *LOG)
    write(tmp_path / "done", *LOG, e.ProcessStopped("Ctrl-C"))
    assert exit_code("status", "--home", str(tmp_path / "dead"), "--json") == 0
    dead = json.loads(capsys.readouterr().out)
    assert not dead["running"] and dead["doing"].startswith("not running: it died")
    assert exit_code("status", "--home", str(tmp_path / "done"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["doing"] == "stopped: Ctrl-C"


def test_a_hash_and_a_trouble_are_not_cut_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    why = "no step can start: " + "stage 0 has no peer, " * 8
    write(tmp_path, e.ProcessStarted("coordinator", "abc.1", "f" * 64, "0.1"), e.RunPaused(why))
    assert exit_code("status", "--home", str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "f" * 64 in said and why.strip() in said and "…" not in said


def test_a_restart_clears_the_stop():
    state = RunState()
    for event in (*LOG, e.ProcessStopped("x")):
        apply(state, event, 0.0, "coordinator")
    assert status_view(state)["stopped"]
    apply(state, LOG[0], 0.0, "coordinator")
    assert not status_view(state)["stopped"] and status_view(state)["doing"] == "starting"


def test_an_empty_home_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert exit_code("status", "--home", str(tmp_path)) == 2
    assert "no event log in" in capsys.readouterr().err


def test_a_limit_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, e.ProcessStarted("peer", "abc.1", "f" * 64, "0.1.0", 2_500_000))
    assert exit_code("status", "--home", str(tmp_path)) == 0
    assert "upload limit  20.0 Mbit/s" in capsys.readouterr().out
    assert exit_code("status", "--home", str(tmp_path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["max_rate"] == 2_500_000
    assert e.ProcessStarted("peer", "abc.1", "f" * 64, "0.1.0", 2_500_000).describe().endswith("at most 20.0 Mbit/s")


def test_of_several_coordinators_each_says_who_leads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def said(*events: e.Event) -> str:
        home = tmp_path / str(len(events))
        write(home, *events)
        assert exit_code("status", "--home", str(home)) == 0
        return " ".join(capsys.readouterr().out.split())

    leads = (*LOG, e.LeadershipTaken("abc.1", 1, 3, 3))
    assert "leader this coordinator" in said(*leads)
    lost = (*leads, e.LeadershipLost("abc.1", 1, "heard from 0 of 2 other members"))
    assert "heard from 0 of 2" in said(*lost) and "leader this" not in said(*lost, e.RunPaused("x"))
    follows = (*lost, e.LeaderFollowed("def.0", 2), e.DecisionRecorded(2, 5, "def.0"))
    words = said(*follows)
    assert "leader def.0" in words and "last step 6" in words and "standing by: another coordinator leads" in words
    alone = said(*follows, e.MajorityMissing(1, 2, "1 of 3 coordinators can be reached; a decision needs 2"))
    assert "nothing can be decided: 1 of 3" in alone and "leader" not in alone.split("last trouble")[0]


def test_contributions_are_tokens_by_the_layers_of_a_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tables = [
        e.TableChanged("1:0", 0, 0, ["abc.1", "def.1"], [1.0, 1.0], [1.0, 1.0], "opens"),
        e.TableChanged("1:0", 1, 0, ["ghi.1"], [1.0], [1.0], "opens"),
    ]
    joined = [e.PeerSeen("abc.1"), e.PeerSeen("def.1"), e.PeerSeen("ghi.1")]
    opened = e.PassOpened("1:0", "train", [2, 1], 4)
    decided = e.StepDecided(1, 0, 0.5, 8.25, 1.5, 8000, [], [], assignments=[[0, 0, 0, 1], [0, 0, 0, 0]])
    write(tmp_path, LOG[0], *joined, *tables, opened, decided)
    assert exit_code("status", "--home", str(tmp_path), "--contributions", "--json") == 0
    people = json.loads(capsys.readouterr().out)["people"]
    assert {each["peer"]: each["tokens_layers"] for each in people} == {"ghi": 4000, "abc": 3000, "def": 1000}
    assert exit_code("status", "--home", str(tmp_path), "--contributions") == 0
    words = capsys.readouterr().out
    assert "50.0 %" in words and "share of the layers" in words


def test_a_follower_tells_what_was_given_to_the_leader(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    leads = e.LeadershipTaken("abc.1", 1, 2, 3)
    write(tmp_path / "leader", LOG[0], leads, e.PeerSeen("abc.1"), e.PeerSeen("def.1"))
    write(tmp_path / "follower", e.ProcessStarted("coordinator", "xyz.0", "f" * 64, "0.1.0"))
    (tmp_path / "follower" / "mirrors").mkdir()
    (tmp_path / "leader" / "events.jsonl").rename(tmp_path / "follower" / "mirrors" / "abc.jsonl")
    assert exit_code("status", "--home", str(tmp_path / "follower"), "--contributions", "--json") == 0
    assert {each["peer"] for each in json.loads(capsys.readouterr().out)["people"]} == {"abc", "def"}


def test_an_event_from_before_the_clock_was_set_back_is_not_of_this_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`0 s ago` for a whole day hid that the process had logged nothing since."""
    log = e.EventLog(Home(tmp_path).events, clock=lambda: time.time() + 86_400.0)
    log.append(LOG[0])
    log.close()
    assert exit_code("status", "--home", str(tmp_path)) == 0
    assert "which is yet to come: this machine's clock was set back" in " ".join(capsys.readouterr().out.split())
