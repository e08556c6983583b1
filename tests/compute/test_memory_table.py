"""The memory table says what tensors really take: on a CPU counted here, on a GPU as it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from made_up_data import DATA
from torch import Tensor

import benchmarks
from peers.run.dry_run import dry_run
from peers.run.stage_sizes import stage_sizes
from swarm.compute import graph, memory_table, muon
from swarm.compute.block_grid import WIDTH, BlockGrid
from swarm.compute.body import BodyFormat, BodyKind
from swarm.compute.graph import LiveBytes, count_stages, saved_bytes
from swarm.compute.graph_counts import KnownCounts
from swarm.compute.layout import Layout
from swarm.compute.memory_table import Mode, StageMemory, stage_memory
from swarm.compute.precision import Precision
from swarm.compute.reduction import Buckets
from swarm.compute.stage import Stage
from swarm.compute.stage_options import StageOptions
from swarm.compute.working_weights import WorkingWeights
from swarm.manifest import RunFile, RunManifest
from swarm.models import cross_entropy
from swarm.models.kinds import build_stage
from swarm.protocol.ids import Attempt, Microbatch, PassId, PassKind, StageIndex, StepNumber, Term
from swarm.protocol.peer.io import Backward, Forward, SumBucket
from swarm.protocol.stage_needs import ComputeKind
from swarm.protocol.update import update_of

PASS = PassId(Term(0), StepNumber(0))
ATTEMPT = Attempt(PASS, StageIndex(1), 0)
SMALL = {"vocab_size": 512, "dim": 32, "layers": 4, "heads": 2, "kv_heads": 1, "ffn_dim": 64, "context": 512}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test counts anew: some change what is counted."""
    monkeypatch.setattr(graph, "KNOWN", KnownCounts())


def manifest(rows: int = 2, length: int = 32, **model: object) -> RunManifest:
    batch = {"microbatches": 4, "sequences": rows, "sequence_length": length}
    tables = {"model": {**SMALL, "cuts": [2], **model}, "batch": batch, "sums": {"grid_bits": 20}}
    return RunFile.model_validate(tables).resolve(DATA)


def middle_stage(run: RunManifest, **options: bool) -> Stage:
    """Stage 1 in bf16, with parameters and room for all graphs."""
    chosen = StageOptions(graph_budget_bytes=1 << 40, precision=Precision.BF16, **options)
    stage = Stage(run, 1, chosen, initialised=False)
    for parameter in stage.parameters.values():
        parameter.detach().fill_(1e-2)
    stage.loaded()
    return stage


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"length": 512},
        {"residual": "subspace", "subspace_dim": 8, "subspace_growth": 3, "kv_heads": 2},
        {"boundary": "bottleneck", "boundary_dim": 8},
        {"boundary": "maxout", "boundary_dim": 8},
        {"boundary": "projector", "boundary_dim": 8, "token_table_dim": 4, "receiver_hidden": 16},
    ],
    ids=["plain", "long", "subspace", "bottleneck", "maxout", "projector"],
)
def test_the_graph_is_as_large_as_it_was_reckoned(
    stage: int, kind: dict[str, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = manifest(**kind)
    if "length" in kind:
        monkeypatch.setattr(cross_entropy, "AT_ONCE", 1 << 14)  # as with a large vocabulary
    module = build_stage(run.model, stage, seed=0)
    WorkingWeights(module, Precision(precision))
    shape = (run.batch.sequences, run.batch.sequence_length)
    tokens = torch.zeros(shape, dtype=torch.int64)
    x = tokens if module.first else torch.randn(*shape, run.model.boundary_width(stage), requires_grad=True)

    def forward() -> Tensor:
        with Precision(precision).autocast(torch.device("cpu")):
            out: Tensor = module.train_loss(x, tokens, tokens) if module.last else module(x, tokens)
        return out

    measured = saved_bytes(forward, lambda out: out, [*module.parameters(), *module.buffers()])[1]
    assert measured > 50_000
    assert count_stages(run, Mode("cpu", precision))[stage].graph == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("rows", "length", "model"),
    [
        (1, 64, {"dim": 256, "heads": 4, "ffn_dim": 704}),
        (2, 512, {"dim": 128, "heads": 4, "ffn_dim": 352}),
        (2, 256, {"dim": 192, "heads": 6, "kv_heads": 2, "ffn_dim": 512, "residual": "subspace", "subspace_dim": 16}),
        (4, 256, {"dim": 128, "kv_heads": 2, "ffn_dim": 512, "boundary": "bottleneck", "boundary_dim": 16}),
    ],
    ids=["weights", "graphs", "subspace", "bottleneck"],
)
@pytest.mark.parametrize("way", ["whole", "split", "by layer"])
def test_live_tensors_take_what_the_table_says(rows: int, length: int, model: dict[str, object], way: str) -> None:
    """Of a stage in the middle, under autocast: at rest, with graphs, in a backward and in a reduce."""
    run, graphs = manifest(rows, length, **{"layers": 6, "cuts": [1, 5], **model}), 2
    mode = Mode("cpu", "bf16")
    counts = count_stages(run, mode)[1]
    table = stage_memory(run, counts.by_layer() if way == "by layer" else counts, mode)
    live = LiveBytes()
    with live:
        stage = middle_stage(run, splits=way == "split", recomputes_layers=way == "by layer")
    rest = live.now
    assert at_rest(table) == pytest.approx(rest, rel=0.1)
    forward, backward = bodies(run)
    with live:
        for number in range(graphs):
            stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(number), forward))
        assert table.graph == pytest.approx((live.now - rest) / graphs, rel=0.1)
        stage.limit_graphs(0)  # nothing is left due
        live.peak = 0
        stage.backward(Backward(PASS, Microbatch(0), backward))
    assert table.with_graphs(graphs) - table.accumulator // 2 == pytest.approx(live.peak, rel=0.1)
    with live:
        for number in range(1, graphs):
            stage.backward(Backward(PASS, Microbatch(number), backward))
        for bucket in range(Buckets(stage.reduction._accumulator.layout, run.sums).count):
            stage.reduction.store(ATTEMPT, bucket, stage.reduction.sum(SumBucket(ATTEMPT, bucket, ())))
        assert at_rest(table) == pytest.approx(live.now, rel=0.1)
        stage.reduction.gives_back = True  # as on a card
        stage.reduction.applied(ATTEMPT, skipped=True)
    assert at_rest(table) - table.reduced == pytest.approx(live.now, rel=0.1)


