"""The dry run's outlook: by hand what a step takes, where its time goes, and on which cards a stage fits."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from made_up_data import DATA
from rich.console import Console

import peers
from peers import cli
from peers.options import parse_line
from peers.run.capacity import capacities
from peers.run.cards import CARDS, UnknownCard, free_on, parse_cards
from peers.run.coding import ENTROPY
from peers.run.crews import Bounds, placed
from peers.run.dry_run import dry_run
from peers.run.fleet import CARD_NS, Kind, Times, offload_ns, reduce_s, row_of, times_on
from peers.run.forecast import Line, Load, forecast, smallest_step
from peers.run.losses import _BOUNDARIES, EQUAL_LOSS, Loss, loss_of
from peers.run.outlook import Outlook, outlook, to_json
from peers.run.outlook_text import show
from swarm.compute import memory_table
from swarm.compute.memory_table import Mode
from swarm.compute.work import count_work
from swarm.manifest import RunFile, RunManifest

MEGABYTE = 1e6
LINE = Line(up=1 * MEGABYTE, down=4 * MEGABYTE, delay_s=0.0)


def manifest(**tables: dict[str, object]) -> RunManifest:
    return RunFile.model_validate(tables).resolve(DATA)


def load(frame: float = 0.0, **more: float) -> Load:
    """Two stages, of one second forward and two backward."""
    return Load((1.0, 1.0), (2.0, 2.0), frame, frame, zero_bubble=False, **more)


def test_without_links_a_step_is_compute_and_the_way_through_the_pipeline() -> None:
    found = forecast(load(reduce_s=2.0), microbatches=8, replicas=1, line=None)
    assert (found.compute_s, found.fill_s, found.wire_s, found.reduce_s) == (24.0, 3.0, 0.0, 2.0)
    assert found.efficiency == 24 / 29


def test_a_line_slower_than_the_stages_sets_the_pace() -> None:
    """A frame of 6 MB takes 6 s to send, twice as long as a microbatch to compute."""
    few, many = (forecast(load(6 * MEGABYTE), count, 1, LINE).step_s for count in (8, 9))
    assert many - few == pytest.approx(6.0)
    quick = forecast(load(6 * MEGABYTE), 8, 1, Line(1000 * MEGABYTE, 1000 * MEGABYTE, 0.0))
    assert quick.wire_s == pytest.approx(2 * 0.006)


def test_distance_costs_once_for_each_hop_and_each_message() -> None:
    far = Line(1e12, 1e12, delay_s=0.5)
    assert forecast(load(), 8, 1, far).wire_s == pytest.approx((2 + 4) * 0.5)
    reduce = forecast(load(reduce_bytes=10_000), 8, 2, far)
    assert reduce.reduce_s == pytest.approx(2 * 0.5)


def test_the_smallest_step_that_is_efficient_is_found() -> None:
    found = smallest_step(load(), 1, None)
    assert found is not None and found.microbatches == 9, "9 ÷ (9 + 1)"
    assert smallest_step(load(6 * MEGABYTE), 1, LINE) is None, "no step helps a line that is too slow"


@pytest.mark.parametrize("text", ["80Mbit", "80Mbit,50", "80Mbit,fast", "50ms,80Mbit", "1bit,5ms", "80Mbit/x,5ms"])
def test_a_line_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_line(text)


def test_a_line_is_read() -> None:
    assert parse_line("80Mbit/20Mbit, 50 ms") == Line(2.5e6, 10e6, 0.05)
    assert parse_line("80Mbit,50ms").rate == 10e6


def test_unknown_cards_are_refused_with_those_that_are_known() -> None:
    assert parse_cards("RTX4090:2, rtx3060") == ["rtx4090", "rtx4090", "rtx3060"]
    with pytest.raises(
        UnknownCard, match=r"'rtx4099' is not a card.*did you mean 'rtx4090'\? Known are .*rtx3060.*h200"
    ):
        parse_cards("rtx3060:1,rtx4099:2")
    for text in ("rtx3060:0", "rtx3060:-1", "rtx3060:x", "rtx3060:9999", "rtx3060:1:1", "rtx3060:٣", ""):
        with pytest.raises(UnknownCard):
            parse_cards(text)
    with pytest.raises(UnknownCard, match="at most 4096"):
        parse_cards("rtx3060:4000,rtx4090:4000")


@pytest.mark.parametrize(
    ("card", "reported"),
    [
        ("rtx2060", 5.79),
        ("rtx2080ti", 10.76),
        ("rtx3060", 11.63),
        ("rtx3070", 7.78),
        ("rtx3080", 9.78),
        ("rtx3090", 23.50),
        ("rtx4060", 7.60),
        ("rtx4090", 23.50),
        ("rtx5090", 31.36),
        ("t4", 14.56),
        ("v100", 15.75),
        ("a100", 39.39),
        ("l4", 22.03),
        ("h100", 79.10),
        ("h200", 139.72),
    ],
)
def test_no_card_is_planned_with_more_memory_than_cuda_reports(card: str, reported: float) -> None:
    """`reported`: the total capacity in GiB, from torch's error messages on Linux."""
    assert reported - 1 < free_on(card) / (1 << 30) <= reported - 0.5 + 1e-6


