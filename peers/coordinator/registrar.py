"""Admits devices that show a pass, up to the pass's number of devices, and signs their certificates.

A device is written into the decision record (in a group: into the common log) before its certificate is signed. So the
count survives restarts and changes of the leader, and any coordinator of a group can answer.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable

from peers.coordinator.turnstile import Turnstile
from swarm.net.bulk import BulkError, Busy
from swarm.net.dht_clock import get_dht_time
from swarm.net.identity import Identity
from swarm.net.passes import Certificate, Pass
from swarm.protocol.admissions import Device
from swarm.protocol.controls import ADMIT, Controls
from swarm.protocol.coordinator.io import AnswerControl, ControlRequested

LONGEST_S = 45.0
"""Seconds within which the leading coordinator must answer; after that, the device asks again."""
MOST_ADMITTED = 100_000
"""Maximum number of devices in the record of an open run, because the whole record is read at every start."""


class Registrar:
    """Admits devices at one coordinator. `controls()`: the organiser's decisions in the record. `command(request)`:
    executes a command. `clock`: Unix seconds.

    `admitted()` is called when a device has been recorded. `turnstile`: the limits of an open run; None: the run is not
    open.
    """

    def __init__(
        self,
        run_hash: str,
        coordinator: Identity,
        controls: Callable[[], Controls],
        command: Callable[[ControlRequested], Awaitable[AnswerControl]],
        admitted: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = get_dht_time,
        turnstile: Turnstile | None = None,
    ) -> None:
        self._run_hash = run_hash
        self._coordinator = coordinator
        self._controls = controls
        self._command = command
        self._admitted = admitted
        self._clock = clock
        self._turnstile = turnstile
        self._under_way: dict[Device, asyncio.Future[AnswerControl]] = {}

    async def certificate(self, peer: str, shown: Pass, block: str) -> bytes:
        """The sealed certificate of the device `peer`, once the record contains the device. Raises BulkError.

        `block`: the block of addresses from which it comes (`block_of`).
        """
        given = shown.of_device(peer)
        device = Device(given.serial.hex(), given.devices, peer, given.observes)
        controls = self._controls()
        if objection := controls.objection(device):
            raise BulkError(objection)
        if controls.needs_admission(device):
            if shown.open and device not in self._under_way:
                self._check_turn(block)
            answer = await self._recorded(device, given.name, block if shown.open else None)
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

    def _check_turn(self, block: str) -> None:
        """Check that an open run may admit a new device now. Raises BulkError if not."""
        if self._turnstile is None:
            raise BulkError("this run is not open to everybody any more: ask the organiser for an invite")
        if self._controls().admitted.devices >= MOST_ADMITTED:
            raise BulkError("this run has let in as many devices as it can: ask the organiser for an invite")
        if wait := self._turnstile.wait_s(block, time.monotonic()):
            when = f"{math.ceil(wait / 60)} minutes" if wait > 90 else f"{math.ceil(wait)} seconds"
            raise BulkError(f"this open run limits how many new devices join at a time: try again in {when}")

    async def _recorded(self, device: Device, name: str, counted: str | None) -> AnswerControl:
        """Record a device. Concurrent requests of one device are recorded once.

        `counted`: the block in which it has been counted. None: it was not counted.
        """
        asked = self._under_way.get(device)
        if asked is None:
            request = ControlRequested(secrets.token_hex(16), ADMIT, device.value, f"pass {name}", "")
            asked = self._under_way[device] = asyncio.ensure_future(self._command(request))
            asked.add_done_callback(lambda done: self._answered(device, done, counted))
        try:
            async with asyncio.timeout(LONGEST_S):
                return await asyncio.shield(asked)
        except TimeoutError:
            raise Busy("no coordinator has answered: ask again") from None

    def _answered(self, device: Device, asked: asyncio.Future[AnswerControl], counted: str | None) -> None:
        self._under_way.pop(device, None)
        failed = asked.cancelled() or asked.exception() is not None or asked.result().unsure
        if failed and counted is not None and self._turnstile is not None:
            self._turnstile.give_back(counted)
