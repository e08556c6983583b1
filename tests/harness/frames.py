"""Encoded frames that were tampered with."""

import struct
import zlib

from swarm.codecs.codec import HEADER_BYTES


def reseal(frame: bytes, **lies: int) -> bytes:
    """`frame` with header fields changed and a checksum that is right for them: only the other checks can object."""
    names = ["codec_id", "version", "kind", "dims"]
    layout = struct.Struct("<BBBQ")
    values = dict(zip(names, layout.unpack_from(frame), strict=True))
    values["dtype"], values["ndim"] = divmod(values.pop("kind"), 16)
    values |= lies
    kind = 16 * values["dtype"] + values["ndim"]
    fields = layout.pack(values["codec_id"], values["version"], kind, values["dims"])
    return fields + struct.pack("<I", zlib.crc32(frame[HEADER_BYTES:], zlib.crc32(fields))) + frame[HEADER_BYTES:]
