"""Measures what a stranger's flood costs the coordinator that it attacks, and the swarm that trains meanwhile.

    python -m benchmarks.flood [--seconds 600] [--after 120] [--local | --firewall] [--out FILE]

Two peers train, paced. For a fifth of the time, nobody attacks. Then `benchmarks.stranger` attacks a port on which
nobody listens: it runs on the same machine and takes a part of it, so steps become slower even if nothing else does.
Then it attacks the coordinator, and a newcomer joins meanwhile. Then it is quiet again. CPU and memory are those of the
coordinator's process and of its libp2p daemon.

The stranger has an address of its own, in a network namespace, which takes root. With `--firewall`, the rule of
deploy/flood.nft is in force. With `--local`, the stranger uses this machine's own address, which no process blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.local_swarm import PEERS, LocalSwarm
from benchmarks.results import write_results
from peers.chaos.small_run import write_run
from swarm.events import FloodNoticed, MicrobatchAccumulated, PeerRefused, StepDecided, read_log
from swarm.net.addresses import components, split_peer
from swarm.net.invite import parse

PACE = "--pace=0.05,0.1"
PEER = [*PEERS, "join", "--threads=1", "--max-memory=1GB", "--device=cpu", "--capacity=1", PACE]
_NAMESPACE = "swarm-peer-flood"
_OURS, _THEIRS = "10.213.7.1", "10.213.7.2"
"""The addresses at both ends of the stranger's line."""
_RULE = Path(__file__).parents[1] / "deploy" / "flood.nft"
SETTLE_S = 20.0
"""Seconds that a swarm gets to start before anything is measured."""


class Watched:
    """The coordinator's process and its libp2p daemon."""

    def __init__(self, pid: int) -> None:
        process = psutil.Process(pid)
        self._processes = [process, *process.children(recursive=True)]

    def cpu_s(self) -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in self._processes]

    def memory_mb(self) -> list[float]:
        return [process.memory_info().rss / 1e6 for process in self._processes]


class Newcomer:
    """A peer that joins in the middle of the attack."""

    def __init__(self, home: Path, invite: str) -> None:
        self._home = home
        self._command = [*PEER, invite, "--home", str(home)]
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def start(self) -> None:
        """Start the newcomer. May be called once."""
        if self._process is None:
            self._began = time.time()
            with self._home.with_suffix(".out").open("wb") as out:
                self._process = subprocess.Popen(self._command, stdout=out, stderr=subprocess.STDOUT)

    def trained_s(self) -> float | None:
        """Seconds from its process's start until its first microbatch counted; None: it has not trained."""
        log = self._home / "events.jsonl"
        if not log.exists():
            print(self._home.with_suffix(".out").read_text(errors="replace")[-2000:], file=sys.stderr)
            return None
        events = read_log(log)
        return next((round(at - self._began, 1) for at, e in events if isinstance(e, MicrobatchAccumulated)), None)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def elsewhere(invite: str, *, firewall: bool) -> Iterator[tuple[list[str], str]]:
    """A network namespace with an address of its own, and perhaps the firewall rule for the coordinator's port.

    Yields the words before a command that runs there, and the address under which it reaches the coordinator.
    """
    peer = split_peer(parse(invite).addresses[0])[1]
    port = next(value for name, value in components(parse(invite).addresses[0]) if name == "tcp")

    def run(*words: str) -> None:
        subprocess.run(words, check=True)

    try:
        run("ip", "netns", "add", _NAMESPACE)
        run("ip", "link", "add", "flood0", "type", "veth", "peer", "name", "flood1", "netns", _NAMESPACE)
        run("ip", "address", "add", f"{_OURS}/24", "dev", "flood0")
        run("ip", "link", "set", "flood0", "up")
        for words in (["address", "add", f"{_THEIRS}/24", "dev", "flood1"], ["link", "set", "flood1", "up"]):
            run("ip", "-n", _NAMESPACE, *words)
        run("ip", "-n", _NAMESPACE, "link", "set", "lo", "up")
        if firewall:
            run("nft", "-D", f"port={port}", "-f", str(_RULE))
        yield ["ip", "netns", "exec", _NAMESPACE], f"/ip4/{_OURS}/tcp/{port}/p2p/{peer}"
        if firewall:
            run("nft", "list", "chain", "inet", "swarm_peer", "input")
    finally:
        if firewall:
            subprocess.run(["nft", "delete", "table", "inet", "swarm_peer"], check=False)
        subprocess.run(["ip", "netns", "delete", _NAMESPACE], check=False)


