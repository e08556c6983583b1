"""Executes the peer core's actions with real parts: compute thread, libp2p streams, disk, event log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Protocol

from peers.runtime.core_loop import CoreLoop, cancel
from peers.runtime.fault import Fault
from peers.stage.keeper import Keeper, NotFinite
from peers.stage.padding import Padding
from peers.stage.resources import measure
from peers.stage.retention import Retention
from peers.stage.telemetry import Reports
from swarm.buffer import Buffer
from swarm.compute.body import FrameError
from swarm.compute.held import StateFreed
from swarm.compute.shortage import out_of_memory
from swarm.events import CatchUpFailed, CheckpointRefused, EventLog, StepApplied
from swarm.protocol.ids import Actor, Attempt
from swarm.protocol.io import Emit, Send, Stop
from swarm.protocol.messages import Frame, Message, Relay, WithPayload
from swarm.protocol.peer.core import PeerCore
from swarm.protocol.peer.io import (
    Apply,
    BackwardDone,
    Begin,
    CancelReduce,
    CheckpointSaved,
    ComputeFailed,
    FetchSums,
    ForwardDone,
    Lend,
    LoadState,
    MemoryShort,
    OpenSeats,
    PeerAction,
    PeerInput,
    RestoreSums,
    SaveCheckpoint,
    StateFailed,
    StateLoaded,
    StateSpoilt,
    StoreSum,
    SumsFetched,
    SumsMissing,
)
from swarm.state.error import StateError


class Post(Protocol):
    def send(self, to: Actor, message: Message) -> None: ...

    def withdraw(self, attempt: Attempt) -> None: ...


class StageDriver:
    """Runs the core of one peer: `run` drives it until it stops. Inputs come from the network (`post`) and from the
    compute thread.
    """

    def __init__(
        self,
        core: PeerCore,
        log: EventLog,
        retention: Retention,
        open_seats: Callable[[int, str], None] | None = None,
        faults: Iterable[Fault] = (),
    ) -> None:
        """`open_seats(seats, reason)`: run this number of peers in this process; None: add no further peers."""
        self._core = core
        self._log = log
        self._retention = retention
        self._open_seats = open_seats
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading: asyncio.Task[None] | None = None
        self._fetching: tuple[tuple[int, int], list[asyncio.Task[None]]] | None = None
        """(stage, step) of the sums that are being fetched, and a task for each of their orders."""
        self.reports: Reports | None = None
        """The telemetry of this peer."""
        self.padding: Padding | None = None
        """What fills the pauses of connections; None: they stay empty."""
        self._network: Post | None = None
        self._keeper: Keeper | None = None
        self._daemon_pid: int | None = None
        carry_out: Callable[[PeerAction], None] = self._carry_out
        for fault in faults:
            carry_out = fault.watch(carry_out)
        self.loop: CoreLoop[PeerInput, PeerAction] = CoreLoop(core, carry_out)

    def attach(self, network: Post, keeper: Keeper, daemon_pid: int | None = None) -> None:
        """`daemon_pid`: the process id of the libp2p daemon, whose CPU time is logged with that of this process."""
        self._network = network
        self._keeper = keeper
        self._daemon_pid = daemon_pid

    def computed(self, event: PeerInput) -> None:
        """Called from the compute thread."""
        self.loop.call(lambda: self.loop.post(self._frame_cache(event)))

    def check(self, message: WithPayload) -> None:
        """Raise FrameError for a payload that this peer cannot use. Called before the core sees it."""
        engine = self._keeper.engine if self._keeper is not None else None
        if engine is None:
            raise FrameError("this peer holds no stage")
        if isinstance(message, Frame):
            changed = message.lineage is not None and message.lineage.base != 0
            engine.check_frame(message.key, message.payload, changed=changed)
        else:
            engine.check_bucket(message.key, message.payload)

    def expects(self, sender: Actor, message: WithPayload) -> bool:
        """Return True if data that `check` has accepted may be of use to this peer. Call it once for each message."""
        pass_run = self._core.pass_run
        return pass_run is not None and pass_run.expects(sender, message)

    async def run(self) -> str:
        try:
            return await self.loop.run_to_end(self._log)
        finally:
            if self.reports is not None:
                self.reports.close()
            if self.padding is not None:
                self.padding.close()
            await cancel(self._tasks)
            self._retention.close()

    # ------------------------------------------------------------ actions

    def _carry_out(self, action: PeerAction) -> None:
        assert self._network is not None and self._keeper is not None
        match action:
            case Send(to, message):
                ready = self._with_payload(message)
                if ready is not None:
                    self._network.send(to, ready)
                    if self.padding is not None:
                        self.padding.sent(to, ready)
                if self.reports is not None:
                    self.reports.sent(to, message)
            case Emit(event):
                self._log.append(event)
                if isinstance(event, CatchUpFailed):
                    self._tell_trouble(f"catching up failed at step {event.step + 1}: {event.reason}")
                if isinstance(event, StepApplied):
                    self._log.append(measure(event.step + 1, self._retention.peak_bytes, self._daemon_pid))
                    self._keeper.applied(event.step)
                    if self.reports is not None:
                        self.reports.applied(event.step)
            case LoadState():
                if self._loading is not None:
                    self._loading.cancel()
                self._stop_fetching()  # after a rollback, the same step has other sums
                self._loading = self._spawn(self._load(action))
            case SaveCheckpoint():
                self._spawn(self._save(action))
            case Lend():
                self._keeper.lend(action)
            case FetchSums():
                self._fetch_sums(action)
            case RestoreSums():
                self._spawn(self._restore(action))
            case StoreSum() | CancelReduce() | Apply():
                if isinstance(action, CancelReduce):
                    self._network.withdraw(action.attempt)
                self._keeper.note_sums(action)
                self._submit(action)
            case OpenSeats(seats, reason):
                assert self._open_seats is not None, "the coordinator asks only a process that takes further peers"
                self._open_seats(seats, reason)
            case Stop(reason, failed):
                self.loop.give_up(reason) if failed else self.loop.stop(reason)
            case Begin():
                self._retention.begin()
                self._submit(action)
            case _:
                self._submit(action)

    def _submit(self, action: Any) -> None:
        assert self._keeper is not None and self._keeper.engine is not None, "the core computes only with a stage"
        self._keeper.engine.submit(action)

    def _with_payload(self, message: Message) -> Message | None:
        """The message with its payload, which is read back if it is on disk. None if the pass of the message is over
        meanwhile.
        """
        if isinstance(message, Relay):
            inner = self._with_payload(message.message)
            return None if inner is None else replace(message, message=inner)  # type: ignore[arg-type]
        if isinstance(message, Frame):
            payload = self._retention.bytes_of(message.payload)
            return None if payload is None else replace(message, payload=payload)
        return message

    def _frame_cache(self, event: PeerInput) -> PeerInput:
        """The event with the value that the core keeps in place of the payload: the bytes, or their place on disk."""
        if isinstance(event, ForwardDone | BackwardDone) and isinstance(event.payload, Buffer):
            try:
                event = replace(event, payload=self._retention.keep(event.payload))
                if isinstance(event, ForwardDone) and isinstance(event.whole, Buffer):
                    event = replace(event, whole=self._retention.keep(event.whole))
            except OSError as error:  # no fault of the microbatch: only this peer leaves the pass
                return ComputeFailed(
                    event.pass_id, None, f"a frame cannot be kept in {self._retention.folder}: {error}"
                )
        return event

    async def _load(self, action: LoadState) -> None:
        assert self._keeper is not None
        try:
            engine = await self._keeper.load(action)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            if isinstance(error, RuntimeError | MemoryError):
                if not out_of_memory(error):
                    raise
                self.loop.post(MemoryShort(f"the state of stage {action.stage}: {error}"))
            what = f"state of stage {action.stage} at version {action.version}"
            self._log.append(CheckpointRefused(what, str(error)))
            self._tell_trouble(f"the {what} cannot be loaded: {_without_path(error)}")
            self.loop.post(StateFailed(action.stage, action.version, str(error)))
            return
        version = engine.state.version
        assert version is not None
        self._log.append(measure(version, self._retention.peak_bytes, self._daemon_pid))
        counts = (engine.buckets, engine.first_round, engine.shared_buckets)
        self.loop.post(StateLoaded(action.stage, version, *counts))

    def _tell_trouble(self, reason: str) -> None:
        if self.reports is not None:
            self.reports.trouble(reason)

    def _fetch_sums(self, action: FetchSums) -> None:
        """Fetch the sums of one step at a time: a new step cancels the fetch of the previous one. A further order for
        the same step only changes the donors.
        """
        what = (action.stage, action.step)
        if self._fetching is None or self._fetching[0] != what:
            self._stop_fetching()
            self._fetching = what, []
        self._fetching[1].append(self._spawn(self._gather_sums(action)))

    def _stop_fetching(self) -> None:
        fetching, self._fetching = self._fetching, None
        for task in () if fetching is None else fetching[1]:
            task.cancel()

    async def _gather_sums(self, action: FetchSums) -> None:
        assert self._keeper is not None
        try:
            here = await self._keeper.fetch_sums(action)
        except (ValueError, OSError) as error:
            self.loop.post(SumsMissing(action.stage, action.step, str(error)))
            return
        if here:
            self.loop.post(SumsFetched(action.stage, action.step))

    async def _restore(self, action: RestoreSums) -> None:
        assert self._keeper is not None
        try:
            await self._keeper.restore(action)
        except (ValueError, OSError) as error:
            self.loop.post(ComputeFailed(action.attempt.pass_id, None, str(error)))

    async def _save(self, order: SaveCheckpoint) -> None:
        assert self._keeper is not None
        version = order.version
        try:
            digest = await self._keeper.save(version, order.proven)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            self._log.append(
                CheckpointRefused(
                    "this stage's state", f"a copy of the state cannot be written for lack of memory: {error}"
                )
            )
            self.loop.post(MemoryShort(f"a checkpoint of version {version}: {error}"))
            return
        except StateFreed as error:  # not a trouble to tell others
            self._log.append(CheckpointRefused("this stage's state", str(error)))
            return
        except NotFinite as error:
            self._log.append(CheckpointRefused("this stage's state", str(error)))
            self.loop.post(StateSpoilt(version, order.number))
            return
        except StateError as error:  # a full disk must cost only this peer's checkpoint; the peer stays in the swarm
            self._log.append(CheckpointRefused(error.where, error.reason))
            self._tell_trouble(f"the checkpoint of version {version} cannot be written: {error.reason}")
            return
        self.loop.post(CheckpointSaved(version, digest, order.number))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return self.loop.watch(task)


def _without_path(error: BaseException) -> str:
    """The error in words for others: the path of a file on this disk is left out."""
    if isinstance(error, OSError) and error.strerror:
        return f"its disk says {error.strerror}"
    return str(error)
