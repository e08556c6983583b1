"""The decision record keeps what the reference must do the same way, and forgets what was rolled back."""

import dataclasses
from pathlib import Path

import pytest

from peers.coordinator.record import DecisionRecord, RecordError
from peers.home import Home
from peers.replay import StepReplay, read_replay
from swarm.protocol.ids import StepNumber, Term
from swarm.protocol.messages import CodecPair, Contribution, Decision, StageOutcome

RUN = "ab" * 32
SHARES = (Contribution(2**70 + 5, -1), Contribution(10, 1))


def decision(step: int, *key_frames: int) -> Decision:
    outcomes = (StageOutcome(0, "x"), StageOutcome(1, "y", SHARES))
    return Decision(Term(1), StepNumber(step), 0.1 + step, 2.0 / 3, 64, 1e-3, outcomes, key_frames)


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
    assert read_replay(home, RUN) == {0: StepReplay((15, 7), shares), 1: StepReplay((8, 0), shares)}


def test_what_a_step_crossed_with_is_kept(tmp_path: Path) -> None:
    record = DecisionRecord(Home(tmp_path).decisions, RUN)
    codecs = (CodecPair("int4", "log4"), CodecPair("none", "bf16"))
    record.write_decision(dataclasses.replace(decision(0), codecs=codecs))
    assert record.last_decision is not None and record.last_decision.codecs == codecs
    record.close()
    assert read_replay(Home(tmp_path), RUN) == {0: StepReplay((), ((), SHARES), codecs)}


def test_a_record_from_before_codecs_were_chosen_can_be_read(tmp_path: Path) -> None:
    record = DecisionRecord(Home(tmp_path).decisions, RUN)
    record.write_decision(decision(0))
    record._db.execute("UPDATE decision SET body = json_remove(body, '$.codecs', '$.key_frames')")
    assert record.last_decision == decision(0)
    record.close()


def test_the_record_of_another_run_is_refused(tmp_path: Path) -> None:
    DecisionRecord(Home(tmp_path).decisions, "cd" * 32).close()
    with pytest.raises(RecordError, match="records run cdcdcd"):
        read_replay(Home(tmp_path), RUN)
