"""Home: the folder that holds all state of one process. Homes share nothing except the network.

identity.key     libp2p identity; made by the network layer at the first start
incarnation      number of the current start; it grows, and no number is used twice
events.jsonl     everything that happened (swarm/events/log.py); older parts are events-DAY-NUMBER.jsonl
metrics.jsonl    figures by step (peers/report/metrics.py)
checkpoints/     shards that this process keeps; each run has a folder, named by its hash
retention/       frames of the open step that do not fit into memory (peers/stage/retention.py)
lent/            sums of steps, kept for peers that catch up; emptied at every start
incoming/        parts of a state and of sums that a peer fetches to join or catch up
seats/           homes of the further peers of a process that holds several stages (peers/stage/seats.py)
mirrors/         copies of the event logs of the other coordinators of a group
invite           the invite of another coordinator of the group (peers/coordinator/charter.py)
manifest.signed  the group's manifest, which that coordinator has signed
archive/         the coordinator's verified copy of each stage
decisions.sqlite the coordinator's decision record
control.sock     receives commands for the coordinator (peers/coordinator/control_socket.py)
control.path     names that socket if it cannot be in this folder
port             TCP port that a coordinator or bootstrap node used last
superseded       a later process has this home's key: `join` and `coordinate` do not start here (peers/stage/twin.py,
                 peers/coordinator/rival.py)
means.json       what this machine can do (peers/stage/means.py)
organiser.key    signs the run and its passes (peers/coordinator/organiser_key.py)
certificate      what this peer shows to others of its run (peers/stage/admission.py)
bans.json        members that the coordinators have shut out (peers/stage/bans.py)
passes/          passes that were made here; everybody who has one can join (peers/coordinator/pass_book.py)
peers.json       the last known addresses of the coordinator's peers, or of a peer's coordinators
                 (peers/runtime/notebook.py)
neighbours.json  addresses of some members, for a peer whose coordinators have moved
join-token       the invite that peers join with, for the organiser's dashboard
dashboard.token  the organiser's token for the dashboard (peers/dashboard/tokens.py)
dashboard.sqlite the dashboard's history; made again from the logs if it is deleted
observing        why an observer's copies of the logs do not grow (peers/observer/process.py)
exports/         models that were exported from the dashboard
lock             held while the process lives
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from peers.run.home_names import wrong_kind
from swarm.atomic import atomic_file, keeps_permissions, write_whole
from swarm.events.wording import printable

_NOBODYS = Path("~")
"""The home folder if the process has none: HOME is not set, and the system does not know the user id."""


def _of_this_user() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        return _NOBODYS


_HOMES = _of_this_user() / ".swarm-peer"
PEER_HOME = _HOMES / "peer"
COORDINATOR_HOME = _HOMES / "coordinator"
BOOTSTRAP_HOME = _HOMES / "bootstrap"
OBSERVER_HOMES = _HOMES / "observer"
"""Contains one home for each run."""


class HomeError(ValueError):
    """A home is in use or damaged; the message names the path and the fix."""


def logged_home(path: Path | None) -> Home:
    """The home at `path`. Without `path`, the default home, of a peer or a coordinator, that was used last. Raises
    HomeError.
    """
    homes = [Home(path)] if path is not None else [Home(PEER_HOME), Home(COORDINATOR_HOME)]
    logged = [home for home in homes if home.events.exists()]
    if not logged:
        looked = " or ".join(str(home.path) for home in homes)
        raise HomeError(f"no event log in {looked}: name the home of a peer or coordinator")
    return max(logged, key=lambda home: home.events.stat().st_mtime)


def made_home(path: Path) -> Path:
    """Make the folder of a home, and return its path. Raises HomeError."""
    found = Home(path).path
    try:
        found.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _no_home(found, error) from None
    return found


class Home:
    """The layout of a home folder. To read a home, no lock is needed. A process that uses it as its own calls
    `Home.open`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path if path.is_absolute() else _expanded(path)

    @property
    def identity(self) -> Path:
        return self.path / "identity.key"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def mirrors(self) -> Path:
        """Copies of the event logs of the other coordinators of a group."""
        return self.path / "mirrors"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def returns(self) -> bool:
        """True if a peer with this home has held a stage, because a checkpoint of it exists."""
        return any(self.checkpoints.glob("*"))

    @property
    def archive(self) -> Path:
        return self.path / "archive"

    @property
    def decisions(self) -> Path:
        """The decision record of a coordinator."""
        return self.path / "decisions.sqlite"

    @property
    def join_token(self) -> Path:
        """The invite that was printed last for peers. The file `invite` is different: it holds another coordinator's
        invite.
        """
        return self.path / "join-token"

    @property
    def organiser_key(self) -> Path:
        """The key that signs the run's manifest and its passes. Whoever has it controls the run."""
        return self.path / "organiser.key"

    @property
    def notebook(self) -> Path:
        return self.path / "peers.json"

    @property
    def neighbours(self) -> Path:
        return self.path / "neighbours.json"

    @property
    def certificate(self) -> Path:
        return self.path / "certificate"

    @property
    def bans(self) -> Path:
        return self.path / "bans.json"

    @property
    def observing(self) -> Path:
        """For an observer: the file with the reason why no coordinator answers. Empty or missing: one answers."""
        return self.path / "observing"

    @property
    def passes(self) -> Path:
        return self.path / "passes"

    @property
    def port(self) -> int:
        """The port at which others knew the last process with this home; 0: unknown."""
        try:
            return min(_number((self.path / "port").read_text(encoding="ascii", errors="replace")) or 0, 65535)
        except OSError:
            return 0

    @property
    def superseded(self) -> Path:
        return self.path / "superseded"

    def note_superseded(self, reason: str) -> None:
        """Note that a later process has this home's key, and why this one left. Raises OSError."""
        with atomic_file(self.superseded) as file:
            write_whole(file, f"{reason}\n".encode())

    @property
    def means(self) -> Path:
        return self.path / "means.json"

    @classmethod
    def open(cls, path: Path, clock: Callable[[], float] = time.time) -> OpenHome:
        """Make the folder, take its lock, and raise the incarnation. Raises HomeError, OSError."""
        return OpenHome(path, clock)

    def occupant(self) -> int | None:
        """The id of the process that holds the lock now; None: no process does."""
        try:
            file = self._lock.open("r")
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _number(file.read()) or 0
            return None

    @property
    def _lock(self) -> Path:
        return self.path / "lock"

    @property
    def _counter(self) -> Path:
        return self.path / "incarnation"


