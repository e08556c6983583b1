"""What several peers hold, fetched from all of them: who lies or dies costs no more than its share."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import random
import re
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from peers.runtime.piece_request import NOT_KEPT, NOT_YET, PieceKind, PieceRequest, RequestError
from peers.stage.donor_list import DonorList, Unavailable
from peers.stage.gathering import Gathering
from swarm.events import Event, Gathered, PieceRefused
from swarm.net.bulk import BulkError, Busy
from swarm.protocol.ids import Actor
from swarm.protocol.messages import Donor
from swarm.state.error import StateError
from swarm.state.packed import framed
from swarm.state.pieces import PIECE_BYTES, Index, SumsFile, index_bytes
from swarm.state.room import SPARE_BYTES

ONE, TWO, THREE = (Actor(name, 1) for name in ("one", "two", "three"))
WHOLE = random.Random(0).randbytes(5 * PIECE_BYTES + 1000)


class Donors:
    """Each holds some bytes; how it answers may be changed."""

    def __init__(self, **held: bytes) -> None:
        self.held = {Actor(name, 1): data for name, data in held.items()}
        self.delay_s: dict[Actor, float] = {}
        self.dies_after: dict[Actor, int] = {}
        """Pieces"""
        self.not_yet: dict[Actor, int] = {}
        """How often the index is still to come."""
        self.silent: set[Actor] = set()
        """Who says nothing, and breaks nothing off."""
        self.frozen: set[Actor] = set()
        """Who does so once it has told the index."""
        self.without: set[Actor] = set()
        """Who has nothing to send yet but the index."""
        self.line = asyncio.Semaphore(1000)
        """Of whoever fetches: a piece that comes has it for itself, for as long as its donor takes."""
        self.asked: list[tuple[Actor, PieceRequest]] = []

    async def fetch(self, actor: Actor, raw: bytes, limit: int) -> AsyncGenerator[bytes, None]:
        request = PieceRequest.decode(raw)
        assert request is not None
        self.asked.append((actor, request))
        return self._answer(actor, request)

    async def _answer(self, actor: Actor, request: PieceRequest) -> AsyncGenerator[bytes, None]:
        data = self.held.get(actor)
        if actor in self.silent or (request.count and actor in self.frozen):
            await asyncio.Event().wait()
        if data is None:
            yield NOT_KEPT
        elif not request.count and self.not_yet.get(actor, 0):
            self.not_yet[actor] -= 1
            yield NOT_YET
        elif not request.count:
            yield Index.of(io.BytesIO(data)).encode()
        elif actor in self.without:
            yield NOT_YET
        else:
            for number in range(request.first, request.first + request.count):
                async with self.line:
                    await asyncio.sleep(self.delay_s.get(actor, 0.0))
                if self.dies_after.get(actor, 1) == 0:
                    raise ConnectionError("gone")
                if actor in self.dies_after:
                    self.dies_after[actor] -= 1
                piece = data[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
                yield b"".join(framed(piece)) if request.packed else piece


def gathering(donors: Donors, folder: Path, *whom: Actor) -> tuple[Gathering, list[Event]]:
    events: list[Event] = []
    limit = len(WHOLE) + 1
    named = tuple(Donor(actor, number) for number, actor in enumerate(whom))
    source = DonorList(named, events.append)
    path, kind = folder / "state-0-7", PieceKind.STATE
    return Gathering(kind, 0, 7, limit, path, donors.fetch, events.append, lambda nbytes: None, source), events


async def test_all_donors_send_some_and_all_of_it_comes(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=WHOLE)
    donors.delay_s = {ONE: 0.01, TWO: 0.01}
    fetching, events = gathering(donors, tmp_path, ONE, TWO)
    assert (await fetching.run()).read_bytes() == WHOLE
    (told,) = [event for event in events if isinstance(event, Gathered)]
    assert set(told.by_donor) == {str(ONE), str(TWO)} and told.nbytes == len(WHOLE)


async def test_a_spoilt_piece_is_fetched_elsewhere_and_its_donor_not_asked_again(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=WHOLE)
    fetching, events = gathering(donors, tmp_path, ONE, TWO)
    index = Index.of(io.BytesIO(WHOLE))
    donors.held[TWO] = bytes(len(WHOLE))
    answer = donors._answer

    async def lies_later(actor: Actor, request: PieceRequest) -> AsyncGenerator[bytes, None]:
        if not request.count:
            yield index.encode()
        else:
            async for piece in answer(actor, request):
                yield piece

    donors._answer = lies_later  # type: ignore[method-assign]
    assert (await fetching.run()).read_bytes() == WHOLE
    assert [event.donor for event in events if isinstance(event, PieceRefused)] == [str(TWO)]
    assert sum(bool(request.count) for actor, request in donors.asked if actor == TWO) <= 2, "what was under way"


async def test_a_state_is_packed_on_its_way_and_sums_which_are_packed_already_are_not(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = (0.02 * rng.standard_normal(3 * PIECE_BYTES // 4 + 250)).astype("<f4").tobytes()
    for kind in PieceKind:
        donors = Donors(one=state)
        donors.delay_s = {ONE: 0.02}
        fetching, events = gathering(donors, tmp_path, ONE)
        fetching.kind, fetching.path = kind, tmp_path / kind.value
        assert (await fetching.run()).read_bytes() == state
        (told,) = [event for event in events if isinstance(event, Gathered)]
        assert sum(told.by_donor.values()) == told.nbytes == len(state)
        if kind is PieceKind.STATE:
            assert 0.75 * len(state) < told.received < 0.88 * len(state)
        else:
            assert told.received == len(state)


async def test_a_quick_donor_does_not_spend_its_time_on_packing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.stage.gathering._PACKED_BELOW", 2 << 20)
    donors = Donors(one=10 * WHOLE)
    fetching, _ = gathering(donors, tmp_path, ONE)
    fetching.limit *= 10
    await fetching.run()
    asked = [request.packed for _, request in donors.asked if request.count]
    assert asked[0] and not asked[-1], "there is no line between them"


@pytest.mark.parametrize("spoilt", [b"\xff\xff\xff\xff", b"\2\0\0\0xy", b"\x09\0\0\0\1\0\0\0" + bytes(5)])
async def test_a_piece_that_cannot_be_unpacked_is_fetched_elsewhere(tmp_path: Path, spoilt: bytes) -> None:
    donors = Donors(one=WHOLE, two=WHOLE)
    donors.delay_s = {ONE: 0.01}
    answer = donors._answer

    async def garbles(actor: Actor, request: PieceRequest) -> AsyncGenerator[bytes, None]:
        if actor == TWO and request.count:
            yield spoilt
        else:
            async for piece in answer(actor, request):
                yield piece

    donors._answer = garbles  # type: ignore[method-assign]
    fetching, events = gathering(donors, tmp_path, ONE, TWO)
    assert (await fetching.run()).read_bytes() == WHOLE
    assert [event.donor for event in events if isinstance(event, PieceRefused)] == [str(TWO)]


async def test_who_tells_another_index_than_most_is_left_out(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=bytes(len(WHOLE)), three=WHOLE)
    fetching, events = gathering(donors, tmp_path, ONE, TWO, THREE)
    assert (await fetching.run()).read_bytes() == WHOLE
    assert [event.donor for event in events if isinstance(event, PieceRefused)] == [str(TWO)]


async def test_two_people_are_believed_and_not_three_devices_of_a_third(tmp_path: Path) -> None:
    lie = bytes(len(WHOLE))
    donors = Donors(one=WHOLE, two=WHOLE, m1=lie, m2=lie, m3=lie)
    donors.not_yet = {TWO: 3}
    fetching, events = gathering(donors, tmp_path)
    many = [Actor(name, 1) for name in ("m1", "m2", "m3")]
    fetching.donors.named = (*(Donor(actor, 0) for actor in many), Donor(ONE, 1), Donor(TWO, 2))
    assert (await fetching.run()).read_bytes() == WHOLE
    assert {event.donor for event in events if isinstance(event, PieceRefused)} == {str(actor) for actor in many}


async def test_who_differs_from_the_one_donor_that_is_there_longest_is_named_as_such(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=bytes(len(WHOLE)))
    donors.not_yet = {ONE: 2}
    fetching, events = gathering(donors, tmp_path, ONE, TWO)
    assert (await fetching.run()).read_bytes() == WHOLE
    (refused,) = [event for event in events if isinstance(event, PieceRefused)]
    assert refused.donor == str(TWO) and "there is no majority, and one" in refused.reason


async def test_a_donor_that_will_not_have_it_is_not_waited_for_and_dead_ones_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.stage.index_inquiry.ALONE_S", 600.0)
    monkeypatch.setattr("peers.stage.index_inquiry._LONGEST_PAUSE_S", 0.01)
    fetching, _ = gathering(Donors(one=WHOLE), tmp_path, ONE, TWO)
    assert (await asyncio.wait_for(fetching.run(), 60)).read_bytes() == WHOLE
    donors = Donors(one=WHOLE)

    async def gone(actor: Actor, request: PieceRequest) -> AsyncGenerator[bytes, None]:
        raise ConnectionError("gone")
        yield b""

    donors._answer = gone  # type: ignore[method-assign]
    fetching, _ = gathering(donors, tmp_path, ONE, TWO)
    with pytest.raises(Unavailable, match="no donor keeps a copy"):
        await asyncio.wait_for(fetching.run(), 60)
    assert sum(actor == ONE for actor, _ in donors.asked) == 11


@pytest.mark.parametrize("lie", [b"no index at all, but bytes", Index.of(io.BytesIO(bytes(len(WHOLE)))).encode()])
async def test_who_tells_first_is_not_believed_before_the_others_have_had_their_time(
    tmp_path: Path, lie: bytes
) -> None:
    donors = Donors(one=WHOLE, two=WHOLE, three=WHOLE)
    donors.not_yet = {TWO: 3, THREE: 4}
    answer = donors._answer

    async def lies(actor: Actor, request: PieceRequest) -> AsyncGenerator[bytes, None]:
        if actor == ONE and not request.count:
            yield lie
        else:
            async for piece in answer(actor, request):
                yield piece

    donors._answer = lies  # type: ignore[method-assign]
    fetching, events = gathering(donors, tmp_path, ONE, TWO, THREE)
    assert (await fetching.run()).read_bytes() == WHOLE
    assert [event.donor for event in events if isinstance(event, PieceRefused)] == [str(ONE)]
    assert donors.not_yet == {TWO: 0, THREE: 0}


async def test_sums_are_taken_as_soon_as_one_has_them_since_the_decision_says_what_they_are(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=WHOLE)
    donors.not_yet = {TWO: 1000}
    fetching, _ = gathering(donors, tmp_path, ONE, TWO)
    fetching.kind = PieceKind.SUMS
    assert (await fetching.run()).read_bytes() == WHOLE
    assert donors.not_yet[TWO] >= 999


async def test_of_two_donors_one_that_never_has_it_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.stage.index_inquiry.ALONE_S", 0.2)
    donors = Donors(one=WHOLE, two=WHOLE)
    donors.not_yet = {TWO: 1000}
    fetching, _ = gathering(donors, tmp_path, ONE, TWO)
    assert (await fetching.run()).read_bytes() == WHOLE
    assert 1 <= 1000 - donors.not_yet[TWO] < 10


@pytest.mark.parametrize(("reason", "kept"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True)])
async def test_a_full_disk_ends_it_and_gets_its_room_back_and_what_is_written_in_part_is_written_to_the_end(
    reason: int, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails otherwise keeps the pieces that came."""
    whole, left = os.pwrite, [PIECE_BYTES]

    def of_a_full_disk(file: int, data: bytes, offset: int) -> int:
        if not left[0]:
            raise OSError(reason, "the disk takes no more")
        count = min(left[0], len(data), 1000)
        left[0] -= count
        return whole(file, data[:count], offset)

    monkeypatch.setattr("os.pwrite", of_a_full_disk)
    fetching, _ = gathering(Donors(one=WHOLE), tmp_path, ONE)
    with pytest.raises(OSError, match="the disk takes no more"):
        await asyncio.wait_for(fetching.run(), 60)
    assert fetching.path.exists() is kept
    left[0] = 1 << 30
    again, events = gathering(Donors(one=WHOLE), tmp_path, ONE)
    assert (await again.run()).read_bytes() == WHOLE
    assert [event.resumed for event in events if isinstance(event, Gathered)] == [int(kept)]


