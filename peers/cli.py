"""`swarm-peer`: the command line. A command's module is imported when the command is called, so help is instant.

Exit codes: 0 done, 1 an internal error, 2 an error that the user can fix (explained in one line), 130 Ctrl-C, SIGTERM
or a closed terminal. `reference` and `demo` exit with 3 if digests differ. `coordinate` and `join` exit with 4 if the
run cannot continue, or if the coordinator stayed unreachable, `reference` if the run diverges.
"""

from __future__ import annotations

import difflib
import errno
import functools
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from peers.commands import COMMANDS, LASTING
from peers.runtime import streams
from peers.runtime.descriptors import raise_limit
from peers.runtime.semaphores import need_semaphores
from peers.runtime.signals import INTERRUPTED, ends_when_asked
from peers.runtime.temporary_folder import choose_temporary_folder

_FILES = (errno.EMFILE, errno.ENFILE)
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
_FIXES = {
    errno.ENOENT: "check the path, and that its folder exists",
    errno.EISDIR: "name a file, or move the folder away",
    errno.ENOTDIR: "a part of this path is a file; name a folder",
    errno.EACCES: "change the permissions, or name another path",
    errno.EPERM: "change the permissions, or name another path",
    errno.EEXIST: "remove it, or name another path",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.ELOOP: "a link on this path leads to itself; mend the link",
    errno.ENOSPC: "free space, or name a path on another disk",
    errno.EDQUOT: "free space, or name a path on another disk",
    errno.EROFS: "name a path on a disk that can be written",
}
"""What the user can do about an error of a path, by errno."""

_USAGE_ERROR = cast(type[Any], typer.BadParameter.__base__)
"""UsageError of click. Typer brings its own copy of click or imports it, depending on its version."""

EXIT_INTERNAL = 1
EXIT_USER = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and raise SystemExit with its exit code. peers/entry.py calls it."""
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    streams.mend()
    try:
        try:
            with ends_when_asked():
                typer.main.get_command(_app)(arguments, prog_name="swarm-peer")
        finally:
            streams.flush()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the reader has gone (`| head`): not an error
            raise SystemExit(0) from None
        raise
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        if is_user_error(error):
            _complain(_one_line(error))
            raise SystemExit(EXIT_USER) from None
        traceback.print_exc()
        _complain(f"internal error: {type(error).__name__}: {error}; please report it with the lines above")
        raise SystemExit(EXIT_INTERNAL) from None


def is_user_error(error: BaseException) -> bool:
    """True for errors that name a value and its fix: this program's own ValueErrors and ArithmeticErrors, OSErrors
    about a named path, errors of any disk, and too few file descriptors.
    """
    if isinstance(error, OSError) and (error.filename is not None or error.errno in (*_DISK, *_FILES)):
        return True
    ours = type(error).__module__.partition(".")[0] in ("swarm", "peers")
    return ours and isinstance(error, ValueError | ArithmeticError | OSError)


@contextmanager
def _short_complaints() -> Iterator[None]:
    """Shorten the message of a wrong option, which repeats the option's value."""
    try:
        yield
    except _USAGE_ERROR as error:
        from swarm.events.wording import shortened

        error.message = shortened(error.message)
        raise


class _LazyGroup(TyperGroup):
    """Lists the commands from a table. Imports a command's module only to run the command."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _short_complaints():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _short_complaints():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(name=cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1, cutoff=0.0)[0]
            ctx.fail(f"no command {args[0]!r}; the nearest one is {near!r}")
        try:
            os.getcwd()
        except FileNotFoundError:  # in such a folder, torch's mathematical library ends the process
            ctx.fail("the current folder has been deleted: change to another one, for example with `cd`")
        name, _, rest = super().resolve_command(ctx, args)
        choose_temporary_folder(required=name in LASTING)
        if name in LASTING:
            streams.outlive_reader()
            raise_limit()
            need_semaphores()
        return name, _load(str(name), rest), _with_places(rest)


def _with_places(args: Sequence[str]) -> list[str]:
    """Handle `--dashboard` without a value: insert an empty ADDRESS:PORT there, which means the default."""
    from peers.dashboard.place import is_place

    following = [*args[1:], ""][: len(args)]
    alone = [word == "--dashboard" and not is_place(after) for word, after in zip(args, following, strict=True)]
    return ["--dashboard=" if is_alone else word for word, is_alone in zip(args, alone, strict=True)]


def prepare(*names: str) -> None:
    """Import these commands and prepare their options. Processes that are forked after that parse theirs faster."""
    for name in names:
        command = _load(name)
        command.make_context(name, [], resilient_parsing=True)  # each option's parser is made when it is first used


def _load(name: str, args: Sequence[str] = ()) -> Any:
    command = importlib.import_module(f"peers.commands.{name.replace('-', '_')}").command
    return _made(name, _without_empty_paths(command) if _says_nothing(args) else command)


@functools.cache
def _made(name: str, command: Callable[..., None]) -> Any:
    single = typer.Typer(add_completion=False, rich_markup_mode="rich")
    single.command(name=name)(command)
    return typer.main.get_command(single)


def _says_nothing(args: Sequence[str]) -> bool:
    """True if an argument or the value of an option is empty, as with `--home "$UNSET"`, and none is a plain dot."""
    values = [word.partition("=")[2] if word.startswith("--") and "=" in word else word for word in args]
    return "" in values and "." not in values


def _without_empty_paths(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which then refuses an empty path: it would mean the current folder."""

    @functools.wraps(command)
    def checked(**values: Any) -> None:
        for name, value in values.items():
            if Path() in (value if isinstance(value, list) else [value]):
                raise typer.BadParameter("the path is empty: name a path, or . for this folder", param_hint=name)
        command(**values)

    return checked


_app = typer.Typer(cls=_LazyGroup, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


def _print_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(importlib.metadata.version("swarm-peer"))
        raise typer.Exit


@_app.callback(
    epilog="Exit codes: 0 done, 1 an internal error or a check that failed, 2 something you can fix, 3 digests differ, "
    "4 the run cannot continue or its coordinator stayed away, 130 Ctrl-C, SIGTERM or a closed terminal."
)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train a large model together, over ordinary internet links, with the result of one machine."""


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in _FILES:
        return "too many open files: raise the limit with `ulimit -n 4096`, or end other programs"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}{_fix(error)}"
    if isinstance(error, OSError) and error.errno in _DISK:
        return f"the disk: {error.strerror}{_fix(error)}"
    return " ".join(str(error).split())


def _fix(error: OSError) -> str:
    fix = _FIXES.get(error.errno or 0)
    return f"; {fix}" if fix else ""


def _complain(message: str) -> None:
    from swarm.events.wording import printable, shortened

    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{red}error: {shortened(printable(message))}{plain}", file=sys.stderr)
