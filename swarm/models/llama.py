"""A decoder language model in the Llama shape, cut into stages.

RMSNorm, rotary positions (rotate-half convention), grouped-query attention, SwiGLU, no biases, no dropout. A tied head
is the embedding, with the name of the embedding; with several stages, the last stage has a copy. The residual contains
the activation or, with model.residual = "subspace", its coefficients (subspace.py). At the cuts, model.boundary may
narrow it (boundary.py). Parameters have the names of the whole model in the Hugging Face Llama layout, independent of
the cuts. So an export is a copy, and the initial value of a tensor depends only on seed and name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarm.manifest import ModelSection
from swarm.models.boundary import Boundaries, initial_boundary_value
from swarm.models.cross_entropy import summed_cross_entropy
from swarm.models.initial import seeded_normal
from swarm.models.rms_norm import RMSNorm
from swarm.models.split_backward import Embedding, Linear
from swarm.models.stage_module import StageModule
from swarm.models.subspace import RESIDUAL_WRITERS, anchor, constrained, lift, widened

_INIT_STD = 0.02
# Writers must be large enough relative to the anchor, which has unit variance. With standard deviations of 0.02, 0.04
# and 0.08 for the writers, the loss was 4.95, 4.92 and 4.90 nats (the comparison in docs/subspace.md, k = 16).
_COEFFICIENT_STD = 0.5
_WRITER_STD = 0.08


def initial_value(name: str, shape: torch.Size, model: ModelSection, seed: int) -> Tensor:
    """Initial fp32 CPU value of a tensor: ones for norms, else normal; writers to the residual are scaled down.

    A writer with k rows has entries that are √(d/k) times larger, so that its output has the same norm as with d rows.
    """
    if (value := initial_boundary_value(name, shape, model)) is not None:
        return value
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    std = _INIT_STD
    if name.endswith(RESIDUAL_WRITERS):
        std = (_WRITER_STD if model.anchored else std) / math.sqrt(2 * model.layers) * math.sqrt(model.dim / shape[0])
    elif name.endswith("embed_tokens.weight") and model.residual == "subspace":
        std = _COEFFICIENT_STD
    elif name.endswith(".up"):
        std = 1 / math.sqrt(shape[1])  # after maxout, each channel of the residual has about unit size
    return seeded_normal(name, shape, seed) * std


class LlamaStage(StageModule):
    """One stage of the model. The first stage also has the embedding; the last one also has the final norm and the
    head.
    """

    _cos: Tensor
    _sin: Tensor

    def __init__(self, model: ModelSection, stage: int) -> None:
        super().__init__(model, stage)
        layers = model.layer_range(stage)
        self._section = model
        self._head_dim = model.dim // model.heads
        self._context = model.context
        self._theta = model.rope_theta
        self.model = _Trunk()
        if self.first or (self.last and model.tie_embeddings):
            self.model.embed_tokens = Embedding(model.vocab_size, model.residual_width(0))
        # the key is the layer's number in the whole model, so that names do not depend on the cuts
        self.model.layers = nn.ModuleDict({str(i): _Layer(model, i) for i in layers})
        self.model.boundaries = Boundaries(model, layers)
        if self.last:
            self.model.norm = RMSNorm(model.dim, model.norm_eps)
            if not model.tie_embeddings:
                self.lm_head = Linear(model.dim, model.vocab_size)
        # The rotary tables of all positions of a long context would be as large as the parameters of some models.
        self.register_buffer("_cos", torch.empty(0, self._head_dim), persistent=False)
        self.register_buffer("_sin", torch.empty(0, self._head_dim), persistent=False)

    def forward(self, x: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Compute the frame for the next stage from the frame of the previous one; in the last stage, the logits (B, T,
        V).

        `x`: token ids (B, T) int64 at stage 0, else fp32 (B, T, model.boundary_width(stage)): the activation, its
        coefficients in the subspace, or the output of a sender. `tokens`: the token ids, needed above stage 0 for an
        anchor or a token table.
        """
        out = self._through(x, tokens)
        return self._logits(out) if self.last else out

    def train_loss(self, x: Tensor, tokens: Tensor | None, labels: Tensor) -> Tensor:
        return summed_cross_entropy(self._through(x, tokens), self._logits, self._head(), labels)

    def layers(self) -> Iterable[nn.Module]:
        return self.model.layers.values()

    def _through(self, x: Tensor, tokens: Tensor | None) -> Tensor:
        """Like `forward`, but in the last stage without the head: (B, T, dim)."""
        residual = self.model.embed_tokens(x) if self.first else x  # (batch, time, residual or boundary width)
        tokens = x if self.first else tokens
        frozen = self._anchor(tokens)
        if self.first and frozen is not None and self._section.residual == "dense":
            residual = frozen + residual
        cos, sin = self.rotary(residual.shape[1])
        residual, anchored = self.model.boundaries.before(residual, frozen, tokens)
        for layer in self.model.layers.values():
            if not layer.constrained:
                residual, anchored = lift(residual, anchored), None  # from here on (batch, time, dim)
            residual = self.through(layer, residual, anchored, cos, sin)
        if not self.last:
            return self.model.boundaries.after(residual, frozen, tokens)
        final: Tensor = self.model.norm(lift(residual, anchored))
        return final

    def _logits(self, final: Tensor) -> Tensor:
        logits: Tensor = (self.model.embed_tokens.project if self._section.tie_embeddings else self.lm_head)(final)
        return logits

    def _head(self) -> Tensor:
        return self.model.embed_tokens.weight if self._section.tie_embeddings else self.lm_head.weight

    def _anchor(self, tokens: Tensor | None) -> Tensor | None:
        if not self._section.anchored:
            return None
        assert tokens is not None, "a stage of a model with an anchor needs the token ids"
        return anchor(tokens, self._section)

    def loss_sum(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy summed over all tokens. logits (B, T, V), labels (B, T)."""
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")

    def matrices(self) -> list[str]:
        embedding = "model.embed_tokens.weight"
        only_head = self.last and not self.first and self._section.tie_embeddings
        return [*([embedding] if only_head else []), *super().matrices()]

    def make_room(self, length: int) -> None:
        """Extend the rotary tables. Their values are computed on the CPU, so that they have the same bits on every
        device, and a position has the same bits in a table of any length.
        """
        length = min(length, self._context)
        if length <= self._sin.shape[0]:
            return
        cpu = "meta" if self._cos.is_meta else "cpu"  # on meta, nothing is computed
        with torch.inference_mode(False), torch.no_grad():  # a training step may be the next to use them
            pair = torch.arange(0, self._head_dim, 2, dtype=torch.float32, device=cpu) / self._head_dim
            angle = torch.arange(length, dtype=torch.float32, device=cpu)[:, None] * self._theta**-pair
            angle = torch.cat((angle, angle), dim=-1)  # (length, head_dim): rotate-half pairs i with i + head_dim / 2
            self._cos, self._sin = angle.cos().to(self._cos), angle.sin().to(self._sin)

    def rotary(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each angle at the first `length` positions, (length, head_dim) fp32."""
        if length > self._sin.shape[0]:  # twice as much, because a text that is generated grows token by token
            self.make_room(max(length, 2 * self._sin.shape[0]))
        return self._cos[:length], self._sin[:length]


class _Trunk(nn.Module):
    """The modules of a stage besides its layers: `embed_tokens` in the first stage, `norm` in the last."""

    embed_tokens: Embedding
    layers: nn.ModuleDict
    boundaries: Boundaries
    norm: RMSNorm


class _Layer(nn.Module):
    def __init__(self, model: ModelSection, index: int) -> None:
        super().__init__()
        self.constrained = constrained(model, index)
        width = model.residual_width(index) if self.constrained else model.dim
        self.input_layernorm = RMSNorm(model.dim, model.norm_eps)
        self.self_attn = _Attention(model, width)
        self.post_attention_layernorm = RMSNorm(model.dim, model.norm_eps)
        self.mlp = _FeedForward(model, width)

    def forward(self, residual: Tensor, anchored: Tensor | None, cos: Tensor, sin: Tensor) -> Tensor:
        attended = self.self_attn(self.input_layernorm(lift(residual, anchored)), cos, sin)
        residual = widened(residual, attended.shape[-1]) + attended
        written: Tensor = self.mlp(self.post_attention_layernorm(lift(residual, anchored)))
        return residual + written


class _Attention(nn.Module):
    def __init__(self, model: ModelSection, width: int) -> None:
        super().__init__()
        self._head_dim = model.dim // model.heads
        self._groups = model.heads // model.kv_heads
        self.q_proj = Linear(model.dim, model.heads * self._head_dim)
        self.k_proj = Linear(model.dim, model.kv_heads * self._head_dim)
        self.v_proj = Linear(model.dim, model.kv_heads * self._head_dim)
        self.o_proj = Linear(model.heads * self._head_dim, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, _ = x.shape
        q, k, v = (
            projection(x).view(batch, time, -1, self._head_dim).transpose(1, 2)  # (batch, heads, time, head_dim)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = _rotate(q, cos, sin).to(v.dtype), _rotate(k, cos, sin).to(v.dtype)
        grouped = self._groups > 1
        if grouped and not x.is_cuda:  # GPU kernels support grouped keys without repeating them
            k, v, grouped = _repeat_heads(k, self._groups), _repeat_heads(v, self._groups), False
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        written: Tensor = self.o_proj(attended.transpose(1, 2).reshape(batch, time, -1))
        return written


class _FeedForward(nn.Module):
    def __init__(self, model: ModelSection, width: int) -> None:
        super().__init__()
        self.gate_proj = Linear(model.dim, model.ffn_dim)
        self.up_proj = Linear(model.dim, model.ffn_dim)
        self.down_proj = Linear(model.ffn_dim, width)

    def forward(self, x: Tensor) -> Tensor:
        written: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return written


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


def _repeat_heads(x: Tensor, groups: int) -> Tensor:
    batch, heads, time, head_dim = x.shape
    return x[:, :, None].expand(batch, heads, groups, time, head_dim).reshape(batch, heads * groups, time, head_dim)
