"""Codec `int8-channel`: 127 levels on either side of each channel; 8 bits a value. The grid: channel_uniform.py."""

from __future__ import annotations

from swarm.codecs.channel_uniform import ChannelUniform


class Int8Channel(ChannelUniform):
    name = "int8-channel"
    codec_id = 20
    version = 1
    bits = 8
