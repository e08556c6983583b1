"""Asks all donors of a state or of a step's sums for its index, and decides which index to believe.

The index of a state is believed if the donors of more than half of all people send it, or of most of the people whose
donors answer in time (`verdict`). For sums, the first useful answers suffice, because the sums are compared with the
decided digest.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from peers.runtime.piece_request import NOT_KEPT, NOT_YET, PieceKind, PieceRequest
from peers.stage.donor_list import DonorList
from swarm.net.bulk import Busy
from swarm.protocol.donors import Verdict, verdict
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Donor
from swarm.state.error import StateError
from swarm.state.pieces import Index, index_bytes

Fetch = Callable[[Actor, bytes, int], Awaitable[AsyncGenerator[bytes, None]]]
"""Request at most this number of bytes from an actor. The call and the returned generator raise ConnectionError,
TimeoutError.
"""

OTHERS_S = {PieceKind.STATE: 4.0, PieceKind.SUMS: 1.0}
"""Seconds that the other donors have to send their index after the first answer about a state. A state is verified only
by the agreement of its donors, while sums are compared with the decided digest.
"""
ALONE_S = 10.0
"""Seconds to wait for the index of a state if donors answer, but only one person's donors have sent an index."""
_SILENT_S = 4.0
"""Seconds to wait, at first, after a donor has answered that it has no index yet. That donor must be asked again."""
_FIRST_LOOK_S = 0.025
"""Seconds, at first, until donors without the data are asked again: shortly after a decision they have the sums."""
_LONGEST_PAUSE_S = 4.0
_LOST = 11
"""Number of consecutive failures, over 18 s or more, after which the inquiry no longer waits for a donor's index."""

_Answers = Mapping[Actor, bytes | None]
"""The answer of each donor: its index, NOT_YET or NOT_KEPT. None if it did not answer."""


@dataclass(slots=True)
class IndexInquiry:
    kind: PieceKind
    stage: int
    version: int
    limit: int
    """Largest possible size, in bytes, of the content that the index describes."""
    fetch: Fetch
    donors: DonorList
    wrong: frozenset[bytes]
    """Indices whose content turned out to be wrong."""
    _failures: Counter[Actor] = field(default_factory=Counter)
    """For each donor, the number of failures since its last answer."""

    async def run(self) -> Index:
        """Return the believed index. Raises Unavailable."""
        pause, silent_s, began = _FIRST_LOOK_S, _SILENT_S, math.inf
        what, others_s = f"{self.kind.value} {self.version}", OTHERS_S[self.kind]
        while True:
            donors = self.donors.sources(what)
            asked = [asyncio.ensure_future(self._ask(donor.actor)) for donor in donors]
            rest_s = max(0.0, min(others_s, began + others_s - time.monotonic()))
            try:
                answers = await _first_and_others(asked, silent_s, rest_s, partial(self._agree, donors))
            finally:
                for task in asked:
                    task.cancel()
            told = self._of_use(answers)
            to_come = [donor.actor for donor in donors if donor.actor not in told and self._may_have_it(donor, answers)]
            if told:
                began = min(began, time.monotonic())
                found = verdict(told, donors)
                alone = found.told_by == 1 and not all(self._failures[actor] for actor in to_come)
                is_late = time.monotonic() - began >= (ALONE_S if alone else others_s)
                if self.kind is PieceKind.SUMS or found.is_majority or is_late or not to_come:
                    return self._decided(donors, told, found)
            elif not to_come and self.donors.sources(what):
                raise self.donors.unavailable(what, "no donor keeps a copy for others")
            if len(answers) < len(asked):
                silent_s *= 2  # the index may be long, and the donor's link slow
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _ask(self, actor: Actor) -> tuple[Actor, bytes | None]:
        request = PieceRequest(self.kind, self.stage, self.version).encode()
        whole = bytearray()
        try:
            async with aclosing(await self.fetch(actor, request, index_bytes(self.limit))) as chunks:
                async for chunk in chunks:
                    whole += chunk
        except Busy:
            return actor, None
        except (ConnectionError, TimeoutError, ValueError) as error:
            self._failures[actor] += 1
            self.donors.troubles[actor] = str(error) or type(error).__name__
            return actor, None
        raw, self._failures[actor] = bytes(whole), 0
        if raw != NOT_KEPT:  # whose copy has failed says so a few times, and then that it keeps none
            self.donors.troubles.pop(actor, None)
        if raw not in (NOT_YET, NOT_KEPT):
            try:
                Index.decode(raw, self.limit, str(actor))
            except StateError as error:
                self.donors.refuse(actor, str(error))
                return actor, None
        return actor, raw

    def _of_use(self, answers: _Answers) -> dict[Actor, bytes]:
        of_no_use = {NOT_YET, NOT_KEPT, *self.wrong}
        return {actor: raw for actor, raw in answers.items() if raw is not None and raw not in of_no_use}

    def _may_have_it(self, donor: Donor, answers: _Answers) -> bool:
        """True if a donor that sent no useful answer may still send one later."""
        raw = answers.get(donor.actor)
        without = raw == NOT_KEPT or raw in self.wrong
        return not without and donor.actor not in self.donors.banned and self._failures[donor.actor] < _LOST

    def _agree(self, donors: Sequence[Donor], answers: _Answers) -> bool:
        """True if so many donors agree that the other answers cannot change the verdict."""
        told = self._of_use(answers)
        return bool(told) and verdict(told, donors).is_majority

    def _decided(self, donors: Sequence[Donor], told: Mapping[Actor, bytes], found: Verdict) -> Index:
        """Return the believed index. Donors that sent a different index are not asked again."""
        reason = "its index differs from the index that the donors of most people sent"
        first = next(donor.actor for donor in donors if donor.actor in found.tellers)
        if found.is_tied:
            reason = f"its index differs from that of {first}; there is no majority, and {first} has been in the "
            "stage longer"
        for actor in told.keys() - found.tellers:
            self.donors.refuse(actor, reason)
        return Index.decode(told[first], self.limit, "the donors")


async def _first_and_others(
    asked: Sequence[asyncio.Future[tuple[Actor, bytes | None]]],
    silent_s: float,
    others_s: float,
    agree: Callable[[_Answers], bool],
) -> dict[Actor, bytes | None]:
    """The answers that arrive within `others_s` after the first useful one, or within `silent_s` after the first one.

    Returns early once the answers `agree`.
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
