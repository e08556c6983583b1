"""Tables: quotes, columns and damage."""

import csv
import random
import sys
from pathlib import Path

import pytest

from swarm.data import CorpusError, open_source


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


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_line_of_a_table_that_would_fill_the_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("swarm.data.table_file.MAX_LINE", 1000)
    path = tmp_path / name
    for content, line in (("x" * 1001, 1), ("text\n" + "x" * 1001 + "\nshort\n", 2)):
        path.write_text(content)
        with pytest.raises(CorpusError, match=rf"{name}, line {line}: is longer than 1,000 characters: does the file"):
            list(open_source([path]).documents())
    path.write_text("text\n" + "x" * 999 + "\nshort\n")
    assert len(list(open_source([path]).documents())) == 2


def test_a_column_with_a_dot_is_no_field_of_a_struct(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"text": [{"b": "of the struct"}, {"b": "of it"}], "text.b": ["of the column", "of it too"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert list(open_source([tmp_path / "a.parquet"], field="text.b").documents()) == ["of the column", "of it too"]
    with pytest.raises(CorpusError, match="expected text, got dict"):
        list(open_source([tmp_path / "a.parquet"], field="text").documents())
