"""Makes the engine of a peer's stage, as the volunteer's options and the memory of its seat allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from peers.run.dry_run import StageNeed
from peers.stage.heap import return_freed_memory
from peers.stage.machine import Seat
from peers.stage.options import JoinOptions
from peers.stage.retention import Retention
from swarm.compute.engine import StageEngine
from swarm.compute.memory_table import StageMemory
from swarm.compute.paced import PacedEngine
from swarm.compute.stage_options import StageOptions
from swarm.compute.turns import Turns
from swarm.events import Event, FreedMemoryReturned, LayersRecomputed
from swarm.manifest import RunManifest
from swarm.protocol.peer.io import PeerInput


class EngineFactory:
    """Called with a stage, in any thread. `seat` learns how much memory this stage takes.

    `needs`: memory of each stage. `updates_on_cpu`: the CPU computes the optimizer's steps. `at_once`: the most
    microbatches of which this peer keeps graphs. `emit`: called in any thread.
    """

    def __init__(
        self,
        manifest: RunManifest,
        needs: Sequence[StageNeed],
        options: JoinOptions,
        seat: Seat,
        retention: Retention,
        *,
        updates_on_cpu: bool,
        at_once: int,
        emit: Callable[[Event], object],
    ) -> None:
        self._manifest = manifest
        self._needs = needs
        self._options = options
        self._seat = seat
        self._retention = retention
        self._updates_on_cpu = updates_on_cpu
        self._at_once = at_once
        self._emit = emit

    def __call__(self, stage: int, post: Callable[[PeerInput], None]) -> StageEngine:
        options = self._options
        need = self._needs[stage]
        memory = need.within(self._seat.memory_for_stage)
        self._seat.holds(memory.device, memory.host)
        self._retention.budget_bytes = self._seat.frames
        kind = options.engine if options.pace is None else partial(PacedEngine, pace=options.pace)
        recomputes_layers = memory != need.memory
        if recomputes_layers:
            self._emit(LayersRecomputed(stage, need.memory.device, self._seat.memory_for_stage, options.compiled))
        if options.device == "cpu":
            self._fit_heap(stage, memory)
        return kind(
            self._manifest,
            stage,
            StageOptions(
                options.device,
                self._seat.graphs,
                options.precision,
                compiled=options.compiled and not recomputes_layers,
                splits=options.splits,
                recomputes_layers=recomputes_layers,
                updates_on_cpu=self._updates_on_cpu,
                offload=options.offload,
            ),
            post=post,
            threads=options.threads,
            turns=Turns(options.threads) if options.device == "cpu" else None,
        )

    def _fit_heap(self, stage: int, memory: StageMemory) -> None:
        """Return freed memory to the kernel if there is no room for the gaps between kept blocks.

        By default, only half of the free memory is planned with, so the gaps fit into the other half.
        """
        graphs = min(self._seat.graphs, self._at_once * memory.graph)
        room = self._seat.memory_for_stage
        if self._options.machine.budgets.strict and memory.with_gaps(graphs) > room:
            return_freed_memory()
            self._emit(FreedMemoryReturned(stage, memory.device + graphs, room))
