"""A corpus that is made in a moment, for tests whose text does not matter."""

from pathlib import Path

from peers.chaos.small_run import write_words
from swarm.data import open_source, prepare


def prepare_words(folder: Path, texts: int, heldout_fraction: float) -> None:
    """Prepare texts of 40 words each, out of 200 words, with 300 tokens, in folder/data."""
    source = write_words(folder, texts)
    prepare(open_source([source]), folder / "data", vocab_size=300, heldout_fraction=heldout_fraction)