async def test_a_disk_without_room_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces that are there already need no more room."""
    free = [SPARE_BYTES + len(WHOLE) - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[0]))
    donors = Donors(one=WHOLE)
    fetching, _ = gathering(donors, tmp_path, ONE)
    monkeypatch.setattr("os.pwrite", None)
    with pytest.raises(OSError, match="No space left on device"):
        await asyncio.wait_for(fetching.run(), 60)
    assert not fetching.path.exists()
    fetching.path.write_bytes(WHOLE)
    free[0] = SPARE_BYTES
    assert (await asyncio.wait_for(fetching.run(), 60)).read_bytes() == WHOLE


async def test_a_busy_donor_is_asked_again_and_never_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peers.stage.gathering._LONGEST_PAUSE_S", 0.01)
    donors, refused = Donors(one=WHOLE), 0
    answer = donors._answer

    async def busy(actor: Actor, request: PieceRequest) -> AsyncGenerator[bytes, None]:
        nonlocal refused
        if request.count and refused < 40:
            refused += 1
            raise Busy("busy with 16 transfers")
        async for piece in answer(actor, request):
            yield piece

    donors._answer = busy  # type: ignore[method-assign]
    fetching, _ = gathering(donors, tmp_path, ONE)
    assert (await asyncio.wait_for(fetching.run(), 60)).read_bytes() == WHOLE
    assert refused == 40


async def test_what_a_dead_donor_leaves_comes_from_the_other_and_what_came_stays(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=WHOLE)
    donors.dies_after = {ONE: 1}
    fetching, events = gathering(donors, tmp_path, ONE, TWO)
    assert (await fetching.run()).read_bytes() == WHOLE
    (told,) = [event for event in events if isinstance(event, Gathered)]
    assert told.by_donor[str(TWO)] >= len(WHOLE) - PIECE_BYTES
    again, events = gathering(Donors(one=WHOLE), tmp_path, ONE)
    await again.run()
    assert [event.resumed for event in events if isinstance(event, Gathered)] == [6], "nothing is fetched twice"


async def test_what_a_frozen_donor_was_to_send_comes_from_the_other_each_piece_once(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=WHOLE)
    donors.delay_s, donors.frozen = {ONE: 0.01}, {TWO}
    fetching, _ = gathering(donors, tmp_path, ONE, TWO)
    assert (await asyncio.wait_for(fetching.run(), 60)).read_bytes() == WHOLE
    assert any(request.count for actor, request in donors.asked if actor == TWO), "it was to send some"
    sent = [n for actor, r in donors.asked if actor == ONE for n in range(r.first, r.first + r.count)]
    assert sorted(set(sent)) == list(range(6)) and len(sent) <= 8, sent


async def test_hardly_anything_comes_twice_over_the_one_line_of_who_fetches(tmp_path: Path) -> None:
    donors = Donors(one=10 * WHOLE, two=10 * WHOLE, three=10 * WHOLE)
    donors.line = asyncio.Semaphore(1)
    donors.delay_s = {ONE: 0.01, TWO: 0.01, THREE: 0.01}
    fetching, events = gathering(donors, tmp_path, ONE, TWO, THREE)
    fetching.limit *= 10
    assert (await fetching.run()).read_bytes() == 10 * WHOLE
    (told,) = [event for event in events if isinstance(event, Gathered)]
    assert told.received < 1.05 * len(10 * WHOLE)
    assert len(told.by_donor) == 3


async def test_what_is_small_comes_from_several_too_and_from_another_first_each_time(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE[: PIECE_BYTES + 9], two=WHOLE[: PIECE_BYTES + 9])
    donors.delay_s = {ONE: 0.02, TWO: 0.02}
    first = set()
    for version in range(2):
        fetching, events = gathering(donors, tmp_path, ONE, TWO)
        fetching.version, fetching.path = version, tmp_path / str(version)
        donors.asked.clear()
        await fetching.run()
        (told,) = [event for event in events if isinstance(event, Gathered)]
        assert set(told.by_donor) == {str(ONE), str(TWO)}
        first.add(next(actor for actor, request in donors.asked if request.count))
    assert first == {ONE, TWO}


async def test_what_two_frozen_donors_were_to_send_comes_from_the_third(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=WHOLE, three=WHOLE)
    donors.delay_s, donors.frozen = {ONE: 0.01}, {TWO, THREE}
    fetching, events = gathering(donors, tmp_path, ONE, TWO, THREE)
    assert (await asyncio.wait_for(fetching.run(), 60)).read_bytes() == WHOLE
    assert not [event for event in events if isinstance(event, PieceRefused)]


async def test_a_frozen_donor_does_not_keep_the_index_that_another_will_have_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peers.stage.index_inquiry._SILENT_S", 0.05)
    donors = Donors(one=WHOLE, two=WHOLE)
    donors.not_yet, donors.silent = {ONE: 2}, {TWO}
    fetching, _ = gathering(donors, tmp_path, ONE)
    fetching.donors.named = (Donor(ONE, 0), Donor(TWO, 1))
    path = await asyncio.wait_for(fetching.run(), 60)
    assert path.read_bytes() == WHOLE and donors.not_yet[ONE] == 0


async def test_an_index_that_is_to_come_is_waited_for_and_one_that_nobody_keeps_is_not(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE)
    donors.not_yet = {ONE: 2}
    fetching, _ = gathering(donors, tmp_path, ONE, TWO)
    assert (await fetching.run()).read_bytes() == WHOLE
    nothing, _ = gathering(Donors(), tmp_path, ONE, TWO)
    with pytest.raises(Unavailable, match="state 7: no donor keeps a copy for others"):
        await nothing.run()


async def test_who_has_nothing_to_send_yet_is_not_asked_without_pause(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=WHOLE)
    donors.without = {TWO}
    donors.delay_s = {ONE: 0.02}
    fetching, _ = gathering(donors, tmp_path, ONE, TWO)
    assert (await fetching.run()).read_bytes() == WHOLE
    assert 1 <= sum(bool(request.count) for actor, request in donors.asked if actor == TWO) <= 4


async def test_nothing_larger_than_it_can_be_is_taken(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE + bytes(PIECE_BYTES))
    fetching, events = gathering(donors, tmp_path, ONE)
    with pytest.raises(StateError, match="no donor is left that can be trusted"):
        await fetching.run()
    (refused,) = [event for event in events if isinstance(event, PieceRefused)]
    assert re.search(r"an index of \d+ bytes; at most", refused.reason)
    assert not fetching.path.exists()


@pytest.mark.parametrize("raw", [b"", b"SwPx", bytes(48), Index.of(io.BytesIO(WHOLE)).encode()[:-1]])
def test_what_is_no_index_is_refused(raw: bytes) -> None:
    with pytest.raises(StateError, match="index of pieces"):
        Index.decode(raw, len(WHOLE), "somebody")


def test_an_index_is_as_long_as_announced_and_reads_back() -> None:
    index = Index.of(io.BytesIO(WHOLE))
    assert len(index.encode()) == index_bytes(len(WHOLE)) and Index.decode(index.encode(), len(WHOLE), "") == index


def test_sums_read_back_and_others_are_refused() -> None:
    SumsFile.write(file := io.BytesIO(), 3, [b"one", b"", b"three"])
    raw = file.getvalue()
    assert [bytes(each) for each in SumsFile.read(raw, 3, "x")] == [b"one", b"", b"three"]
    for wrong in (raw[:-1], raw + b"x", raw[:7], b""):
        with pytest.raises(StateError):
            SumsFile.read(wrong, 3, "x")
    with pytest.raises(StateError, match="not sums of 2 buckets"):
        SumsFile.read(raw, 2, "x")
    with pytest.raises(ValueError, match="2 buckets of sums, but 3"):
        SumsFile.write(io.BytesIO(), 3, [b"one", b"three"])


@pytest.mark.parametrize(
    "fields",
    [
        '"kind":"state","stage":-1,"version":0',
        '"kind":"other"',
        '"kind":"sums","stage":0,"version":0,"count":99',
        '"kind":"state","stage":0,"version":0,"packed":1',
    ],
)
def test_requests_that_cannot_be_are_refused(fields: str) -> None:
    with pytest.raises(RequestError):
        PieceRequest.decode(f'{{"pieces": {{{fields}}}}}'.encode())
    assert PieceRequest.decode(b'{"state": {}}') is None


async def test_who_finds_no_donor_says_which_trouble_each_of_them_has(tmp_path: Path) -> None:
    """A donor with a full disk kept newcomers out, and nobody read why."""
    full = "OSError: [Errno 28] No space left on device: '/home/ann/\x1b[31mlent'"
    donors, said = Donors(), set[Actor]()
    answer = donors._answer

    async def fails_first(actor: Actor, request: PieceRequest) -> AsyncGenerator[bytes, None]:
        if actor == TWO and actor not in said:
            said.add(actor)
            raise BulkError(full)
        async for piece in answer(actor, request):
            yield piece

    donors._answer = fails_first  # type: ignore[method-assign]
    fetching, _ = gathering(donors, tmp_path, ONE, TWO)
    with pytest.raises(Unavailable) as caught:
        await fetching.run()
    assert f"no donor keeps a copy for others ({TWO} says: OSError: [Errno 28] No space left" in str(caught.value)
    assert "\x1b" not in str(caught.value)


async def test_a_donor_without_room_does_not_keep_the_others_from_sending(tmp_path: Path) -> None:
    donors = Donors(one=WHOLE, two=WHOLE)
    answer = donors._answer

    async def fails(actor: Actor, request: PieceRequest) -> AsyncGenerator[bytes, None]:
        if actor == TWO:
            raise BulkError("OSError: [Errno 28] No space left on device")
        async for piece in answer(actor, request):
            yield piece

    donors._answer = fails  # type: ignore[method-assign]
    fetching, _ = gathering(donors, tmp_path, ONE, TWO)
    assert (await asyncio.wait_for(fetching.run(), 60)).read_bytes() == WHOLE
