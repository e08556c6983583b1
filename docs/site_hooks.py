"""Brings files outside docs/ into the site, so that one link is right in the repository and on the site.

A page may link to any file of the repository with a relative path. A Markdown file that is linked so becomes a page
`repository/PATH`; any other file becomes a page that shows its text. mkdocs then checks these links like all others.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FOLDER = "repository"
"""Where the site has what lies outside docs/."""
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".service": "ini"}


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file outside docs/ that a page links to, also by way of other such pages."""
    root = Path(config.docs_dir).parent
    waiting = [file.src_uri for file in files if file.src_uri.endswith(".md")]
    seen: set[str] = set()
    while waiting:
        page = waiting.pop()
        place = _in_repository(page)
        text = (root / place).read_text(encoding="utf-8")
        for target in _targets(text, place):
            if target.startswith("docs/") or target in seen or not (root / target).is_file():
                continue  # mkdocs itself says of a link that leads nowhere
            seen.add(target)
            uri = _on_site(target)
            files.append(File.generated(config, uri, content=_page(root / target, target)))
            if target.endswith(".md"):
                waiting.append(uri)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that leave docs/, or come from outside it, into links of the site."""
    uri = page.file.src_uri
    place = _in_repository(uri)
    if not place.endswith(".md"):
        return markdown  # shows a file that is no page; it has no links

    def moved(target: str) -> str:
        return posixpath.relpath(_on_site(_resolved(target, place)), posixpath.dirname(uri) or ".")

    return _rewritten(markdown, moved)


def _page(file: Path, name: str) -> str:
    text = file.read_text(encoding="utf-8")
    if name.endswith(".md"):
        return text
    return f"# {name}\n\n~~~~ {_LANGUAGES.get(file.suffix, 'text')}\n{text}\n~~~~\n"


def _on_site(place: str) -> str:
    """The page of a file, by its path in the repository."""
    if place.startswith("docs/"):
        return place.removeprefix("docs/")
    return f"{FOLDER}/{place}" if place.endswith(".md") else f"{FOLDER}/{place}.md"


def _in_repository(uri: str) -> str:
    """The path in the repository of a page of the site; without .md where it shows another file."""
    if not uri.startswith(f"{FOLDER}/"):
        return f"docs/{uri}"
    place = uri.removeprefix(f"{FOLDER}/")
    bare = place.removesuffix(".md")
    return bare if Path(__file__).parent.parent.joinpath(bare).is_file() else place


def _resolved(target: str, place: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), target))


def _targets(text: str, place: str) -> Iterator[str]:
    for match in _LINK.finditer(_FENCE.sub("", text)):
        if "://" not in match[2]:
            yield _resolved(match[2], place)


def _rewritten(markdown: str, moved: Callable[[str], str]) -> str:
    """The text with the target of every relative link outside code blocks replaced."""

    def link(match: re.Match[str]) -> str:
        if "://" in match[2]:
            return match[0]
        return f"{match[1]}{moved(match[2])}{match[3] or ''}{match[4]}"

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(link, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join((*parts, _LINK.sub(link, markdown[end:])))
