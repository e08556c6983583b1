"""The coordinator's record of a pass whose first and last stage hold some of the same parameters."""

from dataclasses import replace
from typing import Any

from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.coordinator.passes.late_reductions import LateReductions
from swarm.protocol.coordinator.passes.pass_state import PassState
from swarm.protocol.ids import Actor, PassId, PassKind, StepNumber, Term
from swarm.protocol.messages import UNTOLD, Open, Prepared, StageTable, Status
from swarm.protocol.update import STILL
from swarm.simulation.runs.plan import small_settings

ROSTERS = ((Actor("a", 1), Actor("b", 1)), (Actor("m", 1),), (Actor("y", 1), Actor("z", 1)))
PASS = PassId(Term(1), StepNumber(0))
NOBODY: frozenset[Actor] = frozenset()


def pass_state(rosters: tuple[tuple[Actor, ...], ...] = ROSTERS) -> PassState:
    settings = small_settings(stages=3, microbatches=2, steps=2, replicas=2, ends_share=True)
    tables = tuple(StageTable(0, roster, (0, len(roster) - 1)) for roster in rosters)
    weights = {actor: 1.0 for roster in rosters for actor in roster}
    return PassState(
        Open(PASS, PassKind.TRAIN, tables, None),
        weights=weights,
        now=0.0,
        partner=settings.partner,
    )


def prepare(record: PassState, *stages: int, shared: str = "same") -> None:
    for stage in stages:
        said = Prepared(record.attempt(stage), f"of {stage}", 1.0, 0.0, shared=shared if stage != 1 else "")
        record.preparation.reports[stage] = dict.fromkeys(record.tables[stage].roster, said)


def amended(table: StageTable) -> StageTable:
    return replace(table, number=table.number + 1)


def test_a_step_is_decided_if_both_ends_hold_the_same() -> None:
    record = pass_state()
    prepare(record, 0, 1, 2)
    assert record.preparation.decide(10, 1.0, STILL, NOBODY) is not None and record.preparation.disagreeing() is None
    prepare(record, 2, shared="other")
    assert record.preparation.decide(10, 1.0, STILL, NOBODY) is None
    assert record.preparation.decide(10, 1.0, STILL, frozenset({ROSTERS[2][0]})) is None
    assert record.preparation.disagreeing() == 2


def test_nobody_disagrees_before_all_have_spoken() -> None:
    record = pass_state()
    prepare(record, 0)
    prepare(record, 2, shared="other")
    assert record.preparation.disagreeing() is None
    assert record.preparation.decide(10, 1.0, STILL, NOBODY) is None


def test_a_table_of_one_end_voids_what_the_other_has_prepared() -> None:
    for changed, other in ((0, 2), (2, 0)):
        record = pass_state()
        prepare(record, 0, 1, 2)
        before = record.attempt(other)
        record.amend(changed, amended(record.tables[changed]))
        assert (before.number, before.partner) == (0, 0)
        assert (record.attempt(other).number, record.attempt(other).partner) == (0, 1)
        assert (record.attempt(changed).number, record.attempt(changed).partner) == (1, 0)
        reports = record.preparation.reports
        assert not reports[changed] and not reports[other] and reports[1]
        assert record.attempt(1).partner == -1, "the stage between shares nothing"


def test_a_table_of_a_stage_between_voids_nothing_of_the_ends() -> None:
    record = pass_state()
    prepare(record, 0, 1, 2)
    record.amend(1, amended(record.tables[1]))
    assert record.preparation.reports[0] and record.preparation.reports[2] and not record.preparation.reports[1]


