"""The trained modules at a cut: a sender at the end of a stage, and a receiver at the start of the next stage.

model.boundary chooses how they narrow the residual:

* `bottleneck` (SWARM, arXiv 2301.11913, and the anchor of Protocol Models, arXiv 2506.01260): the sender makes z = D(x
  − F[t]), the receiver x' = Up·z + F[t]. D starts as Uᵀ and Up as U, the first k channels.
* `projector` (MAPL, arXiv 2606.05484): the same, with D and Up kept orthonormal by a retraction after each optimizer
  step (retraction.py).
* `maxout` (SWARM): z is the normalised maximum of each group of d/k channels of the normalised residual, x' = Up·z.

In addition, the receiving stage may change the received residual, even if it is not narrowed (for control runs):

* a token table of low rank: x' ← x' + B·A[t] (like MAPL's factorised anchors). In a subspace, B·A[t] is added to the
  anchor with which this stage reads, so the coefficients and the frames stay unchanged.
* a refinement: x' ← x' + W·silu(V·norm(x')). In a subspace it writes coefficients, like all other writers.

At first, both additions are zero. Token means (token_means.py) change what is sent, but not what the receiver computes
with.

F is the frozen token anchor of subspace.py, which every stage generates. It is also added to the embedding, so a
boundary carries only what the layers have computed. All modules here have ordinary parameters, which belong to their
stages. Their names contain the number of the first layer after the cut, so a name does not depend on other cuts.
"""

from __future__ import annotations

import contextlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swarm.manifest import ModelSection
from swarm.models.rms_norm import RMSNorm
from swarm.models.subspace import lift
from swarm.models.token_means import ReceivedMeans, SentMeans, is_token_means

_LINEAR = ("bottleneck", "projector")


def is_projector(name: str) -> bool:
    """Whether a parameter, by its name, is orthonormal and must be retracted after an optimizer step."""
    return name.endswith(".projector")


def initial_boundary_value(name: str, shape: torch.Size, model: ModelSection) -> Tensor | None:
    """Initial value of a matrix that is not random at first: the first k channels, or zeros. None: a random matrix.

    At a narrow boundary without an anchor, only the token table distinguishes tokens, so it is random at first.
    """
    if is_token_means(name):
        return torch.zeros(shape)
    _, _, rest = name.partition("model.boundaries.")
    part, _, _ = rest.partition(".")
    if part in ("senders", "receivers") and model.boundary in _LINEAR:
        return torch.eye(*shape)
    if part == "tables" and name.endswith(".embed") and (model.anchored or model.boundary == "none"):
        return torch.zeros(shape)
    if part == "refinements" and name.endswith(".out"):
        return torch.zeros(shape)
    return None


