"""Text files: how long ones become several documents, and how bad content is named."""

from pathlib import Path

import pytest

from swarm.data import CorpusError, open_source
from swarm.data.text_file import DOCUMENT_CHARACTERS


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


@pytest.mark.parametrize("word", ["stone ", "ä", "界", "🌍", "x"])
def test_a_file_of_one_long_line_becomes_several_documents(tmp_path: Path, word: str):
    path = tmp_path / "a.txt"
    text = word * (300_000 // len(word.encode()))
    path.write_text(text)
    documents = list(open_source([path]).documents())
    assert len(documents) > 1 and max(len(each.encode()) for each in documents) <= 1 << 17
    assert "".join(documents).replace(" ", "") == text.replace(" ", "")
    assert all(set(each.split()) == {"stone"} for each in documents) or " " not in word


def test_text_that_is_not_utf8_names_file_and_line(tmp_path: Path):
    path = tmp_path / "latin.txt"
    path.write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(CorpusError, match=r"latin\.txt, line 2: not UTF-8"):
        list(open_source([path]).documents())
