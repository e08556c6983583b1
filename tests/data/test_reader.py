"""The reader: exactly once per epoch, over epoch borders, whatever the shards; every hash checked."""

import collections
import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.data import CorpusError, CorpusReader, Source, prepare, read_corpus
from swarm.manifest import (
    BatchSection,
    DataSection,
    EvaluationSection,
    ManifestError,
    RunFile,
    RunManifest,
    RunSection,
    Shard,
)


def write_corpus(folder: Path, train: list[int], heldout: list[int]) -> DataSection:
    """A corpus whose token at place i is i: windows can be told apart. `train`, `heldout`: tokens by shard."""
    (folder / "tokenizer.json").write_bytes(b"{}")
    splits: dict[str, list[Shard]] = {"train": [], "heldout": []}
    for split, sizes in (("train", train), ("heldout", heldout)):
        start = 0
        for number, size in enumerate(sizes):
            raw = np.arange(start, start + size, dtype="<u2").tobytes()
            name = f"{split}-{number:05d}.bin"
            (folder / name).write_bytes(raw)
            splits[split].append(Shard(file=name, sha256=hashlib.sha256(raw).hexdigest(), tokens=size))
            start += size
    return DataSection(
        tokenizer_sha256=hashlib.sha256(b"{}").hexdigest(),
        vocab_size=4096,
        train=tuple(splits["train"]),
        heldout=tuple(splits["heldout"]),
        unigram_entropy=1.0,
        bytes_per_token=1.0,
    )


def resolve(
    data: DataSection, microbatches: int, sequences: int, length: int, seed: int = 1, heldout: int = 1, order="samples"
):
    return RunFile(
        run=RunSection(seed=seed),
        batch=BatchSection(microbatches=microbatches, sequences=sequences, sequence_length=length, order=order),
        evaluation=EvaluationSection(microbatches=heldout),
    ).resolve(data)


