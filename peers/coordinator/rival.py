"""Handles a rival: another process with this coordinator's key, because its home was copied. Only one may coordinate.

* Before a coordinator starts, it knocks at the addresses where this home's last process listened. If a process with its
  own key answers, it does not start.
* If the other process is elsewhere, members notice both. A process that is at work keeps its place while it answers
  (`swarm/net/incumbents.py`). The new one waits for the place. It ends if it reaches the other one.
* If the other process does not answer members either, for example because its machine is suspended, they follow the
  new one. Later they show the older one the newer card. The older one stops at once and leaves a note in its home.
  `coordinate` refuses to start there until the organiser has removed the note: otherwise two supervisors would restart
  both processes again and again, each replacing the other.
* In a group, a new process ends as soon as another coordinator refuses it for the process that is at work: it must not
  vote, because its log may be an older copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from peers.run.home import Home, HomeError, OpenHome
from peers.runtime.organisers import addresses_by_peer
from swarm.events import CoordinatorCopied, Event
from swarm.net.addresses import split_peer
from swarm.net.invite import InviteError, parse
from swarm.net.knock import knock
from swarm.net.process_card import CardError, ProcessCard

KNOCK_S = 6.0
"""Longest time in seconds for which a start waits for the answer of whoever listens at the last addresses."""
_AGAIN_S = 10.0
"""Seconds between two knocks at the addresses of rivals that peers follow."""
_MOST_TOLD = 16


class RivalError(HomeError):
    """Another process with this home's key coordinates the run; the text says what to do."""


def check_note(home: Home) -> None:
    """Check whether a process with the same key has replaced this home's last one. Raises RivalError."""
    if home.superseded.exists():
        raise RivalError(
            f"{home.path}: another process with the key of this home was started after its last one, and coordinates "
            "the run. If that process is to go on, delete this home. If this home is to go on, stop the other process, "
            f"delete {home.superseded} and start again: the run then goes back to the newest checkpoint of this home"
        )


async def check_last_addresses(home: Home, me: str, run_hash: str) -> None:
    """Check that no process of this peer id answers where this home's last process listened. Raises RivalError."""
    where = _last_addresses(home, me)
    if where and await knock(me, where, run_hash, KNOCK_S):
        raise RivalError(_not_here(home, f"is running, at {_listed(where)}"))


class Rivals:
    """What one coordinator's process does when others show it the card of a rival.

    `others`: peer ids of the group's other coordinators, which are believed without proof that the rival is newer.
    `begun()`: whether anybody has accepted this process. `stop(reason)`: ends this process. `tell`: logs an event.
    """

    def __init__(
        self,
        home: OpenHome,
        me: str,
        card: ProcessCard,
        others: Collection[str],
        begun: Callable[[], bool],
        stop: Callable[[str], None],
        tell: Callable[[Event], object],
    ) -> None:
        self._home = home
        self._me = me
        self._card = card
        self._others = frozenset(others)
        self._begun = begun
        self._stop = stop
        self._tell = tell
        self._told: set[ProcessCard] = set()
        self._shown: asyncio.Queue[tuple[str, ProcessCard]] = asyncio.Queue(1)

    def heard(self, by: str, sealed: bytes) -> None:
        """The peer `by` has refused this process and shown the card of another one. Set with `Network.on_rival`."""
        try:
            rival = ProcessCard.open(sealed, self._me, self._card.run_hash)
        except CardError:
            return  # `by` lies
        if rival.newer_than(self._card):
            self._stop(self._replaced(rival))
        elif rival != self._card and not self._begun():
            if by in self._others:
                self._stop(_not_here(self._home, f"takes part in the group{_at(rival)}"))
            elif not self._shown.full():
                self._shown.put_nowait((by, rival))

    async def run(self) -> None:
        """Knock at the addresses of rivals that peers follow. Run until cancelled.

        A peer may show the card of a process that has ended, so its word alone does not keep this one from starting.
        """
        while True:
            by, rival = await self._shown.get()
            there = rival.addresses and await knock(self._me, rival.addresses, rival.run_hash, KNOCK_S)
            if self._begun():
                continue
            if there:
                self._stop(_not_here(self._home, f"is running{_at(rival)}"))
            elif rival not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(rival)
                self._tell(CoordinatorCopied(by, list(rival.addresses)))
            await asyncio.sleep(_AGAIN_S)

    def _replaced(self, rival: ProcessCard) -> str:
        home = self._home
        reason = (
            f"another process with the key of {home.path} was started later{_at(rival)}: it coordinates the run, and "
            "this process decides nothing more. If that process is to go on, delete this home. If this home is to go "
            f"on, stop the other process, delete {home.superseded} and start again"
        )
        try:
            home.outgrow(rival.number)
            home.note_superseded(reason)
        except OSError as error:
            return f"{reason} ({home.superseded} cannot be written: {error.strerror})"
        return reason


def _last_addresses(home: Home, me: str) -> tuple[str, ...]:
    """The addresses in the invite that this home's last process has printed."""
    try:
        return addresses_by_peer(parse(home.join_token.read_text(encoding="ascii", errors="replace")).addresses)[me]
    except (OSError, InviteError, KeyError):
        return ()


def _not_here(home: Home, what: str) -> str:
    """Why this process does not start: another one is at work."""
    return (
        f"another process with the key of {home.path} {what}. Only one may coordinate. To move the run to here, stop "
        "the other process, copy its home once more and start again. If the other process is to go on, delete this copy"
    )


def _at(rival: ProcessCard) -> str:
    return f", at {_listed(rival.addresses)}" if rival.addresses else ""


def _listed(addresses: Collection[str]) -> str:
    return ", ".join(split_peer(address)[0] for address in addresses)
