"""A peer's state as a symbol and a word, and a short name of the peer for people."""

from __future__ import annotations

import statistics

from peers.fold.faults import LEFT, OVER
from peers.fold.members import Gone, Member
from peers.fold.reading import peer_of
from peers.fold.state import RunState

NAME_LETTERS = 8
SYMBOLS = {
    "working": "●",
    "joining": "◐",
    "standing by": "○",
    "slow": "▲",
    "fenced": "✕",
    "lost": "✕",
    "gone": "✕",
    "left": "○",
    "leaving": "◇",
    "paused": "⏸",
}
LATE = 0.5
"""A member that has done less than this fraction of its stage's median is slow."""


def display_name(actor: str) -> str:
    """The end of the peer id. The peer id stays the same when the peer's process restarts."""
    return peer_of(actor)[-NAME_LETTERS:]


def words_of(state: RunState) -> dict[str, str]:
    """The word for each member's state, by actor."""
    slow = _slow(state)
    return {actor: _word(state, member, slow) for actor, member in state.members.here.items()}


def why_of(member: Member | Gone | None) -> str:
    """The reason for the member's word, if the word alone does not tell it. The text may come from the peer."""
    if not isinstance(member, Member) or member.leaving:
        return ""
    return member.paused or ("" if member.worked else member.trouble)


def word_of(state: RunState, member: Member | Gone) -> str:
    if isinstance(member, Gone):
        over = state.run.finished_at is not None and member.left_at >= state.run.finished_at
        return "left" if over or member.reason.startswith((LEFT, OVER)) else "lost"
    return _word(state, member, _slow(state))


def _word(state: RunState, member: Member, slow: frozenset[str]) -> str:
    opened = state.pipeline.open
    if opened is not None and member.fenced == opened.pass_id:
        return "fenced"
    if member.leaving:
        return "leaving"
    if member.paused:
        return "paused"
    if member.stage is None:
        return "standing by"
    if not member.worked:
        return "joining"
    if state.run.word in ("paused", "pausing"):
        return "paused"
    return "slow" if member.actor in slow else "working"


def _slow(state: RunState) -> frozenset[str]:
    """Members of the open pass that are far behind others of their stage, although their shares match their speeds."""
    found: list[str] = []
    for stage in state.pipeline.stages:
        done = {
            actor: (accumulated + forwarded) / (2 * assigned)
            for actor, (accumulated, forwarded, assigned) in zip(stage.roster, stage.shares, strict=False)
            if assigned
        }
        median = statistics.median(done.values()) if len(done) > 1 else 0.0
        found += [actor for actor, part in done.items() if median >= 0.5 and part < LATE * median]
    return frozenset(found)
