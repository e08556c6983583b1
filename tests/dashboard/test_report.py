"""The report: the pages and a run's end in one file, which asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from served_dashboard import SMALL, dashboard, generated_home

from peers.dashboard.assets import FOLDER
from peers.dashboard.bundle import BundleError, bundle


def _written(home: Path, out: Path, *words: str) -> str:
    subprocess.run([sys.executable, "-m", "peers", "report", home, "--out", out, *words], check=True, timeout=120)
    return out.read_text()


def _embedded(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="embedded">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    answers: dict[str, object] = json.loads(found[1])
    return answers


def test_it_holds_the_answers_of_the_server_and_no_link_outside(tmp_path: Path) -> None:
    home = generated_home(tmp_path / "home", SMALL)
    page = _written(home, tmp_path / "run.html")
    answers = _embedded(page)
    with dashboard(home) as shown:
        shown.wait("/api/v1/run", lambda run: not run["warnings"])
        for topic in ("run", "faults", "people", "samples", "peers", "links"):
            assert answers[f"/api/v1/{topic}"] == shown.get(f"/api/v1/{topic}?limit=200"), topic
    series = answers["/api/v1/series?name=loss"]
    assert isinstance(series, dict) and len(series["last"]) > 20
    assert sum(path.startswith("/api/v1/peers/") for path in answers) >= SMALL.peers
    assert not re.search(r'(?:src|href)="/?static|<link[^>]+href="(?!data:)|<script[^>]+src=', page)


def test_its_policy_lets_its_own_scripts_run_and_nothing_else(tmp_path: Path) -> None:
    page = _written(generated_home(tmp_path / "home", SMALL), tmp_path / "run.html")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None and "default-src 'none'" in policy[1] and "connect-src" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) >= 3
    for text in scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


def test_a_public_one_has_no_addresses(tmp_path: Path) -> None:
    home = generated_home(tmp_path / "home", SMALL)
    with (home / "events.jsonl").open("a") as file:
        record = {"at": 1_790_001_900.0, "kind": "StreamBroken", "other": "x.1", "channel": "bulk"}
        file.write(json.dumps({**record, "reason": "203.0.113.7:4001 is gone"}) + "\n")
    own, public = _written(home, tmp_path / "own.html"), _written(home, tmp_path / "public.html", "--public")
    assert "203.0.113.7" in own and "203.0.113.7" not in public
    told, shown = _embedded(own), _embedded(public)
    assert list(shown) == list(told), "the names that the pages ask for"
    changed = {name for name, answer in told.items() if shown[name] != answer}
    assert changed <= {"/api/v1/run", "/api/v1/log"}, "what tells of the broken stream"
    run, loss = shown["/api/v1/run"], shown["/api/v1/series?name=loss"]
    assert isinstance(run, dict) and run["step"] > 20 and run["tokens_per_second"] > 0
    assert isinstance(loss, dict) and all(0 < value < 20 for value in loss["last"][-5:])


@pytest.mark.parametrize("log", [b"", b"no event\n", b'{"at":1.0,"kind":"StepDecided","te\n', b'{"at":1.0'])
def test_a_log_without_a_readable_event_is_refused(tmp_path: Path, log: bytes) -> None:
    (tmp_path / "events.jsonl").write_bytes(log)
    words = [sys.executable, "-m", "peers", "report", tmp_path, "--out", tmp_path / "run.html"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2 and not (tmp_path / "run.html").exists()
    assert f"no event in {tmp_path / 'events.jsonl'} can be read: name the home of" in ended.stderr


def test_unreadable_lines_are_counted_in_the_warnings(tmp_path: Path) -> None:
    home = generated_home(tmp_path / "home", SMALL)
    whole = (home / "events.jsonl").read_bytes().splitlines(keepends=True)
    odd = [b"no event\n", b"\n", b'{"at":1790000000.0,"kind":"StepDecided","te\n']
    (home / "events.jsonl").write_bytes(b"".join([*whole[:50], *odd, *whole[50:], b"\x00\x00\n"]))
    for words in ((), ("--public",)):
        run = _embedded(_written(home, tmp_path / "run.html", *words))["/api/v1/run"]
        assert isinstance(run, dict) and run["step"] > 20
        assert run["warnings"] == ["3 lines of events.jsonl cannot be read, so what they say is missing here"]


def test_pages_that_break_the_rules_of_bundling_are_found(tmp_path: Path) -> None:
    page = '<head></head><body><script src="/static/a.js" type="module"></script></body>'
    (tmp_path / "index.html").write_text(page)
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nb();\n')
    for wrong in ("export default 1;\n", 'import { a } from "./a.js";\nexport const b = 1;\n'):
        (tmp_path / "b.js").write_text(wrong)
        with pytest.raises(BundleError):
            bundle(tmp_path, {})
    assert bundle(FOLDER, {})
