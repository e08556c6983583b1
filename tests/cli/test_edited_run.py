"""A coordinator that is started again with the same home after RUN.toml, or its corpus, was edited."""

from pathlib import Path
from typing import Any

import pytest
from made_up_data import DATA

from peers.coordinator.record import DecisionRecord, RecordError
from peers.run.archived_run import changes, check_archive, describe_archive
from peers.run.verdict import archived_digests
from swarm.manifest import RunFile, RunManifest, differences
from swarm.state.error import StateError


def manifest(**tables: Any) -> RunManifest:
    return RunFile.model_validate({"run": {"steps": 12}, **tables}).resolve(DATA)


BEFORE = manifest()


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"run": {"steps": 20}}, "run.steps was 12, is 20"),
        ({"run": {"steps": 12, "name": "b"}}, 'run.name was "swarm", is "b"'),
        ({"model": {"cuts": [4]}}, "model.cuts was [2, 4, 6], is [4]"),
        ({"sums": {"averaging": "dither:1"}}, 'sums.averaging was "none", is "dither:1"'),
        (
            {"swarm": {"replicas": 3}, "audit": {"every": 0}},
            'audit.every was "auto", is 0; swarm.replicas was 2, is 3',
        ),
    ],
)
def test_each_key_that_differs_is_named_with_both_values(tables: dict[str, Any], told: str) -> None:
    assert differences(BEFORE.canonical(), manifest(**tables)) == told


def test_another_corpus_is_named_as_such() -> None:
    shard = DATA.train[0].model_copy(update={"sha256": "9" * 64})
    other = DATA.model_copy(update={"train": (shard,), "unigram_entropy": 5.5})
    after = RunFile.model_validate({"run": {"steps": 12}}).resolve(other)
    assert differences(BEFORE.canonical(), after) == "the corpus holds other tokens"


def test_another_release_is_named_as_such_and_damage_is_no_difference() -> None:
    earlier = BEFORE.canonical().replace(b'"protocol_version":', b'"protocol_version":9')
    assert differences(earlier, BEFORE).startswith("protocol_version was 9")
    lacking = BEFORE.canonical().replace(b'"grid_bits":30,', b"")
    assert differences(lacking, BEFORE) == "sums.grid_bits was unknown to that release, is 30"
    for damaged in (b"", b"{", b"[1]", b"\xff"):
        assert differences(damaged, BEFORE) in ("", differences(b"{}", BEFORE))
    assert differences(BEFORE.canonical(), BEFORE) == ""


def test_whatever_is_refused_names_the_key(tmp_path: Path) -> None:
    archive, after = tmp_path / "archive", manifest(run={"steps": 20})
    describe_archive(archive, BEFORE, None)
    assert changes(archive, BEFORE) == "" and changes(tmp_path, after) == ""
    (archive / "00000010").mkdir()
    named = r"…, RUN.toml resolves to .*… \(run.steps was 12, is 20\): a run never changes. Restore .* its own --home"
    with pytest.raises(StateError, match=f"holds checkpoints of run {BEFORE.hash[:16]}{named}"):
        check_archive(archive, after.hash, changes(archive, after))
    with pytest.raises(StateError, match=f"holds checkpoints of run {BEFORE.hash[:16]}{named}"):
        archived_digests(tmp_path, after)
    record = DecisionRecord(tmp_path / "decisions.sqlite", BEFORE.hash)
    record.write_term(1, rollback_to=0)
    record.close()
    with pytest.raises(RecordError, match=f"records run {BEFORE.hash[:16]}{named}"):
        DecisionRecord(tmp_path / "decisions.sqlite", after.hash, changes(archive, after))
