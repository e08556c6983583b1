"""The codecs that a run may choose from, gentlest first, with their frame sizes. This file does not encode anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.protocol.ids import Direction
from swarm.protocol.messages import CodecPair

Slot = tuple[int, Direction]
"""A boundary (from 1 on) and a direction. One codec is chosen for each slot."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One codec, and the size in bytes of a microbatch's frame with it."""

    codec: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class CodecLadders:
    """The codecs that a run may use, for each direction. They hold for all boundaries, because all frames have one
    shape.

    `of` leaves out codecs that do not save bytes.
    """

    forward: tuple[Rung, ...]
    backward: tuple[Rung, ...]
    start: CodecPair
    """The codecs in use until the links are measured."""

    @classmethod
    def of(cls, forward: Iterable[Rung], backward: Iterable[Rung], start: CodecPair) -> CodecLadders:
        """The ladders of these codecs. `forward` and `backward`: codecs, gentlest first.

        `start` stays on the ladder even if it does not save bytes.
        """
        return cls(_steps(forward, start.forward), _steps(backward, start.backward), start)

    def rungs(self, direction: Direction) -> tuple[Rung, ...]:
        return self.forward if direction is Direction.FORWARD else self.backward

    def place(self, direction: Direction, codec: str) -> int | None:
        """The position of a codec on its ladder, from 0. None if the codec is not on the ladder."""
        return next((i for i, rung in enumerate(self.rungs(direction)) if rung.codec == codec), None)

    def has(self, codecs: tuple[CodecPair, ...]) -> bool:
        """Return True if all these codecs are on the ladders."""
        return all(self.place(way, pair.of(way)) is not None for pair in codecs for way in Direction)


def _steps(rungs: Iterable[Rung], start: str) -> tuple[Rung, ...]:
    """The rungs that take fewer bytes than the rung before, and the rung of the codec `start`."""
    kept: list[Rung] = []
    for rung in rungs:
        if rung.codec == start:
            kept = [before for before in kept if before.nbytes > rung.nbytes]
            kept.append(rung)
        elif not kept or rung.nbytes < kept[-1].nbytes:
            kept.append(rung)
    return tuple(kept)
