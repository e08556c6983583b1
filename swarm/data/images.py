"""Images as a corpus: each image is a row of ids, the levels of its pixels followed by its class.

The default images are scikit-learn's digits: 1,797 handwritten digits of 8 × 8 pixels with 17 levels. Only its file is
read; the package's code is never imported.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import shutil
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swarm.data.corpus_error import CorpusError
from swarm.data.folder import open_side_folder, publish
from swarm.data.shards import ShardWriter, dtype_for
from swarm.data.split import check_fraction, is_heldout, unigram_entropy
from swarm.manifest import DataSection

SHARD_IDS = 1 << 27
MAX_ID = (1 << 16) - 1


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
            gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file,
            warnings.catch_warnings(action="ignore", category=UserWarning),  # of an empty file, refused below
        ):
            values = np.loadtxt(file, delimiter=",", ndmin=2)
    except FileNotFoundError:
        raise CorpusError(f"{path} does not exist") from None
    except (ValueError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorpusError(f"{path} is not a CSV file of numbers: {error}") from None
    with np.errstate(invalid="ignore"):  # nan, inf and huge numbers become others, and are refused below
        rows = values.astype(np.int64)
    if rows.size == 0 or math.isqrt(rows.shape[1] - 1) ** 2 != rows.shape[1] - 1 or rows.shape[1] < 2:
        count = rows.shape[1] - 1 if rows.size else 0
        raise CorpusError(f"{path}: each line has {count} pixels and a class; the number of pixels must be a square")
    if (rows != values).any() or rows.min() < 0 or rows.max() > MAX_ID:
        raise CorpusError(f"{path} contains numbers that are not integers from 0 to {MAX_ID}")
    found = Images(name or path.name.split(".")[0], licence, rows)
    if found.classes < 2 or found.levels < 2:
        raise CorpusError(
            f"{path}: number of classes {found.classes}, of levels {found.levels}: at least two of each are needed"
        )
    return found


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
    side = open_side_folder(out_dir, images.name, force)
    try:
        writers = {split: ShardWriter(side, split, dtype_for(vocabulary), SHARD_IDS) for split in parts}
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
    finally:
        shutil.rmtree(side, ignore_errors=True)
    return section
