"""Progress, metrics and words: one line for a step, the reason for everything else."""

import dataclasses
import io
import json
import typing
from pathlib import Path

import pytest
from rich.console import Console

from peers import cli
from peers.report.metrics import Metrics
from peers.report.progress import Progress
from swarm import events as e
from swarm.events import step_line
from swarm.events.wording import amount, printable_lines
from swarm.manifest import DataSection

DECIDED = e.StepDecided(1, 3, 0.5, 6.25, 1.234, 8192, [], [])
MEASURED = e.StepMeasured(3, 2.0, 4096.0, 0.875, [2, 1, 2])
DATA = DataSection(
    tokenizer_sha256="0" * 64, vocab_size=300, train=(), heldout=(), unigram_entropy=6.8, bytes_per_token=3.5
)


def shown(*events: e.Event, terminal: bool = False, **options: object) -> list[str]:
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=terminal, width=40), **options)
    for i, event in enumerate(events):
        progress(event, float(i))
    return out.getvalue().splitlines()


def test_a_step_is_one_line():
    [line] = shown(DECIDED, MEASURED, steps=30)
    assert line.endswith("step 4/30  loss 6.2500  norm 1.23  4,096 tok/s  efficiency 0.88  peers 2·1·2")
    assert "\x1b" not in line


@pytest.mark.parametrize("sent", ["\x1b]0;title\x07", "\x9b2J", "\u202eabc", "\ud800"])
def test_what_others_send_does_not_move_the_terminal(sent: str, capsys: pytest.CaptureFixture[str]):
    without = dataclasses.replace(DECIDED, without=[sent])
    for event in (e.PeerLost(sent, 0, sent), e.FrameRefused(sent, sent, 1), without):
        assert event.describe().isprintable()
        for line in shown(event, MEASURED, terminal=True):
            assert sent not in line
    with pytest.raises(SystemExit):
        cli.main([sent])
    cli._complain(sent)
    assert capsys.readouterr().err.splitlines()[-1].isprintable()


def test_the_text_of_a_model_keeps_its_lines_and_moves_no_terminal():
    """Whoever trains a model can teach it to write escape sequences, which `generate` would print."""
    assert printable_lines("one\n\ttwo – 三\n") == "one\n\ttwo – 三\n"
    assert printable_lines("\x1b]0;title\x07\r\x9b2J\u202e\udc80") == "\ufffd]0;title\ufffd\ufffd\ufffd2J\ufffd\ufffd"


def test_colours_only_on_a_terminal():
    assert "\x1b[" in shown(DECIDED, MEASURED, terminal=True)[0]


def test_a_step_without_figures_is_shown_when_the_next_one_comes():
    later = dataclasses.replace(DECIDED, step=4)
    lines = shown(DECIDED, later, e.RunFinished(4, "done"))
    assert ["step 4" in lines[0], "step 5" in lines[1], "finished after step 5: done" in lines[2]] == [True] * 3


def test_a_skipped_step_and_a_step_without_a_peer_say_so():
    assert "SKIPPED" in step_line(dataclasses.replace(DECIDED, scale=0.0), None)
    assert "without abc.1" in step_line(dataclasses.replace(DECIDED, without=["abc.1"]), None)


def test_a_choice_of_codec_and_its_reason_are_shown():
    first, later = shown(
        e.CodecChosen(0, 1, "forward", "int8", "", "the start"),
        e.CodecChosen(4, 2, "backward", "log4", "int8", "the uplink of abc.1 carries 1 MB/s"),
    )
    assert first.endswith("stages 0 → 1: int8 from step 1 on: the start")
    assert later.endswith("stages 1 ← 2: log4 instead of int8 from step 5 on: the uplink of abc.1 carries 1 MB/s")


def test_traffic_names_the_links_that_are_measured():
    assert e.TrafficMeasured({"gradient": 5}, {}).describe() == "sent 5 B, received 0 B"
    measured = e.TrafficMeasured({"gradient": 5}, {}, {"abc.1": 1_400_000})
    assert measured.describe() == "sent 5 B, received 0 B; links: 1.4 MB/s from abc.1"


