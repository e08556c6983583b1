"""The control socket: what one line of JSON each way comes to, and who may write it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest

from peers.coordinator import control_socket
from peers.coordinator.control_socket import ControlSocket, ControlSocketError
from peers.run.home import Home
from peers.runtime.control_client import MAX_LINE, NoCoordinator, Refused, Reply, Request, Unanswered, send, socket_path


class Coordinator:
    """Whoever answers; it may take its time."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.delay_s = 0.0

    async def answer(self, request: Request) -> dict[str, Any]:
        self.asked.append(request)
        await asyncio.sleep(self.delay_s)
        if request.command == "fly":
            return {"ok": False, "error": "no command is called 'fly'"}
        return {"ok": True, "number": len(self.asked), "text": f"{request.command} {request.value}"}


def raw(path: Path, line: bytes) -> dict[str, Any]:
    """What somebody gets who writes anything at all."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10.0)
        connection.connect(str(path))
        connection.sendall(line)
        connection.shutdown(socket.SHUT_WR)
        return dict(json.loads(connection.makefile().readline()))


def with_socket(home: Path, use: Any, coordinator: Coordinator | None = None) -> Any:
    """Run `use()` in a thread while the socket is open in `home`."""

    async def run() -> Any:
        opened = ControlSocket(home, (coordinator or Coordinator()).answer)
        await opened.open()
        try:
            return await asyncio.to_thread(use)
        finally:
            await opened.close()

    return asyncio.run(run())


def test_a_command_and_its_reply(tmp_path: Path) -> None:
    coordinator = Coordinator()
    reply = with_socket(tmp_path, lambda: send(tmp_path, "rate", "0.5", "Ann", "because"), coordinator)
    assert reply == Reply(1, "rate 0.5", {})
    (asked,) = coordinator.asked
    assert (asked.command, asked.value, asked.by, asked.why) == ("rate", "0.5", "Ann", "because")
    assert not (tmp_path / "control.sock").exists(), "it goes with the coordinator"


def test_what_is_refused_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no command is called 'fly'"):
        with_socket(tmp_path, lambda: send(tmp_path, "fly"))


def test_nobody_else_may_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> str:
        found = (tmp_path / "control.sock").lstat().st_mode
        assert stat.S_ISSOCK(found)
        return oct(stat.S_IMODE(found))

    assert with_socket(tmp_path, look) == "0o600"
    monkeypatch.setattr(control_socket, "_user", lambda connection: 12345)
    with pytest.raises(Refused, match="user 12345 may not control this run"):
        with_socket(tmp_path, lambda: send(tmp_path, "pause"))


def test_the_kernel_says_who_it_is(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    assert control_socket._user(here) == os.geteuid()
    here.close(), there.close()


def test_a_socket_that_is_left_over_is_replaced_and_anything_else_is_not(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "control.sock"))
    left.close()
    with pytest.raises(NoCoordinator, match="left over from one that died"):
        send(tmp_path, "status")
    assert with_socket(tmp_path, lambda: send(tmp_path, "status")).text == "status "
    (tmp_path / "control.sock").write_text("mine")
    with pytest.raises(
        ControlSocketError, match=r"control\.sock is not a socket, but has the path of the control socket"
    ):
        with_socket(tmp_path, lambda: None)
    assert (tmp_path / "control.sock").read_text() == "mine"


@pytest.mark.parametrize("name", ["long" * 30, "ü" * 60, os.fsdecode(b"\xfc" * 120)], ids=["ascii", "utf-8", "latin-1"])
def test_a_home_with_a_long_path_has_its_socket_elsewhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own folders have long paths
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    home = tmp_path / name
    home.mkdir()

    def use() -> Reply:
        assert socket_path(home).is_relative_to(runtime) and len(str(socket_path(home))) < 107
        return send(home, "pause")

    assert with_socket(home, use).text == "pause "
    assert not list(runtime.iterdir()) and not list(home.iterdir()), "nothing is left"
    runtime.rmdir()


def test_a_copy_of_a_home_does_not_speak_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    home, copy = tmp_path / ("long" * 30), tmp_path / "copy"
    home.mkdir()

    def use() -> Reply:
        shutil.copytree(home, copy)
        with pytest.raises(NoCoordinator, match=r"no coordinator runs in .*/copy"):
            send(copy, "pause")
        with_socket(copy, lambda: send(copy, "pause"))
        return send(home, "pause")

    assert with_socket(home, use).number == 1, "nor does it take its socket away"


def test_a_runtime_folder_with_a_long_path_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ("long" * 30)
    home.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    assert with_socket(home, lambda: send(home, "pause")).text == "pause ", "it lies among temporary files then"
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    with pytest.raises(ControlSocketError, match="set XDG_RUNTIME_DIR to a folder with a short path"):
        with_socket(home, lambda: None)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"\n", "one line of JSON"),
        (b"[]\n", "a request is a JSON object"),
        (b"{}\n", "a request needs a `command`"),
        (b'{"command": 7}\n', "`command` must be a text"),
        (b'{"command": "pause", "why": ["x"]}\n', "`why` must be a text"),
        (b'{"command": "pause", "why": "' + b"x" * 5000 + b'"}\n', "`why` must be a text of at most 4096 characters"),
        (b'{"command": "pause", "timeout": 1e9}\n', "`timeout` is '1000000000.0'"),
        (b'{"command": "pause", "timeout": "long"}\n', "`timeout` is 'long'"),
        (b'{"command": "pause", "request": "\\ud800"}\n', "its name, if it has one, is 1 to 64 letters"),
        (b"[" * 50_000 + b"\n", "one line of JSON"),
        (b'{"command": "pause"}', "one line of JSON, of at most 65536 bytes"),
        (b"x" * (2 * MAX_LINE) + b"\n", "one line of JSON, of at most 65536 bytes"),
        (b"\xff\xfe\n", "one line of JSON"),
    ],
    ids=range(13),
)
def test_whatever_comes_is_answered(tmp_path: Path, line: bytes, why: str) -> None:
    coordinator = Coordinator()
    reply = with_socket(tmp_path, lambda: raw(tmp_path / "control.sock", line), coordinator)
    assert reply["ok"] is False and why in reply["error"] and not coordinator.asked


def test_who_says_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_socket, "REQUEST_S", 0.1)

    def use() -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10.0)
            connection.connect(str(tmp_path / "control.sock"))
            return connection.recv(1000)

    assert b"no request came within 0.1 s" in with_socket(tmp_path, use)


def test_no_answer_in_time_is_no_refusal(tmp_path: Path) -> None:
    coordinator = Coordinator()
    coordinator.delay_s = 5.0
    with pytest.raises(Unanswered, match=r"no answer within 0\.2 s: it may still take effect"):
        with_socket(tmp_path, lambda: send(tmp_path, "pause", timeout=0.2), coordinator)


def test_a_coordinator_that_dies_meanwhile_is_no_refusal_either(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "control.sock"))
    listening.listen()

    async def run() -> None:
        asking = asyncio.create_task(asyncio.to_thread(send, tmp_path, "pause"))
        there, _ = await asyncio.to_thread(listening.accept)
        there.recv(1000)
        there.close()
        await asking

    with pytest.raises(Unanswered, match="it ended before it could answer; the command may still be in force"):
        asyncio.run(run())
    listening.close()


def test_a_coordinator_that_is_starting_or_ending_is_not_told_to_start(tmp_path: Path) -> None:
    with (
        Home.open(tmp_path),
        pytest.raises(NoCoordinator, match=rf"process {os.getpid()} uses .*, but takes no commands: .* try again"),
    ):
        send(tmp_path, "pause")
    with pytest.raises(NoCoordinator, match=r"no coordinator runs in .* \(there is no socket\): start it"):
        send(tmp_path, "pause")


def test_a_home_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(NoCoordinator, match="is not a home: name the --home"):
        send(tmp_path / "nowhere", "pause")
