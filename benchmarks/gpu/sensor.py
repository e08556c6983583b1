"""The card as `--max-temp` and `--pause-when-busy` read it, through NVML."""

from __future__ import annotations

import time

import torch

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Aim, Found
from peers.runtime.sensors import NvidiaCard, Reading, SensorError
from peers.stage.pausing import BUSY_S, PauseRule, Watched

_LEAST_C, _MOST_C = 5.0, 110.0
READINGS = 5


def measure(lab: Lab) -> Found:
    """Read the card while this process computes on it. Not shown without an NVIDIA card or without NVML."""
    wanted = ("the card tells its temperature", "this process is not taken for another program", "a hot card pauses")
    if not lab.cuda:
        return Found({}, tuple(Aim.cannot(what, "true", "only on an NVIDIA card") for what in wanted))
    work = torch.randn(2048, 2048, device=lab.device)
    try:
        sensor = NvidiaCard(str(lab.device), temperature=True, others=True)
        readings = []
        for _ in range(READINGS):
            began = time.monotonic()
            while time.monotonic() - began < 0.2:
                work = torch.tanh(work @ work)
            lab.wait()
            readings.append(sensor.read())
    except SensorError as error:
        return Found({}, tuple(Aim.cannot(what, "true", str(error)[:200]) for what in wanted))
    degrees = [reading.celsius or 0.0 for reading in readings]
    others = sorted({reading.others for reading in readings if reading.others})
    aims = (
        Aim(wanted[0], f"{_LEAST_C:g} to {_MOST_C:g} °C", degrees, all(_LEAST_C < each < _MOST_C for each in degrees)),
        Aim(wanted[1], "no others", others, not others),
        Aim.holds(wanted[2], pauses(sensor, readings[-1])),
    )
    return Found({"celsius": degrees}, aims)


def pauses(sensor: NvidiaCard, reading: Reading) -> bool:
    """Whether a limit just below the temperature pauses a peer, and one above it does not."""
    celsius = reading.celsius or 0.0
    below, above = (PauseRule(Watched(sensor, max_celsius=celsius + more)) for more in (-1.0, 10.0))
    return bool(below.judge(reading, BUSY_S)) and not above.judge(reading, BUSY_S)
