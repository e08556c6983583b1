"""JSON files: how bad lines, records and layouts are named."""

import json
from pathlib import Path

import pytest

from swarm.data import CorpusError, open_source


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


def test_a_line_of_json_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("swarm.data.json_file.MAX_TEXT", 1000)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "short"}\n{"text": "' + "word " * 300 + '"}\n')
    with pytest.raises(CorpusError, match=r"line 2: is longer than 1.0 kB: divide its text into several lines"):
        list(open_source([path]).documents())


def test_a_list_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "rows.json"
    rows = [{"text": f"row {number}"} for number in range(50)]
    for content in (json.dumps(rows), json.dumps(rows, indent=1)):
        path.write_text(content)
        monkeypatch.setattr("swarm.data.json_file.MAX_LIST", len(content))
        assert len(list(open_source([path]).documents())) == 50
        monkeypatch.setattr("swarm.data.json_file.MAX_LIST", len(content) - 1)
        with pytest.raises(CorpusError, match=r"more than .*B: write .* `jq -c '\.\[\]' rows\.json > rows\.jsonl`"):
            list(open_source([path]).documents())
    path.write_text("\n".join(map(json.dumps, rows)))  # an object on each line: only one is in memory
    assert len(list(open_source([path]).documents())) == 50


def test_a_list_on_one_line_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"text": f"row {number}"} for number in range(20_000)]))
    parsed: list[int] = []
    loads = json.loads

    def watched(text: str) -> object:
        parsed.append(len(text))
        return loads(text)

    monkeypatch.setattr("swarm.data.json_file.json.loads", watched)
    assert len(list(open_source([path]).documents())) == 20_000
    assert parsed == [path.stat().st_size]
