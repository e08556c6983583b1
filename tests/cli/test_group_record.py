"""A group member's record in SQLite is what the simulator's disk is, and reads like that of one coordinator alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from group_world import GroupWorld

from peers.coordinator import group_record
from peers.coordinator.durable import forget_void
from peers.coordinator.group_record import GroupRecord
from peers.coordinator.record import RecordError, read_decisions
from swarm.protocol.ids import Actor, StepNumber, Term
from swarm.protocol.messages import ArchivedEntry, Decision, DecisionEntry, Entry, Offer, StageOutcome, TermEntry
from swarm.protocol.raft.io import SendEntries, WriteGroup
from swarm.simulation.toy.member_disk import MemberDisk
from swarm.state.archive import Archive

RUN = "ab" * 32
OTHER = Actor("other", 0)


def decided(step: int, ballot: int = 1, term: int = 1) -> DecisionEntry:
    decision = Decision(Term(term), StepNumber(step), 0.1 + step, 2.0 / 3, 64, 1e-3, (StageOutcome(0, "x"),))
    return DecisionEntry(ballot, decision)


class Orders(MemberDisk):
    """A disk that remembers what it was told to write."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[WriteGroup] = []

    def write(self, order: WriteGroup) -> None:
        self.orders.append(order)
        super().write(order)


@pytest.mark.parametrize("seed", range(6))
def test_it_holds_what_the_simulated_disk_holds_on_random_schedules(seed: int, tmp_path: Path) -> None:
    world = GroupWorld(seed)
    disks = {actor: Orders() for actor in world.actors}
    world.disks |= disks
    for actor in world.actors:
        world.start(actor)
    for _ in range(3000):
        world.step()
    world.calm()
    assert sum(len(disk.orders) for disk in disks.values()) > 10
    for actor, disk in disks.items():
        path = tmp_path / f"{actor.peer}.sqlite"
        record = GroupRecord(path, RUN)
        for order in disk.orders:
            record.write_group(order)
        record.close()
        again = GroupRecord(path, RUN)
        assert again.stored() == disk.stored()
        assert again.term == disk.stored().standing.term
        again.close()


def written(record: GroupRecord, *entries: Entry, first: int = 1, committed: int = 0) -> int | None:
    return record.write_group(WriteGroup(1, 1, "me", first, entries, committed))


def test_only_what_stands_is_read_as_decided(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    record = GroupRecord(path, RUN)
    written(record, TermEntry(1, Term(1)), decided(0), decided(1), committed=2)
    assert [d.step for d in read_decisions(path, RUN)] == [0] and record.last_decision == decided(0).decision
    written(record, first=4, committed=3)
    archived = ArchivedEntry(1, 2, Term(1), ("a", "b"))
    written(record, archived, decided(2), first=4, committed=5)
    assert [d.step for d in read_decisions(path, RUN)] == [0, 1, 2]
    assert written(record, TermEntry(1, Term(4), rollback_to=2), first=6, committed=6) == 2
    assert [d.step for d in read_decisions(path, RUN)] == [0, 1]
    assert (record.term, record.rolled_back_in) == (4, 4)
    standing = record.stored().standing
    assert (standing.version, standing.archived, standing.decision) == (2, archived, decided(1).decision)
    record.close()


def test_a_member_that_dies_while_it_catches_up_over_a_rollback_keeps_nothing_of_the_void_history(
    tmp_path: Path,
) -> None:
    """One write holds the rollback to version 1 and the steps after it, so version 3 is not newer than the record."""
    path, archive = tmp_path / "decisions.sqlite", Archive(tmp_path / "archive", RUN, 1, 3)
    record = GroupRecord(path, RUN)
    written(record, TermEntry(1, Term(1)), *(decided(step) for step in range(3)), committed=4)
    for version in (1, 3):
        (archive.directory / f"{version:08d}").mkdir(parents=True)
    again = tuple(decided(step, 2, 2) for step in range(1, 5))
    assert written(record, TermEntry(2, Term(2), rollback_to=1), *again, first=5, committed=9) == 1
    record.close()  # and dies
    record = GroupRecord(path, RUN)
    forget_void(record, archive)
    assert [folder.name for folder in archive.directory.iterdir()] == [f"{1:08d}"]
    (archive.directory / f"{3:08d}").mkdir()
    forget_void(record, archive)
    assert (archive.directory / f"{3:08d}").exists(), "it is of the history after the rollback"
    record.close()


def test_a_log_is_sent_in_pieces_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = GroupRecord(tmp_path / "decisions.sqlite", RUN)
    entries = tuple(decided(step, ballot=1 + step // 2) for step in range(5))
    written(record, *entries, committed=5)
    offer = Offer(3, Term(1), ("a",))
    whole = record.append(SendEntries(OTHER, 9, 1, 5, offer))
    assert (whole.ballot, whole.before, whole.before_ballot, whole.entries) == (9, 0, 0, entries)
    assert (whole.committed, whole.offer) == (5, offer)
    later = record.append(SendEntries(OTHER, 9, 4, 5, None))
    assert (later.before, later.before_ballot, later.entries) == (3, 2, entries[3:])
    monkeypatch.setattr(group_record, "MAX_BATCH_BYTES", 10)
    assert record.append(SendEntries(OTHER, 9, 2, 5, None)).entries == entries[1:2], "at least one"
    record.close()


def test_the_record_of_a_run_in_which_nothing_was_decided_becomes_another_runs(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    record = GroupRecord(path, RUN)
    written(record, TermEntry(1, Term(1)), committed=1)
    record.close()
    other = GroupRecord(path, "cd" * 32)
    assert other.stored() == MemberDisk().stored() and other.term == 0
    written(other, TermEntry(1, Term(1)), decided(0), committed=1)  # appended, and perhaps it stands elsewhere
    other.close()
    with pytest.raises(RecordError, match="records run cdcdcdcdcdcdcdcd"):
        GroupRecord(path, RUN)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(b"no database" * 100)
    with pytest.raises(RecordError, match="is not a decision record"):
        GroupRecord(path, RUN)
