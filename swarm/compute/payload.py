"""The largest payload of a run: a peer allocates at most this for a payload that another peer announces."""

from __future__ import annotations

import itertools

from swarm.compute.averaging import largest_bucket
from swarm.compute.body import BodyFormat
from swarm.manifest import RunManifest
from swarm.protocol.ids import Direction


def largest_payload(manifest: RunManifest) -> int:
    """Bytes of the largest frame, part or sum that a peer of this run can send; it depends only on the manifest."""
    form = BodyFormat(manifest)
    frames = (form.max_bytes(*where) for where in itertools.product(range(manifest.model.stages), Direction))
    return max(*frames, largest_bucket(manifest.sums))
