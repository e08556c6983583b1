"""The documentation site builds without a warning and loads nothing from elsewhere. Needs the optional extra 'docs'."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the optional extra 'docs' is not installed")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(https?:)?//", text)
        loaded += re.findall(r"<link[^>]*\shref=\"?(https?:)?//", text)
        assert not loaded, page
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")), style


def test_files_outside_the_folder_of_pages_are_in_the_site(site: Path) -> None:
    unit = (site / "repository" / "deploy" / "swarm-peer.service.html").read_text(encoding="utf-8")
    assert "KillMode" in unit
    readme = (site / "repository" / "index.html").read_text(encoding="utf-8")
    assert 'href="../results.html' in readme and 'src="../images/dashboard-timeline.png"' in readme


def test_the_api_page_shows_docstrings(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    assert "swarm.codecs.Codec" in text and "Raises CodecError" in text
