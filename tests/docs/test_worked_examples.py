"""The worked examples of the pages "Add a …" work as written: each step is done in a copy of the sources.

In a page, ```python title="PATH"``` is a new file, ```diff title="PATH"``` a change of a file that exists, a line
`.venv/bin/python …` of a ```bash``` block is run, and a ```text``` block is what the command before it prints.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("add-a-*.md"))
COPIED = ("swarm", "benchmarks", "tests", "pyproject.toml")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def changed(source: str, diff: str) -> str:
    """`source` with one hunk applied. Raises AssertionError unless its old lines are there exactly once."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    assert source.count(before) == 1, f"these lines are there {source.count(before)} times:\n{before}"
    return source.replace(before, after)


def printed_by(command: str, folder: Path) -> str:
    words = shlex.split(command)
    ran = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_step_of_the_page_works(page: Path, tmp_path: Path) -> None:
    for name in COPIED:
        source, copy = ROOT / name, tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    printed, ran = "", 0
    for language, title, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        file = tmp_path / title
        match language:
            case "python":
                assert title and not file.exists(), f"{title} exists already"
                file.write_text(body, encoding="utf-8")
            case "diff":
                file.write_text(changed(file.read_text(encoding="utf-8"), body), encoding="utf-8")
            case "bash":
                for line in body.splitlines():
                    assert line.startswith(".venv/bin/python "), line
                    printed, ran = printed_by(line, tmp_path), ran + 1
            case "text":
                assert printed == body
    assert ran, "the page runs nothing"


def test_there_are_worked_examples() -> None:
    assert [page.stem for page in PAGES] == ["add-a-codec", "add-a-model", "add-a-policy"]
