"""States that their holders do not give away: they leave, pause, or their checkpoints reach nobody (`KeptBack`).

If another peer has not got such a state in time, perhaps nobody ever will, and the holders will never leave or resume.
So they do not count as holders any more, and the run goes back without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swarm.protocol.coordinator.membership.failure_history import FailureHistory
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.settings import Settings
from swarm.protocol.timeouts import longest_load_s

BUDGETS = 4
"""Another peer has this number of step budgets to load the state, and the time that the state takes on a slow line."""


class WithheldStates:
    """Call `has` for each stage between passes, with the members that hold its state and those that need it."""

    def __init__(self, settings: Settings, history: History, members: Members, failure_history: FailureHistory) -> None:
        self._settings = settings
        self._history = history
        self._members = members
        self._idle = failure_history.idle
        self._kept_back = failure_history.kept_back
        self._going_since: dict[int, float] = {}
        """For each stage, when another peer first wanted its state in this step while all its holders left or paused.
        """
        self._kept_back_since: dict[int, float] = {}
        """For each stage whose checkpoints nobody gets, since when another peer beside its holders wants their state.
        """

    def decided(self) -> None:
        """A step is decided."""
        self._going_since.clear()

    def has(self, stage: int, holders: Sequence[Member], needy: Iterable[Member], now: float) -> bool:
        """Return True if all holders of a stage leave or pause, or nobody gets its checkpoints, and another peer has
        not got their state in time.
        """
        wanted = bool(holders) and not all(m.is_withheld for m in needy)
        if self._nobody_gets(stage, holders, wanted, now):
            return True
        if not wanted or not all(m.is_withheld for m in holders):
            return False
        waited_s = now - self._going_since.setdefault(stage, now)
        if all(m.leaving_since is not None for m in holders):
            return waited_s > self._settings.leave_s + self._settings.step_budget_s
        return waited_s > self._patience_s(stage)

    def _nobody_gets(self, stage: int, holders: Sequence[Member], wanted: bool, now: float) -> bool:
        """Return True if neither the archive nor another peer beside the holders of a stage gets their state. As long
        as they have work to do, it is enough that the archive gets some bytes now and then: their line may be slow.
        """
        if not wanted or not all(self._kept_back.has(m.actor.peer) for m in holders):
            self._kept_back_since.pop(stage, None)
            return False
        since = self._kept_back_since.setdefault(stage, now)
        at_work = self._history.version < self._history.end(self._settings)
        if at_work and self._kept_back.arrived_since(stage, since):
            self._kept_back_since[stage] = now
            return False
        return now - since > self._patience_s(stage)

    def _patience_s(self, stage: int) -> float:
        return BUDGETS * self._settings.step_budget_s + longest_load_s(self._settings.stage_needs, stage)

    def lose(self, stage: int, now: float) -> str:
        """The run is about to go back, because nobody holds the state of this stage. Others may take the places of
        those that computed it. Return the reason, as text; empty if they do not hold the state either.

        Members that lose a state again, or give it to nobody, are left out until others have computed a step.
        """
        idle, version, budget_s = self._idle, self._history.version, self._settings.step_budget_s
        crew = self._members.of_stage(stage)
        kept_back = [m.actor for m in crew if self._kept_back.has(m.actor.peer)]
        why = f"neither the archive nor another peer gets version {version} of stage {stage} from "
        why += " and ".join(map(str, kept_back))
        for member in crew:
            peer, reason = member.actor.peer, f"it has lost version {version} of stage {stage}"
            if member.actor in kept_back:
                idle.leave_out(peer, why, budget_s, now)
            elif member.computed == version and idle.was(peer):
                idle.leave_out(peer, f"{reason}, and another one before", budget_s, now)
            elif member.computed == version:
                idle.add(peer, reason, budget_s, now)
        return why if kept_back else ""
