"""Gathering: fetches a state or a step's sums from all donors at once, into a file.

An index counts if the donors of more than half of all people send it, or of most people whose donors answer in time
(`verdict`). An idle donor gets the next few pieces: more for a faster donor, fewer towards the end, so that all finish
together. When all pieces are requested, an idle donor takes over the end of the slowest run. A piece with a wrong hash
is fetched elsewhere, and its sender is not asked again. Received pieces stay in the file: a repeated fetch of the same
thing continues there.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from peers.runtime.piece_request import MAX_RUN, NOT_KEPT, NOT_YET, PieceKind, PieceRequest
from swarm.events import Event, Gathered, PieceRefused
from swarm.net.bulk import Busy
from swarm.protocol.donors import Verdict, verdict
from swarm.protocol.ids import Actor
from swarm.protocol.messages import MAX_DONORS, Donor
from swarm.state.error import StateError
from swarm.state.packed import framed_bytes, take_framed
from swarm.state.pieces import PIECE_BYTES, Index, index_bytes

Fetch = Callable[[Actor, bytes, int], Awaitable[AsyncGenerator[bytes, None]]]
"""Asks an actor for at most this number of bytes. Raises ConnectionError, TimeoutError, also from the bytes."""

AT_ONCE = 2
"""Number of concurrent runs of one donor: the next run is on its way while the one before arrives."""
RUN_S = 1.0
"""Seconds that a run should take."""
_FIRST_RATE = 1 << 20
_PACKED_BELOW = 32 << 20
"""Bytes/s from a donor: on a faster link, packing a state costs the donor more than it gains."""
OTHERS_S = {PieceKind.STATE: 4.0, PieceKind.SUMS: 1.0}
"""Seconds that the other donors have for their index after the first answer. A state is verified only by its donors'
agreement, while sums are compared with the decided digest.
"""
ALONE_S = 10.0
"""Seconds that they have for the index of a state while only one person's donors have sent one, if others answer."""
_SILENT_S = 4.0
"""Seconds that they have, at first, after one donor answered that it has none: that one must be asked again."""
_TAKE_OVER = 1.5
"""In pieces of the idle donor: a run of another donor that takes longer is shared."""
_PAUSE_S = 0.25
_FIRST_LOOK_S = 0.025
"""Seconds until donors that do not have it yet are asked again, at first: after a decision the sums are there soon."""
_LONGEST_PAUSE_S = 4.0
_LOST = 11
"""Number of consecutive failures, in 18 s or more, after which a donor's index is not waited for any more."""
_GONE = 8
"""Number of consecutive failures after which a donor does not count any more."""


class Unavailable(StateError):
    """No donor has it, or will have it."""


@dataclass(slots=True)
class _Donor:
    actor: Actor
    rate: float = _FIRST_RATE
    failures: int = 0
    nbytes: int = 0
    banned: bool = False

    @property
    def run(self) -> int:
        """Number of pieces that it sends in about RUN_S."""
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
    """When its last piece came, or when it was requested."""

    def rest_s(self, pieces: int, now: float) -> float:
        """Expected seconds for this number of its pieces; at least as long as it has been silent."""
        return max(pieces * PIECE_BYTES / self.donor.rate, now - self.heard_at)


