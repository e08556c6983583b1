"""One training of the study: a model in stages, with its boundaries coded, AdamW or Muon.

A step has `batch.microbatches` microbatches. Each crosses every boundary as a frame of its own, and their gradients are
added up before the optimizer's step. On a GPU a whole step is one CUDA graph, which is replayed: a model this small
would otherwise wait for the host. Several trainings run beside each other, each in a stream of its own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.length.coding import Coder, Coding, Crossing
from swarm.compute.optimizer import decays, is_hidden
from swarm.manifest import RunManifest
from swarm.models.kinds import build_stage
from swarm.protocol.update import learning_rate

TURN_EVERY = 100
"""Steps between two computations of principal axes."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Token ids of the training and held-out text, uint16."""

    train: np.ndarray
    heldout: np.ndarray


@dataclass(frozen=True, slots=True)
class Point:
    """After so many tokens: held-out loss (nats a token) and bits of a token at a boundary since the point before."""

    tokens: int
    loss: float
    forward_bits: float
    backward_bits: float


class Training:
    """`advance` starts a step and does not wait for it; `measure` waits."""

    def __init__(
        self,
        manifest: RunManifest,
        codings: tuple[Coding, Coding],
        texts: Texts,
        device: torch.device,
        *,
        heldout_batches: int,
        compiled: bool = False,
        half: bool = True,
    ) -> None:
        """`compiled`: `torch.compile` for the stages, which saves a third of the time on a CPU. The results differ by
        rounding. `half`: matrix products in bfloat16; a CPU without instructions for it is many times faster in fp32.
        """
        self._manifest, self._device, self._half = manifest, device, half
        model, batch, seed = manifest.model, manifest.batch, manifest.run.seed
        self._stages = [build_stage(model, s, device=device, seed=seed) for s in range(model.stages)]
        self._loss_sum = self._stages[-1].loss_sum
        if compiled:
            self._compile()
        self._coders = [
            tuple(Coder(coding, width, model.vocab_size, device) for coding in codings)
            for width in model.boundary_widths
        ]
        self._alone = codings[0].kind == "nothing"
        """Only the last stage is computed: no other has an effect or a gradient."""
        rows = batch.sequences
        self._train = _windows(texts.train, batch.sequence_length).to(device)
        order = np.random.default_rng(seed).permutation(len(self._train))
        order = np.resize(order, manifest.run.steps * batch.microbatches * rows)  # a longer run sees the text again
        self._order = torch.from_numpy(order.reshape(-1, batch.microbatches, rows)).to(device)
        self._heldout = _windows(texts.heldout, batch.sequence_length)[: heldout_batches * rows].to(device)
        rates = [learning_rate(manifest.optimizer, step, manifest.run.steps) for step in range(manifest.run.steps)]
        self._rates = torch.tensor(rates, device=device)
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._rate = torch.zeros((), device=device)
        self._optimizers = self._optimizers_of()
        self._heldout_batch = torch.zeros((rows, batch.sequence_length + 1), dtype=torch.int64, device=device)
        self._heldout_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._graphs = self._capture() if self.stream is not None else None
        self.taken = 0
        self.curve: list[Point] = []

    def advance(self) -> None:
        with self._there():
            if self._graphs is None:
                self._train_step()
            else:
                self._graphs[0].replay()
            self.taken += 1
            if self.taken % TURN_EVERY == 0:
                for coder in (coder for pair in self._coders for coder in pair):
                    coder.turn()

    def measure(self) -> Point:
        """Held-out loss now, appended to the curve."""
        rows, length = self._heldout_batch.shape
        with self._there():
            self._heldout_sum.zero_()
            for first in range(0, len(self._heldout), rows):
                self._heldout_batch.copy_(self._heldout[first : first + rows])
                if self._graphs is None:
                    self._heldout_step()
                else:
                    self._graphs[1].replay()
            loss = self._heldout_sum.item() / (len(self._heldout) * (length - 1))
            bits = [[coder.token_bits((rows, length - 1)) for coder in pair] for pair in self._coders]
        forward, backward = (sum(each[way] for each in bits) / max(len(bits), 1) for way in (0, 1))
        point = Point(self.taken * self._manifest.batch.tokens_per_step, loss, forward, backward)
        self.curve.append(point)
        return point

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
            yield

    def _loss(self, batch: Tensor, *, learns: bool) -> Tensor:
        ids, labels = batch[:, :-1], batch[:, 1:]
        x = ids
        # on a CPU, the fused kernel's backward in bfloat16 takes a third of a step; the plain one a tenth
        plain = sdpa_kernel(SDPBackend.MATH) if self.stream is None else contextlib.nullcontext()
        precision = torch.autocast(self._device.type, torch.bfloat16, enabled=self._half, cache_enabled=False)
        with plain, precision:
            if self._alone:
                x = torch.zeros((*ids.shape, self._manifest.model.widest_boundary), device=self._device)
            for stage, (there, back) in zip(self._stages, () if self._alone else self._coders, strict=False):
                x = Crossing.apply(stage(x, ids).float(), ids, there, back, learns)  # type: ignore[no-untyped-call]
            return self._loss_sum(self._stages[-1](x, ids), labels)

    def _train_step(self) -> None:
        at = self._step.view(1)  # a number as an index would have to be read by the host
        self._rate.copy_(self._rates.index_select(0, at)[0])
        gradients = self.gradients(self._train[self._order.index_select(0, at)[0]])
        parameters = [parameter for _, parameter in self._named()]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (self._manifest.optimizer.clip_norm / norm).clamp(max=1.0))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for optimizer in self._optimizers:
            optimizer.step()
        self._step.add_(1)

    def gradients(self, microbatches: Tensor) -> list[Tensor]:
        """Gradients of the mean loss, one fp32 tensor for each parameter. The coders learn from what crosses.

        microbatches: (microbatches, sequences, length + 1) int64, token ids.
        """
        parameters = [parameter for _, parameter in self._named()]
        gradients = [torch.zeros_like(parameter) for parameter in parameters]
        tokens = microbatches[:, :, 1:].numel()
        for batch in microbatches.unbind():
            found = torch.autograd.grad(self._loss(batch, learns=True) / tokens, parameters, allow_unused=True)
            used = [(sums, part) for sums, part in zip(gradients, found, strict=True) if part is not None]
            torch._foreach_add_([sums for sums, _ in used], [part for _, part in used])
        for coder in (coder for pair in self._coders for coder in pair):
            coder.update_means()
        return gradients

    @torch.no_grad()
    def _heldout_step(self) -> None:
        self._heldout_sum.add_(self._loss(self._heldout_batch, learns=False))

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        return [named for stage in self._stages for named in stage.named_parameters()]

    def _compile(self) -> None:
        torch._dynamo.reset()  # what was compiled for a training before counts towards the limit
        torch._dynamo.config.recompile_limit = 8 * len(self._stages)  # they share their code
        for stage in self._stages:
            stage.compile()
        self._loss_sum = torch.compile(self._stages[-1].loss_sum)

    def _optimizers_of(self) -> list[torch.optim.Optimizer]:
        section, cuda = self._manifest.optimizer, self._device.type == "cuda"
        muon = section.kind == "muon"
        if muon and cuda:
            raise ValueError("Muon trains on a CPU here: torch's Muon does not work in a CUDA graph")
        hidden = {name: p for name, p in self._named() if muon and is_hidden(name, p)}
        rest = [named for named in self._named() if named[0] not in hidden]
        groups = [
            {"params": [p for name, p in rest if decays(name, p) is yes], "weight_decay": rate}
            for yes, rate in ((True, section.weight_decay), (False, 0.0))
        ]
        betas = (section.beta1, section.beta2)
        adamw = torch.optim.AdamW(groups, lr=self._rate, betas=betas, eps=section.eps, fused=cuda, capturable=cuda)
        if not muon:
            return [adamw]
        # with this adjustment an update has AdamW's size, so that one schedule serves both (Liu et al. 2025)
        decay, adjusted = section.weight_decay, "match_rms_adamw"
        rate: float = self._rate  # type: ignore[assignment]  # it takes a tensor too
        muons = torch.optim.Muon(
            hidden.values(), lr=rate, weight_decay=decay, momentum=section.momentum, adjust_lr_fn=adjusted
        )
        return [muons, adamw]

    def _capture(self) -> tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph]:
        """Graphs of a training step and of a held-out batch; state is afterwards as it was."""
        assert self.stream is not None
        parameters = [(p, p.detach().clone()) for _, p in self._named()]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self._train_step()
                self._heldout_step()
        torch.cuda.synchronize()
        graphs = (torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[0], stream=self.stream):
            self._train_step()
        with torch.cuda.graph(graphs[1], stream=self.stream):
            self._heldout_step()
        with torch.no_grad():
            for parameter, first in parameters:
                parameter.copy_(first)
            for state in self._optimizers[0].state.values():
                for tensor in state.values():
                    tensor.zero_()
            for pair in self._coders:
                for coder in pair:
                    coder.reset()
            self._step.zero_()
        torch.cuda.synchronize()
        return graphs


def _windows(ids: np.ndarray, length: int) -> Tensor:
    """(sequences, length + 1): each sequence with the id after its last."""
    count = (len(ids) - 1) // length
    picked = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[: count * length : length]
    return torch.from_numpy(picked.astype(np.int64))


def train_beside(trainings: Sequence[Training], steps: int, points: int) -> None:
    """All of them, step by step in turn, with `points` measurements of each, evenly spread."""
    at = {math.ceil(steps * n / points) for n in range(1, points + 1)}
    for step in range(1, steps + 1):
        for training in trainings:
            training.advance()
        if step in at:
            for training in trainings:
                training.measure()
