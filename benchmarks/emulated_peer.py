"""A peer whose compute is a calibrated sleep: `emulated_peer.py FORWARD_S BACKWARD_S PARAMETERS INVITE --home HOME`.

`--max-rate` as that of `swarm-peer join`. `--no-padding`: pauses of connections stay empty. `--zero-bubble`: half of
each backward waits, in all steps or in every other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.emulated_engine import EmulatedEngine
from peers.options import parse_rate
from peers.run.home import Home
from peers.stage.machine import Machine
from peers.stage.options import JoinOptions
from peers.stage.process import join
from swarm.manifest import RunManifest
from swarm.net.invite import parse
from swarm.protocol.peer.io import PeerInput

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("forward_s", type=float)
    parser.add_argument("backward_s", type=float)
    parser.add_argument("parameters", type=int)
    parser.add_argument("invite")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--max-rate", type=parse_rate)
    parser.add_argument("--zero-bubble", choices=("never", "always", "odd-steps"), default="never")
    parser.add_argument("--no-padding", action="store_true")
    options = parser.parse_args()
    splits: Callable[[int], bool] = {
        "never": lambda step: False,
        "always": lambda step: True,
        "odd-steps": lambda step: step % 2 == 1,
    }[options.zero_bubble]

    def engine(
        manifest: RunManifest, stage: int, *_options: Any, post: Callable[[PeerInput], None], **_ignored: Any
    ) -> EmulatedEngine:
        return EmulatedEngine(
            manifest,
            stage,
            post=post,
            forward_s=options.forward_s,
            backward_s=options.backward_s,
            parameters=options.parameters,
            splits=splits,
        )

    with Home.open(options.home) as home:
        machine = Machine(max_rate=options.max_rate)
        choices = JoinOptions(machine, engine=engine, slots=64, capacity=1.0, pads=not options.no_padding)
        uvloop.run(join(parse(options.invite), home, choices))
