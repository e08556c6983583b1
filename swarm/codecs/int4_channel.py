"""Codec `int4-channel`: 7 levels on either side of each channel; 4 bits a value. The grid: channel_uniform.py."""

from __future__ import annotations

from swarm.codecs.channel_uniform import ChannelUniform


class Int4Channel(ChannelUniform):
    name = "int4-channel"
    codec_id = 22
    version = 1
    bits = 4
