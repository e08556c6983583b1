"""What a fault cost: the time of a step in which something went wrong, less what a step usually takes.

It counts from the opening of the first attempt at the step, or from a loss while no step was open, to the decision.
What is usual is the median of the last steps in which nothing went wrong; a step that was computed twice for an audit
is neither. A rollback costs the steps that are done again as well. Evaluations are looked at by themselves, against
other evaluations: each costs what steps could have been trained in that time.
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
"""That are told of one step; there may be hundreds."""


class FaultCosts:
    """Told of a step by `opened`, `aborted` and `decided`, of what goes wrong between steps by the others.

    The same of evaluations, in an object of their own, which are `given_up` when they were aborted too often.
    """

    def __init__(self, settings: Settings, step_s: Callable[[], float] | None = None) -> None:
        """`step_s`: what a step takes, where it is evaluations that are looked at; 0: not known."""
        self._settings = settings
        self._step_s = step_s
        self._usual: deque[float] = deque(maxlen=USUAL_STEPS)
        """Seconds of the last undisturbed steps."""
        self._since: float | None = None
        """When the step that is done now was begun. None: none is."""
        self._reasons: dict[str, str] = {}
        """By actor, or by another name of what went wrong: why."""
        self._actors: list[str] = []
        self._again = 0
        """Microbatches done again."""
        self._steps_again = 0
        self._twice = False
        """The step is computed again to audit it."""
        self._begun = False
        """A step was opened in this life of the coordinator."""

    @property
    def usual_s(self) -> float:
        """What an undisturbed step takes; 0: none was seen."""
        return median(self._usual) if self._usual else 0.0

    def opened(self, now: float) -> None:
        """An attempt at a step."""
        self._begun = True
        if self._since is None:
            self._since = now

    def lost(self, actor: Actor, reason: str, now: float) -> None:
        """Somebody who held a stage is gone while no step was open."""
        if self._begun:
            self.opened(now)
            self._blame(str(actor), reason)

    def aborted(self, pass_state: PassState, reason: str) -> None:
        """An attempt came to nothing: all that was accumulated in it is void."""
        self._take(pass_state)
        self._again += sum(pass_state.accumulated(stage) for stage in range(len(pass_state.tables)))
        self._reasons.setdefault("", reason)

    def audited(self, pass_state: PassState) -> None:
        """An attempt is done again by others, to compare."""
        self._take(pass_state)
        self._twice = True

    def expelled(self, actor: Actor, reason: str) -> None:
        self._blame(str(actor), reason)

    def rolled_back(self, steps: int, reason: str) -> None:
        """So many decided steps are done again."""
        self._steps_again += steps
        self._again += steps * self._settings.microbatches * self._settings.stages
        self._reasons.setdefault("", reason)

    def decided(self, pass_state: PassState, without: frozenset[Actor], now: float) -> FaultCosted | None:
        """A step is. None: nothing went wrong in it."""
        for actor in sorted(without):
            self._blame(str(actor), "lost after all others were prepared")
        self._take(pass_state)
        return self._told(pass_state, now)

    def given_up(self, pass_state: PassState, now: float) -> FaultCosted | None:
        """What was `aborted` is not tried again."""
        return self._told(pass_state, now)

    def take_over(self, other: FaultCosts) -> None:
        """What `other` has begun is not finished: what went wrong in it counts here."""
        if other._reasons:
            self._since = other._since if self._since is None else self._since
            self._actors += [actor for actor in other._actors if actor not in self._reasons]
            self._reasons = other._reasons | self._reasons
            self._again += other._again
        other.forget()

    def forget(self) -> None:
        """What was begun is of no interest any more."""
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
