"""A network as a program of a run has it: what arrives goes to its core, what goes wrong to its event log."""

from __future__ import annotations

from collections.abc import Callable, Collection

from peers.report.tally import Tally, worth_telling
from peers.runtime.core_loop import CoreLoop
from peers.runtime.outages import Outages
from swarm.events import EventLog, FrameRefused, MessagesDropped, PeerRefused, StreamBroken
from swarm.manifest import SignedManifest
from swarm.net.handshake import Channel, Role
from swarm.net.host import Host
from swarm.net.network import Network
from swarm.net.uplink import Uplink
from swarm.protocol.ids import Actor
from swarm.protocol.io import LinkLost, LinkUp, Received
from swarm.protocol.messages import LogChunk, LogWant, Message, WithPayload
from swarm.protocol.peer.io import Undelivered
from swarm.protocol.settings import Settings


def run_network(
    host: Host,
    me: Actor,
    role: Role,
    run_hash: str,
    signed: SignedManifest,
    settings: Settings,
    loop: CoreLoop,  # type: ignore[type-arg]
    log: EventLog,
    *,
    notice: Callable[[Actor, Message], None],
    check_frame: Callable[[WithPayload], None],
    max_payload: int,
    ending: Callable[[], bool],
    uplink: Uplink | None,
    coordinators: Collection[str] = (),
    link_up: Callable[[Actor], None] = lambda actor: None,
    mirror: Callable[[Actor, LogWant | LogChunk], None] = lambda sender, message: None,
) -> Network:
    """A network that is not started yet.

    `notice` sees each message before the core does. `check_frame` and `max_payload` bound what strangers may send (see
    Network); their refusals are logged ever more rarely (see Tally), and dropped messages once an outage (see Outages).
    While `ending()`, streams that break and messages that cannot be delivered are nothing to report. `uplink` and
    `coordinators`: as in Network. `link_up`: hears of that before the core does. `mirror`: takes what coordinators say
    of their logs; no core does.
    """
    refused_peers = Tally()
    outages = Outages(lambda actor, count, reason: log.append(MessagesDropped(str(actor), count, reason)))

    def on_message(sender: Actor, message: Message) -> None:
        if isinstance(message, LogWant | LogChunk):
            mirror(sender, message)
            return
        notice(sender, message)
        loop.post(Received(sender, message))

    def on_frame_refused(sender: Actor, reason: str) -> None:
        if worth_telling(count := network.refused_frames[sender]):
            log.append(FrameRefused(str(sender), reason, count))

    def on_peer_refused(peer: str, reason: str) -> None:
        if worth_telling(count := refused_peers.add(peer)):
            log.append(PeerRefused(peer, reason, count))

    def on_stream_broken(actor: Actor, channel: Channel, reason: str) -> None:
        if not ending():
            log.append(StreamBroken(str(actor), channel.value, reason))

    def on_dropped(actor: Actor, count: int, reason: str) -> None:
        if not ending():
            outages.dropped(actor, count, reason)

    def on_link_up(actor: Actor) -> None:
        outages.up(actor)
        link_up(actor)
        loop.post(LinkUp(actor))

    def on_undelivered(actor: Actor, messages: tuple[Message, ...]) -> None:
        payloads = tuple(message for message in messages if isinstance(message, WithPayload))
        if role is Role.PEER and payloads:
            loop.post(Undelivered(actor, payloads))

    network = Network(
        host,
        me,
        run_hash,
        role,
        on_message,
        lambda actor, reason: loop.post(LinkLost(actor)),
        on_link_up,
        check_frame=check_frame,
        on_frame_refused=on_frame_refused,
        on_peer_refused=on_peer_refused,
        on_stream_broken=on_stream_broken,
        on_dropped=on_dropped,
        on_undelivered=on_undelivered,
        manifest=signed,
        max_payload=max_payload,
        reconnect_grace_s=settings.reconnect_grace_s,
        uplink=uplink,
        coordinators=coordinators,
    )
    return network
