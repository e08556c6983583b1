"""The view of pairs of actors with rate, round trip, route, and bytes by kind."""

from __future__ import annotations

from typing import Any

from peers.fold.links import Pair
from peers.fold.state import RunState
from peers.fold.views.paging import page
from peers.fold.views.words import display_name


def links_view(state: RunState, *, offset: int = 0, limit: int = 200) -> dict[str, Any]:
    """`offset` and `limit` select pairs, ordered by stage. `actors`: all actors that occur in the selected pairs."""
    pairs = [pair for of_sender in state.links.pairs.values() for pair in of_sender.values()]
    pairs.sort(key=lambda pair: (*_order(state, pair.sender), *_order(state, pair.receiver)))
    shown = page(pairs, offset, limit)
    actors = sorted({actor for pair in shown for actor in (pair.sender, pair.receiver)}, key=lambda a: _order(state, a))
    return {
        "actors": [
            {
                "actor": actor,
                "name": display_name(actor),
                "stage": state.members.stage_of(actor),
                "gone": _has_left(state, actor),
            }
            for actor in actors
        ],
        "pairs": [_pair(pair) for pair in shown],
        "total": len(pairs),
    }


def _has_left(state: RunState, actor: str) -> bool:
    """True if an actor left before the end of the run. After the end all actors leave."""
    gone, end = state.members.gone.get(actor), state.run.finished_at
    return gone is not None and (end is None or gone.left_at < end)


def pairs_of(state: RunState, actor: str) -> list[dict[str, Any]]:
    """The pairs in which one actor is the sender or the receiver."""
    out = list(state.links.pairs.get(actor, {}).values())
    into = [of_sender[actor] for of_sender in state.links.pairs.values() if actor in of_sender]
    return [_pair(pair) for pair in page(out, 0, 100)] + [_pair(pair) for pair in page(into, 0, 100)]


def _order(state: RunState, actor: str) -> tuple[int, str]:
    stage = state.members.stage_of(actor)
    return (1 << 30 if stage is None else stage, actor)


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "from": pair.sender,
        "to": pair.receiver,
        "rate": pair.rate,
        "rtt_s": pair.rtt_s,
        "via": pair.via,
        "bytes": dict(pair.sent),
    }
