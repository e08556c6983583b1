"""`swarm-peer coordinate`: the coordinator's process, from RUN.toml to the last checkpoint in the archive."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peers.coordinator.charter import check_place, signed_manifest, way_in
from peers.coordinator.control_socket import ControlSocket
from peers.coordinator.driver import CoordinatorDriver
from peers.coordinator.feeder import Feeder
from peers.coordinator.group_record import GroupRecord
from peers.coordinator.mirror import Mirror
from peers.coordinator.record import DecisionRecord
from peers.coordinator.steward import Steward
from peers.coordinator.twins import Twins
from peers.coordinator.untold import untold
from peers.report.metrics import Metrics
from peers.run.archived_run import check_archive, describe_archive
from peers.run.home import OpenHome
from peers.run.stage_sizes import stage_sizes
from peers.runtime import lasting_port
from peers.runtime.core_loop import INTERRUPTED
from peers.runtime.directory import Directory
from peers.runtime.fault import Fault
from peers.runtime.link_probe import PROBES, Prober
from peers.runtime.organisers import addresses_by_peer, members_of
from peers.runtime.run_network import run_network
from peers.runtime.signals import leaving_signals
from peers.runtime.state_request import StateRequest
from swarm.atomic import atomic_file, write_whole
from swarm.compute.ladders import ladders
from swarm.compute.payload import largest_payload
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.reader import CorpusReader
from swarm.data.tokenizer import Tokenizer
from swarm.events import (
    CheckpointArchived,
    CheckpointRefused,
    ClockDiffers,
    DuplicateIdentity,
    EventLog,
    Listener,
    ProcessStarted,
    TrafficMeasured,
)
from swarm.manifest import RunManifest, key_fingerprint
from swarm.models.kinds import parameter_shapes
from swarm.net.bulk import BulkError, Transfer
from swarm.net.handshake import Role
from swarm.net.host import Host, HostError, PortTaken
from swarm.net.invite import MAX_ADDRESSES, Invite
from swarm.net.uplink import Uplink
from swarm.net.wire import Buffer
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator import commands as commanding
from swarm.protocol.coordinator.core import CoordinatorCore, Phase
from swarm.protocol.ids import COORDINATOR_INCARNATION, Actor
from swarm.protocol.io import LeaveRequested
from swarm.protocol.messages import Join, Message, Status, Twin
from swarm.protocol.raft.member import GroupMember
from swarm.protocol.settings import Settings
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.initial import InitialParameters
from swarm.state.layout import shard_limit
from swarm.state.transfer import HEADER_BYTES, iter_file_chunks


@dataclass(frozen=True)
class CoordinateOptions:
    corpus: Path
    listen: tuple[str, ...]
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    invite: Invite | None = None
    """Of another coordinator of the group."""
    initial: InitialParameters | None = None
    """What version 0 is made of, if the run begins with imported parameters."""
    max_rate: int | None = None
    """Bytes a second that may be sent; None: no limit."""
    listeners: tuple[Listener, ...] = ()
    faults: tuple[Fault, ...] = ()
    on_invite: Callable[[str, tuple[str, ...], str], None] = field(default=lambda invite, addresses, fingerprint: None)


_LOOK_EVERY_S = 0.5


class KeyDamaged(ValueError):
    """The organiser's key cannot be read."""


def organiser_key(home: OpenHome) -> Ed25519PrivateKey:
    """The key that signs the run's manifest, made at first use. Whoever has it is the organiser: back it up.

    Raises KeyDamaged, OSError.
    """
    path = home.path / "organiser.key"
    if path.exists():
        try:
            return Ed25519PrivateKey.from_private_bytes(path.read_bytes())
        except ValueError:
            raise KeyDamaged(
                f"{path} is no Ed25519 key: restore it from your backup, or move it away and invite anew"
            ) from None
    key = Ed25519PrivateKey.generate()
    with atomic_file(path) as file:
        os.fchmod(file.fileno(), 0o600)
        write_whole(file, key.private_bytes_raw())
    return key


