"""The reference and hand-driven engines must agree to the last bit."""

import itertools
import queue
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from peers.run.reference import train_reference
from swarm.compute import checksum, offload
from swarm.compute.body import BodyFormat
from swarm.compute.digest import run_digest
from swarm.compute.engine import StageEngine
from swarm.compute.optimizer import OptimizerError
from swarm.compute.precision import Precision
from swarm.compute.stage_options import StageOptions
from swarm.manifest import (
    BatchSection,
    CodecSection,
    DataSection,
    ModelSection,
    OptimizerSection,
    RunManifest,
    RunSection,
    Shard,
    SumSection,
)
from swarm.protocol.clipping import step_scale
from swarm.protocol.ids import Attempt, PassId, PassKind
from swarm.protocol.messages import Decision
from swarm.protocol.peer.io import (
    AppliedStep,
    Apply,
    Assemble,
    Assembled,
    Backward,
    BackwardDone,
    Begin,
    BucketSummed,
    ComputeFailed,
    EncodePart,
    Forward,
    ForwardDone,
    PartEncoded,
    StoreSum,
    SumBucket,
)
from swarm.protocol.update import update_of

WAIT_S = 30.0
CUTS = {1: (), 2: (2,), 3: (1, 3), 4: (1, 2, 3)}


SUBSPACE = {"residual": "subspace", "subspace_dim": 6, "tail_layers": 1}
GROWN = SUBSPACE | {"subspace_growth": 4}


def manifest(stages=2, codec="none", mode="exact", steps=3, subspace=None, backward=None, **optimizer):
    model = ModelSection(
        **dict(vocab_size=97, dim=32, layers=4, heads=4, kv_heads=2, ffn_dim=64, context=16, cuts=CUTS[stages]),
        **(subspace or {}),
    )
    shard = Shard(file="train-0.bin", sha256="0" * 64, tokens=10_000)
    data = DataSection(
        tokenizer_sha256="0" * 64,
        vocab_size=97,
        train=(shard,),
        heldout=(shard,),
        unigram_entropy=4.0,
        bytes_per_token=4.0,
    )
    return RunManifest(
        run=RunSection(steps=steps, seed=7),
        model=model,
        subspace_id=model.subspace_id,
        batch=BatchSection(microbatches=5, sequences=2, sequence_length=12),
        optimizer=OptimizerSection(learning_rate=1e-2, warmup_steps=1, **optimizer),
        codec=CodecSection(forward=codec, backward=backward or codec),
        sums=SumSection(mode=mode),
        data=data,
    )


class Corpus:
    """Microbatches drawn from (step, microbatch) alone."""

    def __init__(self, of: RunManifest) -> None:
        self._shape = (of.batch.sequences, of.batch.sequence_length + 1)
        self._vocab = of.model.vocab_size

    def microbatch(self, step: int, m: int) -> np.ndarray:
        return np.random.default_rng((step, m)).integers(0, self._vocab, self._shape)


