"""How far the open training pass is, as the event log tells it: once a heartbeat, if something has changed."""

from __future__ import annotations

from swarm.events import PassProgress
from swarm.protocol.ledger import Ledger
from swarm.protocol.outbox import Outbox

MOST_PEERS = 256
"""In a larger swarm the stages alone are told."""


class ProgressTold:
    def __init__(self, out: Outbox) -> None:
        self._out = out
        self._last: PassProgress | None = None

    def tell(self, ledger: Ledger, peers: int) -> None:
        """`peers`: in the swarm."""
        stages: list[list[int]] = []
        members: list[list[list[int]]] = []
        for table in ledger.tables:
            those = [[*ledger.progress_of(actor), len(ledger.assigned_to(actor))] for actor in table.roster]
            stages.append([sum(column) for column in zip(*those, strict=True)] or [0, 0, 0])
            members.append(those)
        told = PassProgress(str(ledger.pass_id), stages, members if peers <= MOST_PEERS else [])
        if told != self._last:
            self._last = told
            self._out.emit(told)
