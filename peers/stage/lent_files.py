"""Files that a peer writes and lends to others piece by piece: copies of its state, and the sums of steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from peers.runtime.piece_request import PieceRequest
from peers.runtime.thread_work import in_thread
from swarm.events import CheckpointRefused, Event
from swarm.state.packed import framed
from swarm.state.pieces import PIECE_BYTES, Index


@dataclass(slots=True)
class LentFile:
    index: Index
    path: Path

    def nbytes(self, request: PieceRequest) -> int:
        """Bytes of the pieces of a request, which must exist."""
        return min(request.count * PIECE_BYTES, self.index.total - request.first * PIECE_BYTES)

    def read(self, request: PieceRequest) -> bytes:
        """The pieces of a request, which must exist. Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(request.first * PIECE_BYTES)
            pieces = file.read(self.nbytes(request))
        if not request.packed:
            return pieces
        views = (memoryview(pieces)[at : at + PIECE_BYTES] for at in range(0, len(pieces), PIECE_BYTES))
        return b"".join(part for view in views for part in framed(view))


class LentFiles:
    """The files that a peer lends, by number (a version or a step). Some are still being written. Used in one event
    loop.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._files: dict[int, asyncio.Future[LentFile]] = {}
        self.trouble = ""
        """Why the disk did not take the newest file, without the names of folders. Empty: it did, or there was none."""

    def __contains__(self, number: int) -> bool:
        return number in self._files

    @property
    def numbers(self) -> list[int]:
        return sorted(self._files)

    def get(self, number: int) -> asyncio.Future[LentFile] | None:
        """A file, which may still be being written. The future raises the error that occurred while it was written."""
        return self._files.get(number)

    def keep(self, number: int, path: Path, writing: Awaitable[object]) -> asyncio.Future[LentFile]:
        """Lend the file at `path` once it is written. If writing fails, report the error and forget the file."""
        task = asyncio.create_task(_indexed(path, writing))

        def ended(done: asyncio.Future[LentFile]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is None:
                self.trouble = ""
                return
            self._emit(CheckpointRefused(f"the copy or sums of version {number} for others", str(error)))
            if self._files.get(number) is done:
                del self._files[number]
            if isinstance(error, OSError):
                self.trouble = error.strerror or ""

        task.add_done_callback(ended)
        self._files[number] = task
        return task

    def forget(self, number: int) -> None:
        """Remove a file as soon as it is written. This runs in a thread: on a busy disk, removing a large file takes
        seconds.
        """

        def remove(lent: asyncio.Future[LentFile]) -> None:
            if _is_here(lent):
                path = lent.result().path
                try:
                    asyncio.get_running_loop().run_in_executor(None, lambda: path.unlink(missing_ok=True))
                except RuntimeError:  # no thread can be started
                    path.unlink(missing_ok=True)

        self._files.pop(number).add_done_callback(remove)

    def keep_within(self, nbytes: int) -> None:
        """Forget the lowest numbers until the written files have at most this number of bytes in total."""
        sizes = {number: lent.result().index.total for number, lent in self._files.items() if _is_here(lent)}
        while sum(sizes.values()) > nbytes:
            self.forget(lowest := min(sizes))
            del sizes[lowest]

    def clear(self) -> None:
        for number in self.numbers:
            self.forget(number)


async def _indexed(path: Path, writing: Awaitable[object]) -> LentFile:
    await writing
    return LentFile(await in_thread(Index.of_file, path), path)


def _is_here(lent: asyncio.Future[LentFile]) -> bool:
    return lent.done() and not lent.cancelled() and lent.exception() is None