async def coordinate(manifest: RunManifest, home: OpenHome, options: CoordinateOptions) -> str:
    """Run the coordinator until the run is finished or a signal comes; returns why it ended.

    Raises CorpusError, RecordError, StateError, HostError and the like before anything has started.
    """
    run_hash = manifest.hash
    group = members_of(manifest)
    several = len(group) > 1
    check_place(manifest, home)
    invite = way_in(home, options.invite)
    reader = CorpusReader(options.corpus, manifest)
    tokenizer = Tokenizer.load(options.corpus / TOKENIZER_FILE) if manifest.data.kind == "text" else None
    key = organiser_key(home)
    check_archive(home.archive, run_hash)
    record = GroupRecord(home.decisions, run_hash) if several else DecisionRecord(home.decisions, run_hash)
    missing = await asyncio.to_thread(untold, record.commands, (home.events, *sorted(home.mirrors.glob("*.jsonl"))))
    log = EventLog(home.events, time.time)
    log.listeners.extend((*options.listeners, Metrics(home.metrics), *options.faults))
    describe_archive(home.archive, manifest, None if tokenizer is None else tokenizer.raw)
    archive = Archive(
        home.archive,
        run_hash,
        manifest.model.stages,
        max(manifest.checkpoint.keep, 2) if several else manifest.checkpoint.keep,  # the newest may not count yet
        shard_limits=[shard_limit(parameter_shapes(manifest.model, stage)) for stage in range(manifest.model.stages)],
        keep_first=bool(manifest.initial.sha256),
        on_refused=lambda path, reason: log.append(CheckpointRefused(str(path), reason)),
    )
    if record.term:  # else nothing is known of any history: an archive without its record is left alone
        archive.forget_after(0 if record.last_decision is None else record.last_decision.step + 1)
    soundness = record.soundness
    archive.proven = soundness.proven
    newest = archive.newest()
    if options.initial is not None and (newest is None or 0 not in archive.complete_versions()):
        from peers.run.first_version import archive_first

        archive_first(archive, options.initial, manifest)
        log.append(CheckpointArchived(0, list(manifest.initial.digests)))
        newest = newest or 0
    host = await _start_host(home, options, () if invite is None else invite.addresses, several)
    try:
        if host.clock_correction_s:
            log.append(ClockDiffers(host.clock_correction_s))
        signed = await signed_manifest(manifest, home, host, invite, key)
        for fault in options.faults:
            fault.daemon_pid = lambda: host.daemon_pid
        me = Actor(host.peer_id, COORDINATOR_INCARNATION)
        sizes = await asyncio.to_thread(stage_sizes, manifest)
        settings = replace(Settings.of(manifest), **sizes, audit_secret=os.urandom(16))
        core: CoordinatorCore | GroupMember
        if isinstance(record, GroupRecord):
            files = {} if newest is None else {newest: _files(archive, newest)}
            core = GroupMember(me, group, settings, record.stored(), files, ladders(manifest))
        else:
            core = CoordinatorCore(
                me,
                settings,
                record.term,
                record.last_decision,
                newest,
                record.rolled_back_in,
                ladders(manifest),
                Controls.of(record.commands),
                soundness,
                tuple(version for version in archive.complete_versions() if newest is not None and version <= newest),
            )
        others = tuple(member for member in group if member != me)
        feeder = Feeder(manifest, reader, tokenizer)
        driver = CoordinatorDriver(core, manifest, feeder, record, archive, log, options.faults)

        def notice(sender: Actor, message: Message) -> None:
            # who has a stage from before this coordinator's life never sends a Join
            if isinstance(message, Join | Status) and not directory.wants(sender):
                directory.need((*others, sender, *core.known))

        network = run_network(
            host,
            me,
            Role.COORDINATOR,
            run_hash,
            signed,
            settings,
            driver.loop,
            log,
            notice=notice,
            check_frame=_no_payloads,
            max_payload=largest_payload(manifest),  # of what it passes on between peers that cannot reach each other
            ending=lambda: core.phase is Phase.FINISHED,
            uplink=None if options.max_rate is None else Uplink(options.max_rate),
            coordinators=manifest.coordinator.group,
            mirror=lambda sender, message: mirror.heard(sender, message),
        )
        mirror = Mirror(home.events, home.mirrors, others, network.send, lambda other: network.why_lost(other) is None)

        prober = Prober(network)

        async def serve(requester: Actor, raw: bytes) -> Transfer:
            if raw in PROBES:
                return await prober.answer(requester, raw)
            if requester not in core.known and requester not in others:
                raise BulkError("the archive is for the members of the run: join it first")
            request = StateRequest.decode(raw)
            try:
                checkpoint = archive.checkpoint(request.stage, request.version)
            except StateError as error:
                raise BulkError(str(error)) from None
            return Transfer(HEADER_BYTES + checkpoint.nbytes, _async(iter_file_chunks(checkpoint, run_hash)))

        def on_twins(older: Actor, newest: Actor) -> None:
            """The older one was refused by name; the newer one is told too."""
            log.append(DuplicateIdentity(str(older), str(newest)))
            network.send(newest, Twin(older.incarnation))

        network.admission.on_stale = Twins(on_twins).refused
        network.serve(serve)
        driver.attach(network)
        known = addresses_by_peer(() if invite is None else invite.addresses)
        given = {other: known[other.peer] for other in others if other.peer in known}
        directory = Directory(
            host, network, run_hash, Role.COORDINATOR, lambda: (None, -1, 0.0), given, notebook=home.notebook
        )
        directory.need(others)
        await network.start()
        for other in others:
            network.learn(other, known.get(other.peer, ()))
            network.dial(other)
        control = ControlSocket(home.path, Steward(driver, core).answer)
        await control.open()
        loop = asyncio.get_running_loop()
        for number in leaving_signals():
            loop.add_signal_handler(number, lambda: driver.loop.post(LeaveRequested(INTERRUPTED)))
        log.append(ProcessStarted("coordinator", str(me), run_hash, version("swarm-peer"), options.max_rate))
        for command in missing:
            log.append(commanding.given(command))
        addresses = tuple(await host.addresses())
        fingerprint = key_fingerprint(signed.public_key)

        def invite_with(addresses: tuple[str, ...]) -> None:
            token = Invite(addresses[:MAX_ADDRESSES], host.peer_id, run_hash, fingerprint).encode()
            options.on_invite(token, addresses, fingerprint)

        invite_with(addresses)
        work = [directory.run(), _fail_when_daemon_dies(host, driver)]
        if others:
            work.append(_invite_to_all(addresses, others, directory, invite_with))
            work.append(mirror.run(settings.heartbeat_s))
        background = [driver.loop.watch(asyncio.create_task(each)) for each in work]
        try:
            return await driver.run()
        finally:
            await control.close()
            traffic = network.traffic()
            log.append(TrafficMeasured(traffic.sent, traffic.received))
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await network.close()
            log.close()
    finally:
        await host.close()


