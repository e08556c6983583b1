"""Compares the dry run's seconds with those of a swarm over emulated home links: hosts with separate addresses, as
root.

    python -m benchmarks.dry_run_check [--shapes 2x1,4x1,2x2,3x2] [--lines 80Mbit,50ms;40Mbit,20ms] [--out FILE]

Compute is a calibrated sleep with the default schedule, zero bubble, so the model's seconds of a microbatch are exact;
frames, sums and lines are real. A row has the median of the second half of the steps, the forecast of
peers/run/forecast.py, and the first ÷ the second.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks import home_links
from benchmarks.arguments import at_least, each
from benchmarks.corpus import folder_with_corpus
from benchmarks.results import write_results
from benchmarks.slow_links import run_file
from peers.options import parse_line
from peers.run.dry_run import dry_run
from peers.run.fleet import HOST_NS
from peers.run.forecast import Line, Load, forecast
from peers.run.resolved_run import resolve_run

CODECS = ("int8", "subspace, int8")
WITHIN = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=each(_shape, ","), default="2x1,4x1,2x2,3x2", help="stages x replicas")
    parser.add_argument("--lines", type=each(parse_line, ";"), default="80Mbit,50ms;40Mbit,20ms")
    parser.add_argument("--microbatches", type=int, default=16, help="per replica of a stage")
    parser.add_argument("--forward-ms", type=float, default=150.0)
    parser.add_argument("--backward-ms", type=float, default=300.0)
    parser.add_argument("--steps", type=at_least(2), default=8, help="the first half is not counted")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    with folder_with_corpus("dry-run-check") as folder:
        for shape in options.shapes.split(","):
            stages, replicas = _shape(shape)
            for line in options.lines.split(";"):
                for codec in CODECS:
                    rows.append(_row(folder, options, stages, replicas, line, codec))
                    print(json.dumps(rows[-1]), flush=True)
                    write_results(options.out, "dry_run_check", rows=rows)


def _shape(text: str) -> tuple[int, int]:
    """STAGESxREPLICAS. Raises ValueError."""
    stages, by, replicas = text.partition("x")
    if not by:
        raise ValueError("it is not STAGESxREPLICAS, such as 2x1")
    return at_least(1)(stages), at_least(1)(replicas)


def _row(
    folder: Path, options: argparse.Namespace, stages: int, replicas: int, text: str, codec: str
) -> dict[str, object]:
    line = parse_line(text)
    words = [f"--stages={stages}", f"--replicas={replicas}", f"--steps={options.steps}", f"--rows={codec}"]
    words += [f"--microbatches={options.microbatches}", "--compute=emulated", f"--rate={text.partition(',')[0]}"]
    words += [f"--delay-ms={1000 * line.delay_s}"]
    words += [f"--forward-ms={options.forward_ms}", f"--backward-ms={options.backward_ms}"]
    cell = folder / f"{stages}x{replicas} {text} {codec}"
    cell.mkdir()
    (cell / "data").symlink_to(folder / "data")
    of_links = home_links.parser().parse_args(words)
    (measured,) = home_links.measure(of_links, cell)
    planned = _planned(cell, of_links, codec, replicas, line)
    seconds = float(str(measured["step_s"]))
    return {
        "stages": stages,
        "replicas": replicas,
        "line": text,
        "codec": codec,
        "measured_s": seconds,
        "forecast_s": round(planned, 3),
        "ratio": round(planned / seconds, 3),
        "met": abs(planned / seconds - 1) <= WITHIN,
    }


def _planned(cell: Path, options: argparse.Namespace, codec: str, replicas: int, line: Line) -> float:
    manifest = resolve_run(run_file(cell, options, home_links.ROWS[codec], replicas, options.steps)).manifest
    plan = dry_run(manifest)
    (boundary, *_), count = plan.boundaries, manifest.batch.microbatches
    stages = manifest.model.stages
    middle = plan.stages[0 if stages < 3 else 1]  # every emulated stage has as many parameters
    load = Load(
        forward_s=(options.forward_ms / 1000,) * stages,
        backward_s=(options.backward_ms / 1000,) * stages,
        forward_frame=boundary.forward / count,
        backward_frame=boundary.backward / count,
        reduce_bytes=middle.reduce_packed,
        reduce_s=1e-9 * HOST_NS * middle.parameters,
    )
    return forecast(load, count // replicas, replicas, line).step_s


if __name__ == "__main__":
    main()
