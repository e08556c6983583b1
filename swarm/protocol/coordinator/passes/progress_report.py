"""The progress of the open training pass, for the event log: once a heartbeat, if something has changed.

In a large swarm only stages are reported, and rarely: a scan of 10,000 peers takes 40 ms.
"""

from __future__ import annotations

from swarm.events import PassProgress
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.outbox import Outbox

MOST_PEERS = 256
"""A swarm with more peers is large."""
SELDOM = 4
"""A large swarm is reported once in this many heartbeats."""


class ProgressReport:
    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._last: PassProgress | None = None
        self._beats = 0

    def tell(self, pass_state: PassState, peers: int) -> None:
        """Report the progress if it is due. Call this once per heartbeat. `peers`: number of peers in the swarm."""
        self._beats += 1
        if peers > MOST_PEERS and self._beats % SELDOM:
            return
        stages: list[list[int]] = []
        members: list[list[list[int]]] = []
        for table in pass_state.tables:
            those = [[*pass_state.progress_of(actor), len(pass_state.assigned_to(actor))] for actor in table.roster]
            stages.append([sum(column) for column in zip(*those, strict=True)] or [0, 0, 0])
            members.append(those)
        told = PassProgress(str(pass_state.pass_id), stages, members if peers <= MOST_PEERS else [])
        if told != self._last:
            self._last = told
            self._out.emit(told)
