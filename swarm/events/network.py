"""Events of the network: frames, streams, routes, clocks, and an unreachable coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from swarm.events.event import Event, Severity


@dataclass(frozen=True, slots=True)
class FrameRefused(Event):
    """A frame (an encoded activation or gradient) was refused. Logged for the sender's 1st to 10th, 100th, 1000th, …
    refused frame.
    """

    severity: ClassVar[Severity] = "warning"

    sender: str
    reason: str
    count: int

    def sentence(self) -> str:
        return f"frame of {self.sender} refused ({self.count} so far): {self.reason}"


@dataclass(frozen=True, slots=True)
class StreamBroken(Event):
    """A stream to another actor broke or cannot be opened. It is opened again while that actor is alive."""

    severity: ClassVar[Severity] = "warning"

    other: str
    channel: str
    reason: str

    def sentence(self) -> str:
        return f"{self.channel} stream to {self.other} broke: {self.reason}"


@dataclass(frozen=True, slots=True)
class MessagesDropped(Event):
    """Messages to an unreachable actor were dropped. If a message is still needed, the actor requests it again."""

    severity: ClassVar[Severity] = "warning"

    other: str
    count: int
    reason: str

    def sentence(self) -> str:
        return f"{self.count} messages to {self.other} were dropped: {self.reason}"


@dataclass(frozen=True, slots=True)
class RouteChanged(Event):
    """Frames to `other` are forwarded by `via`, because the sender and `other` cannot reach each other."""

    other: str
    via: str
    reason: str

    def sentence(self) -> str:
        return f"{self.other} is reached through {self.via}: {self.reason}"


@dataclass(frozen=True, slots=True)
class SwarmSplit(Event):
    """The peers of the open step form groups that cannot reach each other, usually because of home routers.

    The coordinator relays frames between the groups.
    """

    severity: ClassVar[Severity] = "warning"

    groups: list[list[str]]

    def sentence(self) -> str:
        between = " and ".join(", ".join(group) for group in self.groups)
        return (
            f"{between} cannot reach each other; the coordinator relays their traffic. To avoid this, make one peer "
            "reachable for all: give it a public address, or forward a port and use --announce"
        )


@dataclass(frozen=True, slots=True)
class ClockDiffers(Event):
    """This machine's clock differs from the clocks of its bootstrap nodes. In the DHT it uses their time if it is at
    most a day away.
    """

    severity: ClassVar[Severity] = "warning"

    ahead_s: float
    """Seconds by which the bootstrap nodes' clocks are ahead."""
    adopted: bool = True
    """Whether the bootstrap nodes' time is used."""

    def sentence(self) -> str:
        way = "slow" if self.ahead_s > 0 else "fast"
        if not self.adopted:
            return (
                f"this machine's clock is {abs(self.ahead_s) / 86_400:.1f} days {way}, or those of its bootstrap nodes "
                "are wrong: set the clock, or name other nodes; until then, the DHT uses this machine's clock"
            )
        return f"this machine's clock is {abs(self.ahead_s):.0f} s {way}; the DHT uses the clock of the others"


@dataclass(frozen=True, slots=True)
class CoordinatorAway(Event):
    """A peer cannot reach the coordinator. It keeps dialling, and leaves after `leaves_in_s` seconds (0: now)."""

    severity: ClassVar[Severity] = "warning"

    seconds: float
    leaves_in_s: float
    reason: str

    def sentence(self) -> str:
        away = f"the coordinator has been unreachable for {self.seconds:.0f} s ({self.reason})"
        if not self.leaves_in_s:
            return f"{away}: this peer leaves"
        return f"{away}: this peer keeps its state and keeps dialling; it leaves in {self.leaves_in_s:.0f} s"


@dataclass(frozen=True, slots=True)
class StillDialling(Event):
    """A peer that starts has had no answer for some seconds. It goes on dialling until the attempt has failed."""

    addresses: list[str]

    def sentence(self) -> str:
        return f"no answer yet from {', '.join(self.addresses)}: still trying"


@dataclass(frozen=True, slots=True)
class CoordinatorBack(Event):
    """The coordinator can be reached again."""

    seconds: float
    """Seconds for which it was unreachable."""

    def sentence(self) -> str:
        return f"the coordinator is back after {self.seconds:.0f} s"
