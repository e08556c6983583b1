"""The false claims of an insider about its own speed, memory and links."""

from __future__ import annotations

from dataclasses import dataclass, replace

from swarm.protocol.messages import Join, Status
from swarm.simulation.faults.lie import About
from swarm.simulation.toy.peer_body import PeerBody

CLAIMS: tuple[About, ...] = ("boasting", "modest", "wavering")
"""The kinds of misbehaviour that concern the peer's means."""


@dataclass(frozen=True, slots=True)
class _Claim:
    capacity: float
    memory: int
    seconds_per_microbatch: float
    rate: float
    """Of both directions of its link, in bytes per second."""


_MUCH = _Claim(1e12, 1 << 60, 1e-6, 1e12)
_LITTLE = _Claim(1e-9, 1, 1e6, 1.0)


def with_false_means(peer: PeerBody, report: Join | Status) -> Join | Status:
    """Return the report with the claims of the insider, if it makes any."""
    if peer.lies("boasting"):
        claim = _MUCH
    elif peer.lies("modest"):
        claim = _LITTLE
    elif peer.lies("wavering"):
        claim = peer.world.random.choice((_MUCH, _LITTLE))
    else:
        return report
    if isinstance(report, Join):
        return replace(report, capacity=claim.capacity, memory=claim.memory, uplink=claim.rate, downlink=claim.rate)
    return replace(
        report,
        capacity=claim.capacity,
        memory=claim.memory,
        seconds_per_microbatch=claim.seconds_per_microbatch,
        uplink=claim.rate,
        offered_uplink=claim.rate,
        downlink=claim.rate,
    )
