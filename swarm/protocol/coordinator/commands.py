"""The organiser's commands: the coordinator checks each one, writes it to the record, and then applies it.

No pass opens while a command is being written. So a command concerns exactly the steps that open after it in the
record.
"""

from __future__ import annotations

from collections.abc import Collection

from swarm.events import ControlGiven, ControlRefused
from swarm.protocol.admissions import Device, read_serial
from swarm.protocol.controls import (
    NAMES,
    REVOKE,
    Controls,
    life,
    read_life,
    read_rate,
    read_steps,
)
from swarm.protocol.coordinator.io import AnswerControl, ControlRequested, WriteCommand
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Command
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

MOST_VALUE = 128
MOST_BY = 64
MOST_WHY = 500
"""The limits of a command's texts, in bytes."""
AUDIT = "the audits"
"""The author of a command that expels a peer which an audit found."""
SHORT_NAME = 6
"""A peer may be named by the end of its peer id, at least this many characters, if no other peer's id ends in the same
way.
"""
_WHOLE_ID = 40
_REFUSED = 64
"""Number of refusals that are remembered. A repeated request gets the same answer."""


class Commands:
    """`ask` queues a request; `attend` processes the queue; `written` reports that a command is on disk.

    `coordinators`: the peer ids of all coordinators of the run.
    """

    def __init__(
        self, coordinators: Collection[str], settings: Settings, history: History, members: Members, out: Outbox
    ) -> None:
        self._coordinators = coordinators
        self._settings = settings
        self._history = history
        self._members = members
        self._out = out
        self._asked: list[ControlRequested] = []
        self._pending: list[Command] = []
        self._refused: dict[str, str] = {}

    @property
    def waiting(self) -> bool:
        """True if the queue contains requests."""
        return bool(self._asked)

    @property
    def busy(self) -> bool:
        """True while a command is being written."""
        return bool(self._pending)

    def ask(self, request: ControlRequested) -> None:
        self._asked.append(request)

    def attend(self, under_way: bool, over: str) -> None:
        """Process the queue. `under_way`: True during a training step. `over`: why commands are no longer possible;
        empty: they are.
        """
        asked, self._asked = self._asked, []
        for request in asked:
            if (number := self._history.controls.number_of(request.request)) is not None:
                self._answer(request.request, number, "in force already")
            elif any(command.request == request.request for command in self._pending):
                pass  # the answer follows when it is written
            elif (reason := self._refused.get(request.request)) is not None:
                self._out.add(AnswerControl(request.request, error=reason))
            else:
                self._judge(request, under_way, over)

    def order(self, name: str, value: str, by: str, why: str) -> None:
        """Write a command of the coordinator itself, for which nobody awaits an answer."""
        number = self._history.controls.count + len(self._pending) + 1
        command = Command(number, name, value, by, why, f"{by}-{self._history.term}-{number}")
        self._pending.append(command)
        self._out.add(WriteCommand(command))

    def written(self, command: Command) -> bool:
        """A command is durable and takes effect. Return False if it had taken effect before."""
        self._pending = [other for other in self._pending if other.number > command.number]
        if command.number <= self._history.controls.count:
            return False
        self._history.controls = self._history.controls.after(command)
        self._out.emit(given(command))
        self._answer(command.request, command.number, self._meaning(command))
        return True

    # ------------------------------------------------------------ judging

    def _judge(self, request: ControlRequested, under_way: bool, over: str) -> None:
        controls = self._history.controls
        for command in self._pending:
            controls = controls.after(command)
        try:
            if over:
                raise ValueError(over)
            check_words(request)
            value = self._value(request.command, request.value.strip(), controls, under_way)
        except ValueError as error:
            reason = self._refused[request.request] = str(error)
            while len(self._refused) > _REFUSED:
                del self._refused[next(iter(self._refused))]
            self._out.emit(refused(request, reason))
            self._out.add(AnswerControl(request.request, error=reason))
            return
        command = Command(controls.count + 1, request.command, value, request.by, request.why.strip(), request.request)
        self._pending.append(command)
        self._out.add(WriteCommand(command))

    def _value(self, name: str, value: str, controls: Controls, under_way: bool) -> str:
        """The command's value as the record stores it. Raises ValueError if the value is invalid; its text names the
        valid values.
        """
        current = self._history.version + under_way
        if name in ("pause", "resume", "checkpoint") and value:
            raise ValueError(f"{name} takes no value, but got {value!r}: leave it out")
        match name:
            case "pause" | "resume":
                if (controls.paused is not None) == (name == "pause"):
                    now = "paused already" if name == "pause" else "not paused"
                    raise ValueError(f"the run is {now}: `control status` shows its state")
                return ""
            case "expel":
                return self._peer(value, controls)
            case "dismiss":
                return life(self._member(value).actor)
            case "checkpoint":
                return str(self._checkpoint(current))
            case "stop_after" | "steps":
                return str(self._end(name, read_steps(value), current, controls))
            case "rate":
                return repr(read_rate(value))
            case "admit":
                return self._device(Device.read(value), controls)
            case "revoke":
                return self._serial(read_serial(value), controls)
        raise ValueError(f"no command is called {name[:MOST_VALUE]!r}: there are {', '.join(NAMES)}, and status")

    def _checkpoint(self, version: int) -> int:
        archived = self._history.archived
        if version == 0:
            raise ValueError("no step is trained yet: version 0 needs no checkpoint, because it can be computed again")
        if archived is not None and archived >= version:
            raise ValueError(f"version {version} is in the archive already: give `checkpoint` after the next step")
        return version

    def _end(self, name: str, steps: int, current: int, controls: Controls) -> int:
        if steps < current:
            raise ValueError(
                f"{steps} steps are too few: step {current} is trained, or under way; give {current} or more"
            )
        end = controls.end(self._settings)
        if name == "stop_after" and steps > end:
            raise ValueError(f"the run ends after step {end}, before step {steps}: `steps {steps}` moves its end later")
        if steps == end:
            raise ValueError(f"the run ends after step {end} anyway: give another number")
        return steps

    def _member(self, value: str) -> Member:
        """The member named by `value`, which is an actor as in the log, a peer id, or the end of a peer id."""
        if not value:
            raise ValueError("the command needs a peer: give an actor or a peer id, as `swarm-peer status` lists them")
        found = [member for member in self._members if value in (str(member.actor), member.actor.peer)]
        if not found and len(value) >= SHORT_NAME:
            found = [member for member in self._members if member.actor.peer.endswith(value)]
        if len({member.actor.peer for member in found}) > 1:
            raise ValueError(f"{len(found)} peers match {value!r}: give the whole peer id")
        if not found:
            raise ValueError(f"no peer {value!r} is in the run now: `swarm-peer status` lists the peers")
        return found[-1]

    def _peer(self, value: str, controls: Controls) -> str:
        """The id of the peer to expel. An absent peer can be named by its whole id."""
        try:
            peer = self._member(value).actor.peer
        except ValueError:
            if not (len(value) >= _WHOLE_ID and value.isascii() and value.isalnum()):
                raise
            peer = value
        if peer in self._coordinators:
            raise ValueError(f"{value!r} is a coordinator of this run: only peers can be expelled")
        if any(command.value == peer for command in controls.expelled):
            raise ValueError(f"{value!r} is expelled already")
        return peer

    def _device(self, device: Device, controls: Controls) -> str:
        if objection := controls.objection(device):
            raise ValueError(objection)
        return device.value

    def _serial(self, serial: str, controls: Controls) -> str:
        if any(command.value == serial for command in controls.revoked):
            raise ValueError("that pass is revoked already")
        return serial

    # ------------------------------------------------------------ answering

    def _answer(self, request: str, number: int, text: str) -> None:
        self._out.add(AnswerControl(request, number, text))

    def _meaning(self, command: Command) -> str:
        end = self._history.controls.end(self._settings)
        match command.name:
            case "pause":
                return "no further step begins; the open one is finished"
            case "resume":
                return "the run continues"
            case "expel":
                return f"{command.value} has no part in the run any more"
            case "dismiss":
                return f"{command.value} is asked to leave, and leaves when nothing depends on it"
            case "checkpoint":
                return f"version {command.value} or the next one is saved by all stages and archived"
            case "go_back":
                return "the run goes back to an earlier version"
            case "admit":
                return f"{Device.read(command.value).peer} may take part in the run"
            case "revoke":
                devices = len(self._history.controls.came_with(command.value))
                return (
                    f"no device can join with that pass any more, and its {devices} devices are excluded from the run"
                )
            case "rate":
                return f"steps that open from now on use {command.value} times the scheduled learning rate"
            case _:
                return f"the run ends after step {end}"


