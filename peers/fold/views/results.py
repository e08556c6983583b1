"""The views of the checkpoints in the archive and of the model's text over time."""

from __future__ import annotations

from typing import Any

from peers.fold.state import RunState


def checkpoints_view(state: RunState) -> dict[str, Any]:
    """Checkpoints, newest first. The server adds `exports`, because these are files that the log does not mention."""
    return {
        "checkpoints": [
            {
                "version": each.version,
                "at": each.at,
                "digests": list(each.digests),
                "complete": bool(each.digests),
                "nbytes": sum(each.nbytes.values()) or None,
            }
            for each in reversed(state.results.checkpoints)
        ],
        "exports": [],
    }


def samples_view(state: RunState) -> dict[str, Any]:
    """Samples, newest first, each with the held-out loss of its version."""
    losses = {each.version: each.loss for each in state.results.evaluations}
    return {
        "samples": [
            {
                "version": each.version,
                "at": each.at,
                "prompt": each.prompt,
                "text": each.text,
                "heldout_loss": losses.get(each.version),
            }
            for each in reversed(state.results.samples)
        ]
    }
