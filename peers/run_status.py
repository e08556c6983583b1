"""Run status: what one process is doing, folded from its event log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peers.event_text import describe
from peers.progress import is_trouble
from swarm import events as e


@dataclass(frozen=True, slots=True)
class Trouble:
    at: float
    text: str


@dataclass(slots=True)
class RunStatus:
    """Fields are None until the log says something about them. Steps and versions as in the log, from 0."""

    doing: str = "nothing yet"
    role: str | None = None
    actor: str | None = None
    run: str | None = None
    release: str | None = None
    max_rate: int | None = None
    """Bytes a second that it sends at most; None: no limit."""
    machine: str | None = None
    """What it can do, in words."""
    last_event: float | None = None
    """Unix seconds."""
    step: int | None = None
    """The last step decided or applied."""
    loss: float | None = None
    gradient_norm: float | None = None
    tokens_per_second: float | None = None
    efficiency: float | None = None
    replicas: list[int] | None = None
    """Peers per stage."""
    leader: str | None = None
    """Of several coordinators, the one that leads."""
    heldout_loss: float | None = None
    archived: int | None = None
    """Version of the last complete checkpoint in the archive."""
    trouble: Trouble | None = None
    stopped: bool = False
    """The process said that it stops, and has not started again."""


def summarise(log: Iterable[tuple[float, e.Event]]) -> RunStatus:
    """The status after the last event of `log`."""
    status = RunStatus()
    for at, event in log:
        status.last_event = at
        if is_trouble(event):
            status.trouble = Trouble(at, describe(event))
        _apply(status, event)
    return status


def _apply(status: RunStatus, event: e.Event) -> None:
    match event:
        case e.ProcessStarted():
            status.role, status.actor, status.run = event.role, event.actor, event.run
            status.release, status.stopped, status.doing = event.version, False, "starting"
            status.max_rate, status.leader = event.max_rate, None
        case e.ProcessStopped():
            status.stopped, status.doing = True, describe(event)
        case e.PeerJoined() if status.role == "peer":
            status.doing = "standing by" if event.stage is None else f"training stage {event.stage}"
        case e.MachineMeasured():
            status.machine = describe(event)
        case e.CoordinatorStarted():
            status.doing = "waiting for peers"
        case e.LeadershipTaken():
            status.leader = event.actor
        case e.LeadershipLost():
            status.leader, status.doing = None, "waiting for another coordinator to lead"
        case e.LeaderFollowed():
            status.leader = event.leader
            if status.role == "coordinator":
                status.doing = "standing by: another coordinator leads"
        case e.DecisionRecorded():
            status.step, status.leader = event.step, event.leader or None
        case e.MajorityMissing():
            status.leader, status.doing = None, describe(event)
        case e.PassOpened():
            status.replicas = event.replicas
            status.doing = f"{_VERBS.get(event.pass_kind, event.pass_kind)}, pass {event.pass_id}"
        case e.StepDecided():
            status.step, status.loss, status.gradient_norm = event.step, event.loss, event.gradient_norm
        case e.StepApplied():
            status.step = event.step
        case e.StepMeasured():
            status.tokens_per_second, status.efficiency = event.tokens_per_second, event.efficiency
            status.replicas = event.replicas
        case e.Evaluated():
            status.heldout_loss = event.loss
        case e.CheckpointArchived():
            status.archived = event.version
        case e.RunPaused() | e.RunFinished() | e.RolledBack() | e.RecordOutdated():
            status.doing = describe(event)


_VERBS = {"train": "training", "evaluate": "evaluating", "generate": "generating"}