class Boundaries(nn.Module):
    """The boundary modules of the stage with `layers`. There are none at the ends of the model.

    The keys of [model] choose the modules.
    """

    def __init__(self, model: ModelSection, layers: range) -> None:
        super().__init__()
        entered = [str(cut) for cut in model.cuts if cut == layers.start]
        left = [str(cut) for cut in model.cuts if cut == layers.stop]
        narrow = model.boundary != "none"
        self._subspace = model.residual == "subspace"
        self.receivers = nn.ModuleDict({cut: _receiver(model) for cut in entered if narrow})
        self.senders = nn.ModuleDict({cut: _sender(model) for cut in left if narrow})
        self.tables = nn.ModuleDict({cut: _TokenTable(model) for cut in entered if model.token_table_dim})
        hidden = model.receiver_hidden
        self.refinements = nn.ModuleDict({cut: _Refinement(model, int(cut)) for cut in entered if hidden})
        rows, widths = model.vocab_size, dict(zip(map(str, model.cuts), model.boundary_widths, strict=True))
        self.received_means = nn.ModuleDict({c: ReceivedMeans(rows, widths[c]) for c in entered if model.token_means})
        self.sent_means = nn.ModuleDict({cut: SentMeans(rows, widths[cut]) for cut in left if model.token_means})

    def before(self, x: Tensor, frozen: Tensor | None, tokens: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Compute the input of the stage's layers from the received residual. In a subspace, also return the anchor
        with which the layers read it; otherwise None.

        x: (batch, time, width of the boundary) → (batch, time, width of the residual). `frozen`: the tokens' anchor.
        """
        anchored = frozen if self._subspace else None
        for means in self.received_means.values():
            assert tokens is not None, "a stage with token means needs the token ids"
            x = means(x, tokens)
        for receiver in self.receivers.values():
            x = receiver(x, frozen)
        for table in self.tables.values():
            if anchored is None:
                x = x + table(tokens)
            else:
                anchored = anchored + table(tokens)
        for refinement in self.refinements.values():
            x = x + refinement(lift(x, anchored))
        return x, anchored

    def after(self, x: Tensor, frozen: Tensor | None, tokens: Tensor | None) -> Tensor:
        """The output that is sent over the next cut: (batch, time, width of the boundary)."""
        for sender in self.senders.values():
            x = sender(x, frozen)
        for means in self.sent_means.values():
            assert tokens is not None, "a stage with token means needs the token ids"
            x = means(x, tokens)
        return x


def _sender(model: ModelSection) -> nn.Module:
    return _MaxoutSender(model) if model.boundary == "maxout" else _Sender(model)


def _receiver(model: ModelSection) -> nn.Module:
    return _MaxoutReceiver(model) if model.boundary == "maxout" else _Receiver(model)


class _Sender(nn.Module):
    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self._name = "projector" if model.boundary == "projector" else "down"
        self.register_parameter(self._name, nn.Parameter(torch.empty(model.boundary_dim, model.dim)))

    def forward(self, x: Tensor, frozen: Tensor | None) -> Tensor:
        return _product(x if frozen is None else x - frozen, self.get_parameter(self._name))


class _Receiver(nn.Module):
    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self._name = "projector" if model.boundary == "projector" else "up"
        self.register_parameter(self._name, nn.Parameter(torch.empty(model.dim, model.boundary_dim)))

    def forward(self, z: Tensor, frozen: Tensor | None) -> Tensor:
        x = _product(z, self.get_parameter(self._name))
        return x if frozen is None else x + frozen


class _MaxoutSender(nn.Module):
    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self._width = model.boundary_dim
        self.input_norm = RMSNorm(model.dim, model.norm_eps)
        self.output_norm = RMSNorm(model.boundary_dim, model.norm_eps)

    def forward(self, x: Tensor, frozen: None) -> Tensor:
        z: Tensor = self.output_norm(self.input_norm(x).unflatten(-1, (self._width, -1)).amax(-1))
        return z


class _MaxoutReceiver(nn.Module):
    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(model.dim, model.boundary_dim))

    def forward(self, z: Tensor, frozen: None) -> Tensor:
        return _product(z, self.up)


class _TokenTable(nn.Module):
    """A trained token table of low rank: B·A[t] for token t.

    A is trained like an embedding, without weight decay; B is random at first, so that all rows of A learn.
    """

    def __init__(self, model: ModelSection) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(model.vocab_size, model.token_table_dim))
        self.up = nn.Parameter(torch.empty(model.dim, model.token_table_dim))

    def forward(self, tokens: Tensor) -> Tensor:
        return _product(F.embedding(tokens, self.embed), self.up)


class _Refinement(nn.Module):
    def __init__(self, model: ModelSection, cut: int) -> None:
        super().__init__()
        self.norm = RMSNorm(model.dim, model.norm_eps)
        self.up = nn.Parameter(torch.empty(model.receiver_hidden, model.dim))
        self.out = nn.Parameter(torch.empty(model.residual_width(cut - 1), model.receiver_hidden))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(self.norm(x), self.up)), self.out)


def _product(x: Tensor, matrix: Tensor) -> Tensor:
    """x·matrixᵀ in fp32, also under autocast, because an error here affects every later stage."""
    plain = contextlib.nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
    with plain:
        return F.linear(x, matrix)
