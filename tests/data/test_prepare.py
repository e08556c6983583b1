"""Prepare: same input, same bytes; nothing half done passes for done; the figures are what they claim to be."""

import collections
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, trainers

from swarm.data import CorpusError, Source, Tokenizer, open_source, prepare, read_corpus
from swarm.data.prepare import Sight
from swarm.data.shards import ShardWriter, check_file, map_shard
from swarm.data.text_parts import PART_CHARACTERS, parts

TEXTS = [f"document {i}: the swarm trains {i % 7} models on {i % 13} machines" for i in range(400)]
SOURCE = Source("toy", "CC0", lambda: iter(TEXTS))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_same_input_same_bytes_and_read_back(tmp_path: Path):
    first = prepare(SOURCE, tmp_path / "a", vocab_size=300, heldout_fraction=0.1)
    prepare(SOURCE, tmp_path / "b", vocab_size=300, heldout_fraction=0.1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    again = prepare(SOURCE, tmp_path / "a", vocab_size=300, heldout_fraction=0.1)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert first == again == read_corpus(tmp_path / "a")


def split(folder: Path, name: str) -> list[str]:
    """Documents of a split, decoded."""
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    ids = np.concatenate([np.fromfile(path, "<u2") for path in sorted(folder.glob(f"{name}-*.bin"))])
    assert ids[-1] == tokenizer.end_of_text
    ends = np.flatnonzero(ids == tokenizer.end_of_text)
    return [tokenizer.decode(part.tolist()) for part in np.split(ids, ends + 1)[:-1]]


def test_every_document_lands_in_exactly_one_split(tmp_path: Path):
    doubled = Source("toy", "", lambda: iter(TEXTS + ["".join(list(text)) for text in TEXTS[:50]]))
    prepare(doubled, tmp_path, vocab_size=300, heldout_fraction=0.2)
    train, heldout = split(tmp_path, "train"), split(tmp_path, "heldout")
    assert collections.Counter(train + heldout) == collections.Counter(TEXTS + TEXTS[:50])
    assert not set(train) & set(heldout)
    assert 0.1 < len(heldout) / len(TEXTS) < 0.3


def test_entropy_and_bytes_per_token_follow_their_definition(tmp_path: Path):
    section = prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1)
    train = np.fromfile(tmp_path / "train-00000.bin", "<u2").tolist()
    heldout = np.fromfile(tmp_path / "heldout-00000.bin", "<u2").tolist()
    counts = collections.Counter(train)
    total = len(train) + section.vocab_size
    expected = -sum(math.log((counts[token] + 1) / total) for token in heldout) / len(heldout)
    assert section.unigram_entropy == pytest.approx(expected, abs=1e-6)
    nbytes = sum(len(text.encode()) for text in split(tmp_path, "heldout"))
    assert section.bytes_per_token == pytest.approx(nbytes / len(heldout), abs=1e-6)


def test_shards_are_capped_and_their_number_changes_nothing_else(tmp_path: Path):
    prepare(SOURCE, tmp_path / "one", vocab_size=300, heldout_fraction=0.1)
    section = prepare(SOURCE, tmp_path / "many", vocab_size=300, heldout_fraction=0.1, shard_tokens=1000)
    assert len(section.train) > 3
    assert all(shard.tokens == 1000 for shard in section.train[:-1])
    joined = b"".join((tmp_path / "many" / shard.file).read_bytes() for shard in section.train)
    assert joined == (tmp_path / "one" / "train-00000.bin").read_bytes()
    prepare(SOURCE, tmp_path / "many", vocab_size=300, heldout_fraction=0.1, force=True)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def test_a_large_vocabulary_is_written_as_uint32(tmp_path: Path):
    import tokenizers
    from tokenizers import models, pre_tokenizers

    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|endoftext|>"]
    words = {token: i for i, token in enumerate(alphabet + [f"tok{i}" for i in range(70_000)])}
    inner = tokenizers.Tokenizer(models.BPE(words, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.add_special_tokens(["<|endoftext|>"])
    inner.save(str(tmp_path / "big.json"))
    section = prepare(SOURCE, tmp_path / "out", tokenizer=tmp_path / "big.json", heldout_fraction=0.1)
    assert section.dtype == "uint32"
    assert section.vocab_size == 70_257
    assert (tmp_path / "out" / "train-00000.bin").stat().st_size == 4 * section.train[0].tokens
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "big.json").read_bytes()


def test_a_failing_source_leaves_the_old_corpus_alone(tmp_path: Path):
    prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1)
    before = contents(tmp_path)

    def documents() -> Iterator[str]:
        yield from TEXTS
        raise CorpusError("broken")

    with pytest.raises(CorpusError, match="broken"):
        prepare(Source(SOURCE.name, "", documents), tmp_path, vocab_size=300, heldout_fraction=0.1)
    assert contents(tmp_path) == before


