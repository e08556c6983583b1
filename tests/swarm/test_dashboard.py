"""A coordinator's dashboard: whatever happens to it, the swarm's result is that of one machine, and it comes back."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from conftest import MakeSwarm
from served_dashboard import Dashboard, dashboard
from swarm_processes import DEADLINE_S, Process, Swarm

from swarm.events import Evaluated, StepDecided

pytestmark = pytest.mark.swarm

Reference = Callable[[Swarm], tuple[str, ...]]
PEERS = ("p0", "p1")


def _address(process: Process) -> str:
    """As the process has printed it last, token and all. Empty: it has not."""
    if not process.output.exists():
        return ""
    found = re.findall(r"dashboard: (http://\S+)", process.output.read_text(errors="replace"))
    return found[-1] if found else ""


def _get(address: str, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"{address.partition('#')[0]}api/v1/{path}", timeout=10) as answer:
            return json.loads(answer.read())
    except (urllib.error.URLError, OSError):
        return None


def _child(process: Process) -> psutil.Process | None:
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it was killed, and nobody has waited for it yet
            if "--companion" in child.cmdline():
                return child
    return None


def _wait(done: Callable[[], Any], what: str, seconds: float = DEADLINE_S) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def test_training_does_not_notice_what_happens_to_it(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("none", "run.steps=8", "swarm.replicas=1")
    coordinator = swarm.coordinator
    swarm.coordinate("--dashboard=127.0.0.1:0")
    for name in PEERS:  # a single one that goes on would take up the other's stage, and end the run
        swarm.join(name, "--fault=stop@StepApplied:2")
    coordinator.wait_for(StepDecided, 1)
    address = _wait(lambda: _address(coordinator), "its address")
    run = _wait(lambda: (found := _get(address, "run")) and found["live"] and found, "a run that lives")
    assert run["run"] == "tiny" and run["steps"] == 8
    assert re.search(r"#token=[\w-]{40,}$", address) and (coordinator.home / "join-token").exists()
    for name in PEERS:
        swarm.peers[name].wait_stopped()

    first = _child(coordinator)
    assert first is not None and first.nice() > psutil.Process(coordinator.pid).nice()
    first.send_signal(signal.SIGKILL)
    for file in coordinator.home.glob("dashboard.sqlite*"):
        file.unlink()
    _wait(lambda: (again := _child(coordinator)) is not None and again.pid != first.pid, "its return")
    for name in PEERS:
        swarm.peers[name].resume()
    swarm.finish(PEERS)
    swarm.assert_equal(reference(swarm))
    assert _wait(lambda: not psutil.pid_exists(first.pid), "nothing is left behind")
    last = _address(coordinator)
    _wait(lambda: _get(last, "run") is None, "it ends with its coordinator", 10)


def test_a_peer_shows_itself(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm("none", "run.steps=4", "swarm.replicas=1")
    swarm.coordinate()
    peer = swarm.join("p0", "--dashboard=127.0.0.1:0", "--fault=stop@StepApplied:2")
    address = _wait(lambda: _address(peer), "its address")  # before it can be stopped: p1 is yet to come
    other = swarm.join("p1", "--fault=stop@StepApplied:2")  # it would take up the stage of the first one
    peer.wait_stopped()
    other.wait_stopped()
    run = _wait(lambda: (found := _get(address, "run")) and found["step"] is not None and found, "its run")
    assert run["role"] == "peer" and run["actor"] == peer.actor
    peer.resume()
    other.resume()
    swarm.finish(PEERS)


def _check_downloads(shown: Dashboard, swarm: Swarm) -> None:
    own = {"Authorization": f"Bearer {shown.token}"}
    newest = shown.get("/api/v1/checkpoints")["checkpoints"][0]
    assert newest["here"] and newest["version"] == 6
    shard = shown.ask("/downloads/checkpoints/6/1", **own)
    assert shard.body == (swarm.coordinator.home / "archive" / "00000006" / "stage-1.safetensors").read_bytes()
    assert shown.ask("/downloads/checkpoints/5/1", **own).status == 404
    assert shown.get("/api/v1/join", **own)["line"] == f"swarm-peer join {swarm.invite}"

    assert shown.act("/api/v1/exports", {"version": 77}).status == 404
    assert shown.act("/api/v1/exports", {"version": 6}).status == 202
    done = shown.wait("/api/v1/exports", lambda found: found["exports"][0]["state"] in ("done", "failed"), 200)
    assert done["exports"][0]["state"] == "done", done
    packed = shown.ask("/downloads/exports/version-6", **own)
    assert int(packed.headers["content-length"]) == len(packed.body)
    with tarfile.open(fileobj=io.BytesIO(packed.body)) as archive:
        names = {name.rpartition("/")[2] for name in archive.getnames()}
        config = archive.extractfile("version-6/config.json")
        assert config is not None and json.loads(config.read())["model_type"] == "llama"
    assert {"config.json", "model.safetensors"} <= names


def test_the_page_equals_the_log(make_swarm: MakeSwarm) -> None:
    """The numbers of a finished run, recomputed in a few lines that share nothing with the fold."""
    swarm = make_swarm("int8", "run.steps=6", "evaluation.every=3", "swarm.replicas=1")
    swarm.coordinate()
    swarm.join_stages(PEERS)
    swarm.finish(PEERS)
    log = [json.loads(line) for line in (swarm.coordinator.home / "events.jsonl").read_text().splitlines()]
    decided = [line for line in log if line["kind"] == "StepDecided"]
    with dashboard(swarm.coordinator.home) as shown:
        run = shown.wait("/api/v1/run", lambda run: not run["warnings"])
        people = shown.get("/api/v1/people")
        series = shown.get("/api/v1/series?name=loss&points=4000")
        _check_downloads(shown, swarm)
    assert run["finished"] and not run["live"] and not run["control"]
    assert run["step"] == max(line["step"] for line in decided) == 5
    assert run["tokens"] == sum(line["tokens"] for line in decided)
    assert run["loss"] == decided[-1]["loss"] and run["gradient_norm"] == decided[-1]["gradient_norm"]
    assert run["heldout"]["loss"] == swarm.coordinator.of(Evaluated)[-1].loss
    assert run["last_at"] == max(line["at"] for line in log)
    assert series["last"] == [line["loss"] for line in decided]
    given = [person["tokens_layers"] for person in people["people"]]
    assert sum(given) == pytest.approx(run["tokens"])
