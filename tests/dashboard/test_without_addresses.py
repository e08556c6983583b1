"""What the public does not see in a text: addresses of machines, and paths on them."""

from __future__ import annotations

import json

import pytest

from peers.dashboard.body import to_json, without_addresses


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dial /ip4/203.0.113.7/tcp/4001 failed", "dial (address) failed"),
        ("198.51.100.9:80 is gone", "(address) is gone"),
        ("first line\n198.51.100.9", "first line\n(address)"),
        ("::ffff:203.0.113.7", "(address)"),
        ("[64:ff9b::203.0.113.7]:4001", "[(address)]:4001"),
        ("from:2001:db8::17", "from:(address)"),
        ("2001:db8:: is a net", "(address) is a net"),
        ("2001:db8:1:2:3:4:5:6", "(address)"),
        ("tried:\n2001:db8::17", "tried:\n(address)"),
        ("no space in /home/josé/runs/x", "no space in (address)"),
        ("'/data/ann/runs/x': no space", "'(address): no space"),
        ("/srv/ann", "(address)"),
        ("path:/data/ann/x", "path:(address)"),
        ("(/scratch/u/ann)", "((address))"),
        ("file:///run/user/1000/x", "file://(address)"),
        ("tried:\n/gpfs/ann/x\n/lustre/é/x", "tried:\n(address)\n(address)"),
    ],
)
def test_addresses_and_paths_are_left_out(text: str, shown: str) -> None:
    assert json.loads(without_addresses(to_json({"text": text}))) == {"text": shown}


@pytest.mark.parametrize(
    "text",
    [
        "12:34:56 loss/gradient, 3 tokens/s, 1/2 and/or either",
        "the model writes </s> // and </div></p>",
        "https://example.org/a/b and example.org/a/b",
        "Qm/with/slashes.7 in pass 1:5, ../a/b",
        "2026-12-01 12:34:56, 2026-12-01T12:34:56.789+00:00, 12/01/2026, 0.1.0",
        "80 Mbit/s/peer, s1n0/2, peers/12ab.1, series?name=loss",
        "é/è, caf\u00e9s/bars/inns",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert json.loads(without_addresses(to_json({text: [text, 1.25, None]}))) == {text: [text, 1.25, None]}
