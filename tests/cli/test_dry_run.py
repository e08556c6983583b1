"""The dry run: arithmetic by hand, and the warning."""

import io
import json
import re
from collections import Counter

import pytest
import torch
from made_up_data import DATA
from rich.console import Console

from peers.run.dry_run import DryRun, dry_run, estimate, show, to_json
from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.memory_table import StageCounts
from swarm.manifest import ManifestError, RunFile, RunManifest
from swarm.protocol.coordinator.passes.assignment import wire
from swarm.protocol.ids import Actor


def manifest(**tables: dict[str, object]) -> RunManifest:
    return RunFile.model_validate(tables).resolve(DATA)


def counts(*parameters: int) -> list[StageCounts]:
    """Of stages whose gradients are fp32, and whose graphs take nothing."""
    return [StageCounts(number, gradients=4 * number) for number in parameters]


def test_memory_and_traffic_by_hand():
    run = manifest(model={"cuts": [3]}, batch={"microbatches": 10, "sequences": 2, "sequence_length": 8})
    plan = estimate(run, counts(1000, 3000), frames=[(500, 200)])
    frames = 10 * (500 + 2 * (2 * 8 + 2))
    first, last = plan.stages
    memory = first.memory
    assert (memory.weights, memory.moments, memory.accumulator, memory.reduced) == (4000, 8000, 8000, 8000)
    assert memory.working == 10_000, "parts and sums of all numbers, packed: five bytes each"
    assert (first.retention, last.retention) == (frames, 2000)
    assert (memory.device, memory.host, first.whole) == (38_000, 0, 38_000 + frames)
    alone = run.model_copy(update={"swarm": run.swarm.model_copy(update={"replicas": 1, "max_replicas": 1})})
    few = estimate(alone, counts(1000, 3000), frames=[(500, 200)]).stages[0]
    assert few.memory.working == 4000, "the gradients of a microbatch, where nothing is ever reduced"
    assert first.reduce_sent == 8000, "half of the buckets to the other, half back"
    assert [(b.boundary, b.forward, b.backward, b.links) for b in plan.boundaries] == [(1, frames, 2000, 2)]
    assert plan.efficiency == 10 / 11
    assert plan.efficiency_with_replicas == 10 / 12
    assert plan.warnings == ()


@pytest.mark.parametrize(("replicas", "microbatches"), [(1, 10), (2, 10), (3, 10), (4, 16), (5, 4)])
def test_a_link_carries_what_the_coordinator_gives_to_two_equal_replicas(replicas: int, microbatches: int):
    run = manifest(model={"cuts": [3]}, batch={"microbatches": microbatches}, swarm={"replicas": replicas})
    [need] = estimate(run, counts(1000, 3000), frames=[(500, 200)]).boundaries
    rosters = [[Actor(f"{stage} {replica}", 1) for replica in range(replicas)] for stage in range(2)]
    first, second = wire(rosters, {actor: 1.0 for roster in rosters for actor in roster}, microbatches)
    crossing = Counter(zip(first.assignment, second.assignment, strict=True))
    assert need.links == len(crossing)
    assert need.forward_by_link == max(crossing.values()) * need.forward // microbatches
    assert need.backward_by_link == max(crossing.values()) * 200


