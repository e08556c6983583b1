"""What the wire takes at most, and what no honest actor sends.

Nothing from the network is trusted: lengths are checked before anything is allocated (`check_lengths`), and every value
after it is decoded (`check_value`).
"""

from __future__ import annotations

import math
from typing import Any

from swarm.protocol import controls
from swarm.protocol import messages as m
from swarm.protocol.sketch import SKETCH_BYTES
from swarm.protocol.update import Update

MAX_STAGES = 1024
MAX_MICROBATCHES = 65_535
MAX_REPLICAS = 4096
MAX_WANT_KEYS = 16_384
MAX_TEXT = 1024
MAX_DIGEST = 128
MAX_PEER_ID = 128
MAX_CODEC = 64
"""Bytes of a codec's name."""
MAX_LINKS = 64
"""Links whose rates a peer tells."""
MAX_LABEL = 80
"""Characters of a text for people to see, of which there are many."""
MAX_LISTENERS = 4096
"""Peers that take up a stage while a pass is open."""
MAX_INTRODUCED = 16_384
MAX_HEADER = 1 << 20
"""Bytes of a header on the control channel: an Open of 64 stages and 16,384 microbatches."""
MAX_DATA_HEADER = 1 << 16
"""Bytes of a header on a data channel."""


class WireError(ValueError):
    """What arrived (or should be sent) is not a message within the bounds; the text says why."""


def check_lengths(header: int, payload: int, max_header: int, max_payload: int) -> None:
    """Judge the announced lengths of a frame, in bytes, before anything is allocated. Raises WireError."""
    if header > max_header:
        raise WireError(f"a header of {header} bytes is announced; at most {max_header} are taken")
    if payload > max_payload:
        raise WireError(f"a payload of {payload} bytes is announced; at most {max_payload} are taken")


def check_value(value: Any) -> None:
    """Raises WireError for values that no honest actor sends, whatever its state."""
    match value:
        case m.StageTable() if value.assignment and max(value.assignment) >= len(value.roster):
            raise WireError(f"an assignment to roster index {max(value.assignment)} of {len(value.roster)}")
        case m.StageTable() if len(value.carried) not in (0, len(value.roster)):
            raise WireError(f"{len(value.carried)} places in the step before for a roster of {len(value.roster)}")
        case m.StageTable() if len(value.lines) not in (0, len(value.roster)):
            raise WireError(f"{len(value.lines)} lines for a roster of {len(value.roster)}")
        case m.Want() if len(value.bases) not in (0, len(value.keys)):
            raise WireError(f"{len(value.bases)} bases for {len(value.keys)} keys")
        case m.Decision():
            numbers = (value.loss_sum, value.gradient_norm)
            if not math.isfinite(value.scale) or value.scale < 0:
                raise WireError(f"a scale of {value.scale}; it must be finite and not negative")
            if value.scale > 0 and not all(math.isfinite(x) for x in numbers):  # a SKIP may report what it skipped
                raise WireError(f"a decision to apply with loss sum and norm {numbers}")
            if not 0.0 < value.rate <= controls.MOST_RATE:
                raise WireError(f"a rate of {value.rate}; it must be above 0 and at most {controls.MOST_RATE:g}")
        case m.Command():
            try:
                controls.check(value)
            except ValueError as error:
                raise WireError(str(error)) from None
        case Update() if not value.sound:
            raise WireError(f"no step can be made with {value}")
        case m.Prepared() if value.finite and not (math.isfinite(value.squared_norm) and value.squared_norm >= 0):
            raise WireError(f"a finite gradient with squared norm {value.squared_norm}")
        case m.Prepared() if value.finite and not math.isfinite(value.loss_sum):
            raise WireError(f"a finite gradient with loss sum {value.loss_sum}")
        case m.Prepared() if len(value.sketch) % SKETCH_BYTES or len(value.outline) % SKETCH_BYTES:
            raise WireError(f"{len(value.sketch)} and {len(value.outline)} bytes of sketches: each has {SKETCH_BYTES}")
        case m.Join() | m.Status() if not (math.isfinite(value.capacity) and value.capacity >= 0):
            raise WireError(f"a capacity of {value.capacity}; it must be finite and not negative")
        case m.Join(uplink=up, downlink=down) | m.Status(offered_uplink=up, downlink=down) if not all(
            rate is None or _is_rate(rate) for rate in (up, down)
        ):
            raise WireError(f"an uplink of {up} and a downlink of {down} bytes a second")
        case m.Status() if value.seconds_per_microbatch is not None and not (
            math.isfinite(value.seconds_per_microbatch) and value.seconds_per_microbatch >= 0
        ):
            raise WireError(f"{value.seconds_per_microbatch} seconds per microbatch")
        case m.Status() if value.uplink is not None and not _is_rate(value.uplink):
            raise WireError(f"an uplink of {value.uplink} bytes a second")
        case m.Work() if len(value.seconds) != len(m.WORK_KINDS) or not all(map(_is_amount, value.seconds)):
            raise WireError(f"seconds of work {value.seconds}; there are {len(m.WORK_KINDS)}, finite and not negative")
        case m.Trait(number=number) if number is not None and not _is_amount(number):
            raise WireError(f"a machine reports {value.name} = {number}; {value.name} must be finite and not negative")
        case m.Figure() if not _is_amount(value.value):
            raise WireError(f"{value.name} of {value.value}; it must be finite and not negative")
        case m.LinkUse() if len(value.sent) not in (0, len(m.LINK_KINDS)):
            raise WireError(f"{len(value.sent)} kinds of bytes; there are {len(m.LINK_KINDS)}")
        case m.LinkUse(rate=rate, rtt_s=rtt) if not all(n is None or _is_amount(n) for n in (rate, rtt)):
            raise WireError(f"a link of {rate} bytes a second, {rtt} seconds there and back")
        case m.LinkRate() if not _is_rate(value.bytes_per_s):
            raise WireError(f"a link of {value.bytes_per_s} bytes a second")


def _is_amount(number: float) -> bool:
    return math.isfinite(number) and number >= 0


def _is_rate(bytes_per_s: float) -> bool:
    return math.isfinite(bytes_per_s) and bytes_per_s > 0


def check_actor(peer: str, incarnation: int) -> None:
    if not (0 < len(peer) <= MAX_PEER_ID and peer.isascii() and peer.isalnum()):
        raise WireError(f"{peer[:MAX_PEER_ID]!r} is not a peer id")
    if not 0 <= incarnation < 2**63:
        raise WireError(f"{incarnation} is not an incarnation")
