"""Reports of a peer for people to read: its machine once, its work after every training pass, and its troubles.

They go to the leading coordinator and into the peer's own log. The protocol does not need them. So they are made
shortly after a step has opened, when the compute thread is busy anyway, and a peer on a slow link sends only part of
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from peers.stage.timesheet import Timesheet
from peers.stage.usage import Usage
from swarm.compute.meter import Meter
from swarm.events import EventLog
from swarm.events.wording import printable, shortened
from swarm.net.network import Network
from swarm.protocol.coordinator.membership.reported_work import described, worked
from swarm.protocol.ids import Actor
from swarm.protocol.messages import (
    MAX_LINK_USES,
    MAX_TROUBLE,
    Join,
    LinkUse,
    Message,
    Open,
    Status,
    Telemetry,
    Trait,
    Work,
)
from swarm.protocol.peer.core import PeerCore

SLOW_UPLINK = 125_000.0
"""Bytes/s: over a slower uplink only the sums are reported."""
LATER_S = 0.2
"""Seconds after the opening of the next pass at which the report is made."""
PING_EVERY_S = 5.0


class Reports:
    """The reports of one peer. `meter`: the meter of its engine; None: it holds no stage."""

    def __init__(
        self,
        core: PeerCore,
        network: Network,
        meter: Callable[[], Meter | None],
        usage: Usage,
        machine: tuple[Trait, ...],
        log: EventLog,
    ) -> None:
        self._core = core
        self._network = network
        self._meter = meter
        self._usage = usage
        self._machine = machine
        self._log = log
        self._timesheet = Timesheet(core.actor)
        self._described_to: Actor | None = None
        self._described = False
        self._pinged_at: dict[Actor, float] = {}
        self._due: asyncio.TimerHandle | None = None

    def heard(self, sender: Actor, message: Message) -> None:
        """Handle a message. Call it before the core gets the message."""
        if isinstance(message, Open) and self._core.leader.includes(sender):
            meter = self._meter()
            if meter is not None and self._timesheet.hear(message, meter.clock()):
                self._report_soon()

    def sent(self, to: Actor, message: Message) -> None:
        """Handle a sent message. Once a peer has sent its status, the leader knows it, and it may describe its
        machine.
        """
        if not isinstance(message, Join | Status) or to != self._core.coordinator or to == self._described_to:
            return
        self._described_to = to
        self._network.send(to, Telemetry(self._core.actor, self._machine))
        if not self._described:
            self._described = True
            self._log.append(described(self._core.actor, self._machine))

    def link_up(self, other: Actor) -> None:
        """Describe the machine again if the other process may have restarted."""
        if other == self._described_to:
            self._described_to = None

    def applied(self, step: int) -> None:
        meter = self._meter()
        if meter is not None and self._timesheet.applied(step, meter.clock()):
            self._report_soon()

    def trouble(self, reason: str) -> None:
        """Tell the coordinator of a trouble of this peer, so that the organiser reads it."""
        told = shortened(printable(reason))[:MAX_TROUBLE]
        self._network.send(self._core.coordinator, Telemetry(self._core.actor, trouble=told))

    def close(self) -> None:
        """Report the complete sheets of passes, if the connection still allows it."""
        if self._due is not None:
            self._report()

    def _report_soon(self) -> None:
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(LATER_S, self._report)

    def _report(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        meter = self._meter()
        if meter is None:
            return
        works = self._timesheet.take(meter.read(), meter.current())
        if not works:
            return
        works[-1] = replace(works[-1], usage=self._usage.read(), links=self._links())
        for work in works:
            self._log.append(worked(self._core.actor, work, lambda use: None))
            self._network.send(self._core.coordinator, Telemetry(self._core.actor, work=self._fitting(work)))

    def _fitting(self, work: Work) -> Work:
        uplink = self._core.means.uplink
        slow = uplink is not None and uplink < SLOW_UPLINK
        return replace(work, spans=(), links=()) if slow else work

    def _links(self) -> tuple[LinkUse, ...]:
        """The links with the most traffic since the last report."""
        network, now = self._network, asyncio.get_running_loop().time()
        uses = []
        for other, sent in network.traffic.take_sent(MAX_LINK_USES).items():
            uses.append(
                LinkUse(
                    other,
                    rate=network.link_rates.of(other),
                    rtt_s=network.round_trips.get(other),
                    via=self._core.routes.get(other),
                    sent=sent,
                )
            )
            if now - self._pinged_at.get(other, -PING_EVERY_S) >= PING_EVERY_S:
                self._pinged_at[other] = now
                network.ping(other)
        self._pinged_at = {other: at for other, at in self._pinged_at.items() if now - at < PING_EVERY_S}
        return tuple(uses)
