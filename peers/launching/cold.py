"""Starts each process as a new program, as a user starts it. Its imports take seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from peers.chaos.namespace import enter
from peers.launching.process import Launcher, LaunchFailed, Process, die_with_parent, open_output


class Cold(Launcher):
    """Starts processes from the thread that uses it. They die with that thread."""

    def start(
        self,
        argv: Sequence[str],
        output: Path,
        *,
        file: Path | None = None,
        namespace: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        def prepare() -> None:
            die_with_parent()
            if namespace is not None:
                enter(namespace)

        program = ["-m", "peers"] if file is None else [str(file)]
        written = open_output(str(output))
        try:
            popen = subprocess.Popen(
                [sys.executable, "-P", *program, *argv],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=prepare,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchFailed(f"cannot start {' '.join(program)}: {error}") from None
        finally:
            os.close(written)
        return Process(popen.pid, popen)

    def close(self) -> None:
        """Do nothing: this launcher uses no resources."""
