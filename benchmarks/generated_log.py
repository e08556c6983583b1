"""Generated logs: the event log of a coordinator of an invented swarm, of any size.

    python -m benchmarks.generated_log HOME --peers 100 --stages 4 --hours 168 --step-seconds 60 --spans

It contains the steps of a run and other events: peers join, some are killed in the middle of a step and come back, the
model is evaluated, generates text and is archived. The same seed makes the same log. For benchmarks and tests of
programs that read logs.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START = 1_790_000_000.0
"""Unix seconds of the first event."""
LETTERS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
DEVICES = ("cpu", "cuda NVIDIA RTX 3060", "cuda NVIDIA RTX 4090", "mps Apple M3")
KINDS = ("forward", "backward", "waiting", "reducing", "applying")
SPANS = 64

Line = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    peers: int = 16
    stages: int = 4
    hours: float = 1.0
    step_seconds: float = 60.0
    microbatches: int = 0
    """Number of microbatches of a step. 0: four for each peer of a stage."""
    tokens_per_microbatch: int = 2048
    kills_per_hour: float = 2.0
    evaluate_every: int = 10
    archive_every: int = 10
    spans: bool = False
    links: int = 4
    """Number of links that a peer reports in a step."""
    heartbeats: int = 4
    """Number of PassProgress events in a step."""
    finished: bool = False
    """True if the log ends with the run's end. Otherwise it ends in the middle of a step."""
    seed: int = 1

    @property
    def steps(self) -> int:
        return max(1, int(self.hours * 3600 / self.step_seconds))


@dataclass
class _Peer:
    actor: str
    stage: int
    rate: float
    """Microbatches per second."""


