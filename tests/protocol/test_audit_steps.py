"""How many steps lie between two drawn audits, by the run file."""

from __future__ import annotations

import pytest
from core_swarm import manifest

from swarm.manifest import AuditSection
from swarm.protocol.settings import Settings


@pytest.mark.parametrize(
    ("audit", "microbatches", "steps"),
    [
        (AuditSection(), 16, 192),
        (AuditSection(), 3, 200),
        (AuditSection(every=300), 16, 37),
        (AuditSection(every=8), 16, 1),
        (AuditSection(every=0), 16, 0),
    ],
)
def test_steps_from_audit_to_audit(audit: AuditSection, microbatches: int, steps: int) -> None:
    """By default 300 microbatches of one peer, but no more steps than may take 1 % of the time."""
    of = manifest("none", replicas=2)
    batch = of.batch.model_copy(update={"microbatches": microbatches})
    settings = Settings.of(of.model_copy(update={"audit": audit, "batch": batch}))
    assert settings.audit_every == steps and settings.screened == (steps > 0)
