"""The codecs from which `codec = "auto"` chooses: codecs without state, sorted by increasing error.

docs/codecs.md gives the reasons. `int2` and sparse codecs are left out: they cost a model too much to be chosen
automatically.
"""

from __future__ import annotations

from swarm.codecs import UnknownCodec
from swarm.codecs.topk import TopKShared
from swarm.manifest import AUTO, RunFile, RunManifest

FORWARD = ("none", "bf16", "int8", "int6", "int5", "int4")
BACKWARD = ("none", "bf16", "int8", "int6", "log4")
"""The codecs for gradients. With fewer than 6 bits, evenly spaced levels are worse here than the unbiased 4 bits of
`log4`.
"""
START = "int8"
"""The codec until the links are measured."""
NARROW_FORWARD = ("none", "bf16", "int8-channel", "int6-channel", "int5-channel")
NARROW_BACKWARD = ("none", "bf16", "int8-channel", "int6-channel", "log4-channel")
NARROW_START = "int8-channel"
"""The codec until the links are measured, for a boundary that is narrower than the model. With few coefficients per
token, scales per block cost many bits.
"""


def names(manifest: RunManifest | RunFile) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The codecs that this run may use for activations and for gradients; only the named one if the manifest names one.

    Raises UnknownCodec.
    """
    codec, narrow = manifest.codec, _narrow(manifest)
    if codec.forward == AUTO and codec.backward == TopKShared.name:
        raise UnknownCodec(
            f"codec.backward = {codec.backward!r} takes its positions from activations in topk, which codec.forward = "
            f'"{AUTO}" never chooses: set codec.forward = "topk:0.1", or codec.backward = "{AUTO}"'
        )
    forward = (NARROW_FORWARD if narrow else FORWARD) if codec.forward == AUTO else (codec.forward,)
    backward = (NARROW_BACKWARD if narrow else BACKWARD) if codec.backward == AUTO else (codec.backward,)
    return forward, backward


def start(manifest: RunManifest) -> tuple[str, str]:
    """The codecs (activations, gradients) until the links are measured."""
    first = NARROW_START if _narrow(manifest) else START
    forward, backward = (first if name == AUTO else name for name in (manifest.codec.forward, manifest.codec.backward))
    return forward, backward


def _narrow(manifest: RunManifest | RunFile) -> bool:
    return manifest.model.narrow
