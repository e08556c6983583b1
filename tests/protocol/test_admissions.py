"""The devices that a run has admitted: what the record knows of them, also while a part of it is not committed."""

from __future__ import annotations

from random import Random

import pytest

from swarm.events import ControlGiven
from swarm.protocol import admissions
from swarm.protocol.admissions import Admissions, Device
from swarm.protocol.controls import Controls
from swarm.protocol.messages import Command

ALICE, BOB = "a1" * 16, "b0" * 16


def admit(number: int, device: Device) -> Command:
    return Command(number, "admit", device.value, "pass", "", f"r{number}")


def revoke(number: int, serial: str) -> Command:
    return Command(number, "revoke", serial, "Ann", "", f"r{number}")


def test_the_value_names_an_observers_pass_and_values_of_earlier_releases_are_those_of_peers() -> None:
    peer, observer = Device(ALICE, 8, "QmPeer"), Device(ALICE, 8, "QmPeer", observes=True)
    assert peer.value == f"{ALICE} 8 QmPeer" and observer.value == f"{ALICE} 8 observe QmPeer"
    assert Device.read(peer.value) == peer and Device.read(observer.value) == observer
    told = [ControlGiven(1, "admit", device.value, "pass ann", "").sentence() for device in (peer, observer)]
    assert told == ["QmPeer is admitted with pass ann", "QmPeer is admitted to observe with pass ann"]
    for junk in (f"{ALICE} 8 train QmPeer", f"{ALICE} 8 observe ", f"{ALICE} 8 observe x QmPeer", f"{ALICE} 8", ""):
        with pytest.raises(ValueError, match=r"is not a serial number|is not a peer id"):
            Device.read(junk)


def test_what_is_known_is_the_same_as_without_the_shared_book() -> None:
    """Some continue others that were continued in another way already, as in a group whose leader changes."""
    chance = Random(1)
    those = [(Admissions(), ())]
    for _ in range(300):
        before, plain = those[chance.randrange(max(0, len(those) - 6), len(those))]
        device = Device(chance.choice("pqr"), 8, f"peer{chance.randrange(5)}", chance.random() < 0.3)
        those.append((before.after(device), (*plain, device)))
    for found, plain in those:
        assert (len(found), tuple(found), found) == (len(plain), plain, Admissions(plain))
        assert (found[-3:], found[2:]) == (plain[-3:], plain[2:])
        last = {device.peer: device for device in plain}
        assert found.devices == len(last)
        for peer in (f"peer{number}" for number in range(5)):
            assert found.last(peer) == last.get(peer)
        for serial in "pqr":
            there = list(dict.fromkeys(device.peer for device in plain if device.serial == serial))
            assert found.came_with(serial) == there and found.devices_of(serial) == len(there)
            assert [peer for peer in there if not found.has_joined(peer, serial)] == []
            assert not found.has_joined("nobody", serial)


def test_a_replay_looks_at_each_admission_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open run may have 100,000, and `banned` looks at all devices of the revoked passes."""
    added = []
    real = admissions._Book.add
    monkeypatch.setattr(admissions._Book, "add", lambda book, device: (added.append(device), real(book, device)))
    monkeypatch.setattr(Controls, "banned", property(lambda _: pytest.fail("asked for all that are banned")))
    devices = [Device(f"{number:032x}", 1, f"Qm{number}") for number in range(200)]
    commands = [admit(number + 2, device) for number, device in enumerate(devices)]
    controls = Controls.of([revoke(1, ALICE), *commands])
    assert added == devices and list(controls.admitted) == devices
    controls.after(admit(202, Device(BOB, 1, "Qm0")))
    assert len(added) == 201, "nor is anything copied for one more"


def test_passes_shown_in_turn_are_recorded_once_each() -> None:
    alice, bob = Device(ALICE, 1, "QmOne"), Device(BOB, 1, "QmOne")
    controls = Controls()
    assert controls.needs_admission(alice)
    controls = controls.after(admit(1, alice))
    assert not controls.needs_admission(alice) and controls.needs_admission(bob)
    controls = controls.after(admit(2, bob))
    assert not controls.needs_admission(alice) and not controls.needs_admission(bob)
    controls = controls.after(revoke(3, BOB))
    assert set(controls.banned) == {"QmOne"} and controls.needs_admission(alice), "the other pass lets it return"
    controls = controls.after(admit(4, alice))
    assert not controls.banned and controls.banned_at == 4 and not controls.needs_admission(alice)


def test_a_device_has_one_role() -> None:
    both = {"train": Device(ALICE, 8, "QmOne"), "watch": Device(BOB, 8, "QmOne", observes=True)}
    trains, watches = (Controls().after(admit(1, device)) for device in both.values())
    assert trains.objection(both["watch"]).startswith("this device takes part in the run: to observe it")
    assert watches.objection(both["train"]).startswith("this device observes the run: to take part in it")
    assert not trains.objection(Device(BOB, 8, "QmOne")) and not trains.objection(both["train"])
    assert not trains.objection(Device(BOB, 8, "QmTwo", observes=True)), "another home"
    again = Device(ALICE, 8, "QmOne", observes=True)
    assert not trains.objection(again) and not trains.needs_admission(again), "recorded by an earlier release"