def test_whom_a_table_concerns() -> None:
    record = pass_state()
    assert [record.concerned(stage) for stage in range(3)] == [[0, 1, 2]] * 3
    seven = PassState(
        Open(PASS, PassKind.TRAIN, tuple(StageTable(0, (Actor(name, 1),), (0, 0)) for name in "abcdefg"), None),
        weights={},
        now=0.0,
        partner=small_settings(stages=7, microbatches=2, steps=2, replicas=1, ends_share=True).partner,
    )
    near = [[0, 1, 2, 6], [0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [2, 3, 4, 5, 6], [3, 4, 5, 6], [0, 4, 5, 6]]
    assert [seven.concerned(stage) for stage in range(7)] == near
    told = [seven.told(seven.stages_near(Actor(name, 1))) for name in "abcdefg"]
    assert [[s for s, table in enumerate(tables) if table != UNTOLD] for tables in told] == near


def test_a_reduce_of_one_end_is_late_only_from_when_both_are_sealed() -> None:
    record = pass_state()
    for at, actor in ((1.0, ROSTERS[2][0]), (1.0, ROSTERS[2][1]), (1.0, ROSTERS[1][0])):
        record.on_status(Status(actor, None, 0, PASS, (0, 0, 0), done=0b11), at)
    assert record.reductions.sealed_since(1) == 1.0 and record.reductions.sealed_since(2) is None
    for actor in ROSTERS[0]:
        record.on_status(Status(actor, None, 0, PASS, (0, 0, 0), done=0b11), 7.0)
    assert record.reductions.sealed_since(0) == record.reductions.sealed_since(2) == 7.0


def guilty(
    stage: int,
    *,
    stages: tuple[str, str, str] = ("ab", "m", "yz"),
    prepared: str = "",
    slower: str = "",
    behind: str = "",
    accused: bool = False,
    **awaited: str,
) -> Any:
    """Who is taken to hold up a stage's reduce, by whom each says it waits for.

    `slower`: who has said that its uplink is slow. `behind`: who has not heard of the newest tables. `accused`: not who
    that is, but for whom alone it says it waits itself.
    """
    rosters = tuple(tuple(Actor(name, 1) for name in names) for names in stages)
    record, members = pass_state(rosters), Members()
    for s, roster in enumerate(rosters):
        for actor in roster:
            names = tuple(Actor(name, 1) for name in awaited.get(actor.peer, ""))
            member = members.add(actor, 0.0)
            told = (1 if actor.peer in behind else 0, 0, 0)
            member.status = Status(actor, None, 0, PASS, told, awaited=names)
            member.offered_uplink = 1e5 if actor.peer in slower else 1e7
            if actor.peer in prepared:
                record.preparation.reports[s][actor] = Prepared(record.attempt(s), "", 1.0, 0.0)
    settings = small_settings(stages=3, microbatches=2, steps=2, replicas=2, ends_share=True)
    reductions = LateReductions(record, members, settings)
    actor = reductions.holds_up(stage)
    if accused:
        return () if actor is None else reductions.kept_waiting_by(actor)
    return actor


def test_most_of_those_that_wait_say_for_whom_in_either_stage() -> None:
    (a, b), _, (y, z) = ROSTERS
    assert guilty(0) == b and guilty(2) == z and guilty(1) is None, "nobody says anything, and one is the last of all"
    assert guilty(0, b="y", z="y") == guilty(2, b="y", z="y") == y
    assert guilty(0, a="byz", b="a", y="a", z="a") == a, "who is slow, or lies, names all the others"
    assert guilty(0, a="bb", b="a", y="a", z="ma") == a, "nobody names itself, twice, or one that takes no part"


def test_who_is_prepared_waits_for_all_who_are_not() -> None:
    b, c = Actor("b", 1), Actor("c", 1)
    three, two = ("m", "abc", "y"), ("m", "ab", "y")
    assert guilty(1, stages=three, prepared="ab", c="ab") == c, "the siblings that are done are not to go for it"
    assert guilty(1, stages=two, prepared="a", b="a") == b
    assert guilty(1, stages=two, prepared="b", a="b") == Actor("a", 1)


def test_nobody_goes_for_one_that_cannot_be_spared() -> None:
    assert guilty(0, stages=("ab", "m", "y"), a="y", b="y", y="ab") is None
    assert guilty(0, stages=("ab", "m", "y"), a="y", b="a", y="a") == Actor("a", 1), "most wait for another"


def test_of_two_that_wait_for_each_other_the_slower_goes() -> None:
    for slower in "ab":
        assert guilty(1, stages=("m", "ab", "y"), slower=slower, a="b", b="a") == Actor(slower, 1)


def test_whom_the_one_that_all_wait_for_waits_for() -> None:
    """c keeps its part from b alone, so that all others lack what b sums."""
    three, c = ("m", "abc", "y"), Actor("c", 1)
    assert guilty(1, stages=three, a="b", b="c", c="b") == Actor("b", 1)
    assert guilty(1, stages=three, a="b", b="c", c="b", accused=True) == (c,)
    assert guilty(1, stages=three, a="b", b="ac", c="b", accused=True) == (), "its own line may be slow"
    assert guilty(1, stages=three, a="b", c="b", accused=True) == ()
    five, d = ("m", "abcde", "y"), Actor("d", 1)
    assert guilty(1, stages=five, a="b", b="cd", c="b", d="b", e="b", accused=True) == (c, d)


def test_who_speaks_of_older_tables_has_no_vote() -> None:
    assert guilty(1, stages=("m", "ab", "y"), a="b", b="a") == Actor("b", 1)
    assert guilty(1, stages=("m", "ab", "y"), behind="a", a="b", b="a") == Actor("a", 1)
