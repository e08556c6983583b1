"""Writes docs/run-file.md and docs/events.md from the code they describe: `python docs/generate.py`.

A test holds the files to what this writes, so that they cannot go stale.
"""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any, get_type_hints

from peers.run.run_toml import MEANINGS, TABLES
from swarm.events import kinds
from swarm.manifest import RunFile

HERE = Path(__file__).parent


def run_file() -> str:
    lines = [
        "# RUN.toml",
        "",
        "<!-- Written by docs/generate.py. Do not edit. -->",
        "",
        "A run is a file. `swarm-peer init` writes one with every key and its meaning; `swarm-peer coordinate",
        "--dry-run` shows what it comes to: manifest, run hash, memory and bytes per link. Keys that are left out have",
        "the default. Unknown keys are errors that name the nearest known one. `--set table.key=value` overrides a key",
        "for one call; since the run hash covers every key but `data.directory` and `initial.directory`, give the same",
        "overrides to `coordinate` and `reference`.",
    ]
    for table, section in RunFile().model_dump(mode="json").items():
        lines += ["", f"## [{table}]", "", TABLES[table], "", "| key | default | meaning |", "|---|---|---|"]
        lines += [f"| `{key}` | `{_toml(value)}` | {MEANINGS[f'{table}.{key}']} |" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def events() -> str:
    lines = [
        "# Events",
        "",
        "<!-- Written by docs/generate.py. Do not edit. -->",
        "",
        "Each process appends every fact worth knowing to `events.jsonl` in its home: one JSON object a line, with",
        "`at` (Unix seconds), `kind` and the fields below. `swarm-peer events HOME` reads them as sentences,",
        "`--follow` as they come, `--kind` picks some, `--json` leaves them as they are.",
        "",
        "An actor is written as the last six characters of its peer id, a dot, and its incarnation; a pass as",
        "`term:step`, with `+1`, `+2`, … for evaluations and samples after that step; a reduce as `pass/sSTAGEnTABLE`.",
        "In names of passes, fields and JSON, steps, stages and microbatches count from 0; in sentences steps from 1.",
        "A version is a number of applied steps.",
        "",
        "| kind | fields | meaning |",
        "|---|---|---|",
    ]
    for cls in kinds().values():
        hints = get_type_hints(cls)
        fields = ", ".join(f"`{field.name}` {_type(hints[field.name])}" for field in dataclasses.fields(cls))
        meaning = " ".join((cls.__doc__ or "").split())
        lines.append(f"| `{cls.__name__}` | {fields} | {meaning} |")
    return "\n".join(lines) + "\n"


PAGES = {"run-file.md": run_file, "events.md": events}


def _type(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join("null" if part is type(None) else _type(part) for part in hint.__args__)
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    if hint in names:
        return names[hint]
    inner = [_type(part) for part in hint.__args__]
    return f"list of {inner[0]}" if hint.__origin__ is list else f"{inner[0]} to {inner[1]}"


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).replace("True", "true").replace("False", "false")


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
