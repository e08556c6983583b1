"""A frame that has begun must go on; one that has not may be long in coming."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from swarm.net import stream as module
from swarm.net.stream import Stream, StreamClosed

DEADLINE_S = 30.0


@pytest_asyncio.fixture
async def ends(tmp_path: Path) -> AsyncIterator[tuple[Stream, Stream]]:
    """The two ends of a stream."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[Stream] = loop.create_future()

    class Accepting(Stream):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            accepted.set_result(self)

    server = await loop.create_unix_server(Accepting, path=str(tmp_path / "socket"))
    _, one = await loop.create_unix_connection(Stream, str(tmp_path / "socket"))
    yield one, await accepted
    one.abort()
    (await accepted).abort()
    server.close()


@pytest.mark.parametrize(
    "begun",
    [b"\x05", struct.pack("<II", 5, 0), struct.pack("<II", 5, 0) + b"he", struct.pack("<II", 2, 9) + b"he" + b"pay"],
    ids=["prefix", "no header", "half a header", "half a payload"],
)
async def test_half_a_frame_ends_the_stream(
    ends: tuple[Stream, Stream], begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRAME_S", 0.05)
    monkeypatch.setattr(module, "LEAST_RATE", 1e6)
    one, two = ends
    await one.write(begun)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(StreamClosed, match="the rest of a frame has not arrived"):
            await two.read_frame(100, 100)
        await one.wait_ended()


async def test_a_frame_that_has_not_begun_is_waited_for(
    ends: tuple[Stream, Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRAME_S", 0.02)
    one, two = ends
    reading = asyncio.create_task(two.read_frame(100, 100))
    done, _ = await asyncio.wait((reading,), timeout=0.3)
    assert not done
    await one.write_frame(b"head", b"load")
    async with asyncio.timeout(DEADLINE_S):
        assert await reading == (b"head", b"load")
    assert two.payload_s >= 0


async def test_a_large_frame_has_longer(ends: tuple[Stream, Stream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRAME_S", 0.0)
    monkeypatch.setattr(module, "LEAST_RATE", 4 / DEADLINE_S)
    one, two = ends
    await one.write(struct.pack("<II", 0, 4) + b"lo")
    reading = asyncio.create_task(two.read_frame(100, 100))
    done, _ = await asyncio.wait((reading,), timeout=0.3)
    assert not done
    await one.write(b"ad")
    async with asyncio.timeout(DEADLINE_S):
        assert await reading == (b"", b"load")


def test_a_frame_of_a_step_may_take_as_long_as_a_step_or_as_its_size_needs() -> None:
    small, large, step_s = 1000, 8 << 20, 120.0
    assert module._longest_s(small, None) == module._longest_s(small, step_s) == small / module.LEAST_RATE
    assert module._longest_s(1 << 20, step_s) == step_s
    assert module._longest_s(large, step_s) == large / module.LEAST_RATE_OF_STEP
    assert module._longest_s(large, 5000.0) == 5000.0, "the organiser expects slow lines"


async def test_half_a_frame_of_a_step_ends_the_stream(
    ends: tuple[Stream, Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRAME_S", 0.05)
    monkeypatch.setattr(module, "LEAST_RATE_OF_STEP", 1e12)
    one, two = ends
    reading = asyncio.create_task(two.read_frame(0, 4 << 20, 0.1))
    async with asyncio.timeout(DEADLINE_S):
        await one.write(struct.pack("<II", 0, 4 << 20) + bytes(1 << 20))
        with pytest.raises(StreamClosed, match="the rest of a frame has not arrived"):
            await reading
        await one.wait_ended()
    assert two.reserved == 0


async def test_memory_is_reserved_as_a_payload_arrives(ends: tuple[Stream, Stream]) -> None:
    one, two = ends
    payload = bytes(range(256)) * (20 << 10) + b"the end"
    reading = asyncio.create_task(two.read_frame(100, 1 << 30))
    await one.write(struct.pack("<II", 4, len(payload)) + b"head" + payload[:10])
    async with asyncio.timeout(DEADLINE_S):
        while not two.reserved > 4:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert two.reserved == 4 + module.RESERVED
        for at in range(10, len(payload), 600_000):
            await one.write(payload[at : at + 600_000])
        assert await reading == (b"head", payload)
    assert two.reserved == 0