def test_trouble_and_its_reason_are_shown():
    lines = shown(
        e.PeerLost("abc.1", 2, "connection closed"),
        e.PeerFenced("abc.1", 2, "1:3", [0, 1], [2], "lost"),
        e.StageAmended("1:3", 2, 1, [0, 2, 1], "abc.1 is fenced"),
        e.FrameRecovered("1:3/b2→m0", "def.1"),
        e.FrameRecovered("1:3/b2→m1", "def.1"),
        e.RolledBack(2, 10, "no copy of stage 2 is left"),
        e.MicrobatchForwarded("1:3", 5),
    )
    assert [line.split("  ", 1)[1] for line in lines] == [
        "abc.1 of stage 2 is lost: connection closed",
        "abc.1 of stage 2 is fenced: lost; 2 finished and 1 unfinished microbatches are repeated",
        "stage 2 has a new assignment table, number 1, microbatches 0–2 moved: abc.1 is fenced",
        "recovered 1:3/b2→m0 from def.1",
        "rolled back to version 10, term 2: no copy of stage 2 is left",
    ]


def test_evaluation_is_compared_with_the_unigram_entropy():
    [line] = shown(e.Evaluated(10, 5.0, 2048), data=DATA)
    assert "held-out loss 5.0000 at version 10" in line
    assert "2.061 bits per byte; unigram entropy 6.8000" in line


def test_markup_in_a_sample_is_text():
    [line] = shown(e.Sampled(10, "The ", "[bold]x[/bold]\n[/]"))
    assert line.endswith("sample at version 10: The [bold]x[/bold] [/]")


def example(kind: type[e.Event]) -> e.Event:
    values = {
        "int": 1,
        "float": 0.5,
        "str": "text",
        "list[int]": [1, 2],
        "list[str]": ["a"],
        "list[list[str]]": [["a"], ["b"]],
        "list[float]": [0.5, 1.5],
        "list[list[int]]": [[1, 2, 3]],
        "list[list[int | str]]": [["forward", 0, 0, 5]],
        "list[list[list[int]]]": [[[1, 2, 3]]],
        "list[dict[str, str | float | dict[str, int]]]": [{"other": "a", "rate": 1.5, "sent": {"forward": 1}}],
        "dict[str, int]": {"a": 1},
        "dict[str, list[str]]": {"a": ["b"]},
        "dict[str, float]": {"forward": 0.5},
        "dict[str, str | float]": {"device": "cpu", "cores": 2.0},
    }
    values |= {"int | None": None, "float | None": 0.5, "str | None": None, "bool": True}
    return kind(**{field.name: values[str(field.type)] for field in dataclasses.fields(kind)})


# By name, since a dataclass with slots is a second class beside the one it was made from.
KINDS = {kind.__name__: kind for kind in e.Event.__subclasses__()}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_is_told_in_words(kind: type[e.Event]):
    event = example(kind)
    line = event.describe()
    assert line and "\n" not in line
    assert not line.startswith(kind.__name__), "this kind has no sentence in peers/report/event_text.py"
    if "reason" in typing.get_type_hints(kind):
        assert "text" in line


def test_metrics_are_json_lines_and_survive_a_torn_tail(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n{"ste')
    metrics = Metrics(path)
    for event in (DECIDED, MEASURED, e.Evaluated(4, 5.5, 100), dataclasses.replace(DECIDED, step=4)):
        metrics(event, 9.0)
    metrics(e.ProcessStopped("done"), 10.0)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0] == {"step": 0}
    assert rows[1] == {
        "at": 9.0,
        "step": 3,
        "term": 1,
        "loss": 6.25,
        "gradient_norm": 1.234,
        "scale": 0.5,
        "tokens": 8192,
        "seconds": 2.0,
        "tokens_per_second": 4096.0,
        "efficiency": 0.875,
        "replicas": [2, 1, 2],
    }
    assert rows[2] == {"at": 9.0, "version": 4, "heldout_loss": 5.5, "heldout_targets": 100}
    assert rows[3]["step"] == 4 and "seconds" not in rows[3]


def test_amounts_are_short():
    assert [amount(n) for n in (0, 999, 1500, 123_456, 2_600_000_000)] == ["0 B", "999 B", "1.5 kB", "123 kB", "2.6 GB"]


def test_a_peers_step_takes_no_negative_time_when_the_clock_is_set_back() -> None:
    console = Console(file=io.StringIO(), width=200)
    progress = Progress(console)
    progress(e.ProcessStarted("peer", "A.1", "run", "1", None), 90_000.0)
    for at in (90_000.0, 86_400.0):
        progress(e.StepApplied(1, "digest"), at)
    assert "step 2 applied, 0.0 s after the one before" in console.file.getvalue()  # type: ignore[attr-defined]
