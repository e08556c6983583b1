"""Codecs: convert activations and gradients to bytes and back. To add a codec, write its file and add a row here.

A manifest names two codecs, one for activations and one for their gradients; `pair` checks that they can be combined.
Some codecs have a parameter after a colon, such as "topk:0.1".
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping

from swarm.buffer import Buffer
from swarm.codecs.channel_uniform import ChannelUniform
from swarm.codecs.codec import Codec, CodecError, Reason
from swarm.codecs.delta import Change, Delta
from swarm.codecs.entropy import Entropy
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


def _entropies(family: str) -> Callable[[str], Codec]:
    return lambda step: Entropy(family, step)


_FAMILIES: Mapping[str, Callable[[str], Codec]] = {
    **{family: _deltas(family) for family in Delta.families},
    ErrorFeedback.family: lambda inner: ErrorFeedback(_stateless(inner)),
    MixedErrorFeedback.family: lambda inner: MixedErrorFeedback(_stateless(inner)),
    Huffman.family: lambda inner: Huffman(_stateless(inner)),
    **{family: _entropies(family) for family in Entropy.families},
    TopK.family: lambda fraction: TopK(fraction_of(fraction)),
    TopKIndependent.family: lambda fraction: TopKIndependent(fraction_of(fraction)),
}
_PARAMETERS = {
    **{
        family: ("BITS|CODEC", f"write {family}:4 for changes of 4 bits, or the name of a codec without memory")
        for family in Delta.families
    },
    ErrorFeedback.family: (
        "CODEC",
        "write ef:topk:0.1, or ef: followed by a codec for activations without memory of earlier frames",
    ),
    MixedErrorFeedback.family: (
        "CODEC",
        "write ef-mixed:topk:0.1, or ef-mixed: followed by a codec for activations without memory of earlier frames, "
        "whose frames all have the same size",
    ),
    Huffman.family: ("CODEC", "write huffman:int4-channel, or another with -channel, or huffman:log4"),
    **{
        family: ("STEP", f"write {family}:1 to round values with a step of about their own size")
        for family in Entropy.families
    },
    TopK.family: ("FRACTION", "write topk:0.1 to keep a tenth of the values"),
    TopKIndependent.family: ("FRACTION", "write topk-independent:0.1 to keep a tenth of the values"),
}
"""For each family of codecs with a parameter: {family: (name of the parameter after the colon, advice in the error for
a wrong one)}
"""

_OF_BITS = {"2": "int2", "4": "int4", "5": "int5", "6": "int6", "8": "int8"}
"""The codecs that encode changes, by their bits per value."""
_SHAPE = (256, 256)
"""Example shape of an activation, to compare the sizes of codecs."""

_AVERAGING = ("bf16", "int8", "int6", "int5", "int4", "int2")
"""Codecs whose error is always smaller than the encoded tensor. Error feedback needs this to keep residuals bounded."""

_BY_NAME = {codec.name: codec for codec in _ROWS}
_FURTHER: tuple[type[Codec], ...] = (Delta, Change, MixedErrorFeedback, TopK, TopKIndependent, TopKShared)
_IDS = [*(codec.codec_id for codec in _ROWS), *(kind.codec_id for kind in _FURTHER)]
_IDS += [Entropy.codec_id + dithered for dithered in Entropy.families.values()]
assert len(set(_IDS)) == len(_IDS), "two codecs share an id"

NAMES = (*_BY_NAME, AUTO, TopKShared.name, *(f"{family}:{_PARAMETERS[family][0]}" for family in _FAMILIES))
"""The names of all codecs, as manifests write them."""

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
    """This release does not have the codec, parameter or pair; the message says what to write instead."""


def get(name: str) -> Codec:
    """The codec with this name, which includes its parameter. Raises UnknownCodec, which names the most similar codec.

    "auto" is not a codec; ladder.py lists the codecs from which it chooses.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    family, _, parameter = name.partition(":")
    if family == "residual":
        raise UnknownCodec(f'codec {name!r} was removed: it was not better than codecs with as many bits. Write "int8"')
    if family in _FAMILIES:
        try:
            return _FAMILIES[family](parameter)
        except UnknownCodec:
            raise
        except ValueError as error:
            raise UnknownCodec(f"codec {name!r}: {str(error) or _PARAMETERS[family][1]}") from None
    if name == TopKShared.name:
        raise UnknownCodec(f"codec {name!r} is only for gradients of topk activations: use it backward, not forward")
    if name == AUTO:
        raise UnknownCodec(f"{name!r} is not a codec, but means that a run chooses one: name a codec here")
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
    raise UnknownCodec(f"unknown codec {name!r}: did you mean {near!r}? Known codecs: {', '.join(NAMES)}")


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
            f"codec.backward = {backward!r}: gradients of earlier visits are not kept, only activations. "
            'Set codec.backward = "int8"'
        )
    if type(back) is TopK:
        raise UnknownCodec(
            f"codec.backward = {backward!r}: with gradients under an independent mask, training diverges. "
            f'Set codec.backward = "{TopKShared.name}", or, to study this effect, '
            f'"{TopKIndependent.family}:{back.fraction!r}"'
        )
    return ahead, back


def averaging(name: str) -> Codec:
    """The codec with which replicas exchange gradients with error feedback. Raises UnknownCodec."""
    if name not in _AVERAGING and name.partition(":")[0] != TopK.family:
        raise UnknownCodec(
            f"sums.averaging = {name!r}: error feedback needs a codec that keeps no state and whose error is always "
            f'smaller than the encoded tensor; choose "none", dither:STEP, {", ".join(_AVERAGING)}, topk:FRACTION'
        )
    return get(name)


def _stateless(name: str) -> Codec:
    """The codec with this name, which must be one without state. Raises ValueError; its text is empty if the advice in
    _PARAMETERS suffices.
    """
    inner = get(name) if name else None
    if inner is None or isinstance(inner, Remembering):
        raise ValueError
    return inner


def _of_changes(change: str) -> Codec:
    """The codec that encodes changes, given its bits per value or its name. Raises ValueError."""
    if change.isdecimal() and change not in _OF_BITS:
        raise ValueError(f"a change cannot have {change} bits per value; give {', '.join(_OF_BITS)} or a codec's name")
    codec = _stateless(_OF_BITS.get(change, change))
    if codec.payload_bytes(_SHAPE) > 2 * math.prod(_SHAPE):
        raise ValueError(
            f"changes coded with {codec.name} would be larger than a whole activation, which has 16 bits per value"
        )
    return codec


def _named(key: str, name: str) -> Codec:
    try:
        return get(name)
    except UnknownCodec as error:
        raise UnknownCodec(f"codec.{key}: {error}") from None