@pytest.mark.parametrize(
    ("rows", "length", "model"),
    [
        (1, 64, {"dim": 256, "heads": 4, "ffn_dim": 704}),
        (2, 512, {"dim": 128, "heads": 4, "ffn_dim": 352}),
        (2, 256, {"dim": 192, "heads": 6, "kv_heads": 2, "ffn_dim": 512, "residual": "subspace", "subspace_dim": 16}),
    ],
    ids=["weights", "graphs", "subspace"],
)
def test_with_offload_a_device_has_only_what_it_computes_with(rows: int, length: int, model: dict[str, object]) -> None:
    """One device stands for two here: what is the host's is told apart by the tensors that hold it."""
    run, graphs = manifest(rows, length, **{"layers": 6, "cuts": [1, 5], **model}), 2
    counts = count_stages(run, Mode("cpu", "bf16"))[1]
    table = stage_memory(run, counts, Mode("cuda", "bf16", offload=True))
    live = LiveBytes()
    with live:
        stage = middle_stage(run, offload=True)
    vector = stage.reduction._held
    assert vector is not None
    moments = (tensor for tensors in stage.optimizer._moments.values() for tensor in tensors.values())
    of_host = {each.untyped_storage()._cdata: each for each in (*stage.parameters.values(), *moments, vector)}
    host = sum(each.untyped_storage().nbytes() for each in of_host.values())
    scratch = sum(each.nbytes for each in stage._accumulator._scratch)  # only a CPU adds in blocks
    assert table.host - table.on_the_way == pytest.approx(host, rel=0.01)
    assert host / counts.parameters == pytest.approx(20, rel=0.01)
    host += scratch
    rest = live.now - host
    assert at_rest(table) == pytest.approx(rest, rel=0.1)
    assert rest / counts.parameters == pytest.approx(6, rel=0.1)
    forward, backward = bodies(run)
    with live:
        for number in range(graphs):
            stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(number), forward))
        live.peak = 0
        stage.backward(Backward(PASS, Microbatch(0), backward))
    assert table.with_graphs(graphs) - table.accumulator // 2 == pytest.approx(live.peak - host, rel=0.1)
    with live:
        stage.backward(Backward(PASS, Microbatch(1), backward))
        for bucket in range(Buckets(stage.reduction._accumulator.layout, run.sums).count):
            stage.reduction.store(ATTEMPT, bucket, stage.reduction.sum(SumBucket(ATTEMPT, bucket, ())))
        reduced, live.peak = stage.reduction.reduced(ATTEMPT), 0
        stage.optimizer.apply(reduced, 1e-6, update_of(run.optimizer, 0, 100), unit=stage.reduction.unit)
        stage.loaded()
    assert live.peak - host <= at_rest(table) + table.updating
    assert at_rest(table) == pytest.approx(live.now - host, rel=0.1)


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("ffn_dim", [128, 704])
def test_a_step_of_muon_takes_what_the_table_says(ffn_dim: int, offload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_table, "STREAMED_AT_ONCE", 1000)  # few beside a matrix, as with a large model
    run = manifest(1, 16, layers=3, cuts=[1, 2], dim=256, heads=4, ffn_dim=ffn_dim)
    run = run.model_copy(update={"optimizer": run.optimizer.model_copy(update={"kind": "muon"})})
    mode = Mode("cuda" if offload else "cpu", "bf16", offload=offload)
    counts = count_stages(run, mode)[1]
    assert counts.largest == 256 * max(ffn_dim, 256)
    reduced = torch.ones(counts.parameters, dtype=torch.int64)
    live = LiveBytes(beyond=[reduced])
    exact = muon.product
    monkeypatch.setattr(muon, "product", lambda left, right: exact(left, right, split=offload))
    with live:
        stage = middle_stage(run, offload=offload)
        rest = live.now
        stage.optimizer.apply(reduced, 1e-6, update_of(run.optimizer, 0, 100))
    own = 8 * counts.largest if offload else 0  # the device that stands for the host needs no copy of the sums
    assert stage_memory(run, counts, mode).updating - own == pytest.approx(live.peak - rest, rel=0.1)