@dataclass(slots=True)
class Gathering:
    """Fetches one thing. `donors` may be changed at any time; `progress` is called for every piece."""

    kind: PieceKind
    stage: int
    version: int
    limit: int
    """Largest possible size in bytes."""
    path: Path
    fetch: Fetch
    emit: Callable[[Event], None]
    progress: Callable[[int], None]
    donors: tuple[Donor, ...] = ()
    """At most the first MAX_DONORS that are not banned are asked."""
    banned: set[Actor] = field(default_factory=set)
    """Donors that sent a piece with a wrong hash, or another index than the majority."""
    wrong: frozenset[bytes] = frozenset()
    """Indices of contents that turned out to be wrong."""
    index: Index | None = None
    """The index of the content that is fetched, once known."""
    _known: dict[Actor, _Donor] = field(default_factory=dict)
    _missing: list[int] = field(default_factory=list)
    _done: set[int] = field(default_factory=set)
    _runs: list[_Run] = field(default_factory=list)
    _refetched: int = 0
    _received: int = 0
    """Bytes of answers with pieces, as transferred."""

    async def run(self) -> Path:
        """The complete file. Raises Unavailable, OSError; an order that replaces this one cancels it."""
        began = time.monotonic()
        self.index = index = await self._find_index()
        indexed = time.monotonic()
        self._done = await asyncio.to_thread(self._take_up, index)
        self._missing = [number for number in range(len(index.hashes)) if number not in self._done]
        resumed = len(self._done)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.truncate(file, index.total)
            await self._fetch_all(index, file)
        finally:
            os.close(file)
        by_donor = {str(donor.actor): donor.nbytes for donor in self._known.values() if donor.nbytes}
        now = time.monotonic()
        what = f"{self.kind.value} {self.version}"
        self.emit(
            Gathered(
                stage=self.stage,
                what=what,
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

    # ------------------------------------------------------------ the index

    async def _find_index(self) -> Index:
        """The index that most people's donors send. For a state, also wait for donors that are still to have it."""
        pause, silent_s, began = _FIRST_LOOK_S, _SILENT_S, math.inf
        while True:
            donors = self._sources()
            asked = [asyncio.ensure_future(self._ask_index(donor.actor)) for donor in donors]
            others_s = max(0.0, min(OTHERS_S[self.kind], began + OTHERS_S[self.kind] - time.monotonic()))
            try:
                answers = await _first_and_others(asked, silent_s, others_s, partial(self._agree, donors))
            finally:
                for task in asked:
                    task.cancel()
            told = self._of_use(answers)
            without = {actor for actor, raw in answers.items() if raw == NOT_KEPT or raw in self.wrong}
            without |= {donor.actor for donor in donors if self._known[donor.actor].failures >= _LOST}
            rest = [donor.actor for donor in self._sources() if donor.actor not in without]
            if told:
                began = min(began, time.monotonic())
                found = verdict(told, donors)
                to_come = [actor for actor in rest if actor not in told]
                alone = found.told_by == 1 and not all(self._known[actor].failures for actor in to_come)
                is_late = time.monotonic() - began >= (ALONE_S if alone else OTHERS_S[self.kind])
                if self.kind is PieceKind.SUMS or found.is_majority or is_late or not to_come:
                    return self._decided(told, found, donors)
            elif not rest:
                raise Unavailable(f"{self.kind.value} {self.version}", "no donor keeps a copy for others")
            if len(answers) < len(asked):
                silent_s *= 2  # its index may be long, and its link slow
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _of_use(self, answers: Mapping[Actor, bytes | None]) -> dict[Actor, bytes]:
        of_no_use = {NOT_YET, NOT_KEPT, *self.wrong}
        return {actor: raw for actor, raw in answers.items() if raw is not None and raw not in of_no_use}

    def _agree(self, donors: Sequence[Donor], answers: Mapping[Actor, bytes | None]) -> bool:
        """Whether so many say the same that the others need not be heard."""
        told = self._of_use(answers)
        return bool(told) and verdict(told, donors).is_majority

    def _decided(self, told: Mapping[Actor, bytes], found: Verdict, donors: Sequence[Donor]) -> Index:
        """The index that is believed. Who says something else is not asked again."""
        reason = "its index differs from that of most people's donors"
        first = next(donor.actor for donor in donors if donor.actor in found.tellers)
        if found.is_tied:
            reason = f"its index differs, and nobody can tell who is right: {first}, longer in the stage, is believed"
        for actor in told.keys() - found.tellers:
            self._refuse(actor, reason)
        return Index.decode(told[first], self.limit, "the donors")

    async def _ask_index(self, actor: Actor) -> tuple[Actor, bytes | None]:
        """A donor's answer: the index, NOT_YET or NOT_KEPT; None if there is no answer."""
        request = PieceRequest(self.kind, self.stage, self.version).encode()
        donor = self._known.setdefault(actor, _Donor(actor))
        whole = bytearray()
        try:
            async with aclosing(await self.fetch(actor, request, index_bytes(self.limit))) as chunks:
                async for chunk in chunks:
                    whole += chunk
        except Busy:
            return actor, None
        except (ConnectionError, TimeoutError, ValueError):
            donor.failures += 1
            return actor, None
        raw, donor.failures = bytes(whole), 0
        if raw not in (NOT_YET, NOT_KEPT):
            try:
                Index.decode(raw, self.limit, str(actor))
            except StateError as error:
                self._refuse(actor, str(error))
                return actor, None
        return actor, raw

    # ------------------------------------------------------------ the pieces

    def _take_up(self, index: Index) -> set[int]:
        """Numbers of the pieces that the file holds from before."""
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
                usable = [donor.actor for donor in self._sources()]
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
                    raise Unavailable(f"{self.kind.value} {self.version}", "its donors do not answer any more")
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)

    async def _work(self, donor: _Donor, index: Index, file: int) -> None:
        """Take runs until no pieces are left, or the donor should pause."""
        while not donor.banned and any(named.actor == donor.actor for named in self.donors):
            run = self._next_run(donor)
            if run is None:
                if len(self._done) < len(index.hashes):
                    await asyncio.sleep(_PAUSE_S)  # another donor's run may break off
                return
            self._runs.append(run)
            try:
                await self._receive(run, index, file)
            except StateError as error:
                self._refetched += 1
                self._refuse(donor.actor, str(error))
            except Busy:
                donor.failures = min(donor.failures + 1, _GONE - 1)
            except (ConnectionError, TimeoutError, ValueError):
                donor.failures += 1
            finally:
                self._runs.remove(run)
                self._missing = sorted({*self._missing, *(n for n in run.left if n not in self._done)})
            if donor.failures:
                await asyncio.sleep(min(_PAUSE_S * 2 ** (donor.failures - 1), _LONGEST_PAUSE_S))
                return

    def _next_run(self, donor: _Donor) -> _Run | None:
        """The next pieces in order; if all are requested, the later half of the run that will take longest."""
        if self._missing:
            first = self._missing[0]
            count = 1
            most = min(donor.run, len(self._missing) // (2 * AT_ONCE * len(self._usable())))
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
        """The piece at the beginning of `come`; None if it is incomplete. Raises StateError if its hash is wrong."""
        what, size = f"piece {number} of {self.kind.value} {self.version}", index.size(number)
        if packed:
            whole = take_framed(come, size, what)
        elif len(come) < size:
            whole = None
        else:
            whole = bytes(memoryview(come)[:size])
            del come[:size]
        if whole is not None and not index.fits(number, whole):
            raise StateError(what, "it does not have its hash")
        return whole

    def _usable(self) -> list[Donor]:
        return [donor for donor in self.donors if donor.actor not in self.banned][:MAX_DONORS]

    def _sources(self) -> list[Donor]:
        """The usable donors, at least one. Raises Unavailable."""
        if not (usable := self._usable()):
            why = "no donor is left" + (" that can be trusted" if self.banned else "")
            raise Unavailable(f"{self.kind.value} {self.version}", why)
        return usable

    def _in_turn(self, usable: list[Actor]) -> list[Actor]:
        """The order in which donors are asked: in rounds, each as often as it may have open requests.

        The donor of the first request changes from version to version.
        """
        first = self.version % len(usable)
        return (usable[first:] + usable[:first]) * AT_ONCE

    def _refuse(self, actor: Actor, reason: str) -> None:
        if actor not in self.banned:
            self.emit(PieceRefused(str(actor), reason))
        self.banned.add(actor)
        self._known.setdefault(actor, _Donor(actor)).banned = True


def _write(file: int, whole: bytes, offset: int) -> None:
    """Write all of it. Raises OSError when the disk is full or fails."""
    done = 0
    while done < len(whole):
        done += os.pwrite(file, memoryview(whole)[done:], offset + done)


def _last_stretch(numbers: list[int]) -> list[int]:
    """The last consecutive numbers of an ascending list: one request can only ask for consecutive pieces."""
    first = len(numbers) - 1
    while first and numbers[first - 1] == numbers[first] - 1:
        first -= 1
    return numbers[first:]


async def _first_and_others(
    asked: Sequence[asyncio.Future[tuple[Actor, bytes | None]]],
    silent_s: float,
    others_s: float,
    agree: Callable[[Mapping[Actor, bytes | None]], bool],
) -> dict[Actor, bytes | None]:
    """The answers that come within `others_s` of the first useful one, or within `silent_s` of the first one.

    It returns early once they `agree`.
    """
    pending = set(asked)
    answers: dict[Actor, bytes | None] = {}
    deadline = math.inf
    while pending:
        left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
        answers.update(task.result() for task in done)
        if agree(answers):
            break
        of_use = any(raw not in (None, NOT_YET, NOT_KEPT) for raw in answers.values())
        deadline = min(deadline, time.monotonic() + (others_s if of_use else silent_s))
    return answers