def kinds(run: RunManifest, memory: int, times: Sequence[Times]) -> dict[str, Kind]:
    needs = dry_run(run).stages
    slow = [Times(2 * each.forward_s, 2 * each.backward_s) for each in times]
    return {"quick": Kind("quick", memory, needs, times), "slow": Kind("slow", 1 << 40, needs, slow)}


BOUNDS = Bounds(replicas=1, most=16, arrival_s=60.0)


def test_cards_go_where_least_is_computed_and_no_stage_is_left_empty() -> None:
    run = manifest()
    stages = run.model.stages
    found = kinds(run, 1 << 40, [Times(1.0, 2.0)] * stages)
    crews = placed(found, ["slow"] * 2 * stages + ["quick"] * stages, stages, BOUNDS).stages
    assert [sorted(crew) for crew in crews] == [["quick", "slow", "slow"]] * stages
    row, rows = row_of(found, crews, None)
    assert rows == 3
    assert row[0].both_s == pytest.approx(3 / (1 / 3 + 2 / 6)), "three peers do as much as two quick ones"
    small = kinds(run, min(need.memory.device for need in dry_run(run).stages), [Times(1.0, 2.0)] * stages)
    crowded = placed(small, ["quick"] * (stages + 3), stages, BOUNDS)
    assert all(crowded.stages), "though they fit one stage alone"
    assert sum(map(len, crowded.stages)) + len(crowded.standbys) == stages + 3


@pytest.mark.parametrize(
    ("microbatches", "seconds"),
    [
        (1, 3.0),  # one quick card has all the work
        (3, 6.0),  # two, and one for each slow card would take as long
        (4, 6.0),
        (5, 9.0),  # three, and one for each slow card
        (400, 600.0),
    ],
)
def test_a_microbatch_is_computed_by_one_card(microbatches: int, seconds: float) -> None:
    """A quick card takes 3 s for a microbatch, a slow one 6 s."""
    run = manifest(model={"cuts": [4]})
    found = kinds(run, 1 << 40, [Times(1.0, 2.0)] * 2)
    row, rows = row_of(found, [["quick", "slow", "slow"], ["quick"]], microbatches)
    assert rows == 1
    assert microbatches * row[0].both_s == pytest.approx(seconds)
    assert row[0].backward_s == pytest.approx(2 * row[0].forward_s) and row[1].both_s == pytest.approx(3.0)


def uneven(most: int, microbatches: int) -> RunManifest:
    """One layer and three layers by turns."""
    return manifest(
        model={"cuts": [1, 4, 5], "layers": 8, "vocab_size": 300, "dim": 1024, "heads": 16, "ffn_dim": 2816},
        swarm={"replicas": 1, "max_replicas": most},
        batch={"microbatches": microbatches},
    )


