"""What averaging costs a model, small: a few steps with three codecs."""

from pathlib import Path

import pytest
from random_words import prepare_words

from benchmarks import averaging


def test_some_codecs_for_two_steps(tmp_path: Path) -> None:
    prepare_words(tmp_path, 1000, 0.3)
    options = averaging.parser().parse_args(["--codecs", "none;int4;powersgd:1", "--steps", "2", "--dim", "32"])
    exact, int4, power = averaging.measure(options, tmp_path)
    assert [exact["bytes a parameter"], int4["bytes a parameter"]] == [None, pytest.approx(0.53, abs=0.01)]
    assert 0.05 < power["bytes a parameter"] < 0.3
    assert int4["loss"] == pytest.approx(exact["loss"], abs=0.1) and int4["loss"] != exact["loss"]
