"""A corpus that is made in no time, for tests that train on anything."""

from pathlib import Path

from peers.chaos.small_run import write_words
from swarm.data import open_source, prepare


def prepare_words(folder: Path, texts: int, heldout_fraction: float) -> None:
    """So many texts of 40 words of 200, in tokens of 300, prepared in folder/data."""
    source = write_words(folder, texts)
    prepare(open_source([source]), folder / "data", vocab_size=300, heldout_fraction=heldout_fraction)
