"""The device that computes, and the memory that a process may use."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from swarm.compute.memory_table import Mode
from swarm.protocol.messages import MAX_SEATS

if TYPE_CHECKING:  # torch takes seconds to import
    from swarm.compute.precision import Precision

BARE = 400 << 20
"""Bytes used by a process that holds no state: Python, torch and libp2p."""
SPARE = 1 << 30
"""Upper limit, in bytes, of the memory that is kept in reserve: an eighth of the allowed memory. On a host, the reserve
is for the libp2p daemon and unplanned use. On a graphics card, it is for libraries and for gaps between tensors.
"""


MOST_DEVICES = MAX_SEATS
_SIDE = 64
_TIMED_SIDE = 256
_TIMED = 3
_MUCH_SLOWER = 1.5


class DeviceError(ValueError):
    """This machine does not have the device, or the device cannot do what was requested."""


@dataclass(frozen=True, slots=True)
class Picked:
    name: str
    precision: Precision
    why: str = ""
    """The reason why the CPU was chosen although there is an accelerator."""


def pick_device(name: str, precision: str = "auto", compiled: bool = False) -> Picked:
    """Choose a device. `auto` chooses an accelerator on which a kernel ran, otherwise the CPU. Raises DeviceError.

    `precision`: auto, or the precision of matrix products. `compiled`: whether the layers will be compiled.
    """
    import torch

    if name != "auto":
        picked = Picked(name, _precision(name, precision))
        if reason := _broken(picked):
            raise DeviceError(f"--device {name}: not usable here ({reason}); try --device cpu")
    else:
        picked = Picked("cpu", _precision("cpu", precision))
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if accelerator is not None:
            found = Picked(accelerator.type, _precision(accelerator.type, precision))
            reason = _broken(found)
            picked = replace(picked, why=f"{accelerator.type} cannot compute ({reason})") if reason else found
    if picked.name == "cpu" and (reason := _broken(picked)):
        raise DeviceError(
            f"--precision {precision}: the processor cannot multiply in this precision ({reason}); try fp32"
        )
    if compiled and (lacking := _lacks_compiler(picked.name)):
        raise DeviceError(
            f"--compile: torch needs {lacking} to compile for {picked.name}; install it, or leave this out"
        )
    return picked


def pick_devices(names: str, precision: str = "auto", compiled: bool = False) -> list[Picked]:
    """Devices by their names, separated by commas. Raises DeviceError, also if a card is named twice."""
    listed = [name.strip() for name in names.split(",")]
    if len(listed) > MOST_DEVICES:
        raise DeviceError(f"--device names {len(listed)} devices: a process has at most {MOST_DEVICES} peers")
    if len(listed) > 1 and any(name in ("auto", "") for name in listed):
        raise DeviceError(f"--device {names}: name each device, such as cuda:0,cuda:1; auto picks one by itself")
    picked = [pick_device(name, precision, compiled) for name in listed]
    cards = [each.name.replace("cuda:0", "cuda") for each in picked if each.name != "cpu"]
    for card in cards:
        if cards.count(card) > 1:
            raise DeviceError(f"--device {names}: {card} is named twice; --seats puts several peers on one card")
    return picked


def check_offload(devices: Sequence[Picked]) -> None:
    """Raise DeviceError if no device has memory of its own, so that there is nothing to offload."""
    if not any(Mode(each.name).own_memory for each in devices):
        raise DeviceError(
            f"--offload: {', '.join(each.name for each in devices)} already uses the host's memory, so there is "
            "nothing to offload; leave this out, or name a CUDA or ROCm card with --device"
        )


def _precision(device: str, wanted: str) -> Precision:
    import torch

    from swarm.compute.precision import Precision

    if wanted != "auto":
        return Precision(wanted)
    try:
        return Precision.usual(torch.device(device))
    except (RuntimeError, AssertionError):  # the first kernel reports a missing device
        return Precision.FP32


def _broken(picked: Picked) -> str:
    """The reason why a product of two small matrices is wrong on the device. Empty if it is right."""
    import torch

    try:
        ones = torch.ones(_SIDE, _SIDE, device=picked.name)
        with picked.precision.autocast(torch.device(picked.name)):
            total = (ones @ ones).float().sum().item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return str(error).partition("\n")[0]
    return "" if total == _SIDE**3 else f"a product came to {total:g} instead of {_SIDE**3}"


def slower(picked: Picked) -> str:
    """A sentence for people if the CPU multiplies much slower in this precision than in fp32, else empty.

    Processors without instructions for bf16 or fp16 convert every number. Takes milliseconds in fp32, and as many times
    more as it reports.
    """
    from swarm.compute.precision import Precision

    if picked.name != "cpu" or picked.precision is Precision.FP32:
        return ""
    times = _product_s(picked) / _product_s(replace(picked, precision=Precision.FP32))
    if times < _MUCH_SLOWER:
        return ""
    name, factor = picked.precision.value, f"{times:.1f}" if times < 10 else f"{times:.0f}"
    return (
        f"--precision {name}: this processor multiplies matrices in {name} {factor} times slower than in fp32; "
        "leave this out to compute in fp32"
    )


def _product_s(picked: Picked) -> float:
    """Seconds of a product of two matrices on the device, the least of a few."""
    import torch

    ones = torch.ones(_TIMED_SIDE, _TIMED_SIDE, device=picked.name)
    taken = []
    with picked.precision.autocast(torch.device(picked.name)):
        for _ in range(_TIMED + 1):  # the first one warms up
            start = time.perf_counter()
            ones @ ones
            taken.append(time.perf_counter() - start)
    return min(taken[1:])


def _lacks_compiler(device: str) -> str:
    if device != "cpu":
        return "" if find_spec("triton") else "Triton"
    compilers = (os.environ.get("CXX", ""), "g++", "clang++")
    return "" if any(shutil.which(each) for each in compilers if each) else "a C++ compiler (g++)"


def memory_budget(limit: int | None, device: str) -> int:
    """Bytes of the memory of `device` that this process may plan with: `limit`, or half of the free memory.

    In a container it is never more than the container's limit leaves, even if `limit` is larger, because the kernel
    kills a process that takes more. On a graphics card, the default is the free memory minus a reserve.
    """
    if Mode(device).own_memory:
        import torch

        allowed = int(torch.cuda.mem_get_info(device)[0])
        usual = allowed
    else:
        from peers.runtime.memory_limits import allowed_memory, free_memory, own_memory

        usual = free_memory() // 2
        allowed = max(0, allowed_memory() - max(0, BARE - own_memory()))
    return min(usual if limit is None else limit, allowed - min(allowed // 8, SPARE))
