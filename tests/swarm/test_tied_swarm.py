"""A tied model in real processes: the two ends of the pipeline reduce the embedding together, whatever dies there."""

from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

import pytest
import torch
from conftest import MakeSwarm
from swarm_processes import Nursery, Swarm

from peers import cli
from peers.run.first_version import first_states
from peers.run.home import Home
from peers.run.reference import train_reference
from peers.run.replay import read_replay
from peers.run.resolved_run import ResolvedRun, resolve_run
from swarm.data.reader import CorpusReader
from swarm.events import PeerFenced, ReduceStarted, StageAmended, StagePrepared, StepApplied
from swarm.state.archive import Archive
from swarm.state.whole import WholeModel, whole_parameters

HIT = "1:2"
TIED = ("model.tie_embeddings=true", "timing.step_budget_s=600")

Reference = Callable[[Swarm], tuple[str, ...]]


def assert_exported_once(swarm: Swarm) -> None:
    """Reading it compares both copies."""
    stages = swarm.manifest.model.stages
    archive = Archive(Home(swarm.coordinator.home).archive, swarm.manifest.hash, stages, swarm.manifest.checkpoint.keep)
    parameters = whole_parameters(archive, swarm.manifest)
    assert parameters["model.embed_tokens.weight"].shape == (512, 32) and "lm_head.weight" not in parameters


def newest_table(swarm: Swarm, stage: int) -> int:
    return max((event.number for event in swarm.coordinator.of(StageAmended, pass_id=HIT, stage=stage)), default=0)


@pytest.mark.parametrize(
    "victim", [pytest.param("p0", id="first"), pytest.param("p1", id="last", marks=pytest.mark.long)]
)
def test_killed_in_the_reduce_of_what_both_ends_hold(make_swarm: MakeSwarm, reference: Reference, victim: str) -> None:
    swarm = make_swarm("int8", *TIED)
    stage, sibling, other = (0, "p2", "p1") if victim == "p0" else (1, "p3", "p0")
    swarm.coordinate()
    fault = f"--fault=kill@ReduceStarted,attempt={HIT}/s{stage}*"
    swarm.join_stages(("p0", "p1", "p2", "p3"), {victim: (fault,)})
    swarm.finish()
    killed = swarm.peers[victim]
    assert killed.code == -SIGKILL and killed.of(ReduceStarted)[-1].attempt.startswith(f"{HIT}/s{stage}n")
    (fence,) = swarm.coordinator.of(PeerFenced, pass_id=HIT)
    assert (fence.actor, fence.stage) == (killed.actor, stage)
    here, there = (newest_table(swarm, s) for s in (stage, 1 - stage))
    assert here > 0
    assert swarm.peers[sibling].of(StagePrepared, attempt=f"{HIT}/s{stage}n{here}+{there}")
    assert swarm.peers[other].of(StagePrepared, attempt=f"{HIT}/s{1 - stage}n{there}+{here}"), "it knows both tables"
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference(swarm))
    assert_exported_once(swarm)


def test_ends_that_are_no_neighbours_find_each_other(make_swarm: MakeSwarm, reference: Reference) -> None:
    swarm = make_swarm("int8", *TIED, "model.cuts=[1,3]", "swarm.replicas=1")
    swarm.coordinate()
    swarm.join_stages(("p0", "p1", "p2"))
    swarm.finish()
    assert all(swarm.peers[name].of(StepApplied, step=4) for name in ("p0", "p1", "p2"))
    swarm.assert_equal(reference(swarm))
    assert_exported_once(swarm)


@pytest.mark.hf
def test_a_tied_model_is_fine_tuned_with_delta_and_goes_back(nursery: Nursery, ground: Path, tmp_path: Path) -> None:
    """As the page on fine-tuning has it: in, two epochs of changes in which a peer dies, and out again."""
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**shape, **heads, initializer_range=0.2, tie_word_embeddings=True)
    theirs = transformers.LlamaForCausalLM(config)
    theirs.save_pretrained(tmp_path / "source")
    tokenizer = ground / "corpus" / "tokenizer.json"
    run_cli("import", tmp_path / "source", "--out", tmp_path / "run", "--stages", "3", "--tokenizer", tokenizer)
    swarm, resolved = fine_tuning(nursery, tmp_path / "run" / "RUN.toml", ground / "corpus", tmp_path)
    try:
        swarm.coordinate()
        fault = "--fault=kill@ReduceStarted,attempt=1:3/s2*"
        swarm.join_stages(("p0", "p1", "p2", "p3", "p4", "p5"), {"p2": (fault,)})
        swarm.finish()
    finally:
        swarm.kill()
    assert swarm.peers["p2"].code == -SIGKILL
    swarm.assert_replicas_identical()
    swarm.assert_equal(reference_of(swarm, resolved))
    home = swarm.coordinator.home
    run_cli("export", tmp_path / "out", "--home", home)
    back = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert back.lm_head.weight is back.model.embed_tokens.weight
    assert not torch.equal(back.lm_head.weight, theirs.lm_head.weight), "it was trained"
    archive = Archive(Home(home).archive, swarm.manifest.hash, 3, swarm.manifest.checkpoint.keep, keep_first=True)
    ours = WholeModel(whole_parameters(archive, swarm.manifest), swarm.manifest.model)
    tokens = torch.randint(0, 512, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        a, b = ours(tokens), back(tokens).logits
    assert a.std() > 0.1
    assert (a - b).abs().max() <= 1e-4


def fine_tuning(nursery: Nursery, run_file: Path, corpus: Path, folder: Path) -> tuple[Swarm, ResolvedRun]:
    """Two epochs of three steps with codec delta."""
    plain = (f"data.directory={corpus}", "batch.microbatches=8", "evaluation.every=0", "checkpoint.every=3")
    samples = resolve_run(run_file, plain).manifest.windows
    steps = ("run.steps=6", "batch.order=steps", f"batch.sequences={samples // 24}", "codec.forward=delta:4")
    sets = (*plain, *steps, "timing.step_budget_s=600", "timing.recruit_after_s=1.0")
    resolved = resolve_run(run_file, sets)
    assert resolved.manifest.step_blocks == 3 and resolved.manifest.model.shares_embedding
    return Swarm(nursery, folder, run_file, resolved.manifest, *sets), resolved


def reference_of(swarm: Swarm, resolved: ResolvedRun) -> tuple[str, ...]:
    assert resolved.initial is not None
    replay = read_replay(Home(swarm.coordinator.home), swarm.manifest.hash)
    state = list(first_states(resolved.initial, swarm.manifest))
    reader = CorpusReader(resolved.corpus, swarm.manifest)
    return train_reference(swarm.manifest, reader, state=state, replay=replay).digests


def run_cli(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    assert ended.value.code == 0
