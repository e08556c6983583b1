"""A coordinator or bootstrap node is there again where it was."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from peers.run.home import Home
from peers.runtime import lasting_port
from peers.runtime.bootstrap import serve
from peers.runtime.lasting_port import LastPortTaken
from swarm.net.listening import listen_on


async def ports_of_a_start(path: Path, listen: Sequence[str] = listen_on(0)) -> set[str]:
    found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
    with Home.open(path) as home:
        serving = asyncio.create_task(serve(home, listen, (), None, found.set_result, lambda *_: None))
        await asyncio.wait((serving, found), return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        if not found.done():
            serving.result()
        return {address.split("/tcp/")[1].split("/")[0] for address in found.result()}


async def test_the_second_start_has_the_port_of_the_first(tmp_path: Path) -> None:
    first = await ports_of_a_start(tmp_path)
    assert len(first) == 1 and first == await ports_of_a_start(tmp_path)
    asked = await ports_of_a_start(tmp_path, listen_on(int(next(iter(first))) + 1))
    assert asked != first and asked == await ports_of_a_start(tmp_path), "the last one counts"


async def test_a_port_that_others_have_taken_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.net.host._FREED_S", 0.2)
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        with Home.open(tmp_path) as home:
            home.keep_port(other.getsockname()[1])
        with pytest.raises(LastPortTaken, match="--port"):
            await ports_of_a_start(tmp_path)


@pytest.mark.parametrize("text", ["", "abc", "-1", "99999999", "\xff"])
def test_a_damaged_note_is_no_obstacle(tmp_path: Path, text: str) -> None:
    with Home.open(tmp_path) as home:
        (tmp_path / "port").write_bytes(text.encode("latin-1"))
        listen = lasting_port.at_last_port(listen_on(0), home)
        assert all(0 <= int(address.rpartition("/")[2]) <= 65535 for address in listen)
