"""Codec `log4`: 4 bits per value, logarithmic levels, stochastic rounding. It keeps the small values of gradients.

Each row (a token: the last dimension) has a scale s. The levels are 0 and ±s·2^−6, ±s·2^−5, … ±s. A value between two
levels is rounded to one of them at random, with the value as expectation, so that the errors of many microbatches
cancel. Encoding the same tensor again must give the same bits. So the noise is a hash of the position and of a digest
of the whole tensor (its scales, and an integer sum that does not depend on the order). The hash is Chris Wellons'
lowbias32 without its last shift. The rounding is an integer addition: when 23 random bits are added to the bits of a
positive float, the probability of a carry into the exponent is exactly the fraction in the mantissa.

Head: scales bf16 (rounded up) × rows. Codes: sign and level in 4 bits.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.codec import CodecError, Reason, copied, raw_bytes, require_finite
from swarm.codecs.levels import Levels

_LOWEST = 2.0**-6  # smallest level but zero, in scales
_VANISHING = 2.0**-100  # a row below is written as zeros, so that no denormal arithmetic decides a bit
_VALUES = 1 << 18  # at a time: 1 MiB of fp32 stays in the cache
_GOLDEN = np.uint32(0x9E3779B9)
_LEVELS = torch.tensor([sign * level for sign in (1.0, -1.0) for level in (0.0, *(2.0**-e for e in range(6, -1, -1)))])


class Log4(Levels):
    """Rounds at random without bias. Error of a value: at most its own magnitude or 0.0157 of the largest in its row,
    whichever is larger.

    Values beyond 3.38e38 saturate there; rows below 8e-31 become zero.
    """

    name = "log4"
    codec_id = 6
    version = 1
    bits = 4

    def head_bytes(self, shape: Sequence[int]) -> int:
        return 2 * _rows(shape)[0]

    def codes(self, tensor: Tensor) -> tuple[Sequence[Buffer], Tensor]:
        require_finite(tensor, "values")
        rows, width = _rows(tensor.shape)
        values = tensor.view(rows, width)
        peaks = torch.maximum(values.amax(dim=1), -values.amin(dim=1))
        peaks.masked_fill_(peaks < _VANISHING, 0.0)
        tops = ((peaks.view(torch.int32) + 0xFFFF) >> 16).clamp_(max=0x7F7F)  # bf16, rounded up, but not to infinity
        scales = (tops << 16).view(torch.float32).view(rows, 1)
        scales = scales.masked_fill(scales == 0, math.inf)
        heads = tops.to(torch.int16)
        total = values.view(-1).numpy().view(np.uint32).sum(dtype=np.uint32)  # modulo 2^32, so the order has no effect
        seed = zlib.crc32(total.tobytes(), zlib.crc32(raw_bytes(heads)))
        codes = torch.empty(rows, width, dtype=torch.uint8)
        chunk = max(1, _VALUES // width)
        work = _Work(min(chunk, rows), width)
        for start in range(0, rows, chunk):
            span = slice(start, start + chunk)
            first = (start * width * int(_GOLDEN) + seed) & 0xFFFFFFFF
            codes[span] = work.round(values[span], scales[span], np.uint32(first))
        return (raw_bytes(heads),), codes.view(-1)

    def check_head(self, head: memoryview, shape: tuple[int, ...]) -> None:
        self._scales(head, _rows(shape)[0])

    def restore(self, head: memoryview, codes: Tensor, shape: tuple[int, ...]) -> Tensor:
        rows, width = _rows(shape)
        scales = self._scales(head, rows)
        values = torch.empty(rows * width)
        for start in range(0, len(codes), _VALUES):
            span = slice(start, start + _VALUES)
            torch.index_select(_LEVELS, 0, codes[span].to(torch.int32), out=values[span])
        return values.view(rows, width).mul_(scales.view(rows, 1)).view(shape)

    @staticmethod
    def _scales(head: memoryview, rows: int) -> Tensor:
        """The scales in a head, fp32 (rows,). Raises CodecError."""
        scales = copied(head, torch.bfloat16, 0, rows).to(torch.float32)
        if not math.isfinite(scales.amax().item()) or scales.amin().item() < 0:
            raise CodecError(
                Reason.BAD_SCALE, f"invalid scales: they range from {scales.amin().item()} to {scales.amax().item()}"
            )
        return scales


def _rows(shape: Sequence[int]) -> tuple[int, int]:
    """(number of rows, values in a row)."""
    width = shape[-1] if shape else 1
    return math.prod(shape) // width, width


class _Work:
    """Rounds rows of `width` values, at most `rows` at a time, in scratch memory that it reuses."""

    def __init__(self, rows: int, width: int) -> None:
        self._counter = np.arange(rows * width, dtype=np.uint32) * _GOLDEN
        self._hash, self._shifted = np.empty_like(self._counter), np.empty_like(self._counter)
        self._ratios, self._small = torch.empty(rows, width), torch.empty(rows, width)

    def round(self, values: Tensor, scales: Tensor, first: np.uint32) -> Tensor:
        """Sign and level of each value, uint8. values: (rows, width) fp32; scales: (rows, 1); first: first counter."""
        ratios = torch.div(values, scales, out=self._ratios[: len(values)]).abs_().clamp_(max=1.0)
        small = torch.lt(ratios, _LOWEST, out=self._small[: len(values)])
        ratios.add_(small, alpha=_LOWEST)  # below the lowest level: turn the fraction into a mantissa
        bits = ratios.view(torch.int32).add_(self._noise(first, values.shape)).bitwise_right_shift_(23)
        levels = bits.to(torch.uint8).sub_(120).sub_(small.to(torch.uint8))
        signs = torch.bitwise_right_shift(values.view(torch.int32), 31, out=bits)
        return levels.bitwise_or_(signs.to(torch.uint8).bitwise_and_(8))

    def _noise(self, first: np.uint32, shape: Sequence[int]) -> Tensor:
        """Return 23 pseudorandom bits for each value, int32."""
        count = math.prod(shape)
        h, shifted = self._hash[:count], self._shifted[:count]
        np.add(self._counter[:count], first, out=h)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            h ^= np.right_shift(h, np.uint32(shift), out=shifted)
            h *= np.uint32(factor)
        h >>= np.uint32(9)
        return torch.from_numpy(h.view(np.int32)).view(*shape)
