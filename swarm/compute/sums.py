"""Sums: how the gradients of microbatches are added.

Mode "exact": the gradient of each microbatch is rounded to multiples of 2^-b, ties to even, and added as integers, so
the order has no effect. A tensor's sum is int32 while its bound stays below 2^31, else int64. The bound is the sum of
the microbatches' peaks. It does not depend on the order either, and so neither does an overflow. Mode "fp32" adds in
the order of arrival.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from swarm.compute import adding
from swarm.compute.block_grid import WIDTH, BlockGrid
from swarm.compute.grid import NARROW, NOT_FINITE, WIDE, LossSum, peak_of, too_large
from swarm.compute.grid import SumOverflow as SumOverflow  # re-exported: the error that sums raise
from swarm.compute.host_copy import HostCopy
from swarm.compute.layout import Layout
from swarm.manifest import SumSection

_NARROW_AGAIN = 1 << 29
"""An int64 tensor whose bound stayed below this for a whole pass becomes int32 again."""
_BLOCK = 1 << 15
"""Elements that a CPU rounds and adds at a time, so that intermediate results stay in the cache."""


class Accumulator:
    """The sum of one stage's gradients over microbatches, on `device`."""

    def __init__(
        self, layout: Layout, sums: SumSection, device: str | torch.device = "cpu", grid: BlockGrid | None = None
    ) -> None:
        """grid: the block grids of the stage, if the run has them."""
        self.layout = layout
        self._grid = grid
        self.exact = sums.mode == "exact"
        self.device = torch.device(device)
        self.revision = 0
        """A number that changes whenever the sums may have changed."""
        self._grid_bits = sums.grid_bits
        self._scale = 2.0**sums.grid_bits
        self._starts = [part.start for part in layout.slices]
        kind = torch.int32 if self.exact else torch.float32
        self._sums = [torch.zeros(size, dtype=kind, device=device) for size in layout.sizes]
        self._bounds = [0] * len(self._sums)
        """Bound on the magnitude of each tensor's sum, in units of the grid: the sum of its gradients' peaks."""
        self._void = [False] * len(self._sums)
        """For each tensor: whether one of its gradients was not finite."""
        self._loss = LossSum(sums)
        self._awaited: dict[int, Tensor] = {}
        """By tensor index: gradients that the device will add in the next `end`."""
        self._here = self.device.type == "cpu"
        count = min(_BLOCK, max((0, *layout.sizes))) if self.exact and self._here else 0
        self._scratch = torch.empty(count), torch.empty(count, dtype=torch.int32), torch.empty(count, dtype=torch.int64)
        self._peaks = torch.zeros(len(self._sums), device=device)
        self._room = self._rooms()
        self._reach = self._reaches()
        if self.exact:
            adding.adder(self.device)  # compile the kernels now, not in the first step

    def zero(self) -> None:
        self.revision += 1
        for index, bound in enumerate(self._bounds):
            if self._sums[index].dtype == torch.int64 and 0 < bound < _NARROW_AGAIN:
                self._sums[index] = torch.zeros_like(self._sums[index], dtype=torch.int32)
        if self._sums:
            torch._foreach_zero_(self._sums)
        self._bounds = [0] * len(self._bounds)
        self._void = [False] * len(self._void)
        self._loss.zero()
        self._awaited = {}
        self._peaks.zero_()
        self._room = self._rooms()
        self._reach = self._reaches()

    # ------------------------------------------------ one microbatch after the other

    def add(
        self,
        gradients: Sequence[Tensor],
        loss: float | None = None,
        *,
        step: int | None = None,
        microbatch: int | None = None,
    ) -> None:
        """Add one microbatch: gradients in layout order and, on the last stage, its fp32 loss sum. Waits for the device
        once.

        NaN or infinity in a gradient makes the tensor's whole sum NOT_FINITE. Raises SumOverflow; some tensors may have
        been added before, so all sums are then invalid.
        """
        assert (loss is not None) == self.layout.with_loss
        for index, gradient in enumerate(gradients):
            self.add_one(index, gradient, step=step, microbatch=microbatch)
        if loss is not None:
            self.add_loss(loss, step=step)
        if missing := self.settle(step):
            for index in missing:
                self.add_one(index, gradients[index], step=step, microbatch=microbatch)
            self.settle(step)

    @torch.no_grad()
    def add_one(self, index: int, gradient: Tensor, *, step: int | None = None, microbatch: int | None = None) -> None:
        """Add the gradient (fp32, bf16 or fp16) of one tensor. An accelerator adds all gradients together in `end`.

        `microbatch`: its number in the step, needed for block grids. Raises SumOverflow (only on a CPU).
        """
        self.revision += 1
        flat = gradient.reshape(-1)
        grid = None if self._grid is None or self._grid.usual else self._grid
        if grid is not None:
            if microbatch is None or step != grid.step:
                raise ValueError(f"microbatch {microbatch} of step {step} does not fit the grid of step {grid.step}")
            if not self._here:  # the result is on the grid already, so the device does not round it again
                flat = grid.round_(index, 0, flat.to(torch.float32, copy=True), microbatch).div_(self._scale)
        if not self.exact:
            self._sums[index].add_(flat)
        elif self._here:
            self._add_here(index, flat, step, grid, microbatch or 0)
        else:
            assert index not in self._awaited, "a tensor has two gradients in one microbatch"
            self._awaited[index] = flat

    def add_loss(self, loss: float, *, step: int | None = None) -> None:
        """Add the loss of a microbatch. Raises SumOverflow."""
        self.revision += 1
        self._loss.add(loss, step)

    def settle(self, step: int | None = None) -> tuple[int, ...]:
        """Call `end` and wait for its result. Raises SumOverflow."""
        return self.end(step).result()

    @torch.no_grad()
    def end(self, step: int | None = None) -> Added:
        """End a microbatch, after all its gradients were given. Starts a copy to the host with the outcome."""
        awaited, self._awaited = self._awaited, {}
        if not awaited:
            return Added(self, (), None, step)
        given = [adding.Given(index, self._sums[index], gradient) for index, gradient in awaited.items()]
        adding.adder(self.device)(given, self._peaks, self._room, self._scale, self._most)
        fits = adding.fits(self._peaks, self._room, self._scale, self._most)
        self._room -= torch.where(fits, adding.units(self._peaks, self._scale), 0.0).to(torch.int64)
        told = HostCopy(torch.stack((self._peaks, fits.float())))
        self._peaks.zero_()
        return Added(self, tuple(awaited), told, step)

    # ------------------------------------------------ the sums

    def numbers(self, where: slice) -> Tensor:
        """A part of the flat vector, read-only: int64 in units of the grid with NOT_FINITE; with mode "fp32" fp32."""
        parts = []
        end = self.layout.length - self.layout.with_loss
        start, stop = where.start, min(where.stop, end)
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            sums, first = self._sums[index], self._starts[index]
            if piece := sums[start - first : stop - first].numel():
                parts.append(self._read(index, slice(start - first, start - first + piece)))
            start += piece
            index += 1
        if where.stop > end:
            parts.append(self._loss.number().to(self.device))
        if not parts:
            return torch.zeros(0, dtype=torch.int64 if self.exact else torch.float32, device=self.device)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def loss(self) -> float:
        """The loss sum; NaN if it is not finite."""
        return self._loss.value

    @property
    def flat(self) -> Tensor:
        """(layout.length,), a copy: fp64 ("exact") or fp32 ("fp32")."""
        numbers = self.numbers(slice(0, self.layout.length))
        if not self.exact:
            return numbers.clone()
        return numbers.to(torch.float64).mul_(1 / self._scale).masked_fill_(numbers == NOT_FINITE, math.nan)

    @property
    def _most(self) -> float:
        """Largest magnitude of a gradient that can be added."""
        return 2.0 ** (51 - self._grid_bits)

    def _reaches(self) -> list[int]:
        """For each tensor: how much rounding may add to a gradient's magnitude at most, in units of the grid."""
        return [0] * len(self._sums) if self._grid is None or not self._here else list(self._grid.reach)

    def _rooms(self) -> Tensor:
        rooms = [NARROW if sums.dtype == torch.int32 else WIDE for sums in self._sums]
        return torch.tensor(rooms, dtype=torch.int64, device=self.device)

    def _read(self, index: int, where: slice) -> Tensor:
        sums = self._sums[index][where]
        if self._void[index]:
            return torch.full(sums.shape, NOT_FINITE, dtype=torch.int64, device=self.device)
        return sums.to(torch.int64) if self.exact else sums

    def _add_here(
        self, index: int, gradient: Tensor, step: int | None, grid: BlockGrid | None, microbatch: int
    ) -> None:
        """Add a gradient on the CPU. It is read twice: for its peak and for the addition."""
        if not gradient.numel():
            return
        peak = peak_of(gradient)
        if not math.isfinite(peak):
            self._void[index] = True
            return
        height = self._counted(index, peak, step)
        if self._bounds[index] >= NARROW and self._sums[index].dtype == torch.int32:
            self._widen(index)
        scaled, narrow, wide = self._scratch
        exact = narrow if height < NARROW else wide  # int32 is several times faster than int64
        at_once = _BLOCK if grid is None else WIDTH
        for start in range(0, len(gradient), at_once):
            piece = gradient[start : start + at_once]
            count = len(piece)
            values = scaled[:count].copy_(piece)
            if grid is None:
                values.mul_(self._scale).round_()
            else:
                grid.round_(index, start, values, microbatch)
            whole = exact[:count].copy_(values)
            if self._sums[index].dtype == torch.int64 and exact is narrow:
                whole = wide[:count].copy_(whole)
            part = self._sums[index][start : start + count].numpy()
            np.add(part, whole.numpy(), out=part)  # torch multiplies whole numbers by 1 before it adds them

    def _counted(self, index: int, peak: float, step: int | None) -> int:
        """Convert a finite peak to units of the grid, and add it to the bound of its tensor. Raises SumOverflow."""
        if peak > self._most:
            raise SumOverflow(too_large(f"a gradient of {self.layout.names[index]}", peak, self._grid_bits, 51, step))
        height = round(peak * self._scale) + self._reach[index]  # ties to even, like all other rounding
        self._bounds[index] += height
        if self._bounds[index] >= WIDE:
            bound = self._bounds[index] / self._scale
            raise SumOverflow(too_large(f"the sum of {self.layout.names[index]}", bound, self._grid_bits, 53, step))
        return height

    def _widen(self, index: int) -> None:
        self._sums[index] = self._sums[index].to(torch.int64)
        self._room[index] += WIDE - NARROW

    def _settled(self, awaited: Sequence[int], told: Tensor, step: int | None) -> tuple[int, ...]:
        """The outcome of a microbatch. `told`: (2, tensors): peaks of the gradients, and whether they were added."""
        self.revision += 1
        peaks, added = told.tolist()
        missing = []
        for index in awaited:
            if not math.isfinite(peaks[index]):
                self._void[index] = True
                continue
            if added[index]:
                self._counted(index, peaks[index], step)
                continue
            height = self._counted(index, peaks[index], step)
            self._bounds[index] -= height  # the same gradient will be given again
            if self._sums[index].dtype == torch.int32:
                self._widen(index)
            missing.append(index)
        return tuple(missing)


class Added:
    """The outcome of adding one microbatch's gradients. The next microbatch may start before `result` is called."""

    def __init__(self, sums: Accumulator, awaited: tuple[int, ...], told: HostCopy | None, step: int | None) -> None:
        self._sums = sums
        self._awaited = awaited
        self._told = told
        self._step = step

    def result(self) -> tuple[int, ...]:
        """Indices of the tensors whose gradients were not added, because int32 was too small: give only these again.

        Call it once for each microbatch, in their order. Raises SumOverflow.
        """
        if self._told is None:
            return ()
        return self._sums._settled(self._awaited, self._told.wait(), self._step)
