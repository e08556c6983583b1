"""Peers whose word that nothing finite comes of their stage is not believed, since nobody else sees it.

Whoever is alone in a stage could otherwise end a run by saying so, or send it back again and again. It loads its state
anew, once: memory changes by itself now and then. After that it is left out, and somebody else takes its stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarm.protocol.ids import Actor

IF_DIVERGED = "If the run has diverged, a lower `swarm-peer control rate` sends it back to its last good checkpoint"
REMEMBERED = 4096
"""Peers, those that were doubted last."""


@dataclass(frozen=True, slots=True)
class Doubted:
    """The replicas of one stage say something of it that nobody else confirms."""

    stage: int
    who: tuple[Actor, ...]
    reason: str


def is_confirmed(stages: Collection[int], peers: Iterable[str], of: int) -> bool:
    """Whether what is said of `stages` is said from more than one place: peers of one stage may lie alike.

    `peers`: by id, who says so. `of`: how many stages there are. Where there is one alone, two peers must say so.
    """
    return len(stages) > 1 or (of == 1 and bool(stages) and len(set(peers)) > 1)


def what_is_spoilt(stages: Collection[int], version: int) -> str:
    """In words. `stages`: at least one, whose state at `version` is not finite."""
    names = ", ".join(map(str, stages))
    when = f"after step {version - 1}" if version else "at the start"
    return f"parameters or moments of stage {names} are not finite {when}"


class Doubts:
    """By peer, whatever its incarnation, as long as this coordinator leads."""

    def __init__(self) -> None:
        self._reloaded: dict[str, str] = {}
        """Who was told to load its state anew, and why."""
        self.left_out: dict[str, str] = {}
        """Who is given nothing any more, even if its stage has nobody else; and why."""
        self._said: dict[int, set[Actor]] = {}
        """By stage, who has said of it in an attempt at the present step that nothing finite comes of it."""

    def say(self, stage: int, who: Iterable[Actor]) -> None:
        """These say so of their stage, each after its own computation or as one of those who share its sums."""
        self._said.setdefault(stage, set()).update(who)

    def who_said(self, stage: int) -> tuple[Actor, ...]:
        return tuple(sorted(self._said.get(stage, ())))

    def forgive(self) -> None:
        """The organiser believes them."""
        self._reloaded.clear()
        self.left_out.clear()

    def forget(self) -> None:
        """The present step is decided, or tried anew as if nothing had been said."""
        self._said.clear()

    def doubt(self, doubted: Doubted) -> list[Actor]:
        """Who of these is to load its state anew. The others have done so before: they are left out from now on."""
        reload = [actor for actor in doubted.who if actor.peer not in self._reloaded]
        for actor in doubted.who:
            known = self._reloaded if actor in reload else self.left_out
            known.pop(actor.peer, None)
            known[actor.peer] = doubted.reason
            if len(known) > REMEMBERED:
                del known[next(iter(known))]
        return reload
