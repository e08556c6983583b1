"""bootstrap: a DHT node that keeps its address."""

import json
import signal
import subprocess
import sys
from pathlib import Path


def start(home: Path, port: int = 0) -> tuple[subprocess.Popen[str], list[str]]:
    node = subprocess.Popen(
        [sys.executable, "-m", "peers", "bootstrap", "--home", str(home), "--port", str(port), "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert node.stdout is not None
    return node, json.loads(node.stdout.readline())["addresses"]


def test_it_keeps_its_address_over_restarts_and_leaves_on_a_signal(tmp_path: Path):
    node, addresses = start(tmp_path)
    assert all("/p2p/" in address for address in addresses)
    node.send_signal(signal.SIGINT)
    assert node.wait(timeout=60) == 130
    port = int(addresses[0].split("/tcp/")[1].split("/")[0])
    again, found = start(tmp_path, port)
    again.send_signal(signal.SIGTERM)
    assert again.wait(timeout=60) == 130
    assert found == addresses