@given(
    shards=st.lists(st.integers(1, 300), min_size=1, max_size=5),
    microbatches=st.integers(1, 7),
    sequences=st.integers(1, 5),
    length=st.integers(1, 12),
    seed=st.integers(0, 2**63 - 1),
)
@settings(max_examples=60, deadline=None)
def test_each_window_once_an_epoch_over_every_border(shards, microbatches, sequences, length, seed):
    # The manifest wants one microbatch's worth of tokens; uneven everything else is allowed.
    shards = [*shards, sequences * (length + 1)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = write_corpus(folder, shards, [sequences * length + 1])
        reader = CorpusReader(folder, resolve(data, microbatches, sequences, length, seed))
        windows = (sum(shards) - 1) // length
        assert reader.windows == windows
        steps = -(-3 * windows // (microbatches * sequences))
        rows = []
        for step in range(steps):
            for m in range(microbatches):
                tokens = reader.microbatch(step, m)
                assert tokens.dtype == np.int64 and tokens.shape == (sequences, length + 1)
                assert (np.diff(tokens, axis=1) == 1).all(), "a sample is one stretch of the stream"
                rows.extend(tokens[:, 0].tolist())
        for epoch in range(3):
            seen = rows[epoch * windows : (epoch + 1) * windows]
            assert sorted(seen) == [window * length for window in range(windows)]


def test_samples_do_not_depend_on_what_was_read_before(tmp_path: Path):
    data = write_corpus(tmp_path, [500, 77, 600], [200])
    manifest = resolve(data, 5, 3, 8)
    first = CorpusReader(tmp_path, manifest)
    straight = {(t, m): first.microbatch(t, m) for t in range(40) for m in range(5)}
    resumed = CorpusReader(tmp_path, RunManifest.from_canonical(manifest.canonical()))
    for t, m in [(39, 4), (0, 0), (21, 2), (20, 4), (38, 1)]:
        assert (resumed.microbatch(t, m) == straight[t, m]).all()


def test_shards_do_not_change_the_samples(tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    one = write_corpus(tmp_path / "one", [1000], [200])
    many = write_corpus(tmp_path / "many", [3, 1, 400, 596], [1, 199])
    a = CorpusReader(tmp_path / "one", resolve(one, 3, 2, 16, heldout=3))
    b = CorpusReader(tmp_path / "many", resolve(many, 3, 2, 16, heldout=3))
    for t in range(30):
        for m in range(3):
            assert (a.microbatch(t, m) == b.microbatch(t, m)).all()
    for m in range(3):
        assert (a.heldout(m) == b.heldout(m)).all()


def test_seeds_and_epochs_shuffle_differently(tmp_path: Path):
    data = write_corpus(tmp_path, [2001], [200])
    reader = CorpusReader(tmp_path, resolve(data, 10, 2, 10))
    other = CorpusReader(tmp_path, resolve(data, 10, 2, 10, seed=2))
    assert reader.windows == 200 and reader.epoch(10) == 1.0
    epochs = [[reader.samples(step, m)[0] for step in range(e * 10, e * 10 + 10) for m in range(10)] for e in (0, 1)]
    assert [window for _, window in epochs[0]] != [window for _, window in epochs[1]]
    assert {epoch for epoch, _ in epochs[1]} == {1}
    assert reader.samples(0, 0) != other.samples(0, 0)


def test_heldout_windows_are_distinct_and_spread(tmp_path: Path):
    data = write_corpus(tmp_path, [500], [1001])
    reader = CorpusReader(tmp_path, resolve(data, 2, 5, 10, heldout=4))
    starts = [int(start) for m in range(4) for start in reader.heldout(m)[:, 0]]
    assert starts == [window * 10 for window in range(0, 100, 5)]
    with pytest.raises(IndexError, match=r"evaluation\.microbatches = 4"):
        reader.heldout(4)


def test_a_heldout_split_that_is_too_short_is_refused(tmp_path: Path):
    data = write_corpus(tmp_path, [500], [100])
    with pytest.raises(CorpusError, match=r"100 tokens, enough for 1 microbatches .* evaluation\.microbatches = 2"):
        CorpusReader(tmp_path, resolve(data, 2, 5, 10, heldout=2))


def test_places_outside_the_step_are_refused(tmp_path: Path):
    reader = CorpusReader(tmp_path, resolve(write_corpus(tmp_path, [500], [100]), 2, 5, 10))
    for step, m in [(0, 2), (0, -1), (-1, 0)]:
        with pytest.raises(IndexError, match="no microbatch"):
            reader.microbatch(step, m)


def test_every_changed_file_is_named_with_both_hashes(tmp_path: Path):
    data = write_corpus(tmp_path, [500, 300], [100])
    manifest = resolve(data, 2, 5, 10)
    expected = {"tokenizer.json": data.tokenizer_sha256} | {s.file: s.sha256 for s in (*data.train, *data.heldout)}
    for name, good in expected.items():
        raw = (tmp_path / name).read_bytes()
        bad = bytes([raw[0] ^ 1]) + raw[1:]
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(CorpusError) as caught:
            CorpusReader(tmp_path, manifest)
        for part in (name, good, hashlib.sha256(bad).hexdigest()):
            assert part in str(caught.value)
        (tmp_path / name).write_bytes(raw)
    (tmp_path / "train-00001.bin").write_bytes(b"\0\0")
    with pytest.raises(CorpusError, match=r"train-00001\.bin has 2 bytes, expected 600"):
        CorpusReader(tmp_path, manifest)
    (tmp_path / "train-00001.bin").unlink()
    with pytest.raises(CorpusError, match=r"train-00001\.bin is missing"):
        CorpusReader(tmp_path, manifest)


def test_a_shard_cannot_point_outside_the_folder(tmp_path: Path):
    data = write_corpus(tmp_path, [500], [100])
    away = data.model_copy(update={"heldout": (data.heldout[0].model_copy(update={"file": "../heldout-00000.bin"}),)})
    with pytest.raises(CorpusError, match="plain file name"):
        CorpusReader(tmp_path, resolve(away, 2, 5, 10))


def test_a_prepared_corpus_is_readable(tmp_path: Path):
    texts = [json.dumps({"document": i, "swarm": i * 7}) for i in range(300)]
    prepare(Source("toy", "", lambda: iter(texts)), tmp_path, vocab_size=300, heldout_fraction=0.2, shard_tokens=777)
    reader = CorpusReader(tmp_path, resolve(read_corpus(tmp_path), 3, 2, 16))
    seen = collections.Counter(window for m in range(3) for _, window in reader.samples(0, m))
    assert set(seen.values()) == {1}
    assert reader.microbatch(0, 0).max() < 300


def test_steps_stay_together_and_come_once_an_epoch(tmp_path: Path):
    data = write_corpus(tmp_path, [700, 301], [200])
    manifest = resolve(data, 3, 2, 9, order="steps")
    reader = CorpusReader(tmp_path, manifest)
    assert (reader.windows, manifest.step_blocks) == (111, 18), "3 samples fill no step and are left out"
    epochs = []
    for epoch in range(3):
        steps = range(epoch * 18, (epoch + 1) * 18)
        assert reader.epoch(steps[0]) == epoch
        rows = {step: [tuple(reader.microbatch(step, m)[:, 0]) for m in range(3)] for step in steps}
        starts = [start for row in rows.values() for m in row for start in m]
        assert len(set(starts)) == 108 and all(start % 9 == 0 for start in starts)
        assert {e for e, _ in reader.samples(steps[5], 1)} == {epoch}
        epochs.append([tuple(row) for row in rows.values()])
    assert set(epochs[0]) == set(epochs[1]) == set(epochs[2]), "a microbatch keeps its samples and its number"
    assert epochs[0] != epochs[1] != epochs[2]
    again = CorpusReader(tmp_path, manifest)
    assert (again.microbatch(40, 2) == reader.microbatch(40, 2)).all()


def test_a_run_that_shuffles_steps_needs_one(tmp_path: Path):
    data = write_corpus(tmp_path, [100], [200])
    with pytest.raises(ManifestError, match=r"has 11 samples, one step takes 12"):
        resolve(data, 6, 2, 9, order="steps")
