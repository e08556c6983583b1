"""The size of control messages on the wire, and what it costs the coordinator to encode and decode them.

Every stream between the coordinator and a sampled peer has its real encoder (or decoder), with its table of actors. For
other peers, a message counts as many bytes as the last encoded message of its kind.
"""

from __future__ import annotations

import time

from swarm.net.wire import Decoder, Encoder
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Message

FRAMING = 8
"""Number of bytes that announce the lengths of a message."""
USUAL = 60
"""Assumed bytes of a message whose kind has not been encoded yet, and of requests between peers: a few keys."""


class ControlWeights:
    """Bytes of a control message, for benchmarks/fleet. Every `every`-th peer is sampled."""

    def __init__(self, coordinator: Actor, every: int) -> None:
        self.seconds = 0.0
        """CPU seconds of the coordinator for the sampled messages."""
        self.sampled = 0
        self._coordinator = coordinator
        self._every = every
        self._peers: dict[Actor, bool] = {}
        self._encoders: dict[tuple[Actor, Actor], Encoder] = {}
        self._decoders: dict[Actor, Decoder] = {}
        self._last: dict[tuple[bool, type], int] = {}

    def __call__(self, sender: Actor, receiver: Actor, message: Message) -> int:
        outgoing = sender == self._coordinator
        if not outgoing and receiver != self._coordinator:
            return USUAL
        if not self._is_sampled(receiver if outgoing else sender):
            return self._last.get((outgoing, type(message)), USUAL)
        encoder = self._encoders.setdefault((sender, receiver), Encoder(sender, receiver))
        start = time.thread_time()
        header, _ = encoder.encode(message)
        if not outgoing:  # encoding is the peer's affair, decoding ours
            decoder = self._decoders.setdefault(sender, Decoder(sender, receiver))
            start = time.thread_time()
            decoder.decode(header, b"")
        self.seconds += time.thread_time() - start
        self.sampled += 1
        self._last[outgoing, type(message)] = nbytes = FRAMING + len(header)
        return nbytes

    def _is_sampled(self, peer: Actor) -> bool:
        found = self._peers.get(peer)
        if found is None:
            found = self._peers[peer] = len(self._peers) % self._every == 0
        return found
