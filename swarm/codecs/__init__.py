"""Codecs: tensor <-> bytes for activations and gradients. To add one, write its file and add its row here.

A manifest names two codecs, one for activations and one for their gradients; `pair` checks that they fit together. Some
take a parameter after a colon: "topk:0.1".
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping

from swarm.buffer import Buffer
from swarm.codecs.channel_uniform import ChannelUniform
from swarm.codecs.codec import Codec, CodecError, Reason
from swarm.codecs.delta import Change, Delta
from swarm.codecs.error_feedback import ErrorFeedback, MixedErrorFeedback
from swarm.codecs.huffman import Huffman
from swarm.codecs.int2 import Int2
from swarm.codecs.log4 import Log4
from swarm.codecs.log4_channel import Log4Channel
from swarm.codecs.raw import BFloat16, Raw
from swarm.codecs.remembering import Remembering
from swarm.codecs.topk import TopK, TopKIndependent, TopKShared, fraction_of
from swarm.codecs.uniform import Uniform
from swarm.manifest import AUTO

_ROWS: tuple[Codec, ...] = (
    Raw(),
    BFloat16(),
    Uniform("int8", 3, bits=8),
    Uniform("int6", 17, bits=6),
    Uniform("int5", 16, bits=5),
    Uniform("int4", 4, bits=4),
    Int2(),
    Log4(),
    ChannelUniform("int8-channel", 20, bits=8),
    ChannelUniform("int6-channel", 19, bits=6),
    ChannelUniform("int5-channel", 18, bits=5),
    ChannelUniform("int4-channel", 22, bits=4),
    Log4Channel(),
)


def _deltas(family: str) -> Callable[[str], Codec]:
    return lambda change: Delta(family, change, _of_changes(change))


_FAMILIES: Mapping[str, Callable[[str], Codec]] = {
    **{family: _deltas(family) for family in Delta.families},
    ErrorFeedback.family: lambda inner: ErrorFeedback(_stateless(inner)),
    MixedErrorFeedback.family: lambda inner: MixedErrorFeedback(_stateless(inner)),
    Huffman.family: lambda inner: Huffman(_stateless(inner)),
    TopK.family: lambda fraction: TopK(fraction_of(fraction)),
    TopKIndependent.family: lambda fraction: TopKIndependent(fraction_of(fraction)),
}
_PARAMETERS = {
    **{
        family: ("BITS|CODEC", f"write {family}:4 for changes of 4 bits, or a codec of activations that keeps no state")
        for family in Delta.families
    },
    ErrorFeedback.family: ("CODEC", "write ef:topk:0.1, or ef: and any codec of activations that keeps no state"),
    MixedErrorFeedback.family: (
        "CODEC",
        "write ef-mixed:topk:0.1, or ef-mixed: and a codec of activations that keeps no state and takes the same bytes "
        "for whatever values",
    ),
    Huffman.family: ("CODEC", "write huffman:int4-channel, or another with -channel, or huffman:log4"),
    TopK.family: ("FRACTION", "write topk:0.1 to keep a tenth of the values"),
    TopKIndependent.family: ("FRACTION", "write topk-independent:0.1 to keep a tenth of the values"),
}
"""The parameter after the colon, and the advice for a wrong one."""

_OF_BITS = {"2": "int2", "4": "int4", "5": "int5", "6": "int6", "8": "int8"}
"""The codecs of changes, by bits per value."""
_SHAPE = (256, 256)
"""Shape of an activation by which the size of changes is judged."""

_AVERAGING = ("bf16", "int8", "int6", "int5", "int4", "int2")
"""Codecs whose error is smaller than what they encode, for any input: only then do residuals stay bounded."""

_BY_NAME = {codec.name: codec for codec in _ROWS}
_FURTHER: tuple[type[Codec], ...] = (Delta, Change, MixedErrorFeedback, TopK, TopKIndependent, TopKShared)
_IDS = [*(codec.codec_id for codec in _ROWS), *(kind.codec_id for kind in _FURTHER)]
assert len(set(_IDS)) == len(_IDS), "two codecs share an id"

NAMES = (*_BY_NAME, AUTO, TopKShared.name, *(f"{family}:{_PARAMETERS[family][0]}" for family in _FAMILIES))
"""As manifests write them."""

__all__ = [
    "NAMES",
    "Buffer",
    "Codec",
    "CodecError",
    "Delta",
    "Reason",
    "Remembering",
    "UnknownCodec",
    "averaging",
    "get",
    "pair",
]


class UnknownCodec(ValueError):
    """A codec, a parameter or a pair that this release does not have; the message names the fix."""


def get(name: str) -> Codec:
    """The codec of that name, parameter included. Raises UnknownCodec, which names the nearest known one.

    "auto" is not a codec; ladder.py lists the codecs that it stands for.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    family, _, parameter = name.partition(":")
    if family == "residual":
        raise UnknownCodec(f'codec {name!r} is gone: it gained nothing over one codec of as many bits. Write "int8"')
    if family in _FAMILIES:
        try:
            return _FAMILIES[family](parameter)
        except UnknownCodec:
            raise
        except ValueError as error:
            raise UnknownCodec(f"codec {name!r}: {str(error) or _PARAMETERS[family][1]}") from None
    if name == TopKShared.name:
        raise UnknownCodec(f"codec {name!r} is for gradients, beside activations in topk: backward, not forward")
    if name == AUTO:
        raise UnknownCodec(f"codec {name!r} is not a codec but a choice among them during a run: name one here")
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
    raise UnknownCodec(f"unknown codec {name!r}: did you mean {near!r}? Known are {', '.join(NAMES)}")


