"""How one tensor crosses a boundary in the study: which values arrive, and how many bits it takes.

Two families. `uniform` is the product's `intN` (blocks of 64 values) or `intN-channel`: its values, and its bytes by
formula. `entropy` codes y = (x − running mean of a vocabulary entry)·R with one uniform step for the whole tensor,
a multiple of y's usual size. Its bits are the code length of an ideal adaptive coder: −log2 of each code's
probability under the codes of its coefficient seen so far, with older ones counted less. Code counts and the covariance
that gives R change after a tensor has been coded, means once per step; all from values that both ends have.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from swarm.codecs.blocks import Scales, cut

_LEVELS = 127
"""Codes on either side of zero; larger ones saturate."""
_NORMAL = 1.4826
"""Standard deviation ÷ median magnitude of normal values."""
_COUNTED_FOR = 0.998
"""Of a code's count, what is left after one more tensor."""
_COVARIANCE_KEPT = 0.99
_CLASSES = 8
_AS_IF = 4
"""Codes of usual size that are taken to have gone before a token's first one."""
_HEAD_BITS = 8 * 32
"""Of a frame: what the wire's message and body add to the payload (docs/codecs.md), beside ids."""


@dataclass(frozen=True, slots=True)
class Coding:
    """What is done to one direction of every boundary."""

    kind: str = "none"
    """`none`, `uniform`, `entropy`, or `nothing`: zeros arrive, for free."""
    bits: int = 8
    """Of `uniform`."""
    channels: bool = False
    """Of `uniform`: a scale for each channel instead of each block."""
    step: float = 1.0
    """Of `entropy`, in usual sizes of a coefficient."""
    peaky: bool = False
    """The usual size is the root mean square, which a few large tokens decide; else 1.48 times the median magnitude,
    which is the same for normal values. What tokens have in common is then coded as finely as the largest are.
    """
    means: int = 0
    """The running mean of a vocabulary entry is subtracted first. It looks back on so many of the entry's occurrences.
    The entry is the token's own for an activation, and the next token's for a gradient.
    """
    rotated: bool = False
    """Coefficients are turned to the principal axes of what is left, which are computed anew now and then."""
    dithered: bool = False
    """Rounded up or down at random, so that the mean error is zero."""
    keyed: bool = False
    """A draw between −½ and ½ is added before rounding and subtracted on arrival: both ends draw the same from a key.
    The mean error is zero as with `dithered`, and its variance half as large: step² ÷ 12, whatever the value.
    """
    classes: bool = False
    """Codes are counted apart by how large the codes are that went before them in the token: a large token is then
    cheaper. Changes bits only.
    """


def told_apart(coding: Coding) -> dict[str, object]:
    """What differs from the default, by field: the same after fields have been added."""
    fields = dataclasses.fields(coding)
    return {at.name: getattr(coding, at.name) for at in fields if getattr(coding, at.name) != at.default}


