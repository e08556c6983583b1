"""Options shared by commands."""

import os
from pathlib import Path

import pytest
import typer

from peers import cli
from peers.options import check_replaced, parse_bytes, parse_pace, parse_rate
from peers.run.run_toml import render
from swarm.compute.least_pace import LeastPace
from swarm.manifest import RunFile


def test_sizes():
    texts = ("1000000", "512MB", "1.5 GiB", "4G", "2k", "3KiB", "7b")
    assert [parse_bytes(text) for text in texts] == [10**6, 512 * 10**6, 3 * 2**29, 4 * 10**9, 2000, 3072, 7]
    for bad in ("", "MB", "-1", "1 EB", "4 GiBs", "1e3", "9" * 400):
        with pytest.raises(typer.BadParameter, match="is not a size"):
            parse_bytes(bad)


def test_rates():
    texts = ("20Mbit", "2.5MB", "800 kbit/s", "1 GB/s", "80000bit", "1.5Mbps", "9000B")
    assert [parse_rate(text) for text in texts] == [2_500_000, 2_500_000, 100_000, 10**9, 10_000, 187_500, 9000]
    for bad in ("", "20", "2.5mb", "20Mib", "-1MB", "fast", "1e3B", "MB", "9" * 400 + "MB"):
        with pytest.raises(typer.BadParameter, match="is not a rate: write for example 20Mbit"):
            parse_rate(bad)
    for little in ("0MB", "63kbit", "1bit"):
        with pytest.raises(typer.BadParameter, match="is less than 64kbit"):
            parse_rate(little)


def test_paces():
    assert parse_pace("0.1,0.25") == LeastPace(0.1, 0.25)
    for bad in ("", "1", "1,2,3", "-1,0", "0,nan", "0,1e9", "fast,slow"):
        with pytest.raises(typer.BadParameter, match="is not a pace"):
            parse_pace(bad)


def test_a_file_of_another_kind_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "RUN.toml"
    path.write_text(render(RunFile()))
    before = path.read_bytes()
    for words in (("report", "--out", path), ("coordinate", path, "--invite-file", path)):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        assert ended.value.code == 2
        said = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert "exists and is no" in said and "name another file" in said
        assert path.read_bytes() == before
    for old in ("", "<!DOCTYPE html>"):
        path.write_text(old)
        check_replaced(path, b"<!doctype html", "report", "--out")
    check_replaced(tmp_path / "none", b"<!doctype html", "report", "--out")


def test_links_and_devices_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A link would become a file of its own, with the old text where it had led; by root, even a device would."""
    real, link, pipe = tmp_path / "real.toml", tmp_path / "link.toml", tmp_path / "pipe"
    real.write_text(render(RunFile()))
    link.symlink_to(real)
    os.mkfifo(pipe)
    for path, what in ((link, f"is a link to {real}"), (pipe, "is no file"), (tmp_path, "is no file")):
        for words in (
            ("report", "--out", path),
            ("coordinate", real, "--invite-file", path),
            ("init", path, "--force"),
        ):
            with pytest.raises(SystemExit) as ended:
                cli.main([str(word) for word in words])
            assert ended.value.code == 2
            said = "".join(capsys.readouterr().err.replace("│", " ").split())
            assert what.replace(" ", "") in said
    assert link.is_symlink() and pipe.is_fifo()
