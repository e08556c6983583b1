"""The organiser's commands in the decision record, and their combined effect.

A command is durable before it takes effect. Its effect depends only on the record, so a coordinator that restarts or
takes over continues as commanded. A command that changes the result of training is also part of each step's decision
(`rate`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

from swarm.protocol.admissions import Admissions, Device, read_serial
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Command
from swarm.protocol.settings import Settings

NAMES = ("pause", "resume", "expel", "dismiss", "checkpoint", "stop_after", "steps", "rate")
ADMIT = "admit"
"""A command of the coordinator itself, given when a device asks to join with a pass. Its value is a `Device`."""
REVOKE = "revoke"
"""The organiser's command to revoke a pass. Its value is the serial number."""
GO_BACK = "go_back"
"""A command of the coordinator itself, for a run that has diverged (swarm/protocol/coordinator/divergence.py)."""
MOST_STEPS = 2**31 - 1
MOST_RATE = 1e6
REQUESTS = 64
"""Number of requests that are remembered, so that a repeated request causes only one command."""
EXPELLED_OF_A_PASS = 2
"""If so many devices of a pass have been expelled, no further device may join with that pass."""
EXCUSED = 256
"""Number of dismissed peers that are remembered. A peer dismissed before those was absent or has left long ago."""


@dataclass(frozen=True, slots=True)
class Retreat:
    """The value of a `go_back` command."""

    version: int
    """The version to which the run returns."""
    term: int
    """The term in which the return was ordered. It has taken place once the record contains a rollback of a later term.
    """
    rate: float
    """The factor of the learning rate from then on, as in the command `rate`."""

    @property
    def value(self) -> str:
        """The value as text, as the command contains it."""
        return f"{self.version} {self.term} {self.rate!r}"

    @classmethod
    def read(cls, value: str) -> Retreat:
        """Parse a command's value. Raises ValueError."""
        fields = value.split(" ")
        if len(fields) != 3 or not all(n.isascii() and n.isdigit() and len(n) < 20 for n in fields[:2]):
            raise ValueError(f"{value!r} is not a version, a term and a rate to go back to")
        return cls(int(fields[0]), int(fields[1]), read_rate(fields[2]))


