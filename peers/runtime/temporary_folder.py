"""The folder for temporary files. Python raises an error if neither TMPDIR nor /tmp nor /var/tmp can be written, as in
a container with a read-only file system. Libraries such as torch ask for this folder even if they write nothing there.
"""

from __future__ import annotations

import os
import tempfile

_OTHERS = ("/dev/shm", "/run")


class NoTemporaryFolder(OSError):
    """No folder for temporary files can be written; the text says what to set."""


def choose_temporary_folder(*, required: bool) -> None:
    """Let this process and its children put temporary files where they can be written, if the usual folders cannot be.

    Raises NoTemporaryFolder if there is no such folder and it is `required`.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        for folder in _OTHERS:
            if os.access(folder, os.W_OK | os.X_OK):
                os.environ["TMPDIR"] = tempfile.tempdir = folder
                return
        if required:
            raise NoTemporaryFolder(
                "no folder for temporary files can be written: set TMPDIR to one, such as a folder beside --home"
            ) from None
