"""A run on machines of different kinds, whose gradients differ in their last bits. So the right result depends on the
machines.

The result of a step is not known beforehand. A decision is right if it contains each microbatch once and equals what a
stage reduced. From then on, every replica must hold this result. A step that is done again after a rollback may have
another result.
"""

from __future__ import annotations

from swarm.protocol.clipping import step_scale
from swarm.protocol.messages import Decision
from swarm.protocol.settings import Settings
from swarm.simulation.toy.toy_model import (
    Ideal,
    IdealStep,
    bucket_share,
    explain_sum,
    initial_state,
    is_whole,
    loss_sum_of,
    squared_norm_of,
    stepped_state,
)


class UnlikeRun:
    """Call `reduced` for every result of a stage, and `decide` for each decision in order. Then `ideal` contains the
    results.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._states = [tuple(initial_state(stage) for stage in range(settings.stages))]
        self._steps: list[IdealStep] = []
        self._of: dict[Decision, tuple[IdealStep, tuple[int, ...]]] = {}
        self._sums: dict[tuple[int, str], tuple[int, ...]] = {}
        """{(stage, digest): sums by bucket}"""

    @property
    def ideal(self) -> Ideal:
        return Ideal(tuple(self._states), tuple(self._steps))

    def of(self, decision: Decision) -> tuple[IdealStep, tuple[int, ...]]:
        """The step of a decision, and the states after it. A peer that was cut off may apply it after another
        decision.
        """
        return self._of[decision]

    def reduced(self, stage: int, digest: str, sums: tuple[int, ...]) -> None:
        self._sums[stage, digest] = sums

    def decide(self, decision: Decision) -> str:
        """Return what is wrong with the decision, as text; empty: nothing."""
        step, stages = int(decision.step), self._settings.stages
        digests = tuple(outcome.digest for outcome in decision.outcomes)
        if any(key not in self._sums for key in enumerate(digests)):
            return f"step {step} is decided with bytes that no stage reduced"
        sums = tuple(self._sums[key] for key in enumerate(digests))
        for stage, of_stage in enumerate(sums):
            if not is_whole(of_stage[0], self._settings.microbatches) or of_stage != _shares(of_stage):
                return f"step {step}, stage {stage}: {explain_sum(of_stage[0], self._settings.microbatches)}"
        norms = (squared_norm_of(stage, of_stage) for stage, of_stage in enumerate(sums))
        scale, _ = step_scale(norms, self._settings.targets_per_step, self._settings.optimizer.clip_norm)
        loss = sum(loss_sum_of(stage, stages, of_stage) for stage, of_stage in enumerate(sums))
        del self._steps[step:], self._states[step + 1 :]
        self._steps.append(IdealStep(sums, digests, scale, loss))
        before, by = self._states[-1], 0.0 if decision.skip else scale
        self._states.append(tuple(stepped_state(s, before[s], sums[s], by) for s in range(stages)))
        self._of[decision] = self._steps[-1], self._states[-1]
        return ""


def _shares(sums: tuple[int, ...]) -> tuple[int, ...]:
    """The values of all buckets, computed from the first one."""
    return tuple(bucket_share(sums[0], bucket) for bucket in range(len(sums)))