@dataclass(frozen=True, slots=True)
class Controls:
    """The combined effect of commands, in the order of the record."""

    count: int = 0
    """Number of commands given; they are numbered from 1."""
    steps: int | None = None
    """Number of steps after which the run ends; None: the manifest's number."""
    rate: float = 1.0
    """Factor of the learning rate's schedule, in steps that open from now on."""
    paused: Command | None = None
    """The command that pauses the run; None: it is not paused. While paused, no pass opens."""
    checkpoint: int = 0
    """This version or a later one should be archived; 0: only the manifest's checkpoints."""
    expelled: tuple[Command, ...] = ()
    """The `expel` commands. Their `value` is the id of a peer that is excluded from the run."""
    excused: tuple[Command, ...] = ()
    """The `dismiss` commands. Their `value` names one incarnation of a peer that must leave, as `life` writes it."""
    admitted: Admissions = field(default_factory=Admissions)
    """The admitted devices with their passes. If a device joined with several passes, the last one counts."""
    revoked: tuple[Command, ...] = ()
    """The `revoke` commands. Their `value` is the serial number of a pass that is no longer valid."""
    banned_at: int = 0
    """Number of the last command that changed `banned`; 0: none."""
    retreat: Retreat | None = None
    """The last return to an earlier version because of a divergence."""
    retreats: int = 0
    """How often the run has returned to an earlier version because of a divergence."""
    requests: tuple[tuple[str, int], ...] = ()
    """The newest requests with the numbers of their commands."""

    @classmethod
    def of(cls, commands: Iterable[Command]) -> Controls:
        return reduce(cls.after, commands, cls())

    def after(self, command: Command) -> Controls:
        """The combined effect after one more command. The command must have passed `check`."""
        requests = (*self.requests, (command.request, command.number))[-REQUESTS:]
        controls = replace(self, count=command.number, requests=requests)
        match command.name:
            case "pause":
                return replace(controls, paused=command)
            case "resume":
                return replace(controls, paused=None)
            case "expel":
                return replace(controls, expelled=(*self.expelled, command), banned_at=command.number)
            case "admit":
                device = Device.read(command.value)
                number = command.number if self._is_sent_away(device.peer) else self.banned_at  # it returns
                return replace(controls, admitted=self.admitted.after(device), banned_at=number)
            case "revoke":
                return replace(controls, revoked=(*self.revoked, command), banned_at=command.number)
            case "dismiss":
                return replace(controls, excused=(*self.excused, command)[-EXCUSED:])
            case "checkpoint":
                return replace(controls, checkpoint=int(command.value))
            case "stop_after" | "steps":
                return replace(controls, steps=int(command.value))
            case "go_back":
                retreat = Retreat.read(command.value)
                return replace(controls, retreat=retreat, retreats=self.retreats + 1, rate=retreat.rate)
            case _:
                return replace(controls, rate=float(command.value))

    def end(self, settings: Settings) -> int:
        """Number of steps after which the run is complete."""
        return settings.steps if self.steps is None else self.steps

    @property
    def banned(self) -> dict[str, Command]:
        """By peer id, the command that excludes the peer: it expels the peer, or revokes the pass with which the peer
        joined last. The newest command comes last.
        """
        by_pass = {
            peer: command
            for command in self.revoked
            for peer in self.admitted.came_with(command.value)
            if (last := self.admitted.last(peer)) is not None and last.serial == command.value
        }
        excluded = by_pass | {command.value: command for command in self.expelled}
        return dict(sorted(excluded.items(), key=lambda by: by[1].number))

    def excluded_by(self, command: Command) -> list[str]:
        """Ids of the peers that a command in force excludes."""
        if command.name not in ("expel", "revoke"):
            return []  # `banned` takes time for each device that came with a revoked pass
        return [peer for peer, by in self.banned.items() if by == command]

    def came_with(self, serial: str) -> frozenset[str]:
        """Peer ids of the devices that joined with a pass."""
        return frozenset(self.admitted.came_with(serial))

    def needs_admission(self, device: Device) -> bool:
        """Return True if the record must be told that this device joins with this pass.

        It is told of each pass once, and again when the pass that counts for the device is revoked. Otherwise a device
        with two passes could make the record grow by showing them in turn.
        """
        return not self.admitted.has_joined(device.peer, device.serial) or self._is_sent_away(device.peer)

    def objection(self, device: Device) -> str:
        """The reason why a device may not join with this pass, as text; empty: it may."""
        expelled = {command.value for command in self.expelled}
        if device.peer in expelled:
            return "this device is expelled from the run"
        if any(command.value == device.serial for command in self.revoked):
            return "this pass is revoked: ask the organiser for another"
        if sum(self.admitted.has_joined(peer, device.serial) for peer in expelled) >= EXPELLED_OF_A_PASS:
            return f"{EXPELLED_OF_A_PASS} devices of this pass are expelled from the run: ask the organiser for another"
        last = self.admitted.last(device.peer)
        if last is not None and last.serial != device.serial and last.observes != device.observes:
            if last.observes:
                return "this device observes the run: to take part in it as well, use another home (--home)"
            return "this device takes part in the run: to observe it as well, use another home (--home)"
        joined = self.admitted.has_joined(device.peer, device.serial)
        if not joined and self.admitted.devices_of(device.serial) >= device.devices:
            return (
                f"this pass is for {device.devices} device{'s' * (device.devices != 1)}, and as many have joined with "
                "it: ask the organiser for another, which `swarm-peer invite` makes"
            )
        return ""

    def _is_sent_away(self, peer: str) -> bool:
        """Return True if the pass with which a device joined last is revoked."""
        last = self.admitted.last(peer)
        return last is not None and any(command.value == last.serial for command in self.revoked)

    def number_of(self, request: str) -> int | None:
        """The number of the command that a request caused; None: the request is not remembered."""
        return dict(self.requests).get(request)


def life(actor: Actor) -> str:
    """The value of a `dismiss` command: one incarnation of a peer. The peer may join again."""
    return f"{actor.peer}.{actor.incarnation}"


def check(command: Command) -> None:
    """Check that a coordinator could have written this command. Raises ValueError if not."""
    if command.number < 1 or command.name not in (*NAMES, ADMIT, REVOKE, GO_BACK):
        raise ValueError(f"there is no command {command.name!r} with number {command.number}")
    match command.name:
        case "rate":
            read_rate(command.value)
        case "steps" | "stop_after" | "checkpoint":
            read_steps(command.value)
        case "dismiss":
            read_life(command.value)
        case "go_back":
            Retreat.read(command.value)
        case "admit":
            Device.read(command.value)
        case "revoke":
            read_serial(command.value)


def read_life(value: str) -> Actor:
    """Parse a value made by `life`. Raises ValueError."""
    peer, _, incarnation = value.rpartition(".")
    if not (peer and incarnation.isascii() and incarnation.isdigit() and len(incarnation) < 20):
        raise ValueError(f"{value!r} is not a peer id with an incarnation")
    return Actor(peer, int(incarnation))


def read_rate(value: str) -> float:
    """Parse a rate. Raises ValueError."""
    try:
        rate = float(value)
    except ValueError:
        rate = math.nan
    if not 0.0 < rate <= MOST_RATE:
        raise ValueError(
            f"{value!r} is not a rate: give a number above 0, at most {MOST_RATE:g}, as the factor of the learning "
            "rate; 1 is the manifest's value"
        )
    return rate


def read_steps(value: str) -> int:
    """Parse a number of steps. Raises ValueError."""
    if not (value.isascii() and value.isdigit() and 1 <= len(value) <= 10 and 1 <= int(value) <= MOST_STEPS):
        raise ValueError(f"{value!r} is not a number of steps: give a whole number from 1 to {MOST_STEPS}")
    return int(value)
