"""Padding: this peer fills the pauses of its connections, so that they send fast after each pause.

TCP sends a few packets at first, and twice as many after each round trip. With most congestion controls, a connection
that pauses begins again like this (`slow_start`). The pipeline pauses in every step: while it fills and drains, and,
between two exchanges of sums, for the whole step. So each step would lose several round trips.

Before an expected burst (bursts.py), the peer sends as many bytes of padding, early enough for the connection to become
fast, and again after each timeout until the data leaves. Once data is queued, padding that is not sent yet is dropped.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from peers.stage.bursts import BACKWARD, FORWARD, SUMS, Burst, StepBursts, Way, expected
from swarm.buffer import Buffer
from swarm.protocol.ids import Actor, Direction, PassId, PassKind
from swarm.protocol.messages import Frame, Message, Open, Prepared, ReducedPart, ReducePart

FAR_S = 0.04
"""Round-trip time from which a slow start after each pause matters."""
FIRST_WINDOW = 10 * 1448
"""Bytes that TCP sends before the first acknowledgement (RFC 6928)."""
REST_S = 0.15
"""A connection that rests for a round trip and this time must be filled again. Linux slows it down after a round trip
and 0.2 s.
"""
MOST_BYTES = 256 << 10
"""Largest padding before a burst. More takes the uplink from frames: with 1 MiB, steps over lines of 40 Mbit/s and
20 ms took 9 % longer.
"""
MOST_TIMES = 5
"""How often padding is sent before one burst."""
REPEATED = 2
"""A repetition has this fraction of the bytes. More gained nothing, and took the uplink from frames."""
ROOM = 1.5
"""The first padding makes the connection fast enough for so many times the burst. Otherwise a repetition just before
the burst takes its place, and the last packets of the burst wait for a round trip. Gradients need no room: while they
are late, a stage goes on with activations.
"""
STEPS = 2
"""Number of steps from which bursts are expected."""
_EARLY_S = 0.1
"""Seconds by which a burst may be earlier than expected."""
_TICK_S = 0.01


class Padding:
    """The padding of one peer. Call `heard` for each message and `sent` for each message sent."""

    def __init__(
        self,
        pad: Callable[[Actor, int, int], None],
        ping: Callable[[Actor], None],
        round_trip_s: Callable[[Actor], float | None],
        uplink: Callable[[], float | None],
        threshold: Callable[[str], int | None],
        is_leader: Callable[[Actor], bool],
        begins: Callable[[float], None],
    ) -> None:
        """`pad(actor, kind, nbytes)` sends padding. `round_trip_s(actor)`: None until a ping is answered. `uplink()`:
        this peer's sending rate in bytes/s; None: unknown. `threshold(peer id)`: bytes under way that a connection
        reaches fast; None: any. `begins(rtt_s)` is called once, before the first padding.
        """
        self._send = pad
        self._ping = ping
        self._round_trip_s = round_trip_s
        self._uplink = uplink
        self._threshold = threshold
        self._is_leader = is_leader
        self._begins: Callable[[float], None] | None = begins
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._pass: PassId | None = None
        """The newest training pass."""
        self._opened = 0.0
        self._prepared: float | None = None
        """When this peer's part of the step was ready, or None."""
        self._gaps_s: deque[float] = deque(maxlen=STEPS)
        """Seconds from `_prepared` to the opening of the next step."""
        self._steps: deque[StepBursts] = deque(maxlen=STEPS)
        """The last steps; the newest one is in progress."""
        self._data_at: dict[Actor, float] = {}
        """When data was last sent to each member of the step."""
        self._padded_at: dict[Actor, float] = {}
        """When padding was last sent."""
        self._measured: set[Actor] = set()
        """Actors that got a ping at rest, which waits for no data and so tells how far they are."""
        self._due: dict[Way, asyncio.TimerHandle] = {}
        """The next padding of each way."""

    def heard(self, sender: Actor, message: Message) -> None:
        """Handle a message: an Open plans the padding of a step."""
        if not isinstance(message, Open) or message.kind is not PassKind.TRAIN or not self._is_leader(sender):
            return
        if self._closed or (self._pass is not None and message.pass_id <= self._pass):
            return  # a repeat
        if self._prepared is None and self._steps:  # the last step was given up: what it sent tells nothing
            self._steps.pop()
            self._stop_all()
        members = {actor for table in message.tables for actor in table.roster}
        self._pass, self._opened = message.pass_id, self._loop.time()
        if self._prepared is not None:
            self._gaps_s.append(self._opened - self._prepared)
            self._prepared = None
        for known in (self._data_at, self._padded_at):
            for actor in known.keys() - members:
                del known[actor]
        self._measured &= members
        for way in [way for way in self._due if way.actor not in members]:
            self._stop(way)
        for burst in expected(self._steps):
            if burst.way.actor in members:
                self._plan(burst, burst.after_s)
        self._steps.append(StepBursts())

    def sent(self, to: Actor, message: Message) -> None:
        """Handle a message that was sent."""
        match message:
            case Frame(key=key, payload=payload) if key.pass_id == self._pass:
                self._note(to, FORWARD if key.direction is Direction.FORWARD else BACKWARD, payload)
            case ReducePart(payload=payload):
                self._note(to, SUMS, payload)
            case Frame() | ReducedPart():
                self._data_at[to] = self._loop.time()
            case Prepared() if self._steps:
                self._prepared = self._loop.time()
                for way in [way for way in self._due if way.last]:
                    self._stop(way)  # the step had fewer frames than the one before
                # padding for the first frames of the next step may have to leave before that step opens
                gap_s = min(self._gaps_s, default=0.0)
                for burst in expected(self._steps):
                    if self._lead_s(burst) >= burst.after_s:
                        self._plan(burst, gap_s + burst.after_s)

    def close(self) -> None:
        self._closed = True
        self._stop_all()

    def _note(self, to: Actor, kind: int, payload: object) -> None:
        if not self._steps:
            return
        now = self._loop.time()
        rested = now - self._data_at.get(to, -math.inf) >= self._rest_s(to)
        self._data_at[to] = now
        nbytes = memoryview(payload).nbytes if isinstance(payload, Buffer) else 0
        step = self._steps[-1]
        step.note(to, kind, nbytes, now - self._opened, rested)
        self._stop(Way(to, kind, last=False))
        if len(self._steps) > 1 and step.count(to, kind) >= self._steps[-2].count(to, kind):
            self._stop(Way(to, kind, last=True))

    def _plan(self, burst: Burst, in_s: float) -> None:
        """Begin with the padding for a burst that is expected in `in_s` seconds, unless it has begun."""
        if burst.way in self._due or self._window(burst) <= FIRST_WINDOW or self._trip_s(burst.way.actor) < FAR_S:
            return
        wait_s = max(0.0, in_s - self._lead_s(burst))
        self._due[burst.way] = self._loop.call_later(wait_s, self._pad, burst, MOST_TIMES)

    def _pad(self, burst: Burst, times: int) -> None:
        del self._due[burst.way]
        actor, kind, _ = burst.way
        now, rest_s = self._loop.time(), self._rest_s(actor)
        rested_s = now - max(known.get(actor, -math.inf) for known in (self._data_at, self._padded_at))
        if rested_s >= rest_s:
            known = self._round_trip_s(actor)
            self._ping(actor)
            if actor not in self._measured or known is None or known < FAR_S:
                self._measured.add(actor)
                return
            if self._begins is not None:
                begins, self._begins = self._begins, None
                begins(self._trip_s(actor))
            # each acknowledged packet lets one more be under way
            first, again = self._window(burst, room=True) - FIRST_WINDOW, self._window(burst) - FIRST_WINDOW
            self._send(actor, kind, first if times == MOST_TIMES else again // REPEATED)
            self._padded_at[actor] = now
            times, rested_s = times - 1, 0.0
        if times:
            again_s = max(rest_s - rested_s, _TICK_S)
            self._due[burst.way] = self._loop.call_later(again_s, self._pad, burst, times)

    def _window(self, burst: Burst, *, room: bool = False) -> int:
        """Bytes that must be under way at once for the burst to take no longer than the line needs. `room`: and a
        repetition just before it. Bursts for several actors share the uplink. On a lossy link, padding helps little.
        """
        rate, threshold = self._uplink(), self._threshold(burst.way.actor.peer)
        most: float = MOST_BYTES if threshold is None else min(MOST_BYTES, threshold)
        most = most if rate is None else min(most, rate * self._trip_s(burst.way.actor) / burst.beside)
        return int(min(burst.nbytes * (ROOM if room and burst.way.kind != BACKWARD else 1.0), most))

    def _lead_s(self, burst: Burst) -> float:
        """Seconds before a burst at which its padding must begin."""
        trips = math.ceil(math.log2(max(1.0, self._window(burst, room=True) / FIRST_WINDOW)))
        return trips * self._trip_s(burst.way.actor) + _EARLY_S

    def _rest_s(self, actor: Actor) -> float:
        """Seconds without data after which a connection must be filled."""
        return self._trip_s(actor) + REST_S

    def _trip_s(self, actor: Actor) -> float:
        """The round-trip time. An unknown one counts as far, so that the actor gets a ping at the next rest."""
        known = self._round_trip_s(actor)
        return FAR_S if known is None else known

    def _stop_all(self) -> None:
        for way in list(self._due):
            self._stop(way)

    def _stop(self, way: Way) -> None:
        due = self._due.pop(way, None)
        if due is not None:
            due.cancel()
