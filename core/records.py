"""One step and one request as plain numbers: what telemetry keeps, pages draw and files hold.

`StepRecord.kind` says whether its times are measured, predicted or replayed; every figure repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One engine step.

    Times in seconds on the engine's clock; flops and bytes from the exact composition of the step
    (cost_model); `useful_*` leaves out padding and rows that a fixed batch holds after their end.
    """

    step: int
    start_s: float
    duration_s: float  # whole step: schedule + prepare + forward + sample + update + the rest
    schedule_s: float
    prepare_s: float
    forward_s: float
    sample_s: float
    transfer_s: float
    update_s: float
    num_running: int
    num_waiting: int
    num_preempted: int
    prefill_requests: int
    decode_requests: int
    prefill_tokens: int
    decode_tokens: int
    padded_tokens: int  # computed and thrown away (padding and held rows)
    output_tokens: int
    cached_tokens: int  # prompt tokens of admissions that the prefix cache served
    budget_tokens: int  # max_num_batched_tokens
    max_num_seqs: int
    admitted: int
    finished: int
    preempted: int
    blocks_live: int
    blocks_cached: int
    blocks_free: int
    kv_slots_used: int  # token slots holding a live token (fragmentation = 1 - used / (live * block_size))
    flops: float
    useful_flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    useful_bytes: float
    swap_bytes: float
    bound_by: str
    full_batch: bool
    kind: str = "measured"
    graph: str = ""  # how it was launched, see ModelRunnerOutput
    late_joins: int = 0  # requests that joined after the shape of the step was decided
    refaulted_tokens: int = 0  # tokens computed again whose block was in the prefix cache and was overwritten
    decided_rows: int = 0  # rows of the shape that was decided before late joins; 0 where nothing may join late
    discarded_s: float = 0.0  # time spent on preparing a batch that late joins made void

    @property
    def moved_bytes(self) -> float:
        """Bytes of memory traffic of the step: weights, KV read, KV written, swapped."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.swap_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/B."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def host_s(self) -> float:
        """Time outside the forward pass."""
        return max(self.duration_s - self.forward_s, 0.0)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One ended request.

    ttft_s, e2e_s from arrival; tpot_s = (e2e - ttft) / (output - 1), None for fewer than 2 output tokens;
    itl_s: gaps between output tokens (a preemption is one long gap).
    """

    request_id: str
    tenant: str
    priority: int
    arrival_s: float
    finished_s: float
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    num_preemptions: int
    queue_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    max_itl_s: float | None
    preempted_s: float
    slo_ttft_s: float | None = None
    slo_itl_s: float | None = None
    slo_met: bool | None = None
    itl_s: tuple[float, ...] = ()
