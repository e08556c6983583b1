"""Tokens and cookies: only the right ones open, for as long as they should; guessing is slow."""

import os

import pytest
from starlette.requests import Request
from starlette.responses import Response

from peers.dashboard.access import Denied, Gate, Opening
from peers.dashboard.tokens import SESSION_S, Access, Attempts, Sessions, TokenError, TokenFiles, Tokens


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_made_once_and_only_its_owner_can_read_it(tmp_path) -> None:
    path = tmp_path / "home" / "dashboard.token"
    first, again = Tokens.kept(path, reading=True), Tokens.kept(path, reading=True)
    assert first == again and first.read is not None and first.read != first.organiser
    for file in (path, path.with_name("dashboard.token-read")):
        assert file.stat().st_mode & 0o777 == 0o600
    assert Tokens.kept(path, reading=False).read is None


def test_a_token_that_others_can_read_is_refused(tmp_path) -> None:
    path = tmp_path / "dashboard.token"
    Tokens.kept(path, reading=False)
    os.chmod(path, 0o644)
    with pytest.raises(TokenError, match="chmod 600"):
        Tokens.kept(path, reading=False)


@pytest.mark.parametrize("text", ["", "short", "x" * 31, "two words of it that are long enough", "\x00" * 40])
def test_a_file_without_a_token_is_refused(tmp_path, text: str) -> None:
    path = tmp_path / "dashboard.token"
    path.write_text(text)
    os.chmod(path, 0o600)
    with pytest.raises(TokenError, match="holds no token"):
        Tokens.kept(path, reading=False)


def test_what_a_token_opens() -> None:
    tokens = Tokens("o" * 40, "r" * 40)
    assert tokens.access("o" * 40) is Access.ORGANISER
    assert tokens.access("r" * 40) is Access.READ
    for wrong in ("", "o" * 39, "o" * 41, "O" * 40, "\ud800" * 40):
        assert tokens.access(wrong) is Access.NONE
    assert Tokens("o" * 40).access("") is Access.NONE


def test_a_cookie_ends_and_cannot_be_made_up() -> None:
    clock = Clock()
    sessions = Sessions(Tokens("o" * 40), clock)
    cookie = sessions.open(Access.READ)
    assert sessions.access(cookie) is Access.READ
    assert Sessions(Tokens("o" * 40), clock).access(cookie) is Access.READ, "a restarted dashboard knows it"
    assert Sessions(Tokens("p" * 40), clock).access(cookie) is Access.NONE, "another token makes it void"
    forged = "3" + cookie[1:]
    for wrong in (forged, cookie[:-1], "", "...", "3.9999999999.x.", cookie + "x"):
        assert sessions.access(wrong) is Access.NONE
    clock.now += SESSION_S + 1
    assert sessions.access(cookie) is Access.NONE


def test_guessing_is_slow_and_costs_bounded_memory() -> None:
    clock = Clock()
    attempts = Attempts(clock)
    for _ in range(10):
        assert attempts.wait_s("a") == 0
        attempts.failed("a")
    assert 0 < attempts.wait_s("a") <= 6
    assert attempts.wait_s("b") == 0, "another client is not kept out"
    clock.now += 6.1
    assert attempts.wait_s("a") == 0
    for number in range(5_000):
        attempts.failed(str(number))
    assert len(attempts._left) <= 1_024


def test_a_clock_that_is_set_back_makes_nobody_wait_for_it() -> None:
    clock = Clock()
    gate = Gate(lambda: Tokens("o" * 40), Opening(exposed=True, public=False, cookie="c"), clock)
    wrong = Request(
        {"type": "http", "headers": [(b"authorization", b"Bearer " + b"x" * 40)], "client": ("192.0.2.7", 1)}
    )
    for _ in range(2):
        with pytest.raises(Denied) as denied:
            gate.access(wrong)
        assert denied.value.status == 401
        clock.now -= 3600.0


def test_a_deleted_or_replaced_file_ends_its_sessions_at_once(tmp_path, capsys) -> None:
    path, clock = tmp_path / "dashboard.token", Clock()
    files = TokenFiles(path, reading=True)
    gate = Gate(files.now, Opening(exposed=True, public=False, cookie="c"), clock)

    def asks(**headers: str) -> Request:
        told = [(name.encode(), text.encode()) for name, text in headers.items()]
        return Request({"type": "http", "headers": told, "client": ("192.0.2.7", 1), "scheme": "http", "path": "/"})

    def opens(text: str) -> Access:
        try:
            return gate.access(asks(authorization=f"Bearer {text}"))
        except Denied:
            return Access.NONE

    def cookie(text: str) -> Request:
        answer = Response()
        gate.exchange(asks(), text, answer)
        return asks(cookie=answer.headers["set-cookie"].partition(";")[0])

    first, session = files.now(), cookie(files.now().organiser)
    assert opens(first.organiser) is gate.access(session) is Access.ORGANISER
    for name in ("dashboard.token", "dashboard.token-read"):
        (tmp_path / name).unlink()
        assert gate.access(session) is Access.NONE and not gate.keeps(session, Access.READ)
        assert opens(first.organiser if name == "dashboard.token" else first.read) is Access.NONE
        assert opens(path.read_text().strip()) is Access.ORGANISER, "a new file is made"
        first, session = files.now(), cookie(files.now().organiser)
    path.write_text("too short")
    assert opens("too short") is opens(first.organiser) is opens(first.read) is gate.access(session) is Access.NONE
    assert "delete it" in capsys.readouterr().err
    path.write_text("n" * 40)
    assert opens("n" * 40) is Access.ORGANISER and opens(first.read) is Access.READ
    path.unlink()
    path.with_name("dashboard.token-read").unlink()
    tmp_path.rmdir()
    assert opens("n" * 40) is Access.NONE and not tmp_path.exists(), "a deleted home does not come back"
