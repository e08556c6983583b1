"""Which device computes, and how much memory a process may use."""

from __future__ import annotations


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
    """Bytes this process may use: `limit`, or half of what is free now; on a GPU no more than is free there."""
    if limit is None:
        import psutil

        limit = int(psutil.virtual_memory().available // 2)
    if device.startswith("cuda"):
        import torch

        limit = min(limit, int(torch.cuda.mem_get_info(device)[0]))
    return limit
