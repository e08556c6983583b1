"""Memory of one microbatch's autograd graph between forward and backward, and additional memory in the backward.

Both are counted on meta tensors, which have no memory, with the rules of the actual device: for example, it may cast
the factors of a product to half precision, and attention may keep its inputs and its output instead of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from swarm.compute.graph_counts import KNOWN, GraphCounts
from swarm.compute.memory_table import ON_CPU, Mode, StageCounts
from swarm.compute.muon import flop, scratch_bytes
from swarm.compute.optimizer import is_hidden
from swarm.compute.precision import Precision
from swarm.compute.working_weights import WorkingWeights
from swarm.manifest import RunManifest
from swarm.models.kinds import build_stage
from swarm.models.stage_module import StageModule

_Result = TypeVar("_Result")
_PRODUCTS = (F.linear, F.conv2d, torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.mm, torch.mm)
"""The operations of our models that are computed in half precision if it is requested."""
_BY_ELEMENT = (
    torch.ops.aten.add.Tensor,
    torch.ops.aten.mul.Tensor,
    torch.ops.aten.mul.Scalar,
    torch.ops.aten.div.Scalar,
    torch.ops.aten.neg.default,
    torch.ops.aten.pow.Tensor_Scalar,
)


def count_stages(manifest: RunManifest, mode: Mode = ON_CPU, *, by_layer: bool = True) -> list[StageCounts]:
    """The sizes of each stage, and the memory of a microbatch in it. This computes and allocates no tensors.

    `by_layer` False: leave out the counts by layer, which saves half of the time.
    """
    counted: dict[object, StageCounts] = {}
    found = []
    for stage in range(manifest.model.stages):
        module = working_module(manifest, stage, mode)
        alike = module.first, module.last, tuple(parameter.shape for parameter in module.parameters())
        if alike not in counted:
            counted[alike] = _count(manifest, stage, module, mode, by_layer)
        found.append(counted[alike])
    return found


def count_graph(module: StageModule, x: Tensor, tokens: Tensor, mode: Mode) -> GraphCounts:
    """The memory of a microbatch in a meta module, whose parameters have the dtypes in which it computes.

    `x`: the input; `tokens`: the token ids, which also serve as labels.
    """
    parameters = list(module.parameters())
    sources = [*(() if module.first else (x,)), *parameters]
    live = LiveBytes(x, beyond=[*parameters, *module.buffers()])
    with Rules(mode), live:
        out = module.train_loss(x, tokens, tokens) if module.last else module(x, tokens)
        held = live.now
        gradients = torch.autograd.grad(out, sources, None if module.last else torch.zeros_like(out))
    of_weights = gradients[len(sources) - len(parameters) :]
    return GraphCounts(held, live.peak - held, sum(gradient.nbytes for gradient in of_weights))


def working_module(manifest: RunManifest, stage: int, mode: Mode) -> StageModule:
    """A stage on the meta device, whose parameters have the dtypes in which it computes."""
    module = build_stage(manifest.model, stage, device="meta", seed=None)
    WorkingWeights(module, Precision(mode.precision))
    module.make_room(manifest.batch.sequence_length)
    return module


def microbatch_of(manifest: RunManifest, stage: int, module: StageModule) -> tuple[Tensor, Tensor]:
    """The input of a stage for a microbatch, and its token ids, on the meta device."""
    shape = (manifest.batch.sequences, manifest.batch.sequence_length)
    tokens = torch.zeros(shape, dtype=torch.int64, device="meta")
    if module.first:
        return tokens, tokens
    return torch.zeros((*shape, manifest.model.boundary_width(stage)), device="meta", requires_grad=True), tokens


def _count(manifest: RunManifest, stage: int, module: StageModule, mode: Mode, with_layers: bool) -> StageCounts:
    names = set(module.matrices())
    numbers = {name: parameter.numel() for name, parameter in module.named_parameters()}
    muons = [p for name, p in module.named_parameters() if manifest.optimizer.kind == "muon" and is_hidden(name, p)]
    batch = manifest.batch
    model = manifest.model.model_dump_json()
    subject = (model, stage, batch.sequences, batch.sequence_length, mode.own_memory, mode.half)

    def count() -> GraphCounts:
        return count_graph(module, *microbatch_of(manifest, stage, module), mode)

    graph = KNOWN.of((*subject, "whole"), count)
    by_layer = None
    if with_layers and any(True for _ in module.layers()):
        module.recomputes_layers, module.recomputes_within = True, lambda: Rules(mode)
        by_layer = KNOWN.of((*subject, "by layer"), count)
    return StageCounts(
        parameters=sum(numbers.values()),
        matrices=sum(count for name, count in numbers.items() if name in names),
        graph=graph.held,
        in_backward=graph.in_backward,
        gradients=graph.gradients,
        graph_by_layer=None if by_layer is None else by_layer.held,
        in_backward_by_layer=0 if by_layer is None else by_layer.in_backward,
        largest=max((p.numel() for p in muons), default=0),
        orthogonalising=max((scratch_bytes(p.shape, mode.own_memory) for p in muons), default=0),
        muon_flop=sum(flop(p.shape) for p in muons),
    )


def saved_bytes(
    run: Callable[[], _Result], output: Callable[[_Result], Tensor], fixed: Iterable[Tensor]
) -> tuple[_Result, int]:
    """The result of `run`, and the bytes that its graph keeps besides the tensors in `fixed`, such as parameters."""
    known = {each.untyped_storage()._cdata for each in fixed}  # storages of meta tensors have an identity too
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            storages[storage._cdata] = storage.nbytes()
        return tensor.detach()  # an operation that keeps its own output would otherwise be a reference cycle

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = run()
    note(output(result))
    return result, sum(storages.values())


class LiveBytes(TorchDispatchMode):
    """Inside this context: counts the bytes of `given` and of all existing tensors that operations have made."""

    def __init__(self, *given: Tensor, beyond: Iterable[Tensor] = ()) -> None:
        """`beyond`: tensors that are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._beyond = {tensor.untyped_storage()._cdata for tensor in beyond}
        self.peak = 0
        """Largest number of bytes so far."""
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._at_most = 0
        """Bytes of all these storages, also of those that have been freed since the last look."""
        self._note(given)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = torch.empty_like(args[0]) if _by_element(func, args) else func(*args, **(kwargs or {}))
        self._note(tree_leaves(result))
        return result

    @property
    def now(self) -> int:
        self._forget()
        return self._at_most

    def _note(self, made: Iterable[object]) -> None:
        for tensor in made:
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if (at := storage._cdata) not in self._beyond and at not in self._storages:
                    # while the weak reference exists, no other storage gets this address
                    self._storages[at] = StorageWeakRef(storage), storage.nbytes()
                    self._at_most += storage.nbytes()
        if self._at_most > self.peak:
            self._forget()
            self.peak = max(self.peak, self._at_most)

    def _forget(self) -> None:
        """Remove storages that no longer exist."""
        self._storages = {at: held for at, held in self._storages.items() if not held[0].expired()}
        self._at_most = sum(nbytes for _, nbytes in self._storages.values())


