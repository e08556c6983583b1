"""Held states: a version of a stage is copied while the microbatches of the next step are computed.

Forward and backward only read parameters. So no second copy in memory is needed: a thread reads the stage's own
tensors, and the next step is applied when that thread has finished.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from swarm.compute.digest import StateDigest
from swarm.compute.finite import all_finite

STALLED_S = 10.0
"""Seconds without progress after which a copy is abandoned, so that a stalled disk does not stop training."""
_BLOCK = 1 << 20
"""Elements that are passed to the copy at once."""


class GivenUp(OSError):
    """The copy was abandoned, because it made no progress and the next step had to be applied."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the copy of version {version} made no progress for {STALLED_S:g} s, so training continued without it"
        )


class StateFreed(Exception):
    """The copy was abandoned, because this peer frees its stage: it moves to another one, or ends. The disk may be
    fine.
    """

    def __init__(self, version: int) -> None:
        super().__init__(f"the copy of version {version} was abandoned, because this peer gives up the stage")


@dataclass(frozen=True, slots=True)
class Given:
    """The results of reading a whole state."""

    digest: str
    spoilt: bool
    """Whether a part of the state is not finite."""


class HeldState:
    """A version of a live stage, which is not changed until all of it is read or `release` is called."""

    def __init__(
        self, holds: Holds, tensors: Mapping[str, Tensor], version: int, updates: int, chain: str, subspace_id: str
    ) -> None:
        """`tensors`: the stage's own tensors. The other arguments are as in StageState."""
        self.version = version
        self.updates = updates
        self.chain = chain
        self.subspace_id = subspace_id
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.waited_s = 0.0
        """Seconds for which the next step has waited for this copy."""
        self.abandoned: type[GivenUp | StateFreed] | None = None
        """The error with which this abandoned copy ends; None: it was not abandoned. Only Holds sets it."""
        self._holds = holds
        self._tensors = tensors

    def give(self, write: Callable[[memoryview], None]) -> Given:
        """Pass the bytes of all tensors, in the order of their names, to `write`. Then release the state.

        Raises GivenUp, StateFreed and the errors of `write`.
        """
        digest, finite = StateDigest(self.version, self.updates), True
        for name, tensor in sorted(self._tensors.items()):
            digest.begin(name, tensor)
            for block in tensor.detach().to("cpu").contiguous().view(-1).split(_BLOCK) if tensor.numel() else ():
                raw = block.view(torch.uint8).numpy().data
                digest.update(raw)
                finite = finite and all_finite((block,))
                write(raw)
                self._holds.went_on(self)
        self._holds.finish(self)
        return Given(digest.hexdigest(), not finite)

    def release(self) -> None:
        """Allow the state to change. Further calls have no effect."""
        self._holds.release(self)


class Holds:
    """The held states of one engine. Used from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: list[HeldState] = []
        self._blocks = 0
        """Number of blocks read so far, of all copies."""

    def add(self, held: HeldState) -> None:
        with self._changed:
            self._held.append(held)

    def settle(self) -> None:
        """Wait until no copy reads the state, so that it may be changed. Copies without progress are abandoned."""
        with self._changed:
            while self._held:
                waiting, blocks, began = tuple(self._held), self._blocks, time.monotonic()
                moved = self._changed.wait_for(lambda: not self._held or self._blocks != blocks, STALLED_S)  # noqa: B023
                for held in waiting:
                    held.waited_s += time.monotonic() - began
                if not moved:
                    self._abandon(GivenUp)

    def give_up(self) -> None:
        """Abandon all copies, because the state is freed."""
        with self._changed:
            self._abandon(StateFreed)

    def _abandon(self, error: type[GivenUp | StateFreed]) -> None:
        for held in self._held:
            held.abandoned = error
        self._held.clear()
        self._changed.notify_all()

    def went_on(self, held: HeldState) -> None:
        """Record that a block was read. Raises GivenUp, StateFreed."""
        with self._changed:
            if held.abandoned is not None:
                raise held.abandoned(held.version)
            self._blocks += 1
            self._changed.notify_all()

    def finish(self, held: HeldState) -> None:
        """Record that the whole state was read. Raises GivenUp, StateFreed."""
        with self._changed:
            if held.abandoned is not None:
                raise held.abandoned(held.version)
            self.release(held)

    def release(self, held: HeldState) -> None:
        with self._changed:
            if held in self._held:
                self._held.remove(held)
                self._changed.notify_all()
