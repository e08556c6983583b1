"""Measures what passes cost when nobody attacks: processor time and bytes of a device's first join, and of each stream.

    python -m benchmarks.admission [--rounds 200] [--out FILE]

One process makes and checks everything with the product's own functions, without a network. Times are CPU times of one
thread, medians. `first_join`: the device signs its peer id, and a coordinator checks this and signs a certificate.
`first_stream`: the receiver checks a certificate that it sees for the first time. `further_stream`: it has seen the
certificate before. `hello`: bytes of the message that opens a stream, with and without a certificate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.arguments import at_least
from benchmarks.results import write_results
from swarm.manifest import PROTOCOL_VERSION
from swarm.net.door import Door
from swarm.net.identity import Identity
from swarm.net.passes import NEVER, Certificate, Ticket, open_enrolment
from swarm.net.proto import link_pb2, messages_pb2

RUN = "ab" * 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), options.rounds)
    print(json.dumps(found, indent=1))
    write_results(options.out, "admission", found=found)


def measured(folder: Path, rounds: int) -> dict[str, float]:
    """Microseconds and bytes, by name."""
    organiser, coordinator = Ed25519PrivateKey.generate(), Identity.load(folder / "coordinator")
    device = Identity.load(folder / "device").peer_id
    key = organiser.public_key().public_bytes_raw()
    ticket = Ticket.issue(organiser, RUN, "alice", 2, NEVER)

    def certificate() -> bytes:
        given = open_enrolment(ticket.enrol(device), device, key)
        issued_at = int(time.time())
        made = Certificate(RUN, given.serial, given.name, device, coordinator.peer_id, issued_at, given.expires_at)
        return made.sealed(coordinator)

    sealed = certificate()
    door = Door(RUN, {coordinator.peer_id}, clock=time.time)
    door.check(device, sealed, b"")
    ways: dict[str, Callable[[], object]] = {
        "first_join_us": certificate,
        "first_stream_us": lambda: Door(RUN, {coordinator.peer_id}, clock=time.time).check(device, sealed, b""),
        "further_stream_us": lambda: door.check(device, sealed, b""),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time_ns()
            way()
            times[name].append((time.process_time_ns() - began) / 1e3)
    found = {name: round(statistics.median(taken), 1) for name, taken in times.items()}
    return found | {
        "pass_bytes": len(ticket.sealed),
        "enrolment_bytes": len(ticket.enrol(device)),
        "certificate_bytes": len(sealed),
        "hello_bytes": len(_hello(device, sealed)),
        "hello_without_bytes": len(_hello(device, b"")),
    }


def _hello(peer: str, certificate: bytes) -> bytes:
    sender = messages_pb2.Actor(peer=peer, incarnation=time.time_ns())
    hello = link_pb2.Hello(
        protocol_version=PROTOCOL_VERSION, run_hash=bytes.fromhex(RUN), sender=sender, certificate=certificate
    )
    return hello.SerializeToString()


if __name__ == "__main__":
    main()
