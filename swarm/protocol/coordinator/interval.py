"""The interval between two passes: what the coordinator waits for, and what comes next."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.events import RunPaused
from swarm.protocol.coordinator.checkpoints import Checkpoints
from swarm.protocol.coordinator.commands import signed
from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.placement.placement import Placement
from swarm.protocol.coordinator.placement.survey import NewTerm, Survey
from swarm.protocol.coordinator.scheduler import Scheduler
from swarm.protocol.ids import PassKind
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

AT_ONCE = 64
"""Up to this number of members, all members are examined at every message between steps."""
LOOK_S = 1e-4
"""With more members than `AT_ONCE`, the coordinator waits this number of seconds per additional member between two
examinations of all members. An examination takes about a hundredth of that time.
"""


@dataclass(frozen=True, slots=True)
class Ready:
    """The next pass can open."""

    kind: PassKind
    survey: Survey


@dataclass(frozen=True, slots=True)
class Finished:
    """All steps are decided, evaluated, sampled and archived."""


Next = Ready | Finished | NewTerm


class Interval:
    """Call `next` between passes, whenever `is_due`, until it returns what comes next."""

    def __init__(
        self,
        settings: Settings,
        history: History,
        members: Members,
        failure_history: FailureHistory,
        scheduler: Scheduler,
        placement: Placement,
        checkpoints: Checkpoints,
        out: Outbox,
    ) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._failure_history = failure_history
        self._scheduler = scheduler
        self._placement = placement
        self._checkpoints = checkpoints
        self._out = out
        self._told = ""
        """The last announced reason why the run does not continue."""
        self._waits_for = ""
        """The current reason why the run does not continue."""
        self._next_look = 0.0

    def begin(self, now: float) -> None:
        """A pass is over, or a term begins."""
        self._next_look = now
        self._waits_for = ""

    def look_at_once(self, now: float) -> None:
        """Something has changed that the next pass may depend on."""
        self._next_look = now

    def is_due(self, now: float) -> bool:
        """Return True if all members should be examined now.

        While the coordinator waits for something, it examines all members repeatedly. In a large swarm it does not do
        so at every message. Every member sends a message once a heartbeat, so an examination is never delayed for
        long.
        """
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_S * max(0, len(self._members) - AT_ONCE)
        return True

    def next(self, commanding: bool, now: float) -> Next | None:
        """What comes next; None: wait. `commanding`: True while a command is being written."""
        self._checkpoints.ask(now)
        survey = self._placement.survey(now)
        self._waits_for = survey.waiting
        version, end = self._history.version, self._history.end(self._settings)
        over = version == end == self._history.archived
        kind = self._scheduler.due()
        paused = self._history.controls.paused if kind is not None else None
        if survey.new_term is not None:
            return survey.new_term
        if commanding:
            return None  # the next pass may depend on the command
        if survey.ready and version == end and not over:
            self._wait_for_archive(now)
        elif paused is not None:
            self._wait(signed("paused", paused))
            if (self._history.archived or 0) < self._history.controls.checkpoint:
                self._placement.orders.ask_to_save(now)
        elif survey.ready and self._rests(survey, now):
            self._wait(self._failure_history.why_rests(survey.actors, version))
        elif survey.ready:
            self._told = ""
            return Finished() if kind is None else Ready(kind, survey)
        elif over and now - self._placement.since >= self._settings.recruit_after_s:
            if kind is None or not all(survey.rosters):
                return Finished()  # all steps are decided and archived, and the peers that were told so have left
            return Ready(kind, survey)  # a member still loads a state, and may never finish
        elif survey.waiting:
            self._wait(survey.waiting)
        return None

    def in_words(self) -> tuple[str, str]:
        """The state and the reason for it, as in StateChanged."""
        history, paused = self._history, self._history.controls.paused
        if paused is not None and self._scheduler.due() is not None:
            return "paused", signed("paused", paused)
        if history.version == history.end(self._settings):
            return "finishing", self._waits_for or f"checkpoint {history.version} is on its way to the archive"
        return "waiting", self._waits_for or f"peers load version {history.version}"

    def _rests(self, survey: Survey, now: float) -> bool:
        """Return True if a step has failed with all present members, and it is too early to try it again."""
        if self._scheduler.due() is not PassKind.TRAIN:
            return False
        return now < self._failure_history.rest_until(survey.actors, self._settings.heartbeat_s)

    def _wait(self, reason: str) -> None:
        """Announce why the run does not continue, unless this reason was announced before."""
        self._waits_for = reason
        if reason != self._told:
            self._told = reason
            self._out.emit(RunPaused(reason))

    def _wait_for_archive(self, now: float) -> None:
        """All steps are decided, and the last checkpoint is being archived. If that exceeds a step budget, announce
        what delays it.
        """
        late = now - self._placement.since >= self._settings.step_budget_s
        if late:
            self._wait(self._checkpoints.lacking(self._history.version, now))
        if late or not self._settings.saves(self._history.version):  # otherwise its peers save it anyway
            self._placement.orders.ask_to_save(now)
