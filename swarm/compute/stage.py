"""One stage on one device: its parameters, graphs, sums and optimizer. The compute thread owns it; nothing here locks.

A forward keeps its autograd graph if the budget allows. Otherwise, only the received body is kept, and the backward
computes the forward again. Both ways run the same operations in the same grad mode, so the results have the same bits.

A GPU works asynchronously. `launch_forward`, `launch_backward` and `launch_weights` submit work and return a function.
The compute thread calls it after the device has finished; it settles the sums and returns a second function. Any thread
may call the second one, which assembles the body and returns the result. `forward`, `backward` and `weights` wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
import torch.fx.experimental.symbolic_shapes  # else torch's first backward imports it: 0.5 s
from torch import Tensor

from swarm.buffer import Buffer
from swarm.codecs.codec import to_device, to_host
from swarm.compute.averaging import reduction_of
from swarm.compute.bases import BaseStore
from swarm.compute.block_grid import BlockGrid
from swarm.compute.body import BodyFormat, BodyKind, ForwardBody, Packing
from swarm.compute.device_clock import DeviceClock, Mark
from swarm.compute.digest import first_chain
from swarm.compute.due_weights import Due, DueWeights
from swarm.compute.graph import LiveBytes, saved_bytes
from swarm.compute.graph_stash import Graph, GraphStash
from swarm.compute.host_copy import HostCopy
from swarm.compute.layout import Layout
from swarm.compute.optimizer import StageOptimizer
from swarm.compute.precision import Precision
from swarm.compute.stage_options import StageOptions
from swarm.compute.sums import Accumulator
from swarm.compute.working_weights import WorkingWeights
from swarm.manifest import RunManifest
from swarm.models.kinds import build_stage
from swarm.models.split_backward import Kept, SplitBackward
from swarm.models.stage_module import StageModule
from swarm.models.token_means import sent_means
from swarm.protocol.ids import BaseKey, End, Microbatch, PassKind
from swarm.protocol.messages import CodecPair
from swarm.protocol.peer.io import (
    AppliedStep,
    Apply,
    Backward,
    BackwardDone,
    Discard,
    Forward,
    ForwardDone,
    ResultDone,
    Weights,
    WeightsDone,
)

_Value = TypeVar("_Value")
_FAR_TOO_LARGE = 1e38
"""A number that is finite in fp32, while sums of products with it are not."""


class Stage:
    """One stage. `initialised` False: the parameters are undefined until `optimizer.load`."""

    def __init__(
        self,
        manifest: RunManifest,
        index: int,
        options: StageOptions,
        *,
        initialised: bool,
        clock: DeviceClock | None = None,
    ) -> None:
        """`clock`: the clock of the device."""
        self._index = index
        self._device = torch.device(options.device)
        self._precision = options.precision or Precision.usual(self._device)
        self._clock = clock or DeviceClock(self._device)
        self._format = BodyFormat(manifest)
        self._module = self._build(manifest, manifest.run.seed if initialised else None)
        self._module.recomputes_layers = options.recomputes_layers
        self._sent_means = sent_means(self._module, self._precision.gradient_scale)
        self._weights = WorkingWeights(self._module, self._precision, self._device if options.offload else None)
        self._compiled = options.compiled
        if options.compiled:
            self._module.compile_layers()
        self.parameters = self._weights.masters
        self._split = SplitBackward() if options.splits else None
        if self._split is not None:
            self._split.attach(self._module)
        self._due = DueWeights()
        layout = Layout.of(self.parameters, with_loss=self._module.last, shared=self._module.shared)
        self._grid = BlockGrid.of(manifest, index, layout, options.device)
        self._accumulator = Accumulator(layout, manifest.sums, options.device, self._grid)
        self._graphs = GraphStash(options.graph_budget_bytes)
        self._adding = False
        """Whether a microbatch was partly added to the sums."""
        self._received: dict[Microbatch, Buffer] = {}  # forward bodies needed to pack the gradients sent back
        self.sent: dict[Microbatch, Buffer] = {}
        """Sent forward bodies, needed to unpack their gradients or for token means; empty if neither needs them.

        Any thread may read it.
        """
        self.turned: Mark = 0.0
        """Mark between forward and backward in the last training microbatch; only on the last stage."""
        self.bases = BaseStore()
        self.overflows = False
        """For fault tests: send gradients to the previous stage that are finite but far too large."""
        self.reduction = reduction_of(self._accumulator, manifest.sums, self._grid, on_host=options.offload)
        updated_on = torch.device("cpu") if options.updates_on_cpu else self._device
        apart = options.offload != options.updates_on_cpu  # else the state is where steps are computed
        self.optimizer = StageOptimizer(
            self.parameters,
            layout,
            manifest.optimizer,
            first_chain(manifest, index),
            manifest.model.subspace_id,
            updated_on if apart else None,
        )

    def begin(self, chosen: Sequence[CodecPair] = (), nonfinite: bool = False) -> None:
        """Start a new pass with the codecs in Open; drop everything of earlier passes. Raises codecs.UnknownCodec.

        `nonfinite`: whether non-finite tensors are sent across boundaries.
        """
        self._format = self._format.of_pass(chosen, nonfinite)
        self._accumulator.zero()
        self._adding = False
        self._graphs.clear()
        self._due.clear()
        self._received.clear()
        self.sent.clear()
        self.bases.begin()

    def limit_graphs(self, budget_bytes: int) -> None:
        """Set the budget for graphs. Graphs that are already kept stay. Any thread may call it."""
        self._graphs.budget_bytes = budget_bytes

    def relieve(self) -> tuple[int, int]:
        """Free memory after an out-of-memory error: drop all graphs, and keep at most half as many from now on.

        Their forwards are computed again. Returns (number kept before, limit from now on). From now on, no weight
        gradients are deferred, and layers are recomputed one by one.
        """
        self._split = None
        self._module.recomputes_layers = not self._compiled
        return self._graphs.halve()

    @property
    def is_crowded(self) -> bool:
        """Whether deferred weight gradients leave no room for the graph of another microbatch."""
        return bool(self._due) and not self._graphs.has_room(self._due.nbytes)

    @property
    def intact(self) -> bool:
        """Whether a failed forward or backward can be repeated, because no part of it was added to the sums."""
        return not self._adding

    def discard(self, action: Discard) -> None:
        microbatch = action.microbatch
        self._graphs.pop(microbatch)
        self._due.drop(microbatch)
        self._received.pop(microbatch, None)
        self.sent.pop(microbatch, None)
        self.bases.discard(action.pass_id.step, microbatch)

    def loaded(self) -> None:
        """Call after other parameters were loaded."""
        self._weights.refresh()
        self._turn_grid()

    def forward(self, action: Forward) -> ForwardDone | BackwardDone | ResultDone:
        """Compute a microbatch. Raises FrameError, codecs.CodecError, SumOverflow, LookupError."""
        return self._waited(self.launch_forward(action))()

    def backward(self, action: Backward) -> BackwardDone:
        """Compute the backward of a microbatch; add its gradients to the sums, or defer the weight gradients.

        Raises FrameError, codecs.CodecError, SumOverflow, LookupError.
        """
        return self._waited(self.launch_backward(action))()

    def weights(self, action: Weights) -> WeightsDone:
        """Add the deferred weight gradients of a microbatch. Raises SumOverflow, LookupError."""
        return self._waited(self.launch_weights(action))()

    def warm_up(self, manifest: RunManifest) -> None:
        """Compute a microbatch without effect, so that layers are compiled before training starts."""
        batch, hidden = manifest.batch, None
        tokens = torch.zeros(batch.sequences, batch.sequence_length + 1, dtype=torch.int64)
        if self._index:
            width = manifest.model.boundary_width(self._index)
            hidden = torch.zeros(batch.sequences, batch.sequence_length, width, device=self._device)
        body = ForwardBody(BodyKind.BATCH, tokens, hidden)
        graph = self._run(body)
        if self._sent_means is not None:
            self._sent_means.crossed = torch.zeros_like(graph.output)
        torch.autograd.grad(graph.output.sum(), list(self._weights.leaves.values()), allow_unused=True)

    def launch_forward(
        self, action: Forward, copy: Buffer | None = None
    ) -> Callable[[], Callable[[], ForwardDone | BackwardDone | ResultDone]]:
        """Start `forward` without waiting for the device.

        This and both returned functions raise the errors of `forward`. copy: a copy of the body in pinned memory, which
        the caller keeps until the device has finished.
        """
        body = self._unpacked(action, copy)
        if action.kind is not PassKind.TRAIN:
            done = self._forward_only(action, body)
            return lambda: done
        if self._format.remembers and body.hidden is not None:
            received = body.hidden.cpu()
            half = received.half() if self._format.mutual else None
            self.bases.stage(_named(action, End.RECEIVED), received, half)
        if self._format.needs_forward and self._index:
            self._received[action.microbatch] = action.payload  # type: ignore[assignment]
        if self._module.last:
            return self._train_last(action, body)
        graph, nbytes = self._graphs.measured(lambda: self._run(body), self._held_by)
        sent = self._sent(action, body, graph.output.detach())
        kept = self._graphs.keep(action.microbatch, graph, nbytes, action, self._due.nbytes)

        def complete() -> ForwardDone:
            return replace(sent(), kept=kept)

        def finish() -> Callable[[], ForwardDone]:
            if not self._format.needs_forward and self._sent_means is None:
                return complete
            done = complete()
            self.sent[action.microbatch] = done.payload  # type: ignore[assignment]
            return lambda: done

        return finish

    def launch_backward(self, action: Backward, copy: Buffer | None = None) -> Callable[[], Callable[[], BackwardDone]]:
        """Start `backward` without waiting for the device. copy: as in `launch_forward`."""
        kept = self._graphs.get(action.microbatch)
        if kept is None:
            raise LookupError(f"backward of microbatch {action.microbatch}, whose forward was not computed here")
        graph = kept.graph or self._run(self._unpacked(kept.order))
        kept.graph = None  # a graph can be used only once, even if the backward fails
        sent = self.sent.get(action.microbatch)
        payload: Buffer = action.payload if copy is None else copy  # type: ignore[assignment]
        if self._sent_means is not None:
            if sent is None:
                raise LookupError(f"the sent frame of microbatch {action.microbatch} is not here")
            crossed = self._format.unpack_forward(self._index + 1, sent, PassKind.TRAIN, device=self._device)
            self._sent_means.crossed = crossed.hidden
        gradient = self._format.unpack_backward(self._index + 1, payload, sent, self._device)
        finish = self._accumulate(action, graph, gradient, None)
        self._graphs.pop(action.microbatch)
        self.sent.pop(action.microbatch, None)
        return finish

    def launch_weights(self, action: Weights, copy: Buffer | None = None) -> Callable[[], Callable[[], WeightsDone]]:
        """Start `weights` without waiting for the device. `copy` is not used, because there is no body."""
        added = self._add(self._due.of(action.microbatch), action)
        self._due.drop(action.microbatch)

        def finish() -> Callable[[], WeightsDone]:
            added()
            return lambda: WeightsDone(action.pass_id, action.microbatch)

        return finish

    def apply(self, action: Apply) -> AppliedStep:
        """Apply a decided step. Raises ValueError if the reduced sums or the version do not fit the decision."""
        if action.decision.step != self.optimizer.version:
            raise ValueError(
                f"the decision of step {action.decision.step} does not fit version {self.optimizer.version}"
            )
        decision = action.decision
        reduced, digest = self.reduction.reduced(action.attempt), self.reduction.digest(action.attempt)
        self.optimizer.apply(reduced, decision.scale, decision.update, unit=self.reduction.unit, digest=digest)
        self.reduction.applied(action.attempt, skipped=action.decision.skip)
        self.loaded()
        return AppliedStep(action.decision.step, self.optimizer.chain)

    def _turn_grid(self) -> None:
        """Set the block grids to those of the present version."""
        if self._grid is not None:
            self._grid.follow(self.optimizer.second_moments, self.optimizer.version)

    def _unpacked(self, action: Forward, copy: Buffer | None = None) -> ForwardBody:
        base = self.bases.of(action.decode_with)
        payload: Buffer = action.payload if copy is None else copy  # type: ignore[assignment]
        return self._format.unpack_forward(self._index, payload, action.kind, base, self._device)

    def _sent(self, action: Forward, body: ForwardBody, hidden: Tensor) -> Callable[[], ForwardDone]:
        """The outgoing frame of a training pass; if it may code a change, also the whole frame and the next base."""
        base = self.bases.of(action.encode_with)
        packing = self._frame(body, hidden, base)
        if not self._format.remembers:
            return lambda: ForwardDone(action.pass_id, action.microbatch, packing())
        payload = self._waited(packing)
        shared = base if self._format.mutual else None
        crossed = self._format.unpack_forward(self._index + 1, payload, action.kind, shared).hidden
        assert crossed is not None
        left = self._format.left(base, hidden, crossed)
        done = ForwardDone(
            action.pass_id,
            action.microbatch,
            payload,
            whole=None if shared is None else self._frame(body, crossed)(),
            received=self.bases.staged_digest(_named(action, End.RECEIVED)),
            sent=self.bases.stage(_named(action, End.SENT), crossed, left),
        )
        return lambda: done

    def _build(self, manifest: RunManifest, seed: int | None) -> StageModule:
        module = build_stage(manifest.model, self._index, device=self._device, seed=seed)
        module.make_room(manifest.batch.sequence_length)
        return module

    def _run(self, body: ForwardBody, run: Callable[[Tensor, Tensor], Tensor] | None = None) -> Graph:
        """Compute a forward with its graph. `run` None: run the module."""
        tokens = to_device(body.inputs.contiguous(), self._device)
        source = None if body.hidden is None else body.hidden.requires_grad_()
        with self._precision.autocast(self._device):
            return Graph(source, (run or self._module)(tokens if source is None else source, tokens))

    def _frame(self, body: ForwardBody, hidden: Tensor, base: Tensor | None = None) -> Packing:
        return self._format.begin_forward(self._index + 1, body.kind, body.tokens, hidden, base)

    def _held_by(self, run: Callable[[], Graph]) -> tuple[Graph, int]:
        """The graph from `run`, and its bytes of memory."""
        fixed = [*self._weights.leaves.values(), *self._module.buffers()]  # a long prompt may have extended a buffer
        if not self._module.recomputes_layers:
            return saved_bytes(run, lambda graph: graph.output, fixed)
        live = LiveBytes(beyond=fixed)  # checkpointed layer inputs are not visible as saved tensors
        with live:
            graph = run()
        return graph, live.now

    def _waited(self, finish: Callable[[], _Value]) -> _Value:
        """Wait for the device, then return the result of `finish`."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        return finish()

    def _forward_only(self, action: Forward, body: ForwardBody) -> Callable[[], ForwardDone | ResultDone]:
        # these passes have other shapes and no graph: do not compile layers for them
        eager = torch.compiler.set_stance("force_eager") if self._compiled else contextlib.nullcontext()
        with torch.no_grad(), eager:
            output = self._run(body).output
            if not self._module.last:
                packing = self._frame(body, output)
                return lambda: ForwardDone(action.pass_id, action.microbatch, packing())
            if action.kind is PassKind.GENERATE:
                chosen = to_host(output[0, -1].argmax())
                return lambda: ResultDone(action.pass_id, action.microbatch, 0.0, int(chosen))
            loss = to_host(self._module.loss_sum(output, to_device(body.labels.contiguous(), self._device)))
            return lambda: ResultDone(action.pass_id, action.microbatch, loss.item())

    def _train_last(self, action: Forward, body: ForwardBody) -> Callable[[], Callable[[], BackwardDone]]:
        labels = to_device(body.labels.contiguous(), self._device)
        graph = self._run(body, lambda x, tokens: self._module.train_loss(x, tokens, labels))
        self.turned = self._clock.mark()
        return self._accumulate(action, graph, None, graph.output.detach())

    def _accumulate(
        self, action: Forward | Backward, graph: Graph, gradient: Tensor | None, loss: Tensor | None
    ) -> Callable[[], Callable[[], BackwardDone]]:
        sources = () if graph.source is None else (graph.source,)
        of, split = (*sources, *self._weights.leaves.values()), self._split
        scale, kept = self._precision.gradient_scale, list[Kept]()
        if scale != 1.0:
            gradient = scale * (torch.ones_like(graph.output) if gradient is None else gradient)
        with contextlib.nullcontext(kept) if split is None else split.splitting() as kept:
            gradients = torch.autograd.grad(graph.output, of, gradient, allow_unused=split is not None)
        packing = None
        if sources:
            of_source = gradients[0] if scale == 1.0 else gradients[0] / scale
            if self.overflows:
                of_source = torch.sign(of_source) * _FAR_TOO_LARGE
            received = self._received.get(action.microbatch)
            packing = self._format.begin_backward(self._index, of_source, received)
        due = Due(gradients[len(sources) :], kept, None if loss is None else HostCopy(loss))
        waits = bool(kept) and self._graphs.fits(self._due.nbytes + (nbytes := due.nbytes))
        if waits:
            self._due.keep(action.microbatch, due, nbytes)
        added = None if waits else self._add(due, action)
        self._received.pop(action.microbatch, None)
        crossed = self.bases.staged_digest(_named(action, End.RECEIVED))

        def finish() -> Callable[[], BackwardDone]:
            refused: Exception | None = None
            try:
                if added is not None:
                    added()
            except Exception as error:
                refused = error.with_traceback(None)

            def complete() -> BackwardDone:
                payload = None if packing is None else packing()  # an error in packing is raised first
                if refused is not None:
                    raise refused
                return BackwardDone(action.pass_id, action.microbatch, payload, received=crossed, weights_due=waits)

            return complete

        return finish

    def _add(self, due: Due, action: Forward | Backward | Weights) -> Callable[[], None]:
        """Start to add the gradients of a microbatch. The returned function completes it. Both raise SumOverflow."""
        scale, step = self._precision.gradient_scale, action.pass_id.step
        gradients = due.computed(tuple(self._weights.leaves.values()))
        if scale != 1.0:
            gradients = [gradient.to(torch.float32) / scale for gradient in gradients]
        self._adding = True
        for index, gradient in enumerate(gradients):
            self._accumulator.add_one(index, gradient, step=step, microbatch=action.microbatch)
        added = self._accumulator.end(step)
        self._adding = False

        def finish() -> None:
            if due.loss is not None:
                self._accumulator.add_loss(due.loss.wait().item(), step=step)
            if missing := added.result():
                for index in missing:
                    self._accumulator.add_one(index, gradients[index], step=step, microbatch=action.microbatch)
                self._accumulator.settle(step)

        return finish


def _named(action: Forward | Backward, end: End) -> BaseKey:
    """The key under which the tensor of this microbatch and step is stored as a base."""
    return BaseKey(action.pass_id.step, action.microbatch, end)
