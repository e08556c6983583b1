"""The documents agree with the code: generated pages are current, commands and options that are named exist."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from peers.cli import _load
from peers.commands import COMMANDS
from swarm.events import kinds

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "deploy/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def generator():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["run-file.md", "events.md"])
def test_generated_pages_are_current(name: str):
    current = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert generator().PAGES[name]() == current, "run `python docs/generate.py`"


def test_every_kind_of_event_has_a_meaning():
    for name, kind in kinds().items():
        assert kind.__doc__ and not kind.__doc__.startswith(f"{name}("), name  # else dataclasses makes one up
        assert "sentence" in vars(kind), name


def test_the_page_of_commands_lists_every_command():
    table = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z]+)", table, re.MULTILINE)) == set(COMMANDS)


def commands_in(page: Path) -> list[str]:
    """Lines that begin with swarm-peer inside a page's code blocks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if re.match(r"(\.venv/bin/)?swarm-peer ", line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_in_the_documents_exist(page: Path):
    for line in commands_in(page):
        _, name, *arguments = shlex.split(line, comments=True)
        command = typer.main.get_command(_load(name)) if isinstance(_load(name), typer.Typer) else _load(name)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for argument in arguments:
            if argument.startswith("-"):
                assert argument.partition("=")[0] in known | {"--help"}, line


def anchors_of(page: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page: Path):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors_of(file), f"{page.name} links to {target}#{anchor}"


FOLDERS = ("swarm", "peers", "tests", "benchmarks", "proto", "docs")
FILES = {path.name for places in (ROOT.iterdir(), *((ROOT / name).rglob("*") for name in FOLDERS)) for path in places}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    for place in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`", text):
        assert (ROOT / place).exists(), f"{page.name} names {place}"
    for name in set(re.findall(r"`([\w-]+\.(?:py|toml))`", text)) - {"RUN.toml"}:
        assert name in FILES, f"{page.name} names {name}"
    for module in re.findall(r"python -m benchmarks\.(\w+)", text):
        places = (ROOT / "benchmarks" / f"{module}.py", ROOT / "benchmarks" / module / "__main__.py")
        assert any(place.exists() for place in places), f"{page.name} names benchmarks.{module}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_list_begins_after_an_empty_line(page: Path):
    """The site joins a list to the paragraph before it otherwise; GitHub does not."""
    item = re.compile(r"(\* |\d+\. )")
    lines = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL).splitlines()
    inside = False
    for before, line in zip(["", *lines], lines, strict=False):
        if item.match(line) and not inside:
            assert not before or before.startswith("#"), f"{page.name}: {line}"
        inside = bool(item.match(line) or (inside and (not line or line.startswith(" ") or before)))


def test_every_page_is_in_the_navigation_and_the_index():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert f": {page.name}\n" in navigation, page.name
        assert page.stem == "index" or f"({page.name}" in index, page.name


def test_the_set_up_is_two_lines_at_line_start():
    lines = [line for line in README.splitlines() if ".venv/bin/pip install" in line]
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("(python3 -m venv .venv"), "pasteable at line start"
        assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0
    assert lines[0].endswith(".venv/bin/swarm-peer demo")
    assert ".venv/bin/python -m pytest" in lines[1]


def test_ci_runs_the_test_command_of_the_readme():
    printed = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run"), "--print-test-command"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert printed in README.splitlines()
    assert ".venv/bin/python -m pytest" in printed


def test_python_of_the_documents_is_that_of_the_metadata():
    assert "3.11" in README and sys.version_info >= (3, 11)


def quoted_texts() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)


ELSEWHERE = {"ensurepip is not available"}


@pytest.mark.parametrize("text", sorted(set(quoted_texts()) - ELSEWHERE))
def test_texts_of_the_troubleshooting_page_are_those_of_the_code(text: str):
    """Every part between the dots is found in one source line of the programs, formatted or not."""
    parts = [part.strip(" ,;:") for part in text.split("…")]
    for part in filter(None, parts):
        assert part in SOURCES, part


# literal strings of one statement are joined, so that a text may run over two source lines
SOURCES = re.sub(
    r"\{[^{}]*\}",
    "",
    re.sub(
        r'"\s*\n\s*f?"',
        "",
        "\n".join(
            path.read_text(encoding="utf-8") for folder in ("peers", "swarm") for path in (ROOT / folder).rglob("*.py")
        ),
    ),
)
