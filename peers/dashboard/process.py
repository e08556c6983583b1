"""`swarm-peer dashboard`: the process, which reads homes and serves viewers.

It only follows logs that others write, so it can be slow, killed or restarted without an effect on training. All its
data can be made again from the logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import uvicorn

from peers.dashboard import heap
from peers.dashboard.access import Gate, Opening
from peers.dashboard.answers import Answers
from peers.dashboard.app import Parts, application
from peers.dashboard.assets import Assets
from peers.dashboard.connections import KEEP_ALIVE_S, Connections
from peers.dashboard.control import Control
from peers.dashboard.exports import Exports
from peers.dashboard.history.history import History
from peers.dashboard.keep import Keep
from peers.dashboard.passes import Passes
from peers.dashboard.place import Place
from peers.dashboard.query import Query
from peers.dashboard.reader import Reader
from peers.dashboard.scalars import Scalars
from peers.dashboard.stream import Hub
from peers.dashboard.tokens import TokenFiles
from peers.dashboard.topics import Topics
from peers.run.home import Home

_PORTS_TRIED = 50
_BACKLOG = 128
_CHANCE_TO_FINISH_S = 2
_MOST_HEAD = 16_384
_LONGEST_REASON = 200
_TICK_S = 10.0
"""Seconds after which the numbers that depend on the time are computed again, if nothing was logged."""
STREAMED_SAMPLES = 3
"""As many as the Run page shows."""


class DashboardError(ValueError):
    """The dashboard cannot be served with these options; the message says what to change."""


@dataclass(frozen=True)
class DashboardOptions:
    homes: tuple[Path, ...]
    """The homes to read. The coordinator of the first one takes commands."""
    place: Place
    database: Path | None = None
    token_file: Path | None = None
    public: bool = False
    hosts: tuple[str, ...] = ()
    """Names by which other machines reach the dashboard, for example through a proxy. If there are any, the dashboard
    counts as reachable from other machines.
    """
    tensorboard: Path | None = None
    observed: bool = False
    """True if the home is an observer's. Then there is no organiser's token, and nothing that needs such a token."""
    ends_with_parent: bool = False
    """True if a process of the run started the dashboard, which then ends when its standard input closes."""


@dataclass(frozen=True)
class Addresses:
    """The addresses of the dashboard. `organiser` contains the token in its fragment, which no server or log ever
    sees.
    """

    plain: str
    organiser: str | None
    """The address with the organiser's token. None: this dashboard has no organiser."""
    reader: str | None
    """The address for readers, with the read token if reading needs one."""


