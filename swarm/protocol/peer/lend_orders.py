"""What a peer keeps for the listeners of its stage."""

from __future__ import annotations

from swarm.protocol.messages import Open
from swarm.protocol.outbox import Outbox
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import Lend


class LendOrders:
    def __init__(self, held_stage: HeldStage, out: Outbox) -> None:
        self._held_stage = held_stage
        self._out = out
        self._lent_at = -3
        """The newest version at which a pass had listeners of this stage."""

    def lend(self, message: Open, applying: bool) -> None:
        """Keep the data that the listeners of this stage need and cannot get later. `applying`: True while a step is
        being applied, so that it is too late for a copy of the pass's version.
        """
        pass_id, stage = message.pass_id, self._held_stage.stage
        those = [each for each in message.listeners if each.stage == stage]
        if those:
            self._lent_at = pass_id.version
        elif pass_id.version > self._lent_at + 2:
            return
        versions = {each.version for each in those if each.loads}
        if applying:
            versions.discard(pass_id.version)
        since = min((each.version for each in those), default=pass_id.version)
        since = min(since, pass_id.version - 1)  # an actor that has just joined the roster may lack the previous step
        self._out.add(Lend(pass_id, tuple(sorted(versions)), since, sums=bool(those)))