def test_a_graph_that_has_no_room_is_given_up_whole() -> None:
    """The first one too, which is measured."""
    run = manifest(2, 512, layers=6, cuts=[1, 5], dim=128, heads=4, ffn_dim=352)
    stage = Stage(run, 1, StageOptions(graph_budget_bytes=0, precision=Precision.FP32), initialised=True)
    live = LiveBytes()
    with live:
        stage.forward(Forward(PASS, PassKind.TRAIN, Microbatch(0), bodies(run)[0]))
    assert live.now < count_stages(run)[1].graph / 10


def test_layers_that_are_computed_again_take_a_part_of_the_memory() -> None:
    """In the shape of a large stage on a consumer's card."""
    shape = {"vocab_size": 32000, "dim": 4096, "layers": 8, "heads": 32, "kv_heads": 8, "ffn_dim": 11008}
    run = manifest(1, 8192, **shape, context=8192, cuts=[1, 7], residual="subspace", subspace_dim=256, tail_layers=0)
    counts = count_stages(run, Mode("cuda", "bf16"))[1]
    again = counts.by_layer()
    assert counts.graph > 10e9, "a whole graph"
    assert again.graph < counts.graph / 50
    assert again.graph + again.in_backward < (counts.graph + counts.in_backward) / 3


def at_rest(table: StageMemory) -> int:
    """While all sums have room in 32 bits."""
    return table.resident - table.accumulator // 2


def bodies(run: RunManifest) -> tuple[bytes, bytes]:
    """What a stage in the middle receives of a microbatch."""
    form, batch = BodyFormat(run), run.batch
    hidden = torch.randn(batch.sequences, batch.sequence_length, run.model.boundary_width(1))
    tokens = torch.zeros(batch.sequences, batch.sequence_length + 1, dtype=torch.int64)
    return form.pack_forward(1, BodyKind.BATCH, tokens, hidden), form.pack_backward(2, 1e-3 * hidden)