def excused(controls: Controls) -> dict[Actor, str]:
    """The peers that must leave, with the reasons."""
    return {read_life(command.value): signed("let go", command) for command in controls.excused}


def given(command: Command) -> ControlGiven:
    return ControlGiven(command.number, command.name, command.value, command.by, command.why)


def refused(request: ControlRequested, reason: str) -> ControlRefused:
    return ControlRefused(request.command[:MOST_VALUE], request.value[:MOST_VALUE], request.by[:MOST_BY], reason)


def signed(what: str, command: Command) -> str:
    """The text `what`, followed by the command's author and reason."""
    return f"{what} by {command.by}" + (f": {command.why}" if command.why else "")


def shut_out(command: Command) -> str:
    """The reason why a peer is excluded from the run, as text."""
    revoked = command.name == REVOKE
    return signed(
        "excluded from the run, because its pass was revoked" if revoked else "expelled from the run", command
    )


def check_words(request: ControlRequested) -> None:
    """Check that the texts of a request can be written to the record. Raises ValueError."""
    for name, text, most in (
        ("command", request.command, MOST_VALUE),
        ("value", request.value, MOST_VALUE),
        ("by", request.by, MOST_BY),
        ("why", request.why, MOST_WHY),
    ):
        size = len(text.encode(errors="replace"))
        if size > most or not text.isprintable():
            raise ValueError(f"`{name}` must be one line of at most {most} bytes, but has {size}")
    if not request.by.strip():
        raise ValueError("`by` is empty: say who gives the command")
