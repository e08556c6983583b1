"""Whether a step is not finite whoever does it: one peer may have made it so, by what it adds to its stage's sums.

Before such a step is skipped it is done by one half of the replicas of each stage, and if that is not finite either, by
the other half. If one half finds it finite, that is what is decided, and somebody of those left out is at fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from swarm.protocol.ids import Actor


class Halves:
    """Of the step that is not decided yet."""

    def __init__(self) -> None:
        self._left: list[frozenset[str]] | None = None
        """Peers that are yet to be left out, by attempt. None: it was not begun."""
        self.left_out: frozenset[str] = frozenset()
        """Peers that have no part in the next attempt, where their stage has others."""

    @property
    def begun(self) -> bool:
        return self._left is not None

    def split(self, rosters: Sequence[Sequence[Actor]], step: int) -> bool:
        """The step came out not finite when these did it. False: no stage has two replicas.

        Who is on whose side changes from step to step, so that nobody stands for another one for long.
        """
        sides: tuple[set[str], set[str]] = (set(), set())
        for stage, roster in enumerate(rosters):
            for place, actor in enumerate(roster if len(roster) > 1 else ()):
                sides[(place + place // 2 * step + (step >> stage)) % 2].add(actor.peer)
        self._left = [frozenset(side) for side in sides if side]
        return self.next()

    def next(self) -> bool:
        """It came out not finite again: leave out the next half. False: all have been left out once."""
        self.left_out = self._left.pop(0) if self._left else frozenset()
        return bool(self.left_out)

    def clear(self) -> None:
        self._left, self.left_out = None, frozenset()
