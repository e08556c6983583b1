"""Makes one HTML text of the pages that needs no other file and contains the answers.

The dashboard's modules use only a small part of JavaScript's module syntax, so that this file can join them: imports
are `import { a, b as c } from "./x.js";` at the beginning of a line; exports are in front of a declaration or in one
list. A module becomes a function that returns its exports, and comes after the modules that it imports.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from pathlib import Path
from typing import Any

from peers.dashboard.body import to_json

_IMPORT = re.compile(r'^import\s*(?:\{([^}]*)\}\s*from\s*)?"(\.[^"]+)"\s*;?', re.MULTILINE)
_EXPORTED = re.compile(r"^export\s+((?:async\s+)?function\*?|class|const|let)\s+([\w$]+)", re.MULTILINE)
_LIST = re.compile(r"\bexport\s*\{([^}]*)\}\s*;?")
_TAG = re.compile(
    r'<script\s+src="/static/([^"]+)"([^>]*)>\s*</script>|<link\s+rel="(\w+)"\s+href="/static/([^"]+)"\s*/?>'
)

ELEMENT = "embedded"


class BundleError(AssertionError):
    """A file of the pages breaks the rules above: a mistake of this program."""


def bundle(folder: Path, answers: dict[str, Any]) -> str:
    """The HTML text of index.html with all files to which it refers. `answers`: by the path that the pages request."""
    page = (folder / "index.html").read_text(encoding="utf-8")
    scripts: list[str] = []
    deferred: list[str] = []

    def inlined(match: re.Match[str]) -> str:
        script, attributes, relation, file = match.groups()
        if script is not None:
            module = 'type="module"' in attributes
            text = _joined(folder, script) if module else (folder / script).read_text(encoding="utf-8")
            text = text.replace("</script", "<\\/script")
            if module or "defer" in attributes:
                deferred.append(text)  # it must run after the document, so it goes to the end, after the answers
                return ""
            scripts.append(text)
            return f"<script>{text}</script>"
        content = (folder / file).read_bytes()
        if relation == "icon":
            return f'<link rel="icon" href="data:image/svg+xml;base64,{base64.b64encode(content).decode()}">'
        return f"<style>{content.decode()}</style>"

    page = _TAG.sub(inlined, page)
    data = to_json(answers).decode().replace("<", "\\u003c")
    tail = f'<script type="application/json" id="{ELEMENT}">{data}</script>\n'
    tail += "".join(f"<script>{text}</script>\n" for text in deferred)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_policy([*scripts, *deferred])}">'
    page = page.replace("<head>", f"<head>\n{policy}", 1)
    before, _, after = page.rpartition("</body>")
    return f"{before}{tail}</body>{after}"


def _policy(scripts: list[str]) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {hashes}; {rest}"


def _joined(folder: Path, entry: str) -> str:
    """A script of the module `entry` and all its imports."""
    order: list[str] = []
    _visit(folder, entry, order, ())
    names = {module: f"module{number}" for number, module in enumerate(order)}
    parts = [_as_function(folder, module, names) for module in order]
    return '"use strict";\n' + "\n".join(parts)


def _visit(folder: Path, module: str, order: list[str], above: tuple[str, ...]) -> None:
    if module in above:
        raise BundleError(f"modules in a circle: {' → '.join((*above, module))}")
    if module in order:
        return
    for _, path in _IMPORT.findall((folder / module).read_text(encoding="utf-8")):
        _visit(folder, _resolved(module, path), order, (*above, module))
    order.append(module)


def _as_function(folder: Path, module: str, names: dict[str, str]) -> str:
    text = (folder / module).read_text(encoding="utf-8")
    exports = {name: name for _, name in _EXPORTED.findall(text)}
    for each in _LIST.findall(text):
        exports |= {outside: inside for inside, outside in _pairs(each)}
    text = _IMPORT.sub(lambda match: _as_constant(match, module, names), text)
    text = _LIST.sub("", _EXPORTED.sub(r"\1 \2", text))
    if re.search(r"^(?:import|export)\b", text, re.MULTILINE):
        raise BundleError(f"{module}: an import or export that bundle.py cannot read")
    returned = ", ".join(f"{outside}: {inside}" for outside, inside in exports.items())
    return f"const {names[module]} = (() => {{\n{text}\nreturn {{ {returned} }};\n}})();"


def _as_constant(match: re.Match[str], module: str, names: dict[str, str]) -> str:
    wanted, path = match.groups()
    if wanted is None:
        return ""
    taken = ", ".join(f"{outside}: {inside}" for outside, inside in _pairs(wanted))
    return f"const {{ {taken} }} = {names[_resolved(module, path)]};"


def _pairs(names: str) -> list[tuple[str, str]]:
    """(before, after `as`) of each name in a list."""
    found = [part.split() for part in names.split(",") if part.strip()]
    return [(words[0], words[-1]) for words in found]


def _resolved(module: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(module), path))
