"""`swarm-peer coordinate`: the coordinator's process, from RUN.toml to the last checkpoint in the archive."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from importlib.metadata import version

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peers.coordinator.charter import check_place, signed_manifest, way_in
from peers.coordinator.control_socket import ControlSocket
from peers.coordinator.doorman import Doorman
from peers.coordinator.driver import CoordinatorDriver
from peers.coordinator.durable import Durable
from peers.coordinator.feeder import Feeder
from peers.coordinator.gallery import Gallery, archived
from peers.coordinator.mirror import Mirror
from peers.coordinator.options import CoordinateOptions
from peers.coordinator.organiser_key import organiser_key
from peers.coordinator.pass_book import PassBook
from peers.coordinator.registrar import Registrar
from peers.coordinator.rival import Rivals, check_last_addresses, check_note
from peers.coordinator.steward import Steward
from peers.coordinator.turnstile import Turnstile
from peers.coordinator.twins import Twins
from peers.run.home import OpenHome
from peers.runtime import lasting_port
from peers.runtime.address_book import AddressBook
from peers.runtime.checkpoint_request import CheckpointRequest
from peers.runtime.core_loop import INTERRUPTED, cancel
from peers.runtime.directory import Directory
from peers.runtime.link_probe import PROBES, Prober
from peers.runtime.notebook import Notebook
from peers.runtime.organisers import addresses_by_peer, members_of
from peers.runtime.run_observer import RunObserver
from peers.runtime.signals import leaving_signals
from peers.runtime.transfer_allowance import TransferAllowance
from swarm.compute.payload import largest_payload
from swarm.events import (
    ClockDiffers,
    DuplicateIdentity,
    ProcessStarted,
    TrafficMeasured,
)
from swarm.manifest import RunManifest, SignedManifest, key_fingerprint
from swarm.net.bulk import ADDRESSES, BulkError, Transfer
from swarm.net.door import Door
from swarm.net.handshake import Role
from swarm.net.host import Host, HostError, PortTaken
from swarm.net.identity import Identity
from swarm.net.invite import MAX_ADDRESSES, Invite
from swarm.net.network import Network
from swarm.net.passes import Ticket
from swarm.net.process_card import ProcessCard
from swarm.net.run_key import RunKey
from swarm.net.uplink import Uplink
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator.commands import given
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor
from swarm.protocol.io import LeaveRequested
from swarm.protocol.messages import Join, LogChunk, LogWant, Message, Status, Twin, WithPayload
from swarm.protocol.raft.member import GroupMember
from swarm.protocol.settings import Settings
from swarm.state.error import StateError

_LOOK_EVERY_S = 0.5


async def coordinate(manifest: RunManifest, home: OpenHome, options: CoordinateOptions) -> str:
    """Run the coordinator until the run is finished or a signal comes. Returns why it ended.

    Raises CorpusError, RecordError, StateError, RivalError, HostError and similar errors before anything is started.
    """
    check_place(manifest, home)
    invite = way_in(home, options.invite)
    key = organiser_key(home)
    check_note(home)
    durable = await _opened(manifest, home, options)
    several = len(members_of(manifest)) > 1
    run_key = None if invite is None else invite.key
    run_key = run_key or RunKey.derive(key, manifest.hash)
    host = await _start_host(home, options, run_key, () if invite is None else invite.addresses, several)
    try:
        if host.clock.ahead_s:
            durable.log.append(ClockDiffers(*host.clock))
        signed = await signed_manifest(manifest, home, host, invite, key)
        settings = await durable.settings()
        card = ProcessCard.of(manifest.hash, home.incarnation, await host.addresses())
        ticket = _printed(PassBook(home, manifest.hash), key, options) if invite is None else invite.ticket
        assert ticket is not None
        return await CoordinatorProcess(durable, home, options, host, signed, invite, ticket, settings, card).run()
    finally:
        await host.close()


class CoordinatorProcess:
    """The core and the parts that serve it in this process: driver, network, address book, mirror of logs."""

    def __init__(
        self,
        durable: Durable,
        home: OpenHome,
        options: CoordinateOptions,
        host: Host,
        signed: SignedManifest,
        invite: Invite | None,
        ticket: Ticket,
        settings: Settings,
        card: ProcessCard,
    ) -> None:
        """`invite`: the invite of another coordinator of the group. `ticket`: the pass to print. `card`: of this
        process.
        """
        manifest = self._manifest = durable.manifest
        self._durable, self._options, self._host, self._signed = durable, options, host, signed
        self._ticket = ticket
        self._heartbeat_s = settings.heartbeat_s
        self.log = log = durable.log
        me = self._me = Actor(host.peer_id, COORDINATOR_INCARNATION)
        for fault in options.faults:
            fault.daemon_pid = lambda: host.daemon_pid
        self.core = durable.core(me, settings)
        self._others = others = tuple(member for member in members_of(manifest) if member != me)
        feeder = Feeder(manifest, durable.reader, durable.tokenizer)
        self.driver = CoordinatorDriver(
            self.core, manifest, feeder, durable.record, durable.archive, log, options.faults
        )
        door = Door(manifest.hash, manifest.coordinator.group or (me.peer,), signed.public_key)
        network = self._network = Network(
            host,
            me,
            door,
            Role.COORDINATOR,
            _Observer(self),
            max_payload=largest_payload(manifest),  # it relays them between peers that cannot reach each other
            reconnect_grace_s=settings.reconnect_grace_s,
            step_s=settings.longest_step_s,
            manifest=signed,
            uplink=None if options.max_rate is None else Uplink(options.max_rate),
            certificate=card.sealed(host.identity),
        )
        fellows = [other.peer for other in others]
        self._rivals = Rivals(home, me.peer, card, fellows, self._has_begun, self.driver.loop.give_up, log.append)
        network.on_rival(self._rivals.heard)
        self.mirror = Mirror(
            home.events, home.mirrors, others, network.send, log.append, lambda other: network.why_lost(other) is None
        )
        self._prober = Prober(network.bulk)
        self._allowance = TransferAllowance(log.append)
        network.admission.on_stale = Twins(self._on_twins).refused
        network.bulk.serve(self._serve)
        self._doorman = Doorman(network, self._controls, lambda: self.core.known)
        admitted = lambda: self._doorman.look(asyncio.get_running_loop().time())  # noqa: E731
        registrar = Registrar(
            manifest.hash,
            Identity.load(home.identity),
            self._controls,
            self.driver.command,
            admitted,
            turnstile=Turnstile() if options.open else None,
        )
        network.bulk.register(registrar.certificate)
        self.driver.attach(network)
        self._addresses = addresses_by_peer(() if invite is None else invite.addresses)
        given = {other: self._addresses[other.peer] for other in others if other.peer in self._addresses}
        self._book = AddressBook(manifest.hash)
        self.directory = Directory(
            host,
            network,
            manifest.hash,
            Role.COORDINATOR,
            lambda: (None, -1, 0.0),
            given,
            notebook=Notebook(home.notebook),
            coordinators=others,
            book=self._book,
        )
        self.directory.need(others)
        steward = Steward(self.driver, self.core)
        self._control = ControlSocket(home.path, steward.answer)
        gallery = Gallery(home, durable.archive, me.peer, [other.peer for other in others], steward.status)
        network.bulk.show(gallery.answer)

    async def run(self) -> str:
        """Run until the run is finished or a signal comes. Returns the reason."""
        async with AsyncExitStack() as ending:  # from the last line to the first, even if some of them fail
            ending.callback(self.log.close)
            await self._network.start()
            ending.push_async_callback(self._network.close)
            ending.push_async_callback(self._network.until_read, self._others)
            for other in self._others:
                self._network.learn(other, self._addresses.get(other.peer, ()))
                self._network.dial(other)
            ending.push_async_callback(self._control.close)
            await self._control.open()
            self._listen_to_signals()
            self._log_start()
            own = tuple(await self._host.addresses())
            self._invite_with(own)
            background = [self.driver.loop.watch(asyncio.create_task(each)) for each in self._background(own)]
            ending.push_async_callback(cancel, background)
            ending.callback(self._log_traffic)
            return await self.driver.run()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in leaving_signals():
            loop.add_signal_handler(number, lambda: self.driver.loop.post(LeaveRequested(INTERRUPTED)))

    def _log_start(self) -> None:
        release = version("swarm-peer")
        max_rate = self._options.max_rate
        self.log.append(ProcessStarted("coordinator", str(self._me), self._manifest.hash, release, max_rate))
        for command in self._durable.unlogged:
            self.log.append(given(command))

    def _log_traffic(self) -> None:
        traffic = self._network.traffic.total()
        with suppress(OSError):  # on a full disk, only this figure is lost
            self.log.append(TrafficMeasured(traffic.sent, traffic.received))

    def _background(self, own: tuple[str, ...]) -> list[Coroutine[object, object, None]]:
        work: list[Coroutine[object, object, None]] = [
            self.directory.run(),
            self._doorman.run(),
            self._rivals.run(),
            self._fail_when_daemon_dies(),
        ]
        if self._others:
            work.append(self._invite_to_all(own))
            work.append(self.mirror.run(self._heartbeat_s))
        return work

    def find(self, sender: Actor) -> None:
        """Make the address book find a member, and all others that the core knows."""
        if not self.directory.wants(sender):
            self.directory.need((*self._others, sender, *self.core.known))

    # ------------------------------------------------------------ what the network asks

    async def _serve(self, requester: Actor, raw: bytes) -> Transfer:
        if raw in PROBES:
            return await self._prober.answer(requester, raw)
        if raw.startswith(ADDRESSES):
            answer = self._book.answer(requester, raw)
            self.directory.noted(requester.peer)
            return answer
        if requester not in self.core.known and requester not in self._others:
            raise BulkError("the archive is for the members of the run: join it first")
        request = CheckpointRequest.decode(raw)
        transfer = archived(self._durable.archive, request)
        if requester in self._others:
            return transfer
        # after each rollback, a peer may need the same version again
        content = (self._rolled_back_in, request.stage)
        return self._allowance.counted(requester.peer, content, transfer)

    @property
    def _rolled_back_in(self) -> int:
        """The term of the last rollback in the record; 0: none."""
        core = self.core
        return core.standing.rolled_back_in if isinstance(core, GroupMember) else core.history.rolled_back_in

    def _controls(self) -> Controls:
        """The organiser's decisions in the record."""
        core = self.core
        return core.standing.controls if isinstance(core, GroupMember) else core.history.controls

    def _has_begun(self) -> bool:
        """Whether any other process follows this one, or in a group: whether this process knows a leader."""
        if isinstance(self.core, GroupMember):
            return self.core.leader is not None
        return self._network.connected

    def _on_twins(self, older: Actor, newest: Actor) -> None:
        """A process with the same key as another one was refused. Tell the newer of the two as well; the refusal has
        told the older one.
        """
        self.log.append(DuplicateIdentity(str(older), str(newest)))
        self._network.send(newest, Twin(older.incarnation))

    # ------------------------------------------------------------ beside the core

    async def _fail_when_daemon_dies(self) -> None:
        self.driver.loop.fail(await self._host.died)

    def _invite_with(self, addresses: tuple[str, ...]) -> None:
        fingerprint = key_fingerprint(self._signed.public_key)
        where, run_hash = addresses[:MAX_ADDRESSES], self._manifest.hash
        token = Invite(where, self._host.peer_id, run_hash, fingerprint, self._ticket, self._host.key).encode()
        self._options.on_invite(token, self._ticket.given, fingerprint)

    async def _invite_to_all(self, own: tuple[str, ...]) -> None:
        """Once the addresses of all coordinators are known, print an invite that leads to each of them."""
        addresses_of = self.directory.addresses_of
        while not all(addresses_of(other.peer) for other in self._others):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
        share = max(1, MAX_ADDRESSES // (1 + len(self._others)))
        found = [own[:share], *(addresses_of(other.peer)[:share] for other in self._others)]
        self._invite_with(tuple(address for addresses in found for address in addresses))


class _Observer(RunObserver):
    def __init__(self, process: CoordinatorProcess) -> None:
        super().__init__(process.driver.loop, process.log)
        self._process = process

    def notice(self, sender: Actor, message: Message) -> None:
        # a peer that has held a stage since before this coordinator started never sends a Join
        if isinstance(message, Join | Status):
            self._process.find(sender)

    def link_up(self, actor: Actor) -> None:
        self._process.directory.link_up(actor)
        super().link_up(actor)

    def mirror(self, sender: Actor, message: LogWant | LogChunk) -> None:
        self._process.mirror.heard(sender, message)

    def ending(self) -> bool:
        return self._process.core.phase is Phase.FINISHED

    def check_frame(self, frame: WithPayload) -> None:
        raise StateError("a frame", "the coordinator takes no frames for itself")


async def _opened(manifest: RunManifest, home: OpenHome, options: CoordinateOptions) -> Durable:
    """Open the files, and check meanwhile that no other process has this home's key."""
    me = Identity.load(home.identity).peer_id
    checking = asyncio.create_task(check_last_addresses(home, me, manifest.hash))
    try:
        durable = await Durable.opened(manifest, home, options)
        await checking
    except BaseException:
        checking.cancel()
        await asyncio.gather(checking, return_exceptions=True)
        raise
    return durable


def _printed(book: PassBook, key: Ed25519PrivateKey, options: CoordinateOptions) -> Ticket:
    return book.open_to_all(key) if options.open else book.printed(key, options.devices)


async def _start_host(
    home: OpenHome, options: CoordinateOptions, key: RunKey, entries: tuple[str, ...], several: bool
) -> Host:
    """Start the host. A coordinator of a group also starts while the others are away, because it remembers their
    addresses.
    """
    bootstrap = (*options.bootstrap, *entries)
    announce = options.announce or None
    listen = lasting_port.at_last_port(options.listen, home)
    try:
        host = await Host.create(home.identity, listen, bootstrap, announce=announce, key=key)
    except PortTaken as error:
        raise lasting_port.explained(error, options.listen, home) from None
    except HostError:
        if not (several and bootstrap and home.notebook.exists()):
            raise
        host = await Host.create(home.identity, listen, (), announce=announce, key=key)
    lasting_port.keep(host.listen, home)
    return host
