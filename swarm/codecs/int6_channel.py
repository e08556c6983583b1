"""Codec `int6-channel`: 31 levels on either side of each channel; 6 bits a value. The grid: channel_uniform.py."""

from __future__ import annotations

from swarm.codecs.channel_uniform import ChannelUniform


class Int6Channel(ChannelUniform):
    name = "int6-channel"
    codec_id = 19
    version = 1
    bits = 6
