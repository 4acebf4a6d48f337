"""One step's record, from what was decided, what came back and when.

start --schedule-- decided --prepare, forward, sample, transfer-- answered --update-- end
      schedule_s           timing of the executor                          update_s
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress

from core.cost_model import CostModel, StepComposition
from core.outputs import ModelRunnerOutput, SchedulerOutput
from core.records import StepRecord
from core.snapshot import PoolCounts


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The engine's clock at the four boundaries of a step, s."""

    start_s: float
    decided_s: float
    answered_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What the engine counted around a step.

    Attributes:
        pool, slots_used: after the step.
        output_tokens, finished: that the step produced.
        cached_tokens, queried_tokens: prompt tokens of its admissions served by, and looked up in, the prefix index.
    """

    pool: PoolCounts
    slots_used: int
    num_preempted: int
    output_tokens: int
    finished: int
    cached_tokens: int
    queried_tokens: int
    budget_tokens: int
    max_num_seqs: int
    refaulted_tokens: int = 0


def build_step_record(
    output: SchedulerOutput,
    result: ModelRunnerOutput,
    times: StepTimes,
    counts: StepCounts,
    cost_model: CostModel,
    *,
    block_bytes: float,
    kind: str,
) -> StepRecord:
    """Put a record together; FLOPs and bytes come from the exact composition of the step."""
    cost = cost_model.cost(StepComposition.from_scheduler_output(output, block_bytes))
    rows = len(output.request_ids)
    total = sum(output.num_scheduled_tokens)
    prefill_rows = sum(output.is_prefill)
    prefill_tokens = sum(compress(output.num_scheduled_tokens, output.is_prefill)) if prefill_rows else 0
    timing, pool = result.timing, counts.pool
    return StepRecord(
        step=output.step,
        start_s=times.start_s,
        duration_s=times.end_s - times.start_s,
        schedule_s=times.decided_s - times.start_s,
        prepare_s=timing.prepare_s,
        forward_s=timing.forward_s,
        sample_s=timing.sample_s,
        transfer_s=timing.transfer_s,
        update_s=times.end_s - times.answered_s,
        num_running=output.num_running,
        num_waiting=output.num_waiting,
        num_preempted=counts.num_preempted,
        prefill_requests=prefill_rows,
        decode_requests=rows - prefill_rows,
        prefill_tokens=prefill_tokens,
        decode_tokens=total - prefill_tokens,
        padded_tokens=output.padded_rows * output.padded_width - total if output.padded_rows else 0,
        output_tokens=counts.output_tokens,
        cached_tokens=counts.cached_tokens,
        budget_tokens=counts.budget_tokens,
        max_num_seqs=counts.max_num_seqs,
        admitted=len(output.admitted),
        finished=counts.finished,
        preempted=len(output.preemptions),
        blocks_live=pool.live,
        blocks_cached=pool.cached,
        blocks_free=pool.free,
        kv_slots_used=counts.slots_used,
        flops=cost.flops,
        useful_flops=cost.useful_flops,
        weight_bytes=cost.weight_bytes,
        kv_read_bytes=cost.kv_read_bytes,
        kv_write_bytes=cost.kv_write_bytes,
        useful_bytes=cost.useful_bytes,
        swap_bytes=cost.swap_bytes,
        bound_by=output.bound_by.value,
        full_batch=output.full_batch,
        kind=kind,
        graph=result.graph,
        late_joins=len(output.late_joins),
        refaulted_tokens=counts.refaulted_tokens,
    )
