"""Facts about a run that its manifest contains and its log lacks. All views work without these facts, but then show
less.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.manifest import RunManifest

FP32 = 4
"""Bytes of one fp32 value."""
_APART_S = 60.0


@dataclass(frozen=True, slots=True)
class RunFacts:
    name: str
    steps: int
    microbatches: int
    tokens_per_step: int
    layers: tuple[int, ...]
    """Number of layers of each stage."""
    codec: tuple[str, str] | None
    """The codecs at the boundaries, forward and backward. None: they are chosen during the run."""
    frames_fp32: int
    """Bytes of one microbatch's activations at all boundaries in fp32."""

    def share_of_layers(self, stage: int) -> float:
        return self.layers[stage] / sum(self.layers) if 0 <= stage < len(self.layers) else 0.0


def facts_of(manifest: RunManifest) -> RunFacts:
    model, batch = manifest.model, manifest.batch
    return RunFacts(
        manifest.run.name,
        manifest.run.steps,
        batch.microbatches,
        batch.tokens_per_step,
        tuple(len(model.layer_range(stage)) for stage in range(model.stages)),
        None if manifest.codec.auto else (manifest.codec.forward, manifest.codec.backward),
        batch.tokens_per_microbatch * sum(model.boundary_widths) * FP32,
    )


def facts_in(home: Path) -> RunFacts | None:
    """The facts from a coordinator's home, whose archive contains the manifest. None: it is missing or unreadable.

    A run of another release is shown too, because the facts do not depend on the wire format.
    """
    from swarm.manifest import RunManifest  # it takes ten megabytes, which `facts_apart` avoids
    from swarm.manifest.run_manifest import PROTOCOL_VERSION

    try:
        raw = json.loads(_manifest_of(home).read_bytes())
        return facts_of(RunManifest.model_validate(raw | {"protocol_version": PROTOCOL_VERSION}))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def facts_apart(home: Path) -> RunFacts | None:
    """Like `facts_in`, but read by a separate process: it takes most of a second, and uses no memory afterwards."""
    if not _manifest_of(home).exists():
        return None
    command = [sys.executable, "-P", "-c", "from peers.fold.facts import tell; tell()", str(home)]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_APART_S, check=False)
        raw = json.loads(done.stdout)
        if raw is None:
            return None
        codec = None if raw["codec"] is None else tuple(raw["codec"])
        return RunFacts(**raw | {"layers": tuple(raw["layers"]), "codec": codec})
    except (OSError, ValueError, TypeError, KeyError, subprocess.TimeoutExpired):
        return None


def tell() -> None:
    """The main function of the separate process of `facts_apart`: print the facts of the home that the command line
    names.
    """
    facts = facts_in(Path(sys.argv[1]))
    print(json.dumps(None if facts is None else asdict(facts)))


def _manifest_of(home: Path) -> Path:
    return home / "archive" / "run.json"
