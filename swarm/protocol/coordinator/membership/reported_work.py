"""What peers report about their work, machines and troubles, for the event log. No decision depends on these reports.

Only members' reports count, one per pass, and only for recent passes. The rate of a link can be measured only by the
receiver of frames. So if a sender reports on a link, the event contains the rate that the receiver reported last.
"""

from __future__ import annotations

from collections.abc import Callable

from swarm.events import PeerDescribed, PeerTroubled, PeerWorked
from swarm.events.wording import printable
from swarm.protocol.coordinator.membership.history import History
from swarm.protocol.coordinator.membership.member import Member
from swarm.protocol.coordinator.membership.members import Members
from swarm.protocol.ids import Actor, PassId
from swarm.protocol.messages import LINK_KINDS, WORK_KINDS, LinkUse, Telemetry, Trait, Work
from swarm.protocol.outbox import Outbox
from swarm.protocol.settings import Settings

MOST_SPANNED = 256
"""If the swarm has more members, the log contains only sums, not single periods of a peer's time (spans)."""
RECENT_STEPS = 2
"""A report may concern a step that was decided at most this number of steps ago."""
DESCRIBED_BEATS = 10
"""Number of heartbeats between two descriptions of one machine, or two different troubles of one peer."""
REPEATED_BEATS = 300
"""Number of heartbeats after which the same trouble of a peer is logged again."""


class ReportedWork:
    def __init__(self, me: Actor, settings: Settings, history: History, members: Members, out: Outbox) -> None:
        self._me = me
        self._settings = settings
        self._history = history
        self._members = members
        self._out = out
        self._reported: dict[Actor, PassId] = {}
        """The last pass that each actor reported on."""
        self._described: dict[Actor, tuple[tuple[Trait, ...], float]] = {}
        """The last description of each actor's machine, and when it arrived."""
        self._troubles: dict[Actor, tuple[str, float]] = {}
        """The trouble of each actor that was logged last, and when."""
        self._arriving: dict[Actor, dict[Actor, float]] = {}
        """For each receiver, the bytes/s that it reports for each sender."""

    def hear(self, member: Member, told: Telemetry, now: float) -> None:
        if told.actor != member.actor:
            return
        if told.machine and self._is_news(told, now):
            self._described[told.actor] = told.machine, now
            self._out.emit(described(told.actor, told.machine))
        if told.trouble and self._is_fresh(told, now):
            self._troubles[told.actor] = told.trouble, now
            self._out.emit(PeerTroubled(str(told.actor), member.stage, printable(told.trouble)))
        work = told.work
        if work is None or not 0 <= work.stage < self._settings.stages or not self._is_due(told.actor, work.pass_id):
            return
        self._reported[told.actor] = work.pass_id
        known = [
            use for use in work.links if self._is_known(use.other) and (use.via is None or self._is_known(use.via))
        ]
        self._arriving[told.actor] = {use.other: use.rate for use in known if use.rate is not None}
        spans = work.spans if len(self._members) <= MOST_SPANNED else ()
        shown = Work(work.pass_id, work.stage, work.seconds, spans, work.usage, tuple(known))
        self._out.emit(worked(told.actor, shown, lambda use: self._arriving.get(use.other, {}).get(told.actor)))

    def forget(self, actor: Actor) -> None:
        """The actor is gone."""
        for known in (self._reported, self._described, self._troubles, self._arriving):
            known.pop(actor, None)

    def _is_news(self, told: Telemetry, now: float) -> bool:
        before = self._described.get(told.actor)
        if before is None:
            return True
        return before[0] != told.machine and now - before[1] >= DESCRIBED_BEATS * self._settings.heartbeat_s

    def _is_fresh(self, told: Telemetry, now: float) -> bool:
        before = self._troubles.get(told.actor)
        if before is None:
            return True
        beats = REPEATED_BEATS if before[0] == told.trouble else DESCRIBED_BEATS
        return now - before[1] >= beats * self._settings.heartbeat_s

    def _is_due(self, actor: Actor, pass_id: PassId) -> bool:
        """Return True if `pass_id` is a recent training pass that the actor has not reported yet."""
        before, version = self._reported.get(actor), self._history.version
        recent = version - RECENT_STEPS <= pass_id.step <= version and pass_id.term <= self._history.term
        return recent and pass_id.index == 0 and (before is None or pass_id > before)

    def _is_known(self, other: Actor) -> bool:
        return other == self._me or self._members.get(other) is not None


def described(actor: Actor, machine: tuple[Trait, ...]) -> PeerDescribed:
    return PeerDescribed(str(actor), {trait.name: _value(trait) for trait in machine})


def worked(actor: Actor, work: Work, rate_of: Callable[[LinkUse], float | None]) -> PeerWorked:
    """The event about this report. `rate_of`: returns the bytes/s from the actor to the other end of a link."""
    return PeerWorked(
        actor=str(actor),
        stage=work.stage,
        pass_id=str(work.pass_id),
        seconds={kind: round(seconds, 4) for kind, seconds in zip(WORK_KINDS, work.seconds, strict=True)},
        spans=[[WORK_KINDS[span.kind], span.microbatch, span.start, span.length] for span in work.spans],
        usage={figure.name: _rounded(figure.value) for figure in work.usage},
        links=[_link(use, rate_of(use)) for use in work.links],
    )


def _link(use: LinkUse, rate: float | None) -> dict[str, str | float | dict[str, int]]:
    told: dict[str, str | float | dict[str, int]] = {"other": str(use.other)}
    if rate is not None:
        told["rate"] = round(rate)
    if use.rtt_s is not None:
        told["rtt_s"] = _rounded(use.rtt_s)
    if use.via is not None:
        told["via"] = str(use.via)
    if use.sent:
        told["sent"] = {kind: nbytes for kind, nbytes in zip(LINK_KINDS, use.sent, strict=True) if nbytes}
    return told


def _value(trait: Trait) -> str | float:
    return trait.text if trait.number is None else trait.number


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
