"""`prepare` converts text or images to hashed shards of ids. `CorpusReader` returns the ids of a step."""

from swarm.data.corpus import Source, open_source, wikipedia_leads
from swarm.data.corpus_error import CorpusError
from swarm.data.folder import read_corpus
from swarm.data.images import Images, digits, prepare_images, read_images
from swarm.data.order import EveryStep, Permutation, StepOrder
from swarm.data.prepare import prepare
from swarm.data.reader import CorpusReader, step_order, visits
from swarm.data.tokenizer import Tokenizer

__all__ = [
    "CorpusError",
    "CorpusReader",
    "EveryStep",
    "Images",
    "Permutation",
    "Source",
    "StepOrder",
    "Tokenizer",
    "digits",
    "open_source",
    "prepare",
    "prepare_images",
    "read_corpus",
    "read_images",
    "step_order",
    "visits",
    "wikipedia_leads",
]
