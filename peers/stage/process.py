"""`swarm-peer join`: a volunteer's process, from an invite to the end of the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from importlib.metadata import version

from peers.run.dry_run import StageNeed, needs_of
from peers.run.home import OpenHome
from peers.runtime.core_loop import RunFailed, cancel
from peers.runtime.directory import Directory
from peers.runtime.notebook import Notebook
from peers.runtime.organisers import addresses_by_peer, members_of
from peers.runtime.run_observer import RunObserver
from peers.stage.admission import Admitted, be_admitted_somewhere, check_identity, says_shut_out
from peers.stage.bans import Bans
from peers.stage.budgets import memory_for_states
from peers.stage.driver import StageDriver
from peers.stage.engine_factory import EngineFactory
from peers.stage.entrance import enter, patience_of
from peers.stage.keeper import Keeper
from peers.stage.offer import MachineOffer, measured_offer, updates_here
from peers.stage.options import JoinOptions
from peers.stage.padding import Padding
from peers.stage.patience import CoordinatorGone, HeardFinished, Patience
from peers.stage.pausing import watch
from peers.stage.retention import Retention
from peers.stage.service import Service
from peers.stage.tcp_settings import queues_much, slows_after_pauses
from peers.stage.telemetry import Reports
from peers.stage.twin import check_note, is_of_a_twin
from peers.stage.usage import Usage, machine_traits
from swarm.buffer import Buffer
from swarm.compute.bases import base_bytes
from swarm.compute.meter import Meter
from swarm.compute.payload import largest_payload
from swarm.data.reader import visits
from swarm.events import (
    ClockDiffers,
    DuplicateIdentity,
    EventLog,
    LoopBlocked,
    OffloadLimited,
    ProcessStarted,
    ProcessStopped,
    Rotation,
    SendQueuesUnlimited,
    SlowAfterPauses,
    TrafficMeasured,
)
from swarm.net.door import Door
from swarm.net.handshake import Role
from swarm.net.host import Host
from swarm.net.invite import Invite
from swarm.net.network import Network
from swarm.net.wire_bounds import MAX_LINKS
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor, StageIndex
from swarm.protocol.io import LeaveRequested
from swarm.protocol.messages import Amend, Assign, Banned, LinkRate, Means, Message, Open, Twin, WithPayload
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import LinksMeasured, MeansChanged, Undelivered
from swarm.protocol.settings import Settings
from swarm.protocol.slots import most_at_once

_TRAFFIC_EVERY_S = 10.0
_LOG_PART_BYTES, _LOG_PARTS = 16 << 20, 8
"""Maximum size of a part of a volunteer's log, and the number of older parts. Together, they limit the log to 144 MB of
disk.
"""
_BLOCKED_S = 0.5
_LOOK_EVERY_S = 0.25
_LINKS_EVERY_S = 1.0
_FASTEST_TOLD = 4
_NEIGHBOURS = 16
"""Number of members whose addresses the home keeps."""


async def join(invite: Invite, home: OpenHome, options: JoinOptions) -> str:
    """Take part until the run is finished, or until the peer has left after a signal. Return why it ended.

    Raises HostError, DialError, ManifestError and similar errors if it cannot begin; CoordinatorGone, ProcessFailed
    later.
    """
    check_note(home)
    check_identity(home)
    log = EventLog(home.events, time.time, Rotation(_LOG_PART_BYTES, _LOG_PARTS))
    log.listeners.extend((*options.listeners, *options.faults))
    entries = (*invite.addresses, *options.bootstrap)
    machine = options.machine
    async with AsyncExitStack() as ending:
        ending.callback(log.close)
        patience = patience_of(home, options.patience_s, lambda: machine.finished)
        try:
            host = await enter(home, options.listen, entries, options.announce, invite.key, patience, log.append)
            ending.push_async_callback(host.close)
            if host.clock.ahead_s:
                log.append(ClockDiffers(*host.clock))
            invite, admitted = await be_admitted_somewhere(
                host, home, invite, patience if home.returns else None, log.append
            )
        except HeardFinished as finished:
            log.append(ProcessStopped(str(finished)))
            return str(finished)
        except RunFailed as failure:
            log.append(ProcessStopped(str(failure)))
            raise
        room = machine.budgets.memory
        needs = await asyncio.to_thread(needs_of, admitted.manifest, options.mode, room)
        if options.offload:
            machine.states = states = memory_for_states(needs, machine.budgets)
            if states < room:
                log.append(OffloadLimited(states, room, machine.budgets.host or 0))
        updates_on_cpu = not await asyncio.to_thread(updates_here, options.device, log)
        peer = PeerProcess(invite, home, options, host, log, admitted, needs, updates_on_cpu, ending)
        return await peer.run()


class PeerProcess:
    """The core and the parts that serve it in this process: its seat of the machine, keeper, driver and network."""

    def __init__(
        self,
        invite: Invite,
        home: OpenHome,
        options: JoinOptions,
        host: Host,
        log: EventLog,
        admitted: Admitted,
        needs: Sequence[StageNeed],
        updates_on_cpu: bool,
        ending: AsyncExitStack,
    ) -> None:
        """`needs`: memory of each stage. `updates_on_cpu`: the device rounds differently from other devices, so the
        CPU computes the optimizer's steps.
        """
        self._home, self._options, self._host, self.log = home, options, host, log
        manifest = admitted.manifest
        self._manifest, self._ending = manifest, ending
        self._me = me = Actor(host.peer_id, home.incarnation)
        named = Actor(invite.coordinator, COORDINATOR_INCARNATION)
        self._group = group = members_of(manifest) or (named,)
        self._coordinator = named if named in group else group[0]
        self._loop = asyncio.get_running_loop()
        self._offer: MachineOffer | None = None
        self._twins: set[int] = set()
        """Known incarnations of other processes that have this peer's key."""
        self._near: set[Actor] = set()
        """The members of the open pass, and the peers from which this peer fetches its state."""

        self._seat = ending.enter_context(
            options.machine.sit(me.peer, on_call=options.on_call, tell=log.append, changed=self._seat_changed)
        )
        self._retention = Retention(home.path / "retention", self._seat.frames)
        settings = replace(Settings.of(manifest, options.slots), stage_sums=tuple(need.sums for need in needs))
        self._keeper = Keeper(
            manifest,
            home.checkpoints,
            EngineFactory(
                manifest,
                needs,
                options,
                self._seat,
                self._retention,
                updates_on_cpu=updates_on_cpu,
                at_once=most_at_once(settings),
                emit=lambda event: self._loop.call_soon_threadsafe(log.append, event),
            ),
            lambda e: self.driver.computed(e),
            self._fetch,
            log.append,
            lambda: self._seat.graphs,
        )
        self.core = PeerCore(
            me,
            self._coordinator,
            settings,
            self._keeper.preferred(),
            visits=visits(manifest),
            base_capacity=self._seat.changes // base_bytes(manifest),
            group=group,
        )
        self._arm_faults()
        self.driver = StageDriver(self.core, log, self._retention, options.machine.more, options.faults)
        known = addresses_by_peer(invite.addresses)
        self._network = self._connected(admitted, known)
        self._bans = Bans(home.bans, manifest.hash, self._network)
        machine = options.machine
        traits = machine_traits(options.device, options.threads, machine.budgets.memory, machine.process)
        self.reports = self.driver.reports = Reports(
            self.core, self._network, self._meter, Usage(options.device), traits, log
        )
        if options.pads and (congestion := slows_after_pauses()) is not None:
            self.driver.padding = Padding(
                self._network.pad,
                self._network.ping,
                self._network.round_trips.get,
                lambda: self.core.means.uplink,
                host.thresholds.of,
                self.core.leader.includes,
                lambda rtt_s: log.append(SlowAfterPauses(congestion, rtt_s)),
            )
        if host.send_buffers.refused and queues_much():
            log.append(SendQueuesUnlimited(host.send_buffers.refused))
        self.driver.attach(self._network, self._keeper, host.daemon_pid)
        given = {member: known[member.peer] for member in group if member.peer in known}
        self.directory = Directory(
            host,
            self._network,
            manifest.hash,
            Role.PEER,
            self._described,
            given,
            notebook=Notebook(home.notebook, [member.peer for member in group]),
            neighbours=Notebook(home.neighbours, most=_NEIGHBOURS),
            coordinators=group,
        )
        self.directory.need(group)

    async def run(self) -> str:
        """Run until the run is finished or the peer has left. Returns the reason. Raises CoordinatorGone, RunFailed."""
        driver, options = self.driver, self._options
        await self._network.start()
        self._ending.callback(options.interrupts.register(lambda: driver.loop.post(LeaveRequested("left"))))
        release, max_rate = version("swarm-peer"), options.machine.max_rate
        self.log.append(ProcessStarted("peer", str(self._me), self._manifest.hash, release, max_rate))
        async with options.machine.measuring:
            self._offer = await measured_offer(
                self._manifest, self._home, options, self._network, self._coordinator, self.log
            )
        self.core.offers(self._means(self._offer))
        patience = Patience(options.patience_s, lambda: options.machine.finished and not self.core.finished)
        tasks = (
            self.directory.run(),
            self._fail_when_daemon_dies(),
            self._measure(),
            self._tell_links(),
            self._wait_for(patience),
            *([] if self.driver.padding is None else [self._host.thresholds.watch()]),
            *([] if options.watched is None else [watch(options.watched, driver.loop.post)]),
        )
        async with AsyncExitStack() as ending:  # from the last line to the first, even if some of them fail
            ending.push_async_callback(self._keeper.close)
            ending.push_async_callback(self._network.close)
            ending.push_async_callback(self._network.until_read, self._group)
            background = [driver.loop.watch(asyncio.create_task(work)) for work in tasks]
            ending.push_async_callback(cancel, background)
            ending.callback(self._log_last_traffic)
            reason = await driver.run()
            if patience.exhausted:
                raise CoordinatorGone(reason)
            if self.core.short:
                raise RunFailed(self.core.short)
            if self.core.finished:
                options.machine.finish()
            return reason

    # ------------------------------------------------------------ assembling

    def _arm_faults(self) -> None:
        for fault in self._options.faults:
            fault.daemon_pid = lambda: self._host.daemon_pid
            fault.flip_bit = self._keeper.flip_bit
            fault.starve = self._keeper.starve
            fault.overflow = self._keeper.overflow

    def _connected(self, admitted: Admitted, known: dict[str, tuple[str, ...]]) -> Network:
        network = Network(
            self._host,
            self._me,
            Door(self._manifest.hash, [member.peer for member in self._group]),
            Role.PEER,
            _Observer(self),
            max_payload=largest_payload(self._manifest),
            reconnect_grace_s=self.core.settings.reconnect_grace_s,
            step_s=self.core.settings.longest_step_s,
            uplink=self._options.machine.uplink,
            certificate=admitted.certificate,
        )
        network.bulk.serve(Service(self._keeper, self._group).answer)
        network.bulk.favour(member.peer for member in self._group)
        network.bulk.go_round_by(self._group)
        for member in self._group:
            network.learn(member, known.get(member.peer, ()))
        return network

    # ------------------------------------------------------------ this peer's part of the machine

    def _seat_changed(self) -> None:
        self._loop.call_soon_threadsafe(self._divide)  # a thread makes the stage of another seat

    def _divide(self) -> None:
        """Adapt this peer to its part of the machine, which has changed."""
        self._retention.budget_bytes = self._seat.frames
        if self._keeper.engine is not None:
            self._keeper.engine.limit_graphs(self._seat.graphs)
        if self._offer is not None:
            self.driver.loop.post(MeansChanged(self._means(self._offer)))

    def _means(self, offer: MachineOffer) -> Means:
        return replace(self._seat.means(*offer), kind=self._options.mode.kind)

    def _meter(self) -> Meter | None:
        return None if self._keeper.engine is None else self._keeper.engine.meter

    # ------------------------------------------------------------ states of others

    async def _fetch(self, source: Actor, request: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        transfer = await self._network.bulk.fetch(source, request, max_bytes)
        return _as_bytes(transfer.chunks)

    # ------------------------------------------------------------ what the network tells

    def notice(self, sender: Actor, message: Message) -> None:
        """Handle a message before the core sees it."""
        self.reports.heard(sender, message)
        if self.driver.padding is not None:
            self.driver.padding.heard(sender, message)
        if sender in self._group and _comes_near(message, self._near):
            self.directory.need((*self._group, *self._near))
        if isinstance(message, Twin) and sender in self._group and message.incarnation not in self._twins:
            self._twins.add(message.incarnation)
            self.log.append(DuplicateIdentity(str(Actor(self._me.peer, message.incarnation)), str(self._me)))

    def banned(self, sender: Actor, message: Banned) -> None:
        if sender in self._group:
            self._bans.heard(message)

    def _described(self) -> tuple[StageIndex | None, int, float]:
        held = self.core.held_stage
        return held.stage, -1 if held.version is None else held.version, self.core.means.capacity

    # ------------------------------------------------------------ beside the core

    async def _fail_when_daemon_dies(self) -> None:
        """End the process if the libp2p daemon dies, because the peer can reach nobody without it. A supervisor
        restarts the process.
        """
        self.driver.loop.fail(await self._host.died)

    async def _wait_for(self, patience: Patience) -> None:
        """Report when the coordinator cannot be reached. Leave if it stays unreachable or refuses this peer.

        In a group of coordinators, only the leader must be reachable. But each coordinator knows who is shut out, so
        one refusal suffices.
        """
        while not patience.exhausted:
            await asyncio.sleep(_LOOK_EVERY_S)
            refusals = [self._network.why_hopeless(member) for member in self.core.leader.group]
            shut_out = next((why for why in refusals if why is not None and says_shut_out(why)), None)
            if shut_out is not None:
                patience.refused(shut_out)
                break
            if all(refusals):
                patience.refused(str(refusals[0]))
                if is_of_a_twin(str(refusals[0])):
                    self.log.append(DuplicateIdentity(str(self._network.me), None))
                    try:
                        self._home.note_superseded(str(refusals[0]))
                    except OSError as error:
                        patience.refused(f"{refusals[0]}; {self._home.superseded} cannot be written: {error.strerror}")
                break
            told = patience.look(self._network.why_lost(self.core.coordinator), self._loop.time())
            if patience.over:
                break
            if told is not None:
                self.log.append(told)
        self.driver.loop.stop(patience.last_words())

    async def _measure(self) -> None:
        """Report traffic, and whether something blocked the event loop."""
        reported = self._loop.time()
        while True:
            before = self._loop.time()
            await asyncio.sleep(_LOOK_EVERY_S)
            late = self._loop.time() - before - _LOOK_EVERY_S
            if late > _BLOCKED_S:
                self.log.append(LoopBlocked(late))
            if self._loop.time() - reported > _TRAFFIC_EVERY_S:
                reported = self._loop.time()
                self._log_traffic()

    async def _tell_links(self) -> None:
        """Regularly report the measured speed of links to the coordinator.

        If the coordinator chooses the codecs by speed, the slowest links are reported. Otherwise a few of the fastest
        links suffice: they show whether the uplink is faster than its owner said. With codecs whose frames have no
        fixed size, no link speeds are used.
        """
        while self._manifest.codec.auto or not self._manifest.codec.mutual:
            rates = self._network.link_rates
            told = rates.slowest(MAX_LINKS) if self._manifest.codec.auto else rates.fastest(_FASTEST_TOLD)
            self.driver.loop.post(
                LinksMeasured(self._seat.max_rate, tuple(LinkRate(sender, rate) for sender, rate in told))
            )
            await asyncio.sleep(_LINKS_EVERY_S)

    def _log_last_traffic(self) -> None:
        with suppress(OSError):  # on a full disk, only this figure is lost
            self._log_traffic()

    def _log_traffic(self) -> None:
        traffic = self._network.traffic.total()
        links = {str(sender): round(rate) for sender, rate in self._network.link_rates.slowest(MAX_LINKS)}
        self.log.append(TrafficMeasured(traffic.sent, traffic.received, links))


class _Observer(RunObserver):
    def __init__(self, process: PeerProcess) -> None:
        super().__init__(process.driver.loop, process.log)
        self._process = process

    def notice(self, sender: Actor, message: Message) -> None:
        self._process.notice(sender, message)

    def banned(self, sender: Actor, message: Banned) -> None:
        self._process.banned(sender, message)

    def ending(self) -> bool:
        return self._process.driver.loop.stopped

    def check_frame(self, frame: WithPayload) -> None:
        self._process.driver.check(frame)

    def expects(self, sender: Actor, frame: WithPayload) -> bool:
        return self._process.driver.expects(sender, frame)

    def link_up(self, actor: Actor) -> None:
        self._process.reports.link_up(actor)
        self._process.directory.link_up(actor)
        super().link_up(actor)

    def undelivered(self, actor: Actor, messages: tuple[Message, ...]) -> None:
        payloads = tuple(message for message in messages if isinstance(message, WithPayload))
        if payloads:
            self._process.driver.loop.post(Undelivered(actor, payloads))


def _comes_near(message: Message, near: set[Actor]) -> bool:
    """Add the actors that an order names to `near`. Return False if the order names no actors."""
    match message:
        case Open(tables=tables):
            near.clear()
            near.update(actor for table in tables for actor in table.roster)
        case Amend(table=table):
            near.update(table.roster)
        case Assign(donors=donors, archive=archive) if donors or archive is not None:
            near.update(donor.actor for donor in donors)
            if archive is not None:
                near.add(archive)
        case _:
            return False
    return True


async def _as_bytes(chunks: AsyncGenerator[Buffer, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            yield bytes(chunk)
