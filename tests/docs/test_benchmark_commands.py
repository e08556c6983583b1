"""Commands of benchmarks that pages, docstrings and results quote: each module is there and has these options."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
OLD = {"gpu_pipeline_h200.json"}
"""Results of a script that is no longer here. docs/gpu.md says so."""
QUOTING = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(BENCHMARKS.rglob("*.py")),
    *(file for file in sorted((BENCHMARKS / "results").glob("*.json")) if file.name not in OLD),
]


def commands(text: str) -> list[tuple[str, str]]:
    """(module, words after it) of each command. A command ends with its quotes, or before an empty line."""
    joined = re.sub(r"\\\n|\n +(?=\[?-)", " ", text)
    return re.findall(r'python -m benchmarks\.(\w+)([^\n`]*?)(?="[,\n]|[`\n]|\Z)', joined)


def options(module: str) -> set[str]:
    places = [place for place in (BENCHMARKS / f"{module}.py", BENCHMARKS / module / "__main__.py") if place.exists()]
    assert places, f"there is no benchmarks.{module}"
    return set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', places[0].read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", QUOTING, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_options_of_quoted_commands_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"python\s+benchmarks/", text), "run by its path, it imports profile.py from benchmarks"
    for module, words in commands(text):
        unknown = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", words)) - options(module)
        assert not unknown, f"benchmarks.{module} has no {', '.join(sorted(unknown))}"


def test_commands_over_several_lines_and_in_results_are_found_whole() -> None:
    page = "`python -m benchmarks.codecs --rounds 9`; and\n    python -m benchmarks.update [--threads 1]\n"
    page += "        [--device cpu]\n"
    shell = '```bash\npython -m benchmarks.time_to_loss table --recorded F \\\n  --rows "a;b" --docs docs\n```\n'
    result = '{\n "command": "python -m benchmarks.audits --out x",\n "more": "--nothing"\n}'
    assert [module for module, _ in commands(page + shell + result)] == ["codecs", "update", "time_to_loss", "audits"]
    words = [set(re.findall(r"--[a-z]+", told)) for _, told in commands(page + shell + result)]
    assert words == [{"--rounds"}, {"--threads", "--device"}, {"--recorded", "--rows", "--docs"}, {"--out"}]
