"""Images as a corpus: each image is a row of ids, the levels of its pixels followed by its class.

The default images are scikit-learn's digits: 1,797 handwritten digits of 8 × 8 pixels with 17 levels. Only its file is
read; the package's code is never imported.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

import numpy as np

from swarm.data.corpus_error import CorpusError
from swarm.data.folder import corpus_folder, publish
from swarm.data.shards import ShardWriter, dtype_for
from swarm.data.split import check_fraction, is_heldout, unigram_entropy
from swarm.manifest import DataSection

SHARD_IDS = 1 << 27
MAX_ID = (1 << 16) - 1


_FORMAT = (
    "each line is one image: the whole numbers of its pixels and then its class, separated by commas, without a line "
    "of names at the top"
)


@dataclass(frozen=True, slots=True)
class Images:
    """Square images of one size with their name and licence."""

    name: str
    licence: str
    rows: np.ndarray
    """(images, pixels + 1) int64: levels from 0, then the class from 0."""

    @property
    def pixels(self) -> int:
        return int(self.rows.shape[1]) - 1

    @property
    def classes(self) -> int:
        return int(self.rows[:, -1].max()) + 1

    @property
    def absent(self) -> tuple[int, ...]:
        """The classes that no image has."""
        return tuple(np.flatnonzero(np.bincount(self.rows[:, -1]) == 0).tolist())

    @property
    def class_seems_first(self) -> bool:
        """Whether the first numbers look like classes and the last ones like levels: many files have that order."""
        first = self.rows[:, 0]
        few = 2 <= len(np.unique(first)) < self.classes and 2 * int(first.max()) < self.levels - 1
        return few and 2 * self.classes > self.levels

    @property
    def levels(self) -> int:
        return int(self.rows[:, :-1].max()) + 1


def digits() -> Images:
    """scikit-learn's digits. Raises CorpusError if the package is missing."""
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return read_images(path, "digits", "CC BY 4.0, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository")
    raise CorpusError("the digits come with scikit-learn, which is not installed: pip install 'swarm-peer[digits]'")


def read_images(path: Path, name: str = "", licence: str = "") -> Images:
    """Read a CSV file (or .csv.gz) of integers without a header, with one image per line.

    Raises CorpusError, OSError.
    """
    try:
        with (
            _opened(path) as file,
            warnings.catch_warnings(action="ignore", category=UserWarning),  # of an empty file, refused below
        ):
            values = np.loadtxt(file, delimiter=",", ndmin=2, comments=None)
    except FileNotFoundError:
        raise CorpusError(f"{path} does not exist") from None
    except (ValueError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        told = str(error).partition("; use")[0].rstrip(".")  # what follows is advice about a function of numpy
        raise CorpusError(f"{path} is not a CSV file of numbers: {told}; {_FORMAT}") from None
    with np.errstate(invalid="ignore"):  # nan, inf and huge numbers become others, and are refused below
        rows = values.astype(np.int64)
    if rows.size == 0 or math.isqrt(rows.shape[1] - 1) ** 2 != rows.shape[1] - 1 or rows.shape[1] < 2:
        count = rows.shape[1] - 1 if rows.size else 0
        raise CorpusError(
            f"{path}: each line has {count} pixels and a class; the number of pixels must be a square; {_FORMAT}"
        )
    if (rows != values).any() or rows.min() < 0 or rows.max() > MAX_ID:
        raise CorpusError(f"{path} contains numbers that are not integers from 0 to {MAX_ID}; {_FORMAT}")
    found = Images(name or path.name.split(".")[0], licence, rows)
    if found.classes < 2 or found.levels < 2:
        raise CorpusError(
            f"{path}: number of classes {found.classes}, of levels {found.levels}: at least two of each are needed; "
            f"{_FORMAT}"
        )
    return found


def _opened(path: Path) -> TextIO:
    """A text file, with or without a BOM, which spreadsheets write."""
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def prepare_images(images: Images, out_dir: Path, *, heldout_fraction: float = 0.2, force: bool = False) -> DataSection:
    """Write a corpus to `out_dir`; returns its description. Equal images are always on the same side of the split.

    Another corpus in `out_dir` is replaced only with `force`. Raises CorpusError, OSError.
    """
    check_fraction(heldout_fraction)
    held = np.array([is_heldout(row[:-1].astype("<u2").tobytes(), heldout_fraction) for row in images.rows])
    parts = {"train": images.rows[~held], "heldout": images.rows[held]}
    for split, rows in parts.items():
        if not len(rows):
            raise CorpusError(f"the {split} split of {images.name} ({len(held)} images) is empty: change --heldout")
    vocabulary = max(images.levels, images.classes)
    with corpus_folder(out_dir, images.name, force) as side:
        writers = {split: ShardWriter(side.new, split, dtype_for(vocabulary), SHARD_IDS) for split in parts}
        for split, rows in parts.items():
            writers[split].write(rows.reshape(-1))
        counts = {split: np.bincount(rows[:, -1], minlength=images.classes) for split, rows in parts.items()}
        section = DataSection(
            name=images.name,
            licence=images.licence,
            kind="images",
            vocab_size=vocabulary,
            pixels=images.pixels,
            classes=images.classes,
            dtype=dtype_for(vocabulary),
            train=writers["train"].close(),
            heldout=writers["heldout"].close(),
            unigram_entropy=unigram_entropy(counts["heldout"], counts["train"]),
        )
        publish(side, out_dir, section, force)
    return section
