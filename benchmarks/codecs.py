"""Measures the cost of each codec: bits per value, time to encode and decode on one core, and the other bytes of a
frame.

    python -m benchmarks.codecs [--rounds 9] [--out benchmarks/results/codecs.json]

The values are Gaussian activations, 8 × 512 × 1,024 (16.8 MB of fp32). Times are CPU times of one thread, so other work
on the machine hardly matters. Every round measures each codec once, and memcpy for comparison; figures are medians.
`gigabytes_per_second`: the fp32 bytes that go into encode plus those that come out of decode, divided by the time of
both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.arguments import at_least
from benchmarks.results import write_results
from peers.stage.heap import keep_freed_memory
from swarm import codecs
from swarm.codecs.codec import HEADER_BYTES
from swarm.compute.body import BodyFormat
from swarm.manifest import CodecSection, DataSection, RunManifest, Shard
from swarm.net.stream import PREFIX_BYTES
from swarm.net.wire import Encoder
from swarm.protocol.ids import Actor, Direction, FrameKey, Microbatch, PassId, StepNumber, Term
from swarm.protocol.messages import Frame, Lineage

SHAPE = (8, 512, 1024)
PAIRS = (
    *((name, name) for name in ("none", "bf16", "int8", "int6", "int5", "int4", "int2", "log4")),
    *((name, name) for name in ("int8-channel", "int6-channel", "int5-channel", "int4-channel", "log4-channel")),
    *((f"huffman:{name}", f"huffman:{name}") for name in ("int5-channel", "log4-channel")),
    ("none", "topk-independent:0.1"),
    ("none", "topk-independent:0.01"),
    ("topk:0.1", "topk-shared"),
)
"""Pairs of a forward and a backward codec. The backward codec is measured."""


def main() -> None:
    keep_freed_memory()  # as a peer does: else half of the time is the kernel's, which clears pages
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    copy = torch.empty_like(x)
    ready = {}
    for forward, backward in PAIRS:
        ahead, back = codecs.pair(forward, backward)
        codec = back.beside(ahead.encode(x))
        ready[backward] = (codec, codec.encode(x))
    seconds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ready}
    for number in range(options.rounds + 1):
        for name, (codec, frame) in ready.items():
            found = (
                _seconds(lambda: copy.copy_(x)),
                _seconds(partial(codec.encode, x)),
                _seconds(partial(codec.decode, frame, SHAPE)),
            )
            if number:  # the first round warms up
                seconds[name].append(found)
    rows = {name: _row(times, len(ready[name][1])) for name, times in seconds.items()}
    told = Lineage(source=1 << 62, trail=1 << 62)
    overhead = {
        "first_step": frame_overhead(0, 0, 1),
        "late_step": frame_overhead(100_000, 60_000, 30),
        "first_step_of_codecs_that_remember": frame_overhead(0, 0, 1, told),
        "late_step_of_codecs_that_remember": frame_overhead(100_000, 60_000, 30, told),
    }
    print(json.dumps({"codecs": rows, "frame_bytes_beyond_payload": overhead}, indent=2))
    write_results(options.out, "codecs", codecs=rows, frame_bytes_beyond_payload=overhead)


def frame_overhead(step: int, microbatch: int, boundary: int, lineage: Lineage | None = None) -> int:
    """Bytes of a gradient's frame that are not the codec's payload: lengths, protobuf header, body, codec header."""
    shard = Shard(file="x", sha256="0" * 64, tokens=10_000)
    manifest = RunManifest(
        codec=CodecSection(forward="none", backward="none"),
        data=DataSection(
            tokenizer_sha256="0" * 64,
            vocab_size=4096,
            train=(shard,),
            heldout=(shard,),
            unigram_entropy=1.0,
            bytes_per_token=4.0,
        ),
    )
    gradient = torch.zeros(manifest.batch.sequences, manifest.batch.sequence_length, manifest.model.dim)
    body = BodyFormat(manifest).pack_backward(boundary, gradient)
    key = FrameKey(PassId(Term(3), StepNumber(step)), boundary, Direction.BACKWARD, Microbatch(microbatch))
    header, payload = Encoder(Actor("a", 1), Actor("b", 1)).encode(Frame(key, body, lineage))
    assert len(body) - 4 * gradient.numel() > HEADER_BYTES
    return PREFIX_BYTES + len(header) + len(payload) - 4 * gradient.numel()


def _seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def _row(times: list[tuple[float, float, float]], frame_bytes: int) -> dict[str, float]:
    memcpy, encode, decode = (statistics.median(column) for column in zip(*times, strict=True))
    values = SHAPE[0] * SHAPE[1] * SHAPE[2]
    return {
        "bits_per_value": round(8 * frame_bytes / values, 3),
        "encode_ms": round(1e3 * encode, 2),
        "decode_ms": round(1e3 * decode, 2),
        "gigabytes_per_second": round(8 * values / (encode + decode) / 1e9, 2),
        "encode_in_memcpys": round(encode / memcpy, 1),
        "decode_in_memcpys": round(decode / memcpy, 1),
    }


if __name__ == "__main__":
    main()