async def _fail_when_daemon_dies(host: Host, driver: CoordinatorDriver) -> None:
    driver.loop.fail(await host.died)


async def _start_host(home: OpenHome, options: CoordinateOptions, entries: tuple[str, ...], several: bool) -> Host:
    """A coordinator of a group starts also when the others are away: it knows from before where they were."""
    bootstrap = (*options.bootstrap, *entries)
    announce = options.announce or None
    listen = lasting_port.at_last_port(options.listen, home)
    try:
        host = await Host.create(home.identity, listen, bootstrap, announce=announce)
    except PortTaken as error:
        raise lasting_port.explained(error, options.listen, home) from None
    except HostError:
        if not (several and bootstrap and home.notebook.exists()):
            raise
        host = await Host.create(home.identity, listen, (), announce=announce)
    lasting_port.keep(host.listen, home)
    return host


async def _invite_to_all(
    own: tuple[str, ...], others: Sequence[Actor], directory: Directory, tell: Callable[[tuple[str, ...]], None]
) -> None:
    """Once it is known where all coordinators are, an invite that leads to each of them."""
    while not all(directory.addresses_of(other.peer) for other in others):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY_S)
    share = max(1, MAX_ADDRESSES // (1 + len(others)))
    found = [own[:share], *(directory.addresses_of(other.peer)[:share] for other in others)]
    tell(tuple(address for addresses in found for address in addresses))


def _files(archive: Archive, version: int) -> tuple[str, ...]:
    return tuple(archive.checkpoint(stage, version).hash for stage in range(archive.stages))


def _no_payloads(message: object) -> None:
    raise StateError("a frame", "the coordinator takes no frames for itself")


async def _async(chunks: Iterable[bytes]) -> AsyncGenerator[Buffer, None]:
    for chunk in chunks:
        yield chunk
