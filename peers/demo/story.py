"""The demo from start to end: prepare text, start a swarm, kill a peer, wait for the end, check the result, and use
it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from peers.dashboard.companion import companion
from peers.dashboard.place import Place
from peers.demo.children import Child, ChildDied, Children
from peers.demo.event_tail import EventTail
from peers.demo.killing import Killing, Recovery
from peers.demo.traffic import Traffic
from peers.launching.nursery import nursery_or_cold
from peers.report.progress import Progress
from peers.run.home import Home
from peers.run.run_toml import render
from swarm import events as e
from swarm.manifest import (
    AuditSection,
    BatchSection,
    CheckpointSection,
    CodecSection,
    DataSection,
    EvaluationSection,
    OptimizerSection,
    RunFile,
    RunSection,
    SwarmSection,
    load_run_file,
)

PRESET, LAYERS = "2m", 4
"""The size of the model. It is small, because a larger one sees fewer tokens in three minutes and learns less
(docs/results.md).
"""
SEQUENCES, SEQUENCE_LENGTH = 1, 128
PROMPTS = ("The city of", "In 1990, he")
"""The trained model continues them at the end. An evaluation samples the first one."""
_SETTLE_S = 20.0
_SPARE_DEVICES = 8
"""Number of devices that may join in addition to the peers, because peers that take a second stage count too."""


class DemoFailed(RuntimeError):
    """An expected result of the demo is missing; the message says which, and where the logs are."""


@dataclass(frozen=True)
class DemoOptions:
    """The options of the demo. `directory` gets `data/` (kept for the next time) and a new `run-N/` with RUN.toml,
    homes and results.
    """

    directory: Path
    steps: int = 256
    stages: int = 4
    replicas: int = 2
    kill: bool = True
    check: bool = True
    codec: str = "int8"
    dashboard: Place | None = None
    """The place where the dashboard is served. None: there is no dashboard."""
    start_timeout_s: float = 300.0
    silence_timeout_s: float = 180.0


@dataclass
class Report:
    """The results of the demo. `equal` is None without the check, `recovery` None without the kill."""

    folder: Path
    run: str = ""
    peers: int = 0
    steps: int = 0
    losses: list[float] = field(default_factory=list)
    heldout_loss: float | None = None
    unigram_entropy: float = 0.0
    sample: str = ""
    texts: list[str] = field(default_factory=list)
    """What the trained model writes after each of the prompts, prompts included."""
    archived: int | None = None
    exported: Path | None = None
    recovery: Recovery | None = None
    usual_step_seconds: float | None = None
    tokens: int = 0
    boundaries: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    equal: bool | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def learned(self) -> bool:
        """True if the held-out loss is below that of the token frequencies alone."""
        return self.heldout_loss is not None and self.heldout_loss < self.unigram_entropy

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)


def run_demo(options: DemoOptions, console: Console, ending: ExitStack) -> Report:
    """Run all of it. Raises DemoFailed, ChildDied, TimeoutError; no process is left behind but the dashboard's.

    The dashboard ends with `ending`.
    """
    with nursery_or_cold() as launcher, Children(launcher) as children:
        return _Story(options, children, console, ending).tell()


class _Story:
    def __init__(self, options: DemoOptions, children: Children, console: Console, ending: ExitStack) -> None:
        self._options = options
        self._ending = ending
        self._children = children
        self._console = console
        self._data = options.directory / "data"
        self._folder = _new_folder(options.directory)
        self._run_toml = self._folder / "RUN.toml"
        self._coordinator_home = Home(self._folder / "homes" / "coordinator")
        self._report = Report(self._folder)
        self._peers: dict[Child, Home] = {}
        self._tails: dict[Child, EventTail] = {}

    def tell(self) -> Report:
        with self._phase("prepare"):
            corpus, run = self._prepare()
        progress = Progress(self._console, steps=run.run.steps, data=corpus)
        with self._phase("start"):
            coordinator = self._start(run)
            log = EventTail(self._coordinator_home.events)
            self._wait_for_first_step(log, progress)
        with self._phase("train"):
            self._train(run, coordinator, log, progress)
        if self._options.check:
            with self._phase("check"):
                self._check(run)
        with self._phase("use"):
            self._use()
        self._measure(run)
        return self._report

    # ------------------------------------------------------------ phases

    def _prepare(self) -> tuple[DataSection, RunFile]:
        self._head(f"text into tokens, a model into {self._options.stages} stages")
        stages = self._options.stages
        init = ["init", str(self._run_toml), "--preset", PRESET, "--stages", str(stages), "--no-measure"]
        if stages > LAYERS:
            init += ["--set", f"model.layers={stages}"]
        self._run("init", init, 120.0)
        if not (self._data / "corpus.json").exists():
            self._run("prepare", ["prepare", "--out", str(self._data)], 300.0)
        corpus = DataSection.model_validate_json((self._data / "corpus.json").read_bytes())
        run = _demo_run(load_run_file(self._run_toml), self._options)
        self._run_toml.write_text(render(run), encoding="utf-8")
        tokens = sum(shard.tokens for shard in corpus.train)
        self._say(f"{corpus.name} ({corpus.licence}): {tokens:,} tokens, vocabulary {corpus.vocab_size:,}")
        self._say(f"the run is described in {self._run_toml}")
        return corpus, run

    def _start(self, run: RunFile) -> Child:
        stages, replicas = run.model.stages, run.swarm.replicas
        self._head(f"a coordinator and {stages * replicas} peers ({stages} stages × {replicas}), a process each")
        invite = self._folder / "invite"
        home = self._coordinator_home.path
        coordinator = self._children.start(
            "coordinator",
            [
                *("coordinate", str(self._run_toml), "--home", str(home), "--invite-file", str(invite)),
                *("--no-dashboard", "--json", "--devices", str(stages * replicas + _SPARE_DEVICES)),
            ],
            home / "output.txt",
        )
        self._children.wait_for(invite.exists, "the coordinator's invite", self._options.start_timeout_s)
        if self._options.dashboard is not None:
            # ours, not the coordinator's: it stays when the coordinator has ended
            self._ending.enter_context(companion(home, self._options.dashboard, None, self._console))
        for number in range(1, stages * replicas + 1):
            home = self._folder / "homes" / f"peer-{number}"
            common = [
                "--home",
                str(home),
                "--device",
                "cpu",
                "--threads",
                "1",
                "--max-memory",
                "1GB",
                "--capacity",
                "1",
            ]
            child = self._children.start(
                f"peer-{number}", ["join", invite.read_text().strip(), *common], home / "output.txt"
            )
            self._peers[child] = Home(home)
            self._tails[child] = EventTail(Home(home).events)
        self._report.peers = len(self._peers)
        self._say(f"each peer joins with: swarm-peer join {invite.read_text().strip()[:24]}…")
        return coordinator

    def _wait_for_first_step(self, log: EventTail, progress: Progress) -> None:
        def opened() -> bool:
            found = log.read()
            for at, event in found:
                progress(event, at)
                if isinstance(event, e.ProcessStarted):
                    self._report.run = event.run
            return any(isinstance(event, e.PassOpened) and event.pass_kind == "train" for _, event in found)

        self._children.wait_for(opened, "the first step", self._options.start_timeout_s)

    def _train(self, run: RunFile, coordinator: Child, log: EventTail, progress: Progress) -> None:
        self._head(f"{run.run.steps} steps of {run.batch.tokens_per_step:,} tokens")
        killing = self._killing(run) if self._options.kill else None
        if killing is not None:
            self._say(f"{killing.victim.name} will be killed in the middle of step {killing.from_step + 1} or later")
        seconds: dict[int, float] = {}
        finished = False
        heard = time.monotonic()
        while coordinator.code() is None:
            if killing is not None and killing.poll():
                self._struck(killing)
            for at, event in log.read():
                heard = time.monotonic()
                self._note(event, seconds)
                finished = finished or isinstance(event, e.RunFinished)
                if not finished or isinstance(event, e.RunFinished):
                    progress(event, at)
                self._observe(killing, event, at)
            for child, tail in self._tails.items():
                if killing is None or child is not killing.victim:
                    for at, event in tail.read():
                        self._observe(killing, event, at)
            if not finished:
                self._check_all_live()
            if time.monotonic() - heard > self._options.silence_timeout_s:
                raise DemoFailed(f"the coordinator has logged nothing for {self._options.silence_timeout_s:.0f} s")
            time.sleep(0.003 if killing is not None and killing.recovery is None else 0.02)
        for _, event in log.read():
            self._note(event, seconds)
        self._check_all_live()
        for child in (coordinator, *self._peers):
            child.expected = True
        self._children.wait_for(
            lambda: all(child.code() is not None for child in self._peers), "the end of all peers", _SETTLE_S
        )
        if killing is not None:
            self._recovered(killing, seconds)

    def _check(self, run: RunFile) -> None:
        self._head("the same run in one process, plain torch: its digests must be the same")
        home = self._coordinator_home.path
        child = self._children.start(
            "reference",
            ["reference", str(self._run_toml), "--against", str(home), "--threads", "1"],
            self._folder / "reference.txt",
        )
        child.expected = True
        shown = 0
        while True:
            ended = child.code() is not None
            lines = child.output.read_text(errors="replace").splitlines(keepends=True)
            for line in (line for line in lines[shown:] if line.endswith("\n")):
                shown += 1
                if not line.startswith("reference step") or shown % 10 == 0:
                    self._say(line.rstrip())
            if ended:
                break
            time.sleep(0.1)
        if child.code() not in (0, 3):
            child.expected = False
            child.check()
        self._report.equal = child.code() == 0

    def _use(self) -> None:
        self._head("the trained model")
        home, out = str(self._coordinator_home.path), self._folder / "model"
        self._run("export", ["export", str(out), "--home", home], 120.0)
        self._report.exported = out
        self._say(f"exported for transformers.LlamaForCausalLM: {out}")
        for number, prompt in enumerate(PROMPTS, 1):
            words = ["generate", prompt, "--home", home, "--tokens", "32", "--temperature", "0.8"]
            text = self._run(f"generate-{number}", words, 120.0).strip()
            self._report.texts.append(text)
            self._say(f"it writes: {text}")

    def _measure(self, run: RunFile) -> None:
        report = self._report
        traffic = Traffic.of(self._coordinator_home.events, (home.events for home in self._peers.values()))
        evaluations = sum(isinstance(event, e.Evaluated) for _, event in e.read_log(self._coordinator_home.events))
        report.sent = traffic.total
        report.tokens = run.run.steps * run.batch.tokens_per_step
        report.boundaries = run.model.stages - 1
        forwarded = evaluations * run.evaluation.microbatches * run.batch.tokens_per_microbatch
        report.forward_bytes, report.backward_bytes = traffic.per_token_and_boundary(
            report.tokens, forwarded, report.boundaries
        )
        data = DataSection.model_validate_json((self._data / "corpus.json").read_bytes())
        report.unigram_entropy = data.unigram_entropy

    # ------------------------------------------------------------ the kill

    def _killing(self, run: RunFile) -> Killing:
        """The victim is the first peer that holds stage 1: never the last stage, which has no backward in progress."""
        stage = 1 if run.model.stages > 2 else 0
        for child, home in self._peers.items():
            actor, mine = None, None
            for _, event in e.read_log(home.events):
                match event:
                    case e.ProcessStarted():
                        actor = event.actor
                    case e.PeerJoined():
                        mine = event.stage
            if actor is not None and mine == stage:
                share = run.batch.microbatches // run.swarm.replicas
                return Killing(child, actor, self._tails[child], max(1, run.run.steps // 3), share)
        raise DemoFailed(f"no peer says that it holds stage {stage}")

    def _struck(self, killing: Killing) -> None:
        assert killing.recovery is not None
        self._report.recovery = killing.recovery
        self._say(
            f"kill -9 {killing.victim.pid}: {killing.victim.name} ({killing.recovery.actor}) dies in step "
            f"{killing.recovery.step + 1} with {killing.recovery.finished} microbatches finished and others not",
            "bold red",
        )

    def _observe(self, killing: Killing | None, event: e.Event, at: float) -> None:
        if killing is not None and killing.recovery is not None:
            line = killing.recovery.observe(event, at)
            if line is not None:
                self._say(line, "bold green")

    def _recovered(self, killing: Killing, seconds: dict[int, float]) -> None:
        recovery = killing.recovery
        if recovery is None:
            raise DemoFailed(f"{killing.victim.name} was never seen in the middle of a step, so it was not killed")
        usual = [s for step, s in seconds.items() if recovery.step - 8 <= step < recovery.step]
        self._report.usual_step_seconds = statistics.median(usual) if usual else None
        if not recovery.complete:
            raise DemoFailed(
                f"the kill in step {recovery.step + 1} did not show the recovery: {recovery.finished} finished and "
                f"{recovery.unfinished} unfinished microbatches moved, {recovery.frames} frames recovered"
            )

    # ------------------------------------------------------------ small things

    def _note(self, event: e.Event, seconds: dict[int, float]) -> None:
        report = self._report
        match event:
            case e.StepDecided():
                report.steps = event.step + 1
                report.losses.append(event.loss)
            case e.StepMeasured():
                seconds[event.step] = event.seconds
            case e.Evaluated():
                report.heldout_loss = event.loss
            case e.Sampled():
                report.sample = event.prompt + event.text
            case e.CheckpointArchived():
                report.archived = event.version

    def _check_all_live(self) -> None:
        """Raise ChildDied for a process that ended before the run."""
        try:
            self._children.check()
        except ChildDied:
            # the run may have finished meanwhile: processes leave within milliseconds
            if not any(isinstance(event, e.RunFinished) for _, event in e.read_log(self._coordinator_home.events)):
                raise

    def _run(self, name: str, arguments: list[str], seconds: float) -> str:
        """Run a command to its end and return its output."""
        child = self._children.start(name, arguments, self._folder / f"{name}.txt", ends=True)
        self._children.wait_for(lambda: child.code() == 0, f"the end of `swarm-peer {arguments[0]}`", seconds)
        return child.output.read_text(errors="replace")

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._report.seconds[name] = time.monotonic() - began

    def _head(self, title: str) -> None:
        self._console.print(f"\n[bold]── {title}[/bold]", soft_wrap=True)

    def _say(self, line: str, style: str = "") -> None:
        clock = time.strftime("%H:%M:%S")
        self._console.print(f"[dim]{clock}[/dim]  ", end="")
        self._console.print(line, style=style, markup=False, soft_wrap=True)


def _new_folder(directory: Path) -> Path:
    """The next free folder of `run-1`, `run-2`, …, so that files of an earlier demo are never changed."""
    directory.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = directory / f"run-{number}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def _demo_run(proposed: RunFile, options: DemoOptions) -> RunFile:
    """`init`'s proposal with a batch small enough for two cores and a schedule that learns in few steps."""
    steps = options.steps
    third = -(-steps // 3)
    return proposed.model_copy(
        update={
            "run": RunSection(name="demo", steps=steps),
            "batch": BatchSection(microbatches=8, sequences=SEQUENCES, sequence_length=SEQUENCE_LENGTH),
            "optimizer": OptimizerSection(kind="muon", learning_rate=8e-3, warmup_steps=min(24, steps), beta1=0.8),
            "codec": CodecSection(forward=options.codec, backward=options.codec),
            "checkpoint": CheckpointSection(every=third),
            "evaluation": EvaluationSection(every=third, microbatches=32, sample_tokens=16, prompt=PROMPTS[0]),
            "swarm": SwarmSection(replicas=options.replicas),
            "audit": AuditSection(every=0),  # all its peers are this machine's
            "data": RunFile.Data(directory="../data"),
        }
    )
