"""`swarm-peer prepare`: turns text into a tokenizer and hashed token shards, or images into hashed shards."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from peers.options import Json
from swarm.events.wording import amount, printable
from swarm.manifest import DataSection, ManifestError

if TYPE_CHECKING:
    from swarm.data.images import Images
    from swarm.data.prepare import Sight

_SHOWN = 100
_MUCH = 0.01


def command(
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", "-i", help="Text, JSON (lines), CSV, TSV, Parquet, or a folder; may be repeated."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="PATTERN", help="Leave out files of a folder, such as '*.csv'; may be repeated."
        ),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(
            "--field",
            "--column",
            help="Where the text is: a field of JSON objects, or a column of a table.  [default: text]",
        ),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab-size", min=257, max=1 << 24, help="Number of tokens of the tokenizer to train.  [default: 4096]"
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Use this tokenizer.json instead of training one.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "--end-of-text",
            metavar="TOKEN",
            help="The token of --tokenizer that ends a text. Default: from the model's files beside it.",
        ),
    ] = None,
    special_tokens: Annotated[
        bool,
        typer.Option(
            "--special-tokens",
            help="Encode names of special tokens of --tokenizer within texts, such as <|im_start|>, as these tokens. "
            "Only for texts that you trust.",
        ),
    ] = False,
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            metavar="FILE.csv|digits",
            help="Images instead of text: a CSV file, each line the levels of an image and its class; or digits, "
            "from scikit-learn.",
        ),
    ] = None,
    heldout: Annotated[
        float | None,
        typer.Option(
            "--heldout",
            help="Fraction of the input to hold out for evaluation.  [default: 0.02 of documents, 0.2 of images]",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write, as data.directory in RUN.toml.")] = Path(
        "data"
    ),
    name: Annotated[str, typer.Option("--name", help="Name of the corpus. Default: from the input.")] = "",
    licence: Annotated[str, typer.Option("--licence", help="Licence of the text, to be shown with the run.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace another corpus that is already in --out.")] = False,
    as_json: Json = False,
) -> None:
    """Turn text into a tokenizer and hashed token shards, or images into shards.

    Without --input: the leads of 10,033 English Wikipedia articles (CC BY-SA 4.0), which come with the installation.
    """
    from peers.runtime.signals import treat_all_as_ctrl_c
    from swarm.data import digits, open_source, prepare, prepare_images, read_images, wikipedia_leads

    reading = {"--field": field, "--exclude": exclude}
    of_model = {"--end-of-text": end, "--special-tokens": special_tokens}
    text = {**reading, **of_model, "--vocab-size": vocab_size, "--input": inputs, "--tokenizer": tokenizer}
    told = {"--name": name, "--licence": licence}
    if images is not None:
        _refuse(f"--images {images}: images have no text options", text)
        if images == "digits":
            _refuse("--images digits: their name and licence are known", told)
    elif not inputs:
        _refuse("without --input, the text is the one of the installation", {**reading, **told})
    if tokenizer is None:
        _refuse("a tokenizer that is trained here has no special tokens but its own end of text", of_model)
    else:
        _refuse(f"--tokenizer {tokenizer} is used as it is", {"--vocab-size": vocab_size})

    treat_all_as_ctrl_c()  # so that unfinished files are removed
    if images is not None:
        found = digits() if images == "digits" else read_images(Path(images), name, licence)
        section = prepare_images(found, out, heldout_fraction=0.2 if heldout is None else heldout, force=force)
        _report(section, out, as_json, images=found)
        return
    if inputs:
        source = open_source(inputs, field=field or "text", name=name, licence=licence, exclude=exclude or ())
    else:
        source = wikipedia_leads()
    sights: list[Sight] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        section = prepare(
            source,
            out,
            vocab_size=vocab_size or 4096,
            tokenizer=tokenizer,
            end=end,
            special_tokens=special_tokens,
            heldout_fraction=0.02 if heldout is None else heldout,
            force=force,
            on_sight=sights.append,
            on_progress=lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        )
    _report(section, out, as_json, sights[0], source.passed_over)
    if tokenizer is not None and sights[0].named_special:  # one that is trained here has no option for it
        _warn_of_names(sights[0])


def _refuse(why: str, options: Mapping[str, object]) -> None:
    """Refuse options that have no meaning for this kind of input, if they were given."""
    given = [option for option, value in options.items() if value]
    if given:
        raise ManifestError(f"{why}: drop {' and '.join(given)}")


def _report(
    section: DataSection,
    out: Path,
    as_json: bool,
    sight: Sight | None = None,
    passed_over: Sequence[Path] = (),
    images: Images | None = None,
) -> None:
    if as_json:
        seen: dict[str, object] = {}
        if sight is not None:
            seen = {"sight": asdict(sight), "passed_over": [str(path) for path in passed_over]}
        if images is not None:
            seen = {"classes_without_images": images.absent, "class_seems_first": images.class_seems_first}
        print(json.dumps({"directory": str(out), **section.model_dump(mode="json"), **seen}))
    elif images is not None:
        _show_images(section, out, images)
    else:
        assert sight is not None
        _show(section, out, sight, passed_over)


def _show_losses(sight: Sight) -> None:
    print(f"  unknown tokens: {_percent(sight.unknown)}")
    if sight.lost:
        examples = ", ".join(map(repr, sight.lost_characters))
        print(
            f"  {_percent(sight.lost)} of the characters are lost or changed by this tokenizer, most often {examples}"
        )
    if sight.unknown >= _MUCH or sight.lost >= _MUCH:
        print("  is this the right tokenizer for this text? Without --tokenizer, `prepare` trains one for this text")


def _warn_of_names(sight: Sight) -> None:
    print(
        f"warning: {sight.named_special:,} of {sight.documents:,} documents contain names of special tokens, such as "
        f"{printable(sight.special_name)!r}. They are encoded as plain characters. For chats or other texts that mean "
        "the tokens, prepare again with --special-tokens, if you trust the text",
        file=sys.stderr,
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %" if not 0 < fraction < 1e-4 else "less than 0.01 %"


def _show_images(section: DataSection, out: Path, images: Images) -> None:
    row = section.pixels + 1
    train, heldout = (sum(shard.tokens for shard in split) // row for split in (section.train, section.heldout))
    print(f"corpus {printable(section.name)} in {printable(str(out))}")
    print(f"  {train:,} training and {heldout:,} held-out images of {section.pixels} pixels, {section.classes} classes")
    if absent := images.absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        print(f"  no image has class {absent[0]}{more}: classes count from 0, and are the last number of each line")
    if images.class_seems_first:
        print("  is the class the last number of each line? The first numbers look like classes")
    print(f"  entropy of the classes {section.unigram_entropy:.4f} nats per image: a model must get below it")
    print(f"  licence: {printable(section.licence) or 'not stated (--licence)'}")
    print("next: swarm-peer init --preset digits, then swarm-peer coordinate RUN.toml --dry-run")


def _show(section: DataSection, out: Path, sight: Sight, passed_over: Sequence[Path]) -> None:
    train, heldout = (sum(shard.tokens for shard in split) for split in (section.train, section.heldout))
    size = (train + heldout) * (2 if section.dtype == "uint16" else 4)
    print(f"corpus {printable(section.name)} in {printable(str(out))}")
    print(f"  {sight.documents:,} documents; the first line to be trained on: {printable(sight.first_line)[:_SHOWN]!r}")
    _show_losses(sight)
    if passed_over:
        kinds = Counter(path.suffix or path.name for path in passed_over)
        told = ", ".join(f"{count} {printable(kind)}" for kind, count in kinds.most_common(8))
        print(f"  ignored, because such files hold no text: {told}")
    print(f"  {train:,} training and {heldout:,} held-out tokens, {amount(size)}")
    print(f"  tokenizer of {section.vocab_size:,} tokens, {section.bytes_per_token:.2f} bytes per token")
    print(f"  unigram entropy {section.unigram_entropy:.4f} nats per token: a model must get below it")
    print(f"  tokenizer SHA-256 {section.tokenizer_sha256}")
    print(f"  licence: {printable(section.licence) or 'not stated (--licence)'}")
    print("next: swarm-peer coordinate RUN.toml --dry-run, then without --dry-run")
