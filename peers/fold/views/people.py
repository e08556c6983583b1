"""The view of the contributions of each peer id over all its starts, largest first."""

from __future__ import annotations

from typing import Any

from peers.fold.facts import RunFacts
from peers.fold.people import Person
from peers.fold.state import RunState
from peers.fold.views.paging import page
from peers.fold.views.words import NAME_LETTERS

FORMULA = (
    "tokens × share of the layers: of every decided step, the tokens of the microbatches that it added to a stage, "
    "times that stage's layers ÷ all layers. Steps that were rolled back count too, because the work was done. Hours: "
    "the time from a peer's first message to the coordinator until it was gone. Bytes sent: as the peer reports. Bytes "
    "received: as the senders report."
)


def people_view(state: RunState, facts: RunFacts | None = None, *, offset: int = 0, limit: int = 200) -> dict[str, Any]:
    given = {peer: tokens_layers(state, person.tokens, facts) for peer, person in state.people.by_peer.items()}
    total = sum(given.values())
    since: dict[str, float] = {}
    for member in state.members.here.values():
        since[member.peer] = since.get(member.peer, 0.0) + max(0.0, state.run.last_at - member.seen_at)
    hours = {peer: (person.seconds + since.get(peer, 0.0)) / 3600 for peer, person in state.people.by_peer.items()}
    ordered = sorted(state.people.by_peer.values(), key=lambda each: (-given[each.peer], -hours[each.peer], each.peer))
    return {
        "total": len(ordered),
        "people": [
            _person(state, each, given[each.peer], total, hours[each.peer], each.peer in since)
            for each in page(ordered, offset, limit)
        ],
        "formula": FORMULA,
    }


def tokens_layers(state: RunState, tokens: dict[str, float], facts: RunFacts | None) -> float:
    """Tokens times the fraction of the layers that computed them. Without a manifest, all stages weigh the same."""
    if facts is not None:
        return sum(amount * facts.share_of_layers(int(stage)) for stage, amount in tokens.items())
    stages = max(1, len(state.pipeline.replicas) or len(state.pipeline.stages))
    return sum(tokens.values()) / stages


def _person(state: RunState, person: Person, given: float, total: float, hours: float, present: bool) -> dict[str, Any]:
    known = state.people.assigned
    return {
        "peer": person.peer,
        "name": person.peer[-NAME_LETTERS:],
        "tokens_layers": given if known else None,
        "share": given / total if known and total > 0 else None,
        "hours": hours,
        "bytes_sent": sum(person.sent.values()),
        "bytes_received": person.received,
        "devices": list(person.devices),
        "faults": person.faults,
        "present": present,
    }
