"""Observer: callbacks of a network to its program. Each method does nothing unless a program overrides it."""

from __future__ import annotations

from collections.abc import Awaitable

from swarm.net.handshake import Channel
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor


class NetworkObserver:
    def message(self, sender: Actor, message: m.Message) -> Awaitable[None] | None:
        """A message of an admitted sender. Until the result is awaited, nothing more is read from that stream."""
        return None

    def link_lost(self, actor: Actor, reason: str) -> None:
        """The connection broke and an immediate redial failed, or the process is gone."""

    def link_up(self, actor: Actor) -> None:
        """A connection is open, for the first time or again."""

    def check_frame(self, frame: m.WithPayload) -> None:
        """Raises if a frame cannot be used; it is then counted against its sender."""

    def frame_refused(self, sender: Actor, reason: str, count: int) -> None:
        """`count`: frames of this sender that were refused so far."""

    def peer_refused(self, peer: str, reason: str) -> None:
        """The handshake refused a connection."""

    def stranger_refused(self, peer: str, reason: str) -> None:
        """The handshake refused somebody who has shown no pass, or said nothing sound."""

    def member_slowed(self, actor: Actor, wait_s: float) -> None:
        """The devices of its pass send more messages than are read: its stream is not read for so long."""

    def stream_broken(self, actor: Actor, channel: Channel, reason: str) -> None: ...

    def dropped(self, actor: Actor, count: int, reason: str) -> None:
        """Messages were given up, because their actor could not be reached."""

    def undelivered(self, actor: Actor, messages: tuple[m.Message, ...]) -> None:
        """These messages were never sent: there has never been a connection."""
