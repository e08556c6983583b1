"""The live state of an engine: the stage with which it computes, in one version or none.

The compute thread owns the stage. Any thread may ask for a state to be created, loaded or copied; the compute thread
does it before all queued microbatches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from swarm.compute.compute_thread import ComputeThread
from swarm.compute.held import HeldState, Holds
from swarm.compute.optimizer import StageState
from swarm.compute.stage import Stage

_Value = TypeVar("_Value")


class LiveState:
    """The state of the stage with this index. There is none until `initialise` or `load`.

    `build(initialised)`: builds the stage, ready to compute. It is called in the compute thread. False: its parameters
    are undefined until a state is loaded.
    """

    def __init__(self, index: int, thread: ComputeThread, build: Callable[[bool], Stage]) -> None:
        self.stage: Stage | None = None
        """The stage; None without a state. Only the compute thread changes it."""
        self._index = index
        self._thread = thread
        self._build = build
        self._coming: Stage | None = None
        """The tensors for a state that is being received."""
        self._holds = Holds()
        self._limiting = threading.Lock()
        """Held while a stage is taken up or limited, so that no stage keeps an old budget."""
        self._graph_bytes: int | None = None
        """The memory budget of the autograd graphs, in bytes; None: as the stage was built."""

    # ------------------------------------------------ any thread

    @property
    def version(self) -> int | None:
        """Number of steps applied; None without a state."""
        return None if self.stage is None else self.stage.optimizer.version

    def initialise(self) -> Future[None]:
        """Set version 0: the initial parameters, which follow from (seed, tensor name)."""
        return self._thread.call(self._initialise)

    def prepare(self) -> None:
        """Allocate the stage's tensors while a state is being received, because to allocate them takes longer than to
        fill them.

        If it fails, `load` fails too.
        """
        self._thread.call(self._prepare)

    def load(self, state: StageState) -> Future[None]:
        """Continue from `state`. The future raises StateError, with nothing changed, if the state does not fit."""
        return self._thread.call(lambda: self._load(state))

    def snapshot(self) -> Future[StageState]:
        """Return a copy, in memory, of the full state of one version."""
        return self._thread.call(lambda: self.held().optimizer.state())

    def copied(self, copy: Callable[[HeldState], _Value]) -> Future[_Value]:
        """Call `copy` with the full state of one version, in a separate thread, and return its result. It serves
        checkpoints and the loads of peers.

        The state is not copied in memory. The next step is not applied until `copy` has read the whole state. The
        future raises the errors of `copy`, and OSError if no thread can be started.
        """
        copied: Future[_Value] = Future()

        def begin() -> None:
            held = self.held().optimizer.hold(self._holds)
            if not copied.set_running_or_notify_cancel():
                held.release()
                return
            try:
                threading.Thread(target=_copy, args=(held, copy, copied), name="copy", daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # only this copy fails
                held.release()
                reason = f"no thread can be started to copy version {held.version}"
                copied.set_exception(OSError(f"{reason} ({error}): raise the limit of threads with `ulimit -u`"))

        def failed(begun: Future[None]) -> None:
            if begun.cancelled():
                copied.cancel()
            elif (error := begun.exception()) is not None and copied.set_running_or_notify_cancel():
                copied.set_exception(error)

        self._thread.call(begin).add_done_callback(failed)
        return copied

    def limit_graphs(self, budget_bytes: int) -> None:
        """Change the memory budget of the autograd graphs. A stage that is still being built gets it too."""
        with self._limiting:
            self._graph_bytes = budget_bytes
            for stage in (self.stage, self._coming):
                if stage is not None:
                    stage.limit_graphs(budget_bytes)

    def give_up_copies(self) -> None:
        """Abandon all incomplete copies."""
        self._holds.give_up()

    def free(self) -> None:
        """Free the tensors, once the compute thread has ended."""
        self.stage = self._coming = None

    # ------------------------------------------------ the compute thread

    def held(self) -> Stage:
        """The stage. Raises RuntimeError without a state."""
        if self.stage is None:
            raise RuntimeError(f"stage {self._index} holds no state yet")
        return self.stage

    def settle(self) -> None:
        """Wait until no copy reads the state, so that it may be changed."""
        self._holds.settle()

    def _initialise(self) -> None:
        self.settle()
        self.stage = self._coming = None  # there may be no room for two copies
        stage = self._build(True)
        with self._limiting:
            self.stage = self._limited(stage)

    def _prepare(self) -> Stage:
        """Return the tensors to load a state into: those of the held state if there is one, otherwise new ones."""
        if self.stage is not None:
            return self.stage
        if self._coming is None:
            stage = self._build(False)
            with self._limiting:
                self._coming = self._limited(stage)
        return self._coming

    def _limited(self, stage: Stage) -> Stage:
        """The budget of the graphs may have changed while the stage was being built."""
        if self._graph_bytes is not None:
            stage.limit_graphs(self._graph_bytes)
        return stage

    def _load(self, state: StageState) -> None:
        stage = self._prepare()
        self.settle()
        try:
            stage.optimizer.load(state)
        finally:
            if stage.optimizer.torn:
                self.stage = self._coming = None
        stage.loaded()
        stage.begin()
        stage.bases.clear()
        stage.reduction.forget()
        with self._limiting:
            self.stage, self._coming = stage, None


def _copy(held: HeldState, copy: Callable[[HeldState], _Value], copied: Future[_Value]) -> None:
    """Call `copy` in its own thread."""
    torch.set_num_threads(1)  # leave the other processor cores to the computation
    try:
        copied.set_result(copy(held))
    except Exception as error:
        copied.set_exception(error)
    finally:
        held.release()
