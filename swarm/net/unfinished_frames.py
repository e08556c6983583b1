"""Bounds the memory of frames that take long to arrive.

A member may send a large frame almost to its end, and then nothing. The frame is given up after a while (see
`Stream.read_frame`), but before that, many devices of one pass could hold much memory. So frames that have been
arriving for more than FRAME_S share a limited amount of memory. If they exceed it, the pass that holds most gives up a
frame: of its device that holds most, the frame that arrives most slowly. So nobody can take the place of a pass that
holds less, and a frame that has almost arrived is not given up before one that has just begun.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from swarm.net.stream import FRAME_S, Stream
from swarm.protocol.ids import Actor

MOST_BYTES = 256 << 20
"""Memory of all slow frames together, or of FRAMES of the run's largest frames if this is more."""
FRAMES = 4
LOOK_EVERY_S = 5.0
"""Seconds between two checks."""


@dataclass(frozen=True, slots=True)
class _Reading:
    sender: Actor
    serial: bytes
    """Of the sender's pass."""
    stream: Stream


class UnfinishedFrames:
    """The streams on which one actor reads frames. Used in one event loop.

    `max_payload`: bytes of the largest payload of the run.
    """

    def __init__(self, max_payload: int) -> None:
        self._most = max(MOST_BYTES, FRAMES * max_payload)
        self._readings: set[_Reading] = set()

    @contextmanager
    def reads(self, stream: Stream, sender: Actor, serial: bytes) -> Iterator[None]:
        """Count the frames of a stream during the block. `serial`: empty for a coordinator, which is not limited."""
        reading = _Reading(sender, serial, stream)
        if serial:
            self._readings.add(reading)
        try:
            yield
        finally:
            self._readings.discard(reading)

    def look(self, now: float) -> list[Actor]:
        """Abort streams until the slow frames are within the limit. Returns their senders. `now`: the loop's clock."""
        slow = [r for r in self._readings if r.stream.reserved and now - r.stream.frame_since > FRAME_S]
        given_up = []
        while sum(r.stream.reserved for r in slow) > self._most:
            of_pass, of_device = Counter[bytes](), Counter[str]()
            for r in slow:
                of_pass[r.serial] += r.stream.reserved
                of_device[r.sender.peer] += r.stream.reserved
            largest = max(slow, key=lambda r: (of_pass[r.serial], of_device[r.sender.peer], -_rate(r.stream, now)))
            slow.remove(largest)
            largest.stream.abort()
            given_up.append(largest.sender)
        return given_up


def _rate(stream: Stream, now: float) -> float:
    """Bytes per second at which the unfinished frame of a stream has arrived, about."""
    return stream.reserved / (now - stream.frame_since)
