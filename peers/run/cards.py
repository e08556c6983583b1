"""Cards: published figures of graphics cards, to forecast a run on machines that have not been measured.

The figures are for dense products with sums in fp32, in the half precision of the card's tensor cores, from NVIDIA's
data sheets and architecture papers. The rate in fp32, the memory, its bandwidth and the bus to the host come from the
same sources.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

MINE = "mine"
"""This machine's processor, which is measured."""
MOST_CARDS = 4096
_PCIE_3, _PCIE_4, _PCIE_5 = 15.8, 31.5, 63.0
"""GB/s in one direction of 16 lanes. Half as many lanes of one generation are as fast as 16 of the one before."""
_KEPT = 0.5
_KEPT_BY = {"rtx5090": 0.7, "t4": 1.5, "a100": 0.7, "l4": 2.0, "h100": 0.9, "h200": 1.3}
"""GiB by which the memory that CUDA reports is less than a card is sold with: the driver keeps some, and on T4 and L4
also the correction of errors. They are rounded up from what torch reports on Linux ("total capacity").
"""
_CONTEXT = 0.5
"""GiB that CUDA takes in a process before its first tensor: assumed."""


class UnknownCard(ValueError):
    """The table has no such card, or the list of cards cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Card:
    memory: int
    """Bytes, as the card is sold: a GB counts as 2^30. See `free_on`."""
    flop_per_s: float
    fp32_flop_per_s: float
    """Without tensor cores."""
    bytes_per_s: float
    precision: str
    bus_bytes_per_s: float
    """Of the PCIe bus, in one direction."""


def _card(
    gigabytes: float,
    teraflop: float,
    fp32: float,
    gigabytes_per_s: float,
    precision: str = "bf16",
    *,
    bus: float = _PCIE_4,
) -> Card:
    return Card(int(gigabytes * (1 << 30)), teraflop * 1e12, fp32 * 1e12, gigabytes_per_s * 1e9, precision, bus * 1e9)


CARDS: dict[str, Card] = {
    "rtx2060": _card(6, 25.8, 6.5, 336, "fp16", bus=_PCIE_3),
    "rtx2080ti": _card(11, 53.8, 13.4, 616, "fp16", bus=_PCIE_3),
    "rtx3060": _card(12, 25.6, 12.7, 360),
    "rtx3070": _card(8, 40.6, 20.3, 448),
    "rtx3080": _card(10, 59.5, 29.8, 760),
    "rtx3090": _card(24, 71.0, 35.6, 936),
    "rtx4060": _card(8, 30.3, 15.1, 272, bus=_PCIE_3),
    "rtx4070": _card(12, 58.3, 29.1, 504),
    "rtx4080": _card(16, 97.5, 48.7, 717),
    "rtx4090": _card(24, 165.2, 82.6, 1008),
    "rtx5090": _card(32, 209.5, 104.8, 1792, bus=_PCIE_5),
    "t4": _card(16, 65.0, 8.1, 320, "fp16", bus=_PCIE_3),
    "v100": _card(16, 125.0, 15.7, 900, "fp16", bus=_PCIE_3),
    "a100": _card(40, 312.0, 19.5, 1555),
    "l4": _card(24, 121.0, 30.3, 300),
    "h100": _card(80, 989.4, 66.9, 3352, bus=_PCIE_5),
    "h200": _card(141, 989.4, 66.9, 4800, bus=_PCIE_5),
}


def free_on(name: str) -> int:
    """Bytes of a card that are free for a peer if nothing else uses the card."""
    return free_of(CARDS[name].memory, _KEPT_BY.get(name, _KEPT))


def free_of(memory: int, kept: float = _KEPT) -> int:
    """As `free_on`, for a card that is sold with `memory` bytes, of which `kept` GiB are not reported."""
    return memory - int((kept + _CONTEXT) * (1 << 30))


def parse_cards(text: str) -> list[str]:
    """Expand `rtx4090:4,rtx3060:8` into a list of twelve names. Raises UnknownCard."""
    found: list[str] = []
    for part in text.split(","):
        name, _, number = part.strip().lower().replace(" ", "").partition(":")
        if name not in CARDS and name != MINE:
            close = difflib.get_close_matches(name, CARDS, n=1)
            meant = f": did you mean {close[0]!r}?" if close else "."
            raise UnknownCard(
                f"{name!r} is not a card with known figures{meant} Known are {', '.join(CARDS)}; {MINE!r} is the "
                "processor of this machine, which is measured then"
            )
        if not re.fullmatch(r"[0-9]{0,4}", number) or not 1 <= int(number or 1) <= MOST_CARDS:
            raise UnknownCard(f"{part.strip()!r}: write how many cards after the colon, such as {name}:4")
        found += [name] * int(number or 1)
    if len(found) > MOST_CARDS:
        raise UnknownCard(f"{len(found)} cards: at most {MOST_CARDS} can be planned with")
    return found
