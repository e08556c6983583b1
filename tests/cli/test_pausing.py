"""When the owner's limits make a peer pause, and what reads its device."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peers.runtime import sensors
from peers.runtime.sensors import SHARED_S, NvidiaCard, Reading, SensorError, Shared, TemperatureFile, pick_sensor
from peers.stage import pausing
from peers.stage.pausing import BUSY_S, CALM_S, SILENT_S, PauseRule, Watched, watch
from swarm.protocol.peer.io import PauseChanged


class NoSensor:
    def read(self) -> Reading:
        raise AssertionError("the rule reads nothing by itself")


def rule(max_celsius: float | None = 80.0, when_busy: bool = False) -> PauseRule:
    return PauseRule(Watched(NoSensor(), max_celsius, when_busy))


def test_it_pauses_at_the_limit_and_goes_on_when_it_has_been_cooler_for_a_while() -> None:
    judge = rule().judge
    assert judge(Reading(79.9), 0.0) == ""
    why = judge(Reading(80.0), 1.0)
    assert why == "80 °C (limit 80)"
    assert judge(Reading(83.0), 2.0) == why, "the first reason stands"
    assert judge(Reading(76.0), 10.0) == judge(Reading(76.0), 60.0) == why, "not 5 °C cooler"
    assert judge(Reading(75.0), 61.0) == why
    assert judge(Reading(77.0), 63.0) == why, "it begins anew"
    assert judge(Reading(74.0), 64.0) == judge(Reading(74.0), 64.0 + CALM_S - 0.1) == why
    assert judge(Reading(74.0), 64.0 + CALM_S) == ""


def test_another_program_must_compute_for_a_while() -> None:
    judge = rule(None, when_busy=True).judge
    assert judge(Reading(None, "process 7"), 0.0) == ""
    assert judge(Reading(None, ""), 1.0) == ""
    assert judge(Reading(None, "process 7"), 2.0) == judge(Reading(None, "process 7"), 1.9 + BUSY_S) == ""
    assert judge(Reading(None, "process 7"), 2.0 + BUSY_S) == "the card is used by process 7"
    assert judge(Reading(None, ""), 10.0) and judge(Reading(None, ""), 9.9 + CALM_S)
    assert judge(Reading(None, ""), 10.0 + CALM_S) == ""


def test_a_sensor_that_stays_silent_stops_the_peer_until_it_answers() -> None:
    judge = rule().judge
    silence = SensorError("no answer")
    assert judge(silence, 0.0) == judge(silence, SILENT_S - 0.1) == ""
    assert judge(silence, SILENT_S) == "the sensor does not answer: no answer"
    assert judge(Reading(60.0), 20.0) and not judge(Reading(60.0), 20.0 + CALM_S)
    assert judge(silence, 30.0) == "", "the time begins anew"


def test_a_read_that_does_not_return_stops_the_peer_and_a_slow_one_does_not() -> None:
    of = rule()
    assert of.judge_silence(0.0, SILENT_S - 0.1) == of.judge(Reading(60.0), SILENT_S) == "", "a slow answer"
    assert of.judge_silence(20.0, 20.0 + SILENT_S).startswith("the sensor does not answer: a read of it")
    assert of.judge(Reading(60.0), 40.0) and not of.judge(Reading(60.0), 40.0 + CALM_S)
    of.judge(SensorError("no answer"), 50.0)
    assert of.judge_silence(51.0, 50.0 + SILENT_S), "both are one silence"


class Stuck:
    """A sensor with a driver that is stuck until the test lets it go on."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.readers: list[threading.Thread] = []

    def read(self) -> Reading:
        self.readers.append(threading.current_thread())
        self.goes_on.wait()
        return Reading(60.0)


async def test_a_peer_whose_sensor_is_stuck_pauses_and_keeps_no_thread_that_it_must_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOOK_EVERY_S", "SILENT_S", "CALM_S"):
        monkeypatch.setattr(pausing, name, 0.01)
    sensor, told = Stuck(), asyncio.Queue[PauseChanged]()
    watching = asyncio.create_task(watch(Watched(sensor, 80.0), told.put_nowait))
    try:
        async with asyncio.timeout(60):
            assert (await told.get()).reason.startswith("the sensor does not answer")
            (reader,) = sensor.readers
            assert reader.daemon, "or the process could not end"
            sensor.goes_on.set()
            assert (await told.get()).reason == ""
    finally:
        sensor.goes_on.set()
        watching.cancel()


