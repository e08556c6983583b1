"""A machine's line up: kinds of data that share it by their weights, as under a limit in swarm/net.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over whole messages: of the kinds that wait, the one goes next
that has had least for its weight, and within a kind what came first. So a gradient does not wait for every activation
that was asked for ahead of it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swarm.protocol.ids import Direction
from swarm.protocol.messages import Frame, Message


class TransferKind(enum.Enum):
    GRADIENT = enum.auto()
    ACTIVATION = enum.auto()
    REDUCE = enum.auto()
    STATE = enum.auto()


WEIGHTS = {TransferKind.GRADIENT: 12.0, TransferKind.ACTIVATION: 3.0, TransferKind.REDUCE: 3.0, TransferKind.STATE: 1.0}


def kind_of(message: Message) -> TransferKind:
    """Of a message with a payload."""
    if isinstance(message, Frame):
        return TransferKind.ACTIVATION if message.key.direction is Direction.FORWARD else TransferKind.GRADIENT
    return TransferKind.REDUCE


@dataclass(frozen=True, slots=True)
class _Waiting:
    nbytes: int
    item: Any


class FleetUplink:
    """What waits. Whoever sends says when the line is free (`busy`)."""

    def __init__(self) -> None:
        self.busy = False
        self._waiting: dict[TransferKind, deque[_Waiting]] = {}
        self._start: dict[TransferKind, float] = {}
        """Virtual time at which the next message of a kind that waits begins."""
        self._finish: dict[TransferKind, float] = {}
        self._virtual = 0.0

    def put(self, kind: TransferKind, nbytes: int, item: Any) -> None:
        waiting = self._waiting.setdefault(kind, deque())
        if not waiting:
            self._start[kind] = max(self._virtual, self._finish.get(kind, 0.0))
        waiting.append(_Waiting(nbytes, item))

    def withdraw(self, kind: TransferKind, void: Callable[[Any], bool]) -> None:
        """Drop what waits and is void."""
        kept = deque(each for each in self._waiting.pop(kind, ()) if not void(each.item))
        if kept:
            self._waiting[kind] = kept

    def take(self) -> Any:
        """Whose turn it is. None: nothing waits."""
        kind = min(self._waiting, key=self._start.__getitem__, default=None)
        if kind is None:
            return None
        waiting = self._waiting[kind]
        found = waiting.popleft()
        if not waiting:
            del self._waiting[kind]
        self._virtual = self._start[kind]
        self._start[kind] = self._finish[kind] = self._virtual + found.nbytes / WEIGHTS[kind]
        return found.item
