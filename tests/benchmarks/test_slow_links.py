"""The comparison on slow links, small: four peers, a wire too narrow for fp32 and wide enough for a subspace."""

from pathlib import Path

import pytest
from random_words import prepare_words

from benchmarks import slow_links

pytestmark = pytest.mark.swarm

ARGUMENTS = (
    *(
        "--rows",
        "none;unlimited, subspace, int8;subspace, int8, averaging int8;subspace, int8, averaging dither:1",
        "--stages",
        "2",
        "--replicas",
        "2",
        "--microbatches",
        "6",
    ),
    *("--sequences", "2", "--length", "64", "--dim", "64", "--subspace-dim", "8", "--vocab-size", "300"),
    *("--forward-ms", "5", "--backward-ms", "10", "--overload", "20", "--steps", "2"),
)


def test_some_rows_of_two_steps(tmp_path: Path) -> None:
    prepare_words(tmp_path, 600, 0.05)
    options = slow_links.parser().parse_args(ARGUMENTS)
    table = slow_links.measure(options, tmp_path)
    none, subspace, compressed, dithered = table
    assert [row["row"] for row in table] == options.rows.split(";")
    fp32 = 2 * 4 * 64
    assert fp32 < none["bytes per token and boundary"] < (1.05 + 0.25 * none["detours"]) * fp32 + 4, "ids and headers"
    assert 8 + 8 < subspace["bytes per token and boundary"] < 8 + 8 + 16
    # all activations of a stage-0 peer leave through its bucket: nothing can make that faster
    share = options.microbatches * 4 * 2 * 64 * 64 / slow_links.upload_rate(options)
    assert none["step_s"] > share - 0.2
    assert none["ratio"] == round(subspace["step_s"] / none["step_s"], 3)
    assert all(2 < row["averaging, bytes per parameter"] < 8 for row in (none, subspace)), "packed"
    assert 1 < compressed["averaging, bytes per parameter"] < 1.1
    assert dithered["averaging, bytes per parameter"] < 0.8 * subspace["averaging, bytes per parameter"]
    assert slow_links.as_markdown(table).count("\n") == 5
