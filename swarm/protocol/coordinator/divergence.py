"""A run that has diverged: what its parameters give is no number any more, so that every later step is for nothing.

One skipped step is an accident: that step changes nothing, and training goes on. Several in a row are none, nor are
parameters or moments that are not finite. Then the history goes back to the newest checkpoint that has proved its
worth: with a lower learning rate where the manifest says so, and so many times; else it stops there and says why.

Only what is seen from more than one place ends a run: two stages hold parameters from which nothing finite follows.
What one stage alone says of itself is doubted (`Doubts`). If gradients of several stages are not finite, one peer may
have caused that: the run goes back as often as the manifest says, and then waits and says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import RunDiverged
from swarm.protocol.controls import GO_BACK, Retreat
from swarm.protocol.coordinator.commands import Commands
from swarm.protocol.coordinator.membership.doubts import IF_DIVERGED, Doubted, Doubts, is_confirmed, what_is_spoilt
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.coordinator.passes.repair import GiveUp
from swarm.protocol.ids import Actor
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

BY = "coordinator"
"""Whose command it is."""
DIVERGED = "the run has diverged"
"""So begins the reason for all that is done about it."""


@dataclass(frozen=True, slots=True)
class GoBack:
    """The history is to go on from `version`."""

    version: int
    reason: str
    halt: str = ""
    """Why all are sent home when that is done; empty: the run goes on."""


class Divergence:
    """Of one coordinator's life. `look` between passes, when no command is being written."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        members: Members,
        doubts: Doubts,
        commands: Commands,
        out: Outbox,
    ) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._doubts = doubts
        self._commands = commands
        self._out = out
        self._spoilt = ""
        """What is not finite, at the present version."""
        self._suspected = ""
        """Why no step can be decided, which would be a divergence if somebody else saw it too."""
        self._confirmed = False
        """The organiser says that it is one."""

    def spoilt(self, what: str) -> None:
        """Parameters or moments of the present version are not finite, as all say who hold them."""
        self._spoilt = what

    def rolled_back(self) -> None:
        self._spoilt = ""
        self._confirmed = False

    def decided(self) -> None:
        """A step is decided with what was suspected, or without it."""
        self._suspected = ""

    def suspect(self, what: str) -> None:
        """Nobody else confirms it: the run waits, for others or for the organiser."""
        self._suspected = what

    def lowered(self) -> None:
        """The organiser has commanded a rate. If the run waits for who knows whether it has diverged: it has."""
        self._confirmed = bool(self._suspected)

    def doubted(self) -> Doubted | None:
        """A stage that has found its state not finite on saving it, as the only one: all others have saved theirs."""
        claims = self._claims()
        if len(claims) != 1 or self._is_confirmed(claims):
            return None
        version = self._history.version
        for stage in range(self._settings.stages):
            saved = (m.status is not None and m.status.checkpoint_version >= version for m in self._holders(stage))
            if stage not in claims and not any(saved):
                return None
        ((stage, holders),) = claims.items()
        return Doubted(stage, tuple(m.actor for m in holders), f"nobody else sees that {self._what(claims)}")

    def objection(self, pass_state: PassState, without: frozenset[Actor]) -> Doubted | GiveUp | None:
        """Why a step that would be skipped is not, since the run would count as diverged then. None: it is skipped."""
        settings, skipped = self._settings, self._history.soundness.skipped + 1
        if skipped < settings.divergence.skips:
            return None
        found = pass_state.not_finite(without)
        proof = pass_state.unusable(without) if settings.stages > 1 else found
        who = {actor.peer for stage in proof for actor in self._doubts.who_said(stage)}
        if is_confirmed(proof, who, settings.stages):
            return None
        if len(found) == 1:
            (stage,) = found
            reason = f"its sums are not finite in step {pass_state.pass_id.step}, and those of no other stage"
            return Doubted(stage, self._doubts.who_said(stage), reason)
        if self._may_retreat:
            return None
        what = f"{_in_a_row(skipped)} not finite, and one peer may have caused that"
        self.suspect(what)
        return GiveUp(f"{what}: no two stages hold parameters from which it follows. {IF_DIVERGED}")

    @property
    def _may_retreat(self) -> bool:
        """Whether the run may go back by itself once more, with a lower rate."""
        section = self._settings.divergence
        return section.action == "go_back" and self._history.controls.retreats < section.times

    def look(self) -> GoBack | None:
        """What is to be done now. None: nothing, or a command is being written first."""
        history, retreat = self._history, self._history.controls.retreat
        if retreat is not None and retreat.term >= history.rolled_back_in and retreat.version <= history.version:
            what = f"the learning rate is {retreat.rate:g} times the schedule from here on"
            return GoBack(retreat.version, f"{DIVERGED}; {what}")
        if self._confirmed:
            self._doubts.forgive()
            return GoBack(history.last_sound, f"{DIVERGED}, as the organiser confirms: {self._suspected}")
        reason = self._reason()
        if not reason:
            return None
        version, controls = history.last_sound, history.controls
        section = self._settings.divergence
        if self._may_retreat:
            rate = controls.rate * section.rate
            self._out.emit(RunDiverged(history.version - 1, reason, version, rate))
            self._commands.order(GO_BACK, Retreat(version, history.term, rate).value, BY, reason)
            return None
        self._out.emit(RunDiverged(history.version - 1, reason, version, None))
        tried = f", {controls.retreats} times with a lower learning rate" if controls.retreats else ""
        what = f"version {version}" if version else "version 0, from which it began"
        slower = f"swarm-peer control rate {controls.rate * section.rate:g}"
        halt = (
            f"{DIVERGED}{tried}: {reason}. Nothing more is trained. The last good checkpoint is {what}, and "
            f"`swarm-peer coordinate` goes on from there: have it train more slowly first, with `{slower}`"
        )
        return GoBack(version, f"{DIVERGED}: {reason}", halt)

    def _reason(self) -> str:
        """Why it counts as diverged. Empty: it does not."""
        history, skipped = self._history, self._history.soundness.skipped
        if self._spoilt:
            return self._spoilt
        claims = self._claims()
        if self._is_confirmed(claims):
            return self._what(claims)
        if skipped < self._settings.divergence.skips:
            return ""
        steps = "a step was" if skipped == 1 else f"{skipped} steps in a row were"
        return f"{steps} skipped up to step {history.version - 1}, since gradients were not finite"

    def _holders(self, stage: int) -> list[Member]:
        """Who holds the present version of a stage, and is not left out."""
        version, left_out = self._history.version, self._doubts.left_out
        there = (m for m in self._members.of_stage(stage) if m.lost_at is None and m.version == version)
        return [member for member in there if member.actor.peer not in left_out]

    def _claims(self) -> dict[int, list[Member]]:
        """Stages all of whose holders have found their state not finite on saving it."""
        held = {stage: self._holders(stage) for stage in range(self._settings.stages)}
        return {
            stage: holders
            for stage, holders in held.items()
            if holders and all(m.status is not None and m.status.spoilt for m in holders)
        }

    def _is_confirmed(self, claims: dict[int, list[Member]]) -> bool:
        peers = (member.actor.peer for holders in claims.values() for member in holders)
        return is_confirmed(claims, peers, self._settings.stages)

    def _what(self, claims: dict[int, list[Member]]) -> str:
        return what_is_spoilt(list(claims), self._history.version)


def _in_a_row(skipped: int) -> str:
    return "a gradient is" if skipped == 1 else f"gradients of {skipped} steps in a row are"
