"""Whatever is not plain text is read as what it is, or refused by name with what to do."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.data import CorpusError, open_source

TEXTS = ["the river runs", 'a quote " and, a comma', "two\nlines", "über … 河"]
LINES = "".join(
    json.dumps({"id": i, "url": "https://example.org", "text": text}) + "\n" for i, text in enumerate(TEXTS)
)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
CSV = 'id,text\n1,the river runs\n2,"a quote "" and, a comma"\n3,"two\nlines"\n4,über … 河\n'
TSV = 'id\ttext\n1\tthe river runs\n2\t"a quote "" and, a comma"\n3\t"two\nlines"\n4\tüber … 河\n'


def read(path: Path, **options: str) -> list[str]:
    return list(open_source([path], **options).documents())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.ndjson", LINES),
        ("a.JSONL", LINES),
        ("a.json", LINES),
        ("a.json", json.dumps([{"text": text} for text in TEXTS])),
        ("a.json", json.dumps([{"text": text} for text in TEXTS], indent=2)),
        ("a.json", json.dumps(TEXTS)),
        ("a.csv", CSV),
        ("a.csv", "\ufeff" + CSV),
        ("a.csv", CSV.replace("\n1", "\r\n1")),
        ("a.csv", CSV.replace("the river runs", "the river runs,, ")),
        ("a.tsv", TSV),
        ("a.jsonl", "\ufeff" + LINES),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 10 else "…",
)
@pytest.mark.parametrize("packed", ["", ".gz", ".bz2", ".xz", ".lzma"])
def test_it_is_read_as_what_it_is(name: str, content: str, packed: str, tmp_path: Path) -> None:
    pack: dict[str, Callable[[bytes], bytes]] = {
        "": lambda raw: raw, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
        ".lzma": lambda raw: lzma.compress(raw, lzma.FORMAT_ALONE),
    }  # fmt: skip
    path = tmp_path / f"{name}{packed}"
    path.write_bytes(pack[packed](content.encode("utf-8")))
    assert read(path) == TEXTS


def test_packed_text_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress("über … 河\n".encode()))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"plain\n"))
    assert read(tmp_path) == ["über … 河", "plain"]


def zipped() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("a.txt", "text")
    return raw.getvalue()


def tarred() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return raw.getvalue()


CONTENTS = {
    ".zst": (b"\x28\xb5\x2f\xfd\x04\x00rest", "zstd -d"),
    ".zip": (zipped(), "ZIP|unzip"),
    ".tar": (tarred(), "tar xf"),
    ".pdf": (b"%PDF-1.7 \xe2\xe3", "pdftotext"),
    ".html": (b"<!DOCTYPE html><html><p>text", "tags"),
    ".xml": (b'<?xml version="1.0"?><mediawiki>', "tags"),
    ".docx": (zipped(), "plain text"),
    ".rtf": (b"{\\rtf1 text", "plain text"),
    ".db": (b"SQLite format 3\0", "database"),
    ".gguf": (b"GGUF\3\0\0\0", "import"),
    ".arrow": (b"ARROW1\0\0", "Arrow"),
    ".jsonl.zst": (b"\x28\xb5\x2f\xfd\x04\x00rest", "zstd -d"),
}


@pytest.mark.parametrize("suffix", CONTENTS)
@pytest.mark.parametrize("honest", [True, False], ids=["under its name", "as .txt"])
def test_what_is_not_read_is_refused_by_name(suffix: str, honest: bool, tmp_path: Path) -> None:
    content, advice = CONTENTS[suffix]
    path = tmp_path / f"a{suffix if honest else '.txt'}"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=advice) as raised:
        read(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("a.txt", LINES.encode(), r"rename it to a\.jsonl"),
        ("corpus", LINES.encode(), r"rename it to corpus\.jsonl"),
        ("a.txt", json.dumps([{"text": "x"}]).encode(), r"rename it to a\.json"),
        ("a.txt", ('[\n' + '{"text": "long"},\n' * 9999).encode(), r"rename it to a\.json"),
        ("a.txt", b'{"text": "one"}\n{"text": "two"}\n', r"rename it to a\.jsonl"),
        ("a.txt", b'{\n  "text": "one"\n}\n{\n  "text": "two"\n}\n', r"rename it to a\.json"),
        ("a.json", b'{\n  "text": "one"\n}\n{\n  "text": "two"\n}\n', "write each object on one line"),
        ("wiki_00", b'<doc id="12" url="u" title="A">\nA\n</doc>\n', "tags"),
        ("a.txt", b"<!-- saved -->\n<!-- twice -->\n<html><body>text", "tags"),
        ("a.txt", "text".encode("utf-32"), "UTF-32"),
        ("a.txt.Z", b"\x1f\x9d\x90text\0", "uncompress"),
        *(
            (f"a{suffix}", POINTER, "Git LFS pointer.*git lfs pull")
            for suffix in (".txt", ".jsonl", ".csv", ".parquet", ".jsonl.gz")
        ),
        ("a.txt", gzip.compress(b"text"), r"rename it to a\.txt\.gz"),
        ("a.jsonl", gzip.compress(LINES.encode()), r"rename it to a\.jsonl\.gz"),
        ("a.txt.gz", b"text", "is not compressed"),
        ("a.txt", "text".encode("utf-16"), "UTF-16"),
        ("a.txt", "text".encode("utf-16-le"), "iconv"),
        ("a.txt", b"line\n" * 20_000 + b"\0\0\n", "line 20001: contains zero bytes"),
        ("a.jsonl", LINES.encode() * 1000 + b"\0\n", "line 4001: contains zero bytes"),
        ("a.csv", b"text\n" + b"line\n" * 20_000 + b"a\0b\n", "line 20002: contains zero bytes"),
        ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nHello\n", "times"),
        ("a.txt", b"\x89PNG\r\n\x1a\n", "picture"),
        ("a.txt", b"PAR1rest", r"rename it to a\.parquet"),
        ("a.parquet", b"text", "is not a Parquet file"),
        ("a.jsonl.gz", gzip.compress(LINES.encode())[:-30], "cut off"),
        ("a.json.xz", lzma.compress(LINES.encode())[:-30], "cut off|damaged"),
        ("a.json", b'{"data": [{"text": "x"}],\n "version": 1}', "'data'"),
        ("a.json", b'[{"id": 1}]', "no field 'text'"),
        ("a.json", b"[1]", "expected an object"),
        ("a.json", b"no json", "not JSON"),
        ("a.csv", b"id,body\n1,x\n", "no column 'text'.*there are 'id', 'body'"),
        ("a.csv", b"id;text\n1;x\n", r"separated by ';', not by ','; write the file again with ','"),
        ("a.csv", b"id\ttext\n1\tx\n", r"separated by '.t', not by ','; rename the file to \.tsv"),
        ("a.csv", b'"id";"text"\n1;x\n', r"separated by ';', not by ','; write the file again with ','"),
        ("a.tsv", b"id,text\n1,x\n", r"separated by ',', not by '.t'; rename the file to \.csv"),
        ("a.csv", b"the text; more\n", "there are 'the text; more'; choose with --column"),
        ("a.csv", b"id,text\n1\n", "line 2: has 1 cells"),
        ("a.csv", b"text,id\nHello, world,1\n", "line 2: has 3 cells, but the first line names 2.*in quotes"),
        ("a.csv", b"text,text\na,b\n", "has 2 columns called 'text'"),
        ("a.csv", b"id,text\n1,\xff\n", "not UTF-8"),
        ("a.csv", b'id,text\n1,"open\n', "not valid CSV or TSV"),
        ("a.csv", b'id,text\n1,x\n2,"open\n3,x\n4,x\n', "line 5: not valid CSV.*its row begins in line 3"),
        ("a.jsonl.gz", gzip.compress(b"\xff\n"), "line 1: not UTF-8"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "…",
)  # fmt: skip
def test_what_is_wrong_is_named(name: str, content: bytes, advice: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=advice):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "{ a brace",
        "[1] a reference",
        '{"a": 1}\nand prose',
        "[1]\n2 and prose",
        "<- an arrow",
        "x < y",
        "<!-- a remark -->\n# A readme",
        "<!-- an open remark <html>",
        "the version https://git-lfs.github.com/spec/v1",
    ],
)
def test_prose_that_begins_oddly_is_prose(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    assert read(tmp_path / "a.txt") == [text]


@pytest.mark.parametrize("content", [b"", b"\n", b" \n\n\t\n", b"\xef\xbb\xbf"], ids=repr)
@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.txt.gz", "a.jsonl", "a"])
def test_a_file_without_text_has_no_documents_and_stops_nobody(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    (tmp_path / "b.txt").write_text("A text.")
    assert list(open_source([tmp_path / name, tmp_path / "b.txt"]).documents()) == ["A text."]


def test_a_folder_leaves_nothing_out_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    (tmp_path / "readme.md").write_text("A readme.")
    (tmp_path / "run.py").write_text("print()")
    (tmp_path / "config.yaml").write_text("a: 1")
    source = open_source([tmp_path])
    assert list(source.documents()) == [*TEXTS, "A readme."]
    assert [path.name for path in source.passed_over] == ["config.yaml", "run.py"]
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.7")
    with pytest.raises(CorpusError, match="pdftotext"):
        open_source([tmp_path])
