"""A corpus that is made in no time, for tests that train on anything."""

import random
from pathlib import Path

from swarm.data import open_source, prepare


def prepare_words(folder: Path, texts: int, heldout_fraction: float) -> None:
    """So many texts of 40 words of 200, in tokens of 300, prepared in folder/data."""
    draw = random.Random(0)
    source = folder / "text.jsonl"
    words = ["".join(draw.choices("aeioulmnrst", k=draw.randint(2, 6))) for _ in range(200)]
    source.write_text("\n".join(f'{{"text": "{" ".join(draw.choices(words, k=40))}"}}' for _ in range(texts)))
    prepare(open_source([source]), folder / "data", vocab_size=300, heldout_fraction=heldout_fraction)
