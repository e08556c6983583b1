"""The part of a manifest about a corpus that need not exist."""

from swarm.manifest import DataSection, Shard

DATA = DataSection(
    tokenizer_sha256="0" * 64,
    vocab_size=300,
    train=(Shard(file="train-00000.bin", sha256="1" * 64, tokens=100_000),),
    heldout=(Shard(file="heldout-00000.bin", sha256="2" * 64, tokens=10_000),),
    unigram_entropy=5.0,
    bytes_per_token=3.0,
)
