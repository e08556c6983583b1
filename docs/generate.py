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
        "This file describes a run. `swarm-peer init` writes it with every key and its meaning. `swarm-peer coordinate",
        "--dry-run` shows the result: manifest, run hash, memory and bytes per link. A key that is left out has its",
        "default. An unknown key is an error that names the nearest known key. `--set table.key=value` overrides a key",
        "for one call. The run hash covers every key except `data.directory` and `initial.directory`, so give the same",
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
        "Each process appends its events to `events.jsonl` in its home: one JSON object per line, with `at` (Unix",
        "seconds), `kind` and the fields below. `swarm-peer events HOME` prints them as sentences. `--follow` prints",
        "new events as they come, `--kind` selects kinds, `--json` prints the objects unchanged. A long log has older",
        "parts beside it, `events-DAY-NUMBER.jsonl`, which all commands read too.",
        "",
        "An actor is written as the last six characters of its peer id, a dot, and its incarnation. A pass is written",
        "as `term:step`; `+1`, `+2`, … mark evaluations and samples after that step. A reduce is `pass/sSTAGEnTABLE`.",
        "Steps, stages and microbatches count from 0 in the names of passes, in fields and in JSON.",
        "In sentences, steps count from 1. A version is a number of applied steps.",
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
