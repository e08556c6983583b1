"""Executes the coordinator core's actions: tokens, durable records, the archive, the event log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from peers.coordinator.collector import Collector
from peers.coordinator.feeder import Feeder
from peers.coordinator.group_record import GroupRecord
from peers.coordinator.record import DecisionRecord, RecordError
from peers.runtime.core_loop import Core, CoreLoop, MachineFailed, cancel
from peers.runtime.fault import Fault
from swarm.events import CheckpointArchived, EventLog, Sampled
from swarm.manifest import RunManifest
from swarm.net.network import Network
from swarm.protocol.coordinator.core import CoordinatorCore
from swarm.protocol.coordinator.io import (
    AnswerControl,
    ArchiveStored,
    CheckpointUnfetched,
    CollectCheckpoint,
    CommandWritten,
    ControlRequested,
    CoordinatorAction,
    CoordinatorInput,
    Feed,
    PassClosed,
    RecordWritten,
    TermWritten,
    Transferring,
    WriteCommand,
    WriteRecord,
    WriteTerm,
)
from swarm.protocol.ids import PassKind
from swarm.protocol.io import Emit, Send, Stop
from swarm.protocol.messages import Frame
from swarm.protocol.raft.io import GroupAction, GroupInput, GroupWritten, SendEntries, WriteGroup
from swarm.protocol.raft.member import GroupMember
from swarm.state.archive import Archive


class CoordinatorDriver:
    """Runs the core of one coordinator: `run` drives it until it stops. One thread writes the record, in order."""

    def __init__(
        self,
        core: CoordinatorCore | GroupMember,
        manifest: RunManifest,
        feeder: Feeder,
        record: DecisionRecord,
        archive: Archive,
        log: EventLog,
        faults: Iterable[Fault] = (),
    ) -> None:
        self._manifest = manifest
        self._feeder = feeder
        self._record = record
        self._archive = archive
        self._log = log
        self._network: Network | None = None
        self._collector: Collector | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer = ThreadPoolExecutor(1, "record")
        self._collecting: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[str, asyncio.Future[AnswerControl]] = {}
        """For each request: the future for which the organiser's program waits."""
        carry_out: Callable[[CoordinatorAction | GroupAction], None] = self._carry_out
        for fault in faults:
            carry_out = fault.watch(carry_out)
        self._history_writes = asyncio.Lock()
        """Held while a term or a group's entries are written, so that writes and their effects on the archive happen
        one after another. No fetch begins in between.
        """
        # actions of a group member come only from the member's own core
        either = cast(Core[CoordinatorInput | GroupInput, CoordinatorAction | GroupAction], core)
        self.loop = CoreLoop(either, carry_out)

    def attach(self, network: Network) -> None:
        self._network = network
        self._collector = Collector(
            network.bulk,
            self._archive,
            self._log.append,
            coming=lambda holder: self.loop.post(Transferring(holder)),
            unfetched=lambda version, stage: self.loop.post(CheckpointUnfetched(version, stage)),
        )

    async def run(self) -> str:
        try:
            return await self.loop.run_to_end(self._log)
        finally:
            await cancel(self._tasks)
            self._writer.shutdown()
            self._record.close()

    async def command(self, request: ControlRequested) -> AnswerControl:
        """Execute a command and return the result. The result may come late, or never."""
        answer = self._asked.setdefault(request.request, asyncio.get_running_loop().create_future())
        self.loop.post(request)
        try:
            return await asyncio.shield(answer)
        finally:
            if self._asked.get(request.request) is answer:
                del self._asked[request.request]

    def _carry_out(self, action: CoordinatorAction | GroupAction) -> None:
        assert self._network is not None
        match action:
            case Send(to, message):
                self._network.send(to, message)
            case Emit(event):
                self._log.append(event)
            case Feed(to, key, kind):
                body = self._feeder.body(key.pass_id, kind, key.microbatch)
                self._network.send(to, Frame(key, body))
            case WriteTerm(term, rollback_to):
                self._spawn(self._write_term(term, rollback_to))
            case WriteRecord():
                self._spawn(self._write_record(action))
            case WriteCommand():
                self._spawn(self._write_command(action))
            case AnswerControl(request):
                if (asked := self._asked.get(request)) is not None and not asked.done():
                    asked.set_result(action)
            case WriteGroup():
                self._spawn(self._write_group(action))
            case SendEntries():
                self._spawn(self._send_entries(action))
            case PassClosed(pass_id, kind, _, token):
                if kind is PassKind.GENERATE:
                    self._sampled(pass_id.version, token)
            case CollectCheckpoint():
                if (version := action.version) not in self._collecting:
                    collecting = self._collecting[version] = self._spawn(self._collect(action))
                    collecting.add_done_callback(lambda _: self._collecting.pop(version))
            case Stop(reason, failed):
                self.loop.give_up(reason) if failed else self.loop.stop(reason)

    def _sampled(self, version: int, token: int) -> None:
        evaluation = self._manifest.evaluation
        if self._feeder.add_sampled(token) >= evaluation.sample_tokens:
            self._log.append(Sampled(version, evaluation.prompt, self._feeder.finish_sample()))

    async def _write_term(self, term: int, rollback_to: int | None) -> None:
        async with self._history_writes:
            if not await self._recorded(lambda: self._record.write_term(term, rollback_to)):
                return
            if rollback_to is not None and not await self._leave_history(rollback_to):
                return
        self.loop.post(TermWritten(term))

    async def _leave_history(self, version: int) -> bool:
        """Set the archive back to `version`, and cancel the fetches of later versions. Returns whether the record could
        be written.
        """
        void = [task for later, task in self._collecting.items() if later > version]
        for task in void:
            task.cancel()
        await asyncio.gather(*void, return_exceptions=True)

        def left() -> None:
            self._archive.forget_after(version)
            self._record.finish_rollback()

        return await self._recorded(left)  # in the thread of the record: another one might not be startable

    async def _write_group(self, order: WriteGroup) -> None:
        assert isinstance(self._record, GroupRecord)
        record, back = self._record, []
        async with self._history_writes:
            if not await self._recorded(lambda: back.append(record.write_group(order))):
                return
            if back[0] is not None and not await self._leave_history(back[0]):
                return
        self.loop.post(GroupWritten(order.number))

    async def _send_entries(self, order: SendEntries) -> None:
        assert isinstance(self._record, GroupRecord) and self._network is not None
        record, found = self._record, []
        if await self._recorded(lambda: found.append(record.append(order))):
            self._network.send(order.to, found[0])

    async def _write_record(self, action: WriteRecord) -> None:
        decision = action.decision
        if await self._recorded(lambda: self._record.write_decision(decision)):
            self.loop.post(RecordWritten(decision))

    async def _write_command(self, action: WriteCommand) -> None:
        command = action.command
        if await self._recorded(lambda: self._record.write_command(command)):
            self.loop.post(CommandWritten(command))

    async def _recorded(self, write: Callable[[], None]) -> bool:
        """Write to the record, in order. If the disk is full or fails, the process ends with a message."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, write)
        except RecordError as error:
            self.loop.fail(str(error), MachineFailed)
            return False
        return True

    async def _collect(self, order: CollectCheckpoint) -> None:
        assert self._collector is not None
        void: list[bool] = []
        async with self._history_writes:
            if not await self._recorded(lambda: void.append(self._record.voids(order.version, order.term))):
                return
        if void[0]:  # it was ordered before the rollback, and comes too late to be cancelled
            return
        digests = await self._collector.collect(order)
        if digests:
            for version, older in list(self._collecting.items()):
                if version < order.version:  # a holder may send it slowly for ever
                    older.cancel()
            self._log.append(CheckpointArchived(order.version, list(digests)))
            self.loop.post(ArchiveStored(order.version, order.term, order.digests))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.loop.watch(task)
        return task
