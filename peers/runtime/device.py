"""Which device computes, and how much memory a process may use."""

from __future__ import annotations

BARE = 400 << 20
"""Bytes of a process that holds nothing yet: Python, torch and libp2p."""
SPARE = 1 << 30
"""An eighth of what is allowed, at most so much, is for the libp2p daemon and for what nobody plans."""


class DeviceError(ValueError):
    """A device that this machine does not have."""


def pick_device(name: str) -> str:
    """`auto` is the first GPU, else the CPU. Raises DeviceError."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise DeviceError(f"--device {name}: not usable here ({reason}); try --device cpu") from None
    return name


def memory_budget(limit: int | None, device: str) -> int:
    """Bytes this process may plan with: `limit`, or half of what is free now; on a GPU no more than is free there.

    In a container never more than its limit leaves, whatever `limit` says: who takes more is killed.
    """
    from peers.runtime.memory_limits import allowed_memory, free_memory, own_memory

    if limit is None:
        limit = free_memory() // 2
    allowed = max(0, allowed_memory() - max(0, BARE - own_memory()))
    limit = min(limit, allowed - min(allowed // 8, SPARE))
    if device.startswith("cuda"):
        import torch

        limit = min(limit, int(torch.cuda.mem_get_info(device)[0]))
    return limit
