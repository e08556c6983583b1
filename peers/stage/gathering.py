"""Fetches a state or a step's sums from all donors at once, into a file.

The index gives the hash of every piece (`IndexInquiry`). An idle donor gets a *run*, the next few pieces. A faster
donor gets longer runs. Runs become shorter towards the end, so that all donors finish together. When all pieces are
requested, an idle donor takes over the last pieces of the slowest run. A piece with a wrong hash is fetched from
another donor, and its sender is not asked again. Received pieces stay in the file: a repeated fetch of the same content
continues there. Only on a full disk is the file removed, because the event log and the checkpoints need the room.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from peers.runtime.piece_request import MAX_RUN, NOT_KEPT, NOT_YET, PieceKind, PieceRequest
from peers.runtime.thread_work import in_thread, to_its_end
from peers.stage.donor_list import DonorList
from peers.stage.index_inquiry import Fetch, IndexInquiry
from swarm.events import Event, Gathered
from swarm.net.bulk import Busy
from swarm.protocol.ids import Actor
from swarm.state.error import StateError
from swarm.state.packed import framed_bytes, take_framed
from swarm.state.pieces import PIECE_BYTES, Index
from swarm.state.room import need_room

AT_ONCE = 2
"""Number of runs that one donor sends at the same time, so that the next run is requested before the current one has
arrived.
"""
RUN_S = 1.0
"""Seconds that a run should take."""
_FIRST_RATE = 1 << 20
_PACKED_BELOW = 32 << 20
"""Bytes/s. On a faster link, a state is not compressed, because compression takes the donor longer than it saves."""
_TAKE_OVER = 1.5
"""An idle donor takes over a part of another donor's run if the rest of that run takes longer than the idle donor needs
for this many pieces.
"""
_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 4.0
_GONE = 8
"""Number of consecutive failures after which a donor is considered gone."""


@dataclass(slots=True)
class _Donor:
    actor: Actor
    rate: float = _FIRST_RATE
    failures: int = 0
    nbytes: int = 0
    banned: bool = False

    @property
    def run(self) -> int:
        """Number of pieces that this donor sends in about RUN_S."""
        return max(1, min(MAX_RUN, int(self.rate * RUN_S / PIECE_BYTES)))

    def arrived(self, nbytes: int, seconds: float) -> None:
        self.failures = 0
        self.nbytes += nbytes
        self.rate += 0.3 * (nbytes / max(seconds, 1e-3) - self.rate)


@dataclass(slots=True, eq=False)
class _Run:
    donor: _Donor
    left: list[int]
    heard_at: float
    """The time when its last piece arrived, or, before the first piece, when the run was requested."""

    def rest_s(self, pieces: int, now: float) -> float:
        """Expected seconds for this number of pieces from this donor; at least as long as it has been silent."""
        return max(pieces * PIECE_BYTES / self.donor.rate, now - self.heard_at)


@dataclass(slots=True)
class Gathering:
    """Fetches one state or one step's sums. `progress` is called for every piece."""

    kind: PieceKind
    stage: int
    version: int
    limit: int
    """Largest possible size in bytes."""
    path: Path
    fetch: Fetch
    emit: Callable[[Event], None]
    progress: Callable[[int], None]
    donors: DonorList
    wrong: frozenset[bytes] = frozenset()
    """Indices whose content turned out to be wrong."""
    index: Index | None = None
    """The index of the content being fetched, once it is known."""
    _known: dict[Actor, _Donor] = field(default_factory=dict)
    _missing: list[int] = field(default_factory=list)
    _done: set[int] = field(default_factory=set)
    _runs: list[_Run] = field(default_factory=list)
    _refetched: int = 0
    _received: int = 0
    """Bytes of received answers that contain pieces, as transferred."""

    async def run(self) -> Path:
        """Fetch all pieces, and return the file. Raises Unavailable, OSError; a full disk leaves no file. A newer order
        cancels this one.
        """
        began = time.monotonic()
        inquiry = IndexInquiry(self.kind, self.stage, self.version, self.limit, self.fetch, self.donors, self.wrong)
        self.index = index = await inquiry.run()
        indexed = time.monotonic()
        self._done = await in_thread(self._take_up, index)
        self._missing = [number for number in range(len(index.hashes)) if number not in self._done]
        resumed = len(self._done)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            need_room(self.path.parent, index.total - 512 * os.fstat(file).st_blocks)
            os.truncate(file, index.total)
            await self._fetch_all(index, file)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.path.unlink(missing_ok=True)
            raise
        finally:
            await to_its_end(os.close, file)  # on a busy disk, to free a large removed file takes seconds
        by_donor = {str(donor.actor): donor.nbytes for donor in self._known.values() if donor.nbytes}
        now = time.monotonic()
        self.emit(
            Gathered(
                stage=self.stage,
                what=self._what,
                nbytes=index.total,
                resumed=resumed,
                index_s=indexed - began,
                pieces_s=now - indexed,
                by_donor=by_donor,
                received=self._received,
                refetched=self._refetched,
            )
        )
        return self.path

    @property
    def _what(self) -> str:
        return f"{self.kind.value} {self.version}"

    # ------------------------------------------------------------ the pieces

    def _take_up(self, index: Index) -> set[int]:
        """Numbers of the pieces that the file already contains."""
        done: set[int] = set()
        if not self.path.exists() or self.path.stat().st_size != index.total:
            return done
        with self.path.open("rb") as file:
            for number in range(len(index.hashes)):
                if index.fits(number, file.read(PIECE_BYTES)):
                    done.add(number)
        return done

    async def _fetch_all(self, index: Index, file: int) -> None:
        working: dict[asyncio.Task[None], Actor] = {}
        try:
            while len(self._done) < len(index.hashes):
                usable = [donor.actor for donor in self.donors.sources(self._what)]
                at_work = Counter(working.values())
                for actor in self._in_turn(usable):
                    if at_work[actor] < AT_ONCE:
                        at_work[actor] += 1
                        donor = self._known.setdefault(actor, _Donor(actor))
                        working[asyncio.create_task(self._work(donor, index, file))] = actor
                finished, _ = await asyncio.wait(working, timeout=_PAUSE_S, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    del working[task]
                    task.result()
                if all(self._known[actor].failures >= _GONE for actor in usable):
                    raise self.donors.unavailable(self._what, "its donors no longer answer")
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def _work(self, donor: _Donor, index: Index, file: int) -> None:
        """Fetch runs until no pieces are left or the donor should pause."""
        while not donor.banned and self.donors.names(donor.actor):
            run = self._next_run(donor)
            if run is None:
                if len(self._done) < len(index.hashes):
                    await asyncio.sleep(_PAUSE_S)  # another donor's run may fail
                return
            self._runs.append(run)
            try:
                await self._receive(run, index, file)
            except StateError as error:
                self._refetched += 1
                self._refuse(donor, str(error))
            except Busy:
                donor.failures = min(donor.failures + 1, _GONE - 1)
            except (ConnectionError, TimeoutError, ValueError) as error:
                donor.failures += 1
                self.donors.troubles[donor.actor] = str(error) or type(error).__name__
            finally:
                self._runs.remove(run)
                self._missing = sorted({*self._missing, *(n for n in run.left if n not in self._done)})
            if donor.failures:
                await asyncio.sleep(min(_PAUSE_S * 2 ** (donor.failures - 1), _LONGEST_PAUSE_S))
                return

    def _next_run(self, donor: _Donor) -> _Run | None:
        """Return the next pieces in order. If all are requested, return the later half of the run that will take
        longest.
        """
        if self._missing:
            first = self._missing[0]
            count = 1
            most = min(donor.run, len(self._missing) // (2 * AT_ONCE * len(self.donors.usable)))
            while count < most and self._missing[count] == first + count:
                count += 1
            taken, self._missing = self._missing[:count], self._missing[count:]
            return _Run(donor, taken, time.monotonic())
        now = time.monotonic()
        soonest: dict[int, float] = {}
        for run in self._runs:
            pending = [number for number in run.left if number not in self._done]
            rest_s = 0.0 if run.donor is donor else run.rest_s(len(pending), now)
            soonest |= {number: min(rest_s, soonest.get(number, rest_s)) for number in pending}
        latest_s = max(soonest.values(), default=0.0)
        if latest_s < _TAKE_OVER * PIECE_BYTES / donor.rate:
            return None  # all pieces will arrive sooner from their current donors
        late = _last_stretch([number for number in sorted(soonest) if soonest[number] == latest_s])
        return _Run(donor, late[len(late) // 2 :], now)

    async def _receive(self, run: _Run, index: Index, file: int) -> None:
        packed = self.kind is PieceKind.STATE and run.donor.rate < _PACKED_BELOW
        request = PieceRequest(self.kind, self.stage, self.version, run.left[0], len(run.left), packed)
        sizes = [index.size(number) for number in run.left]
        most = sum(framed_bytes(size) if packed else size for size in sizes)
        come = bytearray()
        async with aclosing(await self.fetch(run.donor.actor, request.encode(), most)) as chunks:
            async for chunk in chunks:
                come += chunk
                self._received += len(chunk)
                while run.left and (whole := self._take(come, run.left[0], index, packed)) is not None:
                    now = time.monotonic()
                    run.donor.arrived(len(whole), now - run.heard_at)
                    run.heard_at = now
                    if run.left[0] not in self._done:
                        _write(file, whole, run.left[0] * PIECE_BYTES)
                        self._done.add(run.left[0])
                        self.progress(len(whole))
                    run.left.pop(0)
                    if all(left in self._done for left in run.left):
                        return  # another donor was faster
        if come == NOT_KEPT:
            run.donor.failures = _GONE
        elif come == NOT_YET:
            run.donor.failures = min(run.donor.failures + 1, _GONE - 1)
        elif run.left:  # interrupted
            run.donor.failures += 1

    def _take(self, come: bytearray, number: int, index: Index, packed: bool) -> bytes | None:
        """Return the piece at the beginning of `come`. None: it is not complete yet. Raises StateError if its hash is
        wrong.
        """
        what, size = f"piece {number} of {self._what}", index.size(number)
        if packed:
            whole = take_framed(come, size, what)
        elif len(come) < size:
            whole = None
        else:
            whole = bytes(memoryview(come)[:size])
            del come[:size]
        if whole is not None and not index.fits(number, whole):
            raise StateError(what, "its hash is wrong")
        return whole

    def _in_turn(self, usable: list[Actor]) -> list[Actor]:
        """The order in which donors are asked. Each donor occurs as often as it may have open requests, in rounds over
        all donors.

        The first donor differs from version to version.
        """
        first = self.version % len(usable)
        return (usable[first:] + usable[:first]) * AT_ONCE

    def _refuse(self, donor: _Donor, reason: str) -> None:
        self.donors.refuse(donor.actor, reason)
        donor.banned = True


def _write(file: int, whole: bytes, offset: int) -> None:
    """Write all bytes. Raises OSError if the disk is full or fails."""
    done = 0
    while done < len(whole):
        done += os.pwrite(file, memoryview(whole)[done:], offset + done)


def _last_stretch(numbers: list[int]) -> list[int]:
    """The consecutive numbers at the end of an ascending list. One request can only name consecutive pieces."""
    first = len(numbers) - 1
    while first and numbers[first - 1] == numbers[first] - 1:
        first -= 1
    return numbers[first:]