def test_a_killed_prepare_leaves_nothing_that_passes_for_done(tmp_path: Path):
    text, out = tmp_path / "text", tmp_path / "out"
    text.mkdir()
    for i, words in enumerate(TEXTS):
        (text / f"{i:04d}.txt").write_text(words)
    code = (
        "import sys, time; from pathlib import Path; from swarm.data import prepare, open_source\n"
        "def progress(what, done, total):\n"
        "    if what == 'encoding': print('encoding', flush=True); time.sleep(60)\n"
        "prepare(open_source([Path(sys.argv[1])]), Path(sys.argv[2]), vocab_size=300, heldout_fraction=0.1,"
        " on_progress=progress)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(text), str(out)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "encoding"
    os.kill(child.pid, signal.SIGKILL)
    child.wait(timeout=60)
    child.stdout.close()
    with pytest.raises(CorpusError, match="no prepared corpus"):
        read_corpus(out)
    prepare(open_source([text]), out, vocab_size=300, heldout_fraction=0.1)
    assert sorted(contents(out)) == ["corpus.json", "heldout-00000.bin", "tokenizer.json", "train-00000.bin"]


def test_another_corpus_is_replaced_only_by_force(tmp_path: Path):
    prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1)
    before = contents(tmp_path)
    prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1)
    for source, vocab_size in ((SOURCE, 290), (Source("other", "", SOURCE.documents), 300)):
        with pytest.raises(CorpusError, match=r"contains another corpus, toy with .* --force"):
            prepare(source, tmp_path, vocab_size=vocab_size, heldout_fraction=0.1)
        assert contents(tmp_path) == before
    prepare(SOURCE, tmp_path, vocab_size=290, heldout_fraction=0.1, force=True)
    assert read_corpus(tmp_path).vocab_size == 290


