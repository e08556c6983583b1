"""A dashboard process that a coordinator or a peer starts and ends.

A separate thread starts the dashboard at low priority, and restarts it when it dies. The process of the run never waits
for that thread, so failures of the dashboard never affect training.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from peers.dashboard.place import Place
from peers.run.home import made_home

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LASTING_S = 60.0
"""If a dashboard process dies after at least this many seconds, it is restarted at once."""
_GRACE_S = 3.0
_NICE = 10

Tell = Callable[[str], None]


class Companion:
    """A context manager. `tell` is called in its thread, with the dashboard's address or with an error."""

    def __init__(self, words: Sequence[str], tell: Tell) -> None:
        """`words`: the arguments of `swarm-peer dashboard`."""
        self._words = list(words)
        self._tell = tell
        self._process: subprocess.Popen[str] | None = None
        self._ending = threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._keep_up, daemon=True, name="dashboard")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            if process.poll() is None:
                process.kill()
        self._thread.join(_GRACE_S)

    def _keep_up(self) -> None:
        pause = _FIRST_PAUSE_S
        while not self._ending.is_set():
            began = time.monotonic()
            why = self._run()
            if self._ending.is_set():
                return
            pause = _FIRST_PAUSE_S if time.monotonic() - began > _LASTING_S else min(2 * pause, _LONGEST_PAUSE_S)
            self._say(f"the dashboard ended ({why}) and is started again; training continues")
            self._ending.wait(pause)

    def _run(self) -> str:
        """Start the dashboard process and wait for its end; returns why it ended."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "peers", "dashboard", *self._words, "--json", "--companion"],
                stdin=subprocess.PIPE,  # the dashboard always ends when this end closes
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the process of the run, which then ends the dashboard
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        except OSError as error:
            return str(error)
        self._process = process
        if self._ending.is_set():
            process.terminate()
        last: list[str] = []
        listening = threading.Thread(target=self._listen, args=(process, last), daemon=True)
        listening.start()
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                told = json.loads(line)
                self._say(f"dashboard: {told['organiser'] or told['reader'] or told['address']}")
        code = process.wait()
        listening.join(1.0)
        return last[-1].strip()[-300:] if last and last[-1].strip() else f"exit code {code}"

    def _listen(self, process: subprocess.Popen[str], last: list[str]) -> None:
        """Keep the last lines of its output. They must be read, so that its pipe does not fill up."""
        assert process.stderr is not None
        for line in process.stderr:
            last[:] = [*last[-4:], line]

    def _say(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._tell(text)


def companion(home: Path, place: Place | None, tensorboard: Path | None, console: Console) -> Companion:
    """The dashboard for the process that owns `home`. `place` None: the default place, or the next free port. Raises
    HomeError.
    """
    words = [str(made_home(home))]
    if place is not None:
        words += ["--address", str(place)]
    if tensorboard is not None:
        words += ["--tensorboard", str(tensorboard)]
    return Companion(words, lambda text: console.print(text, markup=False, soft_wrap=True))
