"""The comparison of deadlines: each policy is in force in its run, and only there; the search finds the least."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import deadlines as benchmark
from benchmarks.deadlines import ADAPTIVE, ENVIRONMENTS, REASONS, SHORTEST, Environment, Policy, play, search
from swarm.events import Event, PeerFenced
from swarm.protocol import timeouts as deadlines
from swarm.protocol.coordinator.membership import failure_detector as silence
from swarm.protocol.coordinator.passes import stragglers as suspicion
from swarm.protocol.peer import in_flight as asked

SEEDS = range(3)


def environment(name: str) -> Environment:
    return next(environment for environment in ENVIRONMENTS if environment.name == name)


def test_a_fixed_deadline_shorter_than_a_microbatch_fences_the_slow_and_the_adaptive_one_nobody():
    slow = environment("very slow")
    adaptive = [play(slow, "none", seed, ADAPTIVE) for seed in SEEDS]
    fixed = [play(slow, "none", seed, SHORTEST) for seed in SEEDS]
    assert all(played.ended for played in adaptive + fixed)
    assert sum(played.wrong for played in adaptive) == 0
    assert all(played.wrong > 0 for played in fixed)
    assert sum(played.seconds for played in fixed) > 1.2 * sum(played.seconds for played in adaptive)


def test_each_of_the_three_deadlines_is_in_force():
    near, lossy = environment("near"), environment("lossy")

    def later(where: Environment, fault: str, **fixed: float) -> float:
        """Seconds lost by deadlines so long."""
        late, usual = (
            sum(play(where, fault, seed, policy).seconds for seed in SEEDS)
            for policy in (replace(ADAPTIVE, **fixed), ADAPTIVE)
        )
        return (late - usual) / len(SEEDS)

    assert later(near, "stall", silence=4.0, stall=6.0) > 1.5
    assert later(near, "swallow", stall=6.0) > 2.0
    assert later(lossy, "none", want=2.0) > 2.0
    originals = deadlines.silence_deadline, deadlines.stall_deadline, deadlines.want_deadline
    assert (silence.silence_deadline, suspicion.stall_deadline, asked.want_deadline) == originals


def test_the_reasons_that_are_counted_are_those_of_the_product() -> None:
    found = set()
    for fault, seed in (("stall", 0), ("swallow", 0), ("swallow", 3)):
        trial = benchmark._Trial(environment("near"), fault, seed)
        watch, reasons = trial._run.world.watch, list[str]()
        emitted = watch.emitted

        def noting(event: Event, emitted: Any = emitted, reasons: list[str] = reasons) -> None:
            if isinstance(event, PeerFenced):
                reasons.append(event.reason)
            emitted(event)

        watch.emitted = noting  # type: ignore[method-assign]
        trial.play()
        assert all(reason.startswith(REASONS) for reason in reasons), reasons
        found |= {known for known in REASONS for reason in reasons if reason.startswith(known)}
    assert found == set(REASONS)


def test_who_is_left_alone_with_a_black_hole_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow replica swallows work for good and holds up the reduce, for which its siblings are fenced. In the next
    attempt at the step they are there again: it would never be decided without them."""
    monkeypatch.setattr(benchmark, "SWALLOWS_S", 1e9)
    assert all(play(environment("uneven"), "swallow", seed, ADAPTIVE).ended for seed in (0, 9))


def test_the_search_ends_where_no_other_value_is_better():
    wanted = Policy(silence=3.0, stall=0.25, want=0.3)

    def cost(policy: Policy) -> tuple[float, ...]:
        pairs = ((getattr(policy, name), getattr(wanted, name)) for name in ("silence", "stall", "want"))
        return (sum(abs(value - target) for value, target in pairs),)

    assert search(cost) == wanted
