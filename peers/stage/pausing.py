"""Pauses a peer while its device is too hot or other programs compute on it: the peer begins no microbatches then."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from peers.runtime.sensors import Reading, Sensor, SensorError
from swarm.protocol.peer.io import PauseChanged

LOOK_EVERY_S = 1.0
COOLER_C = 5.0
"""Degrees below the limit at which a peer resumes."""
CALM_S = 5.0
"""Seconds for which the device must have been cool and free before the peer resumes."""
BUSY_S = 3.0
"""Other programs are ignored until they have computed for this number of seconds."""
SILENT_S = 10.0
"""If a sensor does not answer for this number of seconds, the peer pauses, because nobody knows whether the device is
too hot.
"""
_STUCK = SensorError("a read of it does not return; look for errors of its driver, for example in dmesg")


@dataclass(frozen=True, slots=True)
class Watched:
    """The limits set by the owner. `max_celsius` None: no limit. `sensor`: reads the values that the limits need."""

    sensor: Sensor
    max_celsius: float | None = None
    when_busy: bool = False


class PauseRule:
    """Decides from the sensor's readings whether to compute. Times are seconds of any monotonic clock."""

    def __init__(self, watched: Watched) -> None:
        self._max = watched.max_celsius
        self._when_busy = watched.when_busy
        self._why = ""
        self._calm_since: float | None = None
        self._busy_since: float | None = None
        self._silent_since: float | None = None

    def judge(self, reading: Reading | SensorError, now: float) -> str:
        """The reason to pause; empty: compute. The first reason is kept until the pause is over."""
        why, calm = self._look(reading, now)
        if why:
            self._calm_since = None
            self._why = self._why or why
        elif self._why:
            self._calm_since = (now if self._calm_since is None else self._calm_since) if calm else None
            if self._calm_since is not None and now - self._calm_since >= CALM_S:
                self._why, self._calm_since = "", None
        return self._why

    def judge_silence(self, asked: float, now: float) -> str:
        """The reason to pause while a read that began at `asked` has not returned. A slow sensor is no reason."""
        since = asked if self._silent_since is None else self._silent_since
        if now - since < SILENT_S:
            return self._why
        self._silent_since = since
        return self.judge(_STUCK, now)

    def _look(self, reading: Reading | SensorError, now: float) -> tuple[str, bool]:
        """The reason to pause by this reading alone, and whether this reading allows a pause to end."""
        if isinstance(reading, SensorError):
            self._silent_since = now if self._silent_since is None else self._silent_since
            silent = now - self._silent_since >= SILENT_S
            return (f"the sensor does not answer: {reading}" if silent else ""), False
        self._silent_since = None
        celsius, limit = reading.celsius, self._max
        if celsius is not None and limit is not None and celsius >= limit:
            return f"{celsius:.0f} °C (limit {limit:g})", False
        if not (self._when_busy and reading.others):
            self._busy_since = None
            return "", celsius is None or limit is None or celsius <= limit - COOLER_C
        self._busy_since = now if self._busy_since is None else self._busy_since
        busy = now - self._busy_since >= BUSY_S
        return (f"the card is used by {reading.others}" if busy else ""), False


async def watch(watched: Watched, tell: Callable[[PauseChanged], None]) -> None:
    """Read the sensor until cancelled, and tell the core when to pause and when to resume."""
    rule, told = PauseRule(watched), ""

    def judged(why: str) -> None:
        nonlocal told
        if why != told:
            told = why
            tell(PauseChanged(why))

    while True:
        asked, reading = time.monotonic(), asyncio.wrap_future(_begun(watched.sensor))
        try:
            while not (await asyncio.wait([reading], timeout=LOOK_EVERY_S))[0]:
                judged(rule.judge_silence(asked, time.monotonic()))
        finally:
            reading.cancel()
        judged(rule.judge(reading.result(), time.monotonic()))
        await asyncio.sleep(LOOK_EVERY_S)


def _begun(sensor: Sensor) -> Future[Reading | SensorError]:
    """Read the sensor in a thread. If a driver is stuck, this lasts for ever: so the process does not wait for the
    thread when it ends.
    """
    reading: Future[Reading | SensorError] = Future()
    reading.set_running_or_notify_cancel()  # a cancelled wait does not cancel it
    try:
        threading.Thread(target=_read, args=(sensor, reading), name="sensor", daemon=True).start()
    except RuntimeError as error:
        reading.set_result(SensorError(f"{error}; the system limits the number of threads"))
    return reading


def _read(sensor: Sensor, reading: Future[Reading | SensorError]) -> None:
    try:
        reading.set_result(sensor.read())
    except SensorError as error:
        reading.set_result(error)
    except BaseException as error:
        reading.set_exception(error)
