"""The format of a text file, recognised by its name and its first bytes. Other files are refused with advice.

If another file were read as plain text, a model would be trained on its syntax: JSON keys, tags, or the bytes of an
archive. So the name of a file tells its format, and its content must not contradict the name.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, cast

from swarm.data.corpus_error import CorpusError
from swarm.data.lfs_pointer import pointer_advice

TEXT = (".txt", ".text", ".md", ".markdown", ".rst")
JSON_LINES = (".jsonl", ".ndjson", ".jsonlines")
JSON = (".json",)
TABLES = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
PACKED: dict[str, Callable[[Path, Literal["rb"]], Any]] = {
    ".gz": gzip.open,
    ".gzip": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".lzma": lzma.open,
}
READ = (*TEXT, *JSON_LINES, *JSON, *TABLES, *PARQUET)
"""Suffixes of supported formats. All except Parquet may be compressed, with a suffix of PACKED at the end."""

_TAGS = "its tags would be trained on: take the text out first, such as with `pandoc -t plain`"
_ZSTANDARD = "it is compressed with Zstandard: `zstd -d FILE` unpacks it"
REFUSED = {
    ".zst": _ZSTANDARD,
    ".zstd": _ZSTANDARD,
    ".lz4": "it is compressed: `lz4 -d FILE` unpacks it",
    ".br": "it is compressed: `brotli -d FILE` unpacks it",
    ".zip": "it is an archive: `unzip FILE -d FOLDER`, and name the folder",
    ".7z": "it is an archive: unpack it, and name the folder",
    ".rar": "it is an archive: unpack it, and name the folder",
    ".tar": "it is an archive: `tar xf FILE -C FOLDER`, and name the folder",
    ".tgz": "it is an archive: `tar xf FILE -C FOLDER`, and name the folder",
    ".html": _TAGS,
    ".htm": _TAGS,
    ".xhtml": _TAGS,
    ".xml": _TAGS,
    ".warc": "it contains web pages in HTTP form: extract the text first",
    ".wet": "it contains records of a web crawl: extract the text first",
    ".pdf": "take the text out first, such as with `pdftotext FILE`",
    ".ps": "take the text out first",
    ".doc": "save it as plain text first",
    ".docx": "save it as plain text first, such as with `pandoc -t plain`",
    ".odt": "save it as plain text first, such as with `pandoc -t plain`",
    ".rtf": "save it as plain text first",
    ".epub": "save it as plain text first, such as with `pandoc -t plain`",
    ".mobi": "save it as plain text first",
    ".tex": "its commands would be trained on: take the text out first, such as with `pandoc -t plain`",
    ".srt": "its times would be trained on: take the text out first",
    ".vtt": "its times would be trained on: take the text out first",
    ".sql": "its commands would be trained on: write the texts as JSON lines",
    ".ipynb": "it is a notebook: save its text first, such as with `jupyter nbconvert --to markdown`",
    ".yaml": "its syntax would be trained on: write the texts as JSON lines",
    ".yml": "its syntax would be trained on: write the texts as JSON lines",
    ".toml": "its syntax would be trained on: write the texts as JSON lines",
    ".xls": "it is a spreadsheet: save it as CSV first",
    ".xlsx": "it is a spreadsheet: save it as CSV first",
    ".ods": "it is a spreadsheet: save it as CSV first",
    ".arrow": "it is an Arrow table: save it as Parquet or JSON lines first",
    ".feather": "it is an Arrow table: save it as Parquet or JSON lines first",
    ".avro": "save it as Parquet or JSON lines first",
    ".orc": "save it as Parquet or JSON lines first",
    ".sqlite": "it is a database: write the texts as JSON lines first",
    ".db": "it is a database: write the texts as JSON lines first",
    ".npy": "it holds numbers: `prepare` takes texts",
    ".npz": "it holds numbers: `prepare` takes texts",
    ".bin": "it holds bytes that are not text",
    ".pkl": "it is a pickle, which can run code and is never opened",
    ".pickle": "it is a pickle, which can run code and is never opened",
    ".pt": "it holds weights: `swarm-peer import` takes models",
    ".safetensors": "it holds weights: `swarm-peer import` takes models",
    ".gguf": "it holds a model: `swarm-peer import` takes those",
}
"""{suffix of a format that may contain text but is not supported: what to do}"""

_INCIDENTAL = frozenset(
    (".yaml", ".yml", ".toml", ".sql", ".db", ".npy", ".npz", ".bin", ".pkl", ".pickle", ".pt", ".safetensors", ".gguf")
)
"""Suffixes in REFUSED that are common in folders with texts; such files in a folder are ignored."""

_MAGIC = (
    (b"\x28\xb5\x2f\xfd", REFUSED[".zst"]),
    (b"\x04\x22\x4d\x18", REFUSED[".lz4"]),
    (b"PK\x03\x04", "it is a ZIP archive, or a document in one: unpack it, or save it as plain text"),
    (b"7z\xbc\xaf\x27\x1c", REFUSED[".7z"]),
    (b"Rar!", REFUSED[".rar"]),
    (b"%PDF-", REFUSED[".pdf"]),
    (b"%!PS", REFUSED[".ps"]),
    (b"{\\rtf", REFUSED[".rtf"]),
    (b"\xd0\xcf\x11\xe0", REFUSED[".doc"]),
    (b"SQLite format 3", REFUSED[".sqlite"]),
    (b"ARROW1", REFUSED[".arrow"]),
    (b"Obj\x01", REFUSED[".avro"]),
    (b"GGUF", REFUSED[".gguf"]),
    (b"\x93NUMPY", REFUSED[".npy"]),
    (b"WARC/", REFUSED[".warc"]),
    (b"\x89PNG", "it is a picture"),
    (b"\xff\xd8\xff", "it is a picture"),
    (b"GIF8", "it is a picture"),
    (b"\x7fELF", "it is a program"),
    (b"\xff\xfe\0\0", "it is UTF-32: `iconv -f UTF-32 -t UTF-8 FILE` converts it"),
    (b"\0\0\xfe\xff", "it is UTF-32: `iconv -f UTF-32 -t UTF-8 FILE` converts it"),
    (b"\x1f\x9d", "it is compressed: `uncompress FILE` unpacks it"),
    (b"\xff\xfe", "it is UTF-16: `iconv -f UTF-16 -t UTF-8 FILE` converts it"),
    (b"\xfe\xff", "it is UTF-16: `iconv -f UTF-16 -t UTF-8 FILE` converts it"),
)
_PACKED_MAGIC = ((b"\x1f\x8b", ".gz"), (b"BZh", ".bz2"), (b"\xfd7zXZ\x00", ".xz"))
_LZMA_ALONE = b"\x5d\0\0"
"""How a file of the older format begins, as `xz --format=lzma` writes it. Other files may begin like this too."""
_PARQUET_MAGIC = b"PAR1"
_TAR_AT = 257
_LOOK = 1 << 16
_JSON_LINES_SEEN = 3
_MARKUP = ("<!doctype html", "<html", "<?xml", "<mediawiki", "<svg", "<doc ")
"""How a page, an XML file or a WikiExtractor file begins, in lower case."""


def kind_of(path: Path) -> str:
    """The suffix in READ of a file's format, without a suffix of compression; ".txt" for an unknown suffix.

    Raises CorpusError naming the file and what to do.
    """
    packed, kind = _by_name(path)
    with path.open("rb") as file:
        start = file.read(_LOOK)
    if advice := pointer_advice(start):
        raise CorpusError(f"{path}: {advice}")
    found = next((suffix for magic, suffix in _PACKED_MAGIC if start.startswith(magic)), None)
    if packed == ".lzma" and start.startswith(_LZMA_ALONE):
        found = packed
    if (found is not None) != (packed is not None):
        if found is not None:
            raise CorpusError(f"{path} is compressed, but its suffix is missing: rename it to {path.name}{found}")
        raise CorpusError(f"{path} is named like a compressed file, but is not compressed: rename it to {path.stem}")
    if packed is not None:
        with opened(path) as inner:
            start = inner.read(_LOOK)
    if start.startswith(_PARQUET_MAGIC) != (kind in PARQUET):
        is_it = "is a Parquet file, but its name does not end in .parquet: rename it to" if kind not in PARQUET else ""
        raise CorpusError(f"{path} {is_it} {path.stem}.parquet" if is_it else f"{path} is not a Parquet file")
    if kind in PARQUET:
        return kind
    _refuse_foreign(path, start)
    if kind in TEXT:
        _refuse_markup_and_json(path, start.decode("utf-8", errors="replace"))
    return kind


def is_taken(path: Path) -> bool:
    """Whether a file in a folder must be read or refused. Other files are ignored."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    last = suffixes[-1] if suffixes else ""
    return last in PACKED or last in READ or (last in REFUSED and last not in _INCIDENTAL)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed if its suffix says so. Raises CorpusError for a damaged file."""
    unpack = PACKED.get(path.suffix.lower())
    file = path.open("rb") if unpack is None else unpack(path, "rb")
    try:
        with cast(IO[bytes], file):
            yield cast(IO[bytes], file)
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is damaged or cut off: it cannot be unpacked ({error})") from None
    except OSError as error:
        if unpack is None or error.errno is not None:
            raise
        raise CorpusError(f"{path} is damaged or cut off: it cannot be unpacked ({error})") from None


def _by_name(path: Path) -> tuple[str | None, str]:
    """(suffix of the compression or None, suffix of the content)."""
    suffix = path.suffix.lower()
    packed = suffix if suffix in PACKED else None
    kind = Path(path.stem).suffix.lower() if packed else suffix
    if (why := REFUSED.get(kind)) is not None:
        raise CorpusError(f"{path}: {why}")
    if packed is not None and kind in PARQUET:
        raise CorpusError(
            f"{path}: decompress it first, for example with `gunzip FILE`; Parquet files are compressed internally"
        )
    return packed, kind if kind in READ else ".txt"


def _refuse_foreign(path: Path, start: bytes) -> None:
    for magic, why in _MAGIC:
        if start.startswith(magic):
            raise CorpusError(f"{path}: {why}")
    if start[_TAR_AT : _TAR_AT + 5] == b"ustar":
        raise CorpusError(f"{path}: {REFUSED['.tar']}")
    if b"\0" in start:
        raise CorpusError(
            f"{path}: it contains zero bytes, so it is not UTF-8 text; if it is UTF-16, convert it with `iconv`"
        )


def _refuse_markup_and_json(path: Path, start: str) -> None:
    head = start.lstrip("\ufeff \t\r\n")
    content = head
    while content.startswith("<!--") and "-->" in content:
        content = content.partition("-->")[2].lstrip()
    if content[:20].lower().startswith(_MARKUP):
        raise CorpusError(f"{path}: {REFUSED['.html']}")
    lines = [line for line in head.splitlines()[: 4 * _JSON_LINES_SEEN] if line.strip()][:_JSON_LINES_SEEN]
    if len(lines) > 1 and all(_is_object(line) for line in lines):
        raise CorpusError(f"{path}: it contains JSON lines: rename it to {path.stem}.jsonl")
    if head.startswith(("[", "{")) and _is_json(head):
        raise CorpusError(f"{path}: it contains JSON: rename it to {path.stem}.json")


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_json(head: str) -> bool:
    """Whether a file whose first bytes look like JSON is JSON; of a large file, only the beginning is checked."""
    if len(head.encode("utf-8", errors="replace")) < _LOOK - 4:
        return _is_json_throughout(head)
    return (head[:1] == "[" and head[1:].lstrip()[:2] == '{"') or (head[:1] == "{" and head[1:].lstrip()[:1] == '"')


def _is_json_throughout(text: str) -> bool:
    """Whether a text is a JSON list or object, or several of them one after another."""
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict | list):
            return False
        while at < len(text) and text[at].isspace():
            at += 1
    return True


def text_of(file: IO[bytes]) -> io.TextIOWrapper:
    """Wrap a file for reading text in UTF-8, with or without a BOM. Reading may raise UnicodeDecodeError."""
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