def serve(options: DashboardOptions, on_ready: Callable[[Addresses], None]) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises DashboardError, TokenError, OSError before it serves anything."""
    heap.share()
    with contextlib.closing(Keep(options.homes[0], options.database, options.token_file)) as keep:
        _serve(options, keep, on_ready)


def _serve(options: DashboardOptions, keep: Keep, on_ready: Callable[[Addresses], None]) -> None:
    place = options.place
    exposed = not place.loopback or bool(options.hosts)
    keep.token_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files = TokenFiles(keep.token_file, reading=exposed and not options.public, observed=options.observed)
    tokens = files.read()
    listener = listen(place)
    port = listener.getsockname()[1]
    connections = Connections()
    parts = _parts(
        options,
        keep.database,
        connections,
        Gate(files.now, Opening(exposed, options.public, f"swarm_peer_{port}", observed=options.observed)),
    )
    shown = f"http://{place.shown}:{port}/"
    reader = None if tokens.read is None else f"{shown}#token={tokens.read}"
    on_ready(Addresses(shown, None if options.observed else f"{shown}#token={tokens.organiser}", reader))
    config = uvicorn.Config(
        application(parts),
        http=cast("type[asyncio.Protocol]", connections.protocol),
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CHANCE_TO_FINISH_S,
        h11_max_incomplete_event_size=_MOST_HEAD,
    )
    server = _Server(config, parts.reader)
    if options.ends_with_parent:
        _end_with_parent(server)
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """A server that does not wait for long answers before it ends."""

    def __init__(self, config: uvicorn.Config, reader: Reader) -> None:
        super().__init__(config)
        self._reader = reader

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._reader.refuse()
        await super().shutdown(sockets)


def listen(place: Place) -> socket.socket:
    """A listening socket; if the place is only a wish, at the next free port. Raises DashboardError."""
    ports = range(place.port, min(place.port + _PORTS_TRIED, 65_536)) if place.wish else (place.port,)
    for port in ports:
        family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((place.address, port))
            listener.listen(_BACKLOG)  # on some systems, a port in use can still be bound
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE and place.wish:
                continue
            why = error.strerror or str(error)
            raise DashboardError(
                f"cannot serve on {place}: {why}; give another ADDRESS:PORT, or port 0 for any"
            ) from None
        return listener
    raise DashboardError(f"no port from {place.port} to {ports[-1]} is free: give another port, or port 0 for any")


def _parts(options: DashboardOptions, database: Path, connections: Connections, gate: Gate) -> Parts:
    home = Home(options.homes[0])
    control, exports = Control(home), Exports(home)
    occupied = [Home(path) for path in options.homes]

    def live() -> bool:
        return any(each.occupant() is not None for each in occupied)

    def goes_on() -> bool:
        return bool(facts["live"] and not facts["cut_off"] and reader.caught_up)

    topics = Topics(options.homes, goes_on)

    def circumstances() -> str:
        unwritten = "" if scalars is None else scalars.trouble
        facts.update(live=live(), cut_off=_cut_off(home), unwritten=unwritten)
        tick = int(time.time() / _TICK_S) if goes_on() else 0  # in a standstill, the goodput changes without events
        return f"{facts['live']} {facts['cut_off']} {unwritten} {control.there} {exports.revision} {tick}"

    def about_run(answer: dict[str, Any]) -> dict[str, Any]:
        reading = [] if reader.caught_up else ["the logs are still being read, so this is an earlier state"]
        told = {"live": facts["live"], "control": facts["live"] and control.there}
        if facts["live"] and facts["cut_off"]:
            reading.append(f"{facts['cut_off']}, so this is the state at that time")
        if facts["unwritten"]:
            reading.append(facts["unwritten"])
        return told | {"warnings": [*answer["warnings"], *reading]}

    facts: dict[str, Any] = {"live": False, "cut_off": "", "unwritten": ""}
    scalars = None if options.tensorboard is None else Scalars(options.tensorboard)
    reader = Reader(lambda: History(list(options.homes), database), circumstances)
    answers = Answers(
        reader,
        topics.by_name(),
        {
            "run": about_run,
            "checkpoints": lambda _: {"exports": exports.listed()},
        },
    )
    hub = Hub(lambda topic: _look(answers, topic))
    reader.on_new.append(hub.invalidate)

    @contextlib.asynccontextmanager
    async def work() -> AsyncIterator[None]:
        await reader.open()
        manifest = reader.ask(lambda _: topics.facts, own=True)  # load it now, so that no viewer waits
        jobs: list[Coroutine[Any, Any, Any]] = [reader.follow(), hub.run(), exports.run(), connections.run(), manifest]
        if scalars is not None:
            jobs.append(scalars.run(reader))
        tasks = [asyncio.create_task(_or_end(job)) for job in jobs]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await reader.close()

    hosts = tuple(host.lower() for host in options.hosts)
    passes = Passes(home, control)
    return Parts(home, reader, answers, hub, gate, Assets(), control, passes, exports, hosts, work)


def _cut_off(home: Home) -> str:
    """The reason why the logs of an observer's home do not grow. Empty: they grow, or the home is not an observer's."""
    try:
        with home.observing.open(encoding="utf-8", errors="replace") as file:
            return file.read(_LONGEST_REASON)
    except OSError:
        return ""


async def _look(answers: Answers, topic: str) -> tuple[dict[str, Any], float]:
    """Compute a topic of the stream. For most topics this is the answer itself; for two topics it is only a sign that
    something is new. Of the samples it is the newest ones: a new sample would otherwise send the texts of all of them
    again, and the viewer's other topics would wait for seconds.
    """
    run_or = "run" if topic in ("timeline", "log") else topic
    answer, seconds = await answers.data(run_or, Query(), own=True)
    if topic == "timeline":
        return {"last_step": answer["step"]}, 0.0
    if topic == "log":
        return {"last_at": answer["last_at"]}, 0.0
    if topic == "samples":
        return {**answer, "samples": answer["samples"][:STREAMED_SAMPLES]}, seconds
    return answer, seconds


async def _or_end(job: Any) -> None:
    """If a part fails, end the process, so that its supervisor restarts it: a partly running dashboard would show old
    data.
    """
    try:
        await job
    except Exception:
        traceback.print_exc()
        os._exit(1)


def _end_with_parent(server: uvicorn.Server) -> None:
    """End with the parent: the pipe to standard input closes when the parent ends, however it ends."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(sys.stdin.fileno(), 4096):
                pass
        server.should_exit = True

    threading.Thread(target=watch, daemon=True, name="parent").start()
