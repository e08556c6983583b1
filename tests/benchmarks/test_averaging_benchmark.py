"""What averaging costs a model, small: a few steps with three codecs."""

import random
from pathlib import Path

import pytest

from benchmarks import averaging
from swarm.data import open_source, prepare


def test_some_codecs_for_two_steps(tmp_path: Path) -> None:
    draw = random.Random(0)
    text = tmp_path / "text.jsonl"
    words = ["".join(draw.choices("aeioulmnrst", k=draw.randint(2, 6))) for _ in range(200)]
    text.write_text("\n".join(f'{{"text": "{" ".join(draw.choices(words, k=40))}"}}' for _ in range(1000)))
    prepare(open_source([text]), tmp_path / "data", vocab_size=300, heldout_fraction=0.3)
    options = averaging.parser().parse_args(["--codecs", "none;int4;powersgd:1", "--steps", "2", "--dim", "32"])
    exact, int4, power = averaging.measure(options, tmp_path)
    assert [exact["bytes a parameter"], int4["bytes a parameter"]] == [None, pytest.approx(0.53, abs=0.01)]
    assert 0.05 < power["bytes a parameter"] < 0.3
    assert int4["loss"] == pytest.approx(exact["loss"], abs=0.1) and int4["loss"] != exact["loss"]