def test_a_tied_embedding_is_held_and_reduced_by_both_ends():
    tables = {"vocab_size": 300, "dim": 192, "cuts": [3, 5], "tie_embeddings": True}
    embedding = 300 * 192
    plan = estimate(manifest(model=tables), counts(embedding + 1000, 3000, embedding + 500), frames=[(1, 1)] * 2)
    assert [stage.memory.weights for stage in plan.stages] == [4 * (embedding + 1000), 12_000, 4 * (embedding + 500)]
    for stage, own in zip(plan.stages, (1000, 3000, 500), strict=True):
        shared = embedding if own != 3000 else 0
        assert stage.reduce_sent == 8 * (own + 3 * shared // 2), "of four peers, each sends three quarters, twice"


def test_fp32_sums_take_half():
    plan = estimate(manifest(model={"cuts": []}, sums={"mode": "fp32"}), counts(1000), frames=[])
    assert (plan.stages[0].memory.accumulator, plan.stages[0].retention, plan.boundaries) == (4000, 0, ())


@pytest.mark.parametrize(("replicas", "enough"), [(1, 12), (2, 24), (5, 60)])
def test_a_short_step_is_warned_about_and_the_fix_is_enough(replicas: int, enough: int):
    """The planned replicas share the microbatches, so each stage waits for longer."""

    def plan(microbatches: int) -> DryRun:
        run = manifest(batch={"microbatches": microbatches}, swarm={"replicas": replicas})
        return estimate(run, counts(1, 1, 1, 1), frames=[(1, 1)] * 3)

    short = plan(enough - 1)
    [warning] = short.warnings
    assert f"efficiency {short.efficiency_with_replicas:.2f} is below 0.8" in warning
    assert f"batch.microbatches = {enough} or more" in warning
    assert (f"4 stages of {replicas} peers waiting" in warning) == (replicas > 1)
    assert plan(enough).warnings == ()


def test_the_real_counts_are_shown():
    plan = dry_run(manifest())
    assert sum(need.parameters for need in plan.stages) > 4_000_000
    printed = json.loads(json.dumps(to_json(plan)))
    assert printed["hash"] == plan.manifest.hash
    assert printed["stages"][0]["memory"] == plan.stages[0].whole
    out = io.StringIO()
    show(plan, Console(file=out, width=100))
    for part in (plan.manifest.hash, "efficiency 0.84", f"{plan.stages[0].parameters:,}", "[model]", "0 → 1"):
        assert part in out.getvalue()


def test_the_wire_decides_the_traffic():
    sizes = {
        name: dry_run(manifest(codec={"forward": name})).boundaries[0].forward for name in ("none", "bf16", "int8")
    }
    assert sizes["none"] > 1.9 * sizes["bf16"] > 3.5 * sizes["int8"]
    with pytest.raises(ManifestError, match=r"codec\.forward: unknown codec 'int9': did you mean 'int8'"):
        dry_run(manifest(codec={"forward": "int9"}))


def test_compressed_averaging_is_sent_in_few_bytes_and_its_residuals_take_memory():
    exact, int8, int4 = (dry_run(manifest(sums={"averaging": name})) for name in ("none", "int8", "int4"))
    number = exact.stages[0].parameters
    memories = [plan.stages[0].memory for plan in (exact, int8, int4)]
    assert exact.stages[0].reduce_sent == 8 * number and memories[0].residuals == 0
    assert int8.stages[0].reduce_sent == pytest.approx(1.03 * number, rel=0.01)
    assert int4.stages[0].reduce_sent == pytest.approx(0.53 * number, rel=0.01)
    assert memories[2].residuals == 12 * number
    assert memories[2].on_the_way == 5 * number, "a sole replica keeps whole sums for a newcomer"
    assert memories[2].resident - memories[0].resident == 12 * number
    assert memories[0].on_the_way == 10 * number
    power = dry_run(manifest(sums={"averaging": "powersgd:4"}))
    assert 4 * 4 * 4 * 192 < power.stages[1].reduce_sent < 0.2 * number
    assert power.stages[1].memory.residuals == int4.stages[1].memory.residuals
    with pytest.raises(
        ValueError, match=r'sums.averaging = "powersgd:0" needs a rank from 1 to 64: for example, power'
    ):
        manifest(sums={"averaging": "powersgd:0"})
    alone = dry_run(manifest(sums={"averaging": "int4"}, swarm={"replicas": 1}))
    assert (alone.stages[0].reduce_sent, alone.stages[0].memory.residuals) == (0, 0)
    for name in ("int9", "delta:4", "log4", "int8-channel", "ef:int4", "fp32"):
        with pytest.raises(ManifestError, match=rf"sums.averaging = '{name}'.* choose .none., dither:STEP, bf16, int8"):
            dry_run(manifest(sums={"averaging": name}))
    with pytest.raises(ManifestError, match=r"codec 'topk:2': 2 of the values cannot be kept"):
        dry_run(manifest(sums={"averaging": "topk:2"}))


def test_dithered_sums_are_sent_in_few_bits_and_need_no_residuals():
    exact, dithered, finer = (dry_run(manifest(sums={"averaging": how})) for how in ("none", "dither:1", "dither:0.5"))
    [need, usual] = (plan.stages[0] for plan in (dithered, exact))
    assert need.reduce_packed == pytest.approx(3.29 / 40 * usual.reduce_packed, rel=0.001)
    assert finer.stages[0].reduce_packed == pytest.approx(4.29 / 40 * usual.reduce_packed, rel=0.001)
    assert (need.memory.residuals, need.memory.reduces_on_host) == (0, True)
    assert need.memory.on_the_way == usual.memory.on_the_way, "the first step has the usual grid"
    assert need.memory.resident - usual.memory.resident == need.memory.grids + need.memory.host_grids
    assert need.memory.grids + need.memory.host_grids == pytest.approx(need.parameters / 4, rel=0.001)


def test_a_subspace_crosses_in_few_bytes_and_every_one_is_counted():
    run = manifest(
        model={"residual": "subspace", "subspace_dim": 16, "tail_layers": 2, "cuts": [2, 4, 6]},
        batch={"microbatches": 10, "sequences": 2, "sequence_length": 8},
        codec={"forward": "none", "backward": "bf16"},
    )
    link = dry_run(run).boundaries[0]
    fmt = BodyFormat(run)
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    assert link.forward == 10 * len(fmt.pack_forward(1, BodyKind.BATCH, tokens, torch.ones(2, 8, 16)))
    assert link.backward == 10 * len(fmt.pack_backward(1, torch.ones(2, 8, 16)))


@pytest.mark.parametrize("kind", ["bottleneck", "maxout", "projector"])
def test_a_narrow_boundary_crosses_in_few_bytes_and_its_parameters_are_counted(kind: str):
    dims = {"boundary": kind, "boundary_dim": 16, "cuts": [2, 4, 6]}
    rest = {
        "batch": {"microbatches": 10, "sequences": 2, "sequence_length": 8},
        "codec": {"forward": "int8", "backward": "int4"},
    }
    run = manifest(model=dims, **rest)
    plan, dense = dry_run(run), dry_run(manifest(model={"cuts": [2, 4, 6]}, **rest))
    fmt = BodyFormat(run)
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    assert plan.boundaries[0].forward == 10 * len(fmt.pack_forward(1, BodyKind.BATCH, tokens, torch.ones(2, 8, 16)))
    assert plan.boundaries[0].backward == 10 * len(fmt.pack_backward(1, torch.ones(2, 8, 16)))
    more = [ours.parameters - theirs.parameters for ours, theirs in zip(plan.stages, dense.stages, strict=True)]
    sender, receiver = (192 + 16 if kind == "maxout" else 192 * 16), 192 * 16
    assert more == [sender, sender + receiver, sender + receiver, receiver]
    assert run.hash != manifest(model={**dims, "boundary_dim": 32}, **rest).hash


def test_a_manifest_of_another_subspace_is_refused():
    run = manifest(model={"residual": "subspace", "subspace_dim": 16, "cuts": [2, 4, 6]})
    assert RunManifest.from_canonical(run.canonical()) == run
    other = run.canonical().replace(run.subspace_id.encode(), b"ab" * 32)
    with pytest.raises(ManifestError, match="subspace_id = abababababababab, but this release computes"):
        RunManifest.from_canonical(other)
    assert run.hash != manifest(model={"residual": "subspace", "subspace_dim": 17, "cuts": [2, 4, 6]}).hash


def test_what_may_be_chosen_is_shown_with_its_bytes_and_counted_as_the_gentlest():
    plan = dry_run(manifest(codec={"forward": "auto", "backward": "auto"}))
    plain = dry_run(manifest(codec={"forward": "none", "backward": "none"}))
    assert plan.stages == plain.stages and plan.boundaries == plain.boundaries, "memory for the worst case"
    forward = [choice for choice in plan.choices if choice.direction == "forward"]
    assert [choice.codec for choice in forward] == ["none", "bf16", "int8", "int6", "int5", "int4"]
    assert forward[0].step_bytes == plan.boundaries[0].forward
    first = dry_run(manifest()).boundaries[0]
    assert [c.step_bytes for c in plan.choices if c.at_first] == [first.forward, first.backward]
    printed = io.StringIO()
    show(plan, Console(file=printed, width=120))
    assert "bytes in a step at most, with codecs auto and auto" in printed.getvalue()
    assert "int8 1.6 MB (at first)" in printed.getvalue()
    assert [choice["codec"] for choice in to_json(plan)["choices"]][-1] == "log4"
    assert not plain.choices and "at most" not in to_text(plain)


def test_no_figure_is_cut_off_on_a_narrow_terminal():
    printed = io.StringIO()
    run = manifest(model={"cuts": [4]})
    plan = estimate(run, counts(123_456_789, 3000), frames=[(10**9, 200)])
    show(plan, Console(file=printed, width=40))
    assert "…" not in printed.getvalue()
    for said in ("123,456,789", "sums sent", "backward, by link"):
        assert said in printed.getvalue()


def to_text(plan) -> str:
    printed = io.StringIO()
    show(plan, Console(file=printed, width=120))
    return printed.getvalue().partition("bytes in a step")[2]


@pytest.mark.parametrize(
    ("forward", "backward", "text"),
    [
        ("auto", "topk-shared", 'which codec.forward = "auto" never chooses: set codec.forward = "topk:0.1"'),
        ("delta:4", "auto2", "codec.backward: unknown codec 'auto2': did you mean 'auto'"),
        ("int3", "auto", "codec.forward: unknown codec 'int3'"),
    ],
)
def test_what_cannot_be_chosen_beside_is_refused(forward: str, backward: str, text: str):
    with pytest.raises(ManifestError, match=re.escape(text)):
        dry_run(manifest(codec={"forward": forward, "backward": backward}, batch={"order": "steps"}))
