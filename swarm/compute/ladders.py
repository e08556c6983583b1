"""Sizes of a microbatch's frames with each codec that a run may choose."""

from __future__ import annotations

from swarm import codecs
from swarm.codecs import ladder
from swarm.compute.body import HEADER_BYTES
from swarm.manifest import RunManifest
from swarm.protocol.codec_ladder import CodecLadders, Rung
from swarm.protocol.messages import CodecPair


def ladders(manifest: RunManifest) -> CodecLadders | None:
    """The sizes for each choice; None if the manifest names both codecs. Raises codecs.UnknownCodec."""
    if not manifest.codec.auto:
        return None
    forward, backward = ladder.names(manifest)
    return CodecLadders.of(
        [Rung(name, frame_bytes(manifest, name)[0]) for name in forward],
        [Rung(name, frame_bytes(manifest, forward[0], name)[1]) for name in backward],
        CodecPair(*ladder.start(manifest)),
    )


def frame_bytes(manifest: RunManifest, forward: str, backward: str = "none") -> tuple[int, int]:
    """Bytes of one microbatch's activation at the widest boundary, with token ids, and of its gradient.

    Raises codecs.UnknownCodec.
    """
    shape = (manifest.batch.sequences, manifest.batch.sequence_length, manifest.model.widest_boundary)
    ahead, back = codecs.pair(forward, backward)
    return (
        HEADER_BYTES + manifest.model.token_id_bytes * manifest.batch.ids_per_microbatch + ahead.max_bytes(shape),
        HEADER_BYTES + back.max_bytes(shape),
    )
