"""A whole swarm in one process: real cores, real compute, and messages that arrive in order."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from peers.run.reference import train_reference
from peers.run.replay import StepReplay
from swarm.compute.actions import failure
from swarm.compute.engine import StageEngine
from swarm.compute.ladders import ladders
from swarm.compute.optimizer import StageState
from swarm.compute.stage_options import StageOptions
from swarm.data import step_order, visits
from swarm.events import Event
from swarm.manifest import (
    AuditSection,
    BatchSection,
    CheckpointSection,
    CodecSection,
    DataSection,
    EvaluationSection,
    ModelSection,
    OptimizerSection,
    RunManifest,
    RunSection,
    Shard,
    SumSection,
    SwarmSection,
)
from swarm.protocol import io
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator import io as coordinator_io
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.ids import Actor, Direction, PassKind
from swarm.protocol.messages import Command, Decision, Frame, Leave, Open, StageTable
from swarm.protocol.peer import io as peer_io
from swarm.protocol.peer.catch_up import is_whole
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.settings import Settings

WAIT_S = 30.0
COORDINATOR = Actor("coordinator", 0)
BLOCKS = 2


def manifest(
    codec: str = "delta:4",
    stages: int = 2,
    steps: int = 6,
    *,
    evaluate: int = 0,
    every: int = 100,
    replicas: int = 2,
    backward: str = "int8",
    averaging: str = "none",
    mode: Literal["exact", "fp32"] = "exact",
    tied: bool = False,
    means: bool = False,
    optimizer: Literal["adamw", "muon"] = "adamw",
) -> RunManifest:
    """A tiny language model with `BLOCKS` steps per epoch. `every`: number of steps between checkpoints."""
    length, microbatches, sequences = 12, 4, 2
    shard = Shard(file="train-0.bin", sha256="0" * 64, tokens=BLOCKS * microbatches * sequences * length + length)
    shape = {"vocab_size": 97, "dim": 32, "layers": 4, "heads": 4, "kv_heads": 2, "ffn_dim": 64, "context": 16}
    cuts = (1, 2, 3) if stages == 4 else (1, 3)[: stages - 1]
    model = ModelSection(**shape, cuts=cuts, tie_embeddings=tied, token_means=means)
    return RunManifest(
        run=RunSection(steps=steps, seed=7),
        model=model,
        batch=BatchSection(microbatches=microbatches, sequences=sequences, sequence_length=length, order="steps"),
        optimizer=OptimizerSection(kind=optimizer, learning_rate=1e-2, warmup_steps=1),
        codec=CodecSection(forward=codec, backward=backward),
        checkpoint=CheckpointSection(every=every),
        evaluation=EvaluationSection(every=evaluate, microbatches=1, sample_tokens=2 if evaluate else 0),
        sums=SumSection(mode=mode, averaging=averaging),
        swarm=SwarmSection(replicas=replicas),
        audit=AuditSection(every=0),
        data=DataSection(
            tokenizer_sha256="0" * 64,
            vocab_size=97,
            train=(shard,),
            heldout=(shard,),
            unigram_entropy=4.0,
            bytes_per_token=4.0,
        ),
    )


class Corpus:
    """Microbatches drawn at random, seeded with (block, microbatch). If samples are shuffled, seeded with (step,
    microbatch).
    """

    def __init__(self, of: RunManifest) -> None:
        self._shape = (of.batch.sequences, of.batch.sequence_length + 1)
        self._order = step_order(of)

    def microbatch(self, step: int, m: int) -> np.ndarray:
        block = step if self._order is None else self._order.block(step)
        return np.random.default_rng((block, m)).integers(0, 97, self._shape)

    def heldout(self, m: int) -> np.ndarray:
        return np.random.default_rng((99, m)).integers(0, 97, self._shape)


@dataclasses.dataclass(frozen=True)
class Again:
    """What an order needs has not come yet: try the order again later."""

    order: peer_io.LoadState | peer_io.FetchSums


class Peer:
    def __init__(self, swarm: Swarm, actor: Actor, capacity: int, **options) -> None:
        self.actor = actor
        self.core = PeerCore(
            actor,
            COORDINATOR,
            dataclasses.replace(swarm.settings, slots=options.pop("slots", 16)),
            visits=visits(swarm.manifest),
            base_capacity=capacity,
        )
        self.engine: StageEngine | None = None
        self.copies: dict[int, StageState] = {}
        """Copies of the state, by version, for peers that join while this peer trains."""
        self.sums: dict[int, tuple[str, list[object]]] = {}
        """For the same peers, the digest and the reduced buckets of each step, as they were sent."""
        self._lent: peer_io.Lend | None = None
        self._stored: dict[int, object] = {}
        self._fetched: dict[int, list[object]] = {}
        self._swarm = swarm
        self._options = options

    def carry_out(self, action: peer_io.PeerAction) -> object:
        """Carry out an order at once, and return its results."""
        match action:
            case peer_io.LoadState():
                return self._load(action)
            case peer_io.SaveCheckpoint(version, number=number):
                assert self.engine is not None
                if self.engine.state.snapshot().result(WAIT_S).spoilt:
                    return peer_io.StateSpoilt(version, number)
                return peer_io.CheckpointSaved(version, f"version {version}", number)
            case io.Emit() | io.Stop():
                return None
            case peer_io.Lend():
                return self._lend(action)
            case peer_io.FetchSums():
                return self._fetch(action)
        assert self.engine is not None
        if isinstance(action, peer_io.RestoreSums):
            sums = self._fetched.pop(action.attempt.pass_id.step)
            if action.whole:
                self.engine.state.held().reduction.restore(action.attempt, sums)
            for bucket, payload in enumerate(() if action.whole else sums):
                self.engine._carry_out(peer_io.StoreSum(action.attempt, bucket, payload))
            return self.engine._carry_out(peer_io.Assemble(action.attempt))
        self._note(action)
        try:
            done = self.engine._carry_out(action)  # type: ignore[arg-type]
        except (ValueError, LookupError, ArithmeticError) as error:
            return failure(action, error)  # type: ignore[arg-type]
        if isinstance(done, peer_io.ForwardDone | peer_io.BackwardDone):
            return dataclasses.replace(done, seconds=0.01)  # all are equally fast: shares stay as they are
        return done

    def _lend(self, action: peer_io.Lend) -> None:
        assert self.engine is not None
        self._lent = action
        self.copies = {version: copy for version, copy in self.copies.items() if version in action.versions}
        self.sums = {step: sums for step, sums in self.sums.items() if step >= action.since}
        if action.pass_id.version in action.versions:
            self.copies[action.pass_id.version] = self.engine.state.snapshot().result(WAIT_S)

    def _note(self, action: object) -> None:
        """Keep the sums of the open step, if other peers listen."""
        if isinstance(action, peer_io.StoreSum):
            self._stored[action.bucket] = bytes(action.payload)  # type: ignore[arg-type]
        elif (
            isinstance(action, peer_io.Apply)
            and self._lent is not None
            and self._lent.pass_id == action.attempt.pass_id
        ):
            assert self.engine is not None and self.core.held_stage.stage is not None
            step, digest = action.decision.step, action.decision.outcomes[self.core.held_stage.stage].digest
            if not all(self._stored.get(b) for b in range(self.engine.buckets)):  # nobody else received them
                assert is_whole(action.decision, action.attempt.stage) or not self._swarm.manifest.sums.compresses
                whole = self.engine.state.held().reduction.written(action.attempt)
                self.sums[step] = (digest, [bytes(each) for each in whole])
            elif self._lent.sums:
                self.sums[step] = (digest, [self._stored[b] for b in range(self.engine.buckets)])

    def _fetch(self, action: peer_io.FetchSums) -> peer_io.PeerInput | None:
        for donor in action.donors:
            peer = self._swarm.peers.get(donor)
            digest, sums = ("", []) if peer is None else peer.sums.get(action.step, ("", []))
            if digest == action.digest:
                self._fetched[action.step] = sums
                return peer_io.SumsFetched(action.stage, action.step)
        if self._comes(action.donors, action.step):
            return None
        return peer_io.SumsMissing(action.stage, action.step, "no donor has them")

    def _comes(self, donors: tuple[Actor, ...], version: int) -> bool:
        """Return True if a donor still has to reach what is needed. Then the order is carried out again later."""
        there = [
            p.engine.state.version
            for a in donors
            if (p := self._swarm.peers.get(a)) is not None and p.engine is not None
        ]
        return any(held is not None and held <= version for held in there)

    def gives(self, version: int) -> StageState | None:
        """The state of a version as other peers get it: a copy that was ordered, or one that is made now."""
        if version in self.copies or self.engine is None or self.engine.state.version != version:
            return self.copies.get(version)
        return self.engine.state.snapshot().result(WAIT_S)

    def _load(self, action: peer_io.LoadState) -> peer_io.PeerInput | None:
        if self.engine is not None:
            self.engine.close()
        self.engine = StageEngine(
            self._swarm.manifest, action.stage, StageOptions(**self._options), post=lambda event: None
        )
        if action.archive is not None:
            self.engine.state.load(self._swarm.archive[action.stage, action.version]).result(WAIT_S)
        elif action.donors:
            actors = tuple(donor.actor for donor in action.donors)
            given = (p.gives(action.version) for actor in actors if (p := self._swarm.peers.get(actor)) is not None)
            copy = next((copy for copy in given if copy is not None), None)
            if copy is None and self._comes(actors, action.version):
                return None
            if copy is None:
                return peer_io.StateFailed(action.stage, action.version, "no donor has it")
            self.engine.state.load(copy).result(WAIT_S)
        else:
            self.engine.state.initialise().result(WAIT_S)
        counts = (self.engine.buckets, self.engine.first_round, self.engine.shared_buckets)
        return peer_io.StateLoaded(action.stage, action.version, *counts)


Hook = Callable[["Swarm", Actor, object], None]


class Swarm:
    """A swarm in one process. Messages arrive in order, computing takes no time, and the clock jumps to the next
    deadline when there is nothing to do.

    `hook` is called before each action; it may `kill`.
    """

    def __init__(
        self, of: RunManifest, *, hook: Hook = lambda swarm, actor, action: None, capacity: int = 1000, **options
    ) -> None:
        self.manifest = of
        self.settings = dataclasses.replace(Settings.of(of), start_timeout_s=60.0)
        self.peers: dict[Actor, Peer] = {}
        self.events: list[Event] = []
        self.frames: list[Frame] = []
        """The activations of training passes that were sent."""
        self.decisions: dict[int, Decision] = {}
        self.commands: list[Command] = []
        self.losses: list[float] = []
        self.tables: tuple[StageTable, ...] = ()
        """The tables of the pass that was opened last."""
        self.archive: dict[tuple[int, int], object] = {}
        self._hook = hook
        self._capacity = capacity
        self._options = options
        self._corpus = Corpus(of)
        self._core = CoordinatorCore(COORDINATOR, self.settings, 0, None, None, ladders=ladders(of))
        self._queue: collections.deque[tuple[Actor, object]] = collections.deque()
        self._now = 0.0
        self._over = False

    def run(self) -> Swarm:
        for number in range(self.settings.stages * self.settings.replicas):
            self.start(f"peer{number}")
        for _ in range(200_000):
            if self._over:
                break
            if self._queue:
                to, event = self._queue.popleft()
                self._handle(to, event)
            else:
                self._tick()
        assert self._over, f"not finished; decided {sorted(self.decisions)}"
        return self

    def start(self, name: str, incarnation: int = 1) -> None:
        actor = Actor(name, incarnation)
        self.peers[actor] = Peer(self, actor, self._capacity, **self._options)
        self._queue.append((actor, io.Tick()))

    def tell(self, to: Actor, event: object) -> None:
        """Give an input to a core, as its driver would."""
        self._queue.append((to, event))

    def restart_coordinator(self) -> None:
        """Start the coordinator again. It finds the decisions on its disk."""
        last = self.decisions[max(self.decisions)] if self.decisions else None
        term = self._core.history.term
        self._core = CoordinatorCore(
            COORDINATOR,
            self.settings,
            term,
            last,
            None,
            ladders=ladders(self.manifest),
            controls=Controls.of(self.commands),
        )
        self._queue.append((COORDINATOR, io.Tick()))

    def kill(self, actor: Actor, *, back: bool = False, shutdown: bool = False) -> None:
        """Kill a process. `shutdown`: the coordinator hears of it at once."""
        dead = self.peers.pop(actor)
        if dead.engine is not None:
            dead.engine.close()
        if shutdown:
            self._queue.appendleft((COORDINATOR, io.Received(actor, Leave(actor, "goodbye"))))
        for other in (COORDINATOR, *self.peers):
            self._queue.append((other, io.LinkLost(actor)))
        if back:
            self.start(actor.peer, actor.incarnation + 1)

    def close(self) -> None:
        for peer in self.peers.values():
            if peer.engine is not None:
                peer.engine.close()

    def digests(self) -> tuple[str, ...]:
        """The digests of the state of each stage. All replicas of a stage must agree on them."""
        found: dict[int, set[str]] = {}
        for peer in self.peers.values():
            if peer.engine is not None and peer.engine.state.version == len(self.decisions):
                digest = peer.engine.state.snapshot().result(WAIT_S).digest()
                assert peer.core.held_stage.stage is not None
                found.setdefault(peer.core.held_stage.stage, set()).add(digest)
        assert all(len(digests) == 1 for digests in found.values())
        return tuple(found[stage].pop() for stage in range(self.settings.stages))

    def key_frames(self) -> list[tuple[int, ...]]:
        return [self.decisions[step].key_frames for step in sorted(self.decisions)]

    def reference(self) -> tuple[str, ...]:
        """The digests of the same run in one process that follows the decisions."""
        replay = {step: StepReplay.of(decision) for step, decision in self.decisions.items()}
        return train_reference(self.manifest, self._corpus, replay=replay, stop_after=len(replay)).digests

    def plain(self) -> tuple[str, ...]:
        """The digests of the same run in one process that knows no decisions."""
        return train_reference(self.manifest, self._corpus).digests

    # ------------------------------------------------------------

    def _tick(self) -> None:
        cores = {COORDINATOR: self._core, **{actor: peer.core for actor, peer in self.peers.items()}}
        due = {actor: core.next_wakeup() for actor, core in cores.items()}
        self._now = max(self._now, min(due.values()))
        self._queue.extend((actor, io.Tick()) for actor, at in due.items() if at <= self._now)

    def _handle(self, to: Actor, event: object) -> None:
        core = self._core if to == COORDINATOR else self.peers[to].core if to in self.peers else None
        if core is None:
            return
        if isinstance(event, Again):
            done = self.peers[to].carry_out(event.order)
            self._queue.append((to, event if done is None else done))
            if done is None and all(isinstance(waiting, Again) for _, waiting in self._queue):
                self._tick()
            return
        for action in core.handle(event, self._now):  # type: ignore[arg-type]
            self._hook(self, to, action)
            if to != COORDINATOR and to not in self.peers:
                return
            if isinstance(action, io.Send):
                self._send(to, action)
            elif to == COORDINATOR:
                self._coordinate(action)  # type: ignore[arg-type]
            elif (done := self.peers[to].carry_out(action)) is not None:  # type: ignore[arg-type]
                self._queue.append((to, done))
            elif isinstance(action, peer_io.LoadState | peer_io.FetchSums):
                self._queue.append((to, Again(action)))

    def _send(self, sender: Actor, send: io.Send) -> None:
        message = send.message
        if isinstance(message, Open):
            self.tables = message.tables
        if isinstance(message, Frame) and message.key.direction is Direction.FORWARD and not message.key.pass_id.index:
            self.frames.append(message)
        if send.to in (COORDINATOR, *self.peers):
            self._queue.append((send.to, io.Received(sender, message)))

    def _coordinate(self, action: coordinator_io.CoordinatorAction) -> None:
        done: object = None
        match action:
            case io.Emit(event):
                self.events.append(event)
            case io.Stop():
                self._over = True
            case coordinator_io.Feed(to, key, kind):
                self._feed(to, key, kind)
            case coordinator_io.WriteTerm(term, back):
                if back is not None:
                    self.decisions = {step: d for step, d in self.decisions.items() if step < back}
                done = coordinator_io.TermWritten(term)
            case coordinator_io.WriteRecord(decision):
                self.decisions[decision.step] = decision
                done = coordinator_io.RecordWritten(decision)
            case coordinator_io.WriteCommand(command):
                self.commands.append(command)
                done = coordinator_io.CommandWritten(command)
            case coordinator_io.PassClosed(_, kind, loss_sum, _) if kind is PassKind.EVALUATE:
                self.losses.append(loss_sum / self.manifest.batch.tokens_per_microbatch)
            case coordinator_io.CollectCheckpoint(version, term, holders, digests):
                for stage, actors in enumerate(holders):
                    held = [peer.engine for actor in actors if (peer := self.peers.get(actor)) is not None]
                    states = [
                        e.state.snapshot().result(WAIT_S) for e in held if e is not None and e.state.version == version
                    ]
                    if not states:
                        return
                    self.archive[stage, version] = states[0]
                done = coordinator_io.ArchiveStored(version, term, digests)
        if done is not None:
            self._queue.append((COORDINATOR, done))

    def _feed(self, to: Actor, key, kind: PassKind) -> None:
        form = next(iter(self.peers.values())).engine._format  # type: ignore[union-attr]
        if kind is PassKind.TRAIN:
            tokens = self._corpus.microbatch(key.pass_id.step, key.microbatch)
        elif kind is PassKind.EVALUATE:
            tokens = self._corpus.heldout(key.microbatch)
        else:
            tokens = np.ones((1, 3), dtype=np.int64)
        self._queue.append((to, io.Received(COORDINATOR, Frame(key, form.pack_tokens(kind, tokens)))))


def runs() -> Iterator[Callable[..., Swarm]]:
    """A fixture's value: `run(manifest, **options)` runs a swarm to its end. Everything that it opens is closed after
    the test.
    """
    made: list[Swarm] = []

    def start(of: RunManifest, **options) -> Swarm:
        made.append(Swarm(of, **options))
        return made[-1].run()

    yield start
    for swarm in made:
        swarm.close()


def once(strike: Callable[[Swarm, Actor, object], bool]) -> Hook:
    """Make a hook that acts until it has acted once with success."""
    hit: list[bool] = []

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if not hit and strike(swarm, actor, action):
            hit.append(True)

    return hook


def killing(step: int, stage: int, kind: type, back: bool = True, *, late: bool = False) -> Hook:
    """A hook: a peer of `stage` dies before its first action of that kind in the training pass of `step`.

    `late`: only a Forward of microbatch 2 or later counts.
    """

    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        hit = _is_told(swarm, actor, action, step, stage, kind) and not (late and getattr(action, "microbatch", 2) < 2)
        if hit:
            swarm.kill(actor, back=back)
        return hit

    return once(strike)


def killing_stage_one(step: int, stage: int, kind: type) -> Hook:
    """A hook: all peers of stage 1 die, and come back, before the first action of that kind at `stage`."""

    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        hit = _is_told(swarm, actor, action, step, stage, kind)
        for victim in [a for a in swarm.peers if stage_of(swarm, a) == 1] if hit else ():
            swarm.kill(victim, back=True)
        return hit

    return once(strike)


def _is_told(swarm: Swarm, actor: Actor, action: object, step: int, stage: int, kind: type) -> bool:
    if not isinstance(action, kind) or stage_of(swarm, actor) != stage:
        return False
    pass_id = action.pass_id if hasattr(action, "pass_id") else action.attempt.pass_id  # type: ignore[attr-defined]
    return (pass_id.step, pass_id.index) == (step, 0)


def stage_of(swarm: Swarm, actor: Actor) -> int | None:
    return swarm.peers[actor].core.held_stage.stage if actor in swarm.peers else None
