"""Signatures of relayed messages: the peer that forwards a message cannot change it, or invent one.

A direct message comes from the actor that libp2p has authenticated. A relayed one comes from the actor that forwards
it, which names the origin. So the origin signs run, both ends, message and payload with its libp2p key, and the
destination checks the signature. Without it, any member could speak in the name of each peer of a step.
"""

from __future__ import annotations

from dataclasses import replace

from blake3 import blake3

from swarm.net.identity import Identity, verify
from swarm.net.wire import Encoder
from swarm.net.wire_bounds import WireError
from swarm.protocol.messages import Relay

_CONTEXT = b"swarm-peer relay v1\n"


def signed(relay: Relay, identity: Identity, run_hash: str) -> Relay:
    """The message with the signature of its origin, to which `identity` belongs. Raises WireError."""
    return replace(relay, signature=identity.key.sign(_bound(relay, run_hash)))


def check(relay: Relay, run_hash: str) -> None:
    """Raise WireError unless the origin of a message has signed it."""
    if not verify(relay.origin.peer, relay.signature, _bound(relay, run_hash)):
        raise WireError(f"a relayed {type(relay.message).__name__} is not signed by {relay.origin}, which it names")


def _bound(relay: Relay, run_hash: str) -> bytes:
    header, payload = Encoder(relay.origin, relay.destination).encode(relay.message)
    ends = f"{run_hash} {relay.origin} {relay.destination} {len(header)}\n".encode()
    return _CONTEXT + blake3(ends + header).update(payload).digest()
