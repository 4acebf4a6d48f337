"""A batch that was built before the launch, and what an amended decision adds to it.

decision -> prepare -> [ requests join late ] -> amended decision: same rows and tokens?   launch what was prepared
                                                                  another shape?           prepare again, only what is new
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.outputs import SchedulerOutput
from core.runtime.input_batch import PlannedStep


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A decision whose rows, blocks and copies the runner has taken over already; `planned` is None if it has no rows."""

    output: SchedulerOutput
    planned: PlannedStep | None
    seconds: float


def has_same_batch(prepared: SchedulerOutput, launched: SchedulerOutput) -> bool:
    """True if what was prepared is exactly what is to be launched."""
    return all(
        getattr(prepared, name) == getattr(launched, name)
        for name in ("request_ids", "num_scheduled_tokens", "released_ids", "new_block_ids", "swap_out", "swap_in", "copy_blocks")
    )


def added_by(prepared: SchedulerOutput, amended: SchedulerOutput) -> SchedulerOutput:
    """The amended decision without the part of its state that the runner has taken over already."""
    held = {new.request_id for new in prepared.new_requests}
    grown = {request_id for request_id, _ in prepared.new_block_ids}
    return replace(
        amended,
        released_ids=amended.released_ids[len(prepared.released_ids) :],
        new_requests=tuple(new for new in amended.new_requests if new.request_id not in held),
        new_block_ids=tuple(pair for pair in amended.new_block_ids if pair[0] not in grown),
        swap_out=amended.swap_out[len(prepared.swap_out) :],
        swap_in=amended.swap_in[len(prepared.swap_in) :],
        copy_blocks=amended.copy_blocks[len(prepared.copy_blocks) :],
    )