@pytest.mark.parametrize(("rows", "length"), [(1, 512), (2, 2048)])
def test_a_card_takes_what_the_table_says(rows: int, length: int) -> None:
    """As measured there (docs/gpu.md)."""
    results = json.loads((Path(benchmarks.__file__).parent / "results" / "gpu_h200.json").read_text())
    measured = results["memory"][f"8 layers of 2048, {rows} × {length} tokens"]
    shape = {"vocab_size": 32000, "dim": 2048, "layers": 10, "heads": 32, "kv_heads": 8, "ffn_dim": 5632}
    run = manifest(
        rows, length, **shape, context=length, cuts=[1, 9], residual="subspace", subspace_dim=128, tail_layers=0
    )
    mode = Mode("cuda", "bf16")
    counts = count_stages(run, mode)[1]
    table = stage_memory(run, counts, mode)
    graph = (measured["kept_graphs_4"] - measured["resident"]) / 4
    held = table.reduced  # when this was measured, a stage held the vector between reduces too
    assert (at_rest(table) + held) / counts.parameters == pytest.approx(measured["resident"], rel=0.03)
    assert table.graph / counts.parameters == pytest.approx(graph, rel=0.03)
    peak = (table.with_graphs(4) - table.accumulator // 2 + held) / counts.parameters
    assert peak == pytest.approx(measured["backward_1"], rel=0.03)


def test_coordinators_know_the_need_of_each_kind_of_peer_as_the_peer_itself_does() -> None:
    run = manifest()
    told = stage_sizes(run)["stage_needs"]
    assert set(told) == set(ComputeKind)
    for kind, needs in told.items():
        mode = Mode.of_kind(kind)
        assert mode.kind is kind
        own = dry_run(run, mode).stages
        assert needs.whole == tuple(need.memory.device for need in own), kind
        assert needs.least == tuple(need.least.device for need in own), kind
    assert len({needs.whole for needs in told.values()}) >= 4, "or this proves nothing"


@pytest.mark.parametrize(
    ("device", "precision", "kind"),
    [
        ("cpu", "fp32", ComputeKind.HOST_FP32),
        ("mps", "bf16", ComputeKind.HOST_BF16),
        ("xpu", "fp16", ComputeKind.HOST_FP16),
        ("cuda", "fp32", ComputeKind.CARD_FP32),
        ("cuda:1", "bf16", ComputeKind.CARD_BF16),
        ("cuda:0", "fp16", ComputeKind.CARD_FP16),
    ],
)
def test_a_peer_tells_the_kind_of_its_device_and_precision(device: str, precision: str, kind: ComputeKind) -> None:
    assert Mode(device, precision).kind is kind
    offloaded = ComputeKind[kind.name.replace("CARD", "OFFLOAD")]
    assert Mode(device, precision, offload=True).kind is offloaded, "a CPU has nothing to offload"


def test_a_card_and_its_host_are_told_apart() -> None:
    run = manifest()
    cpu, gpu = (stage_memory(run, count_stages(run, mode)[0], mode) for mode in (Mode(), Mode("cuda", "fp32")))
    assert cpu.host == 0 and gpu.host == gpu.on_the_way == cpu.on_the_way > 0
    assert gpu.resident == cpu.resident - cpu.reduced
    coded = run.model_copy(update={"sums": run.sums.model_copy(update={"averaging": "int8"})})
    there = stage_memory(coded, count_stages(coded, Mode("cuda"))[0], Mode("cuda"))
    assert there.resident == gpu.resident
    assert there.working == gpu.working - gpu.reduced, "compressed averages are made on the host"
    assert there.host == there.on_the_way + there.reduced + there.residuals


def test_the_grids_of_blocks_take_what_the_table_says() -> None:
    """And a card adds a rounded copy of each gradient."""
    run = manifest(dim=512, ffn_dim=2048, heads=4)
    dithered = run.model_copy(update={"sums": run.sums.model_copy(update={"averaging": "dither:1"})})
    layout, live = Layout.of_stage(dithered.model, 0), LiveBytes()
    with live:
        grid = BlockGrid.of(dithered, 0, layout, "cpu")
    counts = count_stages(dithered)[0]
    table = stage_memory(dithered, counts, Mode())
    assert grid is not None and table.grids + table.host_grids == pytest.approx(live.now - 4 * WIDTH, rel=0.02)
    card, plain = (stage_memory(each, counts, Mode("cuda", "fp32")) for each in (dithered, run))
    assert card.ahead - plain.ahead == 4 * counts.parameters
    assert (card.resident - plain.resident, card.host_grids) == (card.grids, table.host_grids)
    assert card.reduces_on_host and card.host == card.on_the_way + card.reduced + card.host_grids
