"""What limits leave of a machine's memory: groups of both versions, up the tree; limits of the process itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from peers.runtime import memory_limits
from peers.runtime.device import memory_budget
from swarm import cgroups

GIB = 1 << 30


class Groups:
    """Made-up cgroups, as a process finds them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root / "cgroup"
        self.own, self.mounts = root / "own", root / "mounts"
        self.root.mkdir()
        for name, path in (("_CGROUPS", self.root), ("_OWN", self.own), ("_MOUNTS", self.mounts)):
            monkeypatch.setattr(cgroups, name, path)

    def write(self, folder: str, **files: str | int) -> None:
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (path / name.replace("memory_", "memory.", 1)).write_text(f"{value}\n")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    return Groups(tmp_path, monkeypatch)


TOTAL = psutil.virtual_memory().total


def test_without_limits_it_is_the_machine(groups: Groups) -> None:
    assert memory_limits.allowed_memory() == TOTAL
    groups.own.write_text("0::/\n")
    groups.write("", memory_max="max", memory_current=5)
    assert memory_limits.allowed_memory() == TOTAL


@pytest.mark.parametrize("where", ["", "user.slice", "user.slice/job/inner"])
def test_a_limit_of_version_2_counts_wherever_it_is_set(groups: Groups, where: str) -> None:
    groups.own.write_text("0::/user.slice/job/inner\n")
    for folder in ("", "user.slice", "user.slice/job", "user.slice/job/inner"):
        groups.write(folder, memory_max="max", memory_current=0)
    groups.write(where, memory_max=GIB, memory_current=100 << 20)
    groups.write(where, **{"memory_stat": "anon 1\ninactive_file 20971520"})
    assert memory_limits.allowed_memory() == GIB - (80 << 20)


def test_memory_high_counts_too(groups: Groups) -> None:
    groups.own.write_text("0::/\n")
    groups.write("", memory_max="max", memory_high=GIB, memory_current=0)
    assert memory_limits.allowed_memory() == GIB


@pytest.mark.parametrize("where", ["memory", "memory/docker", "memory/docker/abc"])
def test_a_limit_of_version_1_counts_wherever_it_is_set(groups: Groups, where: str) -> None:
    groups.own.write_text("5:cpu,cpuacct:/other\n4:memory:/docker/abc\n0::/\n")
    for folder in ("memory", "memory/docker", "memory/docker/abc"):
        groups.write(folder, memory_limit_in_bytes=9223372036854771712, memory_usage_in_bytes=0)
    groups.write(where, memory_limit_in_bytes=GIB, memory_usage_in_bytes=1 << 20)
    assert memory_limits.allowed_memory() == GIB - (1 << 20)


def test_the_path_of_the_host_is_not_seen_in_a_container(groups: Groups) -> None:
    groups.own.write_text("4:memory:/docker/abc\n")
    groups.write("memory", memory_limit_in_bytes=GIB, memory_usage_in_bytes=0)
    assert memory_limits.allowed_memory() == GIB


def test_groups_are_found_where_they_are_mounted(groups: Groups, tmp_path: Path) -> None:
    groups.own.write_text("0::/pod/inner\n")
    mount = tmp_path / "elsewhere"
    (mount / "inner").mkdir(parents=True)
    (mount / "memory.max").write_text(f"{GIB}\n")
    groups.mounts.write_text(f"30 23 0:26 /pod {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n")
    assert memory_limits.allowed_memory() == GIB


def test_a_limit_that_is_used_up_leaves_nothing(groups: Groups) -> None:
    groups.own.write_text("0::/\n")
    groups.write("", memory_max=GIB, memory_current=2 * GIB)
    assert memory_limits.allowed_memory() == 0 == memory_budget(None, "cpu")


def test_what_the_owner_says_is_no_more_than_the_limit(groups: Groups) -> None:
    groups.own.write_text("0::/\n")
    groups.write("", memory_max=GIB, memory_current=0)
    assert memory_budget(8 * GIB, "cpu") <= GIB * 7 // 8
    assert memory_budget(100 << 20, "cpu") == 100 << 20
    assert memory_budget(None, "cpu") <= GIB // 2


def test_a_card_is_planned_with_whatever_the_host_has_free(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    groups.own.write_text("0::/\n")
    groups.write("", memory_max=GIB, memory_current=0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (24 * GIB, 24 * GIB))
    assert memory_budget(None, "cuda") == memory_budget(40 * GIB, "cuda:0") == 23 * GIB
    assert memory_budget(8 * GIB, "cuda") == 8 * GIB


def test_limits_of_the_process_count() -> None:
    program = (
        "import resource, psutil\nfrom peers.runtime.memory_limits import allowed_memory\n"
        "limit = psutil.Process().memory_info().vms + (256 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\nprint(allowed_memory())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) <= 256 << 20


@pytest.fixture
def small_group() -> Path:
    """A real group of version 1 or 2, with a limit of 1 GiB."""
    for base, name in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        folder = base / f"swarm-peer-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / name).write_text(str(GIB))
        except OSError:
            if folder.is_dir():
                folder.rmdir()
            continue
        return folder
    pytest.skip("no cgroup with a memory limit can be made here")


def test_a_real_limit_is_seen(small_group: Path) -> None:
    budget = "from peers.runtime.device import memory_budget"
    program = f"{budget}; print(memory_budget(None, 'cpu'), memory_budget(1 << 40, 'cpu'))"
    line = f'echo $$ > {small_group}/cgroup.procs && exec {sys.executable} -c "{program}"'
    try:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    finally:
        small_group.rmdir()
    half, whole = map(int, done.stdout.split())
    assert 0 < half <= GIB // 2 and half < whole < GIB
