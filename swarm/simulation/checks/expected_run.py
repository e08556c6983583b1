"""The result of the toy model without faults, given the decisions that influence the result."""

from __future__ import annotations

from collections.abc import Callable

from swarm.protocol.messages import CodecPair, Contribution, Decision
from swarm.simulation.checks.watched import WorldView
from swarm.simulation.faults.unlike import UnlikeRun
from swarm.simulation.kernel.violation import Violation
from swarm.simulation.toy.toy_model import Ideal, IdealStep, ideal_run


class ExpectedRun:
    """The ideal run. A decision with a new rate, key frames, codecs, contributions or SKIP changes it."""

    def __init__(self, world: WorldView, steps: Callable[[], int]) -> None:
        """`steps` returns the number of steps after which the run should end."""
        self._world, self._steps = world, steps
        self._skipped: frozenset[int] = frozenset()
        self._key_frames: dict[int, tuple[int, ...]] = {}
        self._contributions: dict[int, tuple[tuple[Contribution, ...], ...]] = {}
        self._codecs: dict[int, tuple[CodecPair, ...]] = {}
        self._rates: dict[int, float] = {}
        """For each step, the rate in its decision. The other dictionaries hold the other parts of the decisions."""
        self._taken: dict[int, tuple[tuple[int, ...], ...]] = {}
        """The wrong sums that were decided where the protocol allows it: for each step, the sums of each stage."""
        self._reduced: dict[tuple[int, str], tuple[int, ...]] = {}
        """The sums that stages have reduced: {(stage, digest): the sum of each bucket}"""
        self._decided: dict[int, Decision] = {}
        """For each step, the last decision."""
        self._undone: dict[tuple[int, int], tuple[IdealStep, tuple[int, ...]]] = {}
        """What `of` returns for the decisions that a rollback has undone, by term and step. A peer that has not heard
        of the rollback may still apply them.
        """
        self._unlike = UnlikeRun(world.settings) if world.unlike else None
        self.ideal = self._computed()

    def reduced(self, stage: int, digest: str, sums: tuple[int, ...]) -> None:
        """A peer of `stage` holds these reduced buckets."""
        self._reduced[stage, digest] = sums
        if self._unlike is not None:
            self._unlike.reduced(stage, digest, sums)

    def of(self, decision: Decision) -> tuple[IdealStep, tuple[int, ...]]:
        """The ideal step of this decision, and the state of each stage after it."""
        if self._unlike is not None:
            return self._unlike.of(decision)
        if (undone := self._undone.get((decision.term, decision.step))) is not None:
            return undone
        return self.ideal.steps[decision.step], self.ideal.states[decision.step + 1]

    def compute_again(self) -> None:
        self.ideal = self._computed()

    def writes(self, decision: Decision) -> None:
        """`decision` is about to be recorded."""
        step, changed = decision.step, False
        if decision.rate != self._rates.get(step, 1.0):
            self._rates[step], changed = decision.rate, True
        if decision.key_frames:
            self._key_frames[step], changed = decision.key_frames, True
        if self._world.settings.averages_compressed:
            self._contributions[step] = tuple(outcome.contributions for outcome in decision.outcomes)
            changed = True
        if self._world.choosing:
            self._codecs[step], changed = decision.codecs, True
        if self._unlike is not None:
            if wrong := self._unlike.decide(decision):
                raise Violation("exactly once", wrong)
            changed = True
        if changed:
            self.compute_again()

    def takes(self, decision: Decision) -> None:
        """The sums of `decision` are wrong and become part of the run: all that follows is computed from them.

        Raises Violation if no stage has reduced them.
        """
        found = [self._reduced.get((stage, outcome.digest)) for stage, outcome in enumerate(decision.outcomes)]
        if None in found:
            raise Violation("exactly once", f"step {decision.step} is decided with bytes that no stage reduced")
        self._taken[decision.step] = tuple(sums for sums in found if sums is not None)
        self.compute_again()

    def decided(self, decision: Decision) -> None:
        """`decision` is recorded."""
        self._decided[decision.step] = decision
        if decision.skip != (decision.step in self._skipped):
            self._skipped ^= {decision.step}
            self.compute_again()

    def rolled_back(self, version: int) -> None:
        for decision in [each for step, each in self._decided.items() if step >= version]:
            self._undone[decision.term, decision.step] = self.of(decision)
            del self._decided[decision.step]
        self._contributions = {step: found for step, found in self._contributions.items() if step < version}
        if any(step >= version for step in self._taken):
            self._taken = {step: sums for step, sums in self._taken.items() if step < version}
            self.compute_again()

    def _computed(self) -> Ideal:
        if self._unlike is not None:
            return self._unlike.ideal
        s, visits = self._world.settings, self._world.visits
        steps = max(s.steps, self._steps())
        run = (s.stages, s.microbatches, steps, s.tokens_per_step, s.optimizer.clip_norm, self._skipped)
        shares = tuple(self._contributions.get(step) for step in range(steps)) if s.averages_compressed else ()
        rates = tuple(self._rates.get(step, 1.0) for step in range(steps)) if self._rates else ()
        taken = tuple(map(self._taken.get, range(steps))) if self._taken else ()
        if self._world.choosing:
            chosen = tuple(self._codecs.get(step, ()) for step in range(steps))
            return ideal_run(*run, codecs=chosen, ends_share=s.ends_share, rates=rates)
        if visits is None:
            return ideal_run(*run, contributions=shares, ends_share=s.ends_share, rates=rates, taken=taken)
        visited = (visits.previous(step) for step in range(steps))
        known = tuple(self._key_frames.get(step) for step in range(steps))
        before = tuple(-1 if step is None else step for step in visited)
        return ideal_run(*run, before, known, shares, ends_share=s.ends_share, rates=rates)
