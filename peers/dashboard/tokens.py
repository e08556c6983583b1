"""Secrets for reading and for control, in files that only their owner can read.

A token is exchanged once for a cookie (`Sessions`). The cookie is signed, so the dashboard need not store it, and a
restarted dashboard still accepts its viewers. A deleted or new token file makes all older tokens and cookies invalid at
once (`TokenFiles`).
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from swarm.atomic import atomic_file, keeps_permissions, write_whole

_LEAST_LENGTH = 32
"""Minimum length of a token. A right token is accepted at any time, so it must be too long to be guessed by any number
of attempts.
"""
SESSION_S = 7 * 86_400.0


class TokenError(ValueError):
    """A token file is unusable; the message names the file and the fix."""


class Access(enum.IntEnum):
    """A viewer's permissions; each includes those before it."""

    NONE = 0
    PUBLIC = 1
    """May read, but sees no addresses."""
    READ = 2
    ORGANISER = 3
    """May control the run, download, and see the command line with which peers join."""

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Tokens:
    """The tokens of one dashboard. `read` None: reading needs no token."""

    organiser: str
    read: str | None = None

    @classmethod
    def kept(cls, path: Path, *, reading: bool) -> Tokens:
        """The tokens in `path` and, if reading needs one, in a second file in the same folder. Made at first use.
        Raises TokenError, OSError.
        """
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return TokenFiles(path, reading=reading).read()

    def access(self, token: str) -> Access:
        """What the owner of this token may do. The check takes the same time for any wrong token."""
        organiser = _same(token, self.organiser)
        read = self.read is not None and _same(token, self.read)
        return Access.ORGANISER if organiser else Access.READ if read else Access.NONE


class TokenFiles:
    """The tokens in files that may be deleted or replaced at any time."""

    def __init__(self, path: Path, *, reading: bool, observed: bool = False) -> None:
        """`reading`: True if reading needs a token, which is in a second file in the folder of `path`. `observed`: True
        if there is no organiser; then nobody gets the organiser's token.
        """
        self._organisers = None if observed else path
        self._readers = path.with_name(path.name + "-read") if reading else None
        self._nobodys = secrets.token_urlsafe(32)
        self._seen: object = None
        self._tokens = self._void()

    def read(self) -> Tokens:
        """The tokens. A missing file is made. Raises TokenError, OSError."""
        organisers = self._nobodys if self._organisers is None else _kept(self._organisers)
        return Tokens(organisers, None if self._readers is None else _kept(self._readers))

    def now(self) -> Tokens:
        """The tokens at present, read again if a file was changed. If a file is deleted, a new token is made. While a
        file is unusable, no token opens anything.
        """
        found = self._look()
        if found != self._seen:
            self._seen = found
            try:
                self._tokens = self.read()
            except (TokenError, OSError) as error:
                self._tokens = self._void()
                print(f"no token is accepted: {error}", file=sys.stderr, flush=True)
        return self._tokens

    def _look(self) -> tuple[tuple[int, int, int, int] | None, ...]:
        """What changes with the files."""
        return tuple(_state_of(path) for path in (self._organisers, self._readers) if path is not None)

    def _void(self) -> Tokens:
        return Tokens(secrets.token_urlsafe(32), None if self._readers is None else secrets.token_urlsafe(32))


class Sessions:
    """Makes and checks cookies of the form `access.ends.signature`. The signing key is derived from both tokens."""

    def __init__(self, tokens: Tokens, clock: Callable[[], float]) -> None:
        both = f"{tokens.organiser} {tokens.read or ''}".encode()
        self.tokens = tokens
        self._key = hashlib.sha256(b"swarm-peer dashboard session " + both).digest()
        self._clock = clock

    def open(self, access: Access) -> str:
        """The value of a new session cookie, valid for SESSION_S seconds."""
        body = f"{int(access)}.{int(self._clock() + SESSION_S)}.{secrets.token_urlsafe(9)}"
        return f"{body}.{self._sign(body)}"

    def access(self, cookie: str) -> Access:
        body, _, signature = cookie.rpartition(".")
        if not _same(signature, self._sign(body)):
            return Access.NONE
        level, ends, _ = body.split(".", 2)
        return Access(int(level)) if self._clock() < int(ends) else Access.NONE

    def _sign(self, body: str) -> str:
        digest = hmac.digest(self._key, body.encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class Attempts:
    """Limits how often a client may send a wrong token: ten times, and then once every six seconds.

    Between these attempts, the client is told to wait; it may be a program with an old token. A right token never has
    to wait, because all users of a machine count as one client, and so do all viewers behind a proxy.
    """

    _MOST, _EVERY_S, _CLIENTS = 10.0, 6.0, 1024

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # by client: attempts left, and the time of the last attempt

    def wait_s(self, client: str) -> float:
        """Seconds until this client may try again; 0: now."""
        left = self._left_now(client)
        return 0.0 if left >= 1 else (1 - left) * self._EVERY_S

    def failed(self, client: str) -> None:
        left = self._left_now(client) - 1
        self._left.pop(client, None)
        while len(self._left) >= self._CLIENTS:
            del self._left[next(iter(self._left))]  # the client that failed longest ago
        self._left[client] = (left, self._clock())

    def _left_now(self, client: str) -> float:
        left, at = self._left.get(client, (self._MOST, 0.0))
        return min(self._MOST, left + (self._clock() - at) / self._EVERY_S)


def _kept(path: Path) -> str:
    if not path.exists():
        with atomic_file(path, private=True) as file:
            write_whole(file, f"{secrets.token_urlsafe(32)}\n".encode())
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(token) < _LEAST_LENGTH or not token.isprintable() or " " in token:
        raise TokenError(f"{path} holds no token of {_LEAST_LENGTH} characters or more: delete it and start again")
    if os.name == "posix" and path.stat().st_mode & 0o077 and keeps_permissions(path.parent):
        raise TokenError(f"{path} can be read by others: chmod 600 it, or delete it for a new token")
    return token


def _state_of(path: Path) -> tuple[int, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode


def _same(given: str, expected: str) -> bool:
    """True if both tokens are equal. Compares digests, so that not even the length is revealed."""
    digests = (hashlib.sha256(text.encode("utf-8", "replace")).digest() for text in (given, expected))
    return hmac.compare_digest(*digests)
