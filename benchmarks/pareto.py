"""Draws the comparison of compression as a picture, and writes it as a table of a Markdown page. Needs matplotlib
(extra 'dev').
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

from benchmarks.page import put_table

Table = Sequence[dict[str, Any]]

_COLOURS = {"subspace": "tab:green", "bottleneck": "tab:red", "projector": "tab:purple", "maxout": "tab:brown"}
_HIGHEST = 1.15
"""Rows with more than this multiple of the best loss are named beside the plot instead of drawn, since they would
flatten the other rows.
"""
_MIDDLE = 500  # bytes: beyond, a label stands left of its point


def draw(table: Table, file: Path) -> None:
    """Draw the held-out loss over the bytes per token at a boundary, both ways. The line joins rows that no other row
    dominates.
    """
    best = min(row["loss"] for row in table)
    shown = [row for row in table if row["loss"] <= best * _HIGHEST]
    hidden = [row for row in table if row["loss"] > best * _HIGHEST]
    pyplot.rcParams.update({"svg.hashsalt": "swarm-peer", "svg.fonttype": "none", "font.size": 8})
    figure, axes = pyplot.subplots(figsize=(11, 6.5))
    for row in shown:
        colour = _COLOURS.get(row["row"].split()[0], "tab:blue")
        axes.plot(_bytes(row), row["loss"], "o", color=colour, markersize=4)
        right = _bytes(row) > _MIDDLE
        place: dict[str, Any] = {"xytext": (-4 if right else 4, 3), "ha": "right" if right else "left", "fontsize": 6.5}
        axes.annotate(row["row"], (_bytes(row), row["loss"]), textcoords="offset points", **place)
    front = sorted((row for row in shown if not any(_dominates(other, row) for other in shown)), key=_bytes)
    axes.plot([_bytes(row) for row in front], [row["loss"] for row in front], "-", color="0.7", zorder=0)
    axes.set_xscale("log")
    axes.set_xlabel("bytes of a token at a boundary, forward and back, everything included")
    axes.set_ylabel("held-out loss, nats a token")
    axes.margins(x=0.15)
    axes.grid(alpha=0.3, which="both")
    if hidden:
        words = "\n".join(f"{row['row']}: {_loss(row['loss'])} at {_bytes(row):.0f} bytes" for row in hidden)
        axes.text(0.99, 0.99, f"not drawn:\n{words}", transform=axes.transAxes, ha="right", va="top", fontsize=6.5)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def write_table(table: Table, page: Path, place: str) -> None:
    """Write the table into an existing page. Raises ValueError if the page has no `place` for it."""
    put_table(page, place, markdown(table))


def markdown(table: Table) -> str:
    lines = [
        "| row | bytes forward | back | × fewer | loss | bits/byte | codec off | held against | after ⅓ | ⅔ | all "
        "| tokens for equal loss | to dense | encode + decode | parameters |",
        "|---|" + 14 * "---:|",
    ]
    for row in table:
        spread = f" ± {row['loss_spread'] / 2:.3f}" if row["seeds"] > 1 else ""
        own = row["row"] == row["control"]
        cells = [
            row["row"],
            f"{row['bytes_forward']:.1f}",
            f"{row['bytes_backward']:.1f}",
            f"{row['times_fewer_bytes']:.1f}",
            f"{_loss(row['loss'])}{spread}",
            _loss(row["bits_per_byte"]),
            _loss(row["loss_codec_off"]),
            "" if own else row["control"],
            *("" if own else _percent(gap) for gap in row["gap_percent_at_thirds"]),
            "" if own else "–" if row["tokens_for_equal_loss"] is None else f"{row['tokens_for_equal_loss']:.2f}",
            "" if own else _percent(row["gap_to_dense_percent"]),
            f"{row['encode_ms'] + row['decode_ms']:.1f} ms",
            f"{row['parameters'] / 1e6:.2f} M",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _loss(loss: float) -> str:
    return f"{loss:.3f}" if math.isfinite(loss) else "diverged"


def _percent(gap: float | None) -> str:
    return "–" if gap is None else f"{gap:+.1f} %"


def _bytes(row: dict[str, Any]) -> float:
    return float(row["bytes_forward"] + row["bytes_backward"])


def _dominates(other: dict[str, Any], row: dict[str, Any]) -> bool:
    """True if `other` is no worse in both figures, and better in one."""
    better = other["loss"] < row["loss"] or _bytes(other) < _bytes(row)
    return better and other["loss"] <= row["loss"] and _bytes(other) <= _bytes(row)
