"""Runs with codec `delta`, real cores and real compute in one process: whatever dies, the answer is the reference's."""

import collections
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from peers.reference import ReplayError, train_reference
from peers.replay import StepReplay
from swarm.compute.engine import StageEngine
from swarm.data import StepOrder, step_order, visits
from swarm.events import Event, MicrobatchAccumulated, StepAborted
from swarm.manifest import (
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
    SwarmSection,
)
from swarm.protocol import actions as act
from swarm.protocol.coordinator import CoordinatorCore
from swarm.protocol.ids import Actor, Direction, PassKind
from swarm.protocol.messages import Decision, Frame, Leave, Open, StageTable
from swarm.protocol.peer import PeerCore
from swarm.protocol.settings import Settings

WAIT_S = 30.0
COORDINATOR = Actor("coordinator", 0)
BLOCKS = 2


def manifest(codec: str = "delta:4", stages: int = 2, steps: int = 6, evaluate: int = 0, **sections) -> RunManifest:
    length, microbatches, sequences = 12, 4, 2
    shard = Shard(file="train-0.bin", sha256="0" * 64, tokens=BLOCKS * microbatches * sequences * length + length)
    model = ModelSection(
        vocab_size=97, dim=32, layers=4, heads=4, kv_heads=2, ffn_dim=64, context=16, cuts=(1, 3)[: stages - 1]
    )
    return RunManifest(
        run=RunSection(steps=steps, seed=7),
        model=model,
        batch=BatchSection(microbatches=microbatches, sequences=sequences, sequence_length=length, order="steps"),
        optimizer=OptimizerSection(learning_rate=1e-2, warmup_steps=1),
        codec=CodecSection(forward=codec, backward="int8"),
        checkpoint=CheckpointSection(every=sections.pop("every", 100)),
        evaluation=EvaluationSection(every=evaluate, microbatches=1, sample_tokens=2 if evaluate else 0),
        swarm=SwarmSection(replicas=2),
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
    """Microbatches drawn from (block, microbatch)."""

    def __init__(self, of: RunManifest) -> None:
        self._shape = (of.batch.sequences, of.batch.sequence_length + 1)
        order = step_order(of)
        assert order is not None
        self._order: StepOrder = order

    def microbatch(self, step: int, m: int) -> np.ndarray:
        return np.random.default_rng((self._order.block(step), m)).integers(0, 97, self._shape)

    def heldout(self, m: int) -> np.ndarray:
        return np.random.default_rng((99, m)).integers(0, 97, self._shape)


class Peer:
    def __init__(self, swarm: "Swarm", actor: Actor, capacity: int, **options) -> None:
        self.actor = actor
        self.core = PeerCore(
            actor,
            COORDINATOR,
            dataclasses.replace(swarm.settings, slots=options.pop("slots", 16)),
            visits=visits(swarm.manifest),
            base_capacity=capacity,
        )
        self.engine: StageEngine | None = None
        self._swarm = swarm
        self._options = options

    def carry_out(self, action: act.PeerAction) -> object:
        """What comes of it, at once."""
        match action:
            case act.LoadState():
                return self._load(action)
            case act.SaveCheckpoint(version):
                return act.CheckpointSaved(version, f"version {version}")
            case act.Emit() | act.Stop():
                return None
        assert self.engine is not None
        try:
            done = self.engine._carry_out(action)  # type: ignore[arg-type]
        except (ValueError, LookupError) as error:
            return act.ComputeFailed(action.pass_id, action.microbatch, repr(error))  # type: ignore[union-attr]
        if isinstance(done, act.ForwardDone | act.BackwardDone):
            return dataclasses.replace(done, seconds=0.01)  # all are equally fast: shares stay as they are
        return done

    def _load(self, action: act.LoadState) -> act.PeerInput:
        if self.engine is not None:
            self.engine.close()
        self.engine = StageEngine(self._swarm.manifest, action.stage, post=lambda event: None, **self._options)
        if action.from_archive:
            self.engine.load_state(self._swarm.archive[action.stage, action.version]).result(WAIT_S)
        elif action.source is None:
            self.engine.initialise().result(WAIT_S)
        else:
            source = self._swarm.peers.get(action.source)
            if source is None or source.engine is None or source.engine.version != action.version:
                return act.StateFailed(action.stage, action.version, "not there")
            self.engine.load_state(source.engine.snapshot().result(WAIT_S)).result(WAIT_S)
        return act.StateLoaded(action.stage, action.version, self.engine.buckets)


Hook = Callable[["Swarm", Actor, object], None]


class Swarm:
    """Messages arrive in order, computing takes no time, the clock jumps to the next deadline when nothing is to do.

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
        """Activations of training passes that were sent."""
        self.decisions: dict[int, Decision] = {}
        self.losses: list[float] = []
        self.tables: tuple[StageTable, ...] = ()
        """Of the pass that was opened last."""
        self.archive: dict[tuple[int, int], object] = {}
        self._hook = hook
        self._capacity = capacity
        self._options = options
        self._corpus = Corpus(of)
        self._core = CoordinatorCore(COORDINATOR, self.settings, 0, None, None)
        self._queue: collections.deque[tuple[Actor, object]] = collections.deque()
        self._now = 0.0
        self._over = False

    def run(self) -> "Swarm":
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
        self._queue.append((actor, act.Tick()))

    def kill(self, actor: Actor, *, back: bool = False, farewell: bool = False) -> None:
        """`farewell`: the coordinator hears of it at once."""
        dead = self.peers.pop(actor)
        if dead.engine is not None:
            dead.engine.close()
        if farewell:
            self._queue.appendleft((COORDINATOR, act.Received(actor, Leave(actor, "goodbye"))))
        for other in (COORDINATOR, *self.peers):
            self._queue.append((other, act.LinkLost(actor)))
        if back:
            self.start(actor.peer, actor.incarnation + 1)

    def close(self) -> None:
        for peer in self.peers.values():
            if peer.engine is not None:
                peer.engine.close()

    def digests(self) -> tuple[str, ...]:
        """Of the state of each stage, which all its replicas agree on."""
        found: dict[int, set[str]] = {}
        for peer in self.peers.values():
            if peer.engine is not None and peer.engine.version == self.settings.steps:
                digest = peer.engine.snapshot().result(WAIT_S).digest()
                assert peer.core.holding.stage is not None
                found.setdefault(peer.core.holding.stage, set()).add(digest)
        assert all(len(digests) == 1 for digests in found.values())
        return tuple(found[stage].pop() for stage in range(self.settings.stages))

    def key_frames(self) -> list[tuple[int, ...]]:
        return [self.decisions[step].key_frames for step in sorted(self.decisions)]

    def reference(self) -> tuple[str, ...]:
        replay = {step: StepReplay.of(decision) for step, decision in self.decisions.items()}
        return train_reference(self.manifest, self._corpus, replay=replay).digests

    # ------------------------------------------------------------

    def _tick(self) -> None:
        cores = {COORDINATOR: self._core, **{actor: peer.core for actor, peer in self.peers.items()}}
        due = {actor: core.next_wakeup() for actor, core in cores.items()}
        self._now = max(self._now, min(due.values()))
        self._queue.extend((actor, act.Tick()) for actor, at in due.items() if at <= self._now)

    def _handle(self, to: Actor, event: object) -> None:
        core = self._core if to == COORDINATOR else self.peers[to].core if to in self.peers else None
        if core is None:
            return
        for action in core.handle(event, self._now):  # type: ignore[arg-type]
            self._hook(self, to, action)
            if to != COORDINATOR and to not in self.peers:
                return
            if isinstance(action, act.Send):
                self._send(to, action)
            elif to == COORDINATOR:
                self._coordinate(action)  # type: ignore[arg-type]
            elif (done := self.peers[to].carry_out(action)) is not None:  # type: ignore[arg-type]
                self._queue.append((to, done))

    def _send(self, sender: Actor, send: act.Send) -> None:
        message = send.message
        if isinstance(message, Open):
            self.tables = message.tables
        if isinstance(message, Frame) and message.key.direction is Direction.FORWARD and not message.key.pass_id.index:
            self.frames.append(message)
        if send.to in (COORDINATOR, *self.peers):
            self._queue.append((send.to, act.Received(sender, message)))

    def _coordinate(self, action: act.CoordinatorAction) -> None:
        done: object = None
        match action:
            case act.Emit(event):
                self.events.append(event)
            case act.Stop():
                self._over = True
            case act.Feed(to, key, kind):
                self._feed(to, key, kind)
            case act.WriteTerm(term, back):
                if back is not None:
                    self.decisions = {step: d for step, d in self.decisions.items() if step < back}
                done = act.TermWritten(term)
            case act.WriteRecord(decision):
                self.decisions[decision.step] = decision
                done = act.RecordWritten(decision)
            case act.PassClosed(_, kind, loss_sum, _) if kind is PassKind.EVALUATE:
                self.losses.append(loss_sum / self.manifest.batch.tokens_per_microbatch)
            case act.CollectCheckpoint(version, holders, _):
                for stage, actors in enumerate(holders):
                    held = [peer.engine for actor in actors if (peer := self.peers.get(actor)) is not None]
                    states = [e.snapshot().result(WAIT_S) for e in held if e is not None and e.version == version]
                    if not states:
                        return
                    self.archive[stage, version] = states[0]
                done = act.ArchiveStored(version)
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
        self._queue.append((to, act.Received(COORDINATOR, Frame(key, form.pack_tokens(kind, tokens)))))


@pytest.fixture
def run() -> Iterator[Callable[..., Swarm]]:
    made: list[Swarm] = []

    def start(of: RunManifest, **options) -> Swarm:
        made.append(Swarm(of, **options))
        return made[-1].run()

    yield start
    for swarm in made:
        swarm.close()


def once(strike: Callable[[Swarm, Actor, object], bool]) -> Hook:
    """A hook that strikes until it has hit."""
    hit: list[bool] = []

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if not hit and strike(swarm, actor, action):
            hit.append(True)

    return hook


def stage_of(swarm: Swarm, actor: Actor) -> int | None:
    return swarm.peers[actor].core.holding.stage if actor in swarm.peers else None


EVERYTHING = 0b1111


@pytest.mark.parametrize("codec", ["delta:4", "delta:2", "delta:8"])
@pytest.mark.parametrize("stages", [2, 3])
def test_only_first_visits_cross_whole(run, codec: str, stages: int) -> None:
    swarm = run(manifest(codec, stages))
    cuts = stages - 1
    assert swarm.key_frames() == [(EVERYTHING,) * cuts] * BLOCKS + [(0,) * cuts] * 4
    assert all((frame.lineage.base == 0) == (frame.key.pass_id.step < BLOCKS) for frame in swarm.frames)
    whole, changed = (
        max(len(frame.payload) for frame in swarm.frames if (frame.lineage.base != 0) is is_change)
        for is_change in (False, True)
    )
    bits = int(codec.partition(":")[2])
    assert changed < (bits + 1) / 16 * whole + 200
    assert swarm.digests() == swarm.reference()
    assert swarm.digests() == train_reference(swarm.manifest, Corpus(swarm.manifest)).digests, "nobody has forgotten"


def test_without_memory_for_graphs_the_forward_is_computed_from_the_same_base(run) -> None:
    swarm = run(manifest(stages=3), graph_budget_bytes=0)
    assert swarm.digests() == swarm.reference()
    assert sum(map(sum, swarm.key_frames()[BLOCKS:])) == 0


def killing(step: int, stage: int, kind: type, back: bool) -> Hook:
    """Kills a peer of `stage` before its first action of that kind in `step`, a Forward being that of a late one."""

    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        if not isinstance(action, kind) or stage_of(swarm, actor) != stage:
            return False
        pass_id = action.attempt.pass_id if isinstance(action, act.EncodePart) else action.pass_id  # type: ignore
        if (pass_id.step, pass_id.index) != (step, 0) or getattr(action, "microbatch", 2) < 2:
            return False
        swarm.kill(actor, back=back)
        return True

    return once(strike)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("back", [False, True], ids=["stays away", "comes back"])
@pytest.mark.parametrize("kind", [act.Forward, act.EncodePart], ids=["in forward", "in reduce"])
def test_a_sender_killed_in_a_later_visit(run, kind: type, back: bool, stage: int) -> None:
    swarm = run(manifest(stages=3), hook=killing(3, stage, kind, back))
    frames = swarm.key_frames()
    assert any(step[stage] for step in frames[3:]), "what died with the peer crosses whole again"
    assert any(bits != EVERYTHING for step in frames[3:] for bits in step)
    assert swarm.digests() == swarm.reference()
    assert swarm.digests() != train_reference(swarm.manifest, Corpus(swarm.manifest)).digests, "the record is needed"


@pytest.mark.parametrize("back", [False, True], ids=["stays away", "comes back"])
@pytest.mark.parametrize("kind", [act.Forward, act.EncodePart], ids=["in forward", "in reduce"])
def test_a_receiver_killed_in_a_later_visit_costs_whole_frames_and_changes_nothing(run, kind: type, back: bool) -> None:
    swarm = run(manifest(stages=2), hook=killing(3, 1, kind, back))
    assert swarm.key_frames() == [(EVERYTHING,)] * BLOCKS + [(0,)] * 4
    assert any(not frame.lineage.base and not frame.lineage.fresh for frame in swarm.frames)
    assert swarm.digests() == train_reference(swarm.manifest, Corpus(swarm.manifest)).digests == swarm.reference()


def test_a_step_that_mixed_two_copies_is_done_again(run) -> None:
    """A sender goes when its change is used; another makes a key frame of it and takes the gradient of the change; then
    the receiver of the change goes, and a third computes with the key frame."""
    gone: list[Actor] = []

    def goes(swarm: Swarm, actor: Actor) -> None:
        gone.append(actor)
        swarm.kill(actor, farewell=True)

    def hook(swarm: Swarm, actor: Actor, action: object) -> None:
        if stage_of(swarm, actor) != 0 or len(gone) > 1:
            return
        if not gone and isinstance(action, act.EncodePart) and action.attempt.pass_id.step == 3:
            goes(swarm, actor)
        elif gone and isinstance(action, act.Emit) and isinstance(action.event, MicrobatchAccumulated):
            goes(swarm, swarm.tables[1].assignee(action.event.microbatch))

    swarm = run(manifest(stages=2), hook=hook)
    assert len(gone) == 2
    (aborted,) = [event for event in swarm.events if isinstance(event, StepAborted)]
    assert (aborted.pass_id, aborted.reason) == (
        "1:3",
        "the stages beside boundary 1 computed with different copies of a frame",
    )
    assert swarm.digests() == swarm.reference()


def test_a_small_cache_costs_bytes_only(run) -> None:
    swarm = run(manifest(stages=3), capacity=3)
    frames = swarm.key_frames()
    assert any(0 < bits < EVERYTHING for step in frames[BLOCKS:] for bits in step), "some are kept, some are not"
    assert swarm.digests() == swarm.reference()
    for peer in swarm.peers.values():
        assert len(peer.core._bases) <= 3 and peer.engine is not None and peer.engine._stage is not None
        assert len(peer.engine._stage.bases) == len(peer.core._bases)


def test_a_rollback_begins_with_key_frames(run) -> None:
    """Both replicas of a stage die: all go back to the archive, where no bases are."""

    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        if isinstance(action, act.Forward) and action.pass_id.step == 5 and stage_of(swarm, actor) == 1:
            for victim in [a for a in swarm.peers if stage_of(swarm, a) == 1]:
                swarm.kill(victim, back=True)
            return True
        return False

    swarm = run(manifest(stages=2, steps=8, every=4), hook=once(strike))
    frames = [step[0] for step in swarm.key_frames()]
    assert frames == [EVERYTHING] * 2 + [0, 0] + [EVERYTHING] * 2 + [0, 0]
    assert swarm.digests() == swarm.reference()


def test_evaluation_crosses_whole_and_leaves_nothing(run) -> None:
    swarm = run(manifest(stages=2, evaluate=2))
    assert swarm.key_frames() == [(EVERYTHING,)] * BLOCKS + [(0,)] * 4
    assert swarm.digests() == swarm.reference()
    from peers.reference import ReferenceModel

    model, losses = ReferenceModel(swarm.manifest), []
    for step in range(6):
        model.train(step, Corpus(swarm.manifest))
        if step % 2:
            losses.append(model.heldout_loss(Corpus(swarm.manifest)))
    assert swarm.losses == losses


def test_the_reference_says_when_it_cannot_replay() -> None:
    of = manifest(steps=4)
    half = train_reference(of, Corpus(of), stop_after=2)
    with pytest.raises(ReplayError, match=r"microbatch 0 of step 2 crossed boundary 1 .* train from version 0"):
        train_reference(of, Corpus(of), state=half.states, replay={2: StepReplay((0,))})


def test_aborted_steps_leave_no_base(run) -> None:
    """The step is given up after every peer has computed all of it: its reconstructions are nobody's base."""

    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        if isinstance(action, act.Assemble) and action.attempt.pass_id.step == 2 and stage_of(swarm, actor) == 0:
            for victim in [a for a in swarm.peers if stage_of(swarm, a) == 1]:
                swarm.kill(victim, back=True)
            return True
        return False

    swarm = run(manifest(stages=2, steps=6, every=1), hook=once(strike))
    assert any(isinstance(event, StepAborted) for event in swarm.events)
    assert swarm.digests() == swarm.reference()


def test_orders_of_steps_are_needed() -> None:
    with pytest.raises(ValueError, match=r'codec.forward = "delta:4" .* set batch.order = "steps"'):
        RunManifest.model_validate(
            {**manifest().model_dump(), "batch": {**manifest().batch.model_dump(), "order": "samples"}}
        )
    with pytest.raises(ValueError, match=r"the training split has 16 samples, one step takes 80"):
        RunManifest.model_validate(
            {**manifest().model_dump(), "batch": {**manifest().batch.model_dump(), "microbatches": 40}}
        )


@pytest.mark.parametrize(
    "codec", ["ef21:4", "ef21:topk:0.2", "delta:topk:0.2", "ef:int4", "ef:topk:0.2", "ef-mixed:topk:0.2"]
)
def test_changes_of_other_kinds(run, codec: str) -> None:
    swarm = run(manifest(codec))
    first = 1 if codec.startswith("ef") else BLOCKS
    assert swarm.key_frames() == [(EVERYTHING,)] * first + [(0,)] * (6 - first)
    assert swarm.digests() == swarm.reference()


@pytest.mark.parametrize("codec", ["ef21:4", "ef:topk:0.2"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_peer_killed_where_each_step_builds_on_the_one_before(run, stage: int, codec: str) -> None:
    def strike(swarm: Swarm, actor: Actor, action: object) -> bool:
        if (
            isinstance(action, act.Backward | act.Forward)
            and action.pass_id.step == 3
            and stage_of(swarm, actor) == stage
        ):
            swarm.kill(actor, back=True)
            return True
        return False

    swarm = run(manifest(codec, steps=7), hook=once(strike))
    assert swarm.digests() == swarm.reference()
    assert any(frames == (0,) for frames in swarm.key_frames()[4:]), "changes cross again"


def test_changes_since_the_step_before_need_no_order_of_steps() -> None:
    batch = {**manifest().batch.model_dump(), "order": "samples"}
    plain = RunManifest.model_validate({**manifest("ef21:4").model_dump(), "batch": batch})
    assert visits(plain) is not None and visits(plain).previous(5) == 4
