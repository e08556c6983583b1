"""Codec `int5`: 15 levels on either side in blocks of 64; 5.25 bits a value. The grid: uniform.py."""

from __future__ import annotations

from swarm.codecs.uniform import Uniform


class Int5(Uniform):
    name = "int5"
    codec_id = 16
    version = 1
    bits = 5
