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
    """The same for all boundaries of a run, because all frames have one shape. `of` drops codecs that do not save
    bytes.
    """

    forward: tuple[Rung, ...]
    backward: tuple[Rung, ...]
    start: CodecPair
    """Used until the links are measured."""

    @classmethod
    def of(cls, forward: Iterable[Rung], backward: Iterable[Rung], start: CodecPair) -> CodecLadders:
        """`forward` and `backward`: gentlest first. `start` is kept even if it does not save bytes."""
        return cls(_steps(forward, start.forward), _steps(backward, start.backward), start)

    def rungs(self, direction: Direction) -> tuple[Rung, ...]:
        return self.forward if direction is Direction.FORWARD else self.backward

    def place(self, direction: Direction, codec: str) -> int | None:
        """The rung of a codec; None: the codec is not on the ladder."""
        return next((i for i, rung in enumerate(self.rungs(direction)) if rung.codec == codec), None)

    def has(self, codecs: tuple[CodecPair, ...]) -> bool:
        """Return True if all these codecs are on the ladders."""
        return all(self.place(way, pair.of(way)) is not None for pair in codecs for way in Direction)


def _steps(rungs: Iterable[Rung], start: str) -> tuple[Rung, ...]:
    """The rungs that take fewer bytes than the one before."""
    kept: list[Rung] = []
    for rung in rungs:
        if rung.codec == start:
            kept = [before for before in kept if before.nbytes > rung.nbytes]
            kept.append(rung)
        elif not kept or rung.nbytes < kept[-1].nbytes:
            kept.append(rung)
    return tuple(kept)
