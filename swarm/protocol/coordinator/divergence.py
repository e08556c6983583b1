"""Divergence: the parameters of a run give non-finite results, so that every further step is useless.

A single skipped step is an accident: it changes nothing, and training continues. Several in a row, or parameters or
moments that are not finite, are a divergence. Then the run goes back to the newest sound checkpoint, with a lower
learning rate, as often as the manifest allows. After that it stops with an explanation.

A divergence must be confirmed by two stages whose parameters give non-finite results. A report that comes from only one
stage, or only from one person's devices, about their own state is doubted (`Doubts`). If the gradients of several
stages are not finite, a single peer may be the cause: the run goes back as often as the manifest allows; afterwards it
waits and gives the reason.
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
from swarm.protocol.coordinator.passes.outcome import GiveUp
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

BY = "coordinator"
"""The author of commands that a divergence causes."""
DIVERGED = "the run has diverged"
"""The reason of every action against a divergence starts with this text."""


@dataclass(frozen=True, slots=True)
class GoBack:
    """The history should continue from `version`."""

    version: int
    reason: str
    halt: str = ""
    """The reason why the run ends after going back. Empty: the run continues."""


class Divergence:
    """The divergence checks of one coordinator. Call `look` between passes while no command is being written."""

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
        """Text that names the parts of the current version that are not finite."""
        self._suspected = ""
        """The reason why no step can be decided. It would be a divergence if another stage confirmed it."""
        self._confirmed = False
        """True if the organiser confirms the divergence."""

    def spoilt(self, what: str) -> None:
        """Parameters or moments of the current version are not finite, as all their holders report."""
        self._spoilt = what

    def rolled_back(self) -> None:
        self._spoilt = ""
        self._confirmed = False

    def decided(self) -> None:
        """A step is decided, so the suspicion ends."""
        self._suspected = ""

    def suspect(self, what: str) -> None:
        """The run cannot decide a step, but no second stage reports a divergence. It waits for other peers or for the
        organiser.
        """
        self._suspected = what

    def lowered(self) -> None:
        """The organiser has lowered the rate. If the run waits for a confirmation of its divergence, this counts as
        one.
        """
        self._confirmed = bool(self._suspected)

    def doubted(self) -> Doubted | None:
        """The first stage whose report of a non-finite state no other stage confirms, although all others have saved
        their state. None if there is no such stage.
        """
        claims = self._claims()
        if not claims or self._is_confirmed(claims):
            return None
        version = self._history.version
        for stage in range(self._settings.stages):
            saved = (m.status is not None and m.status.checkpoint_version >= version for m in self._holders(stage))
            if stage not in claims and not any(saved):
                return None
        stage = min(claims)
        nobody = "no other stage confirms" if len(claims) == 1 else "no other person confirms"
        return Doubted(stage, tuple(m.actor for m in claims[stage]), f"{nobody} that {self._what(claims)}")

    def objection(self, pass_state: PassState, without: frozenset[Actor]) -> Doubted | GiveUp | None:
        """The reason why a non-finite step must not be skipped, namely that it would count as a divergence. None: it
        may be skipped.
        """
        settings, skipped = self._settings, self._history.soundness.skipped + 1
        if skipped < settings.divergence.skips:
            return None
        found = pass_state.preparation.not_finite(without)
        proof = pass_state.preparation.unusable(without) if settings.stages > 1 else found
        who = {actor.peer for stage in proof for actor in self._doubts.who_said(stage)}
        if is_confirmed(proof, who, settings.stages, self._members.people):
            return None
        if len(found) == 1:
            (stage,) = found
            reason = f"the sums of step {pass_state.pass_id.step} are not finite in its stage alone"
            return Doubted(stage, self._doubts.who_said(stage), reason)
        if self._may_retreat:
            return None
        what = f"{_in_a_row(skipped)} not finite, and a single peer may be the cause"
        self.suspect(what)
        return GiveUp(f"{what}: fewer than two stages hold parameters that explain it. {IF_DIVERGED}")

    @property
    def _may_retreat(self) -> bool:
        """True if the run may go back automatically once more, with a lower rate."""
        section = self._settings.divergence
        is_left = self._history.controls.retreats < section.times and self._lower_rate > 0.0
        return section.action == "go_back" and is_left

    @property
    def _lower_rate(self) -> float:
        """The factor of the learning rate after one more retreat; 0 if that is too small for a number."""
        return self._history.controls.rate * self._settings.divergence.rate

    def look(self) -> GoBack | None:
        """The action that is due now. None: no action, or a command must be written first."""
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
        if self._may_retreat:
            rate = self._lower_rate
            self._out.emit(RunDiverged(history.version - 1, reason, version, rate))
            self._commands.order(GO_BACK, Retreat(version, history.term, rate).value, BY, reason)
            return None
        self._out.emit(RunDiverged(history.version - 1, reason, version, None))
        tried = f", {controls.retreats} times with a lower learning rate" if controls.retreats else ""
        what = f"version {version}" if version else "version 0, from which it began"
        slower = f"swarm-peer control rate {self._lower_rate or controls.rate:g}"
        halt = (
            f"{DIVERGED}{tried}: {reason}. The training has stopped. The last good checkpoint is {what}, and "
            f"`swarm-peer coordinate` continues from there. Lower the learning rate first, with `{slower}`"
        )
        return GoBack(version, f"{DIVERGED}: {reason}", halt)

    def _reason(self) -> str:
        """The reason why the run counts as diverged, as text. Empty: it does not."""
        history, skipped = self._history, self._history.soundness.skipped
        if self._spoilt:
            return self._spoilt
        claims = self._claims()
        if self._is_confirmed(claims):
            return self._what(claims)
        if skipped < self._settings.divergence.skips:
            return ""
        steps = "a step was" if skipped == 1 else f"{skipped} steps in a row were"
        return f"{steps} skipped up to step {history.version - 1}, because gradients were not finite"

    def _holders(self, stage: int) -> list[Member]:
        """The holders of a stage's current version. Peers that are left out do not count."""
        version, left_out = self._history.version, self._doubts.left_out
        there = (m for m in self._members.of_stage(stage) if m.lost_at is None and m.version == version)
        return [member for member in there if member.actor.peer not in left_out]

    def _claims(self) -> dict[int, list[Member]]:
        """Stages whose holders all report a non-finite state after saving it, with these holders."""
        held = {stage: self._holders(stage) for stage in range(self._settings.stages)}
        return {
            stage: holders
            for stage, holders in held.items()
            if holders and all(m.status is not None and m.status.spoilt for m in holders)
        }

    def _is_confirmed(self, claims: dict[int, list[Member]]) -> bool:
        peers = (member.actor.peer for holders in claims.values() for member in holders)
        return is_confirmed(claims, peers, self._settings.stages, self._members.people)

    def _what(self, claims: dict[int, list[Member]]) -> str:
        return what_is_spoilt(list(claims), self._history.version)


def _in_a_row(skipped: int) -> str:
    return "a gradient is" if skipped == 1 else f"gradients of {skipped} steps in a row are"
