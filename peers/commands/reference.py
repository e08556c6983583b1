"""`swarm-peer reference`: trains the same run in one process, and compares the results."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from peers.options import MOST_THREADS, Json, Precision, Set


def command(
    path: Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run to train.")] = Path("RUN.toml"),
    overrides: Set = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="HOME", help="A coordinator's home: compare the result with its archive."),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            "--threads", min=1, max=MOST_THREADS, help="Threads for computing; use the number that each peer used."
        ),
    ] = 1,
    device: Annotated[
        str,
        typer.Option("--device", help="Device to compute on: cpu, cuda, cuda:1 …; use the kind that the peers used."),
    ] = "cpu",
    precision: Precision = "auto",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Let torch compile the layers, as peers with --compile do.")
    ] = False,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Stop after this number of steps.")] = None,
    as_json: Json = False,
) -> None:
    """Train the same run in one process, with plain torch and the whole model: the result that the swarm must equal.

    The results are equal if the swarm's peers computed on the same kind of device, in the same precision, compiled or
    not.

    Without --against, it stops with exit code 4 if the run diverges, as a swarm does: if divergence.skips steps in a
    row have gradients that are not finite.
    """
    from peers.run.archived_run import Refused
    from peers.run.first_version import first_states
    from peers.run.home import Home
    from peers.run.reference import ReferenceStep, train_reference
    from peers.run.replay import read_replay
    from peers.run.resolved_run import resolve_run
    from peers.run.verdict import archived_digests, compare
    from peers.runtime.device import pick_device
    from swarm.compute.arithmetic import Arithmetic
    from swarm.data.reader import CorpusReader

    if against is not None and steps is not None:
        raise typer.BadParameter("--steps has no effect with --against: it stops at the archive's newest checkpoint")
    picked = pick_device(device, precision, compiled)
    arithmetic = Arithmetic.of(picked.name, threads, picked.precision, compiled)
    run = resolve_run(path, overrides or ())
    if steps is not None and steps > run.manifest.run.steps:
        raise typer.BadParameter(
            f"--steps {steps}: this run has {run.manifest.run.steps} steps, see run.steps in {path}"
        )
    refused = Refused()
    version, archived = archived_digests(against, run.manifest, refused) if against is not None else (steps, None)
    replay = read_replay(Home(against), run.manifest.hash) if against is not None else None
    if run.manifest.codec.auto and replay is None and not as_json:
        print(
            'codec "auto": every step uses the codecs of the first; --against HOME uses those that a swarm has chosen'
        )
    began = time.monotonic()
    skipped = 0

    def show(step: ReferenceStep) -> None:
        nonlocal skipped
        if not as_json:
            rate = (step.step + 1) * run.manifest.batch.tokens_per_step / (time.monotonic() - began)
            total = version or run.manifest.run.steps
            loss = f"loss {step.loss:.4f}  norm {step.gradient_norm:.3g}"
            print(f"reference step {step.step + 1}/{total}  {loss}  {rate:,.0f} tok/s", flush=True)
        skipped = skipped + 1 if step.scale == 0.0 else 0
        if against is None and skipped >= run.manifest.divergence.skips:
            print(
                f"stopped: the run has diverged: {skipped} steps in a row up to step {step.step + 1} have gradients "
                "that are not finite, so they changed nothing. Lower optimizer.learning_rate",
                file=sys.stderr,
            )
            raise typer.Exit(4)

    reader = CorpusReader(run.corpus, run.manifest)
    state = None if run.initial is None else list(first_states(run.initial, run.manifest))
    result = train_reference(
        run.manifest, reader, arithmetic=arithmetic, on_step=show, stop_after=version, state=state, replay=replay
    )
    verdict = compare(archived, result.digests, refused.texts) if archived is not None else None
    if as_json:
        print(
            json.dumps(
                {
                    "run": run.manifest.hash,
                    "version": result.states[0].version,
                    "digest": result.digest,
                    "digests": result.digests,
                    "losses": [step.loss for step in result.steps],
                    "equal": None if verdict is None else verdict.equal,
                    "refused": refused.texts,
                }
            )
        )
    else:
        print(f"reference digest {result.digest} at version {result.states[0].version}")
        if verdict is not None:
            print(verdict.text)
    if verdict is not None and not verdict.equal:
        raise typer.Exit(3)