class OpenHome(Home):
    """A home that this process has locked, with its `incarnation`. The lock ends with `close` or with the process."""

    incarnation: int

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        super().__init__(path)
        made_home(path)
        try:
            if wrong := wrong_kind(self.path):
                raise HomeError(wrong)
            self._held: IO[str] | None = self._take_lock()
        except OSError as error:
            raise _no_home(self.path, error) from None
        try:
            self.incarnation = self._next_incarnation(clock())
            if not keeps_permissions(self.path):
                print(
                    f"warning: the disk of {printable(str(self.path))} keeps no permissions, so every user of this "
                    "machine can read the keys in this home: use another --home if you do not trust all of them",
                    file=sys.stderr,
                )
        except BaseException:
            self.close()
            raise

    def keep_port(self, port: int) -> None:
        """Keep this port for the next start, because others look for this process there. Raises OSError."""
        with atomic_file(self.path / "port") as file:
            write_whole(file, f"{port}\n".encode())

    def outgrow(self, number: int) -> None:
        """Make the next start take a larger incarnation than `number`, that of a copy of this home. Raises OSError."""
        if number > self.incarnation:
            with atomic_file(self._counter) as file:
                write_whole(file, f"{number}\n".encode())

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take_lock(self) -> IO[str]:
        file = self._lock.open("a+")
        try:
            _lock(file)
        except BlockingIOError:
            file.seek(0)
            owner = _number(file.read())
            file.close()
            who = f"process {owner}" if owner else "another process"
            raise HomeError(f"{self.path} is in use by {who}: give this process another --home") from None
        except OSError:
            file.close()
            raise
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        return file

    def _next_incarnation(self, now: float) -> int:
        last = 0
        if self._counter.exists():
            text = self._counter.read_text(errors="replace")
            number = _number(text)
            if number is None:
                raise HomeError(
                    f"{self._counter} holds {text[:20]!r}, not a number of at most {_MOST_DIGITS} digits: delete "
                    "that file; the next number then follows from the clock"
                )
            last = number
        # The clock is a lower bound, so that a lost counter file does not bring back a number that peers have fenced.
        incarnation = max(last + 1, int(now))
        with atomic_file(self._counter) as file:
            write_whole(file, f"{incarnation}\n".encode())
        return incarnation


def _lock(file: IO[str]) -> None:
    """Lock a home's file for this process. Raises BlockingIOError if another process keeps it; OSError.

    `occupant` also locks the file, for a moment: a process that only looks must not keep this one from starting.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_PAUSE_S)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


_TRIES, _PAUSE_S = 5, 0.05


def _no_home(path: Path, error: OSError) -> HomeError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HomeError(
            f"{path} cannot be a home now ({error.strerror}): free space, or name a home on another disk with --home"
        )
    return HomeError(
        f"{path} cannot be a home ({error.strerror}): name one with --home that you may write to, on a disk that has "
        "locks (most network drives have none)"
    )


def _expanded(path: Path) -> Path:
    """Replace a `~` by the user's home, as a shell would. Raises HomeError if there is none."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise HomeError("this user has no home folder (HOME is not set): name one with --home") from None


_MOST_DIGITS = 18
"""An incarnation must be below 2^63."""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
