"""Held states: one version of a stage is copied while the microbatches of the next step are computed.

Forward and backward read parameters and change nothing. So nobody needs a second state in memory: who makes a copy
reads the stage's own tensors, in a thread of its own, and the next step is applied when it is done with them.
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
"""A copy that gets no further for so long is given up: training does not stand still with somebody's disk."""
_BLOCK = 1 << 20
"""Elements that are given out at once."""


class GivenUp(OSError):
    """The step could not wait for this copy any longer."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"the copy of version {version} got no further for {STALLED_S:g} s, and training went on without it"
        )


@dataclass(frozen=True, slots=True)
class Given:
    """What was found out about a state while it was given out."""

    digest: str
    spoilt: bool
    """Some of it is not finite."""


class HeldState:
    """A version of a live stage that does not change until all of it is given out, or `release`."""

    def __init__(
        self, holds: Holds, tensors: Mapping[str, Tensor], version: int, updates: int, chain: str, subspace_id: str
    ) -> None:
        """`tensors`: those of the stage itself. The other arguments are as in StageState."""
        self.version = version
        self.updates = updates
        self.chain = chain
        self.subspace_id = subspace_id
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.waited_s = 0.0
        """How long the next step has waited for this."""
        self._holds = holds
        self._tensors = tensors

    def give(self, write: Callable[[memoryview], None]) -> Given:
        """Hand the bytes of all tensors, in the order of their names, to `write`. Raises GivenUp and what that raises.

        At the end the state is released.
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
        """It may change. Does nothing the second time."""
        self._holds.release(self)


class Holds:
    """The held states of one engine. Used from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: list[HeldState] = []
        self._blocks = 0
        """How many were given out."""

    def add(self, held: HeldState) -> None:
        with self._changed:
            self._held.append(held)

    def settle(self) -> None:
        """Return when nobody reads the state any more, so that it may be changed. Those that have stalled lose it."""
        with self._changed:
            while self._held:
                waiting, blocks, began = tuple(self._held), self._blocks, time.monotonic()
                moved = self._changed.wait_for(lambda: not self._held or self._blocks != blocks, STALLED_S)  # noqa: B023
                for held in waiting:
                    held.waited_s += time.monotonic() - began
                if not moved:
                    self._held.clear()

    def give_up(self) -> None:
        """Nobody waits for copies any more."""
        with self._changed:
            self._held.clear()
            self._changed.notify_all()

    def went_on(self, held: HeldState) -> None:
        """A block was given out. Raises GivenUp."""
        with self._changed:
            if held not in self._held:
                raise GivenUp(held.version)
            self._blocks += 1
            self._changed.notify_all()

    def finish(self, held: HeldState) -> None:
        """All was given out. Raises GivenUp."""
        with self._changed:
            if held not in self._held:
                raise GivenUp(held.version)
            self.release(held)

    def release(self, held: HeldState) -> None:
        with self._changed:
            if held in self._held:
                self._held.remove(held)
                self._changed.notify_all()
