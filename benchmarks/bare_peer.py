"""A peer without the costs of fault tolerance: it forgets frames once they are sent, and does not hash the reduced
bytes.

For benchmarks/fault_tolerance.py only; its run also adds gradients in fp32 instead of exactly. Any fault stops the run.
"""

from __future__ import annotations

from peers.stage.heap import keep_freed_memory

if __name__ == "__main__":
    keep_freed_memory()  # before torch is imported, as `join` does

import torch

from peers.cli import main
from swarm.compute import digest, reduction
from swarm.protocol.ids import FrameKey
from swarm.protocol.peer.frame_cache import FrameCache, Kept

_keep = FrameCache.keep


def _send_and_forget(frame_cache: FrameCache, key: FrameKey, kept: Kept) -> None:
    wanted = bool(frame_cache._wanted_by.get(key))
    _keep(frame_cache, key, kept)
    if wanted:
        del frame_cache._frames[key]


def _no_digest(reduced: torch.Tensor) -> str:
    return "00" * 32


def without_fault_tolerance() -> None:
    """Change this process."""
    setattr(FrameCache, "keep", _send_and_forget)  # noqa: B010 - mypy would have it be a method
    for module in (digest, reduction):  # the thread that hashes is in the first; the second has a name of its own
        setattr(module, "reduced_digest", _no_digest)  # noqa: B010 - one of them imports it


if __name__ == "__main__":
    without_fault_tolerance()
    main()