class Pump:
    """Plays the core for `replicas` engines of every stage: one action, one answer."""

    def __init__(self, of: RunManifest, *, replicas=1, seed=0, **options):
        self.manifest = of
        self.random = random.Random(seed)
        self.format = BodyFormat(of)
        self.posts: queue.SimpleQueue = queue.SimpleQueue()
        self.stages = [
            [StageEngine(of, stage, StageOptions(**options), post=self.posts.put) for _ in range(replicas)]
            for stage in range(of.model.stages)
        ]

    def __enter__(self):
        for engine in self.engines():
            engine.state.initialise().result(WAIT_S)
        return self

    def __exit__(self, *_):
        for engine in self.engines():
            engine.close()

    def engines(self):
        return itertools.chain.from_iterable(self.stages)

    def ask(self, engine, action, kind):
        engine.submit(action)
        done = self.posts.get(timeout=WAIT_S)
        assert isinstance(done, kind), done
        return done

    def step(self, step: int, corpus: Corpus) -> list[str]:
        """One training step; returns each stage's chain digest. Replica, order and reducer are drawn at random."""
        pass_id = PassId(0, step)
        for engine in self.engines():
            engine.submit(Begin(pass_id, PassKind.TRAIN))
        order = list(range(self.manifest.batch.microbatches))
        self.random.shuffle(order)
        backwards = []
        for m in order:
            payload = self.format.pack_tokens(PassKind.TRAIN, corpus.microbatch(step, m))
            path = [self.random.choice(replicas) for replicas in self.stages]
            for engine in path[:-1]:
                payload = self.ask(engine, Forward(pass_id, PassKind.TRAIN, m, payload), ForwardDone).payload
            done = self.ask(path[-1], Forward(pass_id, PassKind.TRAIN, m, payload), BackwardDone)
            backwards.append((m, path[:-1], done.payload))
        self.random.shuffle(backwards)
        for m, path, gradient in backwards:
            for engine in reversed(path):
                gradient = self.ask(engine, Backward(pass_id, m, gradient), BackwardDone).payload
            assert gradient is None
        return self.finish(pass_id)

    def finish(self, pass_id: PassId) -> list[str]:
        assembled = [self.reduce(Attempt(pass_id, stage, 0)) for stage in range(len(self.stages))]
        tokens = self.manifest.batch.tokens_per_step
        norms = [found.squared_norm for found in assembled]
        scale, norm = self.scaled(pass_id, norms, tokens)
        update = update_of(self.manifest.optimizer, pass_id.step, self.manifest.run.steps)
        loss_sum = assembled[-1].loss_sum
        decision = Decision(0, pass_id.step, scale, loss_sum, tokens, norm, (), update=update)
        chains = []
        for stage, replicas in enumerate(self.stages):
            apply = Apply(decision, Attempt(pass_id, stage, 0))
            found = {self.ask(engine, apply, AppliedStep).digest for engine in replicas}
            assert len(found) == 1
            chains += found
        return chains

    def scaled(self, pass_id: PassId, norms: list[float], tokens: int) -> tuple[float, float]:
        """The scale of a step and its norm."""
        return step_scale(norms, tokens, self.manifest.optimizer.clip_norm)

    def reduce(self, attempt: Attempt) -> Assembled:
        replicas = self.stages[attempt.stage]
        for bucket in range(replicas[0].buckets):
            reducer, *others = self.random.sample(replicas, len(replicas))
            parts = tuple(bytes(self.ask(other, EncodePart(attempt, bucket), PartEncoded).payload) for other in others)
            total = self.ask(reducer, SumBucket(attempt, bucket, parts), BucketSummed).payload
            for engine in replicas:
                engine.submit(StoreSum(attempt, bucket, bytes(total)))
        found = [self.ask(engine, Assemble(attempt), Assembled) for engine in replicas]
        assert len({replace(each, sketch=b"") for each in found}) == 1  # a sketch is of what a replica contributed
        return found[0]

    def digests(self) -> tuple[str, ...]:
        found = [{engine.state.snapshot().result(WAIT_S).digest() for engine in replicas} for replicas in self.stages]
        assert all(len(of_stage) == 1 for of_stage in found), "replicas differ"
        return tuple(next(iter(of_stage)) for of_stage in found)


def drive(of: RunManifest, pump=Pump, **options) -> tuple[list[list[str]], tuple[str, ...]]:
    with pump(of, **options) as swarm:
        corpus = Corpus(of)
        chains = [swarm.step(step, corpus) for step in range(of.run.steps)]
        return chains, swarm.digests()


