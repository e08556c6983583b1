"""Padding: this peer fills the pauses of its connections, so that they send fast after each pause.

TCP sends a few packets at first, and twice as many after each round trip. With most congestion controls, a connection
that pauses begins again like this (`slow_start`). The pipeline pauses in every step: while it fills and drains, and,
between two exchanges of sums, for the whole step. So each step loses several round trips.

Steps resemble each other. This peer notes when it first sends each kind of data to each neighbour in a step, and how
much at once. In the next step it sends as many bytes of padding before, early enough for the connection to become
fast, and again after each timeout until the data leaves. Once data is queued, padding that is not sent yet is dropped.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from swarm.buffer import Buffer
from swarm.protocol.ids import Actor, Direction, PassId, PassKind
from swarm.protocol.messages import PADDED_KINDS, Frame, Message, Open, Prepared, ReducePart

FAR_S = 0.04
"""Round-trip time from which a slow start after each pause matters."""
FIRST_WINDOW = 10 * 1448
"""Bytes that TCP sends before the first acknowledgement (RFC 6928)."""
REST_S = 0.2
"""A connection that rests for a round trip and this time becomes slower (the least timeout of Linux)."""
MOST_BYTES = 256 << 10
"""Largest padding before a burst: a larger one has become fast before it ends."""
MOST_TIMES = 5
"""How often padding is sent in one pause."""
STEPS = 2
"""Number of steps whose times are considered."""
_EARLY_S = 0.05
"""Seconds by which steps may differ."""
FORWARD, BACKWARD, SUMS = range(len(PADDED_KINDS))

Way = tuple[Actor, int]
"""Receiver and kind of data."""


@dataclass(slots=True)
class _Burst:
    """The first data of one kind that was sent to one actor in a step."""

    after_s: float
    """Seconds from the opening of the step."""
    nbytes: int


class Padding:
    """The padding of one peer. Call `heard` for each message and `sent` for each message sent."""

    def __init__(
        self,
        pad: Callable[[Actor, int, int], None],
        ping: Callable[[Actor], None],
        round_trip_s: Callable[[Actor], float | None],
        is_leader: Callable[[Actor], bool],
    ) -> None:
        """`pad(actor, kind, nbytes)` sends padding. `round_trip_s(actor)`: None until a ping is answered."""
        self._send = pad
        self._ping = ping
        self._round_trip_s = round_trip_s
        self._is_leader = is_leader
        self._loop = asyncio.get_running_loop()
        self._pass: PassId | None = None
        """The newest training pass."""
        self._opened = 0.0
        self._prepared: float | None = None
        """When this peer's part of the step was ready, or None."""
        self._gaps_s: deque[float] = deque(maxlen=STEPS)
        """Seconds from `_prepared` to the opening of the next step."""
        self._bursts: dict[Way, _Burst] = {}
        """Of this step so far."""
        self._before: deque[dict[Way, _Burst]] = deque(maxlen=STEPS)
        """Of the last steps; the newest is last."""
        self._sent_at: dict[Actor, float] = {}
        """When data or padding was last sent to each actor, since the step before."""
        self._due: dict[Way, asyncio.TimerHandle] = {}
        """The next padding of each way."""

    def heard(self, sender: Actor, message: Message) -> None:
        if not isinstance(message, Open) or message.kind is not PassKind.TRAIN or not self._is_leader(sender):
            return
        if self._pass is not None and message.pass_id <= self._pass:
            return  # a repeat
        members = {actor for table in message.tables for actor in table.roster}
        self._before.append(self._bursts)
        self._bursts = {}
        self._pass, self._opened = message.pass_id, self._loop.time()
        if self._prepared is not None:
            self._gaps_s.append(self._opened - self._prepared)
            self._prepared = None
        self._sent_at = {actor: at for actor, at in self._sent_at.items() if actor in members}
        for way in [way for way in self._due if way[0] not in members]:
            self._stop(way)
        for way, burst in self._expected().items():
            if way[0] in members and way not in self._due:
                self._plan(way, burst.nbytes, burst.after_s)

    def sent(self, to: Actor, message: Message) -> None:
        match message:
            case Frame(key=key, payload=payload):
                kind = FORWARD if key.direction is Direction.FORWARD else BACKWARD
                self._note((to, kind), payload, sums=False)
            case ReducePart(payload=payload):
                self._note((to, SUMS), payload, sums=True)
            case Prepared():
                self._prepared = self._loop.time()
                # padding for the first frames of the next step may have to leave before that step opens
                gap_s = min(self._gaps_s, default=0.0)
                for way, burst in self._expected(self._bursts).items():
                    if way not in self._due and self._lead_s(way[0], burst.nbytes) >= burst.after_s:
                        self._plan(way, burst.nbytes, gap_s + burst.after_s)

    def close(self) -> None:
        for way in list(self._due):
            self._stop(way)

    def _expected(self, *more: dict[Way, _Burst]) -> dict[Way, _Burst]:
        """The bursts of the next step. Each is as large as in the last step, and may be as early as in any of them."""
        steps = (*self._before, *more)[-STEPS:]
        return {
            way: _Burst(min(step[way].after_s for step in steps if way in step), burst.nbytes)
            for way, burst in (steps[-1] if steps else {}).items()
        }

    def _note(self, way: Way, payload: object, *, sums: bool) -> None:
        self._stop(way)
        now = self._loop.time()
        self._sent_at[way[0]] = now
        nbytes = memoryview(payload).nbytes if isinstance(payload, Buffer) else 0
        burst = self._bursts.get(way)
        if burst is None:
            if self._round_trip_s(way[0]) is None:
                self._ping(way[0])
            self._bursts[way] = _Burst(now - self._opened, nbytes)
        elif sums:
            burst.nbytes += nbytes

    def _lead_s(self, actor: Actor, nbytes: int) -> float:
        """Seconds before a burst at which its padding must begin."""
        trips = math.ceil(math.log2(max(1.0, min(nbytes, MOST_BYTES) / FIRST_WINDOW)))
        return trips * self._trip_s(actor) + _EARLY_S

    def _plan(self, way: Way, nbytes: int, in_s: float) -> None:
        """Begin with the padding for a burst of `nbytes` that is expected in `in_s` seconds."""
        if nbytes <= FIRST_WINDOW or self._trip_s(way[0]) < FAR_S:
            return
        wait_s = max(0.0, in_s - self._lead_s(way[0], nbytes))
        self._due[way] = self._loop.call_later(wait_s, self._pad, way, nbytes, MOST_TIMES)

    def _pad(self, way: Way, nbytes: int, times: int) -> None:
        del self._due[way]
        actor, kind = way
        rest_s = self._trip_s(actor) + REST_S - _EARLY_S
        now = self._loop.time()
        rested_s = now - self._sent_at.get(actor, -math.inf)
        if rested_s >= rest_s:
            self._send(actor, kind, min(nbytes, MOST_BYTES))
            self._sent_at[actor] = now
            times, rested_s = times - 1, 0.0
        if times:
            self._due[way] = self._loop.call_later(rest_s - rested_s, self._pad, way, nbytes, times)

    def _trip_s(self, actor: Actor) -> float:
        return self._round_trip_s(actor) or 0.0

    def _stop(self, way: Way) -> None:
        due = self._due.pop(way, None)
        if due is not None:
            due.cancel()
