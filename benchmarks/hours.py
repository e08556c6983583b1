"""Held-out loss over hours of training, as a picture: a data centre beside swarms. Wants matplotlib (extra 'dev')."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.length.rows import DENSE
from benchmarks.time_to_loss import CHIPS_OF_THE_GOALS, MICROBATCH_TOKENS, UNLIMITED_LINE

matplotlib.use("svg")
from matplotlib import pyplot

_PANELS = ("80 Mbit/s, 50 ms", "15 Mbit/s up, 80 down, 50 ms")


def draw(table: Sequence[dict[str, Any]], whole: Mapping[str, dict[str, Any]], file: Path) -> None:
    """One panel for each line, one replica, the chips of the goals, the largest steps. `table`: what
    `time_to_loss.figures` returns.

    `whole`: the run of each row. A curve is one run with its own schedule, measured after each quarter.
    """
    pyplot.rcParams.update({"svg.hashsalt": "swarm-peer", "svg.fonttype": "none", "font.size": 8})
    figure, panels = pyplot.subplots(1, len(_PANELS), figsize=(11, 4.5), sharey=True)
    for axes, line in zip(panels, _PANELS, strict=True):
        largest = max((row["microbatches"] for row in table), default=0)
        told = (1, CHIPS_OF_THE_GOALS, largest)
        for row in (row for row in table if (row["replicas"], row["chips"], row["microbatches"]) == told):
            if row["row"] == DENSE:
                _curve(axes, whole[DENSE], row, UNLIMITED_LINE, "data centre", "k--o")
            if line in row["step_s"]:
                name = "fp32" if row["row"] == DENSE else row["row"].removeprefix(f"{DENSE}, ")
                _curve(axes, whole[row["row"]], row, line, name, "-o")
        axes.set_title(line)
        axes.set_xscale("log")
        axes.set_xlabel("hours")
        axes.grid(alpha=0.3, which="both")
    panels[0].set_ylabel("held-out loss, nats a token")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=3)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def _curve(axes: Any, run: dict[str, Any], row: dict[str, Any], line: str, name: str, style: str) -> None:
    token_s = row["step_s"][line] / (row["microbatches"] * MICROBATCH_TOKENS)
    hours = [point["tokens"] * token_s / 3600 for point in run["points"]]
    axes.plot(hours, [point["loss"] for point in run["points"]], style, label=name, markersize=3)
