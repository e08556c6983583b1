"""Codec `log4-channel`: `log4` with a scale for each channel of the whole tensor instead of one for each token.

For gradients with few coefficients per token: with 16 coefficients, the 16-bit scale of a token costs a quarter of its
64 bits of codes; scales of 16 channels over 512 tokens cost 0.03 bits per value. A channel is an index of the last
dimension.

Head and codes: those of log4.py for the transposed tensor, with channels as rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.levels import Levels, transposed
from swarm.codecs.log4 import Log4

_BY_ROW = Log4()


class Log4Channel(Levels):
    """Rounds at random without bias. Error of a value: at most its own magnitude or 0.0157 of the largest in its
    channel, whichever is larger.

    Values beyond 3.38e38 saturate there; channels below 8e-31 become zero.
    """

    name = "log4-channel"
    codec_id = 21
    version = 1
    bits = Log4.bits

    def head_bytes(self, shape: Sequence[int]) -> int:
        return _BY_ROW.head_bytes(transposed(shape))

    def codes(self, tensor: Tensor) -> tuple[Sequence[Buffer], Tensor]:
        channels, rows = transposed(tensor.shape)
        return _BY_ROW.codes(tensor.view(rows, channels).t().contiguous())

    def check_head(self, head: memoryview, shape: tuple[int, ...]) -> None:
        _BY_ROW.check_head(head, transposed(shape))

    def restore(self, head: memoryview, codes: Tensor, shape: tuple[int, ...]) -> Tensor:
        return _BY_ROW.restore(head, codes, transposed(shape)).t().contiguous().view(shape)