def test_cards_without_a_microbatch_are_told_and_do_not_help() -> None:
    found = outlook(uneven(5, 2), "rtx3060:12", None)
    assert cards_by_stage(found) == [2, 4, 2, 4]
    slowest = max(each.forward_s + each.backward_s for each in found.placements)
    assert found.own.forecast.compute_s == pytest.approx(slowest), "two cards of four have one microbatch each"
    assert "2 of 4 cards of stage 1 get none of 2 microbatches" in found.warnings


def cards_by_stage(found: Outlook) -> list[int]:
    stages = 1 + max(each.stage for each in found.placements)
    return [sum(each.count for each in found.placements if each.stage == stage) for stage in range(stages)]


@pytest.mark.parametrize(
    ("replicas", "most", "microbatches", "cards", "stages", "standbys"),
    [
        (2, 0, 16, 8, [2, 2, 2, 2], 0),
        (2, 0, 16, 6, [1, 2, 1, 2], 0),
        (2, 2, 16, 12, [2, 2, 2, 2], 4),
        (2, 0, 3, 16, [3, 3, 3, 3], 4),
        (1, 5, 16, 12, [2, 4, 2, 4], 0),
    ],
)
def test_cards_are_placed_as_the_coordinator_places_peers(
    replicas: int, most: int, microbatches: int, cards: int, stages: list[int], standbys: int
) -> None:
    """Each stage first gets its planned replicas, then the slowest stages get more. None gets more than it may have, or
    more than there are microbatches.
    """
    run = uneven(most, microbatches)
    run = run.model_copy(update={"swarm": run.swarm.model_copy(update={"replicas": replicas})})
    found = outlook(run, f"rtx3060:{cards}", Line(10e6, 10e6, 0.05))
    assert cards_by_stage(found) == stages
    assert found.rows == min(stages)
    assert sum(each.count for each in found.standbys) == standbys
    assert ("stand by" in seen(found)) == bool(standbys)
    assert to_json(found)["standbys"] == ([{"card": "rtx3060", "count": standbys, "lacks": 0}] if standbys else [])


def test_a_card_gets_only_stages_that_it_fits_and_a_place_that_becomes_free_is_taken() -> None:
    run = manifest(model={"cuts": [1, 4, 6]})
    needs, stages = dry_run(run).stages, run.model.stages
    first, second, *_ = sorted((need.least.device, stage) for stage, need in enumerate(needs))
    assert first[0] < second[0]
    times = [Times(1.0, 2.0)] * stages
    large, small = Kind("large", 1 << 40, needs, times), Kind("small", first[0], needs, [Times(2.0, 4.0)] * stages)
    tiny = Kind("tiny", first[0] - 1, needs, [Times(4.0, 8.0)] * stages)
    names = ["tiny", "small", "small"] + ["large"] * stages
    found = placed({"large": large, "small": small, "tiny": tiny}, names, stages, Bounds(1, 2, 60.0))
    assert "small" in found.stages[first[1]] and "tiny" in found.standbys
    assert all("small" not in crew for stage, crew in enumerate(found.stages) if stage != first[1])
    alone = placed({"large": large, "small": small}, ["large"] * (stages - 1) + ["small"], stages, Bounds(1, 1, 60.0))
    assert alone.stages[first[1]] == ["small"] and not alone.standbys, "the large ones are left to the other stages"


