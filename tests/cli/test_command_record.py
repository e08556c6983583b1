"""Commands in the decision record: kept through rollbacks, in the order they were given, of one run alone."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from peers.coordinator.group_record import GroupRecord
from peers.coordinator.record import DecisionRecord, RecordError, read_commands, read_decisions
from peers.run.home import Home
from swarm.protocol.controls import Controls
from swarm.protocol.ids import StepNumber, Term
from swarm.protocol.messages import Command, CommandEntry, Decision, StageOutcome, TermEntry
from swarm.protocol.raft.io import WriteGroup
from swarm.protocol.soundness import Soundness

RUN = "ab" * 32
PAUSE = Command(1, "pause", "", "Ann", "a “reason”", "r1")
RATE = Command(2, "rate", "0.1", "Bob", "", "r2")


def decision(step: int, rate: float = 1.0) -> Decision:
    return Decision(Term(1), StepNumber(step), 0.5, 1.0, 64, 1.0, (StageOutcome(0, "x"),), rate=rate)


def test_commands_outlive_restarts_and_rollbacks(tmp_path: Path) -> None:
    record = DecisionRecord(Home(tmp_path).decisions, RUN)
    assert record.commands == []
    record.write_command(PAUSE)
    record.write_decision(decision(0))
    record.write_command(RATE)
    record.write_term(2, rollback_to=0)
    record.close()
    again = DecisionRecord(Home(tmp_path).decisions, RUN)
    assert again.commands == [PAUSE, RATE] and again.last_decision is None
    assert Controls.of(again.commands).rate == 0.1 and Controls.of(again.commands).paused == PAUSE
    with pytest.raises(sqlite3.IntegrityError):
        again.write_command(RATE)
    again.close()


def test_the_rate_of_a_step_is_kept_to_the_last_bit(tmp_path: Path) -> None:
    record = DecisionRecord(Home(tmp_path).decisions, RUN)
    for step, rate in enumerate((1.0, 0.1 + 0.2, 5e-324)):
        record.write_decision(decision(step, rate))
    assert record.last_decision == decision(2, 5e-324)
    record._db.execute("UPDATE decision SET body = json_remove(body, '$.rate') WHERE step = 0")
    record.close()
    kept = read_decisions(Home(tmp_path).decisions, RUN)
    assert [each.rate for each in kept] == [1.0, 0.1 + 0.2, 5e-324]


def test_another_run_is_not_paused_by_what_this_one_was_told(tmp_path: Path) -> None:
    record = DecisionRecord(Home(tmp_path).decisions, RUN)
    record.write_command(PAUSE)
    record.close()
    other = DecisionRecord(Home(tmp_path).decisions, "cd" * 32)
    assert other.commands == []
    other.close()


def test_a_member_of_a_group_has_them_in_its_log_and_for_readers_once_they_stand(tmp_path: Path) -> None:
    record = GroupRecord(Home(tmp_path).decisions, RUN)
    entries = (TermEntry(1, Term(1)), CommandEntry(1, PAUSE), CommandEntry(1, RATE))
    record.write_group(WriteGroup(1, 1, "me", 1, entries, 2))
    assert record.commands == [PAUSE]
    stored = record.stored()
    assert stored.standing.controls == Controls.of([PAUSE]) and stored.tail == (CommandEntry(1, RATE),)
    record.write_group(WriteGroup(2, 2, "", 3, (dataclasses.replace(entries[2], ballot=2),), 3))
    assert record.commands == [PAUSE, RATE]
    record.close()


def test_the_record_knows_which_checkpoints_are_good(tmp_path: Path) -> None:
    """Also after it went back to one of them, and then to one that nothing has proved."""
    record = DecisionRecord(Home(tmp_path).decisions, RUN)
    assert record.soundness == Soundness(0, 0)
    for step in range(4):
        record.write_decision(decision(step))
    for step in (4, 5):
        record.write_decision(dataclasses.replace(decision(step), scale=0.0))
    assert record.soundness == Soundness(3, 2)
    record.write_term(2, rollback_to=3)
    assert record.soundness == Soundness(3, 0), "step 3 had started from there, and was finite"
    record.write_decision(dataclasses.replace(decision(3), scale=0.0))
    assert record.soundness == Soundness(3, 1)
    record.write_term(3, rollback_to=2)
    record.write_decision(decision(2))
    record.write_decision(dataclasses.replace(decision(3), scale=0.0))
    record.write_term(4, rollback_to=4)
    assert record.soundness == Soundness(2, 0), "what was skipped before is forgiven, and nothing has proved version 4"
    record.close()


def opened(path: Path, read: Callable[[GroupRecord], object]) -> object:
    with contextlib.closing(GroupRecord(path, RUN)) as record:
        return read(record)


@pytest.mark.parametrize(
    ("table", "read"),
    [
        ("command", lambda path: opened(path, lambda record: record.commands)),
        ("command", lambda path: read_commands(path, RUN)),
        ("decision", lambda path: opened(path, lambda record: record.last_decision)),
        ("decision", lambda path: opened(path, lambda record: record.soundness)),
        ("decision", lambda path: opened(path, lambda record: record.write_term(2, rollback_to=0))),
        ("decision", lambda path: read_decisions(path, RUN)),
        ("log", lambda path: opened(path, lambda record: record.stored())),
    ],
)
@pytest.mark.parametrize("body", ["substr(body, 1, length(body) / 2)", "'{}'", "1", "CAST(x'22ff22' AS TEXT)"])
def test_damage_that_sqlite_does_not_look_for_is_reported_as_damage(
    table: str, read: Callable[[Path], object], body: str, tmp_path: Path
) -> None:
    path = Home(tmp_path).decisions
    with contextlib.closing(GroupRecord(path, RUN)) as record:
        record.write_command(PAUSE)
        record.write_decision(decision(0))
        record.write_group(WriteGroup(1, 1, "me", 1, (TermEntry(1, Term(1)),), 0))
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(f"UPDATE {table} SET body = {body}")
    with pytest.raises(RecordError, match=r"is not a decision record.*from a backup"):
        read(path)


def test_a_database_of_another_program_is_not_a_record_in_use(tmp_path: Path) -> None:
    path = Home(tmp_path).decisions
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE notes(text)")
    with pytest.raises(RecordError, match="is not a decision record: no such table"):
        read_decisions(path, RUN)
