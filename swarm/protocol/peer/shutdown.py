"""How a peer leaves because its owner wants the machine back. After a first request it stays while other peers need it;
a second request ends it at once.

The peer reports that it is leaving. The coordinator reassigns the work that the peer has not begun, gives it no work in
the next step, and dismisses it when nothing depends on it any more. If that takes longer than `leave_s`, or if no
coordinator can be reached, the peer leaves by itself. Then its work in the open step must be done again, as after a
death.
"""

from __future__ import annotations

import math

from swarm.events import PeerLeaving
from swarm.protocol.ids import Actor
from swarm.protocol.io import Stop
from swarm.protocol.messages import Leave
from swarm.protocol.outbox import Outbox


class Shutdown:
    """`begun`: True while this peer is leaving. Its last messages are `Leave` and `Stop`."""

    def __init__(self, me: Actor, coordinators: tuple[Actor, ...], leave_s: float, out: Outbox) -> None:
        self.begun = False
        self.gone = False
        """True when this peer has sent its last messages. It may not send any message after them."""
        self._me = me
        self._coordinators = coordinators
        self._leave_s = leave_s
        self._out = out
        self._reason = ""
        self._until = math.inf

    def asked(self, reason: str, stage: int | None, needed: bool, now: float) -> None:
        """The owner asks for the machine. `needed`: True if other peers may depend on this peer, which holds
        `stage`.
        """
        again, self.begun = self.begun, True
        self._reason = reason
        if again:
            self._go("asked twice")
        elif not needed:
            self._go("nothing depended on this peer")
        else:
            self._until = now + self._leave_s
            self._out.emit(PeerLeaving(str(self._me), stage, reason, self._leave_s))

    def dismissed(self, why: str) -> None:
        if self.begun:
            self._go(why)

    def abandoned(self) -> None:
        """The coordinator is unreachable, so it can neither dismiss this peer nor use its results."""
        if self.begun:
            self._go("the coordinator is out of reach; this peer's part in the open step, if any, is done again")

    def tick(self, now: float) -> None:
        if now >= self._until:
            self._go(f"not dismissed within {self._leave_s:g} s; its part in the open step is done again")

    def deadlines(self) -> list[float]:
        return [self._until] if self.begun and not self.gone else []

    def _go(self, why: str) -> None:
        if self.gone:
            return
        self.gone = True
        self._until = math.inf
        for coordinator in self._coordinators:
            self._out.send(coordinator, Leave(self._me, f"{self._reason}: {why}"))
        self._out.add(Stop(f"{self._reason}: {why}"))
