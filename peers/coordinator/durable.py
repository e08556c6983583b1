"""The durable files in a coordinator's home, opened and checked: decision record, archive, event log."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from peers.coordinator.group_record import GroupRecord
from peers.coordinator.options import CoordinateOptions
from peers.coordinator.record import DecisionRecord, RecordError
from peers.coordinator.untold import untold
from peers.report.metrics import Metrics
from peers.run.archived_run import changes, check_archive, describe_archive
from peers.run.home import Home, OpenHome
from peers.run.stage_sizes import stage_sizes
from peers.runtime.organisers import members_of
from peers.runtime.thread_work import in_thread
from swarm.compute.ladders import ladders
from swarm.data.folder import TOKENIZER_FILE
from swarm.data.reader import CorpusReader
from swarm.data.tokenizer import Tokenizer
from swarm.events import CheckpointArchived, CheckpointRefused, EventLog, Rotation, whole_log
from swarm.manifest import RunManifest
from swarm.models.kinds import parameter_shapes
from swarm.protocol.controls import Controls
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Command
from swarm.protocol.raft.member import GroupMember
from swarm.protocol.settings import Settings
from swarm.state.archive import Archive
from swarm.state.folder import MANIFEST
from swarm.state.layout import shard_limit

PART_BYTES = 64 << 20
"""Size of a part of the event log. No part is ever dropped."""


@dataclass(frozen=True)
class Durable:
    manifest: RunManifest
    reader: CorpusReader
    tokenizer: Tokenizer | None
    record: DecisionRecord | GroupRecord
    archive: Archive
    newest: int | None
    """The newest checkpoint in the archive with intact files; None: there is none."""
    log: EventLog
    unlogged: tuple[Command, ...]
    """Commands in the record that no coordinator has logged, because it died between the two writes."""

    @classmethod
    async def opened(cls, manifest: RunManifest, home: OpenHome, options: CoordinateOptions) -> Self:
        """Open and check the files. Raises CorpusError, RecordError, StateError and similar errors before anything is
        started.
        """
        several = len(members_of(manifest)) > 1
        reader = CorpusReader(options.corpus, manifest)
        tokenizer = None
        if manifest.data.kind == "text":
            tokenizer = Tokenizer.load(options.corpus / TOKENIZER_FILE, manifest.data.special_tokens)
        changed = changes(home.archive, manifest)
        check_archive(home.archive, manifest.hash, changed)
        record = (GroupRecord if several else DecisionRecord)(home.decisions, manifest.hash, changed)
        logs = (*whole_log(home.events), *sorted(home.mirrors.glob("*.jsonl")))
        unlogged = await in_thread(untold, record.commands, logs)
        log = EventLog(home.events, time.time, Rotation(PART_BYTES, daily=True))
        log.listeners.extend((*options.listeners, Metrics(home.metrics), *options.faults))
        describe_archive(home.archive, manifest, None if tokenizer is None else tokenizer.raw)
        refused: list[Path] = []
        archive = _archive(manifest, home, log, several, refused)
        check_record(record, archive, home, several)
        if record.term:  # without a record the history is unknown, so the archive is left alone
            forget_void(record, archive)
        archive.proven = record.soundness.proven
        if options.initial is not None and 0 not in archive.complete_versions():
            from peers.run.first_version import archive_first

            archive_first(archive, options.initial, manifest)
            log.append(CheckpointArchived(0, list(manifest.initial.digests)))
        refused.clear()
        newest = archive.newest()
        check_checkpoints(record, newest, refused, home, several)
        return cls(manifest, reader, tokenizer, record, archive, newest, log, tuple(unlogged))

    async def settings(self) -> Settings:
        """The settings of the run, with the sizes of its stages."""
        sizes = await in_thread(stage_sizes, self.manifest)
        return replace(Settings.of(self.manifest), **sizes, audit_secret=os.urandom(16))

    def core(self, me: Actor, settings: Settings) -> CoordinatorCore | GroupMember:
        """The core, which continues at the end of the record."""
        record, archive, newest = self.record, self.archive, self.newest
        if isinstance(record, GroupRecord):
            files = {} if newest is None else {newest: _files(archive, newest)}
            group = members_of(self.manifest)
            return GroupMember(me, group, settings, record.stored(), files, ladders(self.manifest))
        return CoordinatorCore(
            me,
            settings,
            record.term,
            record.last_decision,
            newest,
            record.rolled_back_in,
            ladders(self.manifest),
            Controls.of(record.commands),
            record.soundness,
            tuple(version for version in archive.complete_versions() if newest is not None and version <= newest),
        )


def forget_void(record: DecisionRecord, archive: Archive) -> None:
    """Remove the versions that the record does not contain, or that were made before a rollback. Raises RecordError.

    In a group, one write of the record may hold a rollback and the decisions after it. A process that died between
    this write and the removal leaves void versions that are not newer than the last decision.
    """
    decided, back = record.last_decision, record.unfinished_rollback
    newest = 0 if decided is None else decided.step + 1
    archive.forget_after(newest if back is None else min(newest, back))
    record.finish_rollback()


def check_record(record: DecisionRecord, archive: Archive, home: Home, several: bool) -> None:
    """Raise RecordError if the record is lost, but not the archive: the run would silently begin again, and then remove
    its checkpoints. In a group, the other members know the record.
    """
    trained = max(archive.complete_versions(), default=0)
    if trained and not record.term and not several:
        raise RecordError(
            f"{home.decisions} is missing or empty, but archive/ has checkpoint {trained} of this run: restore the "
            "whole home from a backup. Without one, start the run from the beginning: move archive/ away"
        )


def check_checkpoints(
    record: DecisionRecord, newest: int | None, refused: Sequence[Path], home: Home, several: bool
) -> None:
    """Raise RecordError if no checkpoint in the archive is intact because of damage: unless peers still held the state,
    the run would begin again at version 0 and then remove what is left. In a group, the other members have copies.

    `newest`, `refused`: what `Archive.newest` has returned and reported.
    """
    decided, damaged = record.last_decision, [path for path in refused if path.exists() or path.name != MANIFEST]
    if newest or not damaged or decided is None or several:  # a checkpoint that never became complete has no manifest
        return
    raise RecordError(
        f"every checkpoint in {home.archive} is damaged (such as {damaged[0]}), and step {decided.step + 1} is "
        "decided: restore archive/ from a backup. Without one, move archive/ away: the run then continues if its "
        "peers still hold their state in memory; otherwise it begins again at version 0"
    )


def _archive(manifest: RunManifest, home: OpenHome, log: EventLog, several: bool, refused: list[Path]) -> Archive:
    stages = manifest.model.stages

    def on_refused(path: Path, reason: str) -> None:
        log.append(CheckpointRefused(str(path), reason))
        refused.append(path)

    return Archive(
        home.archive,
        manifest.hash,
        stages,
        max(manifest.checkpoint.keep, 2) if several else manifest.checkpoint.keep,  # the newest may be uncommitted
        shard_limits=[shard_limit(parameter_shapes(manifest.model, stage)) for stage in range(stages)],
        keep_first=bool(manifest.initial.sha256),
        on_refused=on_refused,
    )


def _files(archive: Archive, version: int) -> tuple[str, ...]:
    return tuple(archive.checkpoint(stage, version).hash for stage in range(archive.stages))