@pytest.mark.parametrize("codec", ["none", "bf16", "int8"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_two_shuffled_replicas_equal_the_reference(stages, codec):
    of = manifest(stages, codec)
    expected = train_reference(of, Corpus(of))
    chains, digests = drive(of, replicas=2, seed=stages)
    assert digests == expected.digests
    assert chains == [list(step.chains) for step in expected.steps]
    assert run_digest(digests) == expected.digest


GRAPHS = {
    "recompute all": {"graph_budget_bytes": 0},
    "keep all": {},
    "recompute layers": {"recomputes_layers": True},
    "offload": {"offload": True},
}


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("stages", [2, 4])
def test_two_replicas_of_a_subspace_model_equal_the_reference(stages, codec, graphs):
    of = manifest(stages, codec, subspace=SUBSPACE)
    expected = train_reference(of, Corpus(of))
    chains, digests = drive(of, replicas=2, seed=stages, **GRAPHS[graphs])
    assert digests == expected.digests
    assert chains == [list(step.chains) for step in expected.steps]


RECEIVERS = {"token_table_dim": 3, "receiver_hidden": 20}
BOUNDARIES = {
    kind: {"boundary": kind, "boundary_dim": width}
    for kind, width in (("bottleneck", 6), ("maxout", 8), ("projector", 6))
}
BOUNDARIES |= {
    "bottleneck with receivers": BOUNDARIES["bottleneck"] | RECEIVERS,
    "grown subspace with receivers": GROWN | RECEIVERS,
    "anchored dense with receivers": {"anchor": "frozen"} | RECEIVERS,
}


@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["recompute all", "keep all"])
@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("kind", BOUNDARIES)
def test_two_replicas_with_narrow_boundaries_equal_the_reference(kind, stages, codec, budget):
    of = manifest(stages, codec, subspace=BOUNDARIES[kind])
    expected = train_reference(of, Corpus(of))
    chains, digests = drive(of, replicas=2, seed=stages, graph_budget_bytes=budget)
    assert digests == expected.digests
    assert chains == [list(step.chains) for step in expected.steps]


def test_coarse_codecs_of_a_narrow_boundary_are_those_of_the_reference():
    of = manifest(3, "int4", backward="log4", subspace=BOUNDARIES["projector"])
    _, digests = drive(of, replicas=2, seed=5)
    assert digests == train_reference(of, Corpus(of)).digests


MEANS = {"grown subspace": GROWN, "projector": BOUNDARIES["projector"], "dense": {}}


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("kind", MEANS)
def test_token_means_follow_what_crossed_alike_at_both_ends_and_in_the_reference(kind, graphs):
    of = manifest(3, "entropy:1.4", backward="entropy-dithered:1", subspace=MEANS[kind] | {"token_means": True})
    expected = train_reference(of, Corpus(of))
    chains, digests = drive(of, replicas=2, seed=5, **GRAPHS[graphs])
    assert digests == expected.digests
    assert chains == [list(step.chains) for step in expected.steps]
    tables = [
        {name: tensor for name, tensor in state.tensors.items() if name.endswith(".token_means")}
        for state in expected.states
    ]
    for cut, (sender, receiver) in enumerate(itertools.pairwise(tables)):
        (sent,) = (table for name, table in sender.items() if "param/" in name and "sent" in name)
        (received,) = (table for name, table in receiver.items() if "param/" in name and "received" in name)
        assert torch.equal(sent, received), cut
        assert sent[:, :-1].any() and sent[:, -1].max() > 1, "the means have moved"


def projector_error(of: RunManifest) -> float:
    """Largest |XᵀX − I| of the projectors after the run; all must have moved."""
    result = train_reference(of, Corpus(of))
    error = 0.0
    for state in result.states:
        for name, tensor in state.tensors.items():
            if name.startswith("param/") and name.endswith(".projector"):
                tall = (tensor if tensor.shape[0] > tensor.shape[1] else tensor.mT).double()
                assert (tall - torch.eye(*tall.shape)).abs().max() > 0.05
                error = max(error, (tall.mT @ tall - torch.eye(tall.shape[1])).abs().max().item())
    return error


def test_projectors_are_orthonormal_after_50_steps():
    assert 0 < projector_error(manifest(3, "int8", steps=50, subspace=BOUNDARIES["projector"])) < 1e-5


def test_without_the_retraction_projectors_would_not_be_orthonormal(monkeypatch):
    """Negative control of the test above."""
    monkeypatch.setattr("swarm.compute.optimizer.retract", lambda weight: weight)
    assert projector_error(manifest(3, "int8", steps=50, subspace=BOUNDARIES["projector"])) > 1e-2


def test_state_of_another_boundary_is_refused():
    of = manifest(2, steps=2, subspace=BOUNDARIES["bottleneck"])
    half = train_reference(of, Corpus(of), stop_after=1)
    other = manifest(2, steps=2, subspace=BOUNDARIES["maxout"])
    with pytest.raises(OptimizerError, match=f"state belongs to subspace {of.subspace_id[:16]}, .* model.boundary"):
        train_reference(other, Corpus(other), state=half.states)


TOPK = ("topk:0.25", "topk-shared")
PAIRS = [
    ("int4", "log4"),
    ("int2", "int4"),
    ("int5-channel", "log4-channel"),
    ("int6", "int5"),
    ("huffman:int4-channel", "huffman:log4-channel"),
]
PAIRS += [TOPK, ("topk:0.25", "topk-independent:0.25")]


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_two_codecs_are_the_same_in_the_swarm_and_in_the_reference(forward, backward):
    of = manifest(3, forward, backward=backward)
    expected = train_reference(of, Corpus(of))
    chains, digests = drive(of, replicas=2, seed=5)
    assert digests == expected.digests
    assert chains == [list(step.chains) for step in expected.steps]


@pytest.mark.parametrize("subspace", [SUBSPACE, GROWN], ids=["one width", "grown"])
def test_a_subspace_model_computes_the_same_bits_however_it_is_cut(subspace):
    """`none` loses nothing: what crosses is the residual itself. Only where the norms are added up differs."""
    results = [
        train_reference(manifest(stages, steps=2, subspace=subspace, clip_norm=1e9), Corpus(manifest(stages)))
        for stages in CUTS
    ]
    tensors = [{k: v for state in result.states for k, v in state.tensors.items()} for result in results]
    for other in tensors[1:]:
        assert other.keys() == tensors[0].keys()
        assert all(torch.equal(other[name], tensors[0][name]) for name in other)


def test_state_of_another_subspace_is_refused():
    of = manifest(2, subspace=SUBSPACE, steps=2)
    half = train_reference(of, Corpus(of), stop_after=1)
    other = manifest(2, subspace={**SUBSPACE, "subspace_seed": 1}, steps=2)
    with pytest.raises(
        OptimizerError, match=f"state belongs to subspace {of.subspace_id[:16]}, this run has {other.subspace_id[:16]}"
    ):
        train_reference(other, Corpus(other), state=half.states)
    engine = StageEngine(other, 0, post=lambda _: None)
    try:
        with pytest.raises(OptimizerError, match="so the state cannot be used"):
            engine.state.load(half.states[0]).result(WAIT_S)
        assert engine.state.version is None
    finally:
        engine.close()
    same = StageEngine(of, 0, post=lambda _: None)
    try:
        same.state.load(half.states[0]).result(WAIT_S)
        assert same.state.snapshot().result(WAIT_S).subspace_id == of.subspace_id
    finally:
        same.close()


@pytest.mark.parametrize("budget", [0, 400_000], ids=["recompute all", "recompute some"])
def test_a_shared_mask_outlives_the_graph(budget):
    of = manifest(3, *TOPK[:1], backward=TOPK[1])
    _, digests = drive(of, replicas=2, graph_budget_bytes=budget)
    assert digests == train_reference(of, Corpus(of)).digests


@pytest.mark.parametrize("budget", [0, 400_000], ids=["recompute all", "recompute some"])
def test_recomputed_forwards_give_the_same_bits(budget):
    of = manifest(3, "int8")
    kept = []

    class Watched(Pump):
        def finish(self, pass_id):
            kept.append(self.most)
            return super().finish(pass_id)

        most = (0, 0)

        def ask(self, engine, action, kind):
            done = super().ask(engine, action, kind)
            if engine is self.stages[1][0]:
                held = list(engine.state.stage._graphs._kept.values())
                graphs = sum(entry.graph is not None for entry in held)
                self.most = max(self.most, (graphs, len(held) - graphs))
            return done

    _, digests = drive(of, pump=Watched, graph_budget_bytes=budget)
    assert digests == train_reference(of, Corpus(of)).digests
    graphs, bodies = kept[-1]
    assert bodies > 0
    assert (graphs > 0) == (budget > 0)


def test_the_run_learns_and_is_clipped():
    of = manifest(2, steps=8, clip_norm=0.5)
    fixed = Corpus(of).microbatch(0, 0)

    class OneText:
        def microbatch(self, step, m):
            return fixed

    steps = train_reference(of, OneText()).steps
    assert steps[0].loss == pytest.approx(np.log(97), rel=0.05)
    assert steps[-1].loss < 0.7 * steps[0].loss
    clipped = [step for step in steps if step.gradient_norm > 0.5]
    assert clipped
    assert all(s.scale * of.batch.tokens_per_step == pytest.approx(0.5 / s.gradient_norm) for s in clipped)


def test_stopping_and_resuming_equals_one_run():
    of = manifest(2, "int8", steps=4)
    whole = train_reference(of, Corpus(of))
    half = train_reference(of, Corpus(of), stop_after=2)
    seen = []
    rest = train_reference(of, Corpus(of), state=half.states, on_step=seen.append)
    assert rest.digest == whole.digest
    assert half.steps + rest.steps == whole.steps
    assert seen == list(rest.steps)


def test_state_of_another_stage_count_is_refused():
    half = train_reference(manifest(2), Corpus(manifest(2)), stop_after=1)
    with pytest.raises(ValueError, match="expected 4 stages"):
        train_reference(manifest(4), Corpus(manifest(4)), state=half.states)


def test_cuts_do_not_change_initial_parameters_or_a_lossless_step():
    results = [train_reference(manifest(stages, steps=2), Corpus(manifest(stages))) for stages in CUTS]
    tensors = [{k: v for state in result.states for k, v in state.tensors.items()} for result in results]
    for other in tensors[1:]:
        assert other.keys() == tensors[0].keys()
        assert all((other[name] == tensors[0][name]).float().mean() > 0.999 for name in other)
    assert {result.steps[0].loss for result in results} == {results[0].steps[0].loss}


def test_fp32_sums_stay_close_to_exact_ones():
    exact, loose = manifest(2, steps=3), manifest(2, steps=3, mode="fp32")
    expected = train_reference(exact, Corpus(exact))
    with Pump(loose, replicas=2) as pump:
        for step in range(3):
            pump.step(step, Corpus(loose))
        states = [replicas[0].state.snapshot().result(WAIT_S) for replicas in pump.stages]
    for state, want in zip(states, expected.states, strict=True):
        for name, tensor in want.tensors.items():
            if name.startswith("param/"):
                assert (state.tensors[name] - tensor).norm() <= 1e-4 * tensor.norm()


def test_a_failing_engine_says_so():
    with Pump(manifest(2)) as pump:
        pass_id = PassId(0, 0)
        engine = pump.stages[0][0]
        engine.submit(Begin(pass_id, PassKind.TRAIN))
        failed = pump.ask(engine, Backward(pass_id, 3, b""), ComputeFailed)
        assert failed.microbatch == 3
        assert "whose forward was not computed here" in failed.reason


class HalfOffloaded(Pump):
    """Of two replicas of each stage, one has its state in the host's memory. It skips the steps in `skipped`."""

    skipped: tuple[int, ...] = ()

    def __init__(self, of: RunManifest, **options):
        super().__init__(of, **options)
        for stage, replicas in enumerate(self.stages):
            replicas.append(StageEngine(of, stage, StageOptions(offload=True, **options), post=self.posts.put))

    def scaled(self, pass_id, norms, tokens):
        scale, norm = super().scaled(pass_id, norms, tokens)
        assert scale * tokens < 0.9, "the step is clipped"
        return (0.0 if pass_id.step in self.skipped else scale), norm


@pytest.fixture
def in_small_pieces(monkeypatch):
    """Tensors of a tiny model are streamed in many pieces, as those of a large one are."""
    monkeypatch.setattr(offload, "STREAMED_AT_ONCE", 500)
    monkeypatch.setattr(checksum, "_BLOCK", 100)  # pieces are a multiple of it


PRECISIONS = {"fp32": {}, "bf16": {"precision": Precision.BF16}}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["subspace", "projector", "tied"])
def test_an_offloaded_replica_equals_the_other_one_to_the_bit(kind, precision, in_small_pieces):
    """Through clipped and skipped steps, a rollback, a new peer, and a checkpoint, which is read in place."""
    shape = {"subspace": SUBSPACE, "projector": BOUNDARIES["projector"], "tied": {"tie_embeddings": True}}[kind]
    of = manifest(2, "int8", steps=4, subspace=shape, clip_norm=0.05)
    corpus = Corpus(of)
    with HalfOffloaded(of, **PRECISIONS[precision]) as swarm:
        swarm.skipped = (1,)
        first = [swarm.step(step, corpus) for step in range(2)]
        kept = [replicas[0].state.snapshot().result(WAIT_S) for replicas in swarm.stages]
        for stage, replicas in enumerate(swarm.stages):
            read = [engine.state.copied(lambda held: held.give(lambda raw: None)).result(WAIT_S) for engine in replicas]
            assert read[0] == read[1] and read[0].digest == kept[stage].digest()
        after = [swarm.step(step, corpus) for step in (2, 3)], swarm.digests()
        for stage, replicas in enumerate(swarm.stages):
            replicas[1].close()
            replicas[1] = StageEngine(
                of, stage, StageOptions(offload=True, **PRECISIONS[precision]), post=swarm.posts.put
            )
            replicas[1].state.prepare()
            for engine in replicas:
                engine.state.load(kept[stage]).result(WAIT_S)
        assert swarm.digests() == tuple(state.digest() for state in kept)
        assert ([swarm.step(step, corpus) for step in (2, 3)], swarm.digests()) == after
    assert first[0] != first[1]


def test_an_offloaded_run_equals_its_clipped_reference(in_small_pieces):
    of = manifest(3, "int8", clip_norm=0.05)
    expected = train_reference(of, Corpus(of))
    assert all(step.gradient_norm > 0.05 for step in expected.steps)
    chains, digests = drive(of, replicas=2, seed=3, offload=True)
    assert (digests, chains) == (expected.digests, [list(step.chains) for step in expected.steps])


def test_an_offloaded_state_is_updated_in_place_where_the_device_rounds_differently(in_small_pieces):
    of = manifest(2, "int8", clip_norm=0.05)
    _, digests = drive(of, pump=HalfOffloaded, updates_on_cpu=True)
    assert digests == train_reference(of, Corpus(of)).digests
