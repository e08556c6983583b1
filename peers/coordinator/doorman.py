"""Regularly tells all peers which members are banned according to the record, and drops the connections to those
members.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection

from swarm.net.network import Network
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator.commands import shut_out
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_BANNED, Banned

LOOK_S = 0.5
LAST_WORD_S = 2.0
"""Seconds between telling the peers and dropping connections, so that a banned member learns the reason first."""
AGAIN_S = 20.0
"""Seconds until all peers are told again, because a message may be lost with its connection."""


class Doorman:
    """Enforces the bans at one coordinator. `controls()`: the organiser's decisions in the record. `known()`: the
    members that this coordinator knows.
    """

    def __init__(
        self, network: Network, controls: Callable[[], Controls], known: Callable[[], Collection[Actor]]
    ) -> None:
        self._network = network
        self._controls = controls
        self._known = known
        self._told: dict[Actor, tuple[int, float]] = {}
        """For each peer: the number of the list that was last sent to it, and the time."""
        self._number = 0
        """Number of the list that decides about connections here, from `_due` on at the latest."""
        self._due = math.inf
        self._shut()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self.look(asyncio.get_running_loop().time())
            await asyncio.sleep(LOOK_S)

    def look(self, now: float) -> None:
        """Tell the peers that do not know the newest list, and drop connections when that is due. Call it often, and
        after an admission.
        """
        controls = self._controls()
        if controls.banned_at:
            self._tell(controls, now)
        if controls.banned_at != self._number:
            self._number, self._due = controls.banned_at, now + LAST_WORD_S
            before, banned = self._network.admission.door.banned, controls.banned
            self._network.shut_out({peer: why for peer, why in before.items() if peer in banned})
        if now >= self._due:
            self._shut()

    def _tell(self, controls: Controls, now: float) -> None:
        known, banned = set(self._known()), controls.banned
        self._told = {actor: told for actor, told in self._told.items() if actor in known}
        message = Banned(controls.banned_at, tuple(banned)[-MAX_BANNED:])
        for actor in known:
            told, at = self._told.get(actor, (0, -math.inf))
            if actor.peer not in banned and (told < controls.banned_at or now >= at + AGAIN_S):
                self._network.send(actor, message)
                self._told[actor] = controls.banned_at, now

    def _shut(self) -> None:
        controls = self._controls()
        self._number, self._due = controls.banned_at, math.inf
        self._network.admission.door.revoked = {
            bytes.fromhex(command.value): shut_out(command) for command in controls.revoked
        }
        self._network.shut_out({peer: shut_out(command) for peer, command in controls.banned.items()})
