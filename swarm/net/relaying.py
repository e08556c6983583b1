"""Relaying: messages that travel through a coordinator, because their two ends cannot connect directly.

The origin signs such a message, and the destination checks the signature (`relay_signature`). A coordinator only
forwards it. It queues a limited number of messages of others, so that no origin can fill its memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from swarm.net import relay_signature
from swarm.net.identity import Identity
from swarm.net.links import Link
from swarm.net.send_queue import RelayedBytes, payload_bytes
from swarm.protocol import messages as m
from swarm.protocol.ids import Actor

MAX_PASSED_ON = 256
"""A relayed message is dropped if this many messages are queued on its channel to the receiver."""
MAX_PASSED_ON_BYTES = 64 << 20
"""Largest size of the payloads that are queued for one origin, whoever their receivers are."""
MAX_ALL_PASSED_ON_BYTES = 256 << 20
"""Largest size of the payloads that are queued for all origins together."""


class Relaying:
    """The relayed messages of one actor: its own, which it signs, and those that it forwards for others.

    `links`: the actor's links, which their owner changes.
    """

    def __init__(self, me: Actor, identity: Identity, run_hash: str, links: Mapping[Actor, Link]) -> None:
        self._me = me
        self._identity = identity
        self._run_hash = run_hash
        self._links = links
        self.queued = RelayedBytes(me)
        """What is queued for others, on all links."""

    def is_needless(self, relay: m.Relay) -> bool:
        """Whether the same message is already queued on the direct link to its destination."""
        straight = self._links.get(relay.destination)
        return straight is not None and straight.is_sending(relay.message)

    def has_room_for(self, actor: Actor, relay: m.Relay) -> bool:
        """Whether a message may be queued for `actor`. Our own messages always may.

        One message of each origin is queued whatever its size.
        """
        if relay.origin == self._me:
            return True
        link = self._links.get(actor)
        if link is not None and link.waiting(relay) >= MAX_PASSED_ON:
            return False
        more, of_origin = payload_bytes(relay), self.queued.of(relay.origin)
        if not of_origin:
            return True
        return of_origin + more <= MAX_PASSED_ON_BYTES and self.queued.total + more <= MAX_ALL_PASSED_ON_BYTES

    def signed(self, relay: m.Relay) -> m.Relay:
        """The message with our signature, if we are its origin. Raises WireError."""
        return relay_signature.signed(relay, self._identity, self._run_hash) if relay.origin == self._me else relay

    def check(self, relay: m.Relay) -> None:
        """Raise WireError unless the origin of a message for us has signed it."""
        relay_signature.check(relay, self._run_hash)

    def author(self, relay: m.Relay, sender: Actor) -> Actor:
        """The actor that must have sent a message to us.

        We forward only messages that come from their origin. A message for us may come from any `sender`, because its
        signature shows its origin. A part of a sum must name its origin as the contributor.
        """
        match relay:
            case m.Relay(origin=origin, message=m.ReducePart(key=key)) if key.contributor != origin:
                return key.contributor
            case m.Relay(origin=origin, destination=destination) if destination != self._me:
                return origin
            case _:
                return sender
