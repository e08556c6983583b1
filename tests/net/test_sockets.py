"""The folder of a daemon's sockets: cleaned, missing, too deep, not to be written."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path

import pytest

from swarm.net.host import Host, HostError
from swarm.net.sockets import LONGEST_PATH, SocketFolder


@pytest.mark.parametrize("pattern", ["p2pd-*", "streams.sock", "*"])
async def test_a_cleaned_folder_is_noticed_within_seconds(pattern: str, tmp_path: Path) -> None:
    host = await Host.create(tmp_path / "identity.key", ["/ip4/127.0.0.1/tcp/0"])
    try:
        await host.handle_streams("/test", lambda stream, peer: asyncio.sleep(0))
        folder = host.socket_folder
        await asyncio.sleep(2.5)  # it has looked once
        assert not host.died.done()
        gone = list(folder.glob(pattern))
        assert gone
        for path in gone:
            path.unlink()
        async with asyncio.timeout(60):
            reason = await host.died
        assert "TMPDIR" in reason and gone[0].parent.name in reason
    finally:
        await host.close()
    assert not folder.exists()


async def test_sockets_are_kept_young_for_cleaners_by_age(tmp_path: Path) -> None:
    folder = SocketFolder()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder.path / "a.sock"))
        os.utime(folder.path / "a.sock", (1, 1))
        watch = asyncio.create_task(folder.until_cleaned())
        await asyncio.sleep(0.1)
        watch.cancel()
    assert time.time() - (folder.path / "a.sock").stat().st_mtime < 60
    folder.remove()


def test_a_deep_or_missing_temporary_folder_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    for told in (deep, tmp_path / "missing"):
        monkeypatch.setenv("TMPDIR", str(told))
        folder = SocketFolder()
        assert len(str(folder.path)) < LONGEST_PATH - 30 and folder.path.is_dir()
        folder.remove()


async def test_no_temporary_folder_at_all_is_said_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.net.sockets._parents", lambda: iter([str(tmp_path / "missing")]))
    with pytest.raises(HostError, match="set TMPDIR"):
        await Host.create(tmp_path / "identity.key", ["/ip4/127.0.0.1/tcp/0"])
