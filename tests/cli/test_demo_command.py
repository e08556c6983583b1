"""demo: its child processes, the moment of the kill, and the whole of it, small."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peers.demo.children import ChildDied, Children
from peers.demo.event_tail import EventTail
from peers.demo.killing import Killing, Recovery
from peers.demo.story import PROMPTS
from peers.demo.traffic import Traffic
from peers.launching.cold import Cold
from swarm import events as e

DEADLINE_S = 60.0


def until(reached, seconds=DEADLINE_S):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write(path: Path, *events: e.Event) -> None:
    log = e.EventLog(path, clock=time.time)
    for event in events:
        log.append(event)
    log.close()


# ---------------------------------------------------------------- children


def test_a_child_that_dies_is_named_with_its_last_lines(tmp_path: Path):
    with Children(Cold()) as children:
        child = children.start("reader", ["events", str(tmp_path / "none.jsonl")], tmp_path / "out.txt")
        with pytest.raises(ChildDied, match=r"(?s)reader ended with code 2.*none\.jsonl: No such file"):
            children.wait_for(lambda: False, "nothing", DEADLINE_S)
        child.expected = True
        children.check()


def test_a_child_that_can_write_no_last_line_is_explained_by_its_disk(tmp_path: Path):
    """The message of a full disk was lost on the same disk, so that the demo said `(none)`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Children(Cold()) as children:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # no file takes a byte, for the child either
        try:
            child = children.start("reader", ["events", str(tmp_path / "none.jsonl")], tmp_path / "out.txt")
            with pytest.raises(ChildDied, match=r"(?s)\(none\)\nnothing can be written in .*File too large.*free"):
                children.wait_for(lambda: False, "nothing", DEADLINE_S)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        child.expected = True


def test_what_does_not_happen_is_named(tmp_path: Path):
    with Children(Cold()) as children, pytest.raises(TimeoutError, match="the miracle did not happen within 0 s"):
        children.wait_for(lambda: False, "the miracle", 0.1)


