"""The notebook: what it keeps, and how an invite with old addresses becomes a current one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peers.runtime.notebook import Notebook, current
from swarm.net.identity import Identity
from swarm.net.invite import Invite


@pytest.fixture
def coordinator(tmp_path: Path) -> str:
    return Identity.load(tmp_path / "key").peer_id


def test_an_invite_gets_the_addresses_at_which_its_machine_was_last_known(tmp_path: Path, coordinator: str) -> None:
    old, new = (f"/ip4/10.0.0.1/tcp/{port}/p2p/{coordinator}" for port in (4001, 4002))
    invite = Invite((old,), coordinator)
    stranger = Identity.load(tmp_path / "other").peer_id
    path = tmp_path / "peers.json"
    assert current(invite, path) == invite
    unusable = ("junk", "/ip4/10.0.0.9/tcp/1", f"/ip4/10.0.0.9/tcp/1/p2p/{stranger}")
    path.write_text(
        json.dumps({coordinator: [0, [new, *unusable]], stranger: [3, [f"/ip4/10.0.0.9/tcp/1/p2p/{stranger}"]]})
    )
    assert current(invite, tmp_path / "missing", path).addresses == (old, new)


def test_a_peer_notes_only_its_coordinators(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path / "peers.json", ["coordinator"])
    notebook.write({"coordinator": (0, ("a",)), "another peer": (7, ("b",))})
    assert Notebook(tmp_path / "peers.json").read() == {"coordinator": (0, ("a",))}


@pytest.mark.parametrize("text", ["", "junk", "[1]", '{"x": 3}', '{"x": [1, 2, 3]}', '{"x": ["a", []]}'])
def test_a_damaged_notebook_counts_as_empty(
    tmp_path: Path, text: str, coordinator: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "peers.json"
    path.write_text(text)
    assert Notebook(path).read() == {}
    assert "peers.json cannot be used" in caplog.text
    invite = Invite((f"/ip4/10.0.0.1/tcp/1/p2p/{coordinator}",), coordinator)
    assert current(invite, path) == invite
