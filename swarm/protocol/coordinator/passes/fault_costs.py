"""Measures the cost of a fault: the duration of a step in which something failed, minus the usual duration of a step.

The duration runs from the opening of the first attempt at the step, or from a loss while no step was open, to the
decision. The usual duration is the median over the last steps without a failure. A step that is computed twice for an
audit counts neither as usual nor as faulty. A rollback also costs the steps that are done again. Evaluations are
compared with other evaluations; the cost is the number of steps that could have been trained in that time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

from swarm.events import FaultCosted
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor
from swarm.protocol.settings import Settings

USUAL_STEPS = 8
MOST_REASONS = 4
"""Number of reasons that are reported for one step; there may be hundreds."""


class FaultCosts:
    """The costs of faults. `opened`, `aborted` and `decided` report the progress of a step; other methods report
    failures.

    Evaluations use a separate object; `given_up` reports an evaluation that was aborted too often.
    """

    def __init__(self, settings: Settings, step_s: Callable[[], float] | None = None) -> None:
        """`step_s`: usual seconds of a step, for an object that measures evaluations; 0: unknown."""
        self._settings = settings
        self._step_s = step_s
        self._usual: deque[float] = deque(maxlen=USUAL_STEPS)
        """Seconds of the last steps without a failure."""
        self._since: float | None = None
        """The time when the current step began. None: no step is in progress."""
        self._reasons: dict[str, str] = {}
        """The reason for each failure, by the actor or another name of the cause."""
        self._actors: list[str] = []
        self._again = 0
        """Number of microbatches done again."""
        self._steps_again = 0
        self._twice = False
        """True if the step is computed twice to audit it."""
        self._begun = False
        """True if a step was opened since the coordinator started."""

    @property
    def usual_s(self) -> float:
        """Usual seconds of a step without a failure; 0: none was seen yet."""
        return median(self._usual) if self._usual else 0.0

    def opened(self, now: float) -> None:
        """An attempt at a step begins."""
        self._begun = True
        if self._since is None:
            self._since = now

    def lost(self, actor: Actor, reason: str, now: float) -> None:
        """An actor that held a stage is gone while no step was open."""
        if self._begun:
            self.opened(now)
            self._blame(str(actor), reason)

    def aborted(self, pass_state: PassState, reason: str) -> None:
        """An attempt is aborted. All that was accumulated in it is void."""
        self._take(pass_state)
        self._again += sum(pass_state.accumulated(stage) for stage in range(len(pass_state.tables)))
        self._reasons.setdefault("", reason)

    def audited(self, pass_state: PassState) -> None:
        """Other peers repeat the attempt, so that the results can be compared."""
        self._take(pass_state)
        self._twice = True

    def expelled(self, actor: Actor, reason: str) -> None:
        self._blame(str(actor), reason)

    def rolled_back(self, steps: int, reason: str) -> None:
        """`steps` decided steps are done again."""
        self._steps_again += steps
        self._again += steps * self._settings.microbatches * self._settings.stages
        self._reasons.setdefault("", reason)

    def decided(self, pass_state: PassState, without: frozenset[Actor], now: float) -> FaultCosted | None:
        """The step is decided. Return its cost, or None if nothing failed in it."""
        for actor in sorted(without):
            self._blame(str(actor), "lost after all others were prepared")
        self._take(pass_state)
        return self._told(pass_state, now)

    def given_up(self, pass_state: PassState, now: float) -> FaultCosted | None:
        """The `aborted` evaluation is not tried again. Return its cost."""
        return self._told(pass_state, now)

    def take_over(self, other: FaultCosts) -> None:
        """The step of `other` was not finished: count its failures here."""
        if other._reasons:
            self._since = other._since if self._since is None else self._since
            self._actors += [actor for actor in other._actors if actor not in self._reasons]
            self._reasons = other._reasons | self._reasons
            self._again += other._again
        other.forget()

    def forget(self) -> None:
        """Forget the current step without reporting its cost."""
        self._since = None
        self._reasons = {}
        self._actors = []
        self._again = self._steps_again = 0
        self._twice = False

    def _told(self, pass_state: PassState, now: float) -> FaultCosted | None:
        took = now - (pass_state.opened_at if self._since is None else self._since)
        usual = self.usual_s
        step_s = usual if self._step_s is None else self._step_s()
        costed = None
        if self._reasons:
            lost = 0.0 if not usual else max(0.0, took - usual) + self._steps_again * usual
            costed = FaultCosted(
                pass_id=str(pass_state.pass_id),
                step=pass_state.pass_id.step,
                actors=list(self._actors),
                microbatches=self._again,
                seconds=lost,
                usual_s=usual,
                tokens=round(lost * self._settings.tokens_per_step / step_s) if step_s else 0,
                reason=self._words(),
                reasons=[self._reasons[actor] for actor in self._actors[:MOST_REASONS]],
            )
        elif not self._twice:
            self._usual.append(took)
        self.forget()
        return costed

    def _take(self, pass_state: PassState) -> None:
        for actor, reason in pass_state.disturbers.items():
            self._blame(str(actor), reason)
        self._again += pass_state.done_again

    def _blame(self, actor: str, reason: str) -> None:
        if actor not in self._reasons:
            self._actors.append(actor)
        self._reasons[actor] = reason

    def _words(self) -> str:
        told = [f"{actor}: {why}" if actor else why for actor, why in list(self._reasons.items())[:MOST_REASONS]]
        more = len(self._reasons) - len(told)
        return "; ".join(told) + (f"; and {more} more" if more else "")
