"""Codec `int5-channel`: 15 levels on either side of each channel; 5 bits a value. The grid: channel_uniform.py."""

from __future__ import annotations

from swarm.codecs.channel_uniform import ChannelUniform


class Int5Channel(ChannelUniform):
    name = "int5-channel"
    codec_id = 18
    version = 1
    bits = 5
