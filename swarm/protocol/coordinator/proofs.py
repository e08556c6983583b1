"""Before a newcomer gets work, it proves that it holds the same state as its siblings.

The newcomer and a sibling compute a checksum of their states at the same version, keyed with a number that nobody knew
before (Prove, Proof). The coordinator asks both when the newcomer begins to load, for the version that is current then.
The sibling holds this version at that time. The newcomer has it for a while before it can work, because it loads this
version or catches up through it. So nobody waits for the proof when the newcomer is ready.

If the answers differ, the coordinator asks all siblings that are known to hold the stage, with another key. As in every
comparison of states (`drift_of`), the majority of people is believed. A newcomer that is not believed loads the state
again. The second time it also goes on probation. Nothing happens to siblings that differ, because their next step will
show the difference.

The first peer of a stage has no sibling to be compared with. The same holds for all peers at the start of a run and
after a restart of the coordinator; their first step compares them. If a sibling does not answer, or answers again and
again that it has already discarded the requested version, another one is asked. If there is no other, the newcomer gets
work without a proof.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from swarm.events import StateCompared
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.membership.probation import Probation
from swarm.protocol.coordinator.passes.drift import drift_of
from swarm.protocol.ids import Actor, PassId, StageIndex, StepNumber
from swarm.protocol.messages import Disproved, Proof, Prove
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

MOST_ASKED = 8
"""Largest number of siblings that are asked when a newcomer's answer differs from the first sibling's."""
MOST_BEHIND = 16
"""Largest number of proofs in a row that may fail because the newcomer has already discarded the requested version."""
MOST_SIBLING_BEHIND = 4
"""The same for each sibling that is asked. This only replaces the sibling, so it is enough to try every MOST_AHEAD."""
MOST_AHEAD = 3
"""The requested version may be this far ahead of the current one, after proofs of earlier versions came too late."""
REMEMBERED = 4096
"""Number of peers whose failed proofs are remembered: those that failed last."""


@dataclass(slots=True)
class _Inquiry:
    newcomer: Actor
    stage: StageIndex
    version: int
    nonce: int
    asked: list[Actor]
    """The siblings that were asked."""
    told_at: float
    answers: dict[Actor, int] = field(default_factory=dict)
    since: float | None = None
    """The time when the version was decided. From then on, the siblings can answer."""
    reached_at: float | None = None
    """The time when the newcomer was first seen to hold this version or a later one."""


class Proofs:
    """The proofs that one coordinator requests while it leads.

    Call `look` with each report of a member, and `tick` at each heartbeat. A member that passes its proof is marked as
    `shown`. `proven` returns the members that may get work.
    """

    def __init__(
        self, settings: Settings, history: History, members: Members, probation: Probation, out: Outbox
    ) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._probation = probation
        self._out = out
        self._inquiries: dict[Actor, _Inquiry] = {}
        """The requests in progress, by newcomer."""
        self._count = 0
        self._behind: dict[Actor, Counter[Actor]] = {}
        """For each newcomer, how often each actor had already discarded the requested version."""
        self._asked_at: dict[Actor, float] = {}
        """For each newcomer, when it was last asked."""
        self._silent: dict[Actor, set[Actor]] = {}
        """For each newcomer, the siblings that did not answer in time."""
        self._all: set[Actor] = set()
        """Newcomers whose answer differed from that of the sibling that was asked first."""
        self._disproved: dict[Actor, int] = {}
        """Newcomers that must load their state anew, with the key of the proof that failed."""
        self._wrong: dict[str, int] = {}
        """For each peer id, how often its proof failed."""

    def clear(self) -> None:
        """The run was rolled back, so all proofs in progress are void."""
        self._inquiries.clear()
        self._disproved.clear()
        self._all.clear()

    def lost(self, actor: Actor) -> None:
        """A member is gone. Call this after it was removed."""
        self._disproved.pop(actor, None)
        self._asked_at.pop(actor, None)
        self._forget(actor)

    def look(self, member: Member, now: float) -> None:
        """Request a proof from a member that holds or loads a state, if it must prove this state and was not asked
        yet.
        """
        if self._over:
            return
        actor = member.actor
        at = member.at(self._history.rolled_back_in, self._history.version)
        if member.shown or member.version is None:
            self._disproved.pop(actor, None)
        if member.shown or at is None:
            self._inquiries.pop(actor, None)
            return
        if member.stage is None or member.lost_at is not None or member.leaving_since is not None:
            return
        if actor in self._inquiries or actor in self._disproved:
            return
        if now - self._asked_at.get(actor, -math.inf) >= self._settings.heartbeat_s:
            self._ask(member, now)

    def hear(self, sender: Actor, proof: Proof, now: float) -> Member | None:
        """Process an answer. Return the newcomer if it may get work from now on; otherwise None."""
        if self._over:
            return None
        for newcomer, nonce in self._disproved.items():
            if sender == newcomer and proof.nonce == nonce and proof.checksum is None:
                del self._disproved[newcomer]  # the disproved state is discarded
                return None
        inquiry = next((each for each in self._inquiries.values() if each.nonce == proof.nonce), None)
        if inquiry is None or (sender != inquiry.newcomer and sender not in inquiry.asked):
            return None
        member = self._members.get(inquiry.newcomer)
        if member is None:
            return None
        if proof.checksum is None:
            self._left_behind(member, inquiry, sender)
            return None
        inquiry.answers.setdefault(sender, proof.checksum)
        self._judge(inquiry, member, now)
        return member if member.shown else None

    def tick(self, now: float) -> None:
        if self._over:
            return
        for actor, nonce in list(self._disproved.items()):
            self._out.send(actor, Disproved(self._history.term, nonce))
        for inquiry in list(self._inquiries.values()):
            self._attend(inquiry, now)

    @property
    def _over(self) -> bool:
        """True if all steps are decided, so that there is no more work."""
        return self._history.version == self._history.end(self._settings)

    # ------------------------------------------------------------ asking

    def _ask(self, member: Member, now: float) -> None:
        actor, stage = member.actor, member.stage
        assert stage is not None
        siblings = self._siblings(member)
        if not siblings:
            if self._silent.get(actor):
                self._admit(member, "no sibling has answered")
            return
        history, settings = self._history, self._settings
        ahead = min(self._behind.get(actor, Counter()).total(), MOST_AHEAD)
        version = min(history.version + ahead, history.end(settings))
        self._count += 1
        self._asked_at[actor] = now
        said = f"{history.term} {self._count} {actor} {version}".encode()
        drawn = hashlib.blake2b(said, key=settings.audit_secret, digest_size=8, person=b"proof")
        nonce = int.from_bytes(drawn.digest(), "big") >> 1 or 1
        asked = siblings[: MOST_ASKED if actor in self._all else 1]
        inquiry = _Inquiry(actor, stage, version, nonce, [m.actor for m in asked], now)
        self._inquiries[actor] = inquiry
        self._tell(inquiry, (actor, *inquiry.asked), now)

    def _tell(self, inquiry: _Inquiry, actors: Iterable[Actor], now: float) -> None:
        inquiry.told_at = now
        for actor in actors:
            self._out.send(actor, Prove(self._history.term, inquiry.stage, inquiry.version, inquiry.nonce))

    def _siblings(self, member: Member) -> list[Member]:
        """The siblings that can be asked: other people's first, then those that have held the stage for longest."""
        people, silent = self._members.people, self._silent.get(member.actor, ())
        assert member.stage is not None
        there = [m for m in self._members.of_stage(member.stage) if m is not member and m.actor not in silent]
        me = people.of(member.actor.peer)
        known = [m for m in there if m.shown and m.version is not None and m.lost_at is None]
        return sorted(known, key=lambda m: (people.of(m.actor.peer) == me, m.standing, m.actor))

    def _attend(self, inquiry: _Inquiry, now: float) -> None:
        """Repeat the request, and stop waiting for members that do not answer."""
        known = {m.actor for m in self._members.of_stage(inquiry.stage) if m.shown and m.lost_at is None}
        inquiry.asked = [actor for actor in inquiry.asked if actor in known or actor in inquiry.answers]
        member = self._members.get(inquiry.newcomer)
        if not inquiry.asked or member is None or member.stage != inquiry.stage:
            del self._inquiries[inquiry.newcomer]
            return  # with the next report, another sibling is asked, if there is one
        if inquiry.since is None and self._history.version >= inquiry.version:
            inquiry.since = now
        if inquiry.reached_at is None and member.version is not None and member.version >= inquiry.version:
            inquiry.reached_at = now
        budget_s = self._settings.step_budget_s
        if inquiry.since is not None and now - inquiry.since >= budget_s:
            self._without_silent(inquiry)
        if inquiry.newcomer not in self._inquiries:
            return
        if (
            inquiry.reached_at is not None
            and now - inquiry.reached_at >= budget_s
            and member.actor not in inquiry.answers
        ):
            self._disprove(member, inquiry, "it does not answer")
        elif now - inquiry.told_at >= 2 * self._settings.heartbeat_s:
            self._tell(inquiry, [a for a in (inquiry.newcomer, *inquiry.asked) if a not in inquiry.answers], now)
            self._judge(inquiry, member, now)

    def _without_silent(self, inquiry: _Inquiry) -> None:
        """Stop waiting for siblings that did not answer in time. If none is left, another one is asked later."""
        mute = [actor for actor in inquiry.asked if actor not in inquiry.answers]
        inquiry.asked = [actor for actor in inquiry.asked if actor in inquiry.answers]
        if mute:
            self._silent.setdefault(inquiry.newcomer, set()).update(mute)
        if not inquiry.asked:
            del self._inquiries[inquiry.newcomer]

    def _left_behind(self, member: Member, inquiry: _Inquiry, sender: Actor) -> None:
        """The newcomer or a sibling has already discarded the requested version, as it says. Ask for another version
        when the newcomer reports next.

        A sibling that says so again and again is replaced. It must not be able to keep a newcomer out.
        """
        behind = self._behind.setdefault(member.actor, Counter())
        behind[sender] += 1
        if sender != member.actor:
            if behind[sender] >= MOST_SIBLING_BEHIND:
                self._silent.setdefault(member.actor, set()).add(sender)
        elif behind[sender] > MOST_BEHIND:
            self._disprove(member, inquiry, f"it has given no proof for any of {behind[sender]} versions")
            return
        del self._inquiries[member.actor]

    # ------------------------------------------------------------ judging

    def _judge(self, inquiry: _Inquiry, member: Member, now: float) -> None:
        answers = inquiry.answers
        if any(actor not in answers for actor in (inquiry.newcomer, *inquiry.asked)):
            return
        drift = drift_of(inquiry.stage, answers, self._members)
        others = ", ".join(str(actor) for actor in answers if actor != member.actor)
        if drift is None:
            self._admit(member, f"the same as {others}")
        elif member.actor not in self._all and len(self._siblings(member)) > len(inquiry.asked):
            self._all.add(member.actor)
            del self._inquiries[member.actor]
            self._ask(member, now)
        elif member.actor in drift.reload:
            self._disprove(member, inquiry, f"it differs from {_names(drift.believed)}: {drift.reason}")
        else:
            self._admit(member, f"{_names(drift.reload)} differ from it: {drift.reason}")

    def _admit(self, member: Member, reason: str) -> None:
        self._forget(member.actor)
        member.shown = True
        member.has_state()
        if member.stage is not None:
            self._out.emit(StateCompared(str(member.actor), member.stage, self._history.version, True, reason))

    def _disprove(self, member: Member, inquiry: _Inquiry, reason: str) -> None:
        actor, history = member.actor, self._history
        self._forget(actor)
        self._out.emit(StateCompared(str(actor), inquiry.stage, inquiry.version, False, reason))
        self._disproved[actor] = inquiry.nonce
        self._out.send(actor, Disproved(history.term, inquiry.nonce))
        times = self._wrong.pop(actor.peer, 0) + 1
        self._wrong[actor.peer] = times
        if len(self._wrong) > REMEMBERED:
            del self._wrong[next(iter(self._wrong))]
        if times > 1:
            member.yield_place()
            self._probation.strike(actor.peer, PassId(history.term, StepNumber(history.version)))

    def _forget(self, actor: Actor) -> None:
        for kept in (self._inquiries, self._behind, self._silent):
            kept.pop(actor, None)
        self._all.discard(actor)


def proven(crew: Sequence[Member]) -> list[Member]:
    """The members of a stage that may get work: those that passed a proof. If no member has passed one, all."""
    return [member for member in crew if member.shown] or list(crew)


def _names(actors: Iterable[Actor]) -> str:
    return ", ".join(map(str, actors))
