"""Chooses codecs by the link rates: the gentlest ones that keep the network off the critical path.

The network is off the critical path if each peer sends its frames of one microbatch in less time than the slowest stage
computes one. This file is a pure function, so that the choice can be tested and explained. `CodecChoice` ensures that
all peers of a pass use the same choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarm.protocol.codec_ladder import CodecLadders, Slot
from swarm.protocol.coordinator.codec_choice.link_load import LinkLoad
from swarm.protocol.ids import Direction
from swarm.protocol.messages import CodecPair

LIMIT = 0.8
"""A harder codec is chosen if sending a microbatch takes more than this multiple of computing one in the slowest stage.
"""
ROOM = 0.6
"""A gentler codec is chosen only if the ratio stays below this. It is far enough below `LIMIT` that the choice stays
the same if the measured rate falls by a third.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """A new codec at one boundary in one direction."""

    slot: Slot
    before: str
    after: str
    harder: bool
    reason: str


def choose(
    ladders: CodecLadders, burdens: Sequence[LinkLoad], pace_s: float, current: Sequence[CodecPair], *, relax: bool
) -> tuple[tuple[CodecPair, ...], tuple[Change, ...]]:
    """The codecs of the next step, one pair per boundary 1, 2, …, and the changes.

    `pace_s`: seconds of the slowest stage per microbatch. `current`: must be on the ladders. `relax`: True if codecs
    may become gentler by one rung; while a link is too slow, codecs only become harder. If a sender is not measured,
    its codecs do not become harder, and not gentler than at the start.
    """
    choice = _Choice(ladders, burdens, pace_s, current)
    if not choice.harden() and relax:
        choice.relax()
    return choice.pairs(), choice.changes()


class _Choice:
    """The choice while it is being made: for each slot, the chosen rung."""

    def __init__(
        self, ladders: CodecLadders, burdens: Sequence[LinkLoad], pace_s: float, current: Sequence[CodecPair]
    ) -> None:
        self._ladders = ladders
        self._pace_s = pace_s
        self._before = {
            (boundary, direction): _place(ladders, direction, pair.of(direction))
            for boundary, pair in enumerate(current, 1)
            for direction in Direction
        }
        self._rungs = dict(self._before)
        self._burdens = burdens
        self._of: dict[Slot, list[LinkLoad]] = {slot: [] for slot in self._rungs}
        for burden in burdens:
            for slot in burden.frames:
                self._of[slot].append(burden)

    def harden(self) -> bool:
        """Choose harder codecs until no load exceeds the limit, as far as possible. Return True if any codec became
        harder.

        Among the frames on an overloaded link, the gentlest codec becomes harder first; among equal ones, activations
        before gradients.
        """
        found = False
        for burden in sorted(self._burdens, key=self._load, reverse=True):
            while self._load(burden) > LIMIT:
                open_slots = [s for s in burden.frames if self._rungs[s] + 1 < len(self._ladders.rungs(s[1]))]
                if not open_slots:
                    break
                found = True
                slot = min(open_slots, key=lambda s: (self._rungs[s], s[1] is Direction.BACKWARD, s[0]))
                self._rungs[slot] += 1
        return found

    def relax(self) -> None:
        """Choose gentler codecs by one rung where the links allow it: the hardest codec first, and gradients before
        activations.

        It takes only one rung at a time, because a link with little traffic may seem faster than it is (bursts,
        buffers). Then the mistake costs little.
        """
        for slot in sorted(self._rungs, key=lambda s: (-self._rungs[s], s[1] is Direction.FORWARD, s[0])):
            if self._may_relax(slot):
                self._rungs[slot] -= 1

    def _may_relax(self, slot: Slot) -> bool:
        gentler = self._rungs[slot] - 1
        if gentler < 0:
            return False
        first = _place(self._ladders, slot[1], self._ladders.start.of(slot[1]))
        self._rungs[slot] = gentler
        try:
            return all(
                gentler >= first if burden.rate is None else self._load(burden) <= ROOM for burden in self._of[slot]
            )
        finally:
            self._rungs[slot] = gentler + 1

    def pairs(self) -> tuple[CodecPair, ...]:
        boundaries = sorted({boundary for boundary, _ in self._rungs})
        return tuple(
            CodecPair(
                self._codec((boundary, Direction.FORWARD), self._rungs),
                self._codec((boundary, Direction.BACKWARD), self._rungs),
            )
            for boundary in boundaries
        )

    def changes(self) -> tuple[Change, ...]:
        return tuple(
            Change(
                slot,
                self._codec(slot, self._before),
                self._codec(slot, self._rungs),
                self._rungs[slot] > self._before[slot],
                self._reason(slot),
            )
            for slot in sorted(self._rungs, key=lambda s: (s[0], s[1] is Direction.BACKWARD))
            if self._rungs[slot] != self._before[slot]
        )

    def _codec(self, slot: Slot, rungs: Mapping[Slot, int]) -> str:
        return self._ladders.rungs(slot[1])[rungs[slot]].codec

    def _reason(self, slot: Slot) -> str:
        measured = [burden for burden in self._of[slot] if burden.rate is not None]
        if not measured:
            return "its senders are not measured: use the codec of the start"
        harder = self._rungs[slot] > self._before[slot]
        tightest = max(measured, key=lambda burden: self._load(burden, self._before if harder else self._rungs))
        assert tightest.rate is not None
        before, after = (1000 * self._pace_s * self._load(tightest, rungs) for rungs in (self._before, self._rungs))
        verdict = "" if self._load(tightest) <= LIMIT else "; no codec of the ladder is fast enough"
        return (
            f"{tightest.name} carries {tightest.rate / 1e6:.3g} MB/s: {after:.3g} ms for a microbatch (before: "
            f"{before:.3g} ms), while the slowest stage computes for {1000 * self._pace_s:.3g} ms{verdict}"
        )

    def _load(self, burden: LinkLoad, rungs: Mapping[Slot, int] | None = None) -> float:
        """The sending time of one microbatch divided by the slowest stage's computing time. 0 if the rate is not
        measured.
        """
        if burden.rate is None:
            return 0.0
        chosen = self._rungs if rungs is None else rungs
        frames = (n * self._ladders.rungs(slot[1])[chosen[slot]].nbytes for slot, n in burden.frames.items())
        return sum(frames) / (burden.rate * self._pace_s)


def _place(ladders: CodecLadders, direction: Direction, codec: str) -> int:
    place = ladders.place(direction, codec)
    assert place is not None, f"{codec} is not on the ladder"
    return place
