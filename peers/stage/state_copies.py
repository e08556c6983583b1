"""Copies of the state that a peer trains, for peers that load it.

A copy is made if a pass has listeners that load its version (`Lend`), or if a peer asks for the version that this peer
holds: at the start and the end of a run, peers load between passes. All peers that ask for a version share one copy.
Copies are made so rarely that requests cannot keep a peer from training.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from peers.stage.copying import State, copy_to
from peers.stage.lent_files import LentFile, LentFiles
from swarm.events import Event
from swarm.net.bulk import FAIR_RATE, PATIENCE_S

MAX_COPIES = 2
"""Maximum number of copies on disk that the coordinator ordered. The same maximum applies to copies that peers
requested.
"""
COPYING = 0.1
"""The fraction of its time that a peer may spend on copies."""
MAX_REST_S = 10.0
UNUSED_S = 60.0
"""Seconds without a request for its pieces after which a requested copy is removed."""


@dataclass(slots=True)
class _Use:
    """When a requested copy was used."""

    since: float
    asked_at: float


class StateCopies:
    """The copies of one peer. Used in one event loop. `folder` exists, and its owner empties it when a process
    begins.
    """

    def __init__(self, run_hash: str, folder: Path, emit: Callable[[Event], None]) -> None:
        self._run_hash = run_hash
        self._folder = folder
        self._emit = emit
        self._files = LentFiles(emit)
        self._uses: dict[int, _Use] = {}
        """The requested copies that were not ordered, by version."""
        self._next_at = 0.0

    @property
    def versions(self) -> list[int]:
        return self._files.numbers

    def order(self, versions: Collection[int], version: int, stage: int, state: State) -> None:
        """Copy `version`, that of the live state, if it is one of `versions`. Drop the ordered copies of all other
        versions.
        """
        for other in [v for v in self.versions if v not in versions and v not in self._uses]:
            self._files.forget(other)
        if version not in versions:
            return
        self._uses.pop(version, None)
        ordered = [v for v in self.versions if v not in self._uses]
        if version not in self._files and self._rest_s() <= 0 and len(ordered) < MAX_COPIES:
            self._take(version, stage, state)

    def get(self, version: int, stage: int, state: State) -> asyncio.Future[LentFile] | None:
        """Return the copy of a requested version; None: there is no copy, or not yet.

        If the live state has that version, a copy is made, unless the last copy is too recent or there are already
        enough copies. A copy that only slow readers still need is dropped to make room.
        """
        now = time.monotonic()
        if version in self._uses:
            self._uses[version].asked_at = now
        elif version not in self._files and state.version == version and self._rest_s() <= 0:
            if len(self._uses) >= MAX_COPIES:
                overdue = [other for other in self._uses if self._gives_way(other, now)]
                if not overdue:
                    return None
                self._drop(min(overdue))
            self._uses[version] = use = _Use(now, now)
            self._take(version, stage, state).add_done_callback(lambda _: self._taken(version, use))
        return self._files.get(version)

    @property
    def trouble(self) -> str:
        """Why the disk did not take the newest copy; empty: it did, or there was none."""
        return self._files.trouble

    def clear(self) -> None:
        """Forget all copies: another state is loaded, and the same version numbers may occur again."""
        self._uses.clear()
        self._files.clear()

    def _take(self, version: int, stage: int, state: State) -> asyncio.Future[LentFile]:
        began = time.monotonic()
        path = self._folder / f"state-{version}-{time.monotonic_ns()}"
        copying = copy_to(path, state, self._run_hash, stage, version, self._emit)
        taking = asyncio.wrap_future(copying)  # it is queued before the step is applied
        self._next_at = began + MAX_REST_S  # no other copy begins before this one is finished
        taking.add_done_callback(lambda _: self._rest(began))
        return self._files.keep(version, path, taking)

    def _gives_way(self, version: int, now: float) -> bool:
        """True if the first peer that asked for this copy has had enough time to fetch all of it, so that the copy may
        be dropped.
        """
        file = self._files.get(version)
        if file is None or not file.done() or file.exception() is not None:
            return file is None
        return now - self._uses[version].since > max(PATIENCE_S, file.result().index.total / FAIR_RATE)

    def _rest_s(self) -> float:
        """Seconds until another copy may be made."""
        return self._next_at - time.monotonic()

    def _rest(self, began: float) -> None:
        """A copy was made: wait ten times as long before the next one."""
        now = time.monotonic()
        self._next_at = now + min(MAX_REST_S, (now - began) / COPYING)

    def _drop(self, version: int) -> None:
        del self._uses[version]
        if version in self._files:
            self._files.forget(version)

    def _taken(self, version: int, use: _Use) -> None:
        """A requested copy is complete, or has failed; after a failure, it may be requested again."""
        use.asked_at = time.monotonic()
        if version in self._files:
            self._drop_if_unused(version, use)
        elif self._uses.get(version) is use:
            self._drop(version)

    def _drop_if_unused(self, version: int, use: _Use) -> None:
        """Check repeatedly, and drop the copy when nobody has asked for a while. `use` may have ended for another
        reason.
        """
        if self._uses.get(version) is not use:
            return
        left_s = use.asked_at + UNUSED_S - time.monotonic()
        if left_s <= 0:
            self._drop(version)
        else:
            asyncio.get_running_loop().call_later(left_s, self._drop_if_unused, version, use)
