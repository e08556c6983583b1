"""What a container is made of: the lock has a hash for everything and the pinned versions, and the bill names all."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, tuple[str, list[str]]]:
    """By name, the version and the hashes."""
    found = {}
    for block in re.split(r"(?m)^(?=[a-z0-9])", LOCK):
        if match := re.match(r"([a-z0-9._-]+)==([^ ;]+)", block):
            found[plain(match[1])] = match[2], re.findall(r"--hash=sha256:([0-9a-f]{64})\b", block)
    return found


def test_everything_is_locked_with_hashes_at_the_versions_that_are_tested() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {plain(name): pin for name, pin in pins.items()}
    found = locked()
    assert len(found) == len(re.findall(r"(?m)^[a-z0-9]", LOCK)), "a line that is no pin"
    for name, (version_, hashes) in found.items():
        assert hashes, f"{name} has no hash"
        assert pinned.get(name, version_) == version_, f"{name}: run the command at the head of requirements.lock again"
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {plain(re.match(r"[A-Za-z0-9._-]+", each)[0]) for each in wanted} <= set(found)  # type: ignore[index]


def test_the_lock_names_no_server() -> None:
    assert not re.search(r"(?i)https?:|index-url|find-links|trusted-host|@ file", LOCK)


def test_the_bill_of_materials_names_all_that_is_needed_and_the_daemon() -> None:
    told = subprocess.run([sys.executable, ROOT / "deploy" / "sbom.py"], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    bill = json.loads(told.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    names = {each["name"]: each for each in bill["components"]}
    for name in ("torch", "hivemind", "cryptography", "blake3", "starlette"):
        assert names[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
    assert "pytest" not in names, "what only tests need is not shipped"
    refs = [bill["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in bill["components"])]
    assert len(refs) == len(set(refs)), "each once"
    assert {ref for link in bill["dependencies"] for ref in link["dependsOn"]} <= set(refs)
    assert re.fullmatch("[0-9a-f]{64}", names["p2pd"]["hashes"][0]["content"])


def test_the_known_daemon_is_the_one_that_is_installed() -> None:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "deploy" / "sbom.py")
    assert spec is not None and spec.loader is not None
    sbom = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sbom)
    daemon = next(each for each in sbom.document()["components"] if each["name"] == "p2pd")
    assert daemon["version"] != "unknown", "hivemind has another daemon: read its parts and change deploy/sbom.py"