class Coder(nn.Module):
    """State of one direction of one boundary. Works in place and without waiting for the device."""

    mean: Tensor
    seen: Tensor
    times: Tensor
    sums: Tensor
    rotation: Tensor
    covariance: Tensor
    counts: Tensor
    spent: Tensor
    typical: Tensor

    def __init__(self, coding: Coding, width: int, vocabulary: int, device: torch.device) -> None:
        super().__init__()
        self._coding = coding
        self.width = width
        adaptive = coding.kind == "entropy"
        shapes = {
            "mean": (vocabulary, width) if coding.means else (0,),
            "seen": (vocabulary, 1) if coding.means else (0,),
            "times": (vocabulary, 1) if coding.means else (0,),
            "sums": (vocabulary, width) if coding.means else (0,),
            "covariance": (width, width) if coding.rotated else (0,),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, device=device))
        self.register_buffer("rotation", torch.eye(width if coding.rotated else 0, device=device))
        self.register_buffer("counts", self._first_counts(device) if adaptive else torch.zeros(0, device=device))
        self.register_buffer("typical", torch.ones(width, device=device))
        self.register_buffer("spent", torch.zeros(2, dtype=torch.float64, device=device))
        self._offsets = torch.arange(width, device=device) * (2 * _LEVELS + 1) + _LEVELS

    def _first_counts(self, device: torch.device) -> Tensor:
        """As if a little had been coded of values with a Laplace distribution of one step."""
        codes = torch.arange(-_LEVELS, _LEVELS + 1, device=device).abs().float()
        return (8 * torch.exp(-codes) + 0.02).repeat(self.width * (_CLASSES if self._coding.classes else 1), 1)

    def reset(self) -> None:
        """As at the start of a run."""
        for buffer in (self.mean, self.seen, self.times, self.sums, self.covariance, self.spent):
            buffer.zero_()
        self.typical.fill_(1.0)
        if self._coding.rotated:
            self.rotation.copy_(torch.eye(self.width))
        if self._coding.kind == "entropy":
            self.counts.copy_(self._first_counts(self.counts.device))

    @torch.no_grad()
    def cross(self, x: Tensor, tokens: Tensor, *, learns: bool) -> Tensor:
        """What arrives of x (batch, time, width) fp32. tokens: (batch, time) int64. `learns`: state and bits change."""
        coding = self._coding
        if coding.kind == "none":
            return x
        if coding.kind == "nothing":
            return torch.zeros_like(x)
        if coding.kind == "uniform":
            return _uniform(x, coding.bits, coding.channels)
        with torch.autocast(x.device.type, enabled=False):
            return self._entropy(x, tokens, learns=learns)

    def _entropy(self, x: Tensor, tokens: Tensor, *, learns: bool) -> Tensor:
        coding = self._coding
        flat, ids = x.reshape(-1, self.width), tokens.reshape(-1)
        expected = self.mean[ids] if coding.means else None
        rest = flat if expected is None else flat - expected
        turned = rest @ self.rotation if coding.rotated else rest
        usual = turned.square().mean().sqrt() if coding.peaky else _NORMAL * turned.abs().median()
        step = (usual * coding.step).bfloat16().float().clamp(min=1e-30)
        ratio = (turned / step).nan_to_num()  # of a run that diverges
        if coding.keyed:
            draws = torch.rand_like(ratio) - 0.5
            codes = (ratio + draws).round().clamp(-_LEVELS, _LEVELS)
            arrived = (codes - draws) * step
        else:
            codes = torch.floor(ratio + torch.rand_like(ratio)) if coding.dithered else ratio.round()
            codes = codes.clamp(-_LEVELS, _LEVELS)
            arrived = codes * step
        if coding.rotated:
            arrived = arrived @ self.rotation.t()
        if learns:
            self._count(codes)
            self._learn(arrived, ids)
        return (arrived if expected is None else arrived + expected).view_as(x)

    def _count(self, codes: Tensor) -> None:
        places = codes.long() + self._offsets
        if self._coding.classes:
            places += self._classes(codes) * (self.width * (2 * _LEVELS + 1))
        share = self.counts / self.counts.sum(1, keepdim=True)
        self.spent[0] -= share.view(-1)[places].log2().sum(dtype=torch.float64)
        self.spent[1] += len(codes)
        self.counts.mul_(_COUNTED_FOR)
        self.counts.view(-1).scatter_add_(0, places.view(-1), torch.ones_like(codes).view(-1))

    def _classes(self, codes: Tensor) -> Tensor:
        """Of each code: how large the codes before it in its token are, in classes of a factor of 1.6."""
        sizes = codes.abs()
        relative = sizes / self.typical.clamp(min=1e-3)
        before = relative.cumsum(1) - relative
        number = torch.arange(self.width, device=codes.device)
        size = (before + _AS_IF) / (number + _AS_IF)
        self.typical.lerp_(sizes.mean(0), 0.02)
        return ((1.5 * size.clamp(min=1e-3).log2()).round() + _CLASSES // 2).clamp(0, _CLASSES - 1).long()

    def _learn(self, arrived: Tensor, ids: Tensor) -> None:
        if self._coding.rotated:
            self.covariance.mul_(_COVARIANCE_KEPT).add_(arrived.t() @ arrived, alpha=1 / len(arrived))
        if self._coding.means:
            self.times.index_add_(0, ids, torch.ones_like(ids, dtype=torch.float32)[:, None])
            self.sums.index_add_(0, ids, arrived)

    @torch.no_grad()
    def update_means(self) -> None:
        """Move the means by what has crossed since the last call: once per step, after all of its frames."""
        if self._coding.means:
            self.seen.add_(self.times)
            self.mean.add_(self.sums / (torch.maximum(self.times, self.seen.clamp(max=self._coding.means)) + 1))
            self.times.zero_()
            self.sums.zero_()

    def turn(self) -> None:
        """New principal axes, of what arrived lately."""
        if self._coding.rotated:
            covariance = self.covariance.cpu().double().nan_to_num()  # of a run that diverges
            covariance += torch.eye(self.width, dtype=torch.float64) * covariance.diagonal().mean() * 1e-6
            self.rotation.copy_(torch.linalg.eigh(covariance).eigenvectors.flip(1).float())

    def token_bits(self, shape: tuple[int, int]) -> float:
        """Mean bits of a token since the last call, frame headers included. `shape`: (batch, time) of a frame."""
        tokens = shape[0] * shape[1]
        coding = self._coding
        if coding.kind == "nothing":
            return 0.0
        if coding.kind == "entropy":
            bits, count = (float(value) for value in self.spent.tolist())
            self.spent.zero_()
            return bits / max(count, 1) + (_HEAD_BITS + 16) / tokens
        values = tokens * self.width
        payload = 32.0 * values
        if coding.kind == "uniform":
            scales = self.width if coding.channels else math.ceil(values / 64)
            payload = coding.bits * (values if coding.channels else 64 * scales) + 16 * scales + 16
        return (payload + _HEAD_BITS) / tokens


def _uniform(x: Tensor, bits: int, channels: bool) -> Tensor:
    """The values of the product's `intN` and `intN-channel`."""
    levels = (1 << bits - 1) - 1
    blocks = x.reshape(-1, x.shape[-1]).t() if channels else cut(x.contiguous())
    _, steps = Scales.of_on_device(blocks.abs().amax(dim=1, keepdim=True) / levels)
    arrived = (blocks / steps.masked_fill(steps == 0, math.inf)).round().clamp(-levels, levels) * steps
    return arrived.t().reshape(x.shape) if channels else arrived.view(-1)[: x.numel()].view(x.shape)


class Crossing(torch.autograd.Function):
    """A boundary: what arrives on the way there, and of the gradient on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tokens: Tensor, there: Coder, back: Coder, learns: bool) -> Tensor:
        ctx.tokens, ctx.back, ctx.learns = tokens, back, learns
        return there.cross(x, tokens, learns=learns)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back: Coder = ctx.back
        following = ctx.tokens.roll(-1, dims=1)  # of the last place: the first token, which the receiver has too
        return back.cross(gradients[0].contiguous(), following, learns=ctx.learns), None, None, None, None
