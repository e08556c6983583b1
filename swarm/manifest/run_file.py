"""RUN.toml: the description of a run that the organiser writes."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError, model_validator

from swarm.manifest.data import DataSection, InitialSection
from swarm.manifest.run_manifest import MAX_MANIFEST_BYTES, RunManifest, check_importable
from swarm.manifest.section import ManifestError, MaybeSha256, Section, explain, shown
from swarm.manifest.tables import (
    Tables,
)


class RunFile(Tables):
    """The content of RUN.toml. The run hash does not cover the directories, which are local."""

    class Data(Section):
        directory: str = "data"

    class Initial(Section):
        sha256: MaybeSha256 = ""
        directory: str = "parameters"

    data: Data = Data()
    initial: Initial = Initial()

    @model_validator(mode="after")
    def _initial_fits(self) -> Self:
        check_importable(self.model, self.initial.sha256)
        return self

    def resolve(self, corpus: DataSection, digests: tuple[str, ...] = ()) -> RunManifest:
        """The manifest of this run over a prepared corpus. Raises ManifestError.

        `digests`: state digests of version 0 by stage, if `initial` names imported parameters.
        """
        tables = {name: getattr(self, name) for name in Tables.model_fields}
        try:
            initial = InitialSection(sha256=self.initial.sha256, digests=digests)
            found = RunManifest(**tables, subspace_id=self.model.subspace_id, data=corpus, initial=initial)
        except ValidationError as error:
            raise ManifestError(explain(error)) from None
        if (nbytes := len(found.canonical())) > MAX_MANIFEST_BYTES:
            raise ManifestError(
                f"the manifest of this run has {nbytes:,} bytes, and no peer reads one of more than "
                f"{MAX_MANIFEST_BYTES:,}: give the corpus a shorter name and licence, or fewer files"
            )
        return found


_MAX_BYTES = 1 << 20
_MOST_DIGITS = 4300
"""Python refuses to read longer numbers."""
_LONG_NUMBER = re.compile(rf"[0-9_]{{{_MOST_DIGITS + 1},}}")
_HAS_LONG_NUMBER = f"contains a number of more than {_MOST_DIGITS:,} digits: write a smaller one"


def load_run_file(path: Path, overrides: Iterable[str] = ()) -> RunFile:
    """Read RUN.toml and apply `a.b=c` overrides (values in TOML syntax, or bare strings). Raises ManifestError."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise ManifestError(f"{path} has more than {_MAX_BYTES:,} bytes, so it is no run file: name the right one")
        text = raw.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except FileNotFoundError:
        raise ManifestError(f"no run file {path}: make one with `swarm-peer init {path}`") from None
    except IsADirectoryError:
        raise ManifestError(f"{path} is a folder: name the run file in it, such as {path / 'RUN.toml'}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ManifestError(f"{path} is not UTF-8 text (line {line}): save it with the encoding UTF-8") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ManifestError(f"{path} is not valid TOML: it nests values too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path} is not valid TOML: {error}{_line_of(error, text)}") from None
    except ValueError:  # of Python's int()
        line = next((at for at, line in enumerate(text.split("\n"), 1) if _LONG_NUMBER.search(line)), 0)
        raise ManifestError(f"{path} is not valid TOML: line {line} {_HAS_LONG_NUMBER}") from None
    return read_run_tree(tree, str(path), overrides)


def _line_of(error: tomllib.TOMLDecodeError, text: str) -> str:
    """The line that an error of the TOML parser names, for its message: the parser itself names no key."""
    found = re.search(r"\(at line (\d+),", str(error))
    lines = text.split("\n")
    line = lines[int(found[1]) - 1].strip() if found and int(found[1]) <= len(lines) else ""
    return f": {shown(line)}" if line else ""


def read_run_tree(tree: dict[str, Any], where: str, overrides: Iterable[str] = ()) -> RunFile:
    """Make the run file from nested tables and `overrides`. `where`: its name in error messages. Raises
    ManifestError.
    """
    apply_overrides(tree, overrides)
    _reject_unknown_keys(tree, RunFile, where)
    try:
        return RunFile.model_validate(tree)
    except ValidationError as error:
        raise ManifestError(f"{where}: {explain(error)}") from None


def apply_overrides(tree: dict[str, Any], overrides: Iterable[str]) -> None:
    """Apply overrides of the form `a.b=c` to nested tables. Raises ManifestError."""
    for override in overrides:
        _override(tree, override)


def _override(tree: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    keys = name.strip().split(".")
    if not separator or len(keys) != 2 or not all(keys):
        raise ManifestError(f"--set {shown(repr(override))}: expected table.key=value, such as --set run.steps=100")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
        alone = _is_alone(text.strip())
    except (tomllib.TOMLDecodeError, RecursionError):
        value, alone = text, True  # not stripped: a prompt may end in a space
    except ValueError:  # of Python's int()
        raise ManifestError(f"--set {shown(repr(override))} {_HAS_LONG_NUMBER}") from None
    if not alone:
        raise ManifestError(
            f"--set {shown(repr(override))} has a comment or further lines after its value {shown(repr(value))}: leave "
            "them out, and give each key its own --set. If they belong to a text, put all of it in quotes, such as "
            "--set 'evaluation.prompt=\"5 # more\"'"
        )
    table = tree.setdefault(keys[0], {})
    if not isinstance(table, dict):
        raise ManifestError(f"--set {shown(repr(override))}: {keys[0]} is not a table")
    table[keys[1]] = value


def _is_alone(text: str) -> bool:
    """Whether a text that begins with a TOML value ends with it. A comment would hide the ], and a further key is no
    item of a list.
    """
    try:
        tomllib.loads(f"value = [{text}]")
    except tomllib.TOMLDecodeError:
        return False
    return True


def _reject_unknown_keys(tree: Mapping[str, Any], model: type[BaseModel], where: str, prefix: str = "") -> None:
    for key, value in tree.items():
        field = model.model_fields.get(key)
        if field is None:
            raise ManifestError(f"{where}: unknown key {prefix}{key[:_KEY_SHOWN]}; {_nearest(key, model, prefix)}")
        inner = field.annotation
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, BaseModel):
            _reject_unknown_keys(value, inner, where, f"{prefix}{key}.")


_KEY_SHOWN = 80


def _nearest(key: str, model: type[BaseModel], prefix: str) -> str:
    """What an unknown key was probably meant to be, in words."""
    tables = {name: field.annotation for name, field in RunFile.model_fields.items()}
    for name, table in tables.items():
        if isinstance(table, type) and issubclass(table, BaseModel) and key in table.model_fields:
            return f"{key} belongs to the table [{name}]"
    near = difflib.get_close_matches(key[:_KEY_SHOWN].lower(), model.model_fields, n=1, cutoff=0.0)
    return f"the nearest known key is {prefix}{near[0]}"
