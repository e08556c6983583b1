"""A device's clock marks the work of this device, also on a thread whose current device is another one."""

from __future__ import annotations

import pytest
import torch

from swarm.compute.device_clock import DeviceClock

SECOND = torch.device("cuda:1")


def test_marks_are_recorded_on_the_clock_s_own_card(monkeypatch: pytest.MonkeyPatch) -> None:
    current, recorded = [torch.device("cuda:0")], []

    class OnCard:
        """Makes a card the current one, as `torch.cuda.device` does."""

        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            current.append(self.device)

        def __exit__(self, *_: object) -> None:
            current.pop()

    class Event:
        """Is recorded on the current card, as `torch.cuda.Event` is."""

        def __init__(self, **_: bool) -> None: ...

        def record(self) -> None:
            recorded.append(current[-1])

        def synchronize(self) -> None: ...

    monkeypatch.setattr(torch.cuda, "device", OnCard)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    clock = DeviceClock(SECOND)
    clock.set()
    clock.mark()
    assert recorded == [SECOND, SECOND] and current == [torch.device("cuda:0")]
