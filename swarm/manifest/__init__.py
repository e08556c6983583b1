"""The manifest: the description of a run, on which all peers, checkpoints and connections agree.

`RunFile` is the organiser's file (RUN.toml). `RunFile.resolve` adds the hashes of the prepared corpus, which gives a
`RunManifest`: frozen, complete, hashed (`RunManifest.hash`), and signed with the organiser's Ed25519 key
(`SignedManifest`). The result of a step depends only on the manifest and the step number.

An unknown key is an error, which names the nearest known key.
"""

from swarm.manifest.data import DataSection, InitialSection, Shard
from swarm.manifest.differences import differences
from swarm.manifest.model import TOKEN_MEANS_GRID_BITS, ModelSection
from swarm.manifest.run_file import RunFile, apply_overrides, load_run_file, read_run_tree
from swarm.manifest.run_manifest import MAX_MANIFEST_BYTES, PROTOCOL_VERSION, RunManifest
from swarm.manifest.section import ManifestError, Section, explain
from swarm.manifest.signed import SignedManifest, key_fingerprint
from swarm.manifest.tables import (
    AUTO,
    AuditSection,
    BatchSection,
    CheckpointSection,
    CodecSection,
    DivergenceSection,
    EvaluationSection,
    OptimizerSection,
    RunSection,
    SumSection,
    SwarmSection,
    TimingSection,
)

__all__ = [
    "AUTO",
    "MAX_MANIFEST_BYTES",
    "PROTOCOL_VERSION",
    "TOKEN_MEANS_GRID_BITS",
    "AuditSection",
    "BatchSection",
    "CheckpointSection",
    "CodecSection",
    "DataSection",
    "DivergenceSection",
    "EvaluationSection",
    "InitialSection",
    "ManifestError",
    "ModelSection",
    "OptimizerSection",
    "RunFile",
    "RunManifest",
    "RunSection",
    "Section",
    "Shard",
    "SignedManifest",
    "SumSection",
    "SwarmSection",
    "TimingSection",
    "apply_overrides",
    "differences",
    "explain",
    "key_fingerprint",
    "load_run_file",
    "read_run_tree",
]
