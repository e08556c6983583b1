"""Fine-tuning in real processes: version 0 is the imported model, also for whoever comes when its stage is lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from swarm_processes import EVEN, Nursery, Swarm

from peers import cli
from peers.run.first_version import first_states
from peers.run.reference import train_reference
from peers.run.resolved_run import ResolvedRun, resolve_run
from swarm.data.reader import CorpusReader
from swarm.events import CheckpointArchived, CoordinatorStarted, RolledBack, StateFetched, StepApplied
from swarm.manifest import ModelSection
from swarm.models.kinds import build_stage

MODEL = ModelSection(vocab_size=512, dim=32, layers=4, heads=2, kv_heads=1, ffn_dim=64, context=32, cuts=())
SETS = (
    "run.steps=5",
    "batch.microbatches=8",
    "batch.sequences=2",
    "checkpoint.every=2",
    "evaluation.every=0",
    "audit.every=0",  # each attempt is one pass
    "timing.recruit_after_s=30",  # who joins is waited for, however slowly it starts
    "swarm.replicas=1",
    "swarm.max_replicas=1",
    "data.directory=../../corpus",
    "codec.forward=none",
    "codec.backward=none",
)
PEERS = ("p0", "p1")

Made = tuple[Swarm, ResolvedRun]
MakeImported = Callable[..., Made]


@pytest.fixture(scope="module")
def run_file(ground: Path) -> Path:
    """RUN.toml of a run that begins with a model in fp16, which no seed makes."""
    folder = ground / "imported"
    source = folder / "source"
    source.mkdir(parents=True)
    values = {name: p.detach().half() for name, p in build_stage(MODEL, 0, seed=77).named_parameters()}
    safetensors.torch.save_file(values, source / "model.safetensors")
    config = {
        "model_type": "llama",
        "vocab_size": MODEL.vocab_size,
        "hidden_size": MODEL.dim,
        "intermediate_size": MODEL.ffn_dim,
        "num_hidden_layers": MODEL.layers,
        "num_attention_heads": MODEL.heads,
        "num_key_value_heads": MODEL.kv_heads,
        "max_position_embeddings": MODEL.context,
        "rms_norm_eps": MODEL.norm_eps,
    }
    (source / "config.json").write_text(json.dumps(config))
    tokenizer = ground / "corpus" / "tokenizer.json"
    assert run("import", source, "--out", folder / "run", "--tokenizer", tokenizer) == 0
    return folder / "run" / "RUN.toml"


@pytest.fixture
def make_imported(nursery: Nursery, run_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeImported]:
    made: list[Swarm] = []

    def make(*sets: str) -> Made:
        resolved = resolve_run(run_file, [*SETS, *sets])
        made.append(Swarm(nursery, tmp_path_factory.mktemp("swarm"), run_file, resolved.manifest, *SETS, *sets))
        return made[-1], resolved

    yield make
    for swarm in made:
        swarm.kill()


def assert_equal(swarm: Swarm, resolved: ResolvedRun) -> None:
    """The archived state is that of the reference, begun with the same parameters."""
    assert resolved.initial is not None
    reader = CorpusReader(resolved.corpus, resolved.manifest)
    state = list(first_states(resolved.initial, resolved.manifest))
    swarm.assert_equal(train_reference(resolved.manifest, reader, state=state).digests)


def test_the_stage_that_dies_before_the_first_decision_begins_again_with_the_import(
    make_imported: MakeImported,
) -> None:
    swarm, resolved = make_imported("timing.step_budget_s=600")
    swarm.coordinate()
    fault = ("--fault=kill@MicrobatchForwarded:1,pass_id=1:0",)
    swarm.join_stages((*PEERS, "standby"), {"p0": fault})
    assert swarm.coordinator.of(CheckpointArchived, version=0)
    swarm.finish()
    assert swarm.peers["p0"].code == -signal.SIGKILL
    for name in PEERS:
        (fetched,) = swarm.peers[name].of(StateFetched)
        assert fetched.version == 0
    assert swarm.peers["p0"].of(StateFetched)[0].source == "archive"
    (fetched,) = swarm.peers["standby"].of(StateFetched)
    assert (fetched.stage, fetched.version, fetched.source) == (0, 0, "archive")
    swarm.assert_replicas_identical()
    assert_equal(swarm, resolved)


def test_rolled_back_to_version_0_is_to_the_import(make_imported: MakeImported) -> None:
    swarm, resolved = make_imported("timing.step_budget_s=600", "checkpoint.every=100")
    swarm.coordinate()
    fault = ("--fault=kill@MicrobatchForwarded:1,pass_id=1:2",)
    swarm.join_stages((*PEERS, "standby"), {"p0": fault})
    swarm.finish()
    (back,) = swarm.coordinator.of(RolledBack)
    assert back.version == 0 and "stage 0" in back.reason
    p1 = swarm.peers["p1"]
    assert [event.version for event in p1.of(StateFetched)] == [0, 0]
    assert len(p1.of(StepApplied, step=0)) == 2, "step 0 was done again"
    swarm.assert_replicas_identical()
    assert_equal(swarm, resolved)


def test_everything_dies_and_the_run_goes_on(make_imported: MakeImported) -> None:
    swarm, resolved = make_imported("run.steps=16")
    swarm.coordinate()
    swarm.join_stages(PEERS, alike=(EVEN,))
    organiser = swarm.coordinator
    organiser.wait(lambda: any(e.version >= 4 for e in organiser.of(CheckpointArchived)), "version 4 in the archive")
    swarm.kill()
    swarm.coordinate()
    again = ("q0", "q1")
    swarm.join_stages(again)
    swarm.finish(names=again)
    assert swarm.coordinator.of(CoordinatorStarted)[-1].decided >= 3
    assert len(swarm.coordinator.of(CheckpointArchived, version=0)) == 1, "it is still there"
    assert all(back.version >= 4 for back in swarm.coordinator.of(RolledBack)), "what came after it is lost"
    swarm.assert_replicas_identical()
    assert_equal(swarm, resolved)


@pytest.mark.hf
def test_a_model_is_fine_tuned_and_loads_in_transformers(
    nursery: Nursery, ground: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two stages, eight samples, three visits to each; out of transformers and back into it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("fine-tuning")
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(1)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(folder / "source")
    tokenizer = ground / "corpus" / "tokenizer.json"
    assert run("import", folder / "source", "--out", folder / "run", "--tokenizer", tokenizer) == 0
    text = folder / "text.txt"
    text.write_text("a few words to learn by heart, over and over, until they are known. " * 6)
    short = folder / "short.txt"
    short.write_text("words that are kept for the evaluation. ")
    data = ("--input", text, "--input", short, "--tokenizer", folder / "run" / "tokenizer.json", "--heldout", "0.5")
    assert run("prepare", *data, "--out", folder / "run" / "data") == 0
    tokens = json.loads((folder / "run" / "data" / "corpus.json").read_text())["train"][0]["tokens"]
    sets = ("run.steps=3", "batch.microbatches=8", "batch.sequences=1", f"batch.sequence_length={(tokens - 1) // 8}")
    sets += ("swarm.replicas=1", "evaluation.every=0", "checkpoint.every=3")
    sets += ("optimizer.learning_rate=0.01", "optimizer.warmup_steps=0")
    resolved = resolve_run(folder / "run" / "RUN.toml", sets)
    swarm = Swarm(nursery, folder / "swarm", folder / "run" / "RUN.toml", resolved.manifest, *sets)
    try:
        (folder / "swarm").mkdir()
        swarm.coordinate()
        swarm.join_stages(("p0", "p1"))
        swarm.finish()
        assert_equal(swarm, resolved)
    finally:
        swarm.kill()
    reader = CorpusReader(resolved.corpus, resolved.manifest)
    assert reader.windows == 8
    assert run("export", folder / "out", "--home", swarm.coordinator.home) == 0
    back = transformers.LlamaForCausalLM.from_pretrained(folder / "out", dtype=torch.float32).eval()
    shown = torch.from_numpy(reader.microbatch(0, 0))
    with torch.inference_mode():
        before, after = (model(shown, labels=shown).loss for model in (theirs, back))
    assert after < before - 0.1, "it has learnt what it was shown"


def run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(argument) for argument in arguments])
    return caught.value.code
