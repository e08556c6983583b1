"""The decision record keeps what the reference must do the same way, and forgets what was rolled back."""

import dataclasses
import functools
import hashlib
import shutil
import sqlite3
from pathlib import Path

import pytest
from blake3 import blake3

from peers.coordinator.durable import check_checkpoints, check_record
from peers.coordinator.record import DecisionRecord, RecordError
from peers.run.archived_run import MANIFEST_FILE, check_archive
from peers.run.home import Home
from peers.run.replay import StepReplay, read_replay
from swarm.protocol.ids import StepNumber, Term
from swarm.protocol.messages import CodecPair, Contribution, Decision, StageOutcome
from swarm.protocol.update import Update
from swarm.state.archive import Archive
from swarm.state.error import StateError
from swarm.state.folder import MANIFEST, Checkpoint, VersionFolder

RUN = "ab" * 32
SHARES = (Contribution(2**70 + 5, -1), Contribution(10, 1))


def decision(step: int, *key_frames: int) -> Decision:
    outcomes = (StageOutcome(0, "x"), StageOutcome(1, "y", SHARES))
    update = Update(1 / 3 / (step + 1), 1 - 0.9 ** (step + 1), 0.1)
    return Decision(Term(1), StepNumber(step), 0.1 + step, 2.0 / 3, 64, 1e-3, outcomes, key_frames, update=update)


def test_what_is_read_is_what_stands(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert read_replay(home, RUN) == {}, "nothing recorded"
    record = DecisionRecord(home.decisions, RUN)
    for step, bits in enumerate((15, 2**70 + 1, 3)):
        record.write_decision(decision(step, bits, 7))
    assert record.last_decision == decision(2, 3, 7) and record.rolled_back_in == 0
    record.write_term(4, rollback_to=1)
    assert record.rolled_back_in == 4
    record.write_decision(decision(1, 8, 0))
    record.write_term(5, rollback_to=None)
    assert (record.term, record.rolled_back_in) == (5, 4)
    record.close()
    shares = ((), SHARES)
    stand = decision(0, 15, 7), decision(1, 8, 0)
    assert read_replay(home, RUN) == {d.step: StepReplay(d.key_frames, shares, (), d.update) for d in stand}


def test_what_a_step_crossed_with_is_kept(tmp_path: Path) -> None:
    record = DecisionRecord(Home(tmp_path).decisions, RUN)
    codecs = (CodecPair("int4", "log4"), CodecPair("none", "bf16"))
    record.write_decision(dataclasses.replace(decision(0), codecs=codecs))
    assert record.last_decision is not None and record.last_decision.codecs == codecs
    record.close()
    assert read_replay(Home(tmp_path), RUN) == {0: StepReplay((), ((), SHARES), codecs, decision(0).update)}


def test_a_record_from_before_codecs_were_chosen_can_be_read(tmp_path: Path) -> None:
    record = DecisionRecord(Home(tmp_path).decisions, RUN)
    record.write_decision(decision(0))
    record._db.execute("UPDATE decision SET body = json_remove(body, '$.codecs', '$.key_frames')")
    assert record.last_decision == decision(0)
    record.close()


@pytest.mark.parametrize("happened", ["nothing", "a term", "a decision", "a rollback to the start"])
def test_the_record_of_another_run_is_refused_once_something_has_happened(happened: str, tmp_path: Path) -> None:
    path = Home(tmp_path).decisions
    record = DecisionRecord(path, "cd" * 32)
    if happened == "a decision":
        record.write_decision(decision(0))
    elif happened != "nothing":
        record.write_term(3, rollback_to=None if happened == "a term" else 0)
    record.close()
    if happened in ("nothing", "a term"):
        record = DecisionRecord(path, RUN)
        assert record.term == (3 if happened == "a term" else 0), "terms never fall"
        record.close()
        DecisionRecord(path, RUN).close()
        return
    for open_record in (DecisionRecord, lambda path, run: read_replay(Home(path.parent), run)):
        with pytest.raises(RecordError, match="records run cdcdcd"):
            open_record(path, RUN)


def test_reading_leaves_a_home_as_it_is(tmp_path: Path) -> None:
    home = Home(tmp_path)
    record = DecisionRecord(home.decisions, RUN)
    record.write_decision(decision(0))
    living = {file.name for file in tmp_path.iterdir()}
    assert len(read_replay(home, RUN)) == 1, "beside a coordinator that lives"
    assert {file.name for file in tmp_path.iterdir()} == living
    record.close()
    before = home.decisions.read_bytes()
    assert len(read_replay(home, RUN)) == 1
    assert [file.name for file in tmp_path.iterdir()] == [home.decisions.name] and home.decisions.read_bytes() == before


def test_only_a_damaged_record_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "connect", functools.partial(sqlite3.connect, timeout=0))
    path = Home(tmp_path).decisions
    record = DecisionRecord(path, RUN)
    with sqlite3.connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(RecordError, match=r"cannot be used now: database is locked.*nothing is lost"):
            DecisionRecord(path, RUN)
    other.close()
    record.close()
    path.write_bytes(b"x" * 4096)
    for read in (DecisionRecord, lambda path, run: read_replay(Home(path.parent), run)):
        with pytest.raises(RecordError, match="is not a decision record"):
            read(path, RUN)


