"""The reports of a peer to the coordinator, and when they are sent. The coordinator compares them with its own
state.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.protocol.ids import Actor, StageIndex
from swarm.protocol.messages import Join, Means, Status
from swarm.protocol.peer.catch_up import CatchUp
from swarm.protocol.peer.compute_time import ComputeTime
from swarm.protocol.peer.held_stage import HeldStage
from swarm.protocol.peer.io import LinksMeasured
from swarm.protocol.peer.pass_run import PassRun
from swarm.protocol.settings import Settings


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint on this peer's disk."""

    stage: StageIndex
    version: int = -1
    """−1: the checkpoint was left by an earlier process. After a rollback, its version may have had another content."""
    digest: str = ""
    """Hash of its file; equal on every replica."""


class StatusReports:
    """The reports of one peer. It sends a Status at every heartbeat, after progress up to five times as often, and at
    once when anything else has changed.

    Until this peer has a stage or the order to stand by, it sends a Join instead.
    """

    def __init__(self, me: Actor, settings: Settings, saved: Saved | None) -> None:
        self.next_at = 0.0
        """The time when the next heartbeat is due."""
        self._me = me
        self._heartbeat_s = settings.heartbeat_s
        self.means = Means()
        self._preferred = saved.stage if saved is not None else None
        self._saved = saved
        """The newest checkpoint, saved by this process or found on disk."""
        self._spoilt = -1
        """The last version held here whose state was not finite."""
        self._measured = LinksMeasured(None)
        self._fetched = 0
        self._sequence = 0
        self._last: Status | None = None
        self._last_at = 0.0
        self._leaving = False
        self._paused = ""

    def leaves(self, now: float) -> None:
        """The peer is leaving. Report it at once, and in every further report."""
        self._leaving = True
        self.next_at = now

    def pauses(self, reason: str, now: float) -> None:
        """The peer pauses, or resumes if `reason` is empty. Report it at once."""
        self._paused = reason
        self.next_at = now

    def has(self, means: Means, now: float) -> None:
        """The peer's share of its machine has changed. Report it at once."""
        self.means = means
        self.next_at = now

    def saved(self, checkpoint: Saved) -> None:
        self._saved = checkpoint

    def spoilt(self, version: int, now: float) -> None:
        """The state of this version is not finite. Report it at once, and as long as the version is held."""
        self._spoilt = version
        self.next_at = now

    def measured(self, links: LinksMeasured) -> None:
        """Include the link rates in the next report."""
        self._measured = links

    def fetched(self, nbytes: int) -> None:
        """Include in the next report how many bytes were fetched."""
        self._fetched = nbytes

    def newest_saved(self, stage: StageIndex | None) -> int:
        """Version of the newest checkpoint of `stage`; −1: none."""
        return self._saved.version if self._saved is not None and self._saved.stage == stage else -1

    def takes_up(self, version: int) -> None:
        """The peer begins to hold a state of `version`. Forget a later checkpoint, because a rollback undid its
        steps.
        """
        self._spoilt = -1
        if self._saved is not None and self._saved.version > version:
            self._saved = None

    def again(self, now: float) -> None:
        """The coordinator can be reached again and may have restarted. Make the next report at once."""
        self._last = None
        self.next_at = now

    def report(
        self, held_stage: HeldStage, pass_run: PassRun | None, catch_up: CatchUp, pace: ComputeTime, now: float
    ) -> Join | Status | None:
        """The message that is due now; None if no message is due."""
        due = now >= self.next_at
        if not due and not self._changed(held_stage, pass_run, catch_up) and not self._progressed(pass_run, now):
            return None
        self._sequence += 1
        self._last = self._status(held_stage, pass_run, catch_up, pace)
        self._last_at = now
        if due:
            self.next_at = now + self._heartbeat_s
        if held_stage.stage is None and not held_stage.standing_by:
            means = self.means
            return Join(
                self._me,
                self._preferred,
                means.capacity,
                self._sequence,
                means.memory,
                means.uplink,
                means.downlink,
                means.seating,
                self._paused,
                means.kind,
            )
        return self._last

    def _status(self, held_stage: HeldStage, pass_run: PassRun | None, catch_up: CatchUp, pace: ComputeTime) -> Status:
        microbatches = pass_run.microbatches if pass_run is not None else None
        checkpoint = self.newest_saved(held_stage.stage)
        return Status(
            actor=self._me,
            stage=held_stage.stage,
            version=held_stage.version,
            pass_id=microbatches.pass_id if microbatches is not None else None,
            numbers=microbatches.numbers if microbatches is not None else (),
            done=microbatches.done if microbatches is not None else 0,
            prepared=pass_run.prepared if pass_run is not None else None,
            seconds_per_microbatch=pace.seconds_per_microbatch,
            queued=microbatches.queued if microbatches is not None else 0,
            fenced=microbatches is not None and microbatches.fenced,
            checkpoint_version=checkpoint,
            checkpoint_digest=self._saved.digest if self._saved is not None and checkpoint >= 0 else "",
            sequence=self._sequence,
            state_term=max(0, held_stage.state_term),
            term=max(0, held_stage.term),
            forwarded=microbatches.forwarded if microbatches is not None else 0,
            uplink=self._measured.uplink,
            links=self._measured.links,
            leaving=self._leaving,
            heard=catch_up.heard,
            loading=held_stage.loading,
            lacks=catch_up.lacks,
            fetched=self._fetched,
            capacity=self.means.capacity,
            memory=self.means.memory,
            offered_uplink=self.means.uplink,
            downlink=self.means.downlink,
            seating=self.means.seating,
            reduced=pass_run.reduced if pass_run is not None else 0,
            awaited=pass_run.awaited if pass_run is not None else (),
            spoilt=self._spoilt >= 0 and self._spoilt == held_stage.version,
            paused=self._paused,
            kind=self.means.kind,
        )

    def _progressed(self, pass_run: PassRun | None, now: float) -> bool:
        if pass_run is None or now - self._last_at < self._heartbeat_s / 5:
            return False
        last, microbatches = self._last, pass_run.microbatches
        return last is None or last.done != microbatches.done or last.forwarded != microbatches.forwarded

    def _changed(self, held_stage: HeldStage, pass_run: PassRun | None, catch_up: CatchUp) -> bool:
        last = self._last
        if last is None or last.version != held_stage.version or last.stage != held_stage.stage:
            return True
        if last.heard != catch_up.heard or last.loading != held_stage.loading:
            return True
        if last.checkpoint_version != self.newest_saved(held_stage.stage):
            return True
        if pass_run is None:
            return last.pass_id is not None or last.prepared is not None
        microbatches = pass_run.microbatches
        return (
            last.pass_id != microbatches.pass_id
            or last.prepared != pass_run.prepared
            or last.numbers != microbatches.numbers
            or last.fenced != microbatches.fenced
        )
