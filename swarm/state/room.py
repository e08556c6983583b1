"""Room on a disk, checked before a long write or download begins."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

SPARE_BYTES = 1 << 20
"""Free bytes that a file leaves on its disk: the event log may need them while the file is written."""


def need_room(folder: Path, nbytes: int) -> None:
    """Raise OSError (ENOSPC) unless the folder's disk has room for so many bytes and SPARE_BYTES."""
    if shutil.disk_usage(folder).free < nbytes + SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
