"""A device may fetch the same content a few times, and then slowly; others do not notice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from peers.coordinator import process
from peers.runtime import transfer_allowance as module
from peers.runtime.checkpoint_request import CheckpointRequest
from peers.runtime.transfer_allowance import COPIES, COPY_S, LEAST_BYTES, TransferAllowance
from swarm.buffer import Buffer
from swarm.events import Event, RequesterSlowed
from swarm.net.bulk import Busy, Transfer
from swarm.protocol.ids import Actor

WHOLE = 100 << 20


class Requests:
    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[Event] = []
        self.allowance = TransferAllowance(self.events.append, lambda: self.now)

    def fetch(self, peer: str = "alice", content: str = "state", nbytes: int = WHOLE, whole: int = WHOLE) -> bool:
        """Ask for all or a part of a content; returns whether it was sent."""
        try:
            self.allowance.check(peer, content, whole)
        except Busy:
            return False
        self.allowance.charge(peer, content, nbytes, whole)
        return True

    def copies(self, **of: str) -> int:
        """How many copies in a row a device gets."""
        return next(count for count in range(1000) if not self.fetch(**of))  # type: ignore[arg-type]


def test_a_few_copies_at_once_and_then_one_every_ten_minutes() -> None:
    requests = Requests()
    assert requests.copies() == COPIES
    (told,) = requests.events
    assert told == RequesterSlowed("alice", WHOLE) and "alice has fetched the same 105 MB" in told.sentence()
    requests.now += COPY_S / 2
    assert requests.copies() == 1  # of half a copy it may begin a whole one
    requests.now += COPY_S / 2
    assert requests.copies() == 0
    requests.now += COPY_S
    assert requests.copies() == 1
    assert len(requests.events) == 1, "one event for each device"


def test_each_device_and_each_content_counts_by_itself() -> None:
    requests = Requests()
    assert requests.copies() == COPIES
    assert requests.copies(content="sums 7") == COPIES and requests.copies(peer="bob") == COPIES


def test_pieces_count_as_parts_of_a_copy() -> None:
    requests = Requests()
    for _ in range(int(COPIES) * 10):
        assert requests.fetch(nbytes=WHOLE // 10)
    assert not requests.fetch(nbytes=1)


def test_what_is_small_may_be_fetched_more_often() -> None:
    requests = Requests()
    fetched = 0
    while requests.fetch(nbytes=LEAST_BYTES // 8, whole=LEAST_BYTES // 8):
        fetched += 1
    assert fetched == 8 * COPIES


async def test_a_transfer_counts_as_far_as_it_was_sent() -> None:
    requests = Requests()

    async def chunks() -> AsyncGenerator[Buffer, None]:
        for _ in range(4):
            yield bytes(LEAST_BYTES // 4)

    def counted() -> Transfer:
        return requests.allowance.counted("alice", "state", Transfer(LEAST_BYTES, chunks()))

    for _ in range(int(COPIES) * 4):  # it has this state itself, and stops after the first chunk
        transfer = counted()
        await anext(transfer.chunks)
        await transfer.chunks.aclose()
    with pytest.raises(Busy, match=r"fetched this 4 times from here: ask again in \d+ s"):
        counted()


def test_what_is_counted_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COUNTED", 10)
    requests = Requests()
    for number in range(30):
        assert requests.copies(peer=f"peer {number}") == COPIES
    assert len(requests.allowance._of) == 10 and len(requests.events) == 10


async def test_after_a_rollback_an_archived_state_is_another_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 1)
    monkeypatch.setattr(process, "archived", lambda *_: Transfer.of(bytes(1000)))
    alice, history = Actor("alice", 1), SimpleNamespace(rolled_back_in=0)
    core: Any = SimpleNamespace(known={alice}, history=history)
    coordinator: Any = object.__new__(process.CoordinatorProcess)
    coordinator.core, coordinator._others, coordinator._durable = core, (), SimpleNamespace(archive=None)
    coordinator._allowance = TransferAllowance([].append, lambda: 0.0)

    async def copies(version: int) -> int:
        for count in range(100):
            try:
                transfer = await coordinator._serve(alice, CheckpointRequest(0, version).encode())
            except Busy:
                return count
            async for _ in transfer.chunks:
                pass
        raise AssertionError("it gets as many as it asks for")

    assert await copies(4) == COPIES and await copies(8) == 0
    for term in (3, 7):
        history.rolled_back_in = term
        assert await copies(4) == COPIES