def pair(forward: str, backward: str) -> tuple[Codec, Codec]:
    """Two codecs by name, for activations and for their gradients. Raises UnknownCodec."""
    ahead = _named("forward", forward)
    if backward == TopKShared.name:
        positions = ahead.inner if type(ahead) is ErrorFeedback else ahead
        if type(positions) is not TopK:
            raise UnknownCodec(
                f"codec.backward = {backward!r} takes its positions from activations in topk, but codec.forward = "
                f'{forward!r}: set codec.forward = "topk:0.1"'
            )
        return ahead, TopKShared(positions)
    back = _named("backward", backward)
    if isinstance(back, Remembering):
        raise UnknownCodec(
            f"codec.backward = {backward!r}: a visit leaves its activation, not its gradient. "
            'Set codec.backward = "int8"'
        )
    if type(back) is TopK:
        raise UnknownCodec(
            f"codec.backward = {backward!r}: gradients with an independent mask wreck training. "
            f'Set codec.backward = "{TopKShared.name}", or, to study just that, '
            f'"{TopKIndependent.family}:{back.fraction!r}"'
        )
    return ahead, back


def averaging(name: str) -> Codec:
    """The codec in which replicas exchange gradients, with error feedback around it. Raises UnknownCodec."""
    if name not in _AVERAGING and name.partition(":")[0] != TopK.family:
        raise UnknownCodec(
            f"sums.averaging = {name!r}: error feedback works around codecs that keep no state and whose error is "
            f'always less than what they encode; choose "none", {", ".join(_AVERAGING)}, topk:FRACTION'
        )
    return get(name)


def _stateless(name: str) -> Codec:
    """Raises ValueError, with an empty text if the hint suffices."""
    inner = get(name) if name else None
    if inner is None or isinstance(inner, Remembering):
        raise ValueError
    return inner


def _of_changes(change: str) -> Codec:
    """The codec of changes: by its bits per value, or by name. Raises ValueError."""
    if change.isdecimal() and change not in _OF_BITS:
        raise ValueError(f"a change cannot have {change} bits a value; give {', '.join(_OF_BITS)} or a codec's name")
    codec = _stateless(_OF_BITS.get(change, change))
    if codec.payload_bytes(_SHAPE) > 2 * math.prod(_SHAPE):
        raise ValueError(f"changes in {codec.name} would take more than a whole visit, which takes 16 bits a value")
    return codec


def _named(key: str, name: str) -> Codec:
    try:
        return get(name)
    except UnknownCodec as error:
        raise UnknownCodec(f"codec.{key}: {error}") from None
