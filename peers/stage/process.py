"""`swarm-peer join`: a volunteer's process, from an invite to the end of the run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from peers.run.dry_run import dry_run
from peers.run.home import OpenHome
from peers.runtime.core_loop import RunFailed
from peers.runtime.directory import Directory
from peers.runtime.fault import Fault
from peers.runtime.link_probe import DOWN, noise, probe_link
from peers.runtime.organisers import addresses_by_peer, fetch_from_any, members_of
from peers.runtime.piece_request import Kind, PieceRequest
from peers.runtime.run_network import run_network
from peers.runtime.state_request import StateRequest
from peers.stage.driver import StageDriver
from peers.stage.entrance import enter
from peers.stage.interrupts import Interrupts
from peers.stage.keeper import Keeper
from peers.stage.machine import Machine, Seat
from peers.stage.means import MeansFile
from peers.stage.patience import DEFAULT_PATIENCE_S, CoordinatorGone, Patience
from peers.stage.retention import Retention
from peers.stage.telemetry import Reports
from peers.stage.twin import check_note, is_of_a_twin, leave_note
from peers.stage.usage import Usage, machine_traits
from swarm.compute.bases import base_bytes
from swarm.compute.engine import StageEngine
from swarm.compute.least_pace import LeastPace
from swarm.compute.meter import Meter
from swarm.compute.paced import PacedEngine
from swarm.compute.payload import largest_payload
from swarm.compute.self_test import rounds_alike
from swarm.compute.turns import Turns
from swarm.data.reader import visits
from swarm.events import (
    ClockDiffers,
    DuplicateIdentity,
    EventLog,
    Listener,
    LoopBlocked,
    MachineMeasured,
    ProcessStarted,
    RoundsOtherwise,
    TrafficMeasured,
)
from swarm.manifest import RunManifest, SignedManifest
from swarm.models.kinds import parameter_shapes
from swarm.net.bulk import BulkError, Transfer
from swarm.net.handshake import Role
from swarm.net.host import DEFAULT_LISTEN, Host
from swarm.net.invite import Invite
from swarm.net.network import Network
from swarm.net.wire import MAX_LINKS, Buffer
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor, StageIndex
from swarm.protocol.io import LeaveRequested
from swarm.protocol.messages import Amend, Assign, LinkRate, Message, Open, Twin
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import LinksMeasured, MeansChanged, PeerInput
from swarm.protocol.settings import Settings
from swarm.state.layout import shard_limit
from swarm.state.transfer import HEADER_BYTES, TransferHeader

_TRAFFIC_EVERY_S = 10.0
_BLOCKED_S = 0.5
_LOOK_EVERY_S = 0.25
_LINKS_EVERY_S = 1.0
_FASTEST_TOLD = 4


@dataclass(frozen=True)
class JoinOptions:
    """Of one peer. `machine`: peers of one process have the same."""

    machine: Machine = field(default_factory=Machine)
    on_call: bool = False
    """It was taken on because the coordinator asked."""
    device: str = "cpu"
    threads: int = 1
    slots: int = 0
    """Microbatches to work on at once; 0: as many as the pipeline's depth asks for and memory allows."""
    capacity: float | None = None
    """Microbatches a second of the machine through the whole model; None: measured."""
    means_file: Path | None = None
    """Where measurements of the machine are kept; None: in the peer's home."""
    interrupts: Interrupts = field(default_factory=Interrupts)
    """Peers of one process have the same."""
    listen: tuple[str, ...] = DEFAULT_LISTEN
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    """More DHT nodes to enter by, should none of the invite's addresses answer."""
    patience_s: float = DEFAULT_PATIENCE_S
    """How long to wait for a coordinator that cannot be reached."""
    listeners: tuple[Listener, ...] = ()
    faults: tuple[Fault, ...] = ()
    accept: Callable[[SignedManifest], bool] = field(default=lambda signed: True)
    """Asked when the invite was a bare address: is this the organiser you mean?"""
    pace: LeastPace | None = None
    """To compute no faster than; it stands for the machine's speed, which is not measured then."""
    engine: Callable[..., StageEngine] = StageEngine
    """What computes; the benchmarks put an emulated one here."""


class NotAccepted(ValueError):
    """The user did not accept the organiser's key."""


class MachineError(ValueError):
    """This machine cannot take part in the run; the message says why."""


