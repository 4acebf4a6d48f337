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
from core.slots import by_slots
from core.snapshot import PoolCounts
from core.step_composition import sum_columns

_record = by_slots(StepRecord)


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


step_times, step_counts = by_slots(StepTimes), by_slots(StepCounts)
"""Constructors for the engine, which makes one of each a step."""


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
    if output.padded_rows or output.copy_blocks or output.swap_in or output.swap_out:
        cost = cost_model.cost(StepComposition.from_scheduler_output(output, block_bytes))
    else:
        columns = output.num_scheduled_tokens, output.num_computed_tokens, output.samples
        cost = cost_model.cost_of_sums(sum_columns(*columns, cost_model.spec.sliding_window))
    rows, total = len(output.request_ids), sum(output.num_scheduled_tokens)
    prefill_rows = sum(output.is_prefill)
    prefill_tokens = sum(compress(output.num_scheduled_tokens, output.is_prefill)) if prefill_rows else 0
    timing, pool = result.timing, counts.pool
    return _record(
        output.step,
        times.start_s,
        times.end_s - times.start_s,
        times.decided_s - times.start_s,
        timing.prepare_s,
        timing.forward_s,
        timing.sample_s,
        timing.transfer_s,
        times.end_s - times.answered_s,
        output.num_running,
        output.num_waiting,
        counts.num_preempted,
        prefill_rows,
        rows - prefill_rows,
        prefill_tokens,
        total - prefill_tokens,
        output.padded_rows * output.padded_width - total if output.padded_rows else 0,
        counts.output_tokens,
        counts.cached_tokens,
        counts.budget_tokens,
        counts.max_num_seqs,
        len(output.admitted),
        counts.finished,
        len(output.preemptions),
        pool.live,
        pool.cached,
        pool.free,
        counts.slots_used,
        cost.flops,
        cost.useful_flops,
        cost.weight_bytes,
        cost.kv_read_bytes,
        cost.kv_write_bytes,
        cost.useful_bytes,
        cost.swap_bytes,
        output.bound_by.value,
        output.full_batch,
        kind,
        result.graph,
        len(output.late_joins),
        counts.refaulted_tokens,
        output.decided_rows,
        timing.discarded_s,
    )