def test_children_end_with_the_block_even_when_stopped_by_a_signal(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    write(log, e.RunPaused("x"))
    with Children(Cold()) as children:
        readers = [children.start(str(i), ["events", "-f", str(log)], tmp_path / f"{i}.txt") for i in range(2)]
        until(lambda: all(b"no step can start" in r.output.read_bytes() for r in readers))
        readers[1].send(signal.SIGSTOP)
    assert all(reader.code() is not None for reader in readers)


# ---------------------------------------------------------------- the kill


def forwarded(pass_id: str, *microbatches: int) -> list[e.Event]:
    return [e.MicrobatchForwarded(pass_id, m) for m in microbatches]


def accumulated(pass_id: str, *microbatches: int) -> list[e.Event]:
    return [e.MicrobatchAccumulated(pass_id, m) for m in microbatches]


MISSES = {
    "an early step": [*forwarded("1:2", 0, 2, 4), *accumulated("1:2", 0, 2)],
    "nothing finished": forwarded("1:3", 0, 2, 4),
    "too little finished": [*forwarded("1:3", 0, 2, 4), *accumulated("1:3", 0)],
    "nothing in hand": [*forwarded("1:3", 0, 2), *accumulated("1:3", 0, 2)],
    "already reducing": [*forwarded("1:3", 0, 2, 4), *accumulated("1:3", 0, 2), e.ReduceStarted("1:3/s1n0", [0, 2])],
    "an evaluation": forwarded("1:3+1", 0, 2, 4),
    "the rest of a step before": [*accumulated("1:2", 0, 2), *forwarded("1:3", 0, 2, 4)],
}


@pytest.mark.parametrize("events", MISSES.values(), ids=MISSES.keys())
def test_other_moments_are_left_alone(events: list[e.Event], tmp_path: Path):
    with Children(Cold()) as children:
        victim = children.start("victim", ["events", "-f", str(_log(tmp_path))], tmp_path / "out.txt")
        write(tmp_path / "victim.jsonl", *events)
        killing = Killing(victim, "abc.1", EventTail(tmp_path / "victim.jsonl"), from_step=3, share=4)
        assert not killing.poll()
        assert victim.code() is None and killing.recovery is None


def test_it_kills_once_with_work_finished_and_in_hand(tmp_path: Path):
    log = tmp_path / "victim.jsonl"
    with Children(Cold()) as children:
        victim = children.start("victim", ["events", "-f", str(_log(tmp_path))], tmp_path / "out.txt")
        killing = Killing(victim, "abc.1", EventTail(log), from_step=3, share=4)
        write(log, *forwarded("1:3", 0, 2, 4), *accumulated("1:3", 0))
        assert not killing.poll()
        write(log, *accumulated("1:3", 2))
        assert killing.poll()
        until(lambda: victim.code() == -signal.SIGKILL)
        children.check()
        assert killing.recovery is not None
        assert (killing.recovery.step, killing.recovery.finished) == (3, 2)
        assert not killing.poll()


def test_recovery_is_timed_from_the_logs_of_all():
    recovery = Recovery(step=12, actor="abc.1", at=100.0, finished=2)
    assert recovery.observe(e.FrameRecovered("1:12/b1→m3", "old.1"), 99.0) is None, "before the kill"
    assert recovery.observe(e.PeerFenced("other.1", 1, "1:12", [1], [2], "slow"), 100.1) is None
    assert "fenced 250 ms" in (recovery.observe(e.PeerFenced("abc.1", 1, "1:12", [0, 2], [4], "gone"), 100.25) or "")
    recovery.observe(e.StageAmended("1:12", 1, 1, [0, 2, 4], "fenced"), 100.26)
    assert recovery.observe(e.FrameRecovered("1:13/b1→m3", "def.1"), 100.27) is None, "another step"
    assert "first recovered frame 300 ms" in (recovery.observe(e.FrameRecovered("1:12/b1→m3", "def.1"), 100.3) or "")
    assert not recovery.complete
    recovery.observe(e.StepMeasured(12, 1.5, 1.0, 0.5, [2]), 101.5)
    assert recovery.complete and recovery.step_seconds == 1.5
    assert (recovery.finished, recovery.unfinished, recovery.moved, recovery.frames) == (2, 1, 3, 1)


def test_traffic_sums_the_last_reports(tmp_path: Path):
    early, late = e.TrafficMeasured({"activation": 5}, {}), e.TrafficMeasured({"activation": 1000, "gradient": 300}, {})
    write(tmp_path / "p1", early, late)
    write(tmp_path / "p2", late)
    write(tmp_path / "c", e.TrafficMeasured({"activation": 7, "control": 1}, {}))
    traffic = Traffic.of(tmp_path / "c", [tmp_path / "p1", tmp_path / "p2"])
    assert traffic.total == {"activation": 2007, "gradient": 600, "control": 1}
    assert traffic.per_token_and_boundary(trained=30, forwarded=10, boundaries=2) == (25.0, 10.0)


# ---------------------------------------------------------------- the whole


def test_a_stage_of_one_peer_cannot_be_killed():
    result = demo("--replicas", "1")
    assert result.returncode == 2
    assert "--no-kill" in result.stderr


@pytest.mark.swarm
def test_a_small_demo_recovers_and_equals_one_process(tmp_path: Path):
    result = demo("--dir", str(tmp_path), "--steps", "4", "--stages", "2", "--json", seconds=800)
    report = json.loads(result.stdout)
    assert report["equal"] is True
    assert report["archived"] == report["steps"] == 4
    recovery = report["recovery"]
    assert 0 < recovery["finished"] < recovery["moved"] and recovery["frames"]
    assert recovery["first_frame"] < recovery["step_seconds"] + 1
    folder = Path(report["folder"])
    assert json.loads((folder / "model" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert [text.startswith(prompt) for text, prompt in zip(report["texts"], PROMPTS, strict=True)] == [True, True]
    assert {"activation", "gradient", "reduce", "control", "bulk"} <= report["sent"].keys()
    assert report["forward_bytes"] > 0 and report["backward_bytes"] > 0
    homes = sorted(path.name for path in (folder / "homes").iterdir())
    assert homes == ["coordinator", *(f"peer-{i}" for i in range(1, 5))]
    # four steps do not learn, and the demo does not pretend that they did
    assert result.returncode == 1
    assert "is not below the unigram entropy" in result.stderr


ONE_PEER_A_STAGE = ("--stages", "2", "--replicas", "1", "--no-kill")


@pytest.mark.swarm
def test_ctrl_c_leaves_nobody_behind(tmp_path: Path):
    running = subprocess.Popen(
        [sys.executable, "-m", "peers", "demo", "--dir", str(tmp_path), *ONE_PEER_A_STAGE, "--no-check"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"SWARM_TEST": str(tmp_path)},
    )
    until(lambda: len(list(tmp_path.glob("run-1/homes/peer-*/identity.key"))) == 2, seconds=120)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=60) == 130
    until(lambda: not _descendants(f"SWARM_TEST={tmp_path}"))  # daemons notice the end of their process


def demo(*arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peers", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def _descendants(mark: str) -> list[int]:
    """Processes started with `mark` in their environment, libp2p daemons included."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def _log(folder: Path) -> Path:
    write(folder / "any.jsonl", e.RunPaused("x"))
    return folder / "any.jsonl"