def phase(
    swarm: LocalSwarm, watched: Watched, seconds: float, look: Callable[[float], None] = lambda now: None
) -> dict[str, Any]:
    """Measure the use of the two processes for this many seconds, and the number of steps decided meanwhile."""
    began, cpu = time.time(), watched.cpu_s()
    memory = []
    while (now := time.time()) < began + seconds:
        memory.append(watched.memory_mb())
        look(now - began)
        time.sleep(0.5)
    wall = time.time() - began
    used = [100 * (after - before) / wall for after, before in zip(watched.cpu_s(), cpu, strict=True)]
    steps = [at for at, event in swarm.events() if isinstance(event, StepDecided) and at >= began]
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    whole = [sum(each) for each in memory]
    return {
        "seconds": round(wall),
        "cpu_percent_of_a_core": {"process": round(used[0], 1), "daemon": round(sum(used[1:]), 1)},
        "memory_mb": {"least": round(min(whole)), "most": round(max(whole)), "last": round(whole[-1])},
        "steps_a_second": round(len(steps) / wall, 3),
        "median_step_s": round(statistics.median(gaps), 3) if gaps else None,
    }


def _unused(address: str) -> str:
    """The same address with a port on which nobody listens."""
    parts = dict(components(address))
    with socket.socket() as free:
        free.bind(("", 0))
        return address.replace(f"/tcp/{parts['tcp']}/", f"/tcp/{free.getsockname()[1]}/")


def measure(seconds: float, after_s: float, words: list[str], *, local: bool, firewall: bool) -> dict[str, Any]:
    with contextlib.ExitStack() as undone, tempfile.TemporaryDirectory(prefix="flood-") as made:
        folder = Path(made)
        run_file, prepare = write_run(folder)
        text = run_file.read_text().replace("steps = 12", "steps = 1000000").replace("every = 4", "every = 1000")
        run_file.write_text(text.replace("[audit]", "[swarm]\nreplicas = 1\n[audit]"))
        subprocess.run([*PEERS, *prepare], check=True, stdout=subprocess.DEVNULL)
        with LocalSwarm(folder / "swarm", run_file, [PEER, PEER]) as swarm:
            assert swarm.coordinator is not None
            time.sleep(SETTLE_S)
            watched = Watched(swarm.coordinator.pid)
            before = phase(swarm, watched, seconds / 5)
            invite = (folder / "swarm" / "invite").read_text().strip()
            newcomer = Newcomer(folder / "swarm" / "newcomer", invite)
            before_command, address = list[str](), parse(invite).addresses[0]
            if not local:
                before_command, address = undone.enter_context(elsewhere(invite, firewall=firewall))
            stranger_command = [*before_command, sys.executable, "-m", "benchmarks.stranger"]
            with subprocess.Popen(
                [*stranger_command, _unused(address), str(seconds), *words], stdout=subprocess.DEVNULL
            ):
                against_nobody = phase(swarm, watched, seconds)
            command = [*stranger_command, address, str(seconds), *words]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
                during = phase(
                    swarm, watched, seconds, lambda passed: newcomer.start() if passed > seconds / 3 else None
                )
                stranger_told = json.loads(stranger.communicate()[0])
            after = phase(swarm, watched, after_s)
            newcomer.end()
            log = folder / "swarm" / "coordinator" / "events.jsonl"
            told = [event for _, event in read_log(log)]
            joined_s = newcomer.trained_s()
    return {
        "before": before,
        "while_nobody_is_attacked": against_nobody,
        "during": during,
        "after": after,
        "step_rate": round(during["steps_a_second"] / against_nobody["steps_a_second"], 3),
        "newcomer_trains_after_s": joined_s,
        "refusals_in_the_log": sum(isinstance(event, PeerRefused) for event in told),
        "floods_in_the_log": [event.sentence() for event in told if isinstance(event, FloodNoticed)],
        "stranger": {
            "done": stranger_told["done"],
            "different_answers": len(stranger_told["told"]),
            "met": stranger_told["met"],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="How long the stranger attacks.")
    parser.add_argument("--after", type=float, default=120.0, help="How long it is quiet afterwards.")
    parser.add_argument("--rate", type=float, default=1e6, help="Bytes a second of the stranger.")
    parser.add_argument("--connections", type=float, default=50.0, help="Its connections a second.")
    parser.add_argument("--records", type=int, default=20_000, help="Its records in all.")
    parser.add_argument("--local", action="store_true", help="From this machine's own address. Takes no root.")
    parser.add_argument("--firewall", action="store_true", help="With the rule of deploy/flood.nft.")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.local and given.firewall:
        parser.error("--firewall needs a stranger with an address of its own: leave out --local")
    words = [f"--rate={given.rate}", f"--connections={given.connections}", f"--records={given.records}"]
    found = measure(given.seconds, given.after, words, local=given.local, firewall=given.firewall)
    print(json.dumps(found, indent=2))
    write_results(given.out, "flood", **found)


if __name__ == "__main__":
    main()