def write_log(path: Path, shape: Shape) -> int:
    """Write the log. Returns the number of lines. An existing file is overwritten."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = 0
    with path.open("w") as file:
        for line in generate(shape):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            lines += 1
    return lines


def generate(shape: Shape) -> Iterator[Line]:
    return _Story(shape).tell()


class _Story:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.random = random.Random(shape.seed)
        self.at = START
        self.crews: list[list[_Peer]] = [[] for _ in range(shape.stages)]
        self.microbatches = shape.microbatches or max(4, 4 * shape.peers // shape.stages)
        self.starts = 0
        self.usual_s = shape.step_seconds * 0.9
        self.told: list[list[str]] = [[] for _ in range(shape.stages)]
        self.controls = 0

    def line(self, kind: str, **fields: Any) -> Line:
        return {"at": round(self.at, 6), "kind": kind, **fields}

    def tell(self) -> Iterator[Line]:
        shape = self.shape
        run = f"{self.random.getrandbits(256):064x}"
        yield self.line("ProcessStarted", role="coordinator", actor=f"{self.name()}.0", run=run, version="0.1.0")
        yield self.line("CoordinatorStarted", term=1, decided=-1)
        yield self.line("StateChanged", state="waiting", reason="stage 0 has no peer")
        for number in range(shape.peers):
            self.at += 0.001 + 30 / shape.peers * self.random.random()
            yield from self.join(number % shape.stages)
        kill_odds = shape.kills_per_hour * shape.step_seconds / 3600
        for step in range(shape.steps):
            yield from self.step(step, killed=self.random.random() < kill_odds and step > 0)
            if shape.evaluate_every and (step + 1) % shape.evaluate_every == 0:
                yield from self.evaluate(step)
            if shape.archive_every and (step + 1) % shape.archive_every == 0:
                digests = [f"{self.random.getrandbits(256):064x}" for _ in range(shape.stages)]
                for stage, digest in enumerate(digests):
                    size = 14_000_000 + stage
                    yield self.line("CheckpointWritten", stage=stage, version=step + 1, digest=digest, nbytes=size)
                yield self.line("CheckpointArchived", version=step + 1, digests=digests)
        if shape.finished:
            reason = "all steps are decided, applied and archived"
            yield self.line("StateChanged", state="finished", reason=reason)
            yield self.line("RunFinished", step=shape.steps - 1, reason=reason)
            for crew in self.crews:
                for peer in crew:
                    yield self.line("PeerGone", actor=peer.actor, reason="the run is finished")
            yield self.line("ProcessStopped", reason="the run is finished")
        else:
            yield from self.open(shape.steps)
            yield self.progress(shape.steps, 0.4)

    # ------------------------------------------------------------ membership

    def name(self) -> str:
        return "".join(self.random.choices(LETTERS, k=6))

    def join(self, stage: int, actor: str = "") -> Iterator[Line]:
        self.starts += 1
        actor = actor or f"{self.name()}.{1000 + self.starts}"
        device = self.random.choice(DEVICES)
        rate = (0.5 + self.random.random()) * self.microbatches / (0.8 * self.shape.step_seconds)
        peer = _Peer(actor, stage, rate * self.shape.stages / max(1, self.shape.peers))
        yield self.line("PeerSeen", actor=actor)
        machine = {"device": device, "processor": "x86_64", "cores": 8, "memory": 16 << 30, "system": "Linux 6.8"}
        yield self.line("PeerDescribed", actor=actor, machine=machine)
        had = f"stage {stage} had {len(self.crews[stage])} replicas"
        self.crews[stage].append(peer)
        yield self.line("PeerJoined", actor=actor, stage=stage, reason=had)

    # ------------------------------------------------------------ a step

    def tables(self, pass_id: str, reason: str, number: int = 0) -> Iterator[Line]:
        for stage, crew in enumerate(self.crews):
            roster = [peer.actor for peer in crew]
            if roster == self.told[stage]:
                continue
            self.told[stage] = roster
            rates = [float(f"{peer.rate:.3g}") for peer in crew]
            fields = {"roster": roster, "weights": rates, "rates": rates, "reason": reason}
            yield self.line("TableChanged", pass_id=pass_id, stage=stage, number=number, **fields)

    def open(self, step: int) -> Iterator[Line]:
        pass_id = f"1:{step}"
        yield from self.tables(pass_id, "peers have joined")
        yield self.line("StateChanged", state="training", reason="")
        counts = [len(crew) for crew in self.crews]
        fields = {"pass_kind": "train", "replicas": counts, "microbatches": self.microbatches}
        yield self.line("PassOpened", pass_id=pass_id, **fields)

    def step(self, step: int, killed: bool) -> Iterator[Line]:
        shape, pass_id = self.shape, f"1:{step}"
        yield from self.open(step)
        seconds = self.usual_s * (0.97 + 0.06 * self.random.random())
        victim: _Peer | None = None
        again = 0
        for beat in range(shape.heartbeats):
            self.at += seconds / (shape.heartbeats + 1)
            yield self.progress(step, (beat + 1) / (shape.heartbeats + 1))
            if killed and beat == shape.heartbeats // 2:
                crew = max(self.crews, key=len)
                if len(crew) > 1:
                    victim = self.random.choice(crew)
                    again = max(2, self.microbatches // len(crew))
                    yield from self.kill(victim, pass_id, again)
        self.at += seconds / (shape.heartbeats + 1)
        extra = 0.0
        if victim is not None:
            extra = again / sum(peer.rate for peer in self.crews[victim.stage])
            self.at += extra
        if victim is not None:
            tokens = int(extra * self.microbatches * shape.tokens_per_microbatch / seconds)
            reason = f"{victim.actor} was lost, its connection broke"
            cost = {"microbatches": again, "seconds": extra, "usual_s": self.usual_s, "tokens": tokens}
            yield self.line("FaultCosted", pass_id=pass_id, step=step, actors=[victim.actor], reason=reason, **cost)
        yield from self.decide(step, seconds + extra)
        yield from self.works(step, seconds, extra, victim)
        self.at += max(0.0, shape.step_seconds - seconds)
        if victim is not None:
            self.starts += 1
            yield from self.join(victim.stage, f"{victim.actor.partition('.')[0]}.{1000 + self.starts}")

    def kill(self, victim: _Peer, pass_id: str, again: int) -> Iterator[Line]:
        reason = "its connection broke"
        yield self.line("PeerLost", actor=victim.actor, stage=victim.stage, reason=reason)
        half = again // 2
        moved = list(range(again))
        fenced = {"finished": moved[:half], "unfinished": moved[half:], "reason": reason}
        yield self.line("PeerFenced", actor=victim.actor, stage=victim.stage, pass_id=pass_id, **fenced)
        yield self.line(
            "StageAmended",
            pass_id=pass_id,
            stage=victim.stage,
            number=1,
            moved=moved,
            reason=f"{victim.actor}: {reason}",
        )
        self.crews[victim.stage].remove(victim)
        yield from self.tables(pass_id, f"{victim.actor}: {reason}", number=1)

    def progress(self, step: int, part: float) -> Line:
        stages, peers = [], []
        for crew in self.crews:
            total = sum(peer.rate for peer in crew)
            each = [round(self.microbatches * peer.rate / total) for peer in crew]
            peers.append([[int(n * part * 0.9), int(n * part), n] for n in each])
            stages.append([int(self.microbatches * part * 0.9), int(self.microbatches * part), self.microbatches])
        small = sum(map(len, self.crews)) <= 256
        return self.line("PassProgress", pass_id=f"1:{step}", stages=stages, peers=peers if small else [])

    def decide(self, step: int, seconds: float) -> Iterator[Line]:
        tokens = self.microbatches * self.shape.tokens_per_microbatch
        loss = 2.5 + 6 * 2 ** (-step / 200) + 0.05 * self.random.random()
        assignments = []
        for crew in self.crews:
            weights = [peer.rate for peer in crew]
            assignments.append(sorted(self.random.choices(range(len(crew)), weights, k=self.microbatches)))
        outcomes = [f"0:{self.random.getrandbits(256):064x}" for _ in self.crews]
        fields = {"scale": 1.0, "loss": loss, "gradient_norm": 0.5 + self.random.random(), "tokens": tokens}
        yield self.line(
            "StepDecided",
            term=1,
            step=step,
            **fields,
            outcomes=outcomes,
            without=[],
            assignments=assignments,
            rate=1.0,
        )
        speed = {"seconds": seconds, "tokens_per_second": tokens / seconds, "efficiency": 0.6}
        yield self.line("StepMeasured", step=step, **speed, replicas=[len(crew) for crew in self.crews])

    def works(self, step: int, seconds: float, extra: float, victim: _Peer | None) -> Iterator[Line]:
        everybody = [peer for crew in self.crews for peer in crew]
        for peer in everybody:
            self.at += 0.5 / len(everybody)
            again = extra if victim is not None and peer.stage == victim.stage else 0.0
            parts = {"forward": 0.2, "backward": 0.4, "waiting": 0.3, "reducing": 0.08, "applying": 0.02}
            sums = {kind: round(seconds * part, 3) for kind, part in parts.items()} | {"recovering": round(again, 3)}
            spans = self.spans(seconds) if self.shape.spans else []
            usage = {"cpu": 3.5, "resident": 2_100_000_000, "temperature": 61.0, "power": 95.5}
            yield self.line(
                "PeerWorked",
                actor=peer.actor,
                stage=peer.stage,
                pass_id=f"1:{step}",
                seconds=sums,
                spans=spans,
                usage=usage,
                links=self.links(peer),
            )

    def spans(self, seconds: float) -> list[list[int | str]]:
        each = 1000 * seconds / SPANS
        return [[KINDS[n % 3], n // 3, int(n * each), int(0.9 * each)] for n in range(SPANS)]

    def links(self, peer: _Peer) -> list[Line]:
        found = []
        for number in range(self.shape.links):
            crew = self.crews[(peer.stage + (1 if number % 2 else -1)) % self.shape.stages]
            other = crew[(number * 7 + len(peer.actor)) % len(crew)].actor if crew else ""
            if other and other != peer.actor:
                sent = {"forward": 524_288, "backward": 524_288, "control": 300}
                found.append({"other": other, "rate": 2_500_000.0, "rtt_s": 0.03, "sent": sent})
        return found

    def evaluate(self, step: int) -> Iterator[Line]:
        counts = [len(crew) for crew in self.crews]
        yield self.line("StateChanged", state="evaluating", reason="")
        yield self.line("PassOpened", pass_id=f"1:{step}+1", pass_kind="evaluate", replicas=counts, microbatches=4)
        self.at += 0.1 * self.shape.step_seconds
        loss = 2.6 + 6 * 2 ** (-step / 200)
        yield self.line("Evaluated", version=step + 1, loss=loss, targets=8192)
        yield self.line("PassOpened", pass_id=f"1:{step}+2", pass_kind="generate", replicas=counts, microbatches=1)
        self.at += 0.05 * self.shape.step_seconds
        yield self.line("Sampled", version=step + 1, prompt="The city of", text=" a thousand bridges lay silent.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the event log of a swarm that never was.")
    parser.add_argument("home", type=Path, help="A folder; its events.jsonl is overwritten.")
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--step-seconds", type=float, default=60.0)
    parser.add_argument("--kills-per-hour", type=float, default=2.0)
    parser.add_argument("--links", type=int, default=4)
    parser.add_argument("--spans", action="store_true")
    parser.add_argument("--finished", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = vars(parser.parse_args())
    home: Path = given.pop("home")
    lines = write_log(home / "events.jsonl", Shape(**given))
    print(f"{home / 'events.jsonl'}: {lines} events, {(home / 'events.jsonl').stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