def test_a_card_that_is_too_small_says_by_how_much_and_one_that_is_tight_computes_again() -> None:
    run = manifest(batch={"sequences": 4, "sequence_length": 512}, model={"context": 512})
    stages = run.model.stages
    need, least = dry_run(run).stages[0].memory, dry_run(run).stages[0].least
    kind = kinds(run, least.device - 1000, [Times(1.0, 2.0)] * stages)["quick"]
    assert kind.lacks(0) == 1000
    short = kinds(run, need.device - 1, [Times(1.0, 2.0)] * stages)["quick"]
    assert short.lacks(0) == 0 and short.recomputes_layers(0), "one layer after another it fits"
    assert short.taken(0, 4).backward_s == 3.0, "each forward is computed again"
    tight, roomy = (kinds(run, need.device + more, [Times(1.0, 2.0)] * stages)["quick"] for more in (0, 1 << 40))
    assert (tight.graphs(0), tight.taken(0, 4).backward_s) == (1, 2.75), "three of four forwards are computed again"
    assert roomy.taken(0, 4).backward_s == 2.0


@pytest.mark.parametrize(
    ("dim", "ffn", "layers", "length", "subspace", "milliseconds"),
    [
        (2048, 5632, 5, 2048, 128, 31.8),
        (4096, 11264, 2, 2048, 128, 34.1),
        (2048, 5632, 5, 2048, 0, 35.5),
        (1024, 2816, 8, 512, 128, 38.7),
    ],
)
def test_a_measured_card_is_as_fast_as_it_was(
    dim: int, ffn: int, layers: int, length: int, subspace: int, milliseconds: float
) -> None:
    """Core, not compiled, of docs/gpu.md."""
    narrow = {"residual": "subspace", "subspace_dim": subspace, "tail_layers": 0} if subspace else {}
    shape = {"dim": dim, "ffn_dim": ffn, "layers": layers + 2, "heads": dim // 64, "kv_heads": dim // 256}
    run = manifest(
        model={"vocab_size": 512, **shape, "context": length, "cuts": [1, layers + 1], **narrow},
        batch={"microbatches": 4, "sequences": 4, "sequence_length": length},
    )
    times = times_on(CARDS["h200"], count_work(run, Mode("cuda", "bf16")))[1]
    assert 1000 * times.both_s == pytest.approx(milliseconds, rel=0.1)


def seen(found: Outlook) -> str:
    printed = io.StringIO()
    show(found, Console(file=printed, width=140))
    return printed.getvalue()


def test_people_and_programs_are_told_the_same() -> None:
    run = manifest()
    found = outlook(run, "rtx4090:4,rtx3060:8", Line(10e6, 10e6, 0.05))
    told = json.loads(json.dumps(to_json(found)))
    assert sum(each["count"] for each in told["placements"]) == 12
    assert {each["has"] for each in told["placements"]} == {
        free_on(card) - (1 << 30) for card in ("rtx4090", "rtx3060")
    }
    own = told["own"]
    assert own["step_s"] == pytest.approx(own["compute_s"] + own["fill_s"] + own["wire_s"] + own["reduce_s"])
    text = seen(found)
    for part in (f"a step takes {found.own.forecast.step_s:.3g} s", "× rtx3060", "fits", "powersgd:4"):
        assert part in text
    advice = told["advice"]
    assert (advice is None) == ("none of these reaches" in text)
    ways = [own, *told["others"]]
    assert {way["averaging"] for way in ways} == {"none", "dither:1", "int8", "int4", "powersgd:4"}
    [power] = [way for way in ways if (way["codec"], way["averaging"]) == ("none", "powersgd:4")]
    assert power["loss_percent"] == 6.5 and power["kept"] == 1.0 and power["tokens"] > 1.7
    assert power["hours"] == pytest.approx(30 * power["tokens"] * power["step_s"] / 3600)
    soonest = told["soonest"]
    assert soonest["hours"] == min(way["hours"] for way in ways if way["hours"] is not None)
    assert "the same loss comes soonest with" in text and f"after {soonest['hours']:.3g} hours" in text
    near = outlook(run, "rtx3060:12", None)
    assert near.advice is near.own and near.own.enough is not None
    assert f"batch.microbatches = {near.own.enough} or more" in seen(near)


def test_a_way_that_the_run_refuses_is_not_compared() -> None:
    """Stages that share the embedding can only average exactly, and dithered sums are whole numbers."""
    tied = outlook(manifest(model={"tie_embeddings": True}), "rtx3060:8", None)
    assert {way.averaging for way in tied.others} == {"none", "dither:1"}
    floats = outlook(manifest(sums={"mode": "fp32"}), "rtx3060:8", None)
    assert "dither:1" not in {way.averaging for way in floats.others}


def test_losses_are_those_of_the_docs_and_nothing_is_made_up() -> None:
    table = (Path(peers.__file__).parents[1] / "docs" / "compression.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    rows = {row[0]: row for row in cells if len(row) == 15}
    for row in _BOUNDARIES:
        if row.dim != 256 or (row.kind, row.codec) in (("dense", "none"), ("subspace", ENTROPY)):
            continue  # another table; the control itself
        narrow = "" if row.kind == "dense" else f"{row.kind} {row.width}"
        named = ", ".join(filter(None, (narrow, "" if narrow and row.codec == "none" else row.codec)))
        assert float(rows[named][10].rstrip(" %")) == pytest.approx(row.gap, abs=0.06), named
    long = [row for row in cells if len(row) == 9 and row[0].startswith("subspace 32, entropy 1.4 means4 classes")]
    entropy = next(row for row in _BOUNDARIES if row.codec == ENTROPY)
    assert float(long[0][6].split(",")[-1]) == pytest.approx(entropy.gap, abs=0.06), "the first table: a million tokens"
    assert float(long[0][7].split(",")[-1]) == pytest.approx(entropy.kept, abs=0.006)
    gaps = {float(row[10].rstrip(" %")): float(row[11]) for row in rows.values() if "%" in row[10] and "." in row[11]}
    for gap, tokens in EQUAL_LOSS[1:]:
        assert tokens == pytest.approx(min((abs(each - gap), gaps[each]) for each in gaps)[1], abs=0.03), gap
    assert Loss(1.2).tokens == pytest.approx(1.175) and Loss(-0.1).tokens == 1.0


@pytest.mark.parametrize(
    ("model", "codec", "gap"),
    [
        ({"dim": 256, "residual": "subspace", "subspace_dim": 32}, "int8", 0.5),
        ({"dim": 256, "residual": "subspace", "subspace_dim": 31}, "int8", 1.0),
        ({"dim": 256, "residual": "subspace", "subspace_dim": 7}, "int8", None),
        ({"dim": 1024, "heads": 16, "kv_heads": 8, "residual": "subspace", "subspace_dim": 18}, "int8", 1.7),
        ({"dim": 256, "boundary": "bottleneck", "boundary_dim": 32, "receiver_hidden": 8}, "int8", None),
        ({"dim": 256}, "log4", None),
        ({"dim": 256, "cuts": []}, "log4", 0.0),
    ],
)
def test_a_width_loses_what_the_next_narrower_one_lost(model: dict[str, object], codec: str, gap: float | None) -> None:
    shape = {"heads": 4, "kv_heads": 2, **model}
    run = manifest(model=shape, codec={"forward": codec, "backward": codec})
    found = loss_of(run, 1)
    assert (None if found is None else found.gap) == gap


def test_with_muon_a_narrow_boundary_loses_more_and_a_whole_one_does_not() -> None:
    narrow = {"dim": 256, "residual": "subspace", "subspace_dim": 32}
    found = {}
    for kind in ("adamw", "muon"):
        for name, model in (("narrow", narrow), ("whole", {"dim": 256})):
            run = manifest(model={"heads": 4, "kv_heads": 2, **model}, optimizer={"kind": kind})
            found[kind, name] = loss_of(run, 1)
    assert found["muon", "whole"] == found["adamw", "whole"]
    assert found["muon", "narrow"].gap == 2 * found["adamw", "narrow"].gap > 0
    assert found["muon", "narrow"].kept < found["adamw", "narrow"].kept


def test_too_few_cards_are_refused() -> None:
    with pytest.raises(UnknownCard, match="1 cards cannot hold 4 stages"):
        outlook(manifest(), "rtx4090", None)


def test_the_command_prints_it_and_refuses_what_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = SimpleNamespace(manifest=manifest(model={"cuts": [4]}))
    monkeypatch.setattr("peers.run.resolved_run.resolve_run", lambda path, overrides: resolved)

    def code(*arguments: str) -> object:
        with pytest.raises(SystemExit) as caught:
            cli.main(("coordinate", "RUN.toml", *arguments))
        return caught.value.code

    assert code("--dry-run", "--gpu", "rtx3060:2", "--line", "80Mbit,50ms", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outlook"]["line"] == {"up": 10e6, "down": 10e6, "delay_s": 0.05} and told["stages"]
    assert code("--dry-run", "--gpu", "rtx3060:2") == 0
    assert "a step takes" in capsys.readouterr().out
    for arguments, said in {
        ("--dry-run", "--gpu", "rtx306"): "did you mean 'rtx3060'",
        ("--dry-run", "--gpu", "rtx3060"): "cannot hold 2 stages",
        ("--gpu", "rtx3060:2"): "only with --dry-run",
        ("--dry-run", "--line", "80Mbit,50ms"): "with --gpu",
        ("--dry-run", "--gpu", "rtx3060:2", "--line", "fast"): "is not a line",
    }.items():
        assert code(*arguments) == 2
        assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_stage_that_fits_with_offload_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_table, "STREAMED_AT_ONCE", 1 << 16)  # as small beside this stage as beside a large one
    run = manifest()
    stages = run.model.stages
    plain, offloaded = (dry_run(run, Mode("cuda", "bf16", offload=offload)).stages for offload in (False, True))
    times = [Times(1.0, 2.0)] * stages
    room = offloaded[0].least.device
    assert room < plain[0].least.device
    kind = Kind("card", room, plain, times, offloaded)
    assert kind.with_offload(0) == offloaded[0].least
    assert Kind("card", room, plain, times).with_offload(0) is None, "a CPU has nothing to offload"
    assert Kind("card", room - 1, plain, times, offloaded).with_offload(0) is None, "it does not fit at all"
    assert Kind("card", 1 << 40, plain, times, offloaded).with_offload(0) is None, "it fits without"


def test_the_forecast_counts_what_offload_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_table, "STREAMED_AT_ONCE", 1 << 16)
    run = manifest()
    stages = run.model.stages
    plain, offloaded = (dry_run(run, Mode("cuda", "bf16", offload=offload)).stages for offload in (False, True))
    times = [Times(1.0, 2.0)] * stages
    slow_bus, card = offload_ns(CARDS["rtx2060"]), CARD_NS
    assert slow_bus > offload_ns(CARDS["rtx3060"]) > card, "the state crosses the bus, and the host adds up"
    tight = Kind("card", offloaded[0].least.device, plain, times, offloaded, card, slow_bus)
    roomy = Kind("card", 1 << 40, plain, times, offloaded, card, slow_bus)
    parameters = plain[0].parameters
    assert tight.reduce_s(0, on_host=False) == pytest.approx(1e-9 * slow_bus * parameters)
    assert roomy.reduce_s(0, on_host=False) == pytest.approx(1e-9 * card * parameters)
    assert roomy.reduce_s(0, on_host=True) > roomy.reduce_s(0, on_host=False), "dithered sums are reduced on the host"
    assert tight.graphs(0) == 1 and tight.recomputes_layers(0), "its memory is that with offload"
    assert reduce_s({"tight": tight, "roomy": roomy}, [["roomy", "tight"]], on_host=False) == tight.reduce_s(
        0, on_host=False
    ), "the slowest card of a stage decides"


def test_offload_and_recomputed_layers_each_make_room_for_a_larger_stage() -> None:
    run = manifest(
        model={
            "vocab_size": 512,
            "dim": 1024,
            "layers": 6,
            "heads": 16,
            "kv_heads": 8,
            "ffn_dim": 2816,
            "context": 2048,
            "cuts": [1, 5],
        },
        batch={"sequences": 2, "sequence_length": 2048},
    )
    found = capacities(run, Mode("cuda", "bf16"))
    assert [each.gigabytes for each in found[::4]] == [8, 12, 24]
    for plain, again, offloaded, both in zip(*(found[first::4] for first in range(4)), strict=True):
        assert plain.layers < again.layers < both.layers and plain.layers < offloaded.layers < both.layers
        assert both.host > 20 * both.parameters > plain.host
    assert capacities(run, Mode()) == ()


def wide(layers: int) -> RunManifest:
    """Two stages of layers of 51 million parameters."""
    shape = {"vocab_size": 512, "dim": 2048, "heads": 32, "kv_heads": 8, "ffn_dim": 5632, "context": 2048}
    return manifest(model={**shape, "layers": layers, "cuts": [layers // 2]})


def test_a_run_that_fits_no_card_is_given_no_advice() -> None:
    found = outlook(wide(16), "rtx2060:2", Line(10e6, 10e6, 0.05))
    assert found.advice is None and found.soonest is None
    assert [each.split(":")[0] for each in found.warnings[:2]] == [
        f"no card can hold stage {stage}" for stage in (0, 1)
    ]
    assert "--offload does not suffice" in found.warnings[0] and "rtx2060" in found.warnings[0]
    told, text = to_json(found), seen(found)
    assert told["advice"] is None and told["soonest"] is None and told["warnings"] == list(found.warnings)
    assert "warning: no card can hold stage 1" in text
    assert "comes soonest" not in text and "is reached by" not in text and "none of these" not in text


def test_a_card_that_needs_offload_is_told_with_the_memory_of_its_host() -> None:
    run = wide(18)
    few = run.swarm.model_copy(update={"replicas": 1, "max_replicas": 1})
    [spare] = outlook(run.model_copy(update={"swarm": few}), "rtx3060:3", None).standbys
    assert (spare.count, spare.lacks) == (1, 0), "it fits with --offload, but both stages are full"
    found = outlook(run, "rtx3060:2", None)
    assert all(each.lacks and each.offload_host for each in found.placements)
    assert "swarm.replicas = 2, but a stage gets 1: the run begins 600 s" in found.warnings[2]
    assert not outlook(manifest(), "rtx3060:8", None).warnings
    assert len(found.warnings) == 3 and "1 × rtx3060 can hold stage 0 only with --offload" in found.warnings[0]
    assert found.soonest is not None and "warning: 1 × rtx3060 can hold stage 1 only with" in seen(found)
    assert "swarm.replicas = 2, but a stage gets 1: the run begins 600 s" in found.warnings[2]
    assert not outlook(manifest(), "rtx3060:8", None).warnings


def test_the_largest_stages_are_those_of_the_docs() -> None:
    shape = {"vocab_size": 512, "dim": 2048, "layers": 6, "heads": 32, "kv_heads": 8, "ffn_dim": 5632, "context": 2048}
    narrow = {"residual": "subspace", "subspace_dim": 128, "tail_layers": 0, "cuts": [1, 5]}
    run = manifest(model={**shape, **narrow}, batch={"sequences": 2, "sequence_length": 2048})
    text = (Path(peers.__file__).parents[1] / "docs" / "gpu.md").read_text()
    table = [
        [part.strip() for part in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith(("| 8 GB |", "| 12 GB |", "| 24 GB |"))
    ]
    found = capacities(run, Mode("cuda", "bf16"))
    told = []
    for each in zip(*(found[first::4] for first in range(4)), strict=True):
        cells = [f"{way.layers}, {way.parameters / 1e9:.2f}" for way in each]
        told.append([f"{each[0].gigabytes} GB", *cells, f"{each[-1].host / 1e9:.0f} GB"])
    assert told == [[cell.replace(" layers", "").replace(" billion parameters", "") for cell in row] for row in table]