async def join(invite: Invite, home: OpenHome, options: JoinOptions) -> str:
    """Take part until the run is finished, or a signal comes and the peer has left; returns why it ended.

    Raises HostError, DialError, ManifestError and the like when it cannot begin; CoordinatorGone, ProcessFailed later.
    """
    check_note(home)
    log = EventLog(home.events, time.time)
    log.listeners.extend((*options.listeners, *options.faults))
    entries = (*invite.addresses, *options.bootstrap)
    host = await enter(home, options.listen, entries, options.announce, options.patience_s, log.append)
    async with AsyncExitStack() as ending:
        ending.callback(log.close)
        ending.push_async_callback(host.close)
        if host.clock_correction_s:
            log.append(ClockDiffers(host.clock_correction_s))
        for fault in options.faults:
            fault.daemon_pid = lambda: host.daemon_pid
        signed = await fetch_from_any(host, invite)
        manifest = signed.verify(invite.run_hash, invite.fingerprint)
        if invite.fingerprint is None and not options.accept(signed):
            raise NotAccepted("the organiser's key was not accepted; ask them for an invite (swarm1-…)")
        me = Actor(host.peer_id, home.incarnation)
        group = members_of(manifest) or (Actor(invite.coordinator, COORDINATOR_INCARNATION),)
        asked = Actor(invite.coordinator, COORDINATOR_INCARNATION)
        coordinator = asked if asked in group else group[0]
        needs = (await asyncio.to_thread(dry_run, manifest)).stages
        elsewhere = {} if await asyncio.to_thread(_rounds_alike, options.device, log) else {"updates_on_cpu": True}
        offered: _Offered | None = None

        def divided() -> None:
            """This peer's part of the machine is another one. Called once all below is there."""
            retention.budget_bytes = seat.frames
            if keeper.engine is not None:
                keeper.engine.limit_graphs(seat.graphs)
            if offered is not None:
                driver.loop.post(MeansChanged(seat.means(*offered)))

        def changed() -> None:
            loop.call_soon_threadsafe(divided)  # a sibling's stage is made in a thread

        loop = asyncio.get_running_loop()
        seat = ending.enter_context(
            options.machine.sit(me.peer, on_call=options.on_call, tell=log.append, changed=changed)
        )
        retention = Retention(home.path / "retention", seat.frames)

        kind = options.engine if options.pace is None else partial(PacedEngine, pace=options.pace)

        def new_engine(stage: int, post: Callable[[PeerInput], None]) -> StageEngine:
            seat.holds(needs[stage].state)
            return kind(
                manifest,
                stage,
                post=post,
                device=options.device,
                threads=options.threads,
                graph_budget_bytes=seat.graphs,
                turns=Turns(options.threads) if options.device == "cpu" else None,
                **elsewhere,
            )

        shapes = [parameter_shapes(manifest.model, stage) for stage in range(manifest.model.stages)]
        largest_state = HEADER_BYTES + max(map(shard_limit, shapes))

        async def fetch(source: Actor, request: bytes) -> AsyncGenerator[bytes, None]:
            transfer = await network.fetch(source, request, largest_state)
            async with aclosing(transfer.chunks):
                async for chunk in transfer.chunks:
                    yield bytes(chunk)

        async def fetch_pieces(source: Actor, request: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
            transfer = await network.fetch(source, request, max_bytes)
            return _as_bytes(transfer.chunks)

        keeper = Keeper(
            manifest, home.checkpoints, new_engine, lambda e: driver.computed(e), fetch, log.append, fetch_pieces
        )
        core = PeerCore(
            me,
            coordinator,
            replace(Settings.of(manifest, options.slots), stage_sums=tuple(need.sums for need in needs)),
            keeper.preferred(),
            visits=visits(manifest),
            base_capacity=seat.changes // base_bytes(manifest),
            group=group,
        )
        for fault in options.faults:
            fault.flip_bit = keeper.flip_bit
            fault.starve = keeper.starve
        driver = StageDriver(core, log, retention, options.machine.more, options.faults)

        def meter() -> Meter | None:
            return None if keeper.engine is None else keeper.engine.meter

        twins: set[int] = set()
        """Incarnations of processes with our key that we were told of."""

        near: set[Actor] = set()
        """Whom the open pass brings this peer together with, and from whom it has its state."""

        def notice(sender: Actor, message: Message) -> None:
            reports.heard(sender, message)
            if sender in group and _comes_near(message, near):
                directory.need((*group, *near))
            if isinstance(message, Twin) and sender in group and message.incarnation not in twins:
                twins.add(message.incarnation)
                log.append(DuplicateIdentity(str(Actor(me.peer, message.incarnation)), str(me)))

        network = run_network(
            host,
            me,
            Role.PEER,
            manifest.hash,
            signed,
            core.settings,
            driver.loop,
            log,
            notice=notice,
            check_frame=driver.check,
            max_payload=largest_payload(manifest),
            ending=lambda: driver.loop.stopped,
            uplink=options.machine.uplink,
            coordinators=manifest.coordinator.group,
            link_up=lambda actor: reports.link_up(actor),
        )
        machine = options.machine
        traits = machine_traits(options.device, options.threads, machine.budgets.memory, machine.process)
        usage = Usage(options.device)
        reports = driver.reports = Reports(core, network, meter, usage, traits, log)

        async def serve(requester: Actor, raw: bytes) -> Transfer:
            if raw == DOWN and any(requester.peer == member.peer for member in group):
                return noise()
            return await _answer(keeper, group, requester, raw)

        network.serve(serve)
        network.favour(member.peer for member in group)
        network.go_round_by(group)
        known = addresses_by_peer(invite.addresses)
        given = {member: known[member.peer] for member in group if member.peer in known}
        for member in group:
            network.learn(member, given.get(member, ()))
        driver.attach(network, keeper)

        def described() -> tuple[StageIndex | None, int, float]:
            held = core.holding
            return held.stage, -1 if held.version is None else held.version, core.means.capacity

        directory = Directory(host, network, manifest.hash, Role.PEER, described, given)
        directory.need(group)
        await network.start()
        ending.callback(options.interrupts.register(lambda: driver.loop.post(LeaveRequested("left"))))
        log.append(ProcessStarted("peer", str(me), manifest.hash, version("swarm-peer"), options.machine.max_rate))
        async with options.machine.measuring:
            offered = await _offered(manifest, home, options, network, coordinator, log)
        core.offers(seat.means(*offered))
        patience = Patience(options.patience_s)
        tasks = (
            directory.run(),
            _fail_when_daemon_dies(host, driver),
            _measure(network, log),
            _tell_links(seat, manifest, network, driver),
            _wait_for(core, patience, network, driver, log, home),
        )
        background = [driver.loop.watch(asyncio.create_task(work)) for work in tasks]
        try:
            reason = await driver.run()
            if patience.exhausted:
                raise CoordinatorGone(reason)
            if core.short:
                raise RunFailed(core.short)
            return reason
        finally:
            _log_traffic(network, log)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await network.close()
            await keeper.close()


class _Offered(NamedTuple):
    """What a whole machine can do: microbatches a second through the whole model, bytes a second up and down."""

    capacity: float
    up: float | None
    down: float | None


async def _offered(
    manifest: RunManifest, home: OpenHome, options: JoinOptions, network: Network, coordinator: Actor, log: EventLog
) -> _Offered:
    """As its home remembers it, or measured now. Raises MachineError."""
    kept, limit = MeansFile(options.means_file or home.means), options.machine.max_rate
    link = kept.link(coordinator.peer)
    if link is None and options.capacity is None:  # who says what it can do is not kept from starting
        link = kept.keep_link(coordinator.peer, *await probe_link(network, coordinator, up=limit is None))
    up, down = (None, None) if link is None else (link.up, link.down)
    if limit is not None:
        up = float(limit)
    speed, capacity, measured = None, options.capacity, False
    if capacity is None and options.pace is not None:
        capacity = options.pace.capacity(manifest.model.stages)
    elif capacity is None:
        try:
            speed, measured = await asyncio.to_thread(
                kept.speed, manifest, options.device, options.threads, options.machine.budgets.memory
            )
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise MachineError(
                f"--device {options.device} cannot compute a microbatch of this run ({reason}): try another device, or "
                "another machine"
            ) from None
        capacity = speed.capacity
    forward_s, backward_s = (None, None) if speed is None else (speed.forward_s, speed.backward_s)
    memory = options.machine.budgets.memory
    log.append(MachineMeasured(options.device, capacity, forward_s, backward_s, memory, up, down, kept=not measured))
    return _Offered(capacity, up, down)


def _rounds_alike(device: str, log: EventLog) -> bool:
    """Whether optimizer steps can be made on `device`. Raises MachineError if they cannot on the processor either."""
    if rounds_alike(device):
        return True
    if device == "cpu" or not rounds_alike("cpu"):
        raise MachineError(
            "this machine's arithmetic comes to other bits than that of all others: its replicas would differ; it may "
            "be broken, or flush small numbers to zero"
        )
    log.append(RoundsOtherwise(device))
    return False


async def _fail_when_daemon_dies(host: Host, driver: StageDriver) -> None:
    """Without its libp2p daemon a peer reaches nobody: it ends, for a supervisor to restart it."""
    driver.loop.fail(await host.died)


async def _wait_for(
    core: PeerCore, patience: Patience, network: Network, driver: StageDriver, log: EventLog, home: OpenHome
) -> None:
    """Say when the coordinator cannot be reached, and leave when it stays away or refuses this peer.

    Of several it is the one that leads.
    """
    loop = asyncio.get_running_loop()
    while not patience.exhausted:
        await asyncio.sleep(_LOOK_EVERY_S)
        refusals = [network.why_hopeless(member) for member in core.allegiance.group]
        if all(refusals):
            patience.refused(str(refusals[0]))
            if is_of_a_twin(str(refusals[0])):
                log.append(DuplicateIdentity(str(network.me), None))
                leave_note(home, str(refusals[0]))
            break
        told = patience.look(network.why_lost(core.coordinator), loop.time())
        if told is not None:
            log.append(told)
    driver.loop.stop(patience.last_words())


async def _measure(network: Network, log: EventLog) -> None:
    """Report traffic, and when something blocked the event loop."""
    loop = asyncio.get_running_loop()
    reported = loop.time()
    while True:
        before = loop.time()
        await asyncio.sleep(_LOOK_EVERY_S)
        late = loop.time() - before - _LOOK_EVERY_S
        if late > _BLOCKED_S:
            log.append(LoopBlocked(late))
        if loop.time() - reported > _TRAFFIC_EVERY_S:
            reported = loop.time()
            _log_traffic(network, log)


async def _tell_links(seat: Seat, manifest: RunManifest, network: Network, driver: StageDriver) -> None:
    """Have the coordinator told what the links carry.

    If it chooses codecs by that, the slowest matter. Else it only wants to know if a line carries more than its owner
    said, and needs a few. With codecs whose frames have no fixed size it reckons with no lines at all.
    """
    while manifest.codec.auto or not manifest.codec.mutual:
        rates = network.link_rates
        told = rates.slowest(MAX_LINKS) if manifest.codec.auto else rates.fastest(_FASTEST_TOLD)
        driver.loop.post(LinksMeasured(seat.max_rate, tuple(LinkRate(sender, rate) for sender, rate in told)))
        await asyncio.sleep(_LINKS_EVERY_S)


def _log_traffic(network: Network, log: EventLog) -> None:
    traffic = network.traffic()
    links = {str(sender): round(rate) for sender, rate in network.link_rates.slowest(MAX_LINKS)}
    log.append(TrafficMeasured(traffic.sent, traffic.received, links))


async def _answer(keeper: Keeper, coordinators: tuple[Actor, ...], requester: Actor, raw: bytes) -> Transfer:
    """The state or checkpoint that is asked for. Raises BulkError."""
    try:
        if (pieces := PieceRequest.decode(raw)) is not None:
            answered = await keeper.answer(pieces)
            return Transfer.of(answered, urgent=pieces.kind is Kind.SUMS)  # who lacks them falls behind
        request = StateRequest.decode(raw)
        if request.checkpoint and requester.peer not in [coordinator.peer for coordinator in coordinators]:
            raise BulkError("saved checkpoints are for the coordinator's archive: ask for the live state")
        chunks = keeper.serve(request, requester)
        first = await anext(chunks)
    except (OSError, ValueError) as error:
        raise BulkError(str(error)) from None
    header = TransferHeader.decode(first, "own state")
    return Transfer(len(first) + header.size, _chain(first, chunks))


def _comes_near(message: Message, near: set[Actor]) -> bool:
    """Take down whom an order brings this peer together with; False if it names nobody."""
    match message:
        case Open(tables=tables):
            near.clear()
            near.update(actor for table in tables for actor in table.roster)
        case Amend(table=table):
            near.update(table.roster)
        case Assign(source=Actor() as source):
            near.add(source)
        case _:
            return False
    return True


async def _as_bytes(chunks: AsyncGenerator[Buffer, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            yield bytes(chunk)


async def _chain(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[Buffer, None]:
    async with aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk
