"""A machine's uplink: kinds of data share it by their weights, as under a limit in swarm/net.

It uses start-time fair queueing (Goyal, Vin and Cheng, 1996) over whole messages. Among the kinds that wait, the one
that has had least for its weight is next; within a kind, messages are sent in order. So a gradient does not wait for
all activations that were requested before it.
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
    """The kind of a message with a payload."""
    if isinstance(message, Frame):
        return TransferKind.ACTIVATION if message.key.direction is Direction.FORWARD else TransferKind.GRADIENT
    return TransferKind.REDUCE


@dataclass(frozen=True, slots=True)
class _Waiting:
    nbytes: int
    item: Any


class FleetUplink:
    """The waiting messages. The sender sets `busy` while its line is in use."""

    def __init__(self) -> None:
        self.busy = False
        self._waiting: dict[TransferKind, deque[_Waiting]] = {}
        self._start: dict[TransferKind, float] = {}
        """The virtual time at which the next message of each waiting kind begins."""
        self._finish: dict[TransferKind, float] = {}
        self._virtual = 0.0

    def put(self, kind: TransferKind, nbytes: int, item: Any) -> None:
        waiting = self._waiting.setdefault(kind, deque())
        if not waiting:
            self._start[kind] = max(self._virtual, self._finish.get(kind, 0.0))
        waiting.append(_Waiting(nbytes, item))

    def withdraw(self, kind: TransferKind, void: Callable[[Any], bool]) -> None:
        """Drop waiting messages that are void."""
        kept = deque(each for each in self._waiting.pop(kind, ()) if not void(each.item))
        if kept:
            self._waiting[kind] = kept

    def take(self) -> Any:
        """The message that is next. None: nothing waits."""
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