async def test_a_machine_without_a_thread_for_the_sensor_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pausing, "SILENT_S", 0.0)
    monkeypatch.setattr(threading, "Thread", NoThread)
    told = asyncio.Queue[PauseChanged]()
    watching = asyncio.create_task(watch(Watched(NoSensor(), 80.0), told.put_nowait))
    try:
        async with asyncio.timeout(60):
            assert "can't start new thread" in (await told.get()).reason
    finally:
        watching.cancel()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no temperature in"),
        ("hot", "no temperature in"),
        ("83", ""),
        ("83000000", "says 83000 °C"),
        (None, "no temperature"),
    ],
)
def test_a_temperature_is_read_from_a_file(text: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "temp1_input"
    if text is not None:
        file.write_text(text)
    if not says:
        assert TemperatureFile(file).read() == Reading(0.083)
        file.write_text("83500\n")
        assert TemperatureFile(file).read() == Reading(83.5)
        return
    with pytest.raises(SensorError, match=says):
        TemperatureFile(file).read()


class Nvml:
    """What pynvml offers, with a card that says what the test wants."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    def __init__(self, pids: tuple[int, ...] = (), use: Any = ()) -> None:
        self.pids, self.use = pids, use
        self.since: list[int] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1":
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetTemperature(self, card: str, kind: int) -> int:
        assert (card, kind) == ("GPU-1", 0)
        return 83

    def nvmlDeviceGetComputeRunningProcesses(self, card: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetProcessUtilization(self, card: str, since: int) -> list[Any]:
        self.since.append(since)
        if isinstance(self.use, Exception):
            raise self.use
        return [SimpleNamespace(pid=pid, smUtil=percent, timeStamp=at) for pid, percent, at in self.use]


OWN = os.getpid()


def card(nvml: Nvml, uuid: str = "GPU-1") -> NvidiaCard:
    return NvidiaCard("cuda:0", temperature=True, others=True, nvml=nvml, uuid=uuid)


def test_a_card_tells_its_temperature_and_who_else_computes_there() -> None:
    nvml = Nvml((OWN, 7, 8), use=((OWN, 90, 100), (7, 30, 300), (8, 9, 200)))
    sensor = card(nvml)
    assert sensor.read() == Reading(83.0, "process 7"), "the third takes hardly any time, as desktops do"
    nvml.use = Nvml.NVMLError_NotFound("nothing since")
    assert sensor.read() == Reading(83.0, "") and nvml.since == [0, 300]
    nvml.use = Nvml.NVMLError_NotSupported("no such figures")
    assert sensor.read() == Reading(83.0, "process 7 and 1 more")


class Played(Nvml):
    """A card on which process 7 always computes: a sample every sixth of a second, and each is reported once."""

    now = 0.0

    def nvmlDeviceGetProcessUtilization(self, card: str, since: int) -> list[Any]:
        newest = int(self.now * 6) * 1_000_000 // 6
        if newest <= since:
            raise self.NVMLError_NotFound
        return [SimpleNamespace(pid=7, smUtil=95, timeStamp=newest)]


def test_each_seat_of_a_card_pauses_while_another_program_computes() -> None:
    nvml = Played((OWN,))
    watched = Watched(Shared(card(nvml), lambda: nvml.now), None, when_busy=True)
    seats = [PauseRule(watched) for _ in range(3)]
    for second in range(1, 6):
        for number, seat in enumerate(seats):
            nvml.now = second + number / 64
            why = seat.judge(watched.sensor.read(), nvml.now)
            assert why == ("the card is used by process 7" if second - 1 >= BUSY_S else ""), f"seat {number}"


def test_a_shared_reading_is_new_every_second_and_an_error_is_not_shared() -> None:
    nvml = Nvml((OWN,), use=Nvml.NVMLError("gone"))
    now = 10.0
    sensor = Shared(card(nvml), lambda: now)
    with pytest.raises(SensorError):
        sensor.read()
    nvml.use = ((7, 30, 300),)
    assert sensor.read().others == "process 7"
    nvml.use = Nvml.NVMLError_NotFound("nothing since")
    now += SHARED_S - 0.01
    assert sensor.read().others == "process 7"
    now += 0.02
    assert sensor.read().others == ""


def test_the_seats_of_a_card_share_its_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml((OWN,), use=((7, 30, 300),))
    monkeypatch.setattr(sensors, "_installed", lambda: nvml)
    monkeypatch.setattr(sensors, "_uuid", lambda device: "GPU-1")
    monkeypatch.setattr(sensors, "SHARED_S", float("inf"))
    sensor = pick_sensor("cuda:0", temperature=False, others=True)
    nvml.use = Nvml.NVMLError_NotFound("nothing since")
    assert sensor.read() == Reading(None, "process 7"), "it was read by the test at the start"


def test_a_card_that_does_not_answer_is_told_with_what_to_do() -> None:
    with pytest.raises(SensorError, match="NVML does not know the card cuda:0"):
        card(Nvml((OWN,)), "GPU-2")
    with pytest.raises(SensorError, match="--pid=host"):
        card(Nvml((7,)))
    with pytest.raises(SensorError, match="the card does not answer NVML: gone"):
        card(Nvml((OWN,), use=Nvml.NVMLError("gone"))).read()


def test_what_would_do_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SensorError, match="--pause-when-busy is for NVIDIA cards, and this peer computes on cpu"):
        pick_sensor("cpu", temperature=False, others=True)
    with pytest.raises(SensorError, match="--max-temp: the temperature of cpu cannot be read automatically"):
        pick_sensor("cpu", temperature=True, others=False)
    with pytest.raises(SensorError, match="no temperature in"):
        pick_sensor("cpu", temperature=True, others=False, file=tmp_path / "none")


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(SensorError, match="pip install nvidia-ml-py"):
        pick_sensor("cuda:0", temperature=True, others=False)
