"""The keys in which two descriptions of a run differ, for the message that refuses to mix the two."""

from __future__ import annotations

import json

from swarm.manifest.run_manifest import RunManifest

_SHOWN = 6
_VALUE_SHOWN = 40
_TOKENS = ("data.tokenizer_sha256", "data.special_tokens", "data.train", "data.heldout")
_FOLLOWS = ("data.unigram_entropy", "data.bytes_per_token", "subspace_id", "initial.digests")
"""Keys that nobody sets: they follow from others."""


def differences(before: bytes, now: RunManifest, wording: str = "{key} was {before}, is {now}") -> str:
    """Names each key that differs, with both values: "run.steps was 12, is 20". `before`: the canonical form of the
    other manifest, perhaps of another release. Empty if nothing differs, or if `before` is damaged.
    """
    try:
        tree = json.loads(before)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(tree, dict):
        return ""
    old, new = _by_key(tree), _by_key(now.model_dump(mode="json"))
    keys = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    told = [
        wording.format(key=key, before=_shown(key, old), now=_shown(key, new))
        for key in keys
        if key not in (*_TOKENS, *_FOLLOWS)
    ]
    if any(key in _TOKENS for key in keys):
        told.append("the corpus holds other tokens")
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return "; ".join(told[:_SHOWN] or keys[:_SHOWN]) + more


def _by_key(tree: dict[str, object]) -> dict[str, object]:
    """The values of a manifest by table and key: {"run.steps": 12, …}."""
    found: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            found[name] = value
    return found


def _shown(key: str, values: dict[str, object]) -> str:
    if key not in values:
        return "unknown to that release"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= _VALUE_SHOWN else f"{text[:_VALUE_SHOWN]}…"
