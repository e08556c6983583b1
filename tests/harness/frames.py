"""Encoded frames that were tampered with."""

import struct
import zlib

from swarm.codecs.codec import HEADER_BYTES


def reseal(frame: bytes, **lies: int) -> bytes:
    """`frame` with header fields changed and a checksum that is right for them: only the other checks can object."""
    names = ["magic", "codec_id", "version", "dtype", "ndim", "d0", "d1", "d2", "d3", "length"]
    layout = struct.Struct("<4sBBBB4II")
    values = dict(zip(names, layout.unpack_from(frame), strict=True)) | lies
    fields = layout.pack(*values.values())
    return fields + struct.pack("<I", zlib.crc32(frame[HEADER_BYTES:], zlib.crc32(fields))) + frame[HEADER_BYTES:]
