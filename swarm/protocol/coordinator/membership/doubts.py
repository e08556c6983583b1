"""Doubts: peers whose report of a non-finite result is not believed, because no other stage confirms it.

Otherwise, a peer that is alone in its stage could end a run with such reports, or cause rollbacks again and again. A
doubted peer first loads its state anew, because memory errors happen. If it reports the same again, it is left out, and
another peer takes its stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarm.protocol.coordinator.membership.people import People
from swarm.protocol.ids import Actor

IF_DIVERGED = (
    "If the run has diverged, give a lower `swarm-peer control rate`: "
    "the run then goes back to its last good checkpoint"
)
REMEMBERED = 4096
"""Number of doubted peers that are kept: those doubted last."""


@dataclass(frozen=True, slots=True)
class Doubted:
    """The replicas of one stage report a non-finite value in their stage that no other stage confirms."""

    stage: int
    who: tuple[Actor, ...]
    reason: str


def is_confirmed(stages: Collection[int], peers: Iterable[str], of: int, people: People) -> bool:
    """Return True if reports about `stages` come from two different stages and two different people.

    All peers of one stage may lie, and so may all devices of a person. `peers`: ids of the reporting peers. `of`: the
    number of stages in the run. If there is only one stage, two people in it must report.
    """
    return (len(stages) > 1 or (of == 1 and bool(stages))) and people.count(peers) > 1


def what_is_spoilt(stages: Collection[int], version: int) -> str:
    """Text for the event log. `stages`: at least one stage, each with a non-finite state at `version`."""
    names = ", ".join(map(str, stages))
    when = f"after step {version - 1}" if version else "at the start"
    return f"parameters or moments of stage {names} are not finite {when}"


class Doubts:
    """The doubts about peers, by peer id. They hold for all incarnations of a peer, as long as this coordinator
    leads.
    """

    def __init__(self) -> None:
        self._reloaded: dict[str, str] = {}
        """Peers that were told to load their state again, with the reason."""
        self.left_out: dict[str, str] = {}
        """Peers that get no work any more, even if their stage has no other peer, with the reason."""
        self._said: dict[int, set[Actor]] = {}
        """For each stage, the actors that reported a non-finite result of it in an attempt at the current step."""

    def say(self, stage: int, who: Iterable[Actor]) -> None:
        """Record that the actors `who` report a non-finite result of `stage`. Each of them computed it, or shares its
        sums.
        """
        self._said.setdefault(stage, set()).update(who)

    def who_said(self, stage: int) -> tuple[Actor, ...]:
        return tuple(sorted(self._said.get(stage, ())))

    def forgive(self) -> None:
        """The organiser believes the reports. Forget all doubts."""
        self._reloaded.clear()
        self.left_out.clear()

    def forget(self) -> None:
        """The current step is decided, or tried again from the start. Forget its reports."""
        self._said.clear()

    def doubt(self, doubted: Doubted) -> list[Actor]:
        """Return the actors that should load their state again. The other actors have done so before: they are left out
        from now on.
        """
        reload = [actor for actor in doubted.who if actor.peer not in self._reloaded]
        for actor in doubted.who:
            known = self._reloaded if actor in reload else self.left_out
            known.pop(actor.peer, None)
            known[actor.peer] = doubted.reason
            if len(known) > REMEMBERED:
                del known[next(iter(known))]
        return reload