@pytest.mark.parametrize("size", [100_000, 5])
def test_a_full_disk_is_named(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With and without room in the buffer: the last bytes fail when the file is closed."""
    writer = ShardWriter(tmp_path, "train", "uint16", 1 << 20)
    full = Path("/dev/full")
    monkeypatch.setattr(Path, "open", lambda path, mode, opened=Path.open: opened(full, mode))
    with pytest.raises(OSError, match="No space left") as caught:
        writer.write(np.zeros(size, dtype=np.int64))
        writer.close()
    assert caught.value.filename == str(tmp_path / "train-00000.bin")
    writer.abandon()


def test_other_peoples_files_are_not_touched(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CorpusError, match=r"contains other files \(thesis\.txt\)"):
        prepare(SOURCE, tmp_path, vocab_size=300)
    assert contents(tmp_path) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize("name", ["train-notes.bin", "heldout-1.bin", "train-00000.bin.bak", ".hidden"])
def test_a_file_that_is_called_almost_like_a_shard_is_not_touched(name: str, tmp_path: Path):
    (tmp_path / name).write_text("mine")
    for force in (False, True):
        with pytest.raises(CorpusError, match=rf"contains other files \({re.escape(name)}\)"):
            prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1, force=force)
    assert contents(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("name", ["train-00000.bin", "heldout-00017.bin", "tokenizer.json", "corpus.json"])
def test_a_file_that_no_description_names_is_replaced_only_by_force(name: str, tmp_path: Path):
    """A damaged corpus.json says nothing about the files beside it, nor about itself."""
    (tmp_path / name).write_text("mine")
    with pytest.raises(CorpusError, match=rf"contains {name}, but no corpus.json that can be read: .*--force"):
        prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1)
    assert contents(tmp_path) == {name: b"mine"}
    prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1, force=True)
    whole = contents(tmp_path)
    assert sorted(whole) == ["corpus.json", "heldout-00000.bin", "tokenizer.json", "train-00000.bin"]
    (tmp_path / "train-00001.bin").write_text("mine")
    with pytest.raises(CorpusError, match=r"train-00001.bin, but a corpus.json that does not name it"):
        prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1)
    assert contents(tmp_path) == {**whole, "train-00001.bin": b"mine"}
    prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1, force=True)
    assert contents(tmp_path) == whole


def test_a_second_prepare_into_the_same_folder_is_refused_and_the_first_is_whole(tmp_path: Path):
    tried: list[str] = []

    def meanwhile(what: str, *_: object) -> None:
        if what == "encoding":
            with pytest.raises(OSError, match="another swarm-peer writes to this folder"):
                prepare(SOURCE, tmp_path, vocab_size=290, heldout_fraction=0.1, force=True)
            tried.append(what)

    section = prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1, on_progress=meanwhile)
    assert tried and read_corpus(tmp_path) == section
    for shard in (*section.train, *section.heldout):
        map_shard(tmp_path, shard, section.dtype)
    check_file(tmp_path / "tokenizer.json", section.tokenizer_sha256)


@pytest.mark.parametrize("moves", range(4))
def test_ctrl_c_while_the_files_are_replaced_leaves_the_old_corpus(
    moves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1)
    before = contents(tmp_path)
    move, left = Path.replace, [moves]

    def interrupt(path: Path, target: Path) -> Path:
        if path.parent == tmp_path / ".preparing" / "new":
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
        return move(path, target)

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(SOURCE, tmp_path, vocab_size=290, heldout_fraction=0.1, force=True)
    assert left == [-1] and contents(tmp_path) == before


def test_an_empty_split_and_a_bad_fraction_are_errors(tmp_path: Path):
    tiny = Source("tiny", "", lambda: iter(TEXTS[:2]))
    with pytest.raises(CorpusError, match=r"the held-out split is empty: tiny has 2 documents .*raise --heldout"):
        prepare(tiny, tmp_path / "a", vocab_size=300, heldout_fraction=1e-9)
    with pytest.raises(CorpusError, match=r"the training split is empty.*lower --heldout"):
        prepare(tiny, tmp_path / "a", vocab_size=300, heldout_fraction=1 - 1e-9)
    alone = Source("alone", "", lambda: iter(TEXTS[:1]))
    with pytest.raises(CorpusError, match=r"has 1 document and .*each split needs a document: add some"):
        prepare(alone, tmp_path / "a", vocab_size=300)
    with pytest.raises(CorpusError, match=r"fraction 1\.5 is not between 0 and 1"):
        prepare(tiny, tmp_path / "a", vocab_size=300, heldout_fraction=1.5)


def test_a_damaged_description_is_named(tmp_path: Path):
    (tmp_path / "corpus.json").write_text('{"name": 3')
    with pytest.raises(CorpusError, match=r"corpus\.json cannot be read"):
        read_corpus(tmp_path)


def test_progress_reaches_the_total(tmp_path: Path):
    seen: list[tuple[str, int, int | None]] = []
    prepare(SOURCE, tmp_path, vocab_size=300, heldout_fraction=0.1, on_progress=lambda *call: seen.append(call))
    assert seen[-1] == ("encoding", len(TEXTS), len(TEXTS))
    assert ("training the tokenizer", 256, None) in seen


def test_every_character_that_a_tokenizer_loses_is_counted(tmp_path: Path):
    """Also one in ten thousand, far behind the beginning, and one that becomes another one."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer, inner.decoder = normalizers.Lowercase(), decoders.Fuse()
    special = trainers.BpeTrainer(vocab_size=100, special_tokens=["<|endoftext|>"], show_progress=False)
    inner.train_from_iterator(["the swarm learns a language, 0123456789."], special)
    inner.save(str(tmp_path / "tokenizer.json"))
    texts = [f"the swarm learns {i} " + "the swarm learns " * 600 for i in range(200)]
    texts[180] += "é" * 3
    texts[190] += "Swarm"
    sights: list[Sight] = []
    source = Source("toy", "", lambda: iter(texts))
    out = {"tokenizer": tmp_path / "tokenizer.json", "heldout_fraction": 0.2, "on_sight": sights.append}
    prepare(source, tmp_path / "out", **out)
    assert sum(map(len, texts)) > 1 << 20
    assert sights[0].lost == 4 / sum(map(len, texts))
    assert sights[0].lost_characters == ("é", "S")


def test_a_long_text_is_encoded_in_parts_and_gets_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Encoding takes 150 times a text's memory: a row of 32 MB took 6 GB."""
    words = " ".join(f"word{number % 7919}" for number in range(300_000))
    text = f"{words}\n\n  {words} end"
    rows = [text, "a short one", *(f"text {number}" for number in range(20))]
    source = Source("long", "CC0-1.0", lambda: iter(rows))
    longest = 0
    encode = Tokenizer.encode

    def watched(self: Tokenizer, texts: list[str]) -> list[list[int]]:
        nonlocal longest
        longest = max(longest, *map(len, texts))
        return encode(self, texts)

    with monkeypatch.context() as patched:
        patched.setattr(Tokenizer, "encode", watched)
        section = prepare(source, tmp_path / "corpus", vocab_size=300, heldout_fraction=0.3)
    assert longest <= PART_CHARACTERS < len(text) / 3
    tokenizer = Tokenizer.load(tmp_path / "corpus" / "tokenizer.json")
    written = {name: split_tokens(tmp_path / "corpus", name) for name in ("train", "heldout")}
    whole = encode(tokenizer, [text])[0] + [tokenizer.end_of_text]
    assert any(np.array_equal(whole, tokens[: len(whole)]) for tokens in written.values())
    ends = sum(int((tokens == tokenizer.end_of_text).sum()) for tokens in written.values())
    assert ends == len(rows) and section.vocab_size == tokenizer.vocab_size


def test_many_short_texts_are_encoded_a_few_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file of 13 MB took 1.15 GB: each text takes a kilobyte while it is encoded."""
    rows = [f"{number:x}" for number in range(3000)]
    source = Source("short", "CC0-1.0", lambda: iter(rows))
    prepare(source, tmp_path / "whole", vocab_size=300, heldout_fraction=0.3)
    monkeypatch.setattr(sys.modules["swarm.data.prepare"], "_BATCH_PORTIONS", 256)
    most = 0
    encode = Tokenizer.encode

    def watched(self: Tokenizer, texts: list[str]) -> list[list[int]]:
        nonlocal most
        most = max(most, len(texts))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode", watched)
    prepare(source, tmp_path / "parts", vocab_size=300, heldout_fraction=0.3)
    assert most == 256 and contents(tmp_path / "whole") == contents(tmp_path / "parts")


def split_tokens(folder: Path, name: str) -> np.ndarray:
    return np.concatenate([np.fromfile(path, dtype="<u2") for path in sorted(folder.glob(f"{name}-*.bin"))])


@pytest.mark.parametrize(
    "text", ["a b c d e f", "abcdefghijkl", "a  b  c  d  ", "ab\n cd\n ef", " ", "", "äöü € 漢字漢字漢字"]
)
def test_the_parts_of_a_text_are_the_text(text: str):
    for longest in range(2, 14):
        cut = list(parts(text, longest))
        assert "".join(cut) == text and cut and all(len(part) <= longest for part in cut)
