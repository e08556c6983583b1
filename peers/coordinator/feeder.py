"""Makes the frame bodies with the tokens of microbatches. Manifest and step determine these tokens completely."""

from __future__ import annotations

import numpy as np

from swarm.compute.body import BodyFormat
from swarm.data.reader import CorpusReader
from swarm.data.tokenizer import Tokenizer
from swarm.manifest import RunManifest
from swarm.protocol.ids import Microbatch, PassId, PassKind


class Feeder:
    """Makes frame bodies from the tokens of microbatches. It also keeps the text that a chain of GENERATE passes
    continues.
    """

    def __init__(self, manifest: RunManifest, reader: CorpusReader, tokenizer: Tokenizer | None) -> None:
        """`tokenizer` None: no samples are made."""
        self._format = BodyFormat(manifest)
        self._reader = reader
        self._tokenizer = tokenizer
        self._context = manifest.model.context
        self._prompt = [] if tokenizer is None else tokenizer.prompt(manifest.evaluation.prompt)
        self._sample: list[int] = []
        self._sampled_at = -1
        """The version whose model generates the current sample."""

    def body(self, pass_id: PassId, kind: PassKind, m: Microbatch) -> bytes:
        """The payload of a boundary-0 frame."""
        if kind is PassKind.TRAIN:
            tokens = self._reader.microbatch(pass_id.step, m)
        elif kind is PassKind.EVALUATE:
            tokens = self._reader.heldout(m)
        else:
            if pass_id.version != self._sampled_at:  # the previous sample may have been given up unfinished
                self._sample, self._sampled_at = [], pass_id.version
            tokens = np.asarray([(self._prompt + self._sample)[-self._context :]])
        return self._format.pack_tokens(kind, tokens)

    def add_sampled(self, token: int) -> int:
        """Append a token to the sample; returns the sample's number of tokens."""
        self._sample.append(token)
        return len(self._sample)

    def finish_sample(self) -> str:
        """Return the continuation as text. The next token begins a new sample."""
        assert self._tokenizer is not None, "a run without text has evaluation.sample_tokens = 0"
        text = self._tokenizer.decode(self._sample)
        self._sample = []
        return text