def test_an_archive_in_which_another_run_has_trained_is_refused(tmp_path: Path) -> None:
    check_archive(tmp_path / "none", RUN)
    (tmp_path / MANIFEST_FILE).write_bytes(b"a manifest")
    check_archive(tmp_path, RUN)
    (tmp_path / "00000000").mkdir()
    check_archive(tmp_path, RUN)
    (tmp_path / "00000010").mkdir()
    check_archive(tmp_path, hashlib.sha256(b"a manifest").hexdigest())
    with pytest.raises(StateError, match=r"holds checkpoints of run .*abababab"):
        check_archive(tmp_path, RUN)


def test_a_lost_record_beside_trained_checkpoints_starts_no_new_run(tmp_path: Path) -> None:
    """It would begin again at step 0, and then remove the checkpoints that the lost record had decided."""
    home, archive = Home(tmp_path), Archive(tmp_path / "archive", RUN, 1, 3)
    record = DecisionRecord(home.decisions, RUN)
    folder = VersionFolder(archive.directory, RUN)
    for version in (0, 10):
        check_record(record, archive, home, several=False)
        folder.commit(Checkpoint(0, version, folder.new_path(0, version), "digest", "ab" * 32, 1))
    with pytest.raises(RecordError, match=r"decisions\.sqlite is missing or empty, but archive/ has checkpoint 10"):
        check_record(record, archive, home, several=False)
    check_record(record, archive, home, several=True)
    record.write_term(1, None)
    check_record(record, archive, home, several=False)
    record.close()


@pytest.mark.parametrize("damaged", [b"", b"{"])
def test_a_damaged_manifest_beside_checkpoints_of_this_run_is_no_other_run(damaged: bytes, tmp_path: Path) -> None:
    folder = VersionFolder(tmp_path, RUN)
    path = folder.new_path(0, 10)
    folder.commit(Checkpoint(0, 10, path, "digest", "ab" * 32, 1))
    (tmp_path / MANIFEST_FILE).write_bytes(damaged)
    check_archive(tmp_path, RUN)
    with pytest.raises(StateError, match="holds checkpoints of run"):
        check_archive(tmp_path, "cd" * 32)


def test_an_archive_of_damaged_checkpoints_alone_starts_no_new_run(tmp_path: Path) -> None:
    """Unless its peers held their state, it would begin again at version 0, and remove what is left."""
    refused: list[Path] = []
    home = Home(tmp_path)
    archive = Archive(home.archive, RUN, 1, 3, on_refused=lambda path, reason: refused.append(path))
    folder = VersionFolder(home.archive, RUN)

    def check(several: bool = False) -> None:
        refused.clear()
        check_checkpoints(record, archive.newest(), refused, home, several)

    def commit(version: int) -> Path:
        path = folder.new_path(0, version)
        path.write_bytes(b"state")
        folder.commit(Checkpoint(0, version, path, "digest", blake3(b"state").hexdigest(), 5))
        return path

    record = DecisionRecord(home.decisions, RUN)
    commit(10)
    shard = commit(20)
    shard.write_bytes(b"stat")
    record.write_decision(decision(20))
    check()
    assert refused == [shard] and archive.newest() == 10, "the newest intact one is used"
    (home.archive / "00000010" / MANIFEST).write_bytes(b"{")
    with pytest.raises(
        RecordError, match=r"archive is damaged \(such as .*stage-0.*step 21 is decided: restore archive"
    ):
        check()
    check(several=True)
    shard.unlink()
    with pytest.raises(RecordError, match="move archive/ away"):
        check()
    for version in ("00000010", "00000020"):
        (home.archive / version / MANIFEST).unlink()
    check()  # two that never became complete
    shutil.rmtree(home.archive)
    home.archive.mkdir()
    check()  # moved away, as advised
    record.close()
