"""Bounds on sizes and values of messages. A message outside the bounds is refused: no honest actor sends one.

No data from the network is trusted. `check_lengths` checks the lengths of a frame before memory is allocated for it.
`check_value` checks every value after it is decoded.
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
"""Longest name of a codec, bytes."""
MAX_LINKS = 64
"""Largest number of link rates in a peer's status."""
MAX_LABEL = 80
"""Longest label, characters: a short text for people in a message that may contain many labels."""
MAX_LISTENERS = 4096
"""Largest number of peers in an Open that are taking over a stage during the pass."""
SIGNATURE_BYTES = 64
"""Size of an Ed25519 signature, bytes."""
MAX_INTRODUCED = 16_384
MAX_HEADER = 1 << 20
"""Largest header on the control channel, bytes: enough for an Open with 64 stages and 16,384 microbatches."""
MAX_DATA_HEADER = 1 << 16
"""Largest header on a data channel, bytes."""


class WireError(ValueError):
    """An incoming or outgoing message is malformed or out of bounds; the message of the error gives the reason."""


def check_lengths(header: int, payload: int, max_header: int, max_payload: int) -> None:
    """Check the announced lengths of a frame, in bytes, before memory is allocated. Raises WireError."""
    if header > max_header:
        raise WireError(f"the header of the frame has {header} bytes; at most {max_header} are allowed")
    if payload > max_payload:
        raise WireError(f"the payload of the frame has {payload} bytes; at most {max_payload} are allowed")


def check_value(value: Any) -> None:
    """Raise WireError for a value that no honest actor sends in any state."""
    match value:
        case m.StageTable() if value.assignment and max(value.assignment) >= len(value.roster):
            raise WireError(f"the assignment names replica {max(value.assignment)} of a roster of {len(value.roster)}")
        case m.StageTable() if len(value.carried) not in (0, len(value.roster)):
            raise WireError(f"`carried` has {len(value.carried)} entries for a roster of {len(value.roster)}")
        case m.StageTable() if len(value.lines) not in (0, len(value.roster)):
            raise WireError(f"`lines` has {len(value.lines)} entries for a roster of {len(value.roster)}")
        case m.Want() if len(value.bases) not in (0, len(value.keys)):
            raise WireError(f"`bases` has {len(value.bases)} entries for {len(value.keys)} keys")
        case m.Decision():
            numbers = (value.loss_sum, value.gradient_norm)
            if not math.isfinite(value.scale) or value.scale < 0:
                raise WireError(f"the scale is {value.scale}; it must be finite and not negative")
            if value.scale > 0 and not all(math.isfinite(x) for x in numbers):  # a SKIP may report non-finite numbers
                raise WireError(f"the decision applies a step with loss sum and norm {numbers}; both must be finite")
            if not 0.0 < value.rate <= controls.MOST_RATE:
                raise WireError(f"the rate is {value.rate}; it must be above 0 and at most {controls.MOST_RATE:g}")
        case m.Command():
            try:
                controls.check(value)
            except ValueError as error:
                raise WireError(str(error)) from None
        case Update() if not value.sound:
            raise WireError(f"the values of the update are out of range: {value}")
        case m.Prepared() if value.finite and not (math.isfinite(value.squared_norm) and value.squared_norm >= 0):
            raise WireError(f"the gradient is reported as finite, but its squared norm is {value.squared_norm}")
        case m.Prepared() if value.finite and not math.isfinite(value.loss_sum):
            raise WireError(f"the gradient is reported as finite, but its loss sum is {value.loss_sum}")
        case m.Prepared() if len(value.sketch) % SKETCH_BYTES or len(value.outline) % SKETCH_BYTES:
            raise WireError(
                f"the sketches have {len(value.sketch)} and {len(value.outline)} bytes; a sketch has {SKETCH_BYTES}"
            )
        case m.Join() | m.Status() if not (math.isfinite(value.capacity) and value.capacity >= 0):
            raise WireError(f"the capacity is {value.capacity}; it must be finite and not negative")
        case m.Join(uplink=up, downlink=down) | m.Status(offered_uplink=up, downlink=down) if not all(
            rate is None or _is_rate(rate) for rate in (up, down)
        ):
            raise WireError(f"the uplink is {up} and the downlink {down} bytes/s; both must be finite and above 0")
        case m.Status() if value.seconds_per_microbatch is not None and not (
            math.isfinite(value.seconds_per_microbatch) and value.seconds_per_microbatch >= 0
        ):
            raise WireError(f"a microbatch takes {value.seconds_per_microbatch} s; it must be finite and not negative")
        case m.Status() if value.uplink is not None and not _is_rate(value.uplink):
            raise WireError(f"the uplink is {value.uplink} bytes/s; it must be finite and above 0")
        case m.Work() if len(value.seconds) != len(m.WORK_KINDS) or not all(map(_is_amount, value.seconds)):
            raise WireError(
                f"the seconds of work are {value.seconds}; there must be {len(m.WORK_KINDS)}, finite and not negative"
            )
        case m.Trait(number=number) if number is not None and not _is_amount(number):
            raise WireError(f"the machine reports {value.name} = {number}; it must be finite and not negative")
        case m.Figure() if not _is_amount(value.value):
            raise WireError(f"{value.name} is {value.value}; it must be finite and not negative")
        case m.LinkUse() if len(value.sent) not in (0, len(m.LINK_KINDS)):
            raise WireError(f"`sent` has {len(value.sent)} entries; there must be {len(m.LINK_KINDS)}")
        case m.LinkUse(rate=rate, rtt_s=rtt) if not all(n is None or _is_amount(n) for n in (rate, rtt)):
            raise WireError(f"the link has {rate} bytes/s and a round trip of {rtt} s; both must be finite and ≥ 0")
        case m.LinkRate() if not _is_rate(value.bytes_per_s):
            raise WireError(f"the link has {value.bytes_per_s} bytes/s; it must be finite and above 0")


def _is_amount(number: float) -> bool:
    return math.isfinite(number) and number >= 0


def _is_rate(bytes_per_s: float) -> bool:
    return math.isfinite(bytes_per_s) and bytes_per_s > 0


def check_actor(peer: str, incarnation: int) -> None:
    if not (0 < len(peer) <= MAX_PEER_ID and peer.isascii() and peer.isalnum()):
        raise WireError(f"{peer[:MAX_PEER_ID]!r} is not a peer id")
    if not 0 <= incarnation < 2**63:
        raise WireError(f"the incarnation {incarnation} is out of range")
