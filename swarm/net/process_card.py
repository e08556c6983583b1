"""The card of one process of a coordinator: a signed statement that tells two processes with the same key apart.

If a coordinator's home is copied and both copies run, both have the same peer id, and both decide steps. So a
coordinator shows its card in each Hello. The receiver remembers the newest card of each coordinator. It refuses an
older process and shows it the newer card. Only a card with the coordinator's own signature counts, so no member can
stop a coordinator by a false refusal.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from google.protobuf.message import DecodeError

from swarm.net.addresses import AddressError, components, split_peer
from swarm.net.identity import Identity, verify
from swarm.net.proto import passes_pb2 as pb

MAX_BYTES = 1024
"""Largest size of a signed card, bytes."""
MAX_ADDRESSES = 4
MAX_ADDRESS = 128
_TIME_BYTES, _NONCE_BYTES = 6, 8
_CARD = b"swarm-peer process card v1\n"


class CardError(ValueError):
    """A card is malformed, of another run, or not signed by the coordinator."""


@dataclass(frozen=True, slots=True)
class ProcessCard:
    """The content of a card. `run_hash`: hex. `number`: it grows with each start from the same home (`incarnation`).

    `nonce`: when the process was started (unix milliseconds, 6 bytes), then random bytes, so that no two processes have
    equal cards. Of two starts with the same number, from a home and its copy, the later one is newer: it may be the
    next process of the original, after the copy has ended. `addresses`: where the process listens, without its peer id.
    """

    run_hash: str
    number: int
    nonce: bytes
    addresses: tuple[str, ...] = ()

    @classmethod
    def of(cls, run_hash: str, number: int, addresses: Sequence[str]) -> Self:
        """The card of this process."""
        told = (split_peer(address)[0] for address in addresses)
        short = tuple(address for address in told if len(address) <= MAX_ADDRESS)[:MAX_ADDRESSES]
        started = max(0, round(1000 * time.time())).to_bytes(_TIME_BYTES, "big")
        return cls(run_hash, number, started + secrets.token_bytes(_NONCE_BYTES - _TIME_BYTES), short)

    def newer_than(self, other: ProcessCard) -> bool:
        """Whether this process counts and `other` must leave. Of two processes, exactly one is newer."""
        return (self.number, self.nonce) > (other.number, other.nonce)

    def sealed(self, coordinator: Identity) -> bytes:
        """The card with the coordinator's signature."""
        body = pb.ProcessCard(
            run_hash=bytes.fromhex(self.run_hash), number=self.number, nonce=self.nonce, addresses=self.addresses
        ).SerializeToString()
        return pb.Sealed(body=body, signature=coordinator.key.sign(_CARD + body)).SerializeToString()

    @classmethod
    def open(cls, raw: bytes, coordinator: str, run_hash: str) -> Self:
        """Verify that `coordinator` (a peer id) has signed a card of this run; returns its content.

        Raises CardError.
        """
        if len(raw) > MAX_BYTES:
            raise CardError(f"the card has {len(raw)} bytes; at most {MAX_BYTES} are allowed")
        try:
            sealed = pb.Sealed.FromString(raw)
            proto = pb.ProcessCard.FromString(sealed.body)
        except DecodeError as error:
            raise CardError(f"the card cannot be decoded: {error}") from None
        if not verify(coordinator, sealed.signature, _CARD + sealed.body):
            raise CardError(f"the card is not signed by {coordinator}")
        if proto.run_hash != bytes.fromhex(run_hash):
            raise CardError("the card is for another run")
        if proto.number >= 2**63 or len(proto.nonce) != _NONCE_BYTES:
            raise CardError(f"number {proto.number} or a nonce of {len(proto.nonce)} bytes is out of range")
        try:
            for address in proto.addresses:
                components(address)
        except AddressError as error:
            raise CardError(str(error)) from None
        if len(proto.addresses) > MAX_ADDRESSES:
            raise CardError(f"the card has {len(proto.addresses)} addresses; at most {MAX_ADDRESSES} are allowed")
        return cls(run_hash, proto.number, proto.nonce, tuple(proto.addresses))
