"""When a run counts as diverged, and what follows: the record alone says how often it went back, and how far."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_stage import ME, ONE, STAGE, TWO, Run, sent, settings

from swarm.events import RunDiverged, StateDrifted
from swarm.manifest import DivergenceSection
from swarm.protocol import messages as m
from swarm.protocol.controls import Controls, Retreat, check
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import (
    ArchiveStored,
    CollectCheckpoint,
    CommandWritten,
    RecordWritten,
    TermWritten,
    WriteCommand,
    WriteRecord,
    WriteTerm,
)
from swarm.protocol.coordinator.phase import Phase
from swarm.protocol.ids import Actor, Attempt, StepNumber, Term
from swarm.protocol.io import Emit, Stop, Tick
from swarm.protocol.messages import ArchivedEntry, CommandEntry, Decision, DecisionEntry, StageOutcome, TermEntry
from swarm.protocol.raft.log import Standing
from swarm.protocol.soundness import Soundness, to_keep
from swarm.simulation.runs.runner import run_seed


def diverging(**section: object) -> Run:
    of = replace(settings(steps=9), divergence=DivergenceSection.model_validate(section), checkpoint_every=1)
    run = Run(of)
    run.load(ONE, TWO)
    return run


def told(run: Run, kind: type) -> list[object]:
    return [order.event for order in run.orders if isinstance(order, Emit) and isinstance(order.event, kind)]


def prepared(run: Run, **what: object) -> m.Prepared:
    return m.Prepared(Attempt(run.pass_id, STAGE, 0), "d", 1.0, 1.0, **what)  # type: ignore[arg-type]


def skip(run: Run, *, goes_back: bool = True) -> list[object]:
    """Whoever computes a step finds it not finite, in every attempt. What follows the last one, and the decision.

    `goes_back`: as in `advance`.
    """
    version = run.core.history.version
    orders: list[object] = []
    for _ in range(8):
        if run.core.open_pass is None or run.core.history.version > version:
            break
        run.orders.clear()
        orders = [order for actor in (ONE, TWO) for order in hear(run, actor)]
        run.now += 1.0
        orders += advance(run, goes_back=goes_back)
        for actor in (ONE, TWO):
            orders += run.report(actor)
    return orders


def hear(run: Run, actor: Actor) -> list[object]:
    return [] if run.core.open_pass is None else run.hear(actor, prepared(run, finite=False))


def advance(run: Run, *, goes_back: bool = True) -> list[object]:
    """What the coordinator wants written is on disk, one after the other. `goes_back`: False if the term of a rollback
    is not.
    """
    made: list[object] = []
    for _ in range(8):
        write = next((o for o in run.orders if isinstance(o, WriteTerm | WriteRecord | WriteCommand)), None)
        if write is None:
            break
        if isinstance(write, WriteTerm) and write.rollback_to is not None and not goes_back:
            break
        run.orders.clear()
        match write:
            case WriteTerm():
                made += run.take(TermWritten(write.term))
            case WriteRecord():
                made += run.take(RecordWritten(write.decision))
                run.versions = dict.fromkeys(run.versions, run.core.history.version)
            case WriteCommand():
                made += run.take(CommandWritten(write.command))
    return made


def test_what_the_decisions_say_of_the_parameters() -> None:
    decision = Decision(Term(1), StepNumber(0), 0.5, 1.0, 64, 1.0, (StageOutcome(0, "x"),))
    steps = [replace(decision, step=StepNumber(n), scale=0.0 if n in (2, 5, 6) else 0.5) for n in range(7)]
    sound = Soundness()
    seen = []
    for step in steps:
        sound = sound.after(step)
        seen.append((sound.proven, sound.skipped))
    assert seen == [(0, 0), (1, 0), (1, 1), (3, 0), (4, 0), (4, 1), (4, 2)]
    assert sound.rolled_back(3) == Soundness(3, 0) and sound.rolled_back(6) == Soundness(4, 0)


def test_the_newest_checkpoint_that_is_good_is_kept() -> None:
    assert to_keep([2, 4, 6, 8], 1, 5) == {4, 8}
    assert to_keep([2, 4, 6, 8], 2, 7) == {6, 8}
    assert to_keep([4, 6, 8], 1, 3) == {4, 8}, "none has proved its worth: the oldest"
    assert to_keep([2, 4], 1, None) == {4} and to_keep([], 1, 3) == set()


def test_a_group_remembers_the_checkpoints_that_it_may_go_back_to() -> None:
    decision = Decision(Term(1), StepNumber(0), 0.5, 1.0, 64, 1.0, (StageOutcome(0, "x"),))
    standing = Standing(1)
    for step in range(6):
        of = replace(decision, step=StepNumber(step), scale=0.0 if step > 3 else 0.5)
        standing = standing.after(DecisionEntry(1, of))
        standing = standing.after(ArchivedEntry(1, step + 1, Term(1), (f"v{step + 1}",)))
    assert [entry.version for entry in standing.checkpoints] == [3, 4, 5, 6] and standing.soundness == Soundness(3, 2)
    back = standing.after(TermEntry(1, Term(2), 3))
    assert back.version == 3 and back.archived is not None and back.archived.version == 3
    assert back.soundness == Soundness(3, 0) and back.decision is not None and back.decision.step == 2


def test_a_single_skip_is_an_accident() -> None:
    run = diverging(skips=2)
    skip(run)
    assert run.core.phase is Phase.OPEN and run.core.history.version == 1
    run.decide(ONE, TWO)
    skip(run)
    assert run.core.phase is Phase.OPEN and run.core.history.version == 3, "two, but not one after the other"
    assert not told(run, RunDiverged)


def test_several_in_a_row_end_the_run() -> None:
    run = diverging(skips=2)
    for version in (1, 2):
        run.decide(ONE, TWO)
        run.take(ArchiveStored(version, run.core.history.term, ("x",)))
    skip(run)
    made = skip(run)
    (back,) = [order for order in made if isinstance(order, WriteTerm) and order.rollback_to is not None]
    assert back.rollback_to == 1, "version 2 led to nothing finite"
    halts = sent(made, m.Halt)
    assert halts and "2 steps in a row were skipped up to step 3" in halts[0].reason
    assert "good checkpoint is version 1," in halts[0].reason
    ended = run.heartbeats(5.0)
    assert [order.failed for order in ended if isinstance(order, Stop)][:1] == [True]


def test_no_checkpoint_is_ordered_while_the_run_goes_back() -> None:
    run = diverging(skips=1)
    run.decide(ONE, TWO)
    run.take(ArchiveStored(1, run.core.history.term, ("x",)))
    made = skip(run, goes_back=False)
    (back,) = [order for order in made if isinstance(order, WriteTerm) and order.rollback_to is not None]
    assert back.rollback_to == 0 and run.core.history.version == 2

    def orders() -> list[object]:
        run.saved = dict.fromkeys((ONE, TWO), (2, "saved before"))
        reported = [order for actor in (ONE, TWO) for order in run.report(actor)]
        return [order for order in reported if isinstance(order, CollectCheckpoint)]

    assert not orders()
    run.take(TermWritten(back.term))
    assert not orders(), "the version is void"


def test_it_goes_back_so_many_times_as_the_record_says() -> None:
    run = diverging(skips=1, action="go_back", rate=0.5, times=1)
    made = skip(run)
    (command,) = [order.command for order in made if isinstance(order, WriteCommand)]
    assert (command.name, command.by) == ("go_back", "coordinator")
    assert Retreat.read(command.value).rate == 0.5 and "skipped" in command.why
    assert [order.rollback_to for order in made if isinstance(order, WriteTerm)][-1] == 0
    assert run.core.history.controls.rate == 0.5 and run.core.history.controls.retreats == 1


@pytest.mark.parametrize(
    ("before", "section"),
    [(0.5, {"times": 1}), pytest.param(1e-300, {"times": 9, "rate": 1e-36}, id="no smaller rate")],
)
def test_a_coordinator_that_starts_again_counts_on(before: float, section: dict[str, float]) -> None:
    divergence = DivergenceSection.model_validate({"skips": 1, "action": "go_back", **section})
    run = Run(replace(settings(steps=9), divergence=divergence))
    command = m.Command(1, "go_back", Retreat(0, 0, before).value, "coordinator", "why", "r")
    run.core = CoordinatorCore(ME, run.core.settings, 1, None, None, 1, controls=Controls.of([command]))
    run.take(Tick())
    run.take(TermWritten(2))
    for actor in (ONE, TWO):
        run.hear(actor, m.Join(actor))
    run.load(ONE, TWO)
    assert sent(skip(run), m.Halt)


def test_who_starts_between_the_command_and_the_way_back_goes_back() -> None:
    command = m.Command(1, "go_back", Retreat(1, 3, 0.5).value, "coordinator", "why", "r")
    last = Decision(Term(3), StepNumber(3), 0.0, 1.0, 64, 1.0, (StageOutcome(0, "x"),))
    core = CoordinatorCore(ME, settings(steps=9), 3, last, 3, 0, controls=Controls.of([command]), kept=(1,))
    core.handle(Tick(), 0.0)
    orders = core.handle(TermWritten(4), 0.1)
    assert [order.rollback_to for order in orders if isinstance(order, WriteTerm)] == [1]
    assert not [order for order in orders if isinstance(order, WriteCommand)], "once is enough"


def test_nobody_alone_can_say_that_parameters_are_not_finite() -> None:
    run = diverging()
    run.hear(ONE, prepared(run))
    run.hear(TWO, prepared(run, spoilt=True))
    (drifted,) = told(run, StateDrifted)
    assert drifted.reload == [str(TWO)] and not told(run, RunDiverged)


@pytest.mark.parametrize("value", ["", "1 2", "1 2 0", "1 2 nan", "-1 2 0.5", "1 x 0.5", "1 2 0.5 4"])
def test_a_command_to_go_back_says_where_and_how_fast(value: str) -> None:
    with pytest.raises(ValueError, match=r"a version, a term and a rate|is not a rate"):
        check(m.Command(1, "go_back", value, "coordinator", "", "r"))


def test_the_organiser_cannot_give_it() -> None:
    """It is a coordinator's own: `rate` and a restart are the organiser's."""
    entry = CommandEntry(1, m.Command(1, "go_back", Retreat(1, 3, 0.5).value, "coordinator", "", "r"))
    assert Standing(1).after(entry).controls.retreat == Retreat(1, 3, 0.5)


@pytest.mark.parametrize("seed", range(24))
def test_simulated_runs_that_diverge_stop_or_go_back(seed: int) -> None:
    outcome = run_seed("diverging", seed)
    assert outcome.ok, f"seed {seed}: {outcome.invariant}: {outcome.detail}"
