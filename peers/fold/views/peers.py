"""The view of all present and former peers, and the details of one peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peers.fold.facts import RunFacts
from peers.fold.members import Gone, Member
from peers.fold.state import RunState
from peers.fold.views.faults import fault_row
from peers.fold.views.links import pairs_of
from peers.fold.views.paging import page
from peers.fold.views.people import tokens_layers
from peers.fold.views.what_if import what_if
from peers.fold.views.words import SYMBOLS, display_name, why_of, word_of, words_of

_SORTS: dict[str, tuple[Callable[[dict[str, Any]], Any], bool]] = {
    "name": (lambda row: row["name"], False),
    "stage": (lambda row: (row["left_at"] is not None, row["stage"] is None, row["stage"] or 0, row["name"]), False),
    "word": (lambda row: (row["word"], row["name"]), False),
    "joined_at": (lambda row: row["joined_at"] or 0.0, True),
    "last_at": (lambda row: row["last_at"] or 0.0, True),
    "share": (lambda row: row["share"] or 0.0, True),
    "tokens": (lambda row: row["tokens"] or 0.0, True),
    "hours": (lambda row: row["hours"], True),
    "bytes_sent": (lambda row: row["bytes_sent"], True),
    "faults": (lambda row: row["faults"], True),
}
"""For each name of an order: the sort key, and whether the largest comes first."""


def peers_view(
    state: RunState,
    facts: RunFacts | None = None,
    *,
    offset: int = 0,
    limit: int = 200,
    sort: str = "stage",
    query: str = "",
) -> dict[str, Any]:
    """`sort`: a key of _SORTS, preceded by `-` for the reverse order; unknown keys mean `stage`. `query`: a part of an
    actor or of a machine's description, or a stage as `stage 2`.
    """
    words, shares = words_of(state), shares_of(state)
    rows = [_row(state, facts, each, words[each.actor], shares) for each in state.members.here.values()]
    rows += [_row(state, facts, gone, word_of(state, gone), shares) for gone in state.members.gone.values()]
    wanted = query.strip().lower()
    if wanted:
        rows = [row for row in rows if _matches(row, wanted)]
    key, most_first = _SORTS.get(sort.removeprefix("-"), _SORTS["stage"])
    rows.sort(key=key, reverse=most_first != sort.startswith("-"))
    return {"total": len(rows), "peers": list(page(rows, offset, limit))}


def peer_view(state: RunState, facts: RunFacts | None, wanted: str, at: float | None = None) -> dict[str, Any] | None:
    """One peer, by actor, or by peer id (then its newest start). `at`: the time in unix seconds. None: no such peer."""
    found = _find(state, wanted)
    if found is None:
        return None
    row = _row(state, facts, found, word_of(state, found), shares_of(state))
    here = found if isinstance(found, Member) else None
    of_it = [fault for fault in state.faults.items if fault.actor == found.actor]
    history = [{"at": at, "text": text} for at, text in here.history] if here is not None else []
    if isinstance(found, Gone):
        history = [{"at": found.seen_at, "text": "presented itself"}, {"at": found.left_at, "text": found.reason}]
    return row | {
        "seconds": dict(here.seconds) if here is not None else {},
        "history": history,
        "faults": [fault_row(fault) for fault in reversed(of_it)],
        "links": pairs_of(state, found.actor),
        "what_if": what_if(state, found.actor, at),
    }


def _find(state: RunState, wanted: str) -> Member | Gone | None:
    members = state.members
    found: Member | Gone | None = members.here.get(wanted) or members.gone.get(wanted)
    if found is not None:
        return found
    for member in members.here.values():
        if member.peer == wanted:
            return member
    for gone in reversed(members.gone.values()):
        if gone.peer == wanted:
            return gone
    return None


def _row(
    state: RunState, facts: RunFacts | None, member: Member | Gone, word: str, shares: dict[str, float]
) -> dict[str, Any]:
    here = member if isinstance(member, Member) else None
    end = state.run.last_at if isinstance(member, Member) else member.left_at
    seconds = member.seconds if isinstance(member, Gone) else member.seconds_before + max(0.0, end - member.seen_at)
    return {
        "actor": member.actor,
        "peer": member.peer,
        "name": display_name(member.actor),
        "stage": member.stage,
        "word": word,
        "symbol": SYMBOLS[word],
        "why": why_of(member),
        "joined_at": (here.joined_at or here.seen_at) if here is not None else member.seen_at,
        "last_at": here.last_at if here is not None else end,
        "left_at": None if isinstance(member, Member) else member.left_at,
        "share": shares.get(member.actor) if here is not None else None,
        "tokens": tokens_layers(state, member.tokens, facts) if state.people.assigned else None,
        "hours": seconds / 3600,
        "bytes_sent": member.sent,
        "faults": member.faults,
        "machine": dict(here.machine if here is not None else state.members.machines.get(member.actor, {})),
        "usage": dict(here.usage) if here is not None else {},
    }


def shares_of(state: RunState) -> dict[str, float]:
    """Each actor's share of its stage's microbatches, according to the latest tables."""
    found = {}
    for stage in state.pipeline.stages:
        if (total := sum(stage.weights)) > 0:
            found.update({actor: weight / total for actor, weight in zip(stage.roster, stage.weights, strict=False)})
    return found


def _matches(row: dict[str, Any], wanted: str) -> bool:
    if wanted in row["actor"].lower() or wanted == f"stage {row['stage']}" or wanted == row["word"]:
        return True
    return any(wanted in str(value).lower() for value in row["machine"].values())
