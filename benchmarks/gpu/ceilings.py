"""What the device can do at most: the rate of a matrix product, and of copies on it and to and from the host."""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.gpu.lab import Lab
from benchmarks.gpu.phase import Found


def measure(lab: Lab) -> Found:
    size = 1 << (24 if lab.smoke else 30)
    source = torch.empty(size, dtype=torch.uint8, device=lab.device).random_()
    target = torch.empty_like(source)
    found = {"copy_gigabytes_per_second": 2 * size / lab.median(lambda: target.copy_(source)) / 1e9}
    found["bf16_teraflop_per_second"] = lab.matrix_rate()
    part = target[: size // 4]
    hosts = {"pageable": torch.empty(len(part), dtype=torch.uint8)}
    if lab.cuda:
        hosts["pinned"] = hosts["pageable"].pin_memory()
    for name, host in hosts.items():
        for way, to, of in (("to_device", part, host), ("to_host", host, part)):
            seconds = lab.median(partial(to.copy_, of))
            found[f"{way}_{name}_gigabytes_per_second"] = len(part) / seconds / 1e9
    return Found({name: round(value, 2) for name, value in found.items()})
