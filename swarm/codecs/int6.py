"""Codec `int6`: 31 levels on either side in blocks of 64; 6.25 bits a value. The grid: uniform.py."""

from __future__ import annotations

from swarm.codecs.uniform import Uniform


class Int6(Uniform):
    name = "int6"
    codec_id = 17
    version = 1
    bits = 6
