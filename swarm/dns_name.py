"""DNS names, as they stand in addresses."""

from __future__ import annotations

import re

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)*(?![0-9]+\Z){_LABEL}", re.ASCII)
"""The last part of a name is no number: that would be an IPv4 address."""
_LONGEST = 253


def is_dns_name(text: str) -> bool:
    """True for a name in ASCII, such as swarm.example; names in other scripts have a form xn--…."""
    return len(text) <= _LONGEST and _NAME.fullmatch(text) is not None
