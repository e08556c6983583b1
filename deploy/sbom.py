"""Prints a bill of materials of an installed swarm-peer, as CycloneDX JSON: `python deploy/sbom.py > sbom.cdx.json`.

It lists the distribution, all that it needs in the environment of this Python, and the libp2p daemon that comes with
hivemind, with the hash of its file. It asks nobody. Run it in the environment that you ship.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

ROOT = "swarm-peer"
DAEMON = "hivemind/hivemind_cli/p2pd"
KNOWN_DAEMON = "42f8f48e62583b97cdba3c31439c08029fb2b9fc506b5bdd82c46b7cc1d279d8"
"""SHA-256 of the daemon in hivemind 1.1.12 for Linux on x86-64. What follows is what it says of itself when it runs."""
DAEMON_PARTS = (
    ("go", "1.20.11", "pkg:generic/go@1.20.11"),
    ("github.com/libp2p/go-libp2p", "v0.32.1", "pkg:golang/github.com/libp2p/go-libp2p@v0.32.1"),
    ("github.com/libp2p/go-libp2p-kad-dht", "v0.25.1", "pkg:golang/github.com/libp2p/go-libp2p-kad-dht@v0.25.1"),
    ("github.com/libp2p/go-yamux/v4", "v4.0.1", "pkg:golang/github.com/libp2p/go-yamux/v4@v4.0.1"),
    ("github.com/quic-go/quic-go", "v0.40.0", "pkg:golang/github.com/quic-go/quic-go@v0.40.0"),
    ("github.com/quic-go/webtransport-go", "v0.6.0", "pkg:golang/github.com/quic-go/webtransport-go@v0.6.0"),
)


def document() -> dict[str, Any]:
    """The bill. Raises PackageNotFoundError if swarm-peer is not installed here."""
    root = distribution(ROOT)
    found, needs = _closure(root)
    components = [_component(each) for name, each in sorted(found.items()) if name != ROOT]
    daemon = _daemon(found["hivemind"])
    links = [
        {"ref": _ref(found[name]), "dependsOn": sorted(_ref(found[n]) for n in needs[name])} for name in sorted(found)
    ]
    if daemon is not None:
        components.append(daemon)
        next(link for link in links if link["ref"] == _ref(found["hivemind"]))["dependsOn"] += [daemon["bom-ref"]]
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps([components, links], sort_keys=True))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {**_component(root), "type": "application"}},
        "components": components,
        "dependencies": links,
    }


def _closure(root: Distribution) -> tuple[dict[str, Distribution], dict[str, set[str]]]:
    """All that is installed of what it needs, by name, and what each needs directly. Extras are left out."""
    found, needs, waiting = {ROOT: root}, {}, [ROOT]
    while waiting:
        name = waiting.pop()
        needs[name] = set()
        for required in _required(found[name]):
            if required not in found:
                try:
                    found[required] = distribution(required)
                except PackageNotFoundError:
                    continue  # for another platform, or of an extra
                waiting.append(required)
            needs[name].add(required)
    return found, needs


def _required(of: Distribution) -> Iterator[str]:
    for requirement in of.requires or ():
        if "extra ==" not in requirement.partition(";")[2]:
            yield _plain(re.match(r"[A-Za-z0-9._-]+", requirement)[0])  # type: ignore[index]


def _component(of: Distribution) -> dict[str, Any]:
    licence = of.metadata.get("License-Expression") or of.metadata.get("License") or ""
    told = {"licenses": [{"license": {"name": licence.strip().splitlines()[0][:100]}}]} if licence.strip() else {}
    return {
        "type": "library",
        "bom-ref": _ref(of),
        "name": _plain(of.name),
        "version": of.version,
        "purl": _ref(of),
        **told,
    }


def _ref(of: Distribution) -> str:
    return f"pkg:pypi/{_plain(of.name)}@{of.version}"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _daemon(hivemind: Distribution) -> dict[str, Any] | None:
    path = Path(str(hivemind.locate_file(DAEMON)))
    if not path.exists():
        return None
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    known = sha256 == KNOWN_DAEMON
    parts = [
        {"type": "library", "bom-ref": f"p2pd/{purl}", "name": name, "version": version, "purl": purl}
        for name, version, purl in (DAEMON_PARTS if known else ())
    ]
    return {
        "type": "application",
        "bom-ref": "p2pd",
        "name": "p2pd",
        "version": "3762261d0b87 of 2023-11-21" if known else "unknown",
        "description": "the libp2p daemon that comes with hivemind",
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "components": parts,
    }


if __name__ == "__main__":
    json.dump(document(), sys.stdout, indent=1)
    print()
