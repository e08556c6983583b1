"""Recognises out-of-memory errors."""

from __future__ import annotations

_SIGNS = (
    "out of memory",  # CUDA, and torch.OutOfMemoryError of any device
    "DefaultCPUAllocator",
    "can't allocate memory",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the machine or the device is out of memory."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def first_line(error: BaseException) -> str:
    """The first line of an error of torch, for messages. The other lines are pages of advice."""
    return str(error).partition("\n")[0] or type(error).__name__
