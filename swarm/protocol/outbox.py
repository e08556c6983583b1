"""Collects a core's actions, and routes messages around broken connections."""

from __future__ import annotations

from swarm.events import Event, RouteChanged
from swarm.protocol.ids import Actor
from swarm.protocol.io import Action, Emit, Send
from swarm.protocol.messages import Message, Relay, Want, WithPayload

RELAYED = Want | WithPayload


class Outbox:
    """The actions of a core. `routes[other]`: the actor that forwards messages to `other` while the direct connection
    is broken.
    """

    def __init__(self, me: Actor) -> None:
        self._me = me
        self._actions: list[Action] = []
        self.routes: dict[Actor, Actor] = {}
        self._told: dict[Actor, Actor] = {}
        """The routes reported last, in any pass."""

    def add(self, action: Action) -> None:
        self._actions.append(action)

    def emit(self, event: Event) -> None:
        self._actions.append(Emit(event))

    def tell_route(self, other: Actor, via: Actor, reason: str) -> None:
        """Report a route unless it was the last reported one, because every pass finds its routes again."""
        if self._told.get(other) != via:
            self._told[other] = via
            self.emit(RouteChanged(str(other), str(via), reason))

    def straight(self, other: Actor) -> None:
        """The actor can be reached directly again."""
        self.routes.pop(other, None)
        self._told.pop(other, None)

    def send(self, to: Actor, message: Message, via: Actor | None = None) -> None:
        via = via or self.routes.get(to)
        if via is not None and via != to and isinstance(message, RELAYED):
            self._actions.append(Send(via, Relay(self._me, to, message)))
        else:
            self._actions.append(Send(to, message))

    def take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
