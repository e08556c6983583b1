"""The false messages of an insider: instead of its core's message, it sends none, or a false one within the valid
bounds.
"""

from __future__ import annotations

import math
from dataclasses import replace

from swarm.protocol.ids import Actor
from swarm.protocol.messages import (
    MAX_AWAITED,
    Join,
    Message,
    Prepared,
    Proof,
    ReducedPart,
    ReducePart,
    Relay,
    Status,
    WithPayload,
)
from swarm.protocol.stage_needs import ComputeKind
from swarm.simulation.faults.false_means import with_false_means
from swarm.simulation.toy.peer_body import PeerBody
from swarm.simulation.toy.toy_model import mix

_MANY = 10**6
LATE_S = (0.3, 1.0, 3.0)
"""For how long a peer keeps back its data for one sibling, in seconds."""
LAGS = (0.05, 0.16, 0.33)
"""By how much a peer is late with all that it sends of a kind, as fractions of the step budget. A reduction that stands
still for a third of it is begun anew.
"""
DAWDLES = 0.9
"""The same for a peer that is alone in its stage: no limit for these is shorter than a step budget."""
KINDS = tuple(kind for kind in ComputeKind if not kind.name.startswith("OFFLOAD"))
"""The kinds of peers in simulated runs. Coordinators only look a kind up, so these stand for all of them."""


def said(peer: PeerBody, to: Actor, message: Message) -> Message | None:
    """Return the message that is sent to `to`. None: no message is sent."""
    whom, inner = _unwrapped(to, message)
    if isinstance(inner, ReducePart) and peer.lies("claiming"):
        everything = (1 << peer.world.settings.microbatches) - 1
        claimed = replace(inner, microbatches=everything)
        return replace(message, message=claimed) if isinstance(message, Relay) else claimed
    if isinstance(inner, ReducePart | ReducedPart):
        return None if whom == _victim(peer) and peer.lies("withholding") else message
    if isinstance(message, Prepared):
        return _prepared(peer, message)
    if isinstance(message, Status | Join):
        message = with_false_means(peer, message)
    if isinstance(message, Status):
        return _status(peer, message)
    if isinstance(message, Proof) and message.checksum is not None and (peer.lies("proof") or peer.lies("checksum")):
        return replace(message, checksum=message.checksum ^ 1)
    return message


def held_back_s(peer: PeerBody, to: Actor, message: Message) -> float:
    """Return for how many seconds an insider keeps a message back. 0: it sends the message at once."""
    whom, inner = _unwrapped(to, message)
    if _lags(peer) and isinstance(inner, (ReducePart | ReducedPart, WithPayload, Prepared)[_lagging_kind(peer)]):
        return _lag_s(peer) if peer.lies("lagging") or peer.lies("dawdling") else 0.0
    if not isinstance(inner, WithPayload) or whom != _victim(peer) or not peer.lies("delaying"):
        return 0.0
    return LATE_S[mix(8, *peer.actor.peer.encode()) % len(LATE_S)]


def _lags(peer: PeerBody) -> bool:
    return peer.lie is not None and peer.lie.about in ("lagging", "dawdling")


def _lagging_kind(peer: PeerBody) -> int:
    """What the peer sends late: its part in reductions, all its data, or its reports about sums."""
    return mix(10, *peer.actor.peer.encode()) % 3 if peer.lie is not None and peer.lie.about == "lagging" else 2


def _lag_s(peer: PeerBody) -> float:
    if peer.lie is not None and peer.lie.about == "dawdling":
        return DAWDLES * peer.world.settings.step_budget_s
    return LAGS[mix(11, *peer.actor.peer.encode()) % len(LAGS)] * peer.world.settings.step_budget_s


def _unwrapped(to: Actor, message: Message) -> tuple[Actor, Message]:
    """The destination and the message itself, if `message`, which is sent to `to`, is relayed."""
    return (message.destination, message.message) if isinstance(message, Relay) else (to, message)


def _victim(peer: PeerBody) -> Actor | None:
    """The first honest sibling of the pass that the insider knows."""
    return next(iter(_siblings(peer)), None)


