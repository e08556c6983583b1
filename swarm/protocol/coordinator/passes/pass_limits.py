"""How long an open pass may take."""

from __future__ import annotations

from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.settings import STEP_BUDGETS, Settings

WORTH_STEPS = 2
"""Longest duration of a forward-only pass in usual steps, if the pass has at most as many microbatches as a step."""
WORTH_OF_SAMPLE = 5
"""Longest duration of a whole sample, as a multiple of the limit of one of its passes."""
WORTH_BEATS = 10
"""Lower bound of the limit of a forward-only pass, in heartbeats: progress is reported only once per heartbeat."""


class PassLimits:
    """The limits of one pass, in seconds. They follow from the step budget and from what has happened in the pass."""

    def __init__(self, pass_state: PassState, settings: Settings) -> None:
        self._pass_state = pass_state
        self._settings = settings

    def is_overrun(self, aborts: int, now: float) -> bool:
        """Return True if the pass has exceeded its total limit, even if it makes progress. The limit doubles with each
        aborted attempt at the step, and grows with each fence.
        """
        return now - self._pass_state.judged_from > self.limit_s(aborts)

    def limit_s(self, aborts: int) -> float:
        """Seconds that the pass may take after this number of aborted attempts at the step."""
        return self._settings.step_budget_s * (STEP_BUDGETS + self._pass_state.fences) * float(2 ** min(aborts, 6))

    @property
    def worth_s(self) -> float:
        """The longest time in seconds for which a forward-only pass may delay training.

        This is two usual steps, and proportionally more if the pass has more microbatches than a step. If the usual
        duration of a step is unknown, it is a step budget.
        """
        pass_state = self._pass_state
        settings = self._settings
        if not pass_state.opening.step_s:
            return settings.step_budget_s
        microbatches = len(pass_state.tables[0].assignment)
        steps = WORTH_STEPS * max(1.0, microbatches / settings.microbatches)
        return max(steps * pass_state.opening.step_s, WORTH_BEATS * settings.heartbeat_s)

    def outlasts(self, now: float) -> str:
        """The reason why a forward-only pass, or its sample, has taken too long. Empty if it has not."""
        allowed = self.worth_s
        for began, limit in (
            (self._pass_state.judged_from, allowed),
            (self._pass_state.since, WORTH_OF_SAMPLE * allowed),
        ):
            if now - began > limit:
                return f"not complete after {now - began:.1f} s (deadline {limit:.1f} s)"
        return ""

    @property
    def while_s(self) -> float:
        """Seconds in which a peer must finish at least one microbatch of a forward-only pass: half of the pass's
        limit.
        """
        return self.worth_s / 2
