"""A peer without what fault tolerance costs: frames are forgotten once sent, reduced bytes are not hashed.

For benchmarks/fault_tolerance.py only; its run also adds gradients in fp32 instead of exactly. Any fault stops the run.
"""

from __future__ import annotations

import swarm.compute.reduction as reduction
from peers.cli import main
from swarm.protocol.ids import FrameKey
from swarm.protocol.messages import Payload
from swarm.protocol.peer.frame_cache import FrameCache

_keep = FrameCache.keep


def _send_and_forget(retained: FrameCache, key: FrameKey, payload: Payload) -> None:
    wanted = bool(retained._wanted_by.get(key))
    _keep(retained, key, payload)
    if wanted:
        del retained._frames[key]


if __name__ == "__main__":
    FrameCache.keep = _send_and_forget  # type: ignore[method-assign]
    reduction.reduced_digest = lambda reduced: "00" * 32
    main()