def _siblings(peer: PeerBody) -> tuple[Actor, ...]:
    """The honest siblings of the pass that the insider knows."""
    pass_run = peer.core.pass_run
    roster: tuple[Actor, ...] = pass_run.microbatches.table.roster if pass_run is not None else ()
    others = ((actor, peer.world.by_actor.get(actor)) for actor in roster)
    return tuple(actor for actor, other in others if isinstance(other, PeerBody) and other.lie is None)


def _prepared(peer: PeerBody, prepared: Prepared) -> Prepared:
    if peer.lies("checksum"):
        return replace(prepared, state=prepared.state ^ 1)
    if peer.lies("digest"):
        return replace(prepared, digest="lie")
    return _denied(peer, prepared) if peer.lies("denying") else prepared


def _denied(peer: PeerBody, prepared: Prepared) -> Prepared:
    """The report with a false word about the sums. A peer always says the same."""
    match mix(9, *peer.actor.peer.encode()) % 5:
        case 0:
            return replace(prepared, squared_norm=prepared.squared_norm + 1.0)
        case 1:
            return replace(prepared, loss_sum=prepared.loss_sum + 1.0)
        case 2:
            return replace(prepared, seal=prepared.seal + 1)
        case 3:
            return replace(prepared, finite=not prepared.finite, sketch=b"", seal=0)
        case _:
            return replace(prepared, finite=not prepared.finite)


def _status(peer: PeerBody, status: Status) -> Status:
    if status.prepared is not None and _lags(peer) and _lagging_kind(peer) == 2:
        attempt, since = peer.prepared
        if attempt != status.prepared.attempt:
            peer.prepared = status.prepared.attempt, peer.world.now
            return replace(status, prepared=None)
        return replace(status, prepared=None) if peer.world.now < since + _lag_s(peer) else status
    if status.prepared is not None:
        status = replace(status, prepared=_prepared(peer, status.prepared))
    if status.checkpoint_digest and peer.lies("copy"):
        return replace(status, checkpoint_digest="lie")
    if status.version and peer.lies("losing"):
        peer.disturbed_at = peer.world.now
        return replace(status, version=status.version - 1)
    if status.checkpoint_digest and peer.lies("unsaved"):
        return replace(status, checkpoint_version=-1, checkpoint_digest="")
    if peer.lies("accusing"):
        return replace(status, reduced=0, awaited=_siblings(peer)[:MAX_AWAITED])
    return _extreme(peer, status) if peer.lies("status") else status


def _extreme(peer: PeerBody, status: Status) -> Status:
    """The status in which one field has an extreme or false value."""
    rng = peer.world.random
    everything = (1 << peer.world.settings.microbatches) - 1
    others = tuple(actor for actor, p in peer.world.by_actor.items() if p.alive and actor != peer.actor)
    match rng.randrange(12):
        case 0:
            return replace(status, capacity=rng.choice((math.inf, math.nan, 1e300, 1e-300, 0.0, -1.0)))
        case 1:
            return replace(status, seconds_per_microbatch=rng.choice((1e-6, 1e6, math.nan, math.inf, -1.0)))
        case 2:
            return replace(status, uplink=rng.choice((1.0, 1e12)), offered_uplink=rng.choice((1.0, 1e12, math.nan)))
        case 3:
            memory, kind = rng.choice((0, 1 << 60)), rng.choice(KINDS)
            return replace(status, downlink=rng.choice((1.0, 1e12, math.inf)), memory=memory, kind=kind)
        case 4:
            return replace(status, done=rng.choice((0, everything)), forwarded=rng.choice((0, everything)))
        case 5:
            return replace(status, queued=rng.choice((0, _MANY)))
        case 6:
            return replace(status, reduced=rng.choice((0, _MANY)), awaited=rng.choice((others[:8], (peer.actor,), ())))
        case 7:
            return replace(status, term=rng.choice((0, status.term + _MANY)))
        case 8:
            return replace(status, checkpoint_version=len(peer.world.watch.decisions), checkpoint_digest="lie")
        case 9:
            return replace(status, version=rng.choice((None, 0, len(peer.world.watch.decisions))))
        case 10:
            return replace(status, fenced=True)
        case _:
            return replace(
                status, fetched=rng.randrange(_MANY), loading=rng.choice((None, 0)), lacks=rng.choice((0, None))
            )
