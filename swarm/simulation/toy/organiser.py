"""The organiser of a simulated run: gives its commands one after the other, and repeats each until it is answered.

In a group, it asks any living coordinator. It never gives up: an unanswered command is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from swarm.protocol.coordinator.io import AnswerControl, ControlRequested
from swarm.simulation.kernel.timeline import Process
from swarm.simulation.runs.world import World
from swarm.simulation.toy.sim_peer import SimPeer

_AGAIN_S = 0.4


@dataclass(frozen=True, slots=True)
class Wish:
    """A command of a plan. `value`: its argument. The peer of `expel` and `dismiss` is drawn when the command is
    given.
    """

    at: float
    name: str
    value: str = ""


class Organiser:
    """`staff(after)`: let peers replace those that were expelled or dismissed. `respawn(peer, after)`: start a peer
    again.
    """

    def __init__(
        self,
        world: World,
        wishes: tuple[Wish, ...],
        staff: Callable[[float], None],
        respawn: Callable[[Process, float], None],
    ) -> None:
        self.given = 0
        """Number of commands that took effect."""
        self.refused = 0
        self._world = world
        self._wishes = list(wishes)
        self._staff = staff
        self._respawn = respawn
        self._random = Random(world.random.random())
        self._asked: ControlRequested | None = None
        self._number = 0
        world.answered = self._answered
        self._next()

    def _next(self) -> None:
        if self._wishes:
            self._world.at(max(self._world.now, self._wishes[0].at), None, (self._give, self._wishes.pop(0)))
        else:
            self._world.at(self._world.now + 1.0, None, (self._look, None))

    def _give(self, wish: Wish) -> None:
        value = wish.value
        if wish.name in ("expel", "dismiss"):
            there = [p for p in self._world.alive() if isinstance(p, SimPeer) and p.stage is not None and not p.leaving]
            if not there:
                return self._next()
            actor = self._random.choice(there).actor
            value = actor.peer if self._random.random() < 0.5 else str(actor)
            self._world.watch.leaving.disturbed = True  # it may be the only peer of its stage
        self._number += 1
        self._asked = ControlRequested(f"request {self._number}", wish.name, value, "organiser", "because")
        self._ask(self._asked)

    def _ask(self, request: ControlRequested) -> None:
        if request is not self._asked:
            return
        there = [p for p in self._world.alive() if p.role == "coordinator" and not p.stalled]
        if there:
            self._random.choice(there).accept(request)
        self._world.at(self._world.now + _AGAIN_S, None, (self._ask, request))

    def _answered(self, answer: AnswerControl) -> None:
        asked = self._asked
        if asked is None or answer.request != asked.request:
            return
        self._asked = None
        self.given += not answer.error
        self.refused += bool(answer.error)
        if asked.command in ("expel", "dismiss"):
            self._staff(0.3)
        if asked.command == "expel" and not answer.error:
            self._world.at(self._world.now + 0.3, None, (self._try_again, None))
        self._next()

    def _try_again(self, _: None) -> None:
        """The owner of an expelled peer starts it again."""
        for process in self._world.processes:
            gone = isinstance(process, SimPeer) and not (process.alive or process.replaced)
            if gone and self._world.watch.is_expelled(process.actor):
                self._respawn(process, self._random.random())

    def _look(self, _: None) -> None:
        """Resume the run if it is paused: a pause that was abandoned as unanswered may still have taken effect."""
        if self._world.watch.controls.paused is not None:
            self._wishes.append(Wish(0.0, "resume"))
            self._next()
        elif self._world.finished_at > self._world.now:
            self._world.at(self._world.now + 1.0, None, (self._look, None))