def _by_element(func: Any, args: Sequence[Any]) -> bool:
    """Whether this is an operation by element on meta tensors of one shape and dtype: the result is like the first.

    torch computes the shapes of these frequent operations in Python, which would take most of the time of a count.
    """
    if func not in _BY_ELEMENT:
        return False
    first, *others = args
    return (
        first.is_meta
        and first.is_contiguous()
        and all(
            each.shape == first.shape and each.dtype == first.dtype and each.is_contiguous()
            if isinstance(each, Tensor)
            else first.is_floating_point()
            for each in others
        )
    )


class Rules(TorchFunctionMode):
    """Inside this context: operations on meta tensors follow the rules of the device in `mode`."""

    def __init__(self, mode: Mode) -> None:
        super().__init__()
        self._precision, self._gpu = Precision(mode.precision), mode.device.startswith("cuda")

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return self._gpu
        if func is F.scaled_dot_product_attention:
            return _Attention.apply(*args[:3])  # type: ignore[no-untyped-call]
        if self._precision is not Precision.FP32 and func in _PRODUCTS:
            args = [self._cast(each) for each in args]
        return func(*args, **(kwargs or {}))

    def _cast(self, value: object) -> object:
        casts = isinstance(value, Tensor) and value.is_floating_point()
        return cast(Tensor, value).to(self._precision.dtype) if casts else value


class _Attention(torch.autograd.Function):
    """Keeps what attention kernels keep for the backward: inputs, output, and one fp32 number per row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=q.dtype, device=q.device).transpose(
            1, 2
        )
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[:3], device=q.device))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors[:3])
