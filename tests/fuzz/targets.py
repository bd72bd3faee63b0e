"""Every target, by its name."""

from __future__ import annotations

from tests.fuzz import (
    checkpoint_target,
    engine_target,
    payload_targets,
    proof_target,
    text_targets,
    wire_targets,
)

TARGETS = {
    target.name: target
    for module in (
        wire_targets,
        payload_targets,
        text_targets,
        proof_target,
        checkpoint_target,
        engine_target,
    )
    for target in module.TARGETS
}
