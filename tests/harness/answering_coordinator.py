"""A coordinator's control socket, without a coordinator behind it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path


class Coordinator(threading.Thread):
    """Answers a line with a line at the control socket of a home."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.heard: list[dict[str, str]] = []
        self.answer = b'{"ok": true, "number": 7, "text": "paused from the next step on"}\n'
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                with connection:
                    self.heard.append(json.loads(connection.makefile().readline()))
                    connection.sendall(self.answer)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
