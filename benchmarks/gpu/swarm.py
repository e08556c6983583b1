"""Real peers on one machine: in each stage one on the CPU and one on the device, and one on the device is killed.

The sibling of the killed peer stops itself a step later, so there are steps left when the killed peer is back.
"""

from __future__ import annotations

import itertools
import signal
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found
from benchmarks.local_swarm import PEERS, LocalSwarm
from peers.launching.cold import Cold
from peers.launching.nursery import nursery_or_cold
from peers.launching.process import Launcher
from swarm.events import (
    CheckpointArchived,
    CheckpointWritten,
    PassOpened,
    PeerFenced,
    PeerJoined,
    PeerLost,
    StepApplied,
    StepDecided,
)

RUN = """
[run]
name = "gpu"
steps = {steps}
[audit]
every = 0
[model]
vocab_size = 4096
dim = {dim}
layers = 8
heads = 10
kv_heads = 5
ffn_dim = {ffn}
context = 256
cuts = [4]
[batch]
microbatches = 16
sequences = 4
sequence_length = {length}
[checkpoint]
every = {every}
[evaluation]
every = 0
[swarm]
replicas = {replicas}
[timing]
step_budget_s = 600.0
"""
KILLED, SIBLING = 2, 0
"""Numbers of two peers of stage 0."""
FAULTS = {
    KILLED: "--fault=kill@MicrobatchAccumulated,pass_id=1:2",
    SIBLING: "--fault=stop@StepApplied,step=3",
}
PATIENCE_S = 150.0


def measure(lab: Lab) -> Found:
    """Two stages of two replicas. Not on a device: all four compute on the CPU."""
    devices = ("cpu", "cpu", str(lab.device), str(lab.device))
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        path = ground(Path(name), lab, replicas=2, steps=6 if lab.smoke else 12, every=2 if lab.smoke else 4)
        joins = [[*join(lab, device), *filter(None, [FAULTS.get(n)])] for n, device in enumerate(devices)]
        with launching(lab) as launcher, OneByOne(Path(name) / "swarm", path, joins, launcher=launcher) as local:
            local.bring_back(KILLED, SIBLING, join(lab, devices[KILLED]))
            ended = ending(local)
            figures = told(local, len(devices), ended)
    final = figures["checkpoints"][-1] if figures["checkpoints"] else None
    holders = 0 if final is None else min(len(each) for each in figures["digests"][f"version {final}"].values())
    aims = (
        Aim.holds("replicas on the device and on the CPU are bit-identical", figures["replicas_agree"]),
        Aim("all replicas hold the last checkpoint, also the killed one", "2 of 2", f"{holders} of 2", holders == 2),
        Aim(
            "the killed peer is lost once, and the run ends",
            "1 lost, whole",
            f"{figures['lost']} lost, {ended}",
            figures["lost"] == 1 and ended == "whole",
        ),
        Aim.holds("every checkpoint is archived", figures["archived"] == figures["checkpoints"]),
    )
    return Found({"devices": list(devices), **figures}, aims)


def launching(lab: Lab) -> Launcher:
    """Cold starts, as users have them. Without a card they cost more than all the rest: all processes are forks."""
    return Cold() if lab.cuda else nursery_or_cold()


def ground(folder: Path, lab: Lab, *, replicas: int, steps: int, every: int) -> Path:
    """Prepare a corpus in `folder`. Returns the run file."""
    sizes = {"dim": 80, "ffn": 224, "length": 32} if lab.smoke else {"dim": 320, "ffn": 896, "length": 256}
    data = [*PEERS, "prepare", "--vocab-size", "4096", "--out", str(folder / "data")]
    subprocess.run(data, check=True, stdout=subprocess.DEVNULL)
    path = folder / "RUN.toml"
    path.write_text(RUN.format(steps=steps, every=every, replicas=replicas, **sizes))
    return path


def join(lab: Lab, device: str, *more: str) -> list[str]:
    """The command of a peer."""
    threads = "1" if lab.smoke else "2"
    return [*PEERS, "join", "--threads", threads, "--seats", "1", "--capacity", "1", "--device", device, *more]


def ending(local: LocalSwarm) -> str:
    """How the run ended: "whole", or the end of the output of whoever failed."""
    try:
        local.finish(PATIENCE_S)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return str(error)[-600:]
    return "whole"


def told(local: LocalSwarm, peers: int, ended: str) -> dict[str, Any]:
    """What the logs of the coordinator and of the peers say."""
    events = local.events()
    digests: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for number in range(peers):
        for _, event in local.events(f"peer-{number}"):
            if isinstance(event, CheckpointWritten):
                digests[f"version {event.version}"][f"stage {event.stage}"][f"peer {number}"] = event.digest[:12]
    stages = [stage for version in digests.values() for stage in version.values()]
    opened = [at for at, event in events if isinstance(event, PassOpened)]
    decided = [at for at, event in events if isinstance(event, StepDecided)]
    lost = [at for at, event in events if isinstance(event, PeerLost)]
    seconds = [later - earlier for earlier, later in itertools.pairwise(opened[1:])]
    after = min((at - lost[0] for at in decided if lost and at > lost[0]), default=None)
    return {
        "ended": ended,
        "steps_decided": len(decided),
        "lost": len(lost),
        "seconds_from_loss_to_next_decision": None if after is None else round(after, 2),
        "replicas_agree": bool(stages) and all(len(set(stage.values())) == 1 for stage in stages),
        "digests": {version: dict(stages) for version, stages in digests.items()},
        "checkpoints": sorted(int(version.split()[1]) for version in digests),
        "archived": sorted({event.version for _, event in events if isinstance(event, CheckpointArchived)}),
        "fenced": [event.reason[:200] for _, event in events if isinstance(event, PeerFenced)],
        "losses": [round(event.loss, 4) for _, event in events if isinstance(event, StepDecided)],
        "step_seconds": round(statistics.median(seconds), 2) if seconds else None,
    }


class OneByOne(LocalSwarm):
    """A peer starts when the one before has joined, so it gets the stage that lacks most peers."""

    def join(self, words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        super().join(words, environment)
        self._until(lambda: self._joined >= len(self.peers) or self.peers[-1].code is not None, 60)

    def bring_back(self, killed: int, sibling: int, words: Sequence[str]) -> None:
        """Start a killed peer again in its home, once its sibling has stopped itself. Then the sibling goes on."""
        self._until(lambda: self.peers[killed].code is not None, 60)
        self._until(lambda: self._stopped(sibling), 60)
        before, home = self._joined, self.folder / f"peer-{killed}"
        invite = (self.folder / "invite").read_text().strip()
        self.peers.append(self._start([*words, invite, "--home", str(home)], f"peer-{killed}-again", None))
        self._until(lambda: self._joined > before, 60)
        self.peers[sibling].send(signal.SIGCONT)

    @property
    def _joined(self) -> int:
        return sum(isinstance(event, PeerJoined) and event.stage is not None for _, event in self.events())

    def _stopped(self, number: int) -> bool:
        applied = [event for _, event in self.events(f"peer-{number}") if isinstance(event, StepApplied)]
        pid = self.peers[number].pid
        return bool(applied) and psutil.pid_exists(pid) and psutil.Process(pid).status() == psutil.STATUS_STOPPED

    @staticmethod
    def _until(true: Callable[[], bool], seconds: float) -> None:
        """Wait, but not for longer than `seconds`: what is missing then shows in the results."""
        deadline = time.monotonic() + seconds
        while not true() and time.monotonic() < deadline:
            time.sleep(0.1)
