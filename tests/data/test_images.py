"""Images as a corpus: what is read, how it is split, and what the reader makes of it."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from swarm.data import CorpusError, CorpusReader, digits, prepare_images, read_corpus, read_images
from swarm.manifest import (
    BatchSection,
    DataSection,
    EvaluationSection,
    ManifestError,
    ModelSection,
    RunFile,
    RunManifest,
)
from swarm.models.kinds import count_parameters

MODEL = {"kind": "resnet", "vocab_size": 17, "dim": 8, "layers": 2, "classes": 10, "cuts": (1,)}
SILENT = EvaluationSection(microbatches=2, sample_tokens=0)


def run_of(data: DataSection, **model: object) -> RunManifest:
    batch = BatchSection(microbatches=2, sequences=8, sequence_length=64)
    return RunFile(model=ModelSection(**{**MODEL, **model}), batch=batch, evaluation=SILENT).resolve(data)


def write(path: Path, rows: np.ndarray) -> Path:
    np.savetxt(path, rows, fmt="%d", delimiter=",")
    return path


def test_the_digits_become_rows_of_pixels_and_a_class(tmp_path: Path) -> None:
    images = digits()
    assert images.rows.shape == (1797, 65) and images.pixels == 64
    assert (images.levels, images.classes) == (17, 10)
    section = prepare_images(images, tmp_path / "a")
    assert section == prepare_images(images, tmp_path / "b") == read_corpus(tmp_path / "a")
    assert section.kind == "images" and 2.2 < section.unigram_entropy < 2.4
    heldout = sum(shard.tokens for shard in section.heldout) // 65
    assert 250 < heldout < 470 and sum(shard.tokens for shard in section.train) // 65 == 1797 - heldout
    reader = CorpusReader(tmp_path / "a", run_of(section))
    assert reader.windows == 1797 - heldout
    known = {tuple(row) for row in images.rows}
    seen = [reader.microbatch(step, m) for step in range(3) for m in range(2)]
    assert all(batch.shape == (8, 65) and {tuple(row) for row in batch} <= known for batch in seen)
    kept = {tuple(row) for m in range(2) for row in reader.heldout(m)}
    assert kept <= known and not kept & {tuple(row) for batch in seen for row in batch}


def test_a_file_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    """It begins with a BOM."""
    rows = np.arange(60).reshape(12, 5) % 7
    (tmp_path / "a.csv").write_text("\n".join(",".join(map(str, row)) for row in rows), encoding="utf-8-sig")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    assert np.array_equal(read_images(tmp_path / "a.csv").rows, rows)
    assert np.array_equal(read_images(tmp_path / "b.csv.gz").rows, rows)


def test_classes_in_the_first_place_are_noticed(tmp_path: Path) -> None:
    """Else, the model would learn to guess the last pixel."""
    rng = np.random.default_rng(0)
    pixels, classes = rng.integers(0, 17, (200, 16)), rng.integers(0, 5, (200, 1))
    right = read_images(write(tmp_path / "right.csv", np.hstack((pixels, classes))))
    assert not right.class_seems_first and right.absent == ()
    assert read_images(write(tmp_path / "wrong.csv", np.hstack((classes, pixels)))).class_seems_first
    assert read_images(write(tmp_path / "one.csv", np.hstack((pixels, classes * 2 + 1)))).absent == (0, 2, 4, 6, 8)
    images = digits()
    assert not images.class_seems_first and images.absent == ()
    black = np.hstack((rng.integers(0, 2, (200, 16)), rng.integers(0, 10, (200, 1))))
    assert not read_images(write(tmp_path / "black.csv", black)).class_seems_first


def test_a_corpus_of_images_takes_the_place_of_one_of_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CorpusError, match=r"contains tokenizer\.json, but no corpus\.json .*--force"):
        prepare_images(digits(), tmp_path)
    assert (tmp_path / "tokenizer.json").read_text() == "{}"
    prepare_images(digits(), tmp_path, force=True)
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1,2,3\n4,5,6\n", "each line has 2 pixels"),
        ("1,2,3,4,0\n1,2,3,-4,1\n", "not integers from 0"),
        ("1,2,3,4,0\n1,2,3,4.5,1\n", "not integers from 0"),
        ("1,2,3,4,0\n1,2,3,nan,1\n", "not integers from 0"),
        ("1,2,3,4,0\n1,2,3,1e300,1\n", "not integers from 0"),
        ("1,2,3,4,0\n1,2,3,4,0\n", "number of classes 1,"),
        ("a,b\n", "not a CSV file"),
        ("1,2,3,4,0\n#1,2,3,4,1\n1,2,3,4,1\n", "not a CSV file of numbers: could not convert string '#1'"),
        ("1,2,3,4,0\n1,2\n", "not a CSV file"),
        ("", "0 pixels"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_images_is_refused_by_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "some.csv"
    path.write_text(text)
    with pytest.raises(CorpusError, match=reason) as error:
        read_images(path)
    assert "some.csv" in str(error.value)


def test_a_packed_file_is_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    rows = np.array([[0, 1, 2, 3, 0], [3, 2, 1, 0, 1]])
    with gzip.open(tmp_path / "four.csv.gz", "wb") as file:
        file.write(write(tmp_path / "four.csv", rows).read_bytes())
    assert np.array_equal(read_images(tmp_path / "four.csv.gz").rows, rows)
    assert read_images(tmp_path / "four.csv.gz").name == "four"
    raw = bytearray((tmp_path / "four.csv.gz").read_bytes())
    raw[raw.index(b"four.csv\0") + 9 if b"four.csv\0" in raw else 10] = 0xFF  # no such type of block
    (tmp_path / "bad.csv.gz").write_bytes(raw)
    with pytest.raises(CorpusError, match=r"bad\.csv\.gz is not a CSV file"):
        read_images(tmp_path / "bad.csv.gz")
    with pytest.raises(CorpusError, match="does not exist"):
        read_images(tmp_path / "none.csv")


def test_a_split_without_images_is_refused(tmp_path: Path) -> None:
    images = read_images(write(tmp_path / "two.csv", np.array([[0, 1, 2, 3, 0], [3, 2, 1, 0, 1]])))
    with pytest.raises(CorpusError, match="is empty"):
        prepare_images(images, tmp_path / "out", heldout_fraction=1e-9)
    assert not (tmp_path / "out" / "corpus.json").exists()


def test_a_run_must_fit_its_images(tmp_path: Path) -> None:
    section = prepare_images(digits(), tmp_path)
    assert run_of(section).targets_per_step == 16
    with pytest.raises(ManifestError, match=r"set model\.classes = 10"):
        run_of(section, classes=9)
    with pytest.raises(ManifestError, match=r"images of digits, levels and classes, take 17 ids .*vocab_size = 17"):
        run_of(section, vocab_size=16)
    with pytest.raises(ManifestError, match="trains on text, but the corpus digits contains images"):
        RunFile().resolve(section)
    with pytest.raises(ManifestError, match=r"set batch\.sequence_length = 81"):
        run_of(section.model_copy(update={"pixels": 81}))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({**MODEL, "heads": 4}, "model.heads = 4 has no effect"),
        ({**MODEL, "boundary": "maxout", "boundary_dim": 4}, "has no effect"),
        ({**MODEL, "residual": "subspace", "subspace_dim": 4}, "has no effect"),
        ({**MODEL, "classes": 1}, "two classes"),
        ({**MODEL, "dim": 100}, "set a multiple of 8, such as 104"),
        ({**MODEL, "dim": 17}, "set a multiple of 8, such as 24"),
        ({"classes": 3}, "model.classes = 3 has no effect"),
    ],
)
def test_keys_of_the_other_kind_of_model_are_refused(model: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ModelSection(**model)


@pytest.mark.parametrize("dim", [1, 15, 16, 20, 64])
def test_a_width_that_is_accepted_can_be_built(dim: int) -> None:
    assert count_parameters(ModelSection(**{**MODEL, "dim": dim})) > 0


def test_a_classifier_takes_squares_and_generates_nothing() -> None:
    model = ModelSection(**MODEL)
    with pytest.raises(ValueError, match="is not a square"):
        RunFile(model=model, batch=BatchSection(sequence_length=65), evaluation=SILENT)
    with pytest.raises(ValueError, match="generates nothing"):
        RunFile(model=model, batch=BatchSection(sequence_length=64))
