"""A rounding grid for each block of 64 numbers, as coarse as the size of its gradients allows.

With `sums.averaging = "dither:C"` a microbatch's gradient is rounded to multiples of 2^k units. A block's k follows
from Adam's second moment v, which is equal in all replicas: 2^k is about C times the size of one microbatch's gradient,

    2^k ≈ C · targets of a step · √(mean of v ÷ (1 − β₂^version)) ÷ √microbatches

Before rounding, a dither of at most half a step is added to each number, so that the rounding has no bias (Schuchman,
Dither signals and their effect on quantization noise, IEEE Trans. Communication Technology 12, 1964). The dither
is a function of seed, stage, step, place and microbatch. Between places it is pseudorandom. Over the microbatches of a
step it is spread evenly, so that it nearly cancels in the sum. So a sum does not depend on which peer adds which
microbatches.

The sum over all microbatches contains the rounding errors of all of them. So it is rounded once more, to 2^d times the
step, with d = ⌊½ log₂ microbatches⌋. Before a second moment exists, k and d are 0: the usual grid.

Token means (swarm/models/token_means.py) have no second moment. Their sums are multiples of a fixed power of two, which
is their 2^k, and they are not dithered.

Only integers, powers of two, and single fp32 and fp64 operations are used, so every machine gets the same result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from swarm.compute.grid import NOT_FINITE
from swarm.compute.layout import Layout
from swarm.manifest import TOKEN_MEANS_GRID_BITS, RunManifest
from swarm.models.token_means import is_token_means
from swarm.splitmix import splitmix

BLOCK = 64
WIDTH = 1 << 14
"""Number of places with independent dithers; each following group of places has the same ones, shifted by a number."""
MOST = 40
"""Largest k."""
_HALF = 2.0**-32
"""Factor from an int32 to a dither, in steps."""
_AT_ONCE = 1 << 18
"""Elements of a second moment that are processed at a time."""


class BlockGrid:
    """The grids of one stage for one step."""

    @classmethod
    def of(cls, manifest: RunManifest, stage: int, layout: Layout, device: str | torch.device) -> BlockGrid | None:
        """The grids of a stage; None if all numbers of the run have the same grid."""
        return cls(manifest, stage, layout, torch.device(device)) if manifest.sums.dither else None

    def __init__(self, manifest: RunManifest, stage: int, layout: Layout, device: torch.device) -> None:
        self.step = 0
        """The step for whose gradients this grid is; it follows from the version of the same number."""
        self.reach = [0] * len(layout.sizes)
        """For each tensor: by how much the magnitude of a number may grow in rounding, in units."""
        self._layout = layout
        self._device = device
        self._key = f"{manifest.run.seed} {stage}"
        self._microbatches = manifest.batch.microbatches
        self._grid_bits = manifest.sums.grid_bits
        self._beta2 = manifest.optimizer.beta2
        self._factor = (manifest.sums.dither * manifest.targets_per_step) ** 2 / self._microbatches
        self._coarser = (self._microbatches.bit_length() - 1) // 2
        self._shifts = [torch.zeros(-(-size // BLOCK), dtype=torch.int64) for size in layout.sizes]
        """For each tensor: k of every block, on the CPU."""
        means = [index for index, name in enumerate(layout.names) if is_token_means(name)]
        self._fixed = dict.fromkeys(means, self._grid_bits - TOKEN_MEANS_GRID_BITS)
        """For each tensor whose k never changes: its k."""
        self._usual = True
        self._noise = np.empty(WIDTH, dtype=np.int32)
        self.follow(None, 0)

    @torch.no_grad()
    def follow(self, moments: Sequence[Tensor] | None, version: int) -> None:
        """Compute the grid of step `version`. moments: second moment of each tensor, fp32; None: none exist yet."""
        self.step = version
        self._usual = moments is None or version == 0
        for index, shifts in enumerate(self._shifts):
            if self._usual:
                shifts.zero_()
            elif index in self._fixed:
                shifts.fill_(self._fixed[index])
            else:
                self._follow(shifts, moments[index].detach().reshape(-1), version)  # type: ignore[index]
        self.reach = [0 if self._usual or not len(each) else 1 << int(each.max()) for each in self._shifts]
        self._up = [_powers(self._grid_bits - each).to(self._device) for each in self._shifts]
        self._down = [_powers(each).to(self._device) for each in self._shifts]
        self._draw()

    @property
    def usual(self) -> bool:
        """Whether all blocks have the usual grid (k = 0)."""
        return self._usual

    def round_(self, index: int, start: int, values: Tensor, microbatch: int) -> Tensor:
        """Round a part of a tensor's gradient in place. values: contiguous fp32, from element `start` of the tensor on.

        `start`: a multiple of WIDTH. The result is in units of 2^-grid_bits.
        """
        count = len(values)
        rows, first = count // BLOCK, start // BLOCK
        blocks, tail, last = values[: rows * BLOCK].view(rows, BLOCK), values[rows * BLOCK :], first + rows
        up, down = self._up[index], self._down[index]
        blocks.mul_(up[first:last, None])
        tail.mul_(up[last : last + 1])
        if index not in self._fixed:
            values.add_(self._dither(index, start // WIDTH, count, microbatch), alpha=_HALF)
        values.round_()
        blocks.mul_(down[first:last, None])
        tail.mul_(down[last : last + 1])
        return values

    def lowered(self, numbers: Tensor, where: slice, *, total: bool) -> Tensor:
        """Convert a part of the flat vector, int64 on the CPU, from units to steps of its blocks; keep NOT_FINITE."""
        shifts = self._shifts_of(where, total)
        return torch.where(numbers == NOT_FINITE, numbers, numbers >> shifts)

    def raised(self, numbers: Tensor, where: slice, *, total: bool) -> Tensor:
        """The inverse of `lowered`, for numbers from others: results beyond the range of the grid become NOT_FINITE."""
        shifts = self._shifts_of(where, total)
        fits = numbers.abs() < (1 << 53) >> shifts
        return torch.where(fits, numbers << shifts, NOT_FINITE)

    @torch.no_grad()
    def settle_(self, total: Tensor, where: slice) -> Tensor:
        """Round the sum over all microbatches (int64 on the CPU) in place to the grid of totals, ties to even."""
        if self._usual or not self._coarser:
            return total
        shifts = self._shifts_of(where, True)
        lost = total == NOT_FINITE
        half = (1 << shifts) >> 1
        odd = (total >> shifts) & 1
        total += torch.where(half > 0, half - 1 + odd, 0)
        total >>= shifts
        total <<= shifts
        return total.masked_fill_(lost, NOT_FINITE)

    def _follow(self, shifts: Tensor, moments: Tensor, version: int) -> None:
        """Set k of every block: half of the exponent of y ≈ (2^k)², rounded down."""
        factor = self._factor / (BLOCK * (1.0 - _power(self._beta2, version)))
        if (rest := len(moments) % BLOCK) and len(moments):
            whole, ending = moments[:-rest], moments[-rest:]
        else:
            whole, ending = moments, moments[:0]
        found = [_exponents(part.double().view(-1, BLOCK), factor) for part in whole.split(_AT_ONCE) if len(part)]
        if rest:
            row = torch.zeros(1, BLOCK, dtype=torch.float64, device=moments.device)
            row[0, :rest] = ending
            found.append(_exponents(row, factor * BLOCK / rest))
        if not found:
            return
        exponents = torch.cat(found).cpu()
        known = exponents > -1000  # blocks of zeros have no exponent
        k = (exponents >> 1) + self._grid_bits
        least = int(k[known].min()) if bool(known.any()) else 0
        shifts.copy_(torch.where(known, k, least).clamp_(0, MOST))

    def _draw(self) -> None:
        drawn = hashlib.blake2b(f"dither {self._key} {self.step}".encode(), digest_size=16).digest()
        table, turns = (int.from_bytes(half, "little") for half in (drawn[:8], drawn[8:]))
        odd = (_bits(WIDTH, table) << 9) + (1 << 8) - (1 << 31)  # odd, so never a whole step; 24 bits, so exact in fp32
        self._table = odd.to(torch.int32)
        self._there = self._table.to(self._device)
        counts = [-(-size // WIDTH) for size in self._layout.sizes]
        self._turns = (_bits(sum(counts), turns) << 9).split(counts)

    def _dither(self, index: int, first: int, count: int, microbatch: int) -> Tensor:
        """(count,) int32: the dithers in steps, times 2^32; odd multiples of 2^8."""
        stratum = ((microbatch << 23) // self._microbatches) << 9
        if self._device.type == "cpu" and count <= WIDTH:
            offset = _wrapped(int(self._turns[index][first]) + stratum)
            np.add(self._table.numpy()[:count], np.int32(offset), out=self._noise[:count])
            return torch.from_numpy(self._noise[:count])
        offsets = self._turns[index][first : first - (-count // WIDTH)] + stratum
        wrapped = (((offsets + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)).to(torch.int32).to(self._device)
        noise: Tensor = (self._there + wrapped[:, None]).view(-1)[:count]
        return noise

    def _shifts_of(self, where: slice, total: bool) -> Tensor:
        """The shift of each number in a part of the flat vector, (where.stop - where.start,) int64; 0 for the loss."""
        found = torch.zeros(where.stop - where.start, dtype=torch.int64)
        for shifts, place in zip(self._shifts, self._layout.slices, strict=True):
            start, stop = max(place.start, where.start), min(place.stop, where.stop)
            if start < stop:
                first = (start - place.start) // BLOCK
                spread = shifts[first : -(-(stop - place.start) // BLOCK)].repeat_interleave(BLOCK)
                skipped = start - place.start - first * BLOCK
                into = found[start - where.start : stop - where.start]
                into.copy_(spread[skipped : skipped + len(into)])
                if total and not self._usual:
                    into += self._coarser
        return found


def _exponents(values: Tensor, factor: float) -> Tensor:
    """The exponent e of each block: 2^(e - 1) ≤ sum · `factor` < 2^e. values: (blocks, BLOCK) fp64, overwritten."""
    width = BLOCK
    while width > 1:  # add the halves elementwise: a fixed order on every machine
        width //= 2
        values[:, :width] += values[:, width : 2 * width]
    return (values[:, 0].mul(factor).view(torch.int64) >> 52) - 1022


def _powers(exponents: Tensor) -> Tensor:
    """2^exponents in fp32, made from bits, because a library's power function may be inexact."""
    return ((exponents + 127) << 23).to(torch.int32).view(torch.float32)


def _power(base: float, exponent: int) -> float:
    """base^exponent by repeated multiplication, which all machines round in the same way."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _bits(count: int, start: int) -> Tensor:
    """(count,) int64: 23 pseudorandom bits each."""
    return (splitmix(torch.arange(1, count + 1), start) >> 41) & ((1 << 23) - 1)


def _wrapped(number: int) -> int:
    """The number modulo 2^32, as a signed int32."""
    return ((number + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)
