"""`swarm-peer dashboard INVITE`: copies the coordinators' event logs into a home, for a dashboard that shows them.

The copies stay, so the dashboard of the home also shows the run after its end.
"""

from __future__ import annotations

import asyncio
import sys
import time

from peers.coordinator.mirror import Copy
from peers.observer.visit import Visit, visiting
from peers.run.archived_run import describe_archive
from peers.run.home import Home, OpenHome
from peers.runtime.core_loop import INTERRUPTED, ProcessFailed
from peers.runtime.observer_request import (
    MAX_ANSWER_BYTES,
    STATUS,
    ObserverRequest,
    ObserverRequestError,
    decode_part,
)
from peers.runtime.signals import leaving_signals
from swarm.events import LogCopyStopped
from swarm.events.wording import printable
from swarm.net.invite import Invite

POLL_S = 1.0
"""Seconds between two requests for new events."""


async def observe(invite: Invite, home: OpenHome) -> str:
    """Observe until a signal comes. Returns the reason for the end.

    Raises RunFailed if the pass is no longer valid; at the start, the errors of `visiting`; ProcessFailed if the
    libp2p daemon dies.
    """
    leave = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in leaving_signals():
        loop.add_signal_handler(number, leave.set)
    home.observing.unlink(missing_ok=True)
    async with visiting(invite, home) as visit:
        tokenizer = await visit.tokenizer()
        await asyncio.to_thread(describe_archive, home.archive, visit.manifest, tokenizer)
        following = asyncio.create_task(Follower(visit, home).run())
        left = asyncio.create_task(leave.wait())
        try:
            await asyncio.wait((following, left, visit.host.died), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
            if visit.host.died.done() and not left.done():
                raise ProcessFailed(visit.host.died.result())
            return INTERRUPTED
        finally:
            for task in (following, left):
                task.cancel()
            await asyncio.gather(following, left, return_exceptions=True)


class Follower:
    """Copies the coordinators' logs, and then everything that is added to them."""

    def __init__(self, visit: Visit, home: Home) -> None:
        self._visit = visit
        self._observing = home.observing
        self._copies = {peer: Copy(home.mirrors / f"{peer}.jsonl") for peer in visit.coordinators}
        self._told = ""
        self._unanswered = ""

    async def run(self) -> None:
        """Run until cancelled. Raises RunFailed when this observer is refused for good; OSError."""
        while True:
            try:
                await self._visit.with_any(self.copy_from)
            except (ConnectionError, TimeoutError, ObserverRequestError) as error:
                clock = time.strftime("%Y-%m-%d %H:%M:%S")
                self._unanswered = (
                    self._unanswered or f"no coordinator has answered since {clock} ({str(error) or 'no answer'})"
                )
            else:
                self._unanswered = ""
            self._tell(self._unanswered or self._stopped())
            await asyncio.sleep(POLL_S)

    async def copy_from(self, peer: str) -> None:
        """Copy everything new in all logs from one coordinator. Raises ConnectionError, TimeoutError, OSError."""
        if all(copy.why_stopped() for copy in self._copies.values()):  # it must be noticed if nobody answers
            await self._visit.ask_one(peer, ObserverRequest(STATUS).encode())
        for of, copy in self._copies.items():
            while not copy.why_stopped():
                request = ObserverRequest.part(of, copy.want()).encode()
                part = decode_part(await self._visit.ask_one(peer, request, MAX_ANSWER_BYTES))
                before = copy.want()
                if part is None:
                    break
                copy.take(part)
                if copy.want() == before:
                    break  # the part does not continue the copy; it is requested again later

    def _stopped(self) -> str:
        """Why a copy does not grow any more; empty if all may grow. Raises OSError."""
        for of, copy in self._copies.items():
            if why := copy.why_stopped():
                return LogCopyStopped(f"…{of[-6:]}", why).sentence()
        return ""

    def _tell(self, text: str) -> None:
        """Make the dashboard show a text on every page, and print it once."""
        if text != self._told:
            self._told = text
            if text:
                print(printable(text), file=sys.stderr, flush=True)
            self._observing.write_text(text, encoding="utf-8")
