"""The cores that a process may use: those that it may run on, or the quota of a group in either version."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm import cgroups, cores

VISIBLE = 8


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up cgroups of a machine with eight cores. The process is in group /a/b of both versions."""
    for name in ("_CGROUPS", "_OWN", "_MOUNTS"):
        monkeypatch.setattr(cgroups, name, tmp_path / name)
    (tmp_path / "_OWN").write_text("3:cpuset:/\n2:cpu,cpuacct:/a/b\n0::/a/b\n")
    monkeypatch.setattr(cores, "visible_cores", lambda: set(range(VISIBLE)))
    return tmp_path / "_CGROUPS"


def write(folder: Path, **values: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("cpu_", "cpu.", 1)).write_text(f"{value}\n")


def test_without_a_quota_all_visible_cores_are_usable(root: Path) -> None:
    assert cores.usable_cores() == VISIBLE and cores.quota() is None
    write(root, cpu_max="max 100000")
    write(root / "cpu", cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000")
    write(root / "a/b", cpu_max="max 100000")
    assert cores.usable_cores() == VISIBLE and cores.quota() is None


@pytest.mark.parametrize("where", ["a", "a/b"])
def test_a_quota_of_version_2_counts_wherever_it_is_set(root: Path, where: str) -> None:
    write(root, cpu_max="max 100000")
    write(root / where, cpu_max="50000 100000")
    assert cores.quota() == cores.Quota(0.5, root / where)
    write(root / "a", cpu_max="20000 100000")
    assert cores.usable_cores() == 0.2, "the smallest one applies"


@pytest.mark.parametrize("where", ["cpu", "cpu/a/b"])
def test_a_quota_of_version_1_counts_wherever_it_is_set(root: Path, where: str) -> None:
    write(root / where, cpu_cfs_quota_us="250000", cpu_cfs_period_us="100000")
    assert cores.quota() == cores.Quota(2.5, root / where)


def test_a_quota_above_the_machine_limits_nothing(root: Path) -> None:
    write(root / "a/b", cpu_max="6400000 100000")
    assert cores.usable_cores() == VISIBLE and cores.quota() is None


@pytest.mark.parametrize("text", ["", "max", "0 100000", "50000 0", "50000", "x y", "-1 100000"])
def test_what_cannot_be_a_quota_limits_nothing(root: Path, text: str) -> None:
    write(root / "a/b", cpu_max=text)
    assert cores.usable_cores() == VISIBLE
