"""The callbacks of a network to its program. Each method does nothing unless the program overrides it."""

from __future__ import annotations

from collections.abc import Awaitable

from swarm.net.callers import Flood
from swarm.net.handshake import Channel
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor


class NetworkObserver:
    def message(self, sender: Actor, message: m.Message) -> Awaitable[None] | None:
        """A message of an admitted sender. If an awaitable is returned, the stream is not read until it completes."""
        return None

    def link_lost(self, actor: Actor, reason: str) -> None:
        """The connection broke and an immediate redial failed, or the actor will never be reached again."""

    def link_up(self, actor: Actor) -> None:
        """A connection was opened, for the first time or again."""

    def check_frame(self, frame: m.WithPayload) -> None:
        """Raise ValueError if a frame cannot be used; it is then counted against its sender."""

    def expects(self, sender: Actor, frame: m.WithPayload) -> bool:
        """Return False if a frame that has passed `check_frame` is of no use here. Too many of these make its sender's
        streams slower. Called once for each frame that comes directly from its maker.
        """
        return True

    def frame_refused(self, sender: Actor, reason: str, count: int) -> None:
        """A frame was refused. `count`: number of refused frames of this peer so far."""

    def peer_refused(self, peer: str, reason: str) -> None:
        """The handshake refused a connection."""

    def stranger_refused(self, peer: str, reason: str) -> None:
        """The handshake refused a peer that has shown no valid pass, or has sent no valid Hello."""

    def member_slowed(self, actor: Actor, wait_s: float) -> None:
        """The actor or its pass exceeded the rate limit: the actor's stream is not read for `wait_s` seconds."""

    def flooded(self, flood: Flood, blocked_s: float, why_not: str) -> None:
        """An address made too many connections (see FloodListener)."""

    def stream_broken(self, actor: Actor, channel: Channel, reason: str) -> None: ...

    def dropped(self, actor: Actor, count: int, reason: str) -> None:
        """`count` messages to an actor were dropped, because it could not be reached."""

    def undelivered(self, actor: Actor, messages: tuple[m.Message, ...]) -> None:
        """These messages were dropped unsent, because there has never been a connection to the actor."""
