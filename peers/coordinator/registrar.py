"""Registrar: lets devices in that come with a pass, as many as it is for, and signs their certificates.

A device stands in the decision record, in a group in the common log, before its certificate is signed. So the count
survives restarts and another coordinator's lead, and any coordinator of a group can answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

from swarm.net.bulk import BulkError, Busy
from swarm.net.dht_clock import get_dht_time
from swarm.net.identity import Identity
from swarm.net.passes import Certificate, Pass
from swarm.protocol.controls import ADMIT, Controls, Device
from swarm.protocol.coordinator.io import AnswerControl, ControlRequested

LONGEST_S = 45.0
"""Until the coordinator that leads has answered; the device asks again then."""


class Registrar:
    """`controls()`: what stands in the record. `command(request)`: what becomes of a command. `clock`: Unix seconds.

    `admitted()` is called when the record has let a device in.
    """

    def __init__(
        self,
        run_hash: str,
        coordinator: Identity,
        controls: Callable[[], Controls],
        command: Callable[[ControlRequested], Awaitable[AnswerControl]],
        admitted: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = get_dht_time,
    ) -> None:
        self._run_hash = run_hash
        self._coordinator = coordinator
        self._controls = controls
        self._command = command
        self._admitted = admitted
        self._clock = clock
        self._under_way: dict[Device, asyncio.Future[AnswerControl]] = {}

    async def certificate(self, peer: str, given: Pass) -> bytes:
        """The sealed certificate of the device `peer`, once the record holds it. Raises BulkError."""
        device = Device(given.serial.hex(), given.devices, peer)
        controls = self._controls()
        if objection := controls.objection(device):
            raise BulkError(objection)
        if not controls.admission_of(device):
            answer = await self._recorded(device, given.name)
            if answer.error:
                raise (Busy if answer.unsure else BulkError)(answer.error)
            self._admitted()
        return Certificate(
            run_hash=self._run_hash,
            serial=given.serial,
            name=given.name,
            peer=peer,
            issuer=self._coordinator.peer_id,
            issued_at=int(self._clock()),
            expires_at=given.expires_at,
            observes=given.observes,
        ).sealed(self._coordinator)

    async def _recorded(self, device: Device, name: str) -> AnswerControl:
        """Who asks twice at once is written down once."""
        asked = self._under_way.get(device)
        if asked is None:
            request = ControlRequested(secrets.token_hex(16), ADMIT, device.value, f"pass {name}", "")
            asked = self._under_way[device] = asyncio.ensure_future(self._command(request))
            asked.add_done_callback(lambda _: self._under_way.pop(device, None))
        try:
            async with asyncio.timeout(LONGEST_S):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise Busy("no coordinator has answered: ask again") from None
