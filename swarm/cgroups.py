"""The groups of processes (cgroups v2 or v1) that this process belongs to. A container, a systemd unit or a batch job
limits such a group. The limits of the process's group and of all groups above it apply.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MOUNTS = Path("/proc/self/mountinfo")


def groups(controller: str) -> set[Path]:
    """Folders of this process's groups and of all groups above them, wherever they are mounted.

    `controller`: what the groups limit, such as `memory` or `cpu`. In version 2, the same groups limit everything.
    """
    found: set[Path] = set()
    for line in lines_of(_OWN):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        for mount, root in _mounts(controller, unified=not controllers):
            # within a container, the group's path may be that of the host, which is not visible here
            inner = path.removeprefix(root.rstrip("/")) if root != "/" else path
            folder = mount / inner.lstrip("/")
            if ".." not in folder.parts:
                found.update(each for each in (folder, *folder.parents) if each == mount or mount in each.parents)
            found.add(mount)
    return found


def lines_of(path: Path) -> list[str]:
    """The lines of a file of the kernel; none if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _mounts(controller: str, unified: bool) -> Iterator[tuple[Path, str]]:
    """(mount point, root group): the actual mounts, and the usual places."""
    for line in lines_of(_MOUNTS):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        is_v1 = kind[0] == "cgroup" and controller in kind[2].split(",")
        if kind[0] == "cgroup2" if unified else is_v1:
            yield Path(fields[4].replace("\\040", " ")), fields[3]
    yield from ((_CGROUPS, "/"), (_CGROUPS / "unified", "/")) if unified else ((_CGROUPS / controller, "/"),)
