"""Deliberate faults: a process kills or stops itself at a named moment. For tests, the demo and rehearsals.

`--fault kill@MicrobatchForwarded:3` kills the process (SIGKILL) when it logs its third MicrobatchForwarded event. The
kinds of faults are:

* `kill@…` sends SIGKILL to the process.
* `stop@…` sends SIGSTOP; another process must continue it.
* `daemon@…` kills only the libp2p daemon.
* `swallow@…` makes a peer a black hole: from then on it accepts work, reports that it is present, and computes nothing.
* `lie@…` makes a peer compute everything from the same frame, so its numbers look plausible and are wrong.
* `fail@…` makes a peer fail in everything that it computes, and report it.
* `mute@…` makes a peer train, but ignore evaluations and samples.
* `flip@…` flips one bit of its parameters in memory, as a cosmic ray may.
* `starve@…` leaves no memory for its next microbatch.
* `overflow@…` makes a peer send gradients to the stage before that are finite, but so large that computing with them
  overflows.
* `spoilt@…` makes a peer claim that its state is not finite, and `nan@…` that its sums are not.

Conditions on fields select the moment more exactly: `kill@StepDecided:1,step=2`, `kill@StagePrepared,attempt=1:2/*`
(anything after the slash). The event is on disk before the fault, so the log proves when the fault happened.

A moment may also be the sending of a message (swarm/protocol/messages): with `kill@Open:2,pass_id=1:3`, the process
sends two of these messages, then does nothing more, and dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TypeVar

from swarm import events
from swarm.events import Event
from swarm.protocol import messages
from swarm.protocol.coordinator.io import Feed
from swarm.protocol.ids import PassKind
from swarm.protocol.io import Send
from swarm.protocol.messages import Payload, Prepared, Status
from swarm.protocol.peer.io import Backward, EncodePart, Forward, SumBucket, Weights

KINDS = ("kill", "stop", "daemon", "swallow", "lie", "fail", "mute", "flip", "starve", "overflow", "spoilt", "nan")
COMPUTING = ("swallow", "lie", "fail", "mute", "flip", "starve", "overflow", "spoilt", "nan")
"""Kinds of faults for a process that computes."""

_FLUSH_S = 0.5
"""Seconds that the last message has to leave the process, through a libp2p daemon that may have to wait for a processor
core.
"""

Action = TypeVar("Action")
T = TypeVar("T")


class FaultError(ValueError):
    """The text of a fault cannot be parsed. The message shows the right form."""


@dataclass
class Fault:
    """A listener of the event log and, by `watch`, of actions.

    `daemon_pid` is called when a `daemon` fault strikes; `flip_bit`, `starve` and `overflow` when the fault of that
    name strikes.
    """

    kind: str
    moment: str
    """Name of an event or of a message."""
    count: int
    fields: dict[str, str]
    daemon_pid: Callable[[], int] | None = None
    flip_bit: Callable[[], None] | None = None
    starve: Callable[[], None] | None = None
    overflow: Callable[[], None] | None = None
    seen: int = 0
    _muted: bool = False
    _does: str = ""
    """The kind of the lasting fault after it has happened: one of COMPUTING."""
    _frames: dict[type, Payload] = field(default_factory=dict)
    """The frame from which a lying peer computes, for forwards and for backwards."""

    @classmethod
    def parse(cls, text: str, *, computes: bool = True) -> Fault:
        """Parse a fault. `computes`: whether the process computes, so that COMPUTING faults are possible. Raises
        FaultError.
        """
        kind, at, rest = text.partition("@")
        name, _, conditions = rest.partition(",")
        moment, _, count = name.partition(":")
        pairs = [part.partition("=") for part in conditions.split(",") if part]
        found = _moment(moment)
        known = found is not None and {key for key, _, _ in pairs} <= {each.name for each in fields(found)}
        if kind not in KINDS or not at or not known or not (count or "1").isdigit():
            raise FaultError(
                f"--fault {text!r}: write {'|'.join(KINDS)}@EVENT[:COUNT][,field=value], "
                "such as kill@MicrobatchForwarded:3,pass_id=1:0; EVENT is one of `swarm-peer events`, or a message"
            )
        if kind in COMPUTING and not computes:
            raise FaultError(f"--fault {text!r}: a coordinator computes nothing; give it to a peer (swarm-peer join)")
        return cls(kind, moment, int(count or "1"), {key: value for key, _, value in pairs})

    def __call__(self, event: Event, at: float) -> None:
        if self._hit(event):
            self._strike()

    def watch(self, carry_out: Callable[[Action], None]) -> Callable[[Action], None]:
        """Wrap `carry_out`: after the message at which the fault happens, no more actions are executed.

        With `swallow`, only computations are left out; with `mute`, computations without gradients. With `lie`,
        computations use the first received frame; with `fail`, a frame that no peer can use.
        """

        def guarded(action: Action) -> None:
            if self._muted or self._ignores(action):
                return
            if self._does in ("lie", "fail") and isinstance(action, Forward | Backward):
                lie = b"" if self._does == "fail" else self._frames.setdefault(type(action), action.payload)
                carry_out(replace(action, payload=lie))
                return
            if self._does in ("spoilt", "nan") and isinstance(action, Send):
                carry_out(replace(action, message=self._claiming(action.message)))
                return
            carry_out(action)
            if isinstance(action, Send | Feed) and self._hit(_sent(action)):
                if self.kind == "kill":
                    self._muted = True
                    asyncio.get_running_loop().call_later(_FLUSH_S, self._strike)
                else:
                    self._strike()

        return guarded

    def _claiming(self, message: T) -> T:
        """The message with the false claim, if the message has a field for it."""
        match message:
            case Prepared() if self._does == "spoilt":
                return replace(message, spoilt=True, unusable=True)
            case Prepared():
                return replace(message, finite=False)
            case Status():
                prepared = None if message.prepared is None else self._claiming(message.prepared)
                return replace(message, prepared=prepared, spoilt=message.spoilt or self._does == "spoilt")
        return message

    def _ignores(self, action: object) -> bool:
        if self._does == "mute":
            return isinstance(action, Forward) and action.kind is not PassKind.TRAIN
        return self._does == "swallow" and isinstance(action, Forward | Backward | Weights | EncodePart | SumBucket)

    def _hit(self, what: object) -> bool:
        if type(what).__name__ != self.moment or self.count == 0:
            return False
        if not all(_fits(str(getattr(what, key)), wanted) for key, wanted in self.fields.items()):
            return False
        self.seen += 1
        if self.seen < self.count:
            return False
        self.count = 0  # strike only once
        return True

    def _strike(self) -> None:
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind in ("swallow", "lie", "fail", "mute", "spoilt", "nan"):
            self._does = self.kind
        elif self.kind == "flip":
            if self.flip_bit is not None:
                self.flip_bit()
        elif self.kind == "starve":
            if self.starve is not None:
                self.starve()
        elif self.kind == "overflow":
            if self.overflow is not None:
                self.overflow()
        elif self.daemon_pid is not None:
            os.kill(self.daemon_pid(), signal.SIGKILL)


def _fits(value: str, wanted: str) -> bool:
    return value.startswith(wanted[:-1]) if wanted.endswith("*") else value == wanted


def _moment(name: str) -> type | None:
    for module, base in ((events, Event), (messages, object)):
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, base) and is_dataclass(found) and found is not Event:
            return found
    return None


def _sent(action: Send | Feed) -> object:
    return action.message if isinstance(action, Send) else messages.Frame(action.key, b"")
